#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "peft"]
# ///
"""Write your own training script from a page of templates/, check it with your model and train with it: one command.

    python scripts/new_trainer.py grpo my_grpo.py --model M --data train.jsonl --eval_data test.jsonl \\
        --reward my.py:reward --minutes 2 --out runs/mine

does three things and stops at the first that fails. It writes the page to FILE: one file of plain PyTorch and
transformers, whose defaults are the settings that you give, such as `--clip_eps_high 0.28`. selfcheck compares it with
independent computations on your model, data and reward. Then it trains into --out, and diagnose.py judges the log.
--minutes covers check and training. Without --out it stops after the check, without --model after writing.

KIND is ppo, grpo, distillation (with --teacher) or multi_turn (with --environment instead of --reward). --change makes
a change of templates/changes/, such as `--change token_mean`. If a flag belongs to a change, giving the flag makes the
change: `--kl_coef 0.04` (grpo), `--turn_baseline turn` (multi_turn), and for every page `--prompt_column question` and
`--metrics_file metrics.jsonl`, a second log, only of updates; `--metric_names reward=reward/mean,…` names its metrics.
--list prints all. --inline also copies the file of the reward or environment into FILE.
--advantage (grpo, multi_turn) and --loss (not distillation) replace the page's function with yours and copy the text of
its file; ppo_train.py has the same flags. selfcheck does not require such advantages to sum to 0 in a group, nor such a
loss to clip. A loss that by design lacks the policy gradient at ratio 1 needs `--leave_out advantages_detached`.

stdout has one JSON object: what was written and changed, the line of each function, how many checks passed, how to
repeat the run, how many held-out prompts also occur in training, the accuracy before and after (for conversations the
mean return, and that of the logged ones by number of answers), diagnose.py's verdict, whether the saved model loads,
and by how much its weights differ from the start's. `prove.py OUT` measures the accuracy again, by transformers' own
generate. Progress goes to stderr. Ctrl-C and SIGTERM end the training early; it then saves and evaluates. Whatever ends
the command after FILE is written, stdout says how far it got.

    python scripts/new_trainer.py ppo my_ppo.py                              # the page alone
    python scripts/new_trainer.py grpo my_grpo.py --change token_mean --clip_eps_high 0.28 --max_new_tokens 64 \\
        --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --reward my.py:reward                   # and checked
    python scripts/new_trainer.py grpo my_grpo.py --advantage idea.py:median        # def median(scores, groups)

Exit codes: 0 done, 1 a check, the run or its diagnosis found something, 2 bad input, 128 + n ended by signal n.
"""

ROOMS = ("pages", "training", "command")
