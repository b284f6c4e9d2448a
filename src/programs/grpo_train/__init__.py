#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "trl>=1.16,<1.17", "transformers>=5.23,<6", "torch>=2.6", "datasets", "accelerate", "peft", "numpy", "pyyaml",
#   "tqdm", "matplotlib", "pyarrow",
# ]
# ///
"""GRPO through TRL's GRPOTrainer: any causal language model, any Python reward, one GPU or many.

One rollout samples G completions per prompt (`num_generations`), scores them, and compares each with its own group:

    advantage    A_i = (r_i - mean(r_1..r_G)) / (std(r_1..r_G) + 1e-4)                     Shao 2024, section 4.1.2
                 no division with --scale_rewards none (Liu 2025), the batch's std with batch
    loss         -min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A) + beta k3(policy || reference)  eq. 3
                 averaged over all tokens of the rollout with dapo (Yu 2025, eq. 8), per completion with grpo

The settings have TRL's names and, above 50M parameters, TRL's learning rate. This file adds checks before the model
loads, greedy held-out evaluation, metrics and samples on disk, and a prompt order that survives a resume.

With --environment a completion is a conversation of several turns, sampled by TRL and played here through its
rollout_func: each tool has a time limit, sampled ids are never re-encoded, and only sampled tokens are in the loss.

Deliberately left out: images; a baseline by turn and a critic, which scripts/ppo_train.py has.

    python scripts/grpo_train.py --steps 20 --output_dir runs/first          # CPU, the embedded model, under a minute
    python scripts/grpo_train.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --eval_data test.jsonl \\
        --reward MATH_REASONING_REWARDS --profile memory --output_dir runs/qwen                            # one GPU
    python scripts/grpo_train.py --environment examples/environments.py:SecondAttempt --max_turns 2 --output_dir runs/2
    accelerate launch --num_processes 4 scripts/grpo_train.py --profile fast --model … --data … --reward … # several

Exit codes: 0 done, 1 saved and stopped by --stop_when broken, 2 bad input, 3 a reward or environment failed,
4 diverged, 5 vLLM has other weights than the policy, 128 + n saved and stopped by signal n.
"""

ROOMS = ("settings", "data", "rewards", "evaluation", "colocated", "callback", "trainer", "run")
