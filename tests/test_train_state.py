"""The state of a run, and what an update measures."""

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, script_env

from parts.foundation.exit_codes import exit_code
from parts.foundation.messages import UserError
from parts.learning.optimizer import Statistics
from parts.running.checkpoints import TrainState, checkpoints, restore, save_checkpoint
from parts.running.output_folder import make_folder, write_folder
from parts.running.progress import RunLog, forget_after
from programs.ppo_train.settings import Config


def test_a_checkpoint_of_an_older_version_is_read(tmp_path):
    older = {"step": 3, "kl_coef": 0.2, "bad": 1, "seconds": 9.0}
    torch.save({"optimizer": {}, "scaler": {}, "rng": [None]}, tmp_path / "optimizer.pt")
    (tmp_path / "state.json").write_text(json.dumps(older | {"gone": 1}))
    empty = SimpleNamespace(load_state_dict=lambda saved: None)
    config = Config(algorithm="grpo", batch_size=16, group_size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parts.running.checkpoints.restore_rng", lambda states: None)
        state = restore(config, SimpleNamespace(device="cpu"), empty, empty, tmp_path)
    known = older | {"prompts": 3 * 16 // 4, "kept": [0.0, 0.0]}
    assert {name: getattr(state, name) for name in known} == known
    new = SimpleNamespace(param_groups=[])
    assert restore(config, None, new, None, None) == TrainState(kl_coef=config.kl_coef)


def test_statistics_add_sums_and_means_and_keep_the_largest():
    statistics = Statistics({"loss": "sum", "kl": "mean", "ratio": "max"}, "cpu")
    mask = torch.tensor([[1, 1, 0]])
    for loss, kl, ratio in ((1.0, [[2.0, 4.0, 9.0]], 3.0), (0.5, [[1.0, 1.0, 9.0]], 2.0)):
        statistics.add({"loss": torch.tensor(loss), "ratio": torch.tensor(ratio)})
        statistics.add_means({"kl": torch.tensor(kl)}, mask, 4)
    statistics.sum_over_processes()
    assert {name: value.item() for name, value in statistics.values.items()} == {"loss": 1.5, "kl": 2.0, "ratio": 3.0}


@pytest.fixture
def save(tmp_path, monkeypatch):
    """save(**state) writes a checkpoint of networks without weights, of which one is kept."""
    for name in ("save_network", "save_tokenizer"):
        monkeypatch.setattr(f"parts.running.checkpoints.{name}", lambda model, folder: folder.mkdir(exist_ok=True))
    parts, models = SimpleNamespace(state_dict=dict), SimpleNamespace(policy=None, critic=None, tokenizer=None)
    config = Config(output_dir=str(tmp_path), keep_checkpoints=1)
    return lambda **state: save_checkpoint(config, models, parts, parts, TrainState(**state))


def test_a_step_whose_evaluation_was_made_after_its_checkpoint_is_saved_again(tmp_path, save):
    for pending in ({"reward/mean": 0.5}, None):
        save(step=4, pending=pending)
        saved = json.loads((tmp_path / "checkpoints" / "step-000004" / "state.json").read_text())
        assert saved["pending"] == pending


def test_a_kill_while_an_old_checkpoint_is_deleted_leaves_no_half_of_one(tmp_path, save, monkeypatch):
    delete = shutil.rmtree

    def killed(folder, **flags):
        if (folder / "optimizer.pt").exists():
            (folder / "optimizer.pt").unlink()
            raise KeyboardInterrupt
        delete(folder, **flags)

    save(step=1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        save(step=2)
    assert [path.name for path in checkpoints(Config(output_dir=str(tmp_path)))] == ["step-000002"]
    save(step=3)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000003"]


def test_a_line_torn_inside_of_a_character_is_dropped(tmp_path):
    whole, torn = (json.dumps({"step": step, "completion": "中"}, ensure_ascii=False).encode() for step in (1, 2))
    (tmp_path / "samples.jsonl").write_bytes(whole + b"\n" + torn[: torn.index("中".encode()) + 1])
    forget_after(tmp_path / "samples.jsonl", 2)
    assert (tmp_path / "samples.jsonl").read_bytes() == whole + b"\n"


def test_half_a_surrogate_pair_in_a_column_is_logged(tmp_path):
    log = RunLog.__new__(RunLog)
    log.active, log.dir, log.tokenizer = True, tmp_path, None
    log.samples(1, "train", [{"prompt": "1", "completion": "中", "columns": {"note": "x\ud83d"}}])
    (line,) = (tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["columns"] == {"note": "x\ud83d"} and "中" in line


REPORT = r"""
import sys
from types import SimpleNamespace
sys.path.insert(0, "{src}")
from parts.running.run_end import report
one = {{"examples": [{{"prompt": "1 \u20ac", "completion": "\u4e2d\ud800"}}], "metrics": {{}}}}
summary = {{"steps": 1, "seconds": 1.0, "eval_before": one, "eval_after": one}}
report(SimpleNamespace(output_dir="{folder}", lr=0.1), summary)
"""


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_summary_is_written_and_shown_in_any_locale(tmp_path, encoding):
    (tmp_path / "metrics.jsonl").write_text("")
    code = REPORT.format(src=ROOT / "src", folder=tmp_path)
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=script_env(plain))
    assert done.returncode == 0, done.stderr.decode()
    (example,) = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["eval_after"]["examples"]
    assert example == {"prompt": "1 €", "completion": "中\ud800"}
    assert "1 €".encode(encoding, "backslashreplace") in done.stdout


def test_a_folder_is_replaced_at_once(tmp_path, monkeypatch):
    """Killed while the folder before is being removed, a run leaves the new one whole under its name."""

    def write(folder):
        (folder / "weights").write_text("new")

    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "weights").write_text("old")

    def killed(folder, **_):
        if folder.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr("parts.running.output_folder.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "final", write)
    monkeypatch.undo()
    assert (tmp_path / "final" / "weights").read_text() == "new"
    write_folder(tmp_path / "final", write)
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_a_folder_is_its_runs_until_that_has_ended(tmp_path):
    """Also where the process goes on, as a notebook's does; the other is a job that a cluster has started again."""
    lock = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", f"{lock}; print('held', flush=True); sys.stdin.read()", str(tmp_path / ".lock")]
    config = SimpleNamespace(output_dir=str(tmp_path))

    def run() -> int:
        make_folder(config)
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode

    assert exit_code(run) == 1
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="another run is writing to it"):
            make_folder(config)
        other.stdin.close()
