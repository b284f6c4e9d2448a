#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "pyarrow", "datasets", "transformers>=5.23,<6", "torch>=2.6", "numpy", "peft", "jsonschema", "referencing",
# ]
# ///
"""Check a reward function or an environment on real rows before a run: does it pay what it should, and only that?

A reward is FILE.py:function[*weight], or the name of a function or preset of the library; several are summed with their
weights, as the trainers do. It is called in a separate process, with a time limit per call, on

    gold       the reference completion of each row, in the format that scores best: full marks expected (recall), that
               is 95 % of the highest score by the documented ranges (1 if a function documents none; where a column
               weights rows, the highest of the same weight)
    probes     completions that must not be paid: empty, cut before the answer, the prompt, lists of answers, keywords,
               …; share = (score - floor) / (gold of the row - floor), floor = 0, or the lowest score if gold is not
               above 0
    contract   the same batch twice, reversed and one by one; gold in another order in a new process; rows without a
               reference; lengths, NaN, exceptions, time limit, changed inputs

--profile says what the reward pays for. `answer`, the default: as above. `format`: wrong answers in the right form may
be paid. `judge`: gold needs no full marks, and scores may vary. `--max_new_tokens N` is the run's limit: probes are cut
at 4 N characters, without it at 40,000.

For `--environment FILE.py:Class`, scripted policies play in a separate process. Gold should get full marks (95 % of 1).
The others must be paid less: silence, nonsense, broken_calls, unknown_tools, wrong_arguments, endless, echo (what the
environment said last; without tools), injection (control tokens, orders, code, 10 MB, as answers and arguments). Gold
is the first of: the column `gold` with the answers of each turn (a text, a call {"name", "arguments"} or several); a
tool whose required arguments are columns with the answer; the reference completion, in the format that is paid best.
Each conversation is played alone. Some are played again: side by side, and with an object that served another one. If
a result changes, new processes play the conversation, which separates chance from shared state. An exception in reset,
reply or get_reward is reported with file, line and row.

`--model M` samples completions from a model, as the run will (16 for each of 32 prompts). It reports how often they
pass (the first reward gives full marks, 1), the prompts by pass rate, and the share of groups of --group_size with both
right and wrong answers. The verdict is *RL now, warm start, easier prompts* or *harder prompts*.

Deliberately left out, except with --model: a model and a tokenizer (`completion_ids` has one id per 4 characters; in a
conversation each text is one token). Lone surrogates, which no tokenizer produces, occur only in tool arguments. About
15 completions are scored per row.

    python scripts/reward_preflight.py --list
    python scripts/reward_preflight.py --reward my_rewards.py:correct --reward "my_rewards.py:format*0.2" \\
        --data train.jsonl --max_new_tokens 256 --json
    python scripts/reward_preflight.py --model Qwen/Qwen2.5-0.5B-Instruct --chat --reward my_rewards.py:correct \\
        --data train.jsonl --max_new_tokens 512
    python scripts/reward_preflight.py --environment my_environment.py:Task --data train.jsonl --max_turns 4

Exit codes: 0 ready (or listed; --model: RL now), 1 not ready, 2 bad input.
"""

ROOMS = (
    "rows_and_gold",
    "probes",
    "reward_process",
    "scoring",
    "preflight",
    "policies",
    "environment_process",
    "environment_preflight",
    "report",
    "model_preflight",
    "command",
)
