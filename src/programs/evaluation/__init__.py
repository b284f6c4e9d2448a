#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.6", "transformers>=5.23,<6", "numpy", "pyyaml", "tqdm", "pyarrow", "datasets", "peft",
#   "math-verify[antlr4_13_2]>=0.8,<1",
# ]
# ///
"""Evaluate a language model: numbers with an interval, and a paired test where two runs are compared.

Tasks, by `--task NAME[:option=value,…]`, repeatable:
    generation       length, distinct-n, repetition, truncation
    math             strict and flexible as lm-evaluation-harness extracts them, verified by math_grader.py
                     template=auto|gsm8k|plain
    code             runs in sandbox.py; unbiased pass@k (Chen 2021, eq. 1)          k=1/10, timeout_s=3
    perplexity       per token, word and byte, bits per byte                         stride=N, column=NAME
    multiple_choice  acc, acc_norm (log-prob per character)                          template=auto|qa|plain
    reward           reward functions with TRL's signature, or of one sample         reward:FILE.py:function[*weight]
    environment      conversations with --environment FILE.py:Class, as ppo_train    k=1/10
Every task also takes data=FILE, limit=N and max_new_tokens=N.

    mean       standard error s / sqrt(n); 0/1 values: Wilson 1927 interval; others: percentile bootstrap over rows
    compared   0/1 values: exact McNemar test, Bonett-Price 2012 interval; others: permutation of the pairs, bootstrap

Deliberately left out: benchmarks' own data (give the file or hub id); log-probs from servers and vLLM, whose dialects
differ too much; judging by another model (a reward function may do that).

    python scripts/evaluation.py --task math --data assets/data/arithmetic_eval.jsonl              # CPU, in seconds
    python scripts/evaluation.py --model Qwen/Qwen2.5-0.5B-Instruct --model runs/qwen/final \\
        --task math --data openai/gsm8k:main@test --output_dir runs/before_after              # one GPU, both compared
    python scripts/evaluation.py --environment examples/environments.py:SecondAttempt --max_turns 2 \\
        --max_new_tokens 32 --data assets/data/arithmetic_eval.jsonl
    torchrun --nproc_per_node 4 -- scripts/evaluation.py --model … --task code --data HumanEval.jsonl.gz --n 20

Exit codes: 0 done, 2 bad input, 3 a grader or an environment failed.
"""

ROOMS = ("settings", "rows", "tasks", "scored_tasks", "requests", "own_tasks", "local_model", "models", "others", "run")
