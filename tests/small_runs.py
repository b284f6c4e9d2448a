"""What the tests of the trainers' command lines share: a small task, its rewards, the weights that a run leaves."""

from pathlib import Path

import torch
from conftest import EVAL_DATA, TINY_LM, TRAIN_DATA, read_lines, write_lines
from safetensors.torch import load_file

REWARDS = '''
import asyncio
import os
import random

import numpy as np

calls = 0


def text_of(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def digits(prompts, completions, answer):
    return [sum(ch.isdigit() for ch in text_of(c)) / 10 for c in completions]


def noisy(prompts, completions, **kwargs):
    """Draws from the global generators, and signals its own process at a given call."""
    global calls
    calls += 1
    if os.environ.get("SIGNAL_AT") == str(calls):
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    return [random.random() + np.random.random() - len(text_of(c)) / 10 for c in completions]


def fails(prompts, completions, answer, **kwargs):
    global calls
    calls += 1
    if calls > 2 and not os.environ.get("MENDED"):
        raise KeyError("no such thing")
    return [len(text_of(c)) / 10 for c in completions]


def none(prompts, completions, **kwargs):
    return [None] * len(completions)


async def slow(prompts, completions, answer, trainer_state, log_metric, **kwargs):
    await asyncio.sleep(0.01)
    log_metric("steps_seen", trainer_state.global_step)
    return [len(text_of(c)) / 10 for c in completions]


class Adaptive:
    """Its weight follows the success rate of what it has seen."""

    __name__ = "adaptive"

    def __init__(self):
        self.rate = 0.0

    def __call__(self, prompts, completions, **kwargs):
        right = [float(len(text_of(c)) > 3) for c in completions]
        self.rate = 0.5 * self.rate + 0.5 * sum(right) / len(right)
        return [r * (1 - self.rate) + random.random() / 100 for r in right]

    def state_dict(self):
        return {"rate": self.rate}

    def load_state_dict(self, state):
        self.rate = state["rate"]


adaptive = Adaptive()
'''


def small_task(folder: Path) -> Path:
    """A folder with 40 training rows, 8 held-out rows and some reward functions."""
    for name, source, count in (("train", TRAIN_DATA, 40), ("eval", EVAL_DATA, 8)):
        write_lines(folder / f"{name}.jsonl", read_lines(source)[:count])
    (folder / "rewards.py").write_text(REWARDS)
    return folder


def bf16_model(folder: Path) -> Path:
    """The embedded model with its weights saved in bfloat16."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder)
    return folder


def weights(folder: Path, name: str = "final/model.safetensors") -> dict:
    return load_file(folder / name)


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
