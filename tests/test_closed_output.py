"""A reader of stdout that has gone, as `| head` has, is no error: same exit code, nothing on stderr about it."""

import ast
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


def test_every_program_prints_its_results_by_what_bears_a_closed_stdout():
    """`tell` alone calls print without a file; what a program copies to other places runs elsewhere."""
    paths = [p for p in (ROOT / "src").rglob("*.py") if not {"files", "job_files"} & {*p.parts}]
    assert len(paths) > 100
    for path in paths:
        text = path.read_text(encoding="utf-8")
        calls = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Call)] if "print(" in text else []
        prints = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
        bare = [c.lineno for c in prints if "file" not in {keyword.arg for keyword in c.keywords}]
        assert not bare or (path.name == "messages.py" and len(bare) == 1), f"{path}:{bare}; try tell"
