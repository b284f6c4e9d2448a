"""The engine of our trainers with the real vLLM: what it samples, and that weights which did not arrive are noticed."""

import random

import numpy as np
import pytest
import torch
import vllm
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_helpers import prompts_of

from parts.foundation.bundle import EMBEDDED_MODEL
from parts.foundation.messages import UserError
from parts.sampling.sampling import HFEngine
from parts.sampling.sampling_vllm import OURS, VLLM_ABOVE, VLLM_OLDEST, VllmEngine, vllm_options
from parts.sampling.sync_check import StaleSamplerError, checksums, logprob_gap, same_checksums
from programs.ppo_train.models import load_models
from programs.ppo_train.settings import Config

PADDED = [[5, 40, 41], [60, 61]] * 4
SETTINGS = {"rollout_engine": "vllm", "precision": "fp32", "max_prompt_tokens": 40, "max_new_tokens": 24}


def loaded(**settings):
    """(settings, networks) on the embedded model."""
    config = Config(**{**SETTINGS, "kl_coef": 0.0, "algorithm": "grpo", "temperature": 0.8, **settings})
    torch.manual_seed(0)
    return config, load_models(config, torch.device("cpu"), None)


@pytest.fixture(scope="module")
def first():
    """Settings, networks and engine; the generators' states before and after it was built."""
    config, models = loaded()
    states = [(random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())]
    engine = VllmEngine(config, models)
    states.append((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))
    return config, models, engine, states


@pytest.fixture
def moved(first):
    """The engine with a policy that no longer is the model on disk; put back at the end."""
    _, models, engine, _ = first
    saved = {name: x.clone() for name, x in models.policy.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in models.policy.parameters():
            p += 0.02 * torch.randn(p.shape, generator=generator)
    engine.watch.checked = None
    yield engine
    models.policy.load_state_dict(saved)


def test_completions_and_logprobs_are_the_policys_own_and_building_the_engine_moved_no_generator(first, moved):
    config, models, engine, (before, after) = first
    assert before == after, "vLLM seeds them all, and a resumed run's rewards would draw other numbers"
    moved.sync(0)
    ours = HFEngine(config, models).generate(prompts_of(models), None)
    theirs = engine.generate(prompts_of(models), None)
    assert [ids for ids, _ in theirs] == [ids for ids, _ in ours]
    noise = np.random.default_rng(0).random((4, 1))
    for prompt, (ids, logprobs) in zip(prompts_of(models), engine.generate(prompts_of(models), noise), strict=True):
        with torch.no_grad():
            logits = models.policy(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits.double() / config.temperature, -1)[range(len(ids)), ids]
        assert torch.tensor(logprobs, dtype=torch.float64) == pytest.approx(expected, abs=1e-4)
        assert len(ids) <= config.max_new_tokens


def test_the_first_draw_decides_the_batch_and_no_generator_moves(first):
    _, models, engine, _ = first
    engine.sync(0)
    prompts, noise = prompts_of(models), np.random.default_rng(1).random((4, 1))
    whole, state = engine.generate(prompts, noise), torch.get_rng_state()
    torch.randn(3), np.random.random(3)  # as rewards may, between two rollouts
    assert engine.generate(prompts, noise) == whole
    assert [ids for ids, _ in engine.generate(prompts, noise[::-1])] != [ids for ids, _ in whole]
    torch.set_rng_state(state)
    engine.generate(prompts, noise)
    assert (torch.get_rng_state() == state).all() and engine.generate([], noise[:0]) == []


def test_rows_of_a_batch_are_drawn_apart_and_by_the_policys_probabilities(first):
    """First tokens of 6,000 completions of one prompt, their counts against Pearson's chi-square."""
    config, models, engine, _ = first
    engine.sync(0)
    prompt, n = prompts_of(models)[2], 6000
    tokens = [ids[0] for ids, _ in engine.generate([prompt] * n, np.full((n, 1), 0.3), limit=1)]
    with torch.no_grad():
        logits = models.policy(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    expected = n * torch.softmax(logits / config.temperature, -1)
    seen = torch.bincount(torch.tensor(tokens), minlength=len(expected))
    often = expected >= 5
    pooled = torch.stack([torch.cat([x[often], x[~often].sum()[None]]) for x in (expected, seen)])
    chi = ((pooled[1] - pooled[0]) ** 2 / pooled[0].clamp(min=1)).sum().item()
    freedom = int(often.sum())
    assert freedom >= 3 and chi < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.qkv_proj.weight"),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
    ],
)
def test_one_tensor_that_is_not_copied_is_named(moved, monkeypatch, capsys, lost, named):
    """After a change as small as one update of AdamW at lr 1e-6."""
    moved.sync(0)
    assert "a form of its own" not in capsys.readouterr().err and moved.watch.checked == 0
    moved.watch.checked = None
    copy = moved.network().reload_weights
    alike = {lost, "lm_head.weight"} if "embed" in lost else {lost}  # tied: the later one would replace the earlier
    kept = {name: x.clone() for name, x in moved.weights() if name in alike}
    with torch.no_grad():
        for p in moved.models.policy.parameters():
            p += 1e-6 * torch.sign(p)

    def all_but_one(weights_iterator):
        copy(weights_iterator=((name, kept.get(name, x)) for name, x in weights_iterator))

    monkeypatch.setattr(moved.network(), "reload_weights", all_but_one)
    with pytest.raises(StaleSamplerError, match=r"step 1: .* other weights than the policy's") as error:
        moved.sync(1)
    found = str(error.value).partition(" tensors: ")[2].partition(";")[0].split(", ")
    assert found[0] == named and set(found[1:]) <= {"lm_head.weight"}, "those two are one in this model"
    assert error.value.code == 5


@pytest.mark.parametrize(
    ("arrives", "told"),
    [
        (lambda name: name != "lm_head.weight", r"1 tensors: lm_head\.weight;"),
        (lambda name: False, r"tensors: .*model\."),
    ],
)
def test_what_is_left_out_of_the_copy_is_named(moved, monkeypatch, arrives, told):
    """The output layer shares the embedding's matrix, which arrives; on a CPU vLLM computes with a packed copy."""
    copy = moved.network().reload_weights

    def some(weights_iterator):
        if given := [(name, x) for name, x in weights_iterator if arrives(name)]:
            copy(weights_iterator=iter(given))

    moved.sync(0)
    moved.watch.checked = None
    with torch.no_grad():
        for p in moved.models.policy.parameters():
            p *= 1.001
    monkeypatch.setattr(moved.network(), "reload_weights", some)
    with pytest.raises(StaleSamplerError, match=told):
        moved.sync(1)


def test_a_temperature_that_is_applied_twice_is_noticed(moved, monkeypatch):
    params = moved.vllm.SamplingParams

    def squared(**given):
        return params(**given | {"temperature": given["temperature"] ** 2})

    monkeypatch.setattr(moved.vllm, "SamplingParams", squared)
    with pytest.raises(StaleSamplerError, match="log-probs differ by"):
        moved.sync(0)


@pytest.fixture
def adapted(first, monkeypatch):
    """The engine with a policy of LoRA adapters that say something."""
    config, models = loaded(lora_rank=4)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, p in models.policy.named_parameters():
            if "lora_B" in name:
                p += 0.05 * torch.randn(p.shape, generator=generator)
    engine = first[2]
    monkeypatch.setattr(engine, "models", models)
    monkeypatch.setattr(engine, "config", config)
    engine.watch.checked = None
    return engine


def test_adapters_are_sampled_with(adapted):
    adapted.sync(0)
    assert adapted.watch.checked == 0
    with torch.no_grad(), adapted.models.policy.disable_adapter():
        base = HFEngine(adapted.config, adapted.models).generate(prompts_of(adapted.models), None)
    assert adapted.generate(prompts_of(adapted.models), None) != base


def test_an_adapter_that_is_not_merged_is_noticed(adapted, monkeypatch):
    """Checksums of what was copied cannot see it: the log-probs do."""
    weights = adapted.weights
    found = adapted.models.policy.get_base_model().state_dict().items()
    base = {name.replace(".base_layer", ""): x for name, x in found if "lora_" not in name}
    monkeypatch.setattr(adapted, "weights", lambda: ((name, base[name]) for name, _ in weights()))
    with pytest.raises(StaleSamplerError, match="log-probs differ by"):
        adapted.sync(0)


def test_comparisons_come_at_the_first_steps_and_every_so_many(first, monkeypatch):
    engine, seen = first[2], []
    monkeypatch.setattr(engine, "check", seen.append)
    monkeypatch.setattr(engine.watch, "checked", None)
    for step in (0, 0, 1, 1, 2, 49, 50, 50, 51, 100):  # an evaluation copies the weights too
        engine.sync(step)
    assert seen == [0, 1, 50, 100]
    monkeypatch.setattr(engine.watch, "every", 0)
    engine.watch.checked = None
    engine.sync(100)
    assert len(seen) == 4


def test_checksums_see_a_bit_and_no_order():
    x = torch.randn(1000, 64, generator=torch.Generator().manual_seed(3))
    same = checksums(x.flip(0).t(), torch.bfloat16)
    assert same_checksums(checksums(x, torch.bfloat16), same, x.numel())
    parts = checksums(x[:300], torch.bfloat16) + checksums(x[300:], torch.bfloat16)
    assert same_checksums(parts, same, x.numel())
    other = x.to(torch.bfloat16)
    other[7, 7] = torch.nextafter(other[7, 7], torch.tensor(9.0, dtype=torch.bfloat16))
    assert not same_checksums(checksums(other, torch.bfloat16), same, x.numel())
    x[0, 0] = float("nan")
    assert not same_checksums(checksums(x, torch.float32), checksums(x, torch.float32), x.numel())


def test_rows_beyond_the_tokenizer_are_not_sampled(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32)
    model.resize_token_embeddings(320)
    with torch.no_grad():
        model.get_output_embeddings().weight[262:] = torch.randn(58, 128, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(EMBEDDED_MODEL).save_pretrained(tmp_path)
    config, models = loaded(model=str(tmp_path))
    outputs = VllmEngine(config, models).generate(PADDED, np.random.default_rng(0).random((8, 24)))
    assert max(token for ids, _ in outputs for token in ids) < 262
    assert logprob_gap(config, models, PADDED, outputs) < 1e-4


def test_the_engine_has_the_adapter_that_is_gone_on_with(tmp_path):
    base = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32)
    adapter = get_peft_model(base, LoraConfig(r=4, lora_alpha=12, use_rslora=True, target_modules=["q_proj", "v_proj"]))
    adapter.save_pretrained(tmp_path)
    config, models = loaded(model=str(tmp_path), lora_rank=4, kl_coef=0.1)
    engine = VllmEngine(config, models)
    with torch.no_grad():
        for p in models.policy.parameters():
            p += 0.1 * torch.randn_like(p) * p.requires_grad
    engine.sync()
    outputs = engine.generate(PADDED, np.random.default_rng(0).random((8, 24)))
    assert logprob_gap(config, models, PADDED, outputs) < 1e-4


def test_options_are_read_as_vllms_command_line_reads_them():
    found = vllm_options(["max_num_seqs=8", "enforce-eager=true", "enable_prefix_caching=no"], OURS)
    assert found == {"max_num_seqs": 8, "enforce_eager": True, "enable_prefix_caching": False}
    assert vllm_options(["quantization=fp8", "max_num_batched_tokens=4k"], OURS)["max_num_batched_tokens"] == 4000


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("max_num_seq=8", "try max_num_seqs"),
        ("seed=3", "try --seed"),
        ("tensor_parallel_size=2", "each process has an engine of its own"),
    ],
)
def test_options_that_vllm_does_not_have_are_told(pair, told):
    with pytest.raises(UserError, match=told):
        vllm_options([pair], OURS)


def test_the_installed_version_is_one_that_the_advice_names():
    assert VLLM_OLDEST <= tuple(map(int, vllm.__version__.split(".")[:2])) < VLLM_ABOVE
