"""What the run.sh of a job gives to verl, without verl."""

import os
import subprocess
from pathlib import Path

PYTHON = """#!/usr/bin/env bash
[[ $1 == -c ]] && exit {no_flash}
touch "$VERL_FILE_LOGGER_PATH"
printf "%s\\0" "$@" "$VERL_FILE_LOGGER_PATH"
"""


def words_of(script: Path, bin_folder: Path, *more: str, no_flash: int = 1) -> tuple[list[str], str]:
    """(The words that a run.sh gives to `python`, the file of metrics); `no_flash` 0: flash_attn is there."""
    bin_folder.mkdir(exist_ok=True)
    (bin_folder / "python").write_text(PYTHON.replace("{no_flash}", str(no_flash)))
    (bin_folder / "python").chmod(0o755)
    env = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(script), *more], env=env, capture_output=True, text=True, check=True)
    *words, metrics = done.stdout.split("\0")[:-1]
    return words, metrics
