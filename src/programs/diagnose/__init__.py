#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["matplotlib", "numpy>=1.26", "pyarrow"]
# ///
"""Read the log of an RL run and say what is wrong with it: what was seen, likely cause, what to change, source.

A RUN_OR_FILE is one of

    ppo_train.py, grpo_train.py   metrics.jsonl, or the run's folder (config.json and samples.jsonl are read too)
    templates/*.py and copies     the same, with settings.json in the place of config.json
    TRL                           trainer_state.json, a checkpoint or output folder, or console output ({'loss': …})
    verl                          console output (step:N - key:value - …), or the JSONL of trainer.logger=file
    others                        lines of name=value, or a CSV file such as wandb's export; --columns for other names

A *finding* asks for a change, a *note* does not. Trends compare the medians of the first and the last quarter of the
steps (3 to 20 of them). They count only beyond what chance gives noise of the same scatter and persistence, also where
the best stretch of many was chosen: each such finding comes in at most 1 % of simulated logs of flat noise
(benchmarks/false_alarms.py). Once the task is solved (held-out accuracy or correctness at 0.95 and above) low entropy
and equal scores are no faults, and a critic without use is a note.

A run without a finding is "too short to judge" below 10 steps, and "not judged" if its reward or length has no name
that is known here, or if its mean reward stays at one level and the log lacks its spread. Neither is "healthy".

Thresholds come from the source that a finding names; where none exists it says "our heuristic" and why.

    groups that teach nothing, at pass rate p and group size G: p^G + (1 - p)^G, for independent draws of a 0/1 reward

Deliberately left out: trackers' own files (wandb, tensorboard), crashes and out-of-memory errors, which
references/troubleshooting.md covers, and judging whether a final score is a good one.

    python scripts/diagnose.py runs/first
    python scripts/diagnose.py verl_console.log --group_size 8 --json
    python scripts/diagnose.py mine.log --columns reward=avg_return kl=kl_to_ref step=it
    python scripts/diagnose.py out/checkpoint-500/trainer_state.json runs/other --plot curves.png

Exit codes: 0 healthy, 1 findings, 2 unreadable input, 3 too short or not judged; of several the gravest: 2, 1, 3, 0.
"""

ROOMS = ("report_and_plot", "rescoring", "command")
