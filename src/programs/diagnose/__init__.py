#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow", "pyyaml"]
# ///
"""Read the logs of an RL run and name the root cause: evidence, what it explains, what to change, source.

A RUN_OR_FILE is one of

    ppo_train.py, grpo_train.py   metrics.jsonl, or the run's folder (config.json and samples.jsonl are read too)
    templates/*.py and copies     the same, with settings.json instead of config.json
    TRL                           trainer_state.json, a checkpoint or output folder, or console output ({'loss': …})
    verl                          console output (step:N - key:value - …), or the JSONL of trainer.logger=file
    ms-swift                      its output folder: logging.jsonl, args.json, completions.jsonl
    others                        lines of name=value, CSV (wandb's export), tables, notebooks; --columns names others

The verdict is learned, did not learn, broken (since a step), too short, no verdict (50 steps or more, with the reason)
or unreadable. It names at most two causes, each with the figures that it explains, and a command that tells two apart.
Settings, samples and the reward's source are read from files beside the log, or from those that flags name. Only
--rescore runs code of the run, in the sandbox. The last lines say what was read and what else would decide.

Trends compare the medians of the first and the last quarter of the steps (3 to 20 of them). They count only if noise of
the same scatter and persistence would rarely produce them, even in the best of many stretches: each cause appears in
at most 1 % of simulated logs of flat noise (benchmarks/false_alarms.py). A cause names the source of its thresholds, or
says "our heuristic". benchmarks/README.md says how often the cause is right.

    groups without signal, at pass rate p and group size G: p^G + (1 - p)^G, for independent draws of a 0/1 reward

Deliberately left out: curves (scripts/report.py draws them), trackers' own files (wandb, tensorboard), crashes and
out-of-memory errors, which references/troubleshooting.md covers, and judging whether a final score is a good one.

    python scripts/diagnose.py runs/first
    python scripts/diagnose.py verl_console.log --group_size 8 --json
    python scripts/diagnose.py runs/first --reward my_rewards.py:correct --data train.jsonl
    python scripts/diagnose.py mine.log --columns reward=avg_return kl=kl_to_ref step=it

Exit codes: 0 learned, 1 a cause, broken or did not learn, 2 unreadable, 3 too short or no verdict; of several
runs 2, then 1, then 3.
"""

ROOMS = ("rescoring", "command")
