"""evaluation.py and grpo_train.py with the real vLLM."""

import json

import pytest
from conftest import EVAL_DATA, TINY_LM, load_script, run_script
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
    """A run of grpo_train.py in a process of its own, with TRL's vLLM in it."""
    out = folder / "grpo"
    flags = ["--use_vllm=colocate", "--vllm_args", "max_num_seqs=64", "--use_cpu", "--steps=6", "--temperature=0.8"]
    flags += ["--per_device_train_batch_size=64", "--max_completion_length=24", "--max_prompt_length=40"]
    flags += ["--eval_every=0"]
    done = run_script("grpo_train", *flags, f"--output_dir={out}", env=ENV, fresh=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    return metrics(out)


def test_trl_learns_with_vllm_in_its_process(grpo):
    assert grpo[-1]["eval/accuracy"] > grpo[0]["eval/accuracy"] + 0.15
    gaps = [line["rollout/logprob_gap_max"] for line in grpo if "rollout/logprob_gap_max" in line]
    assert len(gaps) == 6 and max(gaps) < 1e-4, (
        "0.36 at the sixth step where the output layer is left out of the copies"
    )


def test_a_server_needs_a_gpu(folder):
    flags = ["--use_vllm=server", "--use_cpu", "--steps=1"]
    done = run_script("grpo_train", *flags, f"--output_dir={folder / 'served'}", env=ENV, timeout=1800)
    assert done.returncode == 2 and "try --use_vllm colocate" in done.stderr
    assert not (folder / "served").exists()
