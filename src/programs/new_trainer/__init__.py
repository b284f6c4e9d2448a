#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "pyarrow", "datasets", "peft"]
# ///
"""Write your own training script from a page of templates/, check it with your model and train with it: one command.

    python scripts/new_trainer.py grpo my_grpo.py --model M --data train.jsonl --eval_data test.jsonl \\
        --reward my.py:reward --minutes 2 --out runs/mine

does three things and stops at the first that fails. It writes the page to FILE: one file of plain PyTorch and
transformers, with all that you pass, such as `--clip_eps_high 0.28`, as its defaults: `python my_grpo.py` repeats the
run. selfcheck compares the page with independent computations on your model, data and reward. Then it trains into
--out, and diagnose.py judges the log.
--minutes covers check and training. Without --out it stops after the check, without --model after writing.

KIND is ppo, grpo, distillation (with --teacher) or multi_turn (with --environment instead of --reward). --change makes
a change of templates/changes/, such as `--change token_mean`; some flags make their change themselves: `--kl_coef 0.04`
(grpo), `--turn_baseline turn` (multi_turn), and for every page `--prompt_column question` and `--metrics_file FILE`, a
second log of updates alone, with names by `--metric_names reward=reward/mean,…`. --list prints all.
--inline also copies the file of the reward or environment into FILE.
--advantage (grpo, multi_turn) and --loss (not distillation) replace the page's function with yours, as in ppo_train.py,
and copy the text of its file. selfcheck then requires neither that advantages sum to 0 in a group nor that the loss
clips. A loss that by design lacks the policy gradient at ratio 1 needs `--leave_out advantages_detached`.

stdout has one JSON object: what was written and changed, the line of each function, the checks passed, how to repeat
the run, the held-out prompts that also occur in training, the accuracy before and after (mean returns for
conversations, also by number of answers), diagnose.py's verdict, whether the saved model loads, and how its weights
differ from the start's. `prove.py OUT` measures the accuracy again, by transformers' own generate. Ctrl-C and SIGTERM
end the training early; it then saves and evaluates. Whatever ends the command, stdout says how far it got.

    python scripts/new_trainer.py ppo my_ppo.py                              # the page alone
    python scripts/new_trainer.py grpo my_grpo.py --change token_mean --clip_eps_high 0.28 --max_new_tokens 64 \\
        --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --reward my.py:reward                   # and checked
    python scripts/new_trainer.py grpo my_grpo.py --advantage idea.py:median        # def median(scores, groups)

Exit codes: 0 done, 1 a check, the run or its diagnosis found something, 2 bad input, 128 + n ended by signal n.
"""

ROOMS = ("pages", "training", "command")
