"""--metrics_file and --metric_names: a second log only of updates, under the user's names."""

import pytest
from conftest import read_lines

from parts.foundation.messages import UserError
from parts.running.progress import RunLog, metric_names
from programs.ppo_train.settings import Config


def log_of(folder, start: int = -1, **settings) -> RunLog:
    """A log of a run whose second log is mine.jsonl."""
    config = Config(output_dir=str(folder), **{"metrics_file": str(folder / "mine.jsonl"), **settings})
    return RunLog(config, start, 3, report_to=[])


UPDATE = {"reward/mean": 0.5, "policy/loss": -0.25, "rollout/tokens_per_s": 9.0}


def test_it_has_an_object_an_update_under_the_names_given(tmp_path, capsys):
    log = log_of(tmp_path, metric_names="reward=reward/mean,loss=policy/loss")
    log.metrics(0, {"eval/score": 0.5})
    log.metrics(1, UPDATE | {"eval/score": 0.6})  # as grpo_train.py writes them
    log.metrics(2, {"reward/mean": 1.0, "rollout/tokens_per_s": 9.0})  # nothing to learn
    updates = [{"step": 1, "reward": 0.5, "loss": -0.25}, {"step": 2, "reward": 1.0, "loss": None}]
    assert read_lines(tmp_path / "mine.jsonl") == updates
    assert "null" not in capsys.readouterr().err
    log_of(tmp_path, start=1, resume=True)
    assert [row["step"] for row in read_lines(tmp_path / "mine.jsonl")] == [1]
    log = log_of(tmp_path / "new")  # all under our names; makes the folder
    log.metrics(1, UPDATE)
    assert read_lines(tmp_path / "new" / "mine.jsonl") == [{"step": 1, **UPDATE}]


def test_a_name_that_no_metric_has_is_told_once(tmp_path, capsys):
    log = log_of(tmp_path, metric_names="loss=policy/los")
    log.metrics(1, UPDATE)
    log.metrics(2, UPDATE)
    told = capsys.readouterr().err
    assert told.count("--metric_names has policy/los, written as null") == 1 and "try policy/loss" in told


def test_what_cannot_be_such_a_log_is_refused(tmp_path):
    for text in ("reward", "=reward/mean"):
        with pytest.raises(UserError, match="expected NAME=METRIC"):
            metric_names(text)
    for text in ("a=reward/mean,a=policy/loss", "step=reward/mean"):  # one of two would be lost
        with pytest.raises(UserError, match="expected each name once, and no 'step'"):
            metric_names(text)
    with pytest.raises(UserError, match="try --metrics_file FILE"):
        log_of(tmp_path, metrics_file="", metric_names="reward=reward/mean")
    for line, resume in (('{"prompt": "1+1="}\n', True), ('{"step": 1, "loss": 0.5}\n', False)):
        (tmp_path / "mine.jsonl").write_text(line)
        with pytest.raises(UserError, match=r"not empty; .* try another --metrics_file"):
            log_of(tmp_path, resume=resume)
        assert (tmp_path / "mine.jsonl").read_text() == line
    with pytest.raises(UserError, match=r"\(Is a directory\); expected a file"):
        log_of(tmp_path, metrics_file=str(tmp_path))
    for name in ("metrics.jsonl", "samples.jsonl", "config.json", "summary.json"):
        with pytest.raises(UserError, match="a file of the run itself; expected another"):
            log_of(tmp_path, metrics_file=str(tmp_path / name))
