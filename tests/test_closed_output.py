"""A reader of stdout that has gone, as `| head` has, is no error: same exit code, nothing on stderr about it."""

import subprocess

import pytest
from conftest import FEW, ROOT, script_command, script_env

TRAIN = ["ppo_train --steps 1 --batch_size 8 --max_new_tokens 2 --eval_every 0 --output_dir trained", *FEW]
COMMANDS = [
    ("math_grader 3 3", 0),
    ("selfcheck --contract", 0),
    (f"diagnose {ROOT / 'tests/data/diagnose/grpo_hack'}", 1),
    ("sandbox --code f.py --tests tests.py", 1),
    pytest.param(" ".join(TRAIN), 0, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("command", "code"), COMMANDS)
def test_a_closed_stdout_is_no_error(command, code, tmp_path):
    (tmp_path / "f.py").write_text("def f():\n    return 2\n")
    (tmp_path / "tests.py").write_text("assert f() == 1\n")
    name, *flags = command.split()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(script_command(name, *flags), cwd=tmp_path, env=script_env(), **pipes)
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == code, said
    assert "Traceback" not in said and "roken pipe" not in said and "BrokenPipe" not in said
