#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.23,<6", "numpy", "peft", "pyarrow", "datasets"]
# ///
"""Prove a run, an evaluation or a reward by other code than its own: figures as JSON, and five sentences to quote.

    a run's folder     of ppo_train, grpo_train, on_policy_distillation, warm_start, a page of templates/: the saved
                       model loads in transformers (an adapter through peft); its weights moved; held-out accuracy
                       before and after by transformers' own generate and the run's reward, greedy and sampled once;
                       held-out prompts that also train; KL of the saved model to its start, or to its teacher
    results.json       of evaluation.py, or its folder: metrics recounted from the samples' scores; intervals, McNemar's
                       p recomputed; unfinished texts apart; two rows to read
    FILE.py:function   with --data: reward_preflight.py tries it on your rows (gold, empty, nonsense; twice, in another
                       order, alone); the forms of TRL, verl and this bundle that it has; time and memory a completion

    shares    Wilson 1927 interval, the roots of (p - k/n)^2 = z^2 p (1 - p) / n
    paired    exact two-sided McNemar test: min(1, 2 P(X <= min(b, c))), X binomial(b + c, 1/2)
    KL        mean over sampled tokens of sum_v p(v) (log p(v) - log q(v)), over the whole vocabulary

stdout has one JSON object, stderr the sentences and what was found against the thing. A run is measured on as many
held-out rows, drawn with a fixed seed, as fit into --minutes; the sentences say how many.

Deliberately left out: conversations with an environment (evaluation.py plays them), bootstrap intervals, trainers
(selfcheck.py checks them), verl jobs (verl_train.py --check).

    python scripts/prove.py runs/x
    python scripts/prove.py runs/evaluation/results.json
    python scripts/prove.py my_rewards.py:says --data train.jsonl

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
    "trainer_proof",
    "job_proof",
    "formulas",
    "recognition",
    "function_calls",
    "function_proof",
    "command",
)
