#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.5,<6", "numpy", "pyyaml", "tqdm", "matplotlib", "pyarrow", "datasets", "peft",
# ]
# ///
"""Check a trainer on your own model, tokenizer and data, in seconds, before a long run.

TRAINER.py is a page of templates/, scripts/ppo_train.py, scripts/on_policy_distillation.py, a copy, or any trainer in
plain PyTorch with the functions that `--contract` lists. If yours lacks some, put a copy of templates/grpo.py beside it
and `from grpo import *` before its own. A trainer that leaves the training to TRL cannot be checked.

selfcheck calls these functions on a few short sequences and compares what they return with its own computations from
the published formulas and the plain networks' logits:

    log-prob     log softmax(logits[t - 1] / temperature)[token t]
    gradient     d/dtheta  1/N sum over response tokens of -A_t ratio_t - entropy_coef H_t,  A constant, ratio = 1
    clip         the same of max(-A ratio, -A clip(ratio, 1 - clip_eps_low, 1 + clip_eps_high)), old log-probs moved
    divergence   d/dtheta  1/N sum over response tokens of KL(student || teacher) over the vocabulary, in a distillation
    GAE          A_t = sum_l (gamma lambda)^l (r_{t+l} + gamma V_{t+l+1} - V_{t+l}) over response tokens, returns A + V
    critic       d/dphi  vf_coef/N sum of 1/2 max((V - R)^2, (V_old + clip(V - V_old, -value_clip, value_clip) - R)^2)

A page's gradient may be that of any of three means: over tokens, over completions, or divided by max_new_tokens. The
table says which one it is, and for distillation whether the KL is reverse or forward.

If a page plays conversations, selfcheck also plays some with its own environment and answers. The ids of these answers
differ from those of their text encoded again, which shows which tokens were sampled and whose return is whose.

Policy and critic get a little noise in memory, because on the untouched model many faults give the right numbers.
Nothing is trained or written. The model runs about a hundred times: for a large one, use a small one of its family.

Deliberately left out: whether the settings learn anything, several processes, code that only a longer run reaches
(checkpoints, schedules), the reward (reward_preflight.py does), tool calls, a trainer's `train`, a page's `rollout`
without an environment, loss scaling in fp16. Batch, prompts and completions are cut to a few short ones; all other
settings are yours. The embedded model and data stand in for those that you leave out.

    python scripts/selfcheck.py templates/ppo.py                                      # CPU, the embedded model, seconds
    python scripts/selfcheck.py my_grpo.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl \\
        --reward my_rewards.py:correct                                                # the flags of the run, one GPU
    CUDA_VISIBLE_DEVICES=0 python scripts/selfcheck.py my_ppo_train.py --config run.yaml --json   # before torchrun

Exit codes: 0 every check passes, 1 one fails, 2 bad input.
"""

ROOMS = ("trainer", "input_checks", "conversation_checks", "adapters", "numeric_checks", "run")
