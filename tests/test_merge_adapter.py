"""merge_adapter.py: the folder is base + scaling B A in the asked dtype, measured; and what it refuses."""

import json
import logging
import shutil

import pytest
import torch
from conftest import SHAPE, TINY_LM, load_script
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from small_runs import bf16_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

merge = load_script("merge_adapter")
KEY = "model.layers.1.self_attn.q_proj"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """An adapter of rank 4 whose B is not 0."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32)
    settings = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, settings)
    for name, x in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(x, std=0.05)
    folder = tmp_path_factory.mktemp("lora") / "adapter"
    model.save_pretrained(folder)
    return folder


def run(capsys, *flags) -> tuple[int, str, str]:
    try:
        code = merge.main([*map(str, flags)])
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize(("dtype", "limit"), [(["--dtype=bf16"], 2**-8), ([], 2**-22)])
def test_the_folder_is_base_plus_scaling_b_a(adapter, tmp_path, capsys, dtype, limit):
    flags = [adapter, "--base", TINY_LM, "--output", tmp_path / "merged", *dtype]
    code, out, _ = run(capsys, *flags)
    report = json.loads(out)
    base, lora = load_file(TINY_LM / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    found = load_file(tmp_path / "merged" / "model.safetensors")[f"{KEY}.weight"]
    a, b = (lora[f"base_model.model.{KEY}.lora_{x}.weight"] for x in "AB")
    exact = base[f"{KEY}.weight"].float() + 8 / 4 * (b @ a)
    assert (found.float() - exact).abs().max() <= 2 * limit * exact.abs().max()
    assert code == 0 and str(found.dtype) == f"torch.{report['dtype']}"
    assert (exact - base[f"{KEY}.weight"].float()).abs().max() <= report["largest_weight_change"]
    assert report["merge"]["largest_logprob_difference"] < 1e-3 and report["saved"]["same_top_token"] > 0.9
    assert bool(dtype) == (report["saved"]["largest_logprob_difference"] > 1e-3)
    start = AutoTokenizer.from_pretrained(TINY_LM)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template == start.chat_template
    assert (tmp_path / "merged" / "generation_config.json").exists()
    assert (tmp_path / "merged" / "model.safetensors").stat().st_mode & 0o044  # not for its owner alone
    assert run(capsys, *flags)[0] == 2, "the folder exists"


def trained_logits(model, std: float):
    """Logits of a model after noise has trained it."""
    with torch.no_grad():
        for x in model.parameters():
            x.add_(std * torch.randn_like(x) * x.requires_grad)
        return model(input_ids=torch.arange(3, 40)[None]).logits


KINDS = {  # settings of the adapter, whether its output layer gets weights of its own
    "dora": ({"use_dora": True}, False),
    "rslora": ({"use_rslora": True}, False),
    "tokens": ({"trainable_token_indices": [5, 6]}, False),
    "embedding": ({"target_modules": ["embed_tokens", "q_proj"]}, True),
    "whole output": ({"modules_to_save": ["lm_head"]}, True),
    "both ends": ({"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}, True),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # peft's, of tied weights
@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_lora_and_tied_weights_are_merged_right(kind, tmp_path, capsys):
    settings, own_output = KINDS[kind]
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32)
    assert base.config.tie_word_embeddings
    usual = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    model = get_peft_model(base, LoraConfig(**usual | settings)).eval()
    expected = trained_logits(model, 0.03)
    model.save_pretrained(tmp_path / "adapter")
    flags = ["--base", TINY_LM, "--output", tmp_path / "merged", "--dtype", "fp32"]
    code, out, said = run(capsys, tmp_path / "adapter", *flags)
    assert code == 0, said
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(trained_logits(merged, 0.0), expected, atol=1e-3, rtol=1e-4)
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["tie_word_embeddings"] is not own_output  # what vLLM goes by
    start = AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32).state_dict()
    change = max((x - start[name]).abs().max().item() for name, x in merged.state_dict().items())
    assert json.loads(out)["largest_weight_change"] == pytest.approx(change, rel=1e-5)


def test_an_adapter_that_was_not_trained_is_told(tmp_path, capsys):
    base = AutoModelForCausalLM.from_pretrained(TINY_LM)
    get_peft_model(base, LoraConfig(r=2, task_type="CAUSAL_LM")).save_pretrained(tmp_path / "new")
    logging.getLogger("bitsandbytes").setLevel(logging.NOTSET)
    code, out, said = run(capsys, tmp_path / "new", "--base", TINY_LM, "--output", tmp_path / "merged")
    assert code == 1 and json.loads(out)["largest_weight_change"] == 0 and "was it trained?" in said
    assert not logging.getLogger("bitsandbytes").isEnabledFor(logging.WARNING)  # of a kernel that is not needed


def scaled(folder, target, factor: float):
    """A copy of an adapter with another B."""
    shutil.copytree(folder, target)
    lora = load_file(target / "adapter_model.safetensors")
    save_file({k: x * (factor if "lora_B" in k else 1) for k, x in lora.items()}, target / "adapter_model.safetensors")
    return target


@pytest.mark.parametrize(("factor", "code", "told"), [(1e-4, 0, "keeps 2% of the update"), (1e-12, 1, "keeps 0% of")])
def test_an_update_that_rounding_takes_away_is_told(adapter, tmp_path, capsys, factor, code, told):
    base = bf16_model(tmp_path / "base")
    small = scaled(adapter, tmp_path / "small", factor)
    flags = [small, "--base", base, "--output", tmp_path / "merged"]
    found, out, said = run(capsys, *flags)
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("base", "merged"))
    assert (found, code) == (code, int(all(before[k].equal(after[k]) for k in before))) and told in said
    assert json.loads(out)["update_kept"] < 0.03


def test_experts_are_merged(tmp_path, capsys):
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE | sizes)).save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    settings = LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["q_proj"], target_parameters=experts)
    model = get_peft_model(base, settings).eval()
    expected = trained_logits(model, 0.1)
    model.save_pretrained(tmp_path / "adapter")
    code, _, said = run(capsys, tmp_path / "adapter", "--output", tmp_path / "merged")
    assert code == 0, said
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(trained_logits(merged, 0.0), expected, atol=1e-5, rtol=1e-4)


def changed(folder, target, file: str, **settings):
    """A copy of a folder with other settings in one of its JSON files."""
    shutil.copytree(folder, target)
    (target / file).write_text(json.dumps(json.loads((target / file).read_text()) | settings))
    return target


def test_what_is_no_adapter_or_base_is_refused(adapter, tmp_path, capsys):
    moved = changed(adapter, tmp_path / "moved", "adapter_config.json", base_model_name_or_path="/no/such")
    packed = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    quantised = changed(TINY_LM, tmp_path / "quantised", "config.json", quantization_config=packed)
    short = AutoConfig.from_pretrained(TINY_LM, num_hidden_layers=1)
    for part in (AutoModelForCausalLM.from_config(short), AutoTokenizer.from_pretrained(TINY_LM)):
        part.save_pretrained(tmp_path / "short")
    settings = LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["q_proj"], lora_bias=True)
    get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_LM), settings).save_pretrained(tmp_path / "biased")
    for source, base, told in (
        (TINY_LM, ["--base", TINY_LM], "a plain model; expected an adapter"),
        (tmp_path, ["--base", TINY_LM], "without adapter_config.json"),
        (moved, [], "got the base '/no/such'"),
        (adapter, ["--base", quantised], "whose weights are quantised"),
        (adapter, ["--base", tmp_path / "short"], "no place for 14 tensors, such as base_model.model.model.layers.1"),
        (
            scaled(adapter, tmp_path / "large", 3000),
            ["--base", TINY_LM, "--dtype=fp16"],
            "in torch.float16 that are not finite",
        ),
        (tmp_path / "biased", ["--base", TINY_LM], "has no bias; try serving it unmerged"),
    ):
        code, out, error = run(capsys, source, *base, "--output", tmp_path / "merged")
        assert code == 2 and out == "" and told in error and not (tmp_path / "merged").exists(), error
