"""--attn_implementation: the kinds of transformers, the same results by each, what is told of one that is absent."""

import pytest
import torch
import transformers

from parts.foundation.messages import UserError
from parts.networks.batches import collate
from parts.networks.forward import SHARED_PROMPTS, predicting_states, token_logprobs
from parts.networks.loading import ATTENTION_KINDS, load_network, shaped_network
from parts.sampling.sampling import HFEngine
from programs.ppo_train.models import load_models
from programs.ppo_train.settings import Config

CPU = torch.device("cpu")


def make_config(kind: str, **given) -> Config:
    """Settings of a small run of the embedded model."""
    sizes = {"batch_size": 6, "group_size": 2, "max_new_tokens": 8, "precision": "fp32", "share_prompts": False}
    return Config(algorithm="grpo", attn_implementation=kind, **{**sizes, **given})


def test_kinds_are_those_of_transformers():
    """All but paged|eager, which only its own continuous batching reads, and what other tests have added."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    offered = {"eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()} - {"paged|eager", SHARED_PROMPTS}
    assert {*ATTENTION_KINDS} == {"auto", *offered}


def test_eager_samples_and_trains_as_sdpa_does():
    """Prompts of several lengths, so that a batch has pads; what is sampled, its log-probs, and the gradient."""
    found = {}
    for kind in ("auto", "sdpa", "eager"):
        config = make_config(kind)
        models = load_models(config, CPU, None)
        prompts = [[5, 6, 7, 8, 9, 10, 11], [5, 6], [20, 21, 22]] * 2
        noise = torch.linspace(0.05, 0.95, 48).reshape(6, 8).numpy()
        sampled = HFEngine(config, models).generate(prompts, noise)
        names = ("prompt_ids", "response_ids", "rollout_logprobs")
        rows = [dict(zip(names, (p, *out), strict=True)) for p, out in zip(prompts, sampled, strict=True)]
        batch = collate(rows, models.pad_id, CPU)
        logprobs, _ = token_logprobs(config, models.policy, predicting_states(models.policy, batch), batch)
        logprobs.sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in models.policy.parameters()])
        gap = (logprobs.detach() - batch["rollout_logprobs"]).abs().max()
        assert gap < 1e-5, "sampler and trainer agree"
        assert models.policy.config._attn_implementation == ("eager" if kind == "eager" else "sdpa")
        found[kind] = [ids for ids, _ in sampled], logprobs.detach(), gradient
    (ids, logprobs, gradient), eager = found["sdpa"], found["eager"]
    assert torch.equal(found["auto"][2], gradient) and eager[0] == ids
    torch.testing.assert_close(eager[1], logprobs, rtol=0, atol=1e-5)
    torch.testing.assert_close(eager[2], gradient, rtol=1e-5, atol=1e-5 * gradient.abs().max().item())


def test_a_kind_that_is_not_there_is_told(tmp_path):
    config = make_config("flash_attention_2")
    told = r"got --attn_implementation flash_attention_2 with model .*; try .* auto, or `pip install kernels`"
    for load in (lambda: shaped_network(config, config.model), lambda: load_models(config, CPU, None)):
        with pytest.raises(UserError, match=told):
            load()
    with pytest.raises(UserError, match=r"flex_attention with .* no backward pass on a CPU; expected"):
        load_models(make_config("flex_attention"), CPU, None)
    flex = make_config("flex_attention")  # a reference on a CPU is only read
    frozen = load_network(transformers.AutoModelForCausalLM, flex.model, flex, CPU, frozen=True)
    assert frozen.config._attn_implementation == "flex_attention"
    transformers.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"got --attn_implementation sdpa .*; try --attn_implementation auto"):
        shaped_network(make_config("sdpa"), str(tmp_path))
