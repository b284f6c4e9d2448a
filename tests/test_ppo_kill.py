"""kill -9 at random moments, each followed by --resume, changes nothing in the outcome."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TRAIN_DATA, read_lines, signal_script, start_script, without_clock, write_lines
from safetensors.torch import load_file

FLAGS = ["--batch_size", "16", "--max_new_tokens", "16", "--save_every", "1", "--eval_every", "4", "--eval_rows", "16"]
FLAGS += ["--lr_schedule", "cosine", "--warmup_steps", "3", "--plot_every", "0"]
PPO = ["--steps", "9", "--max_new_tokens", "32", "--kl_target", "0.5"]
# some groups of 4 are of equal score, so that the prompts of a step depend on those of all steps before
DYNAMIC = ["--steps", "7", "--max_new_tokens", "32", "--algorithm", "dapo", "--group_size", "4"]
DYNAMIC += ["--minibatches", "2", "--kl_coef", "0.01"]
TALKING = ["--steps", "5", "--max_new_tokens", "24", "--algorithm", "grpo", "--minibatches", "2", "--max_turns", "2"]
TALKING += ["--environment", str(ROOT / "examples/environments.py") + ":SecondAttempt"]


def start(out: Path, *flags: str, **more):
    return start_script("ppo_train", *FLAGS, "--output_dir", out, *flags, **more)


def newest(out: Path) -> str:
    """The name of a run's last checkpoint."""
    return max((path.name for path in out.glob("checkpoints/step-*")), default="")


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "wanted"), [(PPO, 3), (DYNAMIC, 2), (TALKING, 2)], ids=["ppo", "dynamic", "environment"]
)
def test_kills_and_resumes_equal_an_uninterrupted_run(tmp_path, settings, wanted):
    plain, killed, rng = tmp_path / "plain", tmp_path / "killed", random.Random(0)
    settings = [*settings, "--data", write_lines(tmp_path / "train.jsonl", read_lines(TRAIN_DATA)[:256])]
    # of other hashes than the killed runs, where sets of groups or tools could tell
    reference = start(plain, *settings, fresh="--kl_target" not in settings).result()
    assert reference.returncode == 0, reference.stderr

    kills = 0
    while kills < wanted:
        before, run = newest(killed), start(killed, *settings, "--resume")
        while not run.done() and newest(killed) == before:
            time.sleep(0.02)  # let it get under way, then strike at a random moment
        time.sleep(rng.uniform(0, 0.25))
        signal_script(signal.SIGKILL)
        if run.result().returncode == 0:  # it got to its end before the last kill
            break
        assert run.result().returncode == -signal.SIGKILL, run.result().stderr
        kills += 1
        for checkpoint in (killed / "checkpoints").glob("step-*"):  # every one that has a name can be read
            torch.load(checkpoint / "optimizer.pt", weights_only=False)
            load_file(checkpoint / "policy" / "model.safetensors")
            json.loads((checkpoint / "state.json").read_text())
    assert kills == wanted

    last = start(killed, *settings, "--resume").result()
    assert last.returncode == 0, last.stderr
    assert without_clock(killed) == without_clock(plain)
    rows = [row for row in without_clock(plain) if row.get("optim/grad_norm")]
    assert len(rows) > 2, "it trains"
    assert max(row.get("rollout/logprob_gap_max", 0.0) for row in rows) < 1e-4, "sampler and trainer read the same"
    if "dapo" in settings:
        assert len({row["rollout/samples"] for row in without_clock(plain) if "rollout/samples" in row}) > 1
    a, b = (load_file(out / "final" / "model.safetensors") for out in (plain, killed))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
