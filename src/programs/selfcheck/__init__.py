#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.5,<6", "numpy", "pyyaml", "tqdm", "matplotlib", "pyarrow", "datasets", "peft",
# ]
# ///
"""Check a PPO trainer on your own model, tokenizer, data and reward, in seconds, before a long run.

TRAINER.py is scripts/ppo_train.py or your adapted copy; it is loaded by path and its own functions are called on a few
short sequences. What they return is compared with computations made here from the published formulas and the plain
`model(input_ids, attention_mask).logits`:

    log-prob     log softmax(logits[t - 1] / temperature)[token t]
    gradient     d/dtheta  1/N sum over response tokens of -A_t ratio_t - entropy_coef H_t,  A constant, ratio = 1

Policy and critic get a little noise (in memory), so that the policy differs from its reference and the value head from
zero: on the untouched model many faults give the right numbers. Nothing is trained and nothing is written to disk.

Deliberately left out: whether the settings learn anything, several processes, and code that only a longer run reaches
(checkpoints, schedules). Batch, prompts and completions are cut to a few short ones; other settings stay yours.

    python scripts/selfcheck.py scripts/ppo_train.py                                  # CPU, the embedded model, seconds
    python scripts/selfcheck.py my_ppo.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl \\
        --reward my_rewards.py:correct --precision bf16 --gradient_checkpointing      # the flags of the run, one GPU
    CUDA_VISIBLE_DEVICES=0 python scripts/selfcheck.py my_ppo.py --config run.yaml --json   # before a torchrun launch

Exit codes: 0 every check passes, 1 one fails, 2 bad input.
"""

ROOMS = (
    "contract",
    "subject",
    "measures",
    "scripts_trainer",
    "one_page",
    "loading",
    "oracle",
    "trainer_side",
    "prepare",
    "check",
    "input_checks",
    "advantage_checks",
    "policy_checks",
    "run",
)
