"""Import of a file that stands beside the written one."""

import importlib.util
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent


def load_file(path: Path):
    """Import a file, once in each process."""
    module = f"reward_{path.stem}_{zlib.crc32(str(path).encode())}"
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, path)
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[module]


def load_helper(name: str):
    """Import NAME.py from this file's folder, or from a folder `scripts` in it or beside it."""
    places = [folder / f"{name}.py" for folder in (HERE, HERE / "scripts", HERE.parent / "scripts")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        where = f"got no {name}.py in {HERE}; expected it beside {Path(__file__).name}"
        raise FileNotFoundError(f"{where}; try copying scripts/{name}.py of the bundle rl-training-code there")
    return load_file(path)
