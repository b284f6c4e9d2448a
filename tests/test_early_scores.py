"""Rewards called while other completions are sampled: they say what they would have said afterwards."""

import asyncio
import random
import threading

import numpy as np
import pytest
import torch
from conftest import EVAL_DATA

from parts.data.prompts import load_prompts
from parts.foundation.messages import RewardError
from parts.networks.tokenizers import load_tokenizer
from parts.rewards.rewards import CallLimits, Reward
from parts.sampling import sampling
from parts.sampling.rollouts import collect, scores_alone
from parts.sampling.sampling import HFEngine, rng_state, same_rng
from programs.ppo_train.models import load_models
from programs.ppo_train.settings import Config

SIZE, LIMIT = 4, 16


@pytest.fixture(scope="module")
def place():
    """(models, rows in groups of four) of the embedded model and four of its prompts."""
    config = Config(algorithm="grpo", kl_coef=0.0, precision="fp32")
    models = load_models(config, torch.device("cpu"))
    rows = load_prompts(config, load_tokenizer(config), str(EVAL_DATA))[:4]
    del rows[1]["columns"]["answer"]  # a column that only other rows have
    return models, [row for row in rows for _ in range(SIZE)]


class Talk:
    """What a test's rewards were called with, and the order of things."""

    def __init__(self, place, monkeypatch):
        self.models, self.rows = place
        self.calls, self.scored, self.threads = [], threading.Event(), set()
        self.monkeypatch = monkeypatch

    def sample(self, function, how: str, slow=True, wait=False) -> tuple:
        """(samples, timer, the Reward) of a rollout; to `wait` is to sample a second batch only once one is scored."""
        config = Config(algorithm="grpo", kl_coef=0.0, precision="fp32", max_new_tokens=LIMIT, batch_size=16)
        config.score_while_sampling, config.rollout_batch_size = how, 8
        reward = Reward([], CallLimits())
        reward.functions, reward.weights, reward.slow = as_functions(function), {"f": 1.0}, slow
        look, begun = sampling.Ended.look, []

        def patient(ended, *given) -> None:
            look(ended, *given)
            begun.extend([ended] if ended not in begun else [])
            later = wait and len(begun) == 2  # the second batch: the first one has ended
            assert not later or self.scored.wait(30), "sampled on, but nothing was scored"

        self.monkeypatch.setattr(sampling.Ended, "look", patient)
        noise, timer = np.random.default_rng(0).random((16, LIMIT)), {}
        engine = HFEngine(config, self.models)
        return collect(config, self.models, engine, reward, self.rows, noise, timer), timer, reward

    def note(self, *said) -> None:
        self.calls.append(said)
        self.threads.add(threading.current_thread())
        self.scored.set()


def as_functions(function) -> dict:
    """The functions of a Reward of one."""
    from parts.rewards.reward_forms import as_reward

    return {"f": as_reward(function)}


@pytest.fixture
def talk(place, monkeypatch):
    return Talk(place, monkeypatch)


def value(text: str) -> float:
    return sum(map(ord, text)) % 97 / 97


def kinds(talk: Talk) -> dict:
    """Rewards of each form; all score alike."""

    def alone(prompt, completion, answer="none"):
        talk.note(completion, answer)
        return value(completion)

    async def asynchronous(prompt, completion, answer="none"):
        await asyncio.sleep(0)
        talk.note(completion, answer)
        return value(completion)

    def declared(prompts, completions, **kwargs):
        talk.note(*completions)
        return torch.tensor([value(text[0]["content"]) for text in completions], dtype=torch.float64)

    declared.needs_group = False

    def batch(prompts, completions, **kwargs):
        talk.note(*completions)
        return [value(text[0]["content"]) for text in completions]

    return {"alone": alone, "asynchronous": asynchronous, "declared": declared, "batch": batch}


@pytest.mark.parametrize(
    ("name", "how", "early"),
    [
        ("asynchronous", "samples", True),
        ("declared", "samples", True),
        ("batch", "samples", False),
        ("batch", "groups", True),
    ],
)
def test_completions_are_scored_while_others_are_sampled(talk, name, how, early):
    later, _, _ = talk.sample(kinds(talk)[name], "never")
    after = list(talk.calls)
    talk.calls.clear()
    talk.scored.clear()
    samples, timer, reward = talk.sample(kinds(talk)[name], how, wait=early)
    assert samples == later and len({s["score"] for s in samples}) > 4
    assert not reward.in_turn and {*timer} == {"rollout", "reward"}
    if name in ("alone", "asynchronous"):
        assert sorted(map(str, talk.calls)) == sorted(map(str, after)), "the same arguments, defaults too"
    else:
        assert (len(after), len(talk.calls) > 1) == (1, early)
        assert sum(map(len, talk.calls)) == 16 and (how != "groups" or {len(c) % SIZE for c in talk.calls} == {0})
    if name != "asynchronous":
        assert talk.threads == {threading.main_thread()}, "where signals and connections work"


def test_fast_rewards_are_called_after_sampling(talk, monkeypatch):
    monkeypatch.setattr("parts.sampling.rollouts.WORTH_HIDING", 1e9)
    _, _, reward = talk.sample(kinds(talk)["alone"], "samples", slow=False)
    assert not reward.slow and len(talk.calls) == 16
    monkeypatch.setattr("parts.sampling.rollouts.WORTH_HIDING", 0.0)
    assert talk.sample(kinds(talk)["alone"], "samples", slow=False)[2].slow


def test_a_reward_that_draws_gets_what_it_got(talk, capsys):
    def drawing(prompt, completion):
        return random.random() + np.random.random() + torch.rand(()).item()

    found, states = {}, {}
    for way in ("never", "samples"):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        found[way], _, reward = talk.sample(drawing, way)
        states[way] = rng_state()
    assert found["never"] == found["samples"] and same_rng(states["never"], states["samples"])
    assert reward.in_turn and "draws random numbers" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [None, "raises"])
def test_faults_name_the_row_that_they_named(talk, wrong):
    def faulty(prompt, completion):
        bad = value(completion) < 0.5
        if bad and wrong == "raises":
            raise ValueError(f"no: {completion}")
        return wrong if bad else 1.0

    said = {}
    for how in ("never", "samples"):
        try:
            samples, _, _ = talk.sample(faulty, how)
            said[how] = [s["rewards"]["f"] for s in samples]
        except RewardError as error:
            said[how] = str(error)
    assert said["never"] == said["samples"]
    assert (None in said["never"]) if wrong is None else f"reward f, {EVAL_DATA}:" in said["never"]


def test_what_ends_the_run_ends_sampling_too(talk):
    def stop(prompt, completion):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk.sample(stop, "samples")
    assert not [t for t in threading.enumerate() if t.name.startswith("sampler")]


def test_an_error_of_the_sampler_is_raised(talk, monkeypatch):
    monkeypatch.setattr(HFEngine, "step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        talk.sample(kinds(talk)["alone"], "samples")


def test_who_scores_alone():
    class Kind:
        def __init__(self, **own):
            self.__dict__ |= own

    alone, whole, unknown = Kind(needs_group=False), Kind(needs_group=True), Kind()
    state = Kind(needs_group=False, load_state_dict=print)
    assert list(map(scores_alone, (alone, whole, unknown, state))) == [True, False, False, False]
    assert scores_alone(Kind(needs_group=False, functions=[alone]))
    assert not scores_alone(Kind(needs_group=False, functions=[alone, unknown]))
