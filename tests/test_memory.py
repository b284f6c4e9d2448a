"""The memory that activations take, as --dry_run counts it, beside what autograd really saves."""

import dataclasses

import pytest
import torch
import transformers
from conftest import QWEN, ROOT, load_module, load_script

from parts.networks.forward import backbone, logprobs_and_entropy
from parts.networks.models import unwrapped
from parts.running.memory import (
    PassShape,
    adapter_weights,
    decoder_shape,
    folded_bytes,
    layer_weights,
    saved_for_backward,
)

ppo, od = load_script("ppo_train"), load_script("on_policy_distillation")
allocated_peak = load_module(ROOT / "benchmarks" / "memory_estimates.py", "estimates").allocated_peak

SIZES = {
    **{"vocab_size": 97, "hidden_size": 96, "intermediate_size": 224, "num_hidden_layers": 4},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 20}),
    "gpt2": ("GPT2Config", {"n_embd": 96, "n_layer": 4, "n_head": 6, "n_inner": 224, "num_key_value_heads": None}),
    "gemma2": ("Gemma2Config", {"head_dim": 20}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 20}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
TOLERANCE = 0.03  # of all that is saved, in a network this small; statistics of norms and routing are left out


def random_network(family: str, attention: str, half: bool = False):
    """A random model without dropout, in eval mode."""
    torch.manual_seed(0)
    config_class, extra = FAMILIES[family]
    config = getattr(transformers, config_class)(**{**SIZES, **extra}, attn_implementation=attention)
    model = transformers.AutoModelForCausalLM.from_config(config)
    return model.to(torch.bfloat16 if half else torch.float32).eval()


def saved_bytes(model, rows: int, length: int, precision: str) -> int:
    """Bytes of the storages that autograd keeps for the network below the output layer, each once, weights apart."""
    ids = torch.randint(3, SIZES["vocab_size"], (rows, length))
    mask = torch.ones_like(ids)
    mask[1:, length - 5 :] = 0
    weights = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    found, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        alive.append(tensor)  # so that no address is used twice
        if storage.data_ptr() not in weights and not (tensor.dtype == torch.bool or tensor.dtype == torch.long):
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast:
        backbone(model, ids, mask, use_cache=False)
    return sum(found.values())


def shape_of(model):
    return decoder_shape(unwrapped(model).config.get_text_config().to_dict())


def recompute(model) -> None:
    """Switch recomputing on, as the trainer does for an update."""
    model.activation_checkpointing_enable({"use_reentrant": False})
    for layer in model.modules():
        if isinstance(layer, transformers.modeling_layers.GradientCheckpointingLayer):
            layer.training = True


PLAIN = [
    *(("llama", "eager", "fp32"), ("llama", "sdpa", "bf16"), ("qwen3", "sdpa", "fp32"), ("gpt2", "eager", "bf16")),
    *(("gemma2", "eager", "bf16"), ("gemma3", "sdpa", "bf16"), ("mixtral", "sdpa", "fp32")),
]
RECOMPUTED = [("llama", "sdpa", "bf16"), ("gpt2", "eager", "fp32"), ("gemma3", "eager", "bf16")]


@pytest.mark.parametrize(
    ("case", "again"), [*((case, False) for case in PLAIN), *((case, True) for case in RECOMPUTED)], ids=str
)
def test_what_is_saved_for_backward_with_and_without_recomputing_is_predicted(case, again):
    family, attention, precision = case
    model = random_network(family, attention)
    if again:
        recompute(model)
    run = PassShape(3, 64, compute=4 if precision == "fp32" else 2, attention=attention, checkpointing=again)
    predicted, real = saved_for_backward(shape_of(model), run), saved_bytes(model, 3, 64, precision)
    # in backward_peak's sum, once for all layers
    masks = 4 * 3 * 64**2 * (again and family == "gpt2" and attention == "eager")
    assert predicted + masks == pytest.approx(real, rel=TOLERANCE)
    plain = dataclasses.replace(run, checkpointing=False)
    assert not again or predicted < 0.3 * saved_for_backward(shape_of(model), plain)


@pytest.mark.parametrize(("family", "half"), [("llama", True), ("qwen3", False), ("gpt2", True), ("gemma3", False)])
def test_what_is_saved_under_lora_is_predicted(family, half):
    from peft import LoraConfig, get_peft_model

    model = random_network(family, "sdpa", half).requires_grad_(False)
    lora = LoraConfig(r=4, target_modules="all-linear", fan_in_fan_out=family == "gpt2")
    adapted = get_peft_model(model, lora).eval()
    width = 2 if half else 4
    run = PassShape(3, 64, compute=width, stream=width, lora_rank=4)
    # GPT-2's norms run in bfloat16 under a CPU's autocast, in float32 under CUDA's, which is what is predicted
    tolerance = 0.12 if half and family == "gpt2" else 0.05
    real = saved_bytes(adapted, 3, 64, "bf16" if half else "fp32")
    assert saved_for_backward(shape_of(model), run) == pytest.approx(real, rel=tolerance)
    assert adapter_weights(shape_of(model), 4) == sum(p.numel() for p in adapted.parameters() if p.requires_grad)


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_are_read_from_configs(family):
    model = random_network(family, "eager")
    shape, linear = shape_of(model), torch.nn.Linear | transformers.pytorch_utils.Conv1D
    layer = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))[0]
    if not shape.experts:
        real = sum(m.weight.numel() for m in layer.modules() if isinstance(m, linear))
        assert layer_weights(shape) == real
    embeddings = {id(m.weight): m.weight.numel() for m in (model.get_input_embeddings(), model.get_output_embeddings())}
    assert shape.embeddings == sum(embeddings.values()) and shape.layers == 4 and shape.vocab == 97


def test_a_half_billion_model_by_hand():
    """Qwen2.5-0.5B at 8,192 tokens in float32: what its layers keep, token by token."""
    shape, run = decoder_shape(QWEN), PassShape(16, 512)
    norms_and_inputs, attention, mlp = 2 * 2 * 896 + 2 * 896, 4 * 896 + 14, 4 * 4864  # numbers per token and layer
    by_hand = 8192 * 24 * 4 * (norms_and_inputs + attention + mlp) + 24 * 16 * 512**2 * 4 + 8192 * 2 * 896 * 4
    assert saved_for_backward(shape, run) == pytest.approx(by_hand, rel=1e-9)
    assert by_hand / 2**30 > 20  # the weights, gradients and moments of the same model are 7.4


def test_the_weights_with_lora_in_them_are_counted_on_a_gpu(monkeypatch):
    """Qwen2.5-0.5B in bf16: q and o, k and v, gate, up and down of 24 layers."""
    shape, run = decoder_shape(QWEN), PassShape(16, 512, 2, 2, lora_rank=8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def counted(gib: float, **settings) -> float:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, gib * 2**30))
        return folded_bytes(ppo.Config(algorithm="grpo", **{"lora_rank": 8, "device": "cuda"} | settings), shape, run)

    assert counted(80) == 2 * 24 * (2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864)
    assert counted(3) == counted(80, device="cpu") == counted(80, lora_rank=0) == counted(80, load_in_4bit=True) == 0


@pytest.mark.parametrize("entropy_coef", [0.0, 0.01])
def test_tensors_of_the_vocabularys_width_are_counted(entropy_coef):
    """The most that torch's allocator hands out for a piece, whose output layer is frozen, forward and backward."""
    head, targets = torch.nn.Linear(8, 20_000, bias=False).requires_grad_(False), torch.randint(20_000, (64,))
    hidden = torch.randn(64, 8, requires_grad=True)

    def piece():
        logprobs, entropy = logprobs_and_entropy(head, hidden, targets, 1.0, 64, bool(entropy_coef))
        (logprobs.sum() - entropy_coef * entropy.sum()).backward()

    measured = allocated_peak(piece)
    config = ppo.Config(algorithm="grpo", lora_rank=4, entropy_coef=entropy_coef, logits_chunk=2**16)
    predicted = ppo.memory_estimate(config, ppo.shaped_network(config, config.model), 12, 1)["logits"]
    assert measured / (4 * 64 * 20_000) - 0.01 <= predicted / (4 * 2**16) <= 5  # beside tensors of other sizes
