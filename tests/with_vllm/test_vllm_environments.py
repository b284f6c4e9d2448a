"""Conversations of several turns that the real vLLM samples: ids, mask and log-probs."""

import numpy as np
import pytest
import torch
from conftest import ASSETS, EVAL_DATA, ROOT, TINY_LM
from vllm_helpers import with_wider_heads

from parts.data.prompts import load_splits
from parts.environments.play_setup import load_scored, make_play_setup, playable_rows
from parts.sampling.sampling import HFEngine
from parts.sampling.sampling_vllm import VllmEngine
from programs.ppo_train.models import load_models
from programs.ppo_train.rollout import converse
from programs.ppo_train.settings import Config

EXAMPLES = ROOT / "examples" / "environments.py"
SIZES = {"max_prompt_tokens": 64, "max_new_tokens": 24, "max_turns": 3, "temperature": 1.3, "precision": "fp32"}
SIZES |= {"max_conversation_tokens": 256}
KINDS = {  # replies, and tools
    "SecondAttempt": (TINY_LM, str(EVAL_DATA)),
    "Calculator": (ASSETS / "tiny_tools_lm", str(ASSETS / "data" / "products_eval.jsonl")),
}


class Played:
    """Conversations of 16 rows with an environment, and what the engine was asked and said in each turn."""

    def __init__(self, name: str, model: str):
        chosen = {**SIZES, "model": model, "data": KINDS[name][1], "environment": f"{EXAMPLES}:{name}"}
        self.config = Config(rollout_engine="vllm", algorithm="grpo", group_size=4, batch_size=16, **chosen)
        torch.manual_seed(0)
        self.models = load_models(self.config, torch.device("cpu"), None)
        environments, self.reward = load_scored(self.config)
        self.setup = make_play_setup(self.config, self.models.tokenizer, self.models.eos_ids, environments)
        rows = load_splits(self.config, self.models.tokenizer)[0][:4]
        self.rows = [row for row in playable_rows(self.config, self.setup, rows, "rows") for _ in range(4)]
        self.engine, self.turns = VllmEngine(self.config, self.models), []
        self.engine.sync(0)
        self.noise = np.random.default_rng(0).random((16, 3))
        self.samples = self.converse(self.engine, self.noise)

    def converse(self, engine, noise) -> list[dict]:
        """Samples of conversations; what the engine said is noted."""
        generate = engine.generate

        def noted(prompts, draws):
            outputs = generate(prompts, draws)
            self.turns.append((prompts, draws, outputs))
            return outputs

        self.turns, engine.generate = [], noted
        try:
            return converse(self.setup, self.config, self.models, engine, self.reward, self.rows, noise, {})
        finally:
            del engine.generate


@pytest.fixture(scope="module", params=KINDS)
def played(request, tmp_path_factory):
    model = KINDS[request.param][0]
    if request.param == "Calculator":  # heads of 16, which vLLM's kernels on a CPU do not take
        model = with_wider_heads(model, tmp_path_factory.mktemp("wide"))
    return Played(request.param, str(model))


def test_what_was_sampled_stands_in_the_conversation_as_sampled(played):
    """Ids, mask and log-probs; each answer stands behind the very ids that vLLM was asked to go on from."""
    spans = [sample["talk"].spans for sample in played.samples]
    assert len(played.turns) >= 2 and sum(len(own) > 1 for own in spans) >= 3
    for turn, (prompts, draws, outputs) in enumerate(played.turns):
        still_open = [i for i, own in enumerate(spans) if len(own) > turn]
        assert draws[:, 0].tolist() == played.noise[still_open, turn].tolist(), "each turn has draws of its own"
        for i, prompt, (ids, logprobs) in zip(still_open, prompts, outputs, strict=True):
            (start, end), sample = spans[i][turn], played.samples[i]
            assert prompt == sample["prompt_ids"] + sample["response_ids"][:start]
            assert ids == sample["response_ids"][start:end] and set(sample["response_mask"][start:end]) == {1}
            assert logprobs == sample["rollout_logprobs"][start:end]
    for own, sample in zip(spans, played.samples, strict=True):
        assert sum(sample["response_mask"]) == sum(end - start for start, end in own)
        between = [p for p, m in zip(sample["rollout_logprobs"], sample["response_mask"], strict=True) if not m]
        assert set(between) <= {0.0} and len(between) >= 3 * (len(own) - 1)


def test_logprobs_are_the_trainers(played):
    """Of every sampled token, against a plain forward pass over the whole conversation."""
    for sample in played.samples:
        ids, start = sample["prompt_ids"] + sample["response_ids"], len(sample["prompt_ids"])
        with torch.no_grad():
            logits = played.models.policy(input_ids=torch.tensor([ids])).logits[0, start - 1 : -1].double()
        every = torch.log_softmax(logits / played.config.temperature, -1)
        mask = torch.tensor(sample["response_mask"]).bool()
        expected = every[range(len(every)), sample["response_ids"]][mask]
        got = torch.tensor(sample["rollout_logprobs"], dtype=torch.float64)[mask]
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_greedy_conversations_are_the_policys_own(played):
    ours = played.converse(HFEngine(played.config, played.models), None)
    theirs = played.converse(played.engine, None)
    assert [s["response_ids"] for s in theirs] == [s["response_ids"] for s in ours]
    assert [s["messages"] for s in theirs] == [s["messages"] for s in ours]
