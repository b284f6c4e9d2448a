"""Load a job's modules, try its rewards on rows of its data: MODULE ENVIRONMENT EXPORT, "" for none."""

import json
import runpy
import sys
from pathlib import Path

file, environment, export = sys.argv[1:]
module = runpy.run_path(file)
job = sys.modules[module["NAME"]]
if environment:
    job.load_environments(environment)
print("\nLOADED", flush=True)
found = job.tried_scores(module, Path(file).with_name("train.parquet"), export)
print("\nTRIAL " + json.dumps(found))
