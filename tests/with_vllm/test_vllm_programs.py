"""evaluation.py and grpo_train.py with the real vLLM."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EVAL_DATA, TINY_LM, load_script, run_script, script_env
from vllm_helpers import ENV, metrics


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with 48 held-out rows."""
    folder = tmp_path_factory.mktemp("data")
    lines = EVAL_DATA.read_text().splitlines(keepends=True)[:48]
    (folder / "eval.jsonl").write_text("".join(lines))
    return folder


# ------------------------------------------------------------------------------------------------ evaluation.py


def evaluated(folder, name: str, model, *flags) -> tuple[dict, list]:
    """The values of the task and the completions."""
    out = folder / name
    fixed = ["--task", "math", "--data", folder / "eval.jsonl", "--model", model, "--max_new_tokens", 24]
    code = load_script("evaluation").main([*map(str, [*fixed, "--output_dir", out, "--max_length", 64, *flags])])
    assert code == 0
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    return json.loads((out / "results.json").read_text())["tasks"]["math"]["values"], samples


@pytest.fixture(scope="module")
def moved_model(folder):
    """Another model than the embedded one: its weights, moved."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(TINY_LM)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=generator)
    model.save_pretrained(folder / "moved")
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder / "moved")
    return folder / "moved"


@pytest.mark.parametrize("which", ["embedded", "moved"])
def test_vllm_gives_the_figures_of_the_policy_itself(folder, moved_model, which):
    model = {"embedded": TINY_LM, "moved": moved_model}[which]
    ours = evaluated(folder, f"hf_{which}", model)
    theirs = evaluated(folder, f"vllm_{which}", model, "--engine", "vllm", "--vllm_args", "max_num_seqs=16")
    assert theirs[0] == ours[0]
    assert [s["completion"] for s in theirs[1]] == [s["completion"] for s in ours[1]]


# ------------------------------------------------------------------------------------------------ grpo_train.py


@pytest.fixture(scope="module")
def grpo(folder):
    """Exit codes and messages of the runs of grpo_runs.py, in a process of their own with TRL's vLLM in it."""
    command = [sys.executable, str(Path(__file__).with_name("grpo_runs.py")), str(folder)]
    done = subprocess.run(command, env=script_env(ENV), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "outcomes.json").read_text())


def test_trl_learns_with_vllm_in_its_process(grpo, folder):
    assert grpo["learns"][0] == 0, grpo["learns"][1]
    lines = metrics(folder / "learns")
    assert lines[-1]["eval/accuracy"] > lines[0]["eval/accuracy"] + 0.15
    gaps = [line["rollout/logprob_gap_max"] for line in lines if "rollout/logprob_gap_max" in line]
    assert len(gaps) == 6 and max(gaps) < 1e-4, (
        "0.36 at the sixth step where the output layer is left out of the copies"
    )


def test_adapters_that_trl_merges_pass_the_comparison(grpo, folder):
    assert grpo["adapters"][0] == 0, grpo["adapters"][1]
    gaps = [line["rollout/logprob_gap_max"] for line in metrics(folder / "adapters") if "policy/loss" in line]
    assert len(gaps) == 3 and max(gaps) < 1e-4


@pytest.mark.parametrize(
    ("fault", "step", "told"),
    [
        ("skipped", 1, "tensors: model."),
        ("partly", 1, "1 tensors: model.layers.1.self_attn.qkv_proj.weight;"),
        ("twice", 1, "log-probs differ by"),
        ("unmerged", 2, "log-probs differ by"),
    ],
)
def test_a_sampler_with_other_weights_ends_trls_run(grpo, folder, fault, step, told):
    """Exit code 5: a copy left out, one tensor not copied, a temperature applied twice, adapters not merged."""
    code, said = grpo[fault]
    assert code == 5 and f"step {step}: got a sampler w" in said and told in said, said
    assert "Traceback" not in said and len(metrics(folder / fault)) < 5


def test_a_server_needs_a_gpu(folder):
    flags = ["--use_vllm=server", "--use_cpu", "--steps=1"]
    done = run_script("grpo_train", *flags, f"--output_dir={folder / 'served'}", env=ENV, timeout=1800)
    assert done.returncode == 2 and "try --use_vllm colocate" in done.stderr
    assert not (folder / "served").exists()
