"""Import a file that is beside the written one, or below it."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def load_file(path: Path):
    """Import a file by its path, once in each process.

    Raises:
        FileNotFoundError: it is not there.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"got no {path}; expected the file that {Path(__file__).name} needs; try copying it there"
        )
    module = f"reward_{path.stem}_{abs(hash(str(path)))}"
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, path)
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[module]
