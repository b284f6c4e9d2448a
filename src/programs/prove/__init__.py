#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "numpy", "peft", "pyarrow", "datasets"]
# ///
"""Verify a run, an evaluation, a reward, an environment, losses, a trainer or a verl job: JSON and sentences.

    a run's folder     of ppo_train, grpo_train, on_policy_distillation, warm_start, a page of templates/: the saved
                       model loads in transformers (an adapter through peft); its weights moved; held-out accuracy
                       before and after, by transformers' own generate and the run's reward, greedy and sampled once;
                       held-out prompts that also occur in training, or swap the numbers of one (a+b, b+a); whether
                       the accuracies in metrics.jsonl are those of its models; KL to its start or teacher
    results.json       of evaluation.py, or its folder: metrics recounted from the samples' scores; scores of math
                       and reward: computed again from the completions; intervals and McNemar's p recomputed;
                       unfinished texts that count as right; two rows to read
    FILE.py:function   with --data: what reward_preflight.py finds, its flags after --; which contracts it fits (TRL,
                       verl, ours); whether it runs an answer as Python; if rows have tests (asserts, input and
                       output), whether hostile programs get paid, read or change anything, or end the reward
    FILE.py:Class      an environment, with --data: what reward_preflight.py finds, and whether the same answers have
                       the same returns in ppo_train.py, grpo_train.py, evaluation.py and verl_train.py's agent loop
    FILE.py, a folder  losses and advantages, functions or methods, recognised by their names and parameters, or named
                       by --as (--set: the numbers inside them): value and gradient against float64 loops over single
                       tokens, with padding, a hole, an empty row, large ratios, equal scores; a second call; of GAE
                       the bootstrap and the returns, of losses an entropy term and the sampler's log-probs. It says
                       which form of inputs fits, such as [T, B], lists what it does not recognise, and never guesses
    TRAINER.py         one with the functions of selfcheck.py --contract: its checks; the trainer's flags after --
    a verl job         settings of verl_train.py (.yaml) or overrides (.txt): runs verl_train.py --check in the --python
                       that has verl: composes them, reads rows by verl's data set, tries the job's copy of the reward

    shares    Wilson 1927 interval, the roots of (p - k/n)^2 = z^2 p (1 - p) / n
    paired    exact two-sided McNemar test: min(1, 2 P(X <= min(b, c))), X binomial(b + c, 1/2)
    KL        mean over sampled tokens of sum_v p(v) (log p(v) - log q(v)), over the whole vocabulary

stdout has one JSON object; stderr has at most five sentences and the findings. A run is measured on as many held-out
rows, drawn with a fixed seed, as fit into --minutes; the sentences say how many. Hostile programs harm only their own
files and processes, even if nothing contains them.

Deliberately left out: bootstrap intervals, losses that choose tokens within a minibatch, and the trainers around an
environment's conversations: its answers are scripted, and neither TRL nor verl starts.

    python scripts/prove.py runs/x
    python scripts/prove.py runs/evaluation/results.json
    python scripts/prove.py my_rewards.py:says --data train.jsonl
    python scripts/prove.py my_environment.py:Task --data train.jsonl
    python scripts/prove.py my_losses.py --as my_loss=grpo,my_baseline=rloo
    python scripts/prove.py my_ppo.py --minutes 3 -- --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl
    python scripts/prove.py my.yaml --python .venv-verl/bin/python

Exit codes: 0 nothing was found against it, 1 something was, 2 bad input. `proved` in the JSON is also false if
the most important figure could not be measured.
"""

ROOMS = (
    "proof",
    "exact_figures",
    "run_proof",
    "graded_again",
    "evaluation_proof",
    "attack_proof",
    "reward_proof",
    "environment_proof",
    "trainer_proof",
    "formulas",
    "recognition",
    "function_calls",
    "function_faults",
    "function_checks",
    "function_proof",
    "command",
)
