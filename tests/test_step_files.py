"""How many files of src/ somebody opens who follows one default step, from the rollout to the checkpoint."""

import json
import sys
import threading
from pathlib import Path

import pytest
from conftest import ROOT, run_script

from parts.running.progress import Progress
from programs.ppo_train.run import train
from programs.ppo_train.settings import Config

SRC = f"{ROOT / 'src'}/"
OF_THE_STEP = ("programs/", "parts/learning/", "parts/running/", "parts/foundation/")  # not networks, data, samplers
FEW = {"steps": 2, "batch_size": 8, "eval_every": 0, "eval_rows": 8, "plot_every": 0}
FEW |= {"sample_every": 0, "save_every": 0}  # the first steps are logged, others are not


def opened_files(folder: Path) -> list[str]:
    """Files of src/ in which functions are called during the first step of a default run."""
    files, begin, end_step = set(), Progress.begin, Progress.end_step

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(SRC):
            files.add(frame.f_code.co_filename.removeprefix(SRC))

    def profile(function) -> None:
        sys.setprofile(function)
        threading.setprofile(function)

    def begin_noting(self):
        begin(self)
        profile(note)

    def end_noting(self, *step):
        code = end_step(self, *step)
        profile(None)
        return code

    Progress.begin, Progress.end_step = begin_noting, end_noting
    assert train(Config(output_dir=str(folder / "run"), **FEW)) == 0
    return sorted(files)


@pytest.mark.long
def test_a_default_step_opens_few_files(tmp_path):
    """In a process of its own: threads that other tests have left would be seen too."""
    code = f"import json, pathlib, sys; sys.path[:0] = [{str(ROOT / 'src')!r}, {str(ROOT / 'tests')!r}]\n"
    code += "import test_step_files\n"
    code += "print(json.dumps(test_step_files.opened_files(pathlib.Path(sys.argv[1]))))"
    done = run_script(Path("-c"), code, tmp_path)
    assert done.returncode == 0, done.stderr
    opened = json.loads(done.stdout.splitlines()[-1])
    own = [path for path in opened if path.startswith(OF_THE_STEP)]
    assert "programs/ppo_train/step.py" in own
    assert len(own) <= 8, "\n".join(own)
    assert len(opened) <= 15, "\n".join(opened)
