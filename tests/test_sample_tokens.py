"""What samples.jsonl says of tokens: text, log-probs, advantages, also where a character has several tokens."""

import json

import pytest
import torch
from conftest import TINY_LM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from parts.networks.batches import collate
from parts.running.pictures import piece_lengths, token_figures
from parts.running.progress import LOGGED, RunLog, note_advantages
from programs.ppo_train.settings import Config


@pytest.fixture(scope="module")
def by_bytes():
    """The embedded model's byte-level tokenizer."""
    return AutoTokenizer.from_pretrained(TINY_LM)


@pytest.fixture(scope="module")
def by_words():
    """A tokenizer in Llama's old form, whose decoder drops the space at the beginning of a text."""
    words = [("<unk>", 0.0), ("▁one", -1.0), ("▁two", -1.0), ("▁", -2.0), ("s", -2.0)]
    tokenizer = Tokenizer(models.Unigram(words, unk_id=0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def pieces(tokenizer, ids) -> list[str]:
    """The text of ids, cut where their lengths say."""
    text, found, at = tokenizer.decode(ids), [], 0
    for length in piece_lengths(tokenizer, ids):
        found.append(text[at : at + length])
        at += length
    assert at == len(text) and len(found) == len(ids)
    return found


def test_tokens_of_a_character_give_it_with_the_last_one(by_bytes):
    ids = by_bytes("aé😀日b", add_special_tokens=False).input_ids
    assert len(ids) == 1 + 2 + 4 + 3 + 1  # UTF-8
    assert pieces(by_bytes, ids) == ["a", "", "é", "", "", "", "😀", "", "", "日", "b"]


def test_a_character_that_is_never_completed_is_the_mark_that_decoding_gives(by_bytes):
    ids = by_bytes("😀", add_special_tokens=False).input_ids
    assert pieces(by_bytes, ids[:2]) == ["", "\ufffd"]
    letters = by_bytes("ab", add_special_tokens=False).input_ids
    assert pieces(by_bytes, [*ids[:2], *letters]) == ["", "", "\ufffda", "b"]
    assert piece_lengths(by_bytes, []) == [] and pieces(by_bytes, [by_bytes.eos_token_id]) == [by_bytes.eos_token]


def test_spaces_stand_where_the_whole_text_has_them(by_words):
    ids = by_words("one two twos", add_special_tokens=False).input_ids
    assert pieces(by_words, ids) == ["one", " two", " two", "s"]


def sample(ids: list[int], prompt: int = 1, **more) -> dict:
    """A sample with log-probs -0.5, -1.5, …"""
    return {
        "prompt_ids": [5] * prompt,
        "response_ids": ids,
        "rollout_logprobs": [-i - 0.5 for i in range(len(ids))],
    } | more


def test_advantages_are_those_of_the_response_columns():
    samples = [sample([7] * n, prompt) for n, prompt in ((2, 4), (5, 1), (3, 2))]
    batch = collate(samples, 0, torch.device("cpu"))
    rows, width = batch["input_ids"].shape
    batch["advantages"] = torch.arange(rows * width).reshape(rows, width).float() * batch["response_mask"]
    note_advantages(samples, batch)
    # 4 columns of prompts, 5 of responses, 9 in a row
    assert [s["advantages"] for s in samples] == [[4.0, 5.0], [13.0, 14.0, 15.0, 16.0, 17.0], [22.0, 23.0, 24.0]]
    note_advantages(fresh := [sample([7])], {})
    assert "advantages" not in fresh[0]


def test_one_advantage_where_all_are_equal(by_bytes):
    ids = by_bytes("ab", add_special_tokens=False).input_ids
    equal = token_figures(by_bytes, sample(ids, advantages=[0.123456, 0.123456]))
    assert equal == {"token_lengths": [1, 1], "logprobs": [-0.5, -1.5], "advantage": 0.123}
    assert token_figures(by_bytes, sample(ids, advantages=[1.0, -2.0]))["advantages"] == [1.0, -2.0]


def test_of_a_conversation_the_sampled_tokens_of_all_answers(by_bytes):
    ids = by_bytes("ab--é", add_special_tokens=False).input_ids
    talk = sample(ids, turn_ends=[2, 6], answer_lengths=[2, 2], advantages=[1.0, 1.0, 0.0, 0.0, -1.0, -1.0])
    found = token_figures(by_bytes, talk)
    assert found["token_lengths"] == [1, 1, 0, 1] and found["logprobs"] == [-0.5, -1.5, -4.5, -5.5]
    assert found["advantages"] == [1.0, 1.0, -1.0, -1.0]


@pytest.mark.parametrize("asked", [True, False])
def test_the_log_has_them_where_they_are_asked_for(by_bytes, tmp_path, asked):
    log = RunLog(Config(output_dir=str(tmp_path)), -1, 1, [], by_bytes if asked else None)
    ids = by_bytes("ab", add_special_tokens=False).input_ids
    log.samples(1, "train", [sample(ids, completion="ab", advantages=[1.0, 1.0])] * (LOGGED + 1))
    log.close()
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == LOGGED and ("token_lengths" in rows[0], "advantage" in rows[0]) == (asked, asked)
