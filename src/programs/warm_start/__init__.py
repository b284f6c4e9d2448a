#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "trl>=1.16,<1.17", "transformers>=5.23,<6", "torch>=2.6", "datasets", "accelerate", "peft", "numpy", "pyyaml",
#   "pyarrow", "tqdm",
# ]
# ///
"""Warm-start a model that is never right: supervised rounds on TRL's SFTTrainer until RL has something to reinforce.

Three sources of solutions:

    (default)      the column `completion` of the data: a string, or one assistant message
    --self         the model's own samples (rejection sampling; STaR, arXiv 2203.14465; expert iteration)
    --teacher M    samples of another model, a folder or hub id, through its own chat template, or behind an
                   OpenAI-compatible server: http://HOST:PORT/v1#MODEL

A solution is kept if the run's own reward passes it: the first --reward gives at least --pass_score, and the end token
comes within --max_new_tokens. A sample also needs full marks from the first reward named …format…, if there is one.
With samples, each round trains the start model on the solutions of all rounds (STaR); with the data's own solutions it
trains the previous round's policy. The loss is the mean negative log-likelihood of the completion, end token included,

    loss    -mean over t of log p(y_t | x, y_<t),   x = the prompt's ids as the RL trainers make them

Rounds repeat until held-out samples pass at a rate of --pass_low or more, end, and have the right format, and
until their entropy is high enough (references/warm_start.md). Then it writes final/ and prints the next command. After
kill -9, --resume continues and samples nothing twice. Training prompts that are also held out are refused.

Deliberately left out: several processes (torchrun), 4-bit weights, several turns, trackers. LoRA ends merged in final/.

    python scripts/warm_start.py --data solutions.jsonl --eval_data test.jsonl --reward my.py:reward \\
        --model Qwen/Qwen2.5-0.5B --output_dir runs/warm                                     # worked solutions
    python scripts/warm_start.py --self --samples 32 --sample_temperature 1.2 --output_dir runs/self   # CPU, embedded
    python scripts/warm_start.py --teacher Qwen/Qwen2.5-7B-Instruct --chat --data train.jsonl --eval_data test.jsonl \\
        --reward my.py:reward --model Qwen/Qwen2.5-0.5B --lora_rank 16 --output_dir runs/taught

Exit codes: 0 RL can begin, 1 not yet (--resume --rounds N continues), 2 bad input, 3 a reward function failed,
4 training diverged, 5 vLLM has other weights than the policy, 128 + n saved and stopped by signal n.
"""

ROOMS = ("settings", "solutions", "workshop", "samples", "supervise", "run")
