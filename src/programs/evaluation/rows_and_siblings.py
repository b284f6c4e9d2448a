"""Rows, and the scripts beside this one."""

import importlib
import importlib.util
import sys
from pathlib import Path

from parts.data.rows import is_hub_id, read_rows
from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need
from parts.foundation.processes import world


def ranks() -> tuple[int, int]:
    """`world()` without importing torch for it."""
    return world() if "torch" in sys.modules else (0, 1)


def sibling(name: str):
    """Load NAME.py, which must lie beside this file or in the bundle's scripts, when something first needs it."""
    module_name = f"evaluation_{name}"
    if module_name not in sys.modules:
        here = Path(__file__).resolve().parent
        path = next((p for f in (here, BUNDLE / "scripts") if (p := f / f"{name}.py").is_file()), None)
        need(path, f"got no {name}.py beside {Path(__file__).name}; expected it; try copying scripts/{name}.py there")
        spec = importlib.util.spec_from_file_location(module_name, path)
        sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[module_name]


def rows_of(source: str, flag: str = "--data") -> list[dict]:
    """Rows of a file, of a hub id, or of any other form by data_loader.py; never none."""
    need(source, f"got no {flag}; expected a file or hub id; try {flag} assets/data/arithmetic_eval.jsonl")
    plain = Path(source).suffix.lower() in (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
    if plain or (is_hub_id(source) and Path(source).suffix.lower() not in (".gz", ".zst", ".tsv", ".txt")):
        rows = read_rows(source)
    else:
        loader = sibling("data_loader")
        try:
            rows = list(loader.load_rows(source).rows)
        except loader.UserError as error:
            raise UserError(str(error)) from None
    need(rows, f"got data {source!r} without rows; expected at least one")
    return rows


def first_of(row: dict, names) -> object:
    """The first of these columns that the row has; None without."""
    return next((row[name] for name in names if row.get(name) is not None), None)
