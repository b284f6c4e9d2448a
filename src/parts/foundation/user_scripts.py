"""A user's Python script: the names that it binds, and a run of it in a process of its own."""

import ast
import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

CHANGING = {"append", "extend", "insert", "pop", "remove", "setdefault", "update"}  # methods
QUIET = {"WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}


def names_bound_by(node: ast.AST) -> list[str]:
    """The names that a node binds, or changes by an attribute, an item or a method."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    place = node
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in CHANGING:
        place = node.func
    elif not isinstance(node, ast.Attribute | ast.Subscript) or isinstance(node.ctx, ast.Load):
        return []
    while isinstance(place, ast.Attribute | ast.Subscript):
        place = place.value
    return [place.id] if isinstance(place, ast.Name) else []


def script_end(command: list[str], folder: Path, seconds: float, **environment: str) -> str:
    """Run a command in a folder, with all that it starts; returns why it failed, or "" where it did not."""
    with tempfile.TemporaryFile("w+") as said:
        env = os.environ | QUIET | environment
        options = {"cwd": folder, "env": env, "stdin": subprocess.DEVNULL, "start_new_session": True}
        with subprocess.Popen(command, stdout=said, stderr=said, **options) as process:
            try:
                process.wait(seconds)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return f"it takes more than {seconds} s"
        said.seek(0)
        lines = [line.strip() for line in said.read().splitlines() if line.strip()]
    return lines[-1] if lines and process.returncode else ""
