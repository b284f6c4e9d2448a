#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "pyyaml", "torch>=2.6", "transformers>=5.23,<6", "datasets", "pyarrow", "trl==1.16.0",  # all but pyyaml for --check
# ]
# ///
"""Make an old TRL script or verl job do the same run on today's packages.

The new file is the old one with edited lines; only --check runs it. The table has a row for each of these lines: its
text, the version that changed it, why, and what today's package would do without the edit. Defaults that changed are
written out, so that objective, sampling, batch, prompts and schedule stay; a class in the script does what no setting
does. What has no equivalent today comes first. Without --from, the version comes from a pin, or from the names that the
file uses.

Deliberately left out: main modules of verl's recipes, which are named but not changed; values that bash computes.

    python scripts/migrate.py train.py --from trl==0.14 --out new.py            # a script, or a notebook
    python scripts/migrate.py train.py --from trl==0.14 --check --data rows.jsonl  # one step of it, on the CPU
    python scripts/migrate.py run.sh --from verl==0.3 --out new.sh              # a job, or its YAML
    python scripts/migrate.py grpo.yaml --from trl==0.14 --out new.yaml         # settings of TRL's command line

Exit codes: 0 the same run; 2 bad input; 3 something has no equivalent today.
"""

ROOMS = ("tables", "edits", "job_files", "trl_settings", "trainer_parts", "trl_script", "verl_run", "trial", "command")
