"""What must not change the PPO trainer's numbers: padding, micro-batches, batch composition, chunks, checkpointing."""

import dataclasses

import numpy as np
import pytest
import torch
from conftest import FAMILIES, TINY_LM

from parts.networks.faster_layers import onednn_linears, replaced

CPU = torch.device("cpu")
SCALER = torch.amp.GradScaler("cpu", enabled=False)
# prompts of very different lengths, and responses as well
PROMPTS = ["1+1=", "34+71=", "What is 12+5? Be brief.", "7", "Add 19 and 23, then say it.", "90+9="]
LENGTHS = [3, 9, 1, 14, 6, 2]


@pytest.fixture
def setup(ppo, saved):
    """Return (config, models) for settings; batch size and rollout length fit PROMPTS."""

    def make(model="llama", **settings):
        defaults = {"batch_size": len(PROMPTS), "max_new_tokens": 24, "minibatches": 1, "ppo_epochs": 2, "seed": 3}
        folder = str(TINY_LM) if model == "tiny_lm" else saved(model)
        config = ppo.Config(model=folder, **{**defaults, **settings})
        torch.manual_seed(0)
        return config, ppo.load_models(config, CPU)

    return make


def chat_rows(ppo, tokenizer):
    prompts = [[{"role": "user", "content": text}] for text in PROMPTS]
    return [{"prompt": p, "prompt_ids": list(ppo.encode_prompt(tokenizer, p)), "columns": {}} for p in prompts]


def made_up_samples(ppo, tokenizer, seed=0):
    """Samples with random responses, as any policy could give them."""
    rng = np.random.default_rng(seed)
    samples = []
    for i, (row, length) in enumerate(zip(chat_rows(ppo, tokenizer), LENGTHS, strict=True)):
        ids = rng.integers(6, 262, length).tolist()
        extra = {"response_ids": ids, "rollout_logprobs": [0.0] * length, "finished": bool(length % 2)}
        samples.append({**row, **extra, "score": float(rng.normal()), "rewards": {"r": 1.0}, "group": i})
    return samples


def experience(ppo, config, models, kl_coef=0.1):
    return ppo.make_experience(config, models, made_up_samples(ppo, models.tokenizer), kl_coef)


def off_policy(batch):
    """The batch as in a later epoch: ratios around 1, some of them clipped, and old values off the current ones."""
    noise = torch.randn(batch["old_logprobs"].shape, generator=torch.Generator().manual_seed(1)) * 0.15
    return {**batch, "old_logprobs": batch["old_logprobs"] + noise * batch["response_mask"]}


def randomize_head(critic, seed=0):
    """Give the value head weights, so that gradients reach below it."""
    torch.nn.init.normal_(critic.head.weight, std=0.1, generator=torch.Generator().manual_seed(seed))


def gradients(ppo, config, models, batch, rows=None):
    """Gradients of policy and critic, flattened, and the sums that accumulate_gradients returns."""
    networks = (models.policy, models.critic)
    rows = np.arange(len(PROMPTS)) if rows is None else np.asarray(rows)
    for network in networks:
        network.zero_grad()
    sums = ppo.accumulate_gradients(config, models, batch, rows, SCALER).values
    each = [[p.grad if p.grad is not None else torch.zeros_like(p) for p in n.parameters()] for n in networks]
    flat = [torch.cat([g.flatten() for g in grads]) for grads in each]
    for network in networks:
        network.zero_grad()
    assert all(torch.isfinite(g).all() and g.norm() > 1e-4 for g in flat)
    return flat, sums


def relative(a, b) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("family", ["tiny_lm", *FAMILIES])
def test_token_logprobs_equal_those_of_the_model_on_each_row_alone(ppo, setup, family):
    """Oracle: Hugging Face's logits of the unpadded row, shifted by one, over the temperature."""
    config, models = setup(family, temperature=0.7, kl_coef=0.0)
    samples = made_up_samples(ppo, models.tokenizer)
    batch = ppo.collate(samples, models.pad_id, CPU)
    with torch.no_grad():
        states = ppo.predicting_states(models.policy, batch)
        logprobs, entropy = ppo.token_logprobs(config, models.policy, states, batch)
    for i, sample in enumerate(samples):
        ids = torch.tensor([sample["prompt_ids"] + sample["response_ids"]])
        with torch.no_grad():
            logits = models.policy(input_ids=ids).logits[0, len(sample["prompt_ids"]) - 1 : -1].double() / 0.7
        distribution = torch.distributions.Categorical(logits=logits)
        where = batch["response_mask"][i].bool()
        expected = distribution.log_prob(torch.tensor(sample["response_ids"]))
        torch.testing.assert_close(logprobs[i, where].double(), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(entropy[i, where].double(), distribution.entropy(), rtol=0, atol=2e-5)
        assert (logprobs[i, ~where] == 0).all()


def test_a_value_depends_on_the_text_before_its_token_only(ppo, setup):
    _, models = setup()
    randomize_head(models.critic)
    piece = ppo.collate(made_up_samples(ppo, models.tokenizer)[3:4], models.pad_id, CPU)
    changed = {**piece, "input_ids": piece["input_ids"].clone()}
    t = piece["input_ids"].shape[1] - 6
    changed["input_ids"][0, t] = (changed["input_ids"][0, t] + 1) % 262
    with torch.no_grad():
        states = [ppo.predicting_states(models.critic.backbone, x) for x in (piece, changed)]
        a, b = (ppo.token_values(models.critic, x) for x in states)
    torch.testing.assert_close(a[:, : t + 1], b[:, : t + 1], rtol=0, atol=1e-6)
    assert (a[:, t + 1] - b[:, t + 1]).abs() > 1e-4


def test_a_pad_token_that_is_the_end_token_changes_nothing(ppo, setup):
    """Masks come from lengths, so the end token at the end of a response is trained on, and pads are not."""
    config, models = setup()
    samples = made_up_samples(ppo, models.tokenizer)
    for sample in samples[:3]:
        sample["response_ids"][-1] = models.eos_ids[0]
    plain = ppo.make_experience(config, models, samples, 0.1)
    same = ppo.make_experience(config, dataclasses.replace(models, pad_id=models.eos_ids[0]), samples, 0.1)
    assert (plain["input_ids"] != same["input_ids"]).any()
    assert plain["response_mask"].sum() == sum(LENGTHS)
    for name in set(plain) - {"input_ids"}:
        assert torch.equal(plain[name], same[name]), name


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_micro_batches_change_neither_experience_nor_gradient(ppo, setup, critic):
    config, models = setup(critic=critic, entropy_coef=0.02)
    randomize_head(models.critic)
    made = experience(ppo, config, models)
    for name, x in experience(ppo, dataclasses.replace(config, micro_batch_tokens=30), models).items():
        torch.testing.assert_close(x, made[name], rtol=1e-5, atol=1e-5, msg=name)
    batch = off_policy(made)
    whole, sums = gradients(ppo, dataclasses.replace(config, micro_batch_tokens=10**6), models, batch)
    for budget in (1, 60):
        pieces = dataclasses.replace(config, micro_batch_tokens=budget)
        assert len(ppo.micro_batches(batch, range(6), budget)) > 1
        got, got_sums = gradients(ppo, pieces, models, batch)
        for mine, expected in zip(got, whole, strict=True):
            assert relative(mine, expected) < 1e-6
        torch.testing.assert_close(got_sums, sums, rtol=1e-5, atol=1e-6)
    if critic == "separate":
        heavier, _ = gradients(ppo, dataclasses.replace(config, vf_coef=3 * config.vf_coef), models, batch)
        assert relative(heavier[0], whole[0]) < 1e-6 and relative(heavier[1], 3 * whole[1]) < 1e-6


@pytest.mark.parametrize("whole", [True, False])
def test_tied_embeddings_add_their_gradient_to_that_of_the_head(ppo, setup, whole):
    """Oracle: the dense gradient of torch. Without a loss on tokens the embeddings alone have one."""
    config, models = setup("tiny_lm", critic="shared", micro_batch_tokens=60)
    randomize_head(models.critic)
    embeddings, batch = models.policy.get_input_embeddings(), off_policy(experience(ppo, config, models))

    def gradient(sparse):
        embeddings.sparse = sparse
        if whole:
            return gradients(ppo, config, models, batch)[0][0]
        models.policy.zero_grad()
        ppo.token_values(models.critic, ppo.predicting_states(models.policy, batch)).square().sum().backward()
        return embeddings.weight.grad

    assert embeddings.sparse
    summed = gradient(True)
    assert not summed.is_sparse and relative(summed, gradient(False)) < 1e-6


@pytest.mark.parametrize("family", ["tiny_lm", "falcon"])
def test_checkpointed_gradients_equal_plain_ones(ppo, setup, family):
    """A layer of Falcon takes its probability of dropout from the config."""
    config, models = setup(family, entropy_coef=0.02)
    randomize_head(models.critic)
    batch = off_policy(experience(ppo, config, models))
    plain, _ = gradients(ppo, config, models, batch)
    config, models = setup(family, entropy_coef=0.02, gradient_checkpointing=True)
    randomize_head(models.critic)
    layer, calls = getattr(models.policy.base_model, "layers" if family == "tiny_lm" else "h")[0], []
    layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    ppo.switch_checkpointing(models, True)
    got, _ = gradients(ppo, config, models, batch)
    assert len(calls) == 2, "the layer runs again in the backward pass"
    assert max(relative(a, b) for a, b in zip(got, plain, strict=True)) < 1e-6


@pytest.mark.parametrize("family", ["tiny_lm", "gpt2", "gpt_neox"])
def test_the_first_update_has_ratio_one_and_no_dropout_in_training_mode_too(ppo, setup, family):
    config, models = setup(family, gradient_checkpointing=True, temperature=0.7, minibatches=2)
    batch = experience(ppo, config, models)
    models.policy.train()
    sums = ppo.accumulate_gradients(config, models, batch, np.array([4, 0, 3]), SCALER).values
    assert sums["policy/ratio_max"].item() == pytest.approx(1.0, abs=1e-5)
    assert sums["policy/clip_frac"] == 0 and abs(sums["kl/approx"].item()) < 1e-6


def test_a_single_optimizer_step_needs_no_old_logprobs(ppo, setup):
    config, models = setup(ppo_epochs=1, kl_coef=0.0)
    randomize_head(models.critic)
    batch = experience(ppo, config, models, 0.0)
    assert "old_logprobs" not in batch
    got, _ = gradients(ppo, config, models, batch)
    two = dataclasses.replace(config, ppo_epochs=2)
    expected, _ = gradients(ppo, two, models, experience(ppo, two, models, 0.0))
    assert max(relative(a, b) for a, b in zip(got, expected, strict=True)) < 1e-5


def test_the_kl_of_an_update_is_that_of_the_completions_that_train(ppo, setup):
    """By Hugging Face's logits: per token and per completion, without those that `mask_truncated` leaves out."""
    config, models = setup(algorithm="grpo", kl_coef=0.1, kl_estimator="k2", ppo_epochs=1, mask_truncated=True)
    with torch.no_grad():
        models.policy.get_output_embeddings().weight.mul_(1.1)  # off the reference
    samples, sums = made_up_samples(ppo, models.tokenizer), []
    for sample in [sample for sample in samples if sample["finished"]]:
        ids, start = torch.tensor([sample["prompt_ids"] + sample["response_ids"]]), len(sample["prompt_ids"])
        with torch.no_grad():
            networks = (models.policy, models.reference)
            rows = [network(ids).logits[0, start - 1 : -1].log_softmax(-1) for network in networks]
        own, theirs = (row.gather(1, ids[0, start:, None]) for row in rows)
        sums.append((len(own), ((own - theirs) ** 2 / 2).sum().item()))
    assert 0 < len(sums) < len(samples)
    tokens, total = map(sum, zip(*sums, strict=True))
    batch = ppo.make_experience(config, models, samples, 0.1)
    got = ppo.accumulate_gradients(config, models, batch, np.arange(len(samples)), SCALER).values
    assert got["kl/ref"].item() == pytest.approx(total / tokens, rel=1e-4)
    assert got["kl/ref_completion"].item() == pytest.approx(total / len(sums), rel=1e-4)


def sample(ppo, config, models, rows, noise):
    return ppo.HFEngine(config, models).generate([row["prompt_ids"] for row in rows], noise)


def uniform(config, rows, seed=0):
    return np.random.default_rng(seed).random((rows, config.max_new_tokens))


@pytest.mark.parametrize("family", ["tiny_lm", "gemma3"])
def test_greedy_decoding_equals_that_of_transformers(ppo, setup, family):
    """Rows end at different times here, so rows leave the batch while others go on."""
    config, models = setup(family, max_new_tokens=16)
    rows = chat_rows(ppo, models.tokenizer)
    models.policy.generation_config.eos_token_id = models.eos_ids = [2, 62]  # 62 is a byte the model writes often
    got = sample(ppo, config, models, rows, None)
    for row, (ids, _) in zip(rows, got, strict=True):
        prompt = torch.tensor([row["prompt_ids"]])
        expected = models.policy.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False, eos_token_id=[2, 62]
        )
        assert ids == expected[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("bias", [True, False])
def test_large_linear_layers_run_in_onednn_with_the_weights_of_the_moment(bias):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(512, 600, bias), torch.nn.Linear(600, 8, bias))
    x = torch.randn(3, 1, 512)
    forms = onednn_linears(layers, CPU)
    layers[0].weight.data.mul_(2)
    expected = layers(x)
    with replaced(forms), torch.no_grad():
        assert [m for m in layers if "forward" in vars(m)] == [layers[0]]
        torch.testing.assert_close(layers(x), expected, rtol=1e-5, atol=1e-5)
    assert "forward" not in vars(layers[0])


def test_weights_that_are_not_finite_end_the_run(ppo, setup):
    config, models = setup()
    with torch.no_grad():
        models.policy.get_output_embeddings().weight.fill_(float("nan"))
    rows = chat_rows(ppo, models.tokenizer)
    for noise in (None, uniform(config, len(rows))):
        with pytest.raises(ppo.DivergedError, match="not finite while sampling"):
            sample(ppo, config, models, rows, noise)


def parameters(network):
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def one_update(ppo, config, models, step=0, batch=None):
    batch = batch or experience(ppo, config, models)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=config.precision == "fp16")
    return ppo.update(config, models, ppo.make_optimizer(config, models), scaler, batch, step)[0]


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_values_start_at_zero_and_learn(ppo, setup, critic):
    config, models = setup(critic=critic, critic_lr=1e-3, value_clip=0.0)
    batch = experience(ppo, config, models)
    assert (batch["values"] == 0).all()
    assert (models.critic.backbone is None) == (critic == "shared")
    before = one_update(ppo, config, models, batch=batch)["value/loss"]
    assert experience(ppo, config, models)["values"].abs().max() > 0
    assert one_update(ppo, config, models, batch=batch)["value/loss"] < before


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_critic_warmup_leaves_the_policy_alone(ppo, setup, critic):
    config, models = setup(critic=critic, critic_warmup_steps=2, weight_decay=0.1)
    policy, head = parameters(models.policy), models.critic.head.weight.detach().clone()
    one_update(ppo, config, models, step=1)
    assert all(torch.equal(p, policy[name]) for name, p in models.policy.named_parameters())
    assert not torch.equal(models.critic.head.weight, head)
    one_update(ppo, config, models, step=2)
    assert not all(torch.equal(p, policy[name]) for name, p in models.policy.named_parameters())


def test_updates_are_counted_and_target_kl_ends_them(ppo, setup):
    config, models = setup(ppo_epochs=3, minibatches=2, warmup_steps=4, lr=1e-4)
    metrics = one_update(ppo, config, models, step=1)
    assert metrics["optim/updates"] == 6 and metrics["optim/skipped_updates"] == 0
    assert metrics["optim/lr"] == pytest.approx(0.5e-4)
    config, models = setup(ppo_epochs=8, lr=1e-2, target_kl=1e-3)
    assert 1 <= one_update(ppo, config, models)["optim/updates"] < 8


def test_non_finite_gradients_are_skipped_counted_and_stop_the_run(ppo, setup):
    config, models = setup(max_bad_updates=3, ppo_epochs=2)
    before, batch = parameters(models.policy), experience(ppo, config, models)
    batch["advantages"] = batch["advantages"] * float("nan")
    optimizer = ppo.make_optimizer(config, models)
    metrics, bad = ppo.update(config, models, optimizer, SCALER, batch, 0)
    assert metrics["optim/skipped_updates"] == 2 and bad == 2
    with pytest.raises(ppo.DivergedError, match=r"step 2: got 3 non-finite gradients"):
        ppo.update(config, models, optimizer, SCALER, batch, 1, bad)
    assert all(torch.equal(p, before[name]) for name, p in models.policy.named_parameters())


def test_gradients_are_clipped_each(ppo, setup):
    """One SGD-like step cannot show clipping under Adam, so look at the gradients that the optimizer gets."""
    config, models = setup(max_grad_norm=0.01, ppo_epochs=1)
    optimizer, seen = ppo.make_optimizer(config, models), []

    def look(optimizer, *_) -> None:
        for group in optimizer.param_groups:
            norms = [p.grad.norm() for p in group["params"] if p.grad is not None]
            seen.append(torch.stack(norms).norm())

    optimizer.register_step_pre_hook(look)
    metrics = ppo.update(config, models, optimizer, SCALER, experience(ppo, config, models), 0)[0]
    assert [norm.item() for norm in seen] == pytest.approx([0.01, 0.01], rel=1e-3)
    assert metrics["optim/grad_norm"] > 0.01 and metrics["optim/critic_grad_norm"] > 0.01


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_runs_on_fp32_weights_near_the_fp32_numbers(ppo, setup, precision):
    wide = experience(ppo, *setup("tiny_lm"))
    config, models = setup("tiny_lm", precision=precision, lr=1e-5)
    batch = experience(ppo, config, models)
    assert {p.dtype for p in models.policy.parameters()} == {torch.float32}
    blocks = {p.dtype for name, p in models.reference.named_parameters() if p.dim() == 2 and "embed" not in name}
    assert blocks == {ppo.compute_dtype(config, CPU)}
    assert batch["kl"].abs().max() < 1e-5  # the reference is the untouched policy in this precision too
    assert {x.dtype for name, x in batch.items() if x.is_floating_point()} == {torch.float32}
    torch.testing.assert_close(batch["old_logprobs"], wide["old_logprobs"], rtol=0.05, atol=0.25)
    before = parameters(models.policy)
    metrics = one_update(ppo, config, models, batch=batch)
    assert metrics["optim/skipped_updates"] == 0 and metrics["policy/ratio_max"] < 2
    assert not all(torch.equal(p, before[name]) for name, p in models.policy.named_parameters())
    outputs = sample(ppo, config, models, chat_rows(ppo, models.tokenizer), uniform(config, 6))
    assert all(np.isfinite(logprobs).all() for _, logprobs in outputs)


def test_prompts_are_one_stream_of_reshuffled_passes(ppo):
    config, rows = ppo.Config(batch_size=4, seed=5), [{"id": i} for i in range(10)]
    stream = [row["id"] for step in range(10) for row in ppo.batch_rows(rows, config, 4 * step, 4)]
    passes = [stream[i : i + 10] for i in range(0, 40, 10)]
    assert all(sorted(order) == list(range(10)) for order in passes)
    assert len({tuple(order) for order in passes}) == 4
    other = [row["id"] for row in ppo.batch_rows(rows, ppo.Config(batch_size=4, seed=6), 0, 4)]
    assert other != stream[:4]
