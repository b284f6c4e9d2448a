"""generation_config.json is for serving: no program samples or evaluates by it, and what a run saves keeps it."""

import functools
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from conftest import EVAL_DATA, FEW, TINY_LM, load_script, read_lines, without_clock
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from parts.foundation.messages import UserError
from parts.networks.loading import sample_plainly
from parts.networks.tokenizers import end_and_pad_ids

ENDS = [2]
FIELDS = {  # each alone changes what is written, or raises
    "repetition_penalty": 5.0,
    "min_new_tokens": 22,
    "min_length": 30,
    "no_repeat_ngram_size": 1,
    "bad_words_ids": [[i] for i in range(20, 30)],
    "suppress_tokens": [*range(20, 30)],
    "begin_suppress_tokens": [*range(4, 80)],
    "sequence_bias": [[[i], -50.0] for i in range(20, 30)],
    "exponential_decay_length_penalty": [1, 50.0],
    "stop_strings": ["1"],
    "max_time": 1e-9,
    "guidance_scale": 9.0,
    "return_dict_in_generate": True,
}
HARSH = {"repetition_penalty": 5.0, "min_new_tokens": 12, "stop_strings": ["1"], "min_p": 0.9, "num_beams": 2}


@functools.cache
def tiny():
    return AutoModelForCausalLM.from_pretrained(TINY_LM), AutoTokenizer.from_pretrained(TINY_LM)


def answers(**fields) -> list:
    """What the embedded model's own `generate` writes."""
    model, tokenizer = tiny()
    rows = [row["prompt"] for row in read_lines(EVAL_DATA)[:2]]
    ids = [tokenizer.apply_chat_template(row, add_generation_prompt=True)["input_ids"] for row in rows]
    width = max(map(len, ids))
    batch = {
        "input_ids": torch.tensor([[0] * (width - len(x)) + x for x in ids]),
        "attention_mask": torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in ids]),
    }
    model.generation_config = GenerationConfig(eos_token_id=ENDS, pad_token_id=0, **fields)
    if fields:
        sample_plainly(model, ENDS, 0)
    return model.generate(**batch, max_new_tokens=24, do_sample=False).tolist()


def test_no_setting_of_a_checkpoint_changes_what_is_sampled():
    assert answers(**FIELDS) == answers()


@pytest.fixture(scope="module")
def harsh(tmp_path_factory):
    """A copy of the embedded model whose generation settings spoil what is sampled by them."""
    folder = tmp_path_factory.mktemp("harsh") / "model"
    shutil.copytree(TINY_LM, folder)
    own = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(own | HARSH))
    return folder


def run_of(folder, script, model, *flags):
    """Metrics, samples and the run's folder of two steps."""
    out = folder / "run"
    data = [*FEW, "--plot_every=0", "--eval_every=0"]
    assert load_script(script).main([f"--model={model}", f"--output_dir={out}", "--steps=1", *data, *flags]) == 0
    return without_clock(out), (out / "samples.jsonl").read_text(), out


RUNS = {
    "grpo_train": "--per_device_train_batch_size=8 --num_generations=4 --max_completion_length=24 --save_steps=1",
    "ppo_train": "--algorithm=grpo --batch_size=16 --group_size=4 --max_new_tokens=24",
    "on_policy_distillation": f"--teacher={TINY_LM} --batch_size=8 --max_new_tokens=24",
}


@pytest.mark.long
@pytest.mark.parametrize("script", RUNS)
def test_rollouts_and_held_out_figures_are_the_models_own(harsh, tmp_path, script):
    flags = [*RUNS[script].split(), "--sample_every=1"]
    plain, spoilt = (run_of(tmp_path / m.name, script, m, *flags) for m in (TINY_LM, harsh))
    assert spoilt[:2] == plain[:2]
    for folder in ["final", "checkpoints/checkpoint-1"] if script == "grpo_train" else ["final"]:
        own, saved = (GenerationConfig.from_pretrained(x).to_dict() for x in (harsh, spoilt[2] / folder))
        assert own == saved


@pytest.mark.parametrize(
    ("ends", "tokenizer_eos", "expected"),
    [([2, 300], None, ([2], 2)), (5000, 2, ([2], 2)), (5000, None, None), (-1, None, None), (None, None, None)],
)
def test_an_end_token_that_the_model_cannot_write_ends_nothing(ends, tokenizer_eos, expected):
    embeddings, config = torch.nn.Embedding(262, 1), SimpleNamespace(model="m")
    settings = SimpleNamespace(eos_token_id=ends)
    network = SimpleNamespace(generation_config=settings, get_input_embeddings=lambda: embeddings)
    tokenizer = SimpleNamespace(eos_token_id=tokenizer_eos, pad_token_id=None)
    if expected:
        assert end_and_pad_ids(config, network, tokenizer) == expected
    else:
        wrong = " without an end token" if ends is None else rf", whose end tokens \[{ends}\] have no embedding"
        with pytest.raises(UserError, match=f"got model 'm'{wrong}; expected an id below 262; try setting eos_token"):
            end_and_pad_ids(config, network, tokenizer)
