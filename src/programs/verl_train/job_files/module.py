"""{title}. Written by verl_train.py; loads its copy beside this file."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "verl_train_job"
if NAME not in sys.modules:
    spec = importlib.util.spec_from_file_location(NAME, HERE / "verl_train.py")
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])
JOB = sys.modules[NAME]
