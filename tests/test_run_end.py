"""The end of a run says what plainly went wrong."""

import json

import pytest
from conftest import load_script, write_lines

from parts.running.run_end import faults_at_end


def log(rewards, std=0.3, last_std=None, **metrics) -> list[dict]:
    """Lines of metrics.jsonl; each of `metrics` is one value, or one a step."""
    rows = [{"step": i, "reward/mean": x, "reward/std": std} for i, x in enumerate(rewards, 1)]
    for row in rows[-3:] if last_std is not None else []:
        row["reward/std"] = last_std
    for name, value in metrics.items():
        for row, x in zip(rows, value if isinstance(value, list) else [value] * len(rows), strict=True):
            row[name.replace("__", "/")] = x
    return rows


STEADY = [0.6, 0.5, 0.55, 0.6, 0.5, 0.52]
CUT = {"rollout__length_mean": 64.0, "rollout__truncated_frac": 1.0}
BETTER = {"accuracy_interval_before": [0.4, 0.6], "accuracy_interval_after": [0.7, 0.9]}
WORSE = {"accuracy_before": 0.6, "accuracy_interval_before": [0.5, 0.7]}
WORSE |= {"accuracy_after": 0.0, "accuracy_interval_after": [0.0, 0.06]}


@pytest.mark.parametrize(
    ("rows", "summary", "clause"),
    [
        (log([0.6, 0.3, 0.0, 0.0, 0.0], last_std=0.0), {}, "the reward fell from 0.600 to its lowest, 0.000"),
        ([*log([0.6]), {"step": 2, "reward/mean": 0.0, "reward/std": 0.0}], {}, "the reward fell"),
        (log(STEADY, kl__ref=[0.0, 0.1, 3.0, 4000.0, 5000.0, 4500.0]), {}, "the KL to the reference is 4500 nats"),
        (log(STEADY, rollout__length_mean=1.0, rollout__truncated_frac=0.0), {}, "the policy says nothing"),
        (log(STEADY, **CUT), {}, "nearly every completion is cut"),
        (log([0.5]), WORSE, "the held-out accuracy got worse, 0.6 -> 0"),
    ],
)
def test_what_went_wrong_is_said(rows, summary, clause):
    [found] = faults_at_end(rows, summary, "--lr")
    assert clause in found


@pytest.mark.parametrize(
    ("rows", "summary"),
    [
        (log(STEADY), {}),
        (log(STEADY, optim__updates=[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]), {}),
        (log(STEADY, **CUT), BETTER),  # the reward reads the first line of a base model that goes on
        (log([0.6, 0.3, 0.05, 0.0, 0.1, 0.05]), {}),  # low, but its completions still differ
        (log([0.0, 0.008, 0.0, 0.0, 0.0, 0.0], last_std=0.0), {}),  # one success by chance is no level
        (log(STEADY, rollout__length_mean=1.0, rollout__truncated_frac=0.9), {}),  # one token is all that fits
    ],
)
def test_what_did_not_is_not(rows, summary):
    assert faults_at_end(rows, summary, "--lr") == []


@pytest.mark.parametrize(("name", "rate"), [("ppo_train", "--lr"), ("grpo_train", "--learning_rate")])
def test_summary_and_screen_have_the_sentence(name, rate, tmp_path, capsys):
    script = load_script(name)
    write_lines(tmp_path / "metrics.jsonl", log([0.6, 0.3, 0.0, 0.0, 0.0], last_std=0.0))
    script.report(script.Config(output_dir=str(tmp_path)), {"steps": 5, "seconds": 1.0})
    said = f"the reward fell from 0.600 to its lowest, 0.000, for all alike; try a lower {rate}"
    assert said in capsys.readouterr().out
    assert json.loads((tmp_path / "summary.json").read_text())["faults"] == [said]
