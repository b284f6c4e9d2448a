"""scripts/selfcheck.py on large models: what is cut, and that the checks hold and fail on the cut as on the whole."""

import json

import pytest
import torch
from conftest import ROOT, SCRIPTS, TINY_LM, TRAIN_DATA, load_script
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from programs.selfcheck.prepare import cut_of

TEMPLATES = ROOT / "templates"
selfcheck = load_script("selfcheck")
SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
SMALL |= {"vocab_size": 5000, "num_hidden_layers": 9}
SLIDING = ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 3
EXPERTS = {"moe_intermediate_size": 8, "num_experts": 2, "num_experts_per_tok": 1}


@pytest.mark.parametrize(
    ("kind", "settings", "layers"),
    [
        ("llama", {}, 2),
        ("gpt2", {"n_embd": 16, "n_head": 2, "n_layer": 9}, 2),
        ("gemma3_text", {"layer_types": SLIDING}, 6),
        ("qwen3_moe", EXPERTS | {"mlp_only_layers": [0, 1, 2]}, 4),
    ],
)
def test_a_cut_has_one_layer_of_each_kind(tmp_path, kind, settings, layers):
    AutoConfig.for_model(kind, **(SMALL | settings)).save_pretrained(tmp_path)
    cut = cut_of(str(tmp_path))
    assert (cut.layers, cut.of_layers, cut.config.num_hidden_layers) == (layers, 9, layers)
    assert getattr(cut.config, "layer_types", None) in (None, SLIDING[:6], ["full_attention"] * layers)
    with torch.device("meta"):
        sizes = [
            AutoModelForCausalLM.from_config(c).num_parameters()
            for c in (AutoConfig.from_pretrained(tmp_path), cut.config)
        ]
    vocabulary = (cut.config.vocab_size - 4096) * 16
    assert (cut.parameters, cut.saved) == (sizes[0], sizes[0] - sizes[1] + vocabulary)


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A folder with a model of five layers, more tokens than a cut keeps, and the embedded model's tokenizer."""
    folder = tmp_path_factory.mktemp("deep")
    config = AutoConfig.from_pretrained(TINY_LM)
    config.num_hidden_layers, config.layer_types, config.vocab_size = 5, ["full_attention"] * 5, 4500
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder)
    (folder / "few.jsonl").write_text("".join(TRAIN_DATA.read_text().splitlines(keepends=True)[:40]))
    return folder


@pytest.fixture
def check(deep, monkeypatch, capsys):
    """check(trainer, *flags) -> ({check: row}, stderr), with every model as a large one."""

    def run(trainer, *flags):
        monkeypatch.setattr(selfcheck, "ENOUGH", 0)
        given = ["--model", deep, "--data", deep / "few.jsonl", "--max_new_tokens", "12", *flags, "--json"]
        selfcheck.main([str(x) for x in (trainer, *given)])
        said = capsys.readouterr()
        return {row["name"]: row for row in json.loads(said.out)["checks"]}, said.err

    return run


SECOND_ATTEMPT = ["--environment", f"{ROOT / 'examples' / 'environments.py'}:SecondAttempt"]
REWARD = f"{ROOT / 'examples' / 'reward_functions_library.py'}:correctness_reward"
ON_ALL = {function.__name__ for function in selfcheck.OF_TURNS} | {
    *("special_tokens", "template_ends_at_generation", "reward_answers", "logprob_shift")
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "flags"),
    [
        (TEMPLATES / "grpo.py", ["--reward", REWARD]),
        (TEMPLATES / "multi_turn.py", SECOND_ATTEMPT),
        (TEMPLATES / "distillation.py", []),
        (SCRIPTS / "ppo_train.py", ["--reward", REWARD, "--device", "cpu"]),
        (SCRIPTS / "ppo_train.py", [*SECOND_ATTEMPT, "--device", "cpu", "--max_turns", "2"]),
    ],
)
def test_a_sound_trainer_passes_on_the_cut(check, trainer, flags):
    rows, said = check(trainer, *flags)
    assert {row["status"] for row in rows.values()} == {"pass", "n/a"}, rows
    assert [*rows] == [function.__name__ for function in selfcheck.CHECKS]
    on_cut = {name for name, row in rows.items() if row["measured"].startswith("on its first 2 of 5 layers: ")}
    assert on_cut == {name for name, row in rows.items() if row["status"] == "pass"} - ON_ALL
    lines = [line for line in said.splitlines() if line.startswith("selfcheck: ")]
    assert "million parameters, about" in lines[0] and {line.split()[1] for line in lines[1:]} == {*rows}


@pytest.mark.long
def test_a_fault_is_found_on_the_cut(check, tmp_path):
    page, right = (TEMPLATES / "grpo.py").read_text(), "- difference.mean(dim=1, keepdim=True)"
    assert page.count(right) == 1
    (tmp_path / "adapted.py").write_text(page.replace(right, "- 0.5"))
    rows, _ = check(tmp_path / "adapted.py", "--reward", REWARD)
    assert [name for name, row in rows.items() if row["status"] == "FAIL"] == ["group_advantages"]
