"""4-bit weights of bitsandbytes, on the CPU: a run with them is the run on the weights that they stand for."""

import pytest
import torch
from conftest import EVAL_DATA, TINY_LM, TRAIN_DATA, load_script, read_lines, save_random_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

ppo, od, grpo = (load_script(name) for name in ("ppo_train", "on_policy_distillation", "grpo_train"))
CPU = torch.device("cpu")
REWARD = """
def digits(prompts, completions, **kwargs):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(sum(map(str.isdigit, text))) for text in texts]
"""
LORA = ["--load_in_4bit", "--lora_rank=4"]


def test_a_model_that_came_quantised_trains_adapters_only(tmp_path, capsys):
    packed = AutoModelForCausalLM.from_pretrained(TINY_LM, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    for part in (packed, AutoTokenizer.from_pretrained(TINY_LM)):
        part.save_pretrained(tmp_path / "packed")
    flags = [f"--model={tmp_path / 'packed'}", f"--output_dir={tmp_path / 'run'}"]
    for more in ([], ["--lora_rank=4", "--merge_lora"]):
        assert ppo.main([*flags, *more]) == 2
        said = capsys.readouterr().err
        assert "packed', whose weights are quantised" in said and "--lora_rank 16 without --merge_lora" in said


@pytest.fixture(scope="module")
def rounded(tmp_path_factory):
    """The embedded model with each linear weight rounded to NF4, as a folder of ordinary weights."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    folder = tmp_path_factory.mktemp("rounded")
    model = AutoModelForCausalLM.from_pretrained(TINY_LM)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            packed, state = quantize_4bit(module.weight.data, quant_type="nf4", compress_statistics=True)
            assert packed.dtype == torch.uint8 and packed.numel() * 2 == module.weight.numel()
            module.weight.data = dequantize_4bit(packed, state)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Flags of a small task whose reward differs between completions."""
    folder = tmp_path_factory.mktemp("task")
    for name, source, count in (("train", TRAIN_DATA, 24), ("eval", EVAL_DATA, 4)):
        (folder / f"{name}.jsonl").write_text("".join(source.read_text().splitlines(keepends=True)[:count]))
    (folder / "rewards.py").write_text(REWARD)
    return [
        *(f"--data={folder / 'train.jsonl'}", f"--eval_data={folder / 'eval.jsonl'}"),
        *(f"--reward={folder / 'rewards.py'}:digits", "--steps=2", "--plot_every=0", "--eval_every=0"),
    ]


OURS = ["--batch_size=8", "--max_new_tokens=8", "--lr=1e-3", "--minibatches=2"]


def adapters(folder):
    """Adapter weights of a run."""
    (path,) = folder.rglob("final/**/adapter_model.safetensors")
    return load_file(path)


def assert_same_adapters(one, two):
    """The adapters of two runs are the same, and trained: every B starts at 0."""
    first, second = adapters(one), adapters(two)
    assert first.keys() == second.keys()
    for name, x in first.items():
        assert x.abs().max() > 0, name
        torch.testing.assert_close(x, second[name], rtol=0, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


RUNS = {  # name: (script, further flags, those of the packed run, those of the run on rounded weights)
    "a shared critic, recomputed": (
        *(ppo, ["--critic=shared", "--gradient_checkpointing"]),
        *([f"--model={TINY_LM}", *LORA], ["--model={rounded}", LORA[1]]),
    ),
    "a teacher": (
        *(od, ["--model={student}", LORA[1]]),
        *([f"--teacher={TINY_LM}", "--teacher_in_4bit"], ["--teacher={rounded}"]),
    ),
    "a student": (od, ["--teacher={student}"], [f"--model={TINY_LM}", *LORA], ["--model={rounded}", LORA[1]]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_4_bits_is_that_on_the_rounded_weights(rounded, saved, task, tmp_path, name):
    script, more, packed, plain = RUNS[name]
    for out, flags in (("packed", packed), ("plain", plain)):
        own = [flag.format(rounded=rounded, student=saved("llama")) for flag in (*more, *flags)]
        assert script.main([*task, *OURS, *own, f"--output_dir={tmp_path / out}"]) == 0
    assert_same_adapters(tmp_path / "packed", tmp_path / "plain")
    lines = read_lines(tmp_path / "packed" / "metrics.jsonl")
    assert all(line.get("rollout/logprob_gap_max", 0) < 1e-4 for line in lines)


def test_packed_weights_stay_packed(tmp_path):
    """Policy and critic hold 4 bits a weight, before and after sampling; a critic of few tokens is refused."""
    config = ppo.Config(model=str(TINY_LM), load_in_4bit=True, lora_rank=4, precision="bf16")
    models = ppo.load_models(config, CPU)
    ppo.HFEngine(config, models).generate([[5, 6, 7]], None)
    for network in (models.policy, models.critic.backbone):
        weights = {n: p for n, p in network.named_parameters() if "proj" in n and "lora_" not in n}
        assert len(weights) == 14 and {p.dtype for p in weights.values()} == {torch.uint8}
        states = [p.quant_state for p in weights.values()]
        assert not any(getattr(s, "packing_format_for_cpu", False) for s in states)
    small = save_random_model("llama", tmp_path / "small")
    model = AutoModelForCausalLM.from_pretrained(small)
    model.resize_token_embeddings(100)
    model.save_pretrained(small)
    with pytest.raises(ppo.UserError, match="of 100 tokens; expected the policy's 262"):
        ppo.load_models(ppo.Config(**{**vars(config), "critic_model": small}), CPU)


@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-4), ("bf16", 0.3)])
def test_a_teacher_in_4_bits_is_the_teacher_of_the_rounded_weights(rounded, precision, near):
    ids = torch.arange(12)[None] + 40
    piece = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "response_mask": (ids > 40).long()}
    found = []
    for teacher, packed in ((str(TINY_LM), True), (rounded, False)):
        config = od.Config(model=str(TINY_LM), teacher=teacher, teacher_in_4bit=packed, teacher_precision=precision)
        local = od.load_models(config, CPU).teacher
        kinds = {p.dtype for n, p in local.model.named_parameters() if "proj" in n}
        assert kinds == {torch.uint8 if packed else {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]}
        found.append(local.logprobs(local.states(piece)[0]))
    torch.testing.assert_close(*found, rtol=0, atol=near)


@pytest.mark.long
def test_grpo_with_4_bits_is_close_to_grpo_on_the_rounded_weights(rounded, task, tmp_path):
    sizes = ["--per_device_train_batch_size=8", "--num_generations=4", "--max_completion_length=8", "--save_steps=0"]
    for name, flags in (("packed", [f"--model={TINY_LM}", *LORA]), ("plain", [f"--model={rounded}", LORA[1]])):
        assert grpo.main([*task, *sizes, *flags, "--learning_rate=1e-3", f"--output_dir={tmp_path / name}"]) == 0
    packed, plain = adapters(tmp_path / "packed"), adapters(tmp_path / "plain")
    assert packed.keys() == plain.keys() and {x.dtype for x in packed.values()} == {torch.float32}
    for name, x in packed.items():  # TRL starts from adapters that it has rounded to bf16
        assert x.abs().max() > 0 and (x - plain[name]).norm() < 0.1 * plain[name].norm(), name
