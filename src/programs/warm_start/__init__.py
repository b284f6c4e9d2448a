#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "trl>=1.16,<1.17", "transformers>=5.23,<6", "torch>=2.6", "datasets", "accelerate", "peft", "numpy", "pyyaml",
#   "pyarrow", "tqdm",
# ]
# ///
"""From never right to sometimes right: supervised rounds, on TRL's SFTTrainer, until RL has something to reinforce.

Three sources of solutions:

    (default)      the column `completion` of the data: a string, or one assistant message
    --self         the model's own samples (rejection sampling; STaR, arXiv 2203.14465; expert iteration)
    --teacher M    samples of another model, a folder or hub id, through its own chat template, or behind an
                   OpenAI-compatible server: http://HOST:PORT/v1#MODEL

A solution is kept if the run's own reward passes it: the first --reward gives at least --pass_score, and the end token
comes within --max_new_tokens; a sample also needs full marks from the first reward named …format…, if there is one.
A prompt keeps as many different samples as it had failures, at least one and at most --max_per_prompt: few of the easy
prompts, all of the hard ones. A round samples --prompts_per_round prompts, up to --max_draws times, until --min_prompts
of them have a solution. It then trains the original model on the solutions of all rounds (STaR), for at least
--min_steps, as a model trained on few solutions goes on sampling those. With the data's own solutions a round continues
from the one before. The loss is the mean negative log-likelihood of the completion's tokens, its end token included,

    loss    -mean over t of log p(y_t | x, y_<t),   x = the prompt's ids as the RL trainers make them (checked)

Rounds repeat until samples of held-out prompts, at --temperature, pass at a rate from --pass_low to --pass_high, end
and have the right format, and their entropy has not collapsed; with sampled solutions also until --min_coverage of
the prompts are solved at least once, or a round adds little. Then final/ is written, and the next command printed.
Every file appears whole or not at all: after kill -9, --resume continues and samples nothing twice.

Held-out prompts are never trained on: a prompt that is also held out is refused, even if it differs in case, white
space, Unicode form or system prompt. The rows are compared again before each training.

Deliberately left out: several processes (torchrun), 4-bit weights, several turns, trackers.
final/ of a LoRA run is merged: the trainers load it as any model.

    python scripts/warm_start.py --data solutions.jsonl --eval_data test.jsonl --reward my.py:reward \\
        --model Qwen/Qwen2.5-0.5B --output_dir runs/warm                                     # worked solutions
    python scripts/warm_start.py --self --samples 32 --sample_temperature 1.2 --output_dir runs/self   # CPU, embedded
    python scripts/warm_start.py --teacher Qwen/Qwen2.5-7B-Instruct --chat --data train.jsonl --eval_data test.jsonl \\
        --reward my.py:reward --model Qwen/Qwen2.5-0.5B --lora_rank 16 --output_dir runs/taught

Exit codes: 0 RL can begin, 1 not yet (--resume --rounds N continues), 2 bad input, 3 a reward function failed,
4 training diverged, 5 vLLM has other weights than the policy, 128 + n saved and stopped by signal n.
"""

ROOMS = ("settings", "solutions", "workshop", "samples", "supervise", "run")
