#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyyaml"]
# ///
"""Make an old TRL script or verl job run on today's packages, as the same run.

    python scripts/migrate.py train.py --from trl==0.14 --out new.py
    python scripts/migrate.py run.sh --from verl==0.3 --out new.sh

Exit codes: 0 the same run; 2 bad input; 3 something has no equal today, said at the top.
"""

ROOMS = (
    "tables",
    "edits",
    "python_source",
    "trl_names",
    "trl_run",
    "trl_meanings",
    "trl_arguments",
    "trl_prompts",
    "trl_rewards",
    "trl_models",
    "trl_calls",
    "trl_version",
    "effective",
    "trial",
    "command",
)
