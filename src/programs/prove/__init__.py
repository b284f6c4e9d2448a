#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "numpy", "peft", "pyarrow", "pyyaml", "datasets"]
# ///
"""Verify a run, an evaluation, a reward, an environment, losses, a trainer or a verl job: JSON and sentences.

    a run's folder     of ppo_train, grpo_train, on_policy_distillation, warm_start or a page of templates/: whether the
                       saved model loads in transformers (an adapter through peft) and differs from the start;
                       held-out accuracy before and after, by transformers' own generate and the run's reward,
                       greedy and sampled once; whether metrics.jsonl has the same accuracies; held-out prompts that
                       occur in training, or do with swapped numbers (a+b, b+a); KL to the start model or teacher.
                       For other trainers, such as TRL, settings, adapter, model card or the script that names
                       this folder as its output_dir name the start, data and reward; --data has held-out rows
    results.json       of evaluation.py, or its folder: recomputes metrics from scores, scores of math from completions,
                       intervals, McNemar's p; counts unfinished texts graded as right; quotes two rows
    scored samples     of lm-evaluation-harness, lighteval, EvalPlus, Inspect or others, in files or a folder: the
                       same against figures stated there; of two models, whether their rows are pairs
    FILE.py:function   a reward, with --data: the findings of reward_preflight.py, whose flags follow --; the contracts
                       it fits (TRL, verl, ours); whether it runs an answer as Python; for rows with tests, whether
                       hostile programs get paid, read or change anything, or end the reward
    FILE.py:Class      an environment, with --data: what scripted answers are paid (gold, silence, nonsense, several
                       answers, meaningless calls), in a process of its own, and whether they have the same returns
                       alone, side by side, and in ppo_train.py, grpo_train.py, evaluation.py and verl_train.py's loop
    FILE.py, a folder  losses and advantages, recognised by names and parameters, or named by --as: value and gradient
                       against float64 loops over single tokens, with padding, a hole in the mask, an empty row, large
                       ratios and equal scores; later calls; GAE's returns; a loss's entropy term and use of the
                       sampler's log-probs. It reports which form of inputs fits, and lists what it does not recognise
    TRAINER.py         one with the functions of selfcheck.py --contract: its checks; the trainer's flags follow --
    a verl job         settings of verl_train.py (.yaml) or overrides (.txt): runs verl_train.py --check in the --python
                       that has verl: composes them, reads rows by verl's data set, tries the job's reward on them

    shares    Wilson 1927 interval, the roots of (p - k/n)^2 = z^2 p (1 - p) / n
    paired    exact two-sided McNemar test: min(1, 2 P(X <= min(b, c))), X binomial(b + c, 1/2)
    KL        mean over sampled tokens of sum_v p(v) (log p(v) - log q(v)), over the whole vocabulary

stdout has one JSON object; stderr has at most five sentences and the findings. As many held-out rows of a run are
measured, drawn with a fixed seed, as fit into --minutes; the sentences say how many. Hostile programs can harm only
their own files and processes, even where nothing contains them.

Deliberately left out: bootstrap intervals; losses that choose tokens within a minibatch; real play of an environment:
its answers are scripted, and neither TRL nor verl starts.

    python scripts/prove.py runs/x
    python scripts/prove.py my_rewards.py:says --data train.jsonl
    python scripts/prove.py my_losses.py --as my_loss=grpo,my_baseline=rloo
    python scripts/prove.py my_ppo.py --minutes 3 -- --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl
    python scripts/prove.py my.yaml --python .venv-verl/bin/python

Exit codes: 0 no finding, 1 a finding, 2 bad input. `proved` in the JSON is also false if the most important figure
could not be measured.
"""

ROOMS = (
    "proof",
    "exact_figures",
    "run_proof",
    "other_evaluations",
    "graded_again",
    "evaluation_proof",
    "reward_proof",
    "four_places",
    "environment_proof",
    "formulas",
    "recognition",
    "function_calls",
    "function_checks",
    "function_proof",
    "command",
)
