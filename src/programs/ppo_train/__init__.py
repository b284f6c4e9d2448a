#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.23,<6", "numpy", "pyyaml", "tqdm", "matplotlib", "pyarrow", "datasets", "peft",
# ]
# ///
"""PPO with a critic, and the family without one, for any causal language model and any Python reward function.

One step samples completions, scores them, and updates the policy on that batch. `--algorithm ppo`, the default:

    reward       r_t = score at the last token - kl_coef * KL_t(policy || reference)         Ziegler 2019, eq. 2
    advantage    A_t = delta_t + gamma lambda A_{t+1},  delta_t = r_t + gamma V_{t+1} - V_t    Schulman 2016, eq. 16
    policy loss  max(-A ratio, -A clip(ratio, 1 - low, 1 + high)); if A < 0: min(that, -A c)  Schulman 2017, eq. 7
                                                                                           dual clip: Ye 2020, eq. 5
    value loss   1/2 max((V - R)^2, (clip(V, V_old +- c) - R)^2),  R = A + V_old       as in the original PPO code

Every other algorithm samples `group_size` completions per prompt and needs no critic. Each is a row of PRESETS with
four choices: an advantage estimator (ADVANTAGES), a policy loss (LOSSES), an aggregation (`token_weights`), and where
the KL goes. Each choice has its own flag; your own estimator or loss is `--advantage FILE.py:function` or `--loss
FILE.py:function`. references/rl_algorithms.md has equations, sources, and what each was compared with.

Every per-token tensor is [B, T] over prompt + response and x[b, t] is about token t; masks are 1 = keep.

Deliberately left out: top-p and top-k sampling (they bias the ratio), and sharded models. Each process holds the whole
model; what does not fit one GPU belongs in a framework such as verl.

    python scripts/ppo_train.py --output_dir runs/first             # CPU, the embedded model, about a minute
    python scripts/ppo_train.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --eval_data test.jsonl \\
        --reward my_rewards.py:correct --precision bf16 --gradient_checkpointing --output_dir runs/qwen   # one GPU
    python scripts/ppo_train.py --algorithm grpo --output_dir runs/grpo                          # groups of 8
    python scripts/ppo_train.py --environment examples/environments.py:SecondAttempt --max_turns 2 \\
        --output_dir runs/talk                                                                   # several turns
    torchrun --nproc_per_node 4 scripts/ppo_train.py --model … --data … --output_dir runs/qwen4           # GPUs

Exit codes: 0 done, 1 saved and stopped by --stop_when broken, 2 bad input, 3 a reward or environment failed,
4 diverged, 5 vLLM has other weights than the policy, 128 + n saved and stopped by signal n.
"""

ROOMS = ("settings", "rollout", "models", "step", "run")
