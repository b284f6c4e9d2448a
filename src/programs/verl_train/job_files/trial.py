"""Load the modules of a job, and try its rewards on a batch: MODULE TRIAL.json ENVIRONMENT…"""

import json
import runpy
import sys

module = runpy.run_path(sys.argv[1])
job = sys.modules[module["NAME"]]
for spec in sys.argv[3:]:
    job.load_environments(spec)
print("\nLOADED", flush=True)
trial = json.load(open(sys.argv[2], encoding="utf-8"))
print("\nTRIAL " + json.dumps(job.whole_batch_functions(module["specs"], module["COLUMNS"], module["LIMITS"], trial)))
