#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "peft"]
# ///
"""Write a training script of your own from a page of templates/, check it with your model, train with it: one command.

    python scripts/new_trainer.py grpo my_grpo.py --model M --data train.jsonl --eval_data test.jsonl \\
        --reward my.py:reward --minutes 2 --out runs/mine

does three things and stops at the first that fails. FILE gets the page, one file of plain PyTorch and transformers;
settings of the method that are given, such as `--clip_eps_high 0.28`, become its defaults. selfcheck compares it with
independent computations on your model, data and reward. Then it trains into --out, and diagnose.py judges the log;
--minutes is for both. Without --out it stops after the check, without --model after the writing.

KIND is ppo, grpo, distillation (with --teacher) or multi_turn (with --environment in place of --reward). --change makes
a change of templates/changes/, such as `--change token_mean`; a setting that a change makes brings it: `--kl_coef 0.04`
of grpo, `--turn_baseline turn` of multi_turn, and of all pages `--prompt_column question`, or `--metrics_file
metrics.jsonl`, a second log only of updates, with `--metric_names reward=reward/mean,…` under your names. --list
prints all. --inline copies the file of the reward or environment into FILE too.
--advantage (grpo, multi_turn) and --loss (not distillation) put a function of yours in the place of the page's, with
the text of its file; ppo_train.py takes the same. selfcheck does not ask such advantages to sum to 0 in a group; of a
loss that is meant not to have the policy gradient at ratio 1 it needs `--leave_out advantages_detached`.

stdout has one JSON object: what was written and changed, where each function stands, how many checks passed, how to
start the run again, how many held-out prompts are in the training data too, the accuracy before and after (of
conversations the mean return, and that of the logged ones by their number of answers), diagnose.py's verdict, whether
the saved model loads, and by how much its weights differ from the start's; `prove.py OUT` measures its accuracy again,
by transformers' own generate. Progress goes to stderr. Ctrl-C and SIGTERM end the training early, saved and evaluated;
whatever ends the command once FILE is written, stdout says how far it came.

    python scripts/new_trainer.py ppo my_ppo.py                              # the page alone
    python scripts/new_trainer.py grpo my_grpo.py --change token_mean --clip_eps_high 0.28 --max_new_tokens 64 \\
        --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --reward my.py:reward                   # and checked
    python scripts/new_trainer.py grpo my_grpo.py --advantage idea.py:median        # def median(scores, groups)

Exit codes: 0 done, 1 a check, the run or its diagnosis found something, 2 bad input, 128 + n ended by signal n.
"""

ROOMS = ("pages", "training", "command")
