#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "numpy", "peft", "pyarrow", "datasets"]
# ///
"""Verify a run, an evaluation, a reward, an environment, losses, a trainer or a verl job: JSON and sentences.

    a run's folder     of ppo_train, grpo_train, on_policy_distillation, warm_start, a page of templates/: the saved
                       model loads in transformers (an adapter through peft); its weights moved; held-out accuracy
                       before and after by transformers' own generate and the run's reward, greedy and sampled once;
                       held-out prompts that also train; KL of the saved model to its start, or to its teacher
    results.json       of evaluation.py, or its folder: metrics recounted from the samples' scores; intervals, McNemar's
                       p recomputed; unfinished texts that count as right; two rows to read
    FILE.py:function   with --data: reward_preflight.py tries it on your rows (gold, empty, nonsense; twice, in another
                       order, alone); the forms of TRL, verl and this bundle that it has; time and memory a completion;
                       where rows have tests, hostile programs through that very reward: paid, read, changed, ended
    FILE.py:Class      an environment, with --data: what reward_preflight.py finds, and the returns of the same answers
                       where ppo_train.py, grpo_train.py, evaluation.py and verl_train.py's agent loop play them
    FILE.py, a folder  losses and advantages, recognised by the names of functions and parameters, or named by --as
                       (--set: the numbers inside them): value and gradient by float64 loops over single tokens;
                       padding, a hole, an empty row, nan beneath the mask (a note, no finding); groups by id, equal
                       scores. What is not recognised or does not import is listed, never guessed
    TRAINER.py         one with the functions of selfcheck.py --contract: its checks; the trainer's flags behind --
    a verl job         settings of verl_train.py (.yaml) or overrides (.txt): verl_train.py --check in the --python that
                       has verl composes it, reads rows by verl's data set and tries the job's copy of the reward

    shares    Wilson 1927 interval, the roots of (p - k/n)^2 = z^2 p (1 - p) / n
    paired    exact two-sided McNemar test: min(1, 2 P(X <= min(b, c))), X binomial(b + c, 1/2)
    KL        mean over sampled tokens of sum_v p(v) (log p(v) - log q(v)), over the whole vocabulary

stdout has one JSON object, stderr at most five sentences and what was found against the thing. A run is measured on as
many held-out rows, drawn with a fixed seed, as fit into --minutes; the sentences say how many. Hostile programs
harm only their own files and processes, even where nothing contains them.

Deliberately left out: bootstrap intervals, losses that choose tokens among a minibatch, and of an environment the
trainers around its conversations: nothing samples, and no TRL or verl is started.

    python scripts/prove.py runs/x
    python scripts/prove.py runs/evaluation/results.json
    python scripts/prove.py my_rewards.py:says --data train.jsonl
    python scripts/prove.py my_environment.py:Task --data train.jsonl
    python scripts/prove.py my_losses.py --as my_loss=grpo,my_baseline=rloo
    python scripts/prove.py my_ppo.py --minutes 3 -- --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl
    python scripts/prove.py my.yaml --python .venv-verl/bin/python

Exit codes: 0 proved, 1 something was found against it, 2 bad input.
"""

ROOMS = (
    "proof",
    "exact_figures",
    "run_settings",
    "run_proof",
    "evaluation_proof",
    "attack_proof",
    "reward_proof",
    "environment_proof",
    "trainer_proof",
    "formulas",
    "recognition",
    "function_calls",
    "function_proof",
    "command",
)
