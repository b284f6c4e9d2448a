"""Load a job's files, try its rewards on rows of its data: VERL_REWARD.py EXPORT, "" for none."""

import json
import runpy
import sys
from pathlib import Path

file, export = sys.argv[1:]
module = runpy.run_path(file)
job = module["JOB"]
if environment := job.job_settings(module["HERE"])["environment"]:
    job.load_environments(environment["file"])
print("\nLOADED", flush=True)
tried = job.tried_scores(module, Path(file).with_name("train.parquet"), export)
print("\nTRIAL " + json.dumps(tried))
