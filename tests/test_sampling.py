"""Sampling with the policy: what a cache saves changes no completion.

What is expected comes from the network alone: forward passes of whole texts without pads or a cache, one row at a time.
"""

import dataclasses

import numpy as np
import pytest
import torch

from parts.networks import key_cache
from parts.sampling import sampling
from parts.sampling.sampling import HFEngine, TurnSampler, turn_sampler
from programs.ppo_train.models import load_models
from programs.ppo_train.settings import Config

LIMIT = 14
BETWEEN = [[5], [61, 62, 63, 64, 65], [*range(60, 85)], [71, 72]]  # what is said to conversations 0, 1, … between turns
STARTS = [[40 + (7 * i + j) % 150 for j in range(2 + 3 * (i % 4))] for i in range(4)]
PROMPTS = [STARTS[i // 2] for i in range(8)]  # each twice


@pytest.fixture(scope="module")
def engines(saved):
    """engine(family, settings) of a random model, loaded once; one token in seven ends an answer."""
    made = {}

    def engine(family: str, **settings) -> HFEngine:
        config = Config(algorithm="grpo", kl_coef=0.0, max_new_tokens=LIMIT, batch_size=8, precision="fp32", **settings)
        if family not in made:
            config.model = saved(family)
            made[family] = HFEngine(config, load_models(config, torch.device("cpu")))
        loaded, copy = made[family], HFEngine.__new__(HFEngine)
        copy.__dict__ = {**vars(loaded), "config": config}
        return copy

    return engine


@pytest.fixture
def read(monkeypatch):
    """The shapes of token ids that have gone through the network with a cache."""
    shapes, real = [], sampling.cached_states
    monkeypatch.setattr(
        sampling, "cached_states", lambda m, ids, *rest: shapes.append(ids.shape) or real(m, ids, *rest)
    )
    return shapes


def noise(seed: int, rows: int = len(PROMPTS)):
    return np.random.default_rng(seed).random((rows, LIMIT))


def check(engine, prompts, found, draws) -> None:
    """Each token is what its draw picks by a forward pass of the whole text, up to the first that ends it."""
    for prompt, (ids, logprobs), own in zip(prompts, found, draws, strict=True):
        with torch.no_grad():
            logits = engine.models.policy(input_ids=torch.tensor([prompt + ids]), use_cache=False).logits[0]
        dist = torch.log_softmax(logits[len(prompt) - 1 : -1].double(), -1)
        cdf = dist.exp().cumsum(-1)
        picked = (cdf <= torch.tensor(own[: len(ids), None]) * cdf[:, -1:]).sum(-1)
        assert ids == picked.tolist()
        ends = [token in engine.models.eos_ids for token in ids]
        assert not any(ends[:-1]) and (ends[-1] or len(ids) == LIMIT)
        assert logprobs == pytest.approx(dist.gather(-1, picked[:, None])[:, 0].tolist(), abs=1e-5)


def played(engine, generate, turns: int = 3):
    """Conversations of PROMPTS, every second of which ends after its second turn; checked turn by turn."""
    texts, numbers = list(PROMPTS), list(range(len(PROMPTS)))
    for turn in range(turns):
        draws = noise(turn)[numbers]
        found = generate([texts[n] for n in numbers], draws, numbers)
        check(engine, [texts[n] for n in numbers], found, draws)
        for number, (ids, _) in zip(numbers, found, strict=True):
            texts[number] = texts[number] + ids + BETWEEN[number % len(BETWEEN)] + [90]
        numbers = [n for n in reversed(numbers) if turn == 0 or n % 2]
    return texts


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gpt_neox"])
def test_turns_gone_on_with_are_those_of_the_whole_text(engines, family, read):
    engine = engines(family)
    assert engine.decoding.plain
    read.clear()
    played(engine, turn_sampler(engine))
    assert read[0][0] == 4, "equal prompts are read once"
    assert [rows for rows, _ in read[1:]] == [2, 6, 4], "only what is new, long texts apart"
    assert read[1][1] <= 27 and max(width for _, width in read[2:]) <= 7


def test_rooms_grow_rows_leave_and_nothing_changes(engines, monkeypatch):
    engine = engines("llama")
    expected = engine.generate(PROMPTS, noise(5))
    monkeypatch.setattr(key_cache, "BLOCK", 3)
    found = engine.generate(PROMPTS, noise(5))
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    check(engine, PROMPTS, found, noise(5))
    assert len({len(ids) for ids, _ in found}) > 3, "rows end at different times"


def test_a_device_is_waited_for_every_few_tokens_and_nothing_changes(engines, monkeypatch):
    engine = engines("llama")
    monkeypatch.setattr(sampling, "steps_between_looks", lambda device: 4)
    check(engine, PROMPTS, engine.generate(PROMPTS, noise(5)), noise(5))
    played(engine, turn_sampler(engine))


def test_what_does_not_fit_one_batch_and_what_is_no_continuation_is_read_whole(engines, capsys):
    engine = engines("llama", rollout_batch_size=5)
    played(engine, turn_sampler(engine))
    sampler = TurnSampler(engine)
    for _ in range(2):
        sampler.generate(PROMPTS, noise(0), list(range(8)))
        assert not sampler.kept.ids and not sampler.kept.parts
    assert capsys.readouterr().err.count("note: each batch of a turn reads") == 1
    sampler.generate(PROMPTS[:4], noise(0)[:4], [0, 1, 2, 3])
    assert {*sampler.kept.ids} == {0, 1, 2, 3}
    others = [[9, *prompt, 8] for prompt in PROMPTS[:4]]
    check(engine, others, sampler.generate(others, noise(1)[:4], [0, 1, 2, 3]), noise(1)[:4])


GROUPS = [STARTS[i] for i in (2, 0, 2, 2, 1, 0, 3, 2)]  # of 4, 2, 1 and 1 rows, each of another length


@pytest.fixture
def held(monkeypatch):
    """[(rows, prompts), …] of caches that hold prompts once, as they are made and as rows leave; none is too small."""
    found, real = [], key_cache.Groups.__init__

    def noted(self, which, pairs, mask):
        real(self, which, pairs, mask)
        found.append((len(which), len(pairs[0][0])))

    monkeypatch.setattr(key_cache, "WORTH_ON_CPU", 0)
    monkeypatch.setattr(key_cache.Groups, "__init__", noted)
    return found


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])  # qwen3 with two query heads for a key's
def test_a_prompt_is_held_once_for_its_rows(engines, family, held, monkeypatch):
    engine = engines(family)
    assert engine.decoding.groups
    held.clear()
    check(engine, GROUPS, engine.generate(GROUPS, noise(5)), noise(5))
    assert held[0] == (8, 4) and len(held) > 2 and held == sorted(held, reverse=True)
    assert held[-1][1] < 4, "a prompt whose rows have ended leaves, too"
    same = [STARTS[1]] * 5 + [STARTS[1][::-1]] * 3  # no pads
    check(engine, same, engine.generate(same, noise(6)), noise(6))
    greedy = engine.generate(GROUPS, None)
    monkeypatch.setattr(key_cache, "WORTH_ON_CPU", 2**40)
    assert [ids for ids, _ in greedy] == [ids for ids, _ in engine.generate(GROUPS, None)]


@pytest.mark.long
def test_where_a_prompt_is_held_once(engines, held, monkeypatch, saved):
    config = engines("llama").config
    for settings in ({"share_prompts": False}, {"attn_implementation": "eager"}):
        own = dataclasses.replace(config, **settings)
        assert not HFEngine(own, load_models(own, torch.device("cpu"))).decoding.groups
    windowed = dataclasses.replace(config, model=saved("mistral"))
    assert not HFEngine(windowed, load_models(windowed, torch.device("cpu"))).decoding.groups
    for settings in ({"lora_rank": 2}, {"precision": "bf16"}):
        own = dataclasses.replace(config, **settings)
        engine = HFEngine(own, load_models(own, torch.device("cpu")))
        held.clear()
        found = engine.generate(GROUPS, noise(5))
        assert engine.decoding.groups and held and all(ids for ids, _ in found)
        if "lora_rank" in settings:
            check(engine, GROUPS, found, noise(5))
    real = key_cache.Groups.of_rows  # a fault that only rows which leave would show
    monkeypatch.setattr(key_cache.Groups, "of_rows", lambda self, chosen: real(self, chosen.flip(0)))
    assert not HFEngine(config, load_models(config, torch.device("cpu"))).decoding.groups


@pytest.mark.long
@pytest.mark.parametrize("family", ["mistral", "gemma3", "falcon_h1"])
def test_caches_that_forget_are_not_gone_on_with(engines, family):
    """Windows and recurrent states: each turn reads the whole text."""
    engine = engines(family)
    assert not engine.decoding.plain
    played(engine, turn_sampler(engine))


def test_a_cache_that_holes_disturb_is_not_gone_on_with(engines, monkeypatch):
    """Where positions count pads too, the probe sees it."""
    engine = engines("llama")
    real = sampling.KeptTexts.cache_of

    def faulty(self, numbers):
        order, cache, mask = real(self, numbers)
        return order, cache, torch.ones_like(mask)

    monkeypatch.setattr(key_cache.KeptTexts, "cache_of", faulty)
    assert not HFEngine(engine.config, engine.models).decoding.plain
