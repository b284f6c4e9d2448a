"""Loading the files beside this one."""

import importlib
import importlib.util
import sys
import threading
from pathlib import Path

_LOCK = threading.RLock()


def _load(name: str):
    """Load NAME.py, all that this file can need beside it, from its own folder or from the bundle's scripts."""
    here, module_name = Path(__file__).resolve().parent, f"reward_library_{name}"
    with _LOCK:
        if module_name not in sys.modules:
            path = next((p for f in (here, here.parent / "scripts") if (p := f / f"{name}.py").is_file()), None)
            if path is None:
                raise FileNotFoundError(f"got no {name}.py in {here}; try copying the bundle's scripts/{name}.py there")
            spec = importlib.util.spec_from_file_location(module_name, path)
            sys.modules[module_name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[module_name])
        return sys.modules[module_name]
