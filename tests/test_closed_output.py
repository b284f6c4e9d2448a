"""A reader of stdout that has gone, as `| head` has, is no error: same exit code, nothing on stderr about it."""

import json
import subprocess

import pytest
from conftest import ASSETS, ROOT, script_command, script_env

SOLUTION = {"prompt": "1+2?", "completion": "#### 3", "answer": "3", "tests": ["assert f() == 1"]}
COMMANDS = {
    "reward_preflight --list": 0,
    "new_trainer --list": 0,
    "selfcheck --contract": 0,
    "generate_dockerfile --list": 0,
    "generate_dockerfile --output -": 0,
    "sandbox --report": 0,
    "sandbox --code f.py --tests tests.py": 1,
    "math_grader 3 3": 0,
    "data_loader rows.jsonl --inspect": 0,
    f"verl_train --hardware 8x80GB --config {ASSETS / 'training_config.yaml'} --output_dir verl --print": 0,
    f"diagnose {ROOT / 'tests/data/diagnose/grpo_hack'}": 1,
    "new_notebook --output idea.ipynb": 0,
    "ppo_train --steps 1 --batch_size 8 --max_new_tokens 2 --eval_rows 4 --output_dir trained": 0,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_stdout_is_no_error(command, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(SOLUTION) + "\n")
    (tmp_path / "f.py").write_text("def f():\n    return 2\n")
    (tmp_path / "tests.py").write_text("assert f() == 1\n")
    name, *flags = command.split()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(script_command(name, *flags), cwd=tmp_path, env=script_env(), **pipes)
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == COMMANDS[command], said
    assert "Traceback" not in said and "roken pipe" not in said and "BrokenPipe" not in said
