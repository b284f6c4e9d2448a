#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "pyyaml", "numpy", "torch>=2.6", "transformers>=5.5.3,<6", "pyarrow", "datasets",
# ]
# ///
"""Train with verl 0.9.1, with the settings, data and reward functions of ppo_train.py: check, run, export, or print.

From one command line (or the same YAML) it writes a job folder, OUTPUT_DIR/job:

    train.parquet, val.parquet   the prompts in verl's five columns, laid out as by data_loader.py --for verl
    verl_reward.py               the weighted sum of FILE.py:function*weight, as our trainers score
    verl_hooks.py                the reward manager that calls it, a replay buffer that ends the run when a rollout or a
                                 reward fails, and two estimators that verl lacks
    verl_environment.py          with --environment: the agent loop that plays conversations as ppo_train.py would; a
                                 YAML file selects it, and environment/ has the environment's own file
    job.json, settings.json      what these modules read; the settings and overrides of the run
    run.sh                       the command with its Hydra overrides, each with the setting that it comes from

Settings that verl cannot express are errors. It names those without effect there, keys that verl dropped or ignores,
with what to write instead, and overrides that would undo a setting or a guard.

Deliberately left out: Megatron, reward models, verl's own tools and asynchronous trainers (give their keys with
--override), and installing anything on the nodes of a cluster: each needs verl and its rollout engine.

    python scripts/verl_train.py --algorithm grpo --output_dir runs/g --print            # the command; needs no verl
    python scripts/verl_train.py --config my.yaml --hardware 8x80GB --check              # starts nothing
    python scripts/verl_train.py --from_trl trl_run.py --hardware 8x80GB --export port   # a GRPOTrainer's file, moved
    python scripts/verl_train.py --check --overrides mine.txt                            # KEY=VALUE a line, by hand
    python scripts/verl_train.py --config my.yaml --run
    python scripts/verl_train.py --config my.yaml --output_dir /shared/o --print         # for a Ray that runs already:
    ray job submit --address http://HEAD:8265 --working-dir /shared/o/job -- bash run.sh

Exit codes: 0 done, 1 a finding of --check, or the run failed, 2 bad input, 3 a reward function or an environment
failed, 128 + n stopped by signal n.
"""

ROOMS = (
    "settings",
    "from_trl",
    "data",
    "refusals",
    "rewards",
    "overrides",
    "job_folder",
    "checks",
    "launch",
    "export",
    "command",
)
