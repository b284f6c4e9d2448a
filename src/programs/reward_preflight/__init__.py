#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "pyarrow", "datasets", "transformers>=5.23,<6", "torch>=2.6", "numpy", "peft", "jsonschema", "referencing",
# ]
# ///
"""Check a reward function on real rows before a run: does it pay what it should, and only that?

A reward is FILE.py:function[*weight], or a function or preset of the library; several are summed with their weights,
as in the trainers. It is called in a separate process, with a time limit per call, on

    gold       the reference completion of each row, in the format that scores best. Full marks are expected: 95 % of
               the highest documented score, else of gold's best, at least 1
    probes     completions that must not be paid: empty, cut before the answer, the prompt, lists of answers, keywords,
               …; share = (score - floor) / (gold of the row - floor), floor = 0, or the lowest score if gold is <= 0
    contract   the same batch twice, reversed and one by one; gold in another order in a new process; rows without a
               reference; lengths, NaN, exceptions, time limit, changed inputs

--profile says what the reward pays for. With `answer`, the default, the above holds; with `format`, wrong answers in
the right form may be paid; with `judge`, gold needs no full marks and scores may vary. Probes are cut at 4 characters
per token of --max_new_tokens, the run's limit; without it, at 40,000.

`--model M` samples completions from a model, as the run will (16 for each of 32 prompts). It reports how often they
pass (full marks, 1, from the first reward), the prompts by pass rate, and the share of groups of --group_size with both
right and wrong answers. The verdict is *RL now, warm start, easier prompts* or *harder prompts*.

Deliberately left out: environments (prove.py plays them) and, except with --model, a model and a tokenizer
(`completion_ids` has one id per 4 characters). 64 rows take about 1,500 completions.

    python scripts/reward_preflight.py --list
    python scripts/reward_preflight.py --reward my_rewards.py:correct --reward "my_rewards.py:format*0.2" \\
        --data train.jsonl --max_new_tokens 256 --json
    python scripts/reward_preflight.py --model Qwen/Qwen2.5-0.5B-Instruct --chat --reward my_rewards.py:correct \\
        --data train.jsonl --max_new_tokens 512

Exit codes: 0 ready (or listed; --model: RL now), 1 not ready, 2 bad input.
"""

ROOMS = (
    "rows_and_gold",
    "probes",
    "reward_process",
    "scoring",
    "preflight",
    "report",
    "model_preflight",
    "command",
)
