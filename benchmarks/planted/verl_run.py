#!/usr/bin/env python3
"""Run one planted run's job with verl's trainer on a CPU: `.venv-verl/bin/python verl_run.py FOLDER`.

FOLDER/run.sh has the command as a user would write it. The overrides that a run without a GPU needs are added here.
"""

import shlex
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "with_verl")]
from verl_helpers import CPU_OVERRIDES, cpu_env, forked_workers, run_command  # noqa: E402

SECONDS = 1200


def absolute(word: str, folder: Path) -> str:
    """An override whose value is a path in the folder, with the whole path: Ray's workers start elsewhere."""
    name, _, value = word.partition("=")
    return f"{name}={folder / value}" if value.endswith((".parquet", ".py")) or value.startswith("out/") else word


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    words = shlex.split((folder / "run.sh").read_text(encoding="utf-8").replace("\\\n", " "))
    command = [sys.executable, *words[1:3], *CPU_OVERRIDES, forked_workers()]
    command += [absolute(word, folder) for word in words[3:]]
    env = cpu_env(VERL_FILE_LOGGER_PATH=str(folder / "out" / "metrics.jsonl"))
    sys.exit(run_command(command, env, folder, SECONDS).returncode)
