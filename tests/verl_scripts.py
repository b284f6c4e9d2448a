"""What verl gets of a job, without verl: the words of run.sh, rows of parquet; and a job to make it of."""

import os
import subprocess
from pathlib import Path

import pyarrow.parquet

PYTHON = """#!/usr/bin/env bash
[[ $1 == -c ]] && exit {no_flash}
touch "$VERL_FILE_LOGGER_PATH"
printf "%s\\0" "$@" "$VERL_FILE_LOGGER_PATH"
"""


def layout_of(launcher, **changes):
    """A job whose files lie in /job, of scripts/verl_train.py as a module."""
    given = {"folder": "/job", "output": "/out", "template": None, "held_out": True, "cpus": 16, "columns": []}
    return launcher.Layout(**(given | {"parameters": 7e9} | changes))


def words_of(script: Path, bin_folder: Path, *more: str, no_flash: int = 1) -> tuple[list[str], str]:
    """(The words that a run.sh gives to `python`, the file of metrics); `no_flash` 0: flash_attn is there."""
    bin_folder.mkdir(exist_ok=True)
    (bin_folder / "python").write_text(PYTHON.replace("{no_flash}", str(no_flash)))
    (bin_folder / "python").chmod(0o755)
    env = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(script), *more], env=env, capture_output=True, text=True, check=True)
    *words, metrics = done.stdout.split("\0")[:-1]
    return words, metrics


def rows_of(path: Path) -> list[dict]:
    """Rows as verl's data set reads them, nulls included."""
    return pyarrow.parquet.read_table(path).to_pylist()
