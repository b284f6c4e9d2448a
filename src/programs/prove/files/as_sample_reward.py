"""Wrap a reward of verl's form in this bundle's form, so that reward_preflight.py can call it."""

import asyncio
import inspect
import runpy

FUNCTION = runpy.run_path("{file}")["{name}"]
GOLD = ("ground_truth", "answer", "solution", "gold", "target", "label")  # the first column that a row has counts


def as_sample_reward(prompt, completion, **columns):
    """Call the reward as verl's reward manager does; of a dict, "score" counts."""
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    gold = (columns.get("reward_model") or {}).get("ground_truth")
    if gold is None:
        gold = next((columns[name] for name in GOLD if name in columns), None)
    given = {"data_source": columns.get("data_source", ""), "solution_str": text, "ground_truth": gold}
    given["extra_info"], taken = columns.get("extra_info") or {}, inspect.signature(FUNCTION).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        given = {name: value for name, value in given.items() if name in taken}
    score = FUNCTION(**given)
    score = asyncio.run(score) if inspect.iscoroutine(score) else score
    return score["score"] if isinstance(score, dict) else score
