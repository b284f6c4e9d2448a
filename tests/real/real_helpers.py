"""What the tests of real models share: where the models are, rewards, runs."""

import json
import os
from pathlib import Path

import torch
from conftest import ROOT, run_script
from transformers import AutoModelForCausalLM, AutoTokenizer

MODELS = Path(os.environ.get("REAL_MODELS") or ROOT.parent / "real_models").resolve()
QWEN, GEMMA = MODELS / "qwen2.5-coder-0.5b-instruct", MODELS / "gemma-3-270m"
HUMANEVAL = Path(os.environ.get("HUMANEVAL") or ROOT.parent / "shared/data/HumanEval.jsonl.gz").resolve()
REWARDS = '''
import zlib


def parity(prompts, completions, **kwargs):
    """A coin for each text, the same in every process, so that groups differ whatever is sampled."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [float(zlib.crc32(text.encode()) % 2) for text in texts]


def has_answer(prompts, completions, answer, **kwargs):
    """1 where the answer's digits stand in the text."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [float(str(gold) in text) for text, gold in zip(texts, answer, strict=True)]
'''


def flags_of(data, model, reward="parity") -> list[str]:
    """--model, --data and --reward of a model."""
    return ["--model", model, "--data", data[model], "--reward", f"{data[model].parent / 'rewards.py'}:{reward}"]


def held_out(data, model) -> list:
    """--eval_data of a model."""
    return ["--eval_data", data[model].with_suffix(".eval.jsonl")]


def run(name, *flags, code=0, **kwargs):
    """A script that must end with `code`; what it printed."""
    done = run_script(name, *flags, timeout=3600, **kwargs)
    assert done.returncode == code, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def lines_of(folder) -> list[dict]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def first_layers(model, count: int, folder):
    """Save the model's first `count` layers, with its embeddings, norm, head and tokenizer; returns the folder."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    network.model.layers = network.model.layers[:count]
    network.config.num_hidden_layers = count
    if getattr(network.config, "layer_types", None):
        network.config.layer_types = network.config.layer_types[:count]
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder
