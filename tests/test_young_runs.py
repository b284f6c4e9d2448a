"""A run is judged while it is young: what looks like a cause then, and is none, is not said."""

import json
import subprocess
from types import SimpleNamespace

import pytest
from conftest import load_script, write_lines

from parts.running import run_check
from parts.running.progress import is_asked

WARM_UP = {"critic_warmup_steps": 5, "algorithm": "ppo", "ppo_epochs": 1, "lr": 5e-5}


def diagnosed(path, capsys) -> dict:
    """What diagnose.py says of a run."""
    load_script("diagnose").main([str(path), "--json"])
    [run] = json.loads(capsys.readouterr().out)["runs"]
    return run


@pytest.mark.parametrize(
    ("steps", "config", "kl", "norm", "expected"),
    [
        (6, WARM_UP, 0.0, 0.0, []),  # a policy that waits for its critic
        (20, WARM_UP, 0.0, 0.0, ["nothing_moves"]),
        (4, {"ppo_epochs": 1}, 0.0, 0.0, ["nothing_moves"]),
        (4, {"lr": 1e-6}, 2e-6, 0.8, []),  # a small rate is given time
        (12, {"teacher": "large", "kl_coef": 1.0, "ppo_epochs": 1}, 0.2, 0.8, []),  # KL is the goal
    ],
)
def test_what_looks_like_a_cause_in_a_young_run_is_not_blamed(steps, config, kl, norm, expected, tmp_path, capsys):
    base = {"reward/mean": 0.4, "reward/std": 0.5, "optim/grad_norm": norm, "kl/approx": kl, "kl/ref": kl}
    write_lines(tmp_path / "metrics.jsonl", [{"step": step} | base for step in range(1, steps + 1)])
    (tmp_path / "config.json").write_text(json.dumps(config))
    causes = diagnosed(tmp_path, capsys)["causes"]
    assert [cause["cause"] for cause in causes if cause["certainty"] == "certain"] == expected


@pytest.mark.parametrize("steps", [1, 3, 30])
@pytest.mark.parametrize("style", ["TRL, a warm-up of 200 steps", "verl, 3 decimals"])
def test_a_rate_that_is_still_low_or_printed_as_0_is_no_cause(style, steps, tmp_path, capsys):
    scores = [0.4 + 0.03 * (step % 3) for step in range(steps)]
    if style.startswith("TRL"):
        rows = [{"reward": x, "reward_std": 0.4, "kl": n * n * 1e-9} for n, x in enumerate(scores)]
        lines = [str(row | {"learning_rate": n * 5e-9, "grad_norm": 0.3}) for n, row in enumerate(rows)]
    else:
        usual = "actor/lr:0.000 - actor/kl_loss:0.000 - actor/ppo_kl:-0.000 - actor/grad_norm:0.2"
        lines = [f"step:{n} - {usual} - critic/score/mean:{x:.3f}" for n, x in enumerate(scores, 1)]
    (tmp_path / "a.log").write_text("\n".join(lines))
    run = diagnosed(tmp_path / "a.log", capsys)
    assert run["causes"] == [] and run["steps"][1] - run["steps"][0] == steps - 1


def test_runs_are_judged_at_few_steps():
    assert [step for step in range(1, 301) if is_asked(step)] == [3, 10, 30, 100, 300]


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([("did not learn", "too_sparse")] * 3, [10]),
        ([("did not learn", "too_sparse"), ("learned", None), ("did not learn", "too_sparse")], []),
        ([("broken", "overflow")] * 3, [3]),
    ],
)
def test_a_cause_is_said_once_where_it_is_found_twice_or_the_run_is_broken(verdicts, said, monkeypatch, capsys):
    judge = run_check.Verdicts("run")
    for step, (verdict, name) in zip((3, 10, 30), verdicts, strict=True):
        evidence = [{"text": "figures"}]
        cause = {"cause": name, "certainty": "certain", "says": "so", "evidence": evidence, "change": "that"}
        answer = json.dumps({"runs": [{"verdict": verdict, "causes": [cause] if name else []}]})
        monkeypatch.setattr(subprocess, "run", lambda *_, a=answer, **__: SimpleNamespace(stdout=a))
        assert judge.is_broken(step) == (verdict == "broken")
    lines = capsys.readouterr().err.splitlines()
    assert [int(line.split()[1].rstrip(":")) for line in lines] == said
