#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.23,<6", "numpy", "pyyaml", "tqdm", "matplotlib", "pyarrow", "datasets", "peft",
# ]
# ///
"""On-policy distillation: the student samples, a teacher scores the student's tokens, and the student moves towards it.

With S and T the student's and the teacher's distribution of the next token (Agarwal 2024, arXiv 2306.13649, eq. 1):

    reverse_kl       KL(S || T) over the whole vocabulary, or the top --kl_top_k tokens and one for all others
    forward_kl       KL(T || S), likewise
    jsd              beta KL(T || M) + (1 - beta) KL(S || M),  M = (1 - beta) S + beta T
    policy_gradient  A_t = -sum_s>=t discount^(s-t) (log S - log T)(token s), a constant, in PPO's clipped loss

No gradient flows through the sampling. The three divergences sum over the vocabulary, so their gradient given the text
so far is exact and less noisy than that of policy_gradient, which needs only one log-prob per token from the teacher.
The loss is the mean over completion tokens, end token included, without prompts and pads. --reward_coef adds a reward.

The teacher never samples: it reads what the student wrote. It is a folder, a hub id, or an OpenAI-compatible server
that returns `prompt_logprobs`, such as vLLM. Logits and their gradients are computed in pieces of --logits_chunk.
Per-token tensors are [B, T]; masks are 1 = keep.

Deliberately left out: teachers of another vocabulary, distillation of hidden states, teachers that sample, sharded
models. Each process holds student and teacher whole; a teacher that does not fit belongs behind a server.

    python assets/make_tiny_lm.py --teacher runs/teacher                                   # three minutes, CPU
    python scripts/on_policy_distillation.py --teacher runs/teacher --output_dir runs/d      # CPU, the embedded student
    python scripts/on_policy_distillation.py --model Qwen/Qwen2.5-0.5B-Instruct --teacher Qwen/Qwen2.5-7B-Instruct \\
        --teacher_precision bf16 --data train.jsonl --precision bf16 --output_dir runs/qwen  # one GPU

Exit codes: 0 done, 1 saved and stopped by --stop_when broken, 2 bad input, 3 a reward function or a teacher's server
failed, 4 training diverged, 5 vLLM has other weights than the policy, 128 + n saved and stopped by signal n.
"""

ROOMS = ("settings", "objective", "models", "evaluation", "step", "run")
