"""A prompt that is run once for all of its rows gives what running it with each of them gives, gradients included."""

import contextlib
import math

import pytest
import torch
import transformers

from parts.learning.optimizer import switch_checkpointing
from parts.networks import forward
from parts.networks.batches import collate, layout_of, micro_batches, trimmed
from parts.networks.cache_probe import can_share, decoding_of_policy
from parts.networks.forward import length_that_shares, predicting_states, set_attention, shared_length
from programs.on_policy_distillation import models as od_models
from programs.on_policy_distillation import settings as od_settings
from programs.on_policy_distillation import step as od_step
from programs.ppo_train import models, settings, step

CPU = torch.device("cpu")
PROMPTS = [[40 + i for i in range(11)], [90, 91, 92, 93, 94], [150 + 3 * i for i in range(16)]]
REPLIES = [7, 1, 12, 3, 9, 2, 10, 4, 6, 6, 1, 8]  # tokens; the rows of a prompt stand apart from each other
SCALER = torch.amp.GradScaler("cpu", enabled=False)


def made_up_samples(turns=False, alone=False):
    """Samples of three prompts in turns; with `turns`, not all of a response was sampled; `alone`, prompts differ."""
    draws, samples = torch.Generator().manual_seed(5), []
    for i, length in enumerate(REPLIES):
        ids = torch.randint(6, 262, (length,), generator=draws).tolist()
        sample = {"prompt_ids": PROMPTS[i % 3], "response_ids": ids}
        sample |= {"rollout_logprobs": [-3.0] * length, "finished": True, "group": i % 3, "rewards": {"r": 1.0}}
        sample |= {"score": float(torch.randn((), generator=draws)), "teacher": 0}
        if turns:
            sample["response_mask"] = [int(t < 2 or t > 4) for t in range(length)]
        if alone:
            sample["prompt_ids"] = [200 + i, *PROMPTS[i % 3]]
        samples.append(sample)
    return samples


@pytest.fixture
def lines(monkeypatch):
    """Tokens of each line that a network has run."""
    seen, real = [], forward.line_states

    def line_states(model, layout):
        seen.append(len(layout.ids))
        return real(model, layout)

    monkeypatch.setattr(forward, "line_states", line_states)
    return seen


def flat_gradients(networks):
    """All gradients of networks in one tensor, which are then taken away."""
    params = [p for network in networks if network is not None for p in network.parameters() if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])
    for p in params:
        p.grad = None
    assert torch.isfinite(flat).all() and flat.norm() > 1e-4
    return flat


def relative(a, b) -> float:
    return float((a - b).norm() / b.norm())


def ppo_figures(folder, shared, turns=False, alone=False, **given):
    """(batch, sums, gradients) of one minibatch of all samples in ppo_train.py."""
    config = settings.Config(model=folder, batch_size=12, max_new_tokens=16, share_prompts=shared, **given)
    torch.manual_seed(0)
    loaded = models.load_models(config, CPU)
    for name, p in loaded.policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    if loaded.critic:
        torch.nn.init.normal_(loaded.critic.head.weight, std=0.1)
    batch = step.make_experience(config, loaded, made_up_samples(turns, alone), config.kl_coef)
    if "old_logprobs" in batch:
        noise = torch.randn(batch["old_logprobs"].shape, generator=torch.Generator().manual_seed(1)) * 0.1
        batch["old_logprobs"] += noise * batch["response_mask"]
    switch_checkpointing(loaded, config.gradient_checkpointing)
    statistics = step.accumulate_gradients(config, loaded, batch, list(range(12)), SCALER)
    sums = torch.stack([x for name, x in statistics.values.items() if name not in statistics.maxima])
    return batch, sums, flat_gradients([loaded.policy, loaded.critic])


GRPO = {"algorithm": "grpo", "group_size": 4, "ppo_epochs": 2, "kl_coef": 0.1, "kl_in": "loss"}
CASES = {
    "adapters": GRPO | {"lora_rank": 4},
    "a shared critic": {"algorithm": "ppo", "critic": "shared", "lora_rank": 4},
    "groups that are split": GRPO | {"micro_batch_tokens": 30},
    "turns, recomputed": GRPO | {"turns": True, "entropy_coef": 0.01, "gradient_checkpointing": True},
    "a critic, split, recomputed": {"algorithm": "ppo", "gradient_checkpointing": True, "micro_batch_tokens": 40},
    "prompts of their own, turns": {"algorithm": "ppo", "alone": True, "turns": True, "entropy_coef": 0.01},
}


@pytest.mark.parametrize("case", CASES)
def test_experience_loss_and_every_gradient_are_those_of_the_plain_way(saved, lines, case):
    family = "gpt2" if case == "adapters" else "llama"
    plain = ppo_figures(saved(family), False, **CASES[case])
    assert not lines
    batch, sums, gradients = ppo_figures(saved(family), True, **CASES[case])
    once = sum(map(len, PROMPTS)) + sum(REPLIES) - len(REPLIES)
    if CASES[case].get("alone"):
        once = 4 * sum(map(len, PROMPTS)) + sum(REPLIES)
    passes = 3 if CASES[case]["algorithm"] == "grpo" or "shared" in case else 5  # policy, reference, and the update's
    assert min(lines) < once if "micro_batch_tokens" in CASES[case] else lines == [once] * passes
    for name, x in plain[0].items():
        torch.testing.assert_close(batch[name], x, rtol=0, atol=1e-5)
    torch.testing.assert_close(sums, plain[1], rtol=1e-5, atol=1e-6)
    assert relative(gradients, plain[2]) < 1e-5


def distillation_figures(saved, shared, **given):
    """(batch, sums, gradients) of one minibatch of all samples in on_policy_distillation.py."""
    given |= {"batch_size": 12, "group_size": 4, "max_new_tokens": 16, "micro_batch_tokens": 40}
    given |= {"model": saved("llama"), "teacher": saved("qwen2", 1)}
    config = od_settings.Config(share_prompts=shared, **given)
    loaded = od_models.load_models(config, CPU)
    batch = od_step.make_experience(config, loaded, made_up_samples(), config.kl_coef)
    statistics = od_step.accumulate_gradients(config, loaded, batch, list(range(12)), SCALER)
    sums = torch.stack([x for name, x in statistics.values.items() if name not in statistics.maxima])
    return batch, sums, flat_gradients([loaded.policy])


@pytest.mark.parametrize("given", [{}, {"objective": "policy_gradient", "ppo_epochs": 2}])
def test_distillation_is_that_of_the_plain_way(saved, lines, given):
    plain = distillation_figures(saved, False, **given)
    assert not lines
    batch, sums, gradients = distillation_figures(saved, True, **given)
    assert len(lines) > 3
    for name, x in plain[0].items():
        torch.testing.assert_close(batch[name], x, rtol=0, atol=1e-5)
    torch.testing.assert_close(sums, plain[1], rtol=1e-5, atol=1e-6, equal_nan=True)
    assert relative(gradients, plain[2]) < 1e-5


@pytest.mark.parametrize("family", ["mistral", "lfm2", "gemma2"])
def test_networks_that_look_at_their_neighbours_go_the_plain_way_and_say_so(saved, lines, capsys, family):
    """A window of 6 tokens, convolutions, and an attention that is not sdpa's."""
    config = settings.Config(model=saved(family), **GRPO, batch_size=12)
    loaded = models.load_models(config, CPU)
    name = type(loaded.policy).__name__
    assert capsys.readouterr().err.count(f"note: {name} runs a prompt again with each of its completions") == 1
    assert shared_length(loaded.networks) == 0
    before = len(lines)
    batch = collate(made_up_samples(), 0, CPU)
    with torch.no_grad():
        predicting_states(loaded.policy, batch)
    assert len(lines) == before


def test_rows_longer_than_a_window_go_the_plain_way(saved, lines, tmp_path, capsys):
    folder = saved("mistral")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, sliding_window=20)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    loaded = models.load_models(settings.Config(model=str(tmp_path), **GRPO, batch_size=12), CPU)
    assert "that are longer than its window" in capsys.readouterr().err
    assert shared_length(loaded.networks) == length_that_shares(loaded.policy) == 20
    lines.clear()
    batch = collate(made_up_samples(), 0, CPU)
    long, short = (trimmed(batch, torch.tensor(rows))[0] for rows in ([2, 5, 8, 11], [1, 4, 7, 10]))
    for piece, runs in ((long, 0), (short, 1)):
        with torch.no_grad():
            found = predicting_states(loaded.policy, piece)[piece["response_mask"].bool()]
            expected = forward.plain_states(model, piece["input_ids"], piece["attention_mask"])
        assert len(lines) == runs
        torch.testing.assert_close(found, expected.roll(1, 1)[piece["response_mask"].bool()], rtol=0, atol=2e-5)


def test_rows_of_one_length_are_attended_to_where_they_stand(saved, lines):
    samples = [sample | {"response_ids": [9] * 4, "rollout_logprobs": [0.0] * 4} for sample in made_up_samples()]
    for i, sample in enumerate(samples):
        sample["prompt_ids"] = [20 + i, 7, 8, 9]
    batch = collate(samples, 0, CPU)
    assert layout_of(batch, math.inf).back is None
    assert layout_of(collate(made_up_samples(alone=True), 0, CPU), math.inf).back is not None
    assert layout_of(batch, 7) is None
    policy = models.load_models(settings.Config(model=saved("llama"), **GRPO, batch_size=12), CPU).policy
    lines.clear()
    with torch.no_grad():
        found = predicting_states(policy, batch)[:, 4:]
        expected = forward.plain_states(policy, batch["input_ids"], batch["attention_mask"])[:, 3:-1]
    assert lines == [12 * 7]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
DEEP = {  # settings of a family, and how many of its layers are probed
    "gemma3_text": ({"sliding_window": 64}, 6),  # the sixth layer is the first that looks back at all tokens
    "mamba": ({"state_size": 4}, 2),
    "qwen3_moe": ({**EXPERTS, "mlp_only_layers": [0, 1]}, 3),
}


@pytest.mark.parametrize("family", DEEP)
def test_a_deep_network_is_probed_by_its_first_layers_and_left_as_it_was(monkeypatch, family):
    extra, needed = DEEP[family]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "head_dim": 8}
    sizes |= {"num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 12, "vocab_size": 101, "pad_token_id": 0}
    shape = transformers.AutoConfig.for_model(family, **sizes, **extra)
    policy, run = transformers.AutoModelForCausalLM.from_config(shape).eval(), set()
    for i, layer in enumerate(policy.model.layers if family != "mamba" else policy.backbone.layers):
        layer.register_forward_hook(lambda *given, i=i: run.add(i))
    config = settings.Config(model="unread", **GRPO, batch_size=12)
    loaded = models.Models(policy, None, None, None, [1], 0, CPU)
    before, shared = policy.config.to_dict(), can_share(config, loaded, policy)
    decoding = decoding_of_policy(config, loaded)
    assert run == set(range(needed))
    set_attention(policy, "sdpa")
    assert policy.config.to_dict() == before
    with torch.no_grad():
        assert len(policy(torch.tensor([[5, 6, 7]]), output_hidden_states=True).hidden_states) == 13
    assert run == set(range(12)), "all layers are back"
    monkeypatch.setattr("parts.networks.cache_probe.first_layers", lambda *given: contextlib.nullcontext())
    assert (can_share(config, loaded, policy), decoding_of_policy(config, loaded)) == (shared, decoding)


@pytest.mark.parametrize("budget", [25, 60, 10**6])
def test_micro_batches_hold_the_rows_of_a_prompt_together_and_what_is_run(budget):
    batch = collate(made_up_samples(), 0, CPU)
    groups = micro_batches(batch, range(12), budget, shared=28)
    assert sorted(torch.cat(groups).tolist()) == list(range(12))
    order = [row % 3 for group in groups for row in group.tolist()]
    assert order == sorted(order, key=order.index), "no prompt comes back"
    assert [len(PROMPTS[prompt]) for prompt in dict.fromkeys(order)] == [5, 11, 16]
    for group in groups:
        rows = group.tolist()
        once = sum(len(PROMPTS[prompt]) for prompt in {row % 3 for row in rows}) + sum(REPLIES[r] - 1 for r in rows)
        cells = trimmed(batch, group)[0]["input_ids"].numel()
        assert len(rows) == 1 or min(once + cells / 8, cells) <= budget
    plain = micro_batches(batch, range(12), budget)
    assert len(groups) < len(plain) or budget == 10**6
    assert sorted(torch.cat(plain).tolist()) == list(range(12))
    assert all(len(x) == 1 or trimmed(batch, x)[0]["input_ids"].numel() <= budget for x in plain)
    long = micro_batches(batch, range(12), budget, shared=27)  # a row is longer
    assert [group.tolist() for group in long] == [group.tolist() for group in plain]
