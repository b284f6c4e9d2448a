"""kill -9 at random moments, each followed by --resume, changes nothing in the outcome."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["--batch_size", "16", "--max_new_tokens", "16", "--save_every", "1", "--eval_every", "7"]
FLAGS += ["--lr_schedule", "cosine", "--warmup_steps", "3", "--plot_every", "0"]
PPO = ["--steps", "30", "--kl_target", "0.5"]
# some groups of 4 are of equal score, so that the prompts of a step depend on those of all steps before
DYNAMIC = ["--steps", "10", "--max_new_tokens", "32", "--algorithm", "dapo", "--group_size", "4"]
DYNAMIC += ["--minibatches", "2", "--kl_coef", "0.01"]
TALKING = ["--steps", "8", "--max_new_tokens", "24", "--algorithm", "grpo", "--minibatches", "2", "--max_turns", "2"]
TALKING += ["--environment", str(ROOT / "examples/environments.py") + ":SecondAttempt"]


def start(out: Path, *flags: str) -> subprocess.Popen:
    command = [sys.executable, str(ROOT / "scripts/ppo_train.py"), *FLAGS, "--output_dir", str(out), *flags]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def metrics(out: Path) -> list[dict]:
    """Metric lines without wall-clock figures."""
    rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    timed = ("time/", "tool/seconds", "rollout/tokens_per_s", "memory/")
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows]


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "wanted"), [(PPO, 10), (DYNAMIC, 4), (TALKING, 3)], ids=["ppo", "dynamic", "environment"]
)
def test_kills_and_resumes_equal_an_uninterrupted_run(tmp_path, settings, wanted):
    plain, killed, rng = tmp_path / "plain", tmp_path / "killed", random.Random(0)
    reference = start(plain, *settings)
    text = reference.communicate(timeout=300)[0]
    assert reference.returncode == 0, text

    kills = 0
    while kills < wanted:
        run = start(killed, *settings, "--resume")
        seen = len(list((killed / "checkpoints").glob("step-*"))) if killed.exists() else 0
        deadline = time.time() + 60  # let it get under way, then strike at a random moment
        while time.time() < deadline and run.poll() is None:
            found = sorted((killed / "checkpoints").glob("step-*")) if killed.exists() else []
            if len(found) > seen or (found and seen and found[-1].stat().st_mtime > time.time() - 1):
                break
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.25))
        if run.poll() is not None:  # the run got to its end before the last kill
            assert run.returncode == 0, run.communicate()[0]
            break
        run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
        kills += 1
        for checkpoint in (killed / "checkpoints").glob("step-*"):  # every one that has a name can be read
            torch.load(checkpoint / "optimizer.pt", weights_only=False)
            load_file(checkpoint / "policy" / "model.safetensors")
            json.loads((checkpoint / "state.json").read_text())
    assert kills == wanted

    last = start(killed, *settings, "--resume")
    text = last.communicate(timeout=300)[0]
    assert last.returncode == 0, text
    assert metrics(killed) == metrics(plain)
    if settings is DYNAMIC:
        assert len({row["rollout/samples"] for row in metrics(plain) if "rollout/samples" in row}) > 1
    a, b = (load_file(out / "final" / "model.safetensors") for out in (plain, killed))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
