"""scripts/on_policy_distillation.py: divergences beside TRL's and by enumeration, invariants, runs, server, errors."""

import contextlib
import dataclasses
import itertools
import json
import signal
import time

import numpy as np
import pytest
import torch
from conftest import TINY_LM, load_script, read_lines, signal_script, start_script, without_clock
from local_server import serving
from safetensors.torch import load_file
from small_runs import same, small_task, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

od = load_script("on_policy_distillation")
CPU = torch.device("cpu")
PROMPTS = ["1+1=", "34+71=", "What is 12+5? Be brief.", "7", "Add 19 and 23, then say it.", "90+9="]
LENGTHS = [3, 9, 1, 14, 6, 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, saved):
    """folder(name) -> a random model of a family, or `noisy`: the embedded one with noise on its weights."""
    noisy = str(tmp_path_factory.mktemp("noisy"))
    model, generator = AutoModelForCausalLM.from_pretrained(TINY_LM), torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data += torch.randn(p.shape, generator=generator) * p.abs().mean() * 0.4
    model.save_pretrained(noisy)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(noisy)
    own, seeds = {"tiny_lm": str(TINY_LM), "noisy": noisy}, {"llama": 1, "qwen2": 2, "gpt2": 3}
    return lambda name: own.get(name) or saved(name, seeds[name])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Files of a few rows: encoding all of them takes longer than a run."""
    return small_task(tmp_path_factory.mktemp("data"))


@pytest.fixture
def setup(folder):
    """setup(student, teacher, **settings) -> (config, models)."""

    def make(student="tiny_lm", teacher="llama", **settings):
        defaults = {"batch_size": len(PROMPTS), "max_new_tokens": 24, "seed": 3}
        config = od.Config(model=folder(student), teacher=folder(teacher), **{**defaults, **settings})
        od.check_config(config)
        return config, od.load_models(config, CPU)

    return make


def made_up_samples(models, seed=0):
    """Samples with random responses, as any student could give them."""
    rng, samples = np.random.default_rng(seed), []
    for i, (text, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        prompt = [{"role": "user", "content": text}]
        sample = {"prompt": prompt, "prompt_ids": list(od.encode_prompt(models.tokenizer, prompt)), "completion": ""}
        sample |= {"response_ids": rng.integers(6, 262, length).tolist(), "finished": True, "group": i // 2}
        sample |= {"rollout_logprobs": rng.normal(-3, 1, length).tolist(), "score": float(rng.normal())}
        samples.append(sample | {"rewards": {"r": 1.0}})
    return samples


def rows_of(samples: list[dict]) -> list[dict]:
    """Prompts of samples as rows of data."""
    return [{key: sample[key] for key in ("prompt", "prompt_ids")} | {"columns": {}} for sample in samples]


def gradients(config, models, batch):
    """Gradients of the student, flattened, and what accumulate_gradients returns."""
    models.policy.zero_grad()
    rows, scaler = np.arange(len(PROMPTS)), torch.amp.GradScaler("cpu", enabled=False)
    measured = od.accumulate_gradients(config, models, batch, rows, scaler).values
    flat = torch.cat([p.grad.flatten() for p in models.policy.parameters() if p.grad is not None])
    models.policy.zero_grad()
    assert torch.isfinite(flat).all() and flat.norm() > 1e-6
    return flat, measured


def relative(a, b) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize(("objective", "beta"), [("forward_kl", 0.0), ("jsd", 0.1), ("jsd", 0.9), ("reverse_kl", 1.0)])
def test_loss_and_gradients_equal_those_of_trl_distillation_trainer(setup, objective, beta):
    """TRL's loss from hidden states and output layers, token mean, for weights below and in the output layer."""
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    weight = {"beta": beta} if objective == "jsd" else {}
    config, models = setup("qwen2", "llama", objective=objective, temperature=0.8, **weight)
    batch = od.make_experience(config, models, made_up_samples(models), 1.0)
    got, sums = gradients(config, models, batch)
    states = [od.predicting_states(m, batch) for m in (models.policy, models.teacher.model)]
    heads = [m.get_output_embeddings().weight for m in (models.policy, models.teacher.model)]
    loss, entropy, count = _chunked_divergence_loss(
        states[0], states[1].detach(), heads[0], heads[1].detach(), batch["response_mask"], beta, temperature=0.8
    )
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in models.policy.parameters()])
    assert relative(got, expected) < 1e-5
    torch.testing.assert_close(sums["policy/loss"], loss.detach(), rtol=1e-5, atol=0)
    torch.testing.assert_close(sums["policy/entropy"], (entropy / count).detach(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("objective", ["reverse_kl", "forward_kl", "jsd"])
def test_top_k_is_the_divergence_of_k_tokens_and_the_rest(objective):
    """Oracle: the tokens picked by hand, autograd through the definition; it never exceeds the full divergence."""
    config = od.Config(objective=objective, kl_top_k=3, beta=0.3 if objective == "jsd" else 0.5)
    generator = torch.Generator().manual_seed(1)
    z, t = torch.randn(2, 5, 9, generator=generator, dtype=torch.float64) * 2
    z.requires_grad_()
    s, dist = torch.log_softmax(z, -1), torch.log_softmax(t, -1)
    head, value, gradient = od.divergence_head(config, z, s.detach(), {}, dist)
    (ours,) = torch.autograd.grad(head, z, gradient)
    beta, total = {"reverse_kl": 1.0, "forward_kl": 0.0, "jsd": 0.3}[objective], 0.0
    for row in range(5):
        best = sorted(range(9), key=lambda i: -dist[row, i].item())[:3]
        p, q = (torch.stack([*(x[row, i].exp() for i in best), 1 - x[row, best].exp().sum()]) for x in (s, dist))
        m = p if beta == 0 else q if beta == 1 else (1 - beta) * p + beta * q
        kl_t, kl_s = (q * (q / m).log()).sum(), (p * (p / m).log()).sum()
        own = kl_t if beta == 0 else kl_s if beta == 1 else beta * kl_t + (1 - beta) * kl_s
        torch.testing.assert_close(value[row], own.detach(), rtol=0, atol=1e-10)
        total = total + own
    torch.testing.assert_close(ours, torch.autograd.grad(total, z)[0], rtol=0, atol=1e-9)
    assert (value <= od.divergence(s.detach(), dist, beta)[0] + 1e-12).all()
    whole = dataclasses.replace(config, kl_top_k=9)
    assert od.divergence_head(whole, z, s.detach(), {}, dist)[0] is z
    # by hand, in float32: a student has all but 2 exp(-40) on a token, the teacher half; 1 - p rounds to 0
    z, sure = torch.tensor([[40.0, 0.0, 0.0]], requires_grad=True), od.Config(objective="forward_kl", kl_top_k=1)
    dist = torch.tensor([[0.5, 0.25, 0.25]]).log()
    head, value, gradient = od.divergence_head(sure, z, torch.log_softmax(z.detach(), -1), {}, dist)
    torch.testing.assert_close(torch.autograd.grad(head, z, gradient)[0], torch.tensor([[0.5, -0.25, -0.25]]))
    assert value.item() == pytest.approx(0.5 * np.log(0.5) + 0.5 * (np.log(0.5) - np.log(2) + 40), rel=1e-6)


@pytest.mark.parametrize(("n", "looked_at", "every"), [(1005, 100, 10), (7, 100, 1), (30, 0, 1)])
def test_figures_of_two_distributions(n, looked_at, every):
    """The overlap of some tokens has their mean."""
    generator = torch.Generator().manual_seed(3)
    s, t = (torch.log_softmax(torch.randn(n, 30, generator=generator, dtype=torch.float64) * 2, -1) for _ in "st")
    exact, found = od.gap_figures(s, t), od.gap_figures(s, t, looked_at)
    a, b = (torch.distributions.Categorical(logits=x) for x in (s, t))
    figures = torch.stack([torch.distributions.kl_divergence(a, b), a.entropy(), b.entropy()], -1)
    torch.testing.assert_close(exact[:, :3], figures, rtol=0, atol=1e-12)
    best = [[set(np.argsort(-x.numpy())[:8].tolist()) for x in rows] for rows in (s, t)]
    assert exact[:, 3].tolist() == pytest.approx([len(x & y) / 8 for x, y in zip(*best, strict=True)])
    assert torch.equal(exact[:, :3], found[:, :3])
    assert found[:, 3].mean().item() == pytest.approx(exact[::every, 3].mean().item(), abs=1e-6)
    assert (found[:, 3] > 0).sum() <= len(exact[::every])


@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_expected_policy_gradient_is_the_gradient_of_the_reverse_kl(discount):
    """By enumeration of all texts of 3 tokens over 3 words: discount 1 gives that of KL(S || T) of whole texts,
    discount 0 that of the sum over positions of KL given the text so far, as the divergence objectives have it."""
    words, length = 3, 3
    texts = list(itertools.product(range(words), repeat=length))
    generator = torch.Generator().manual_seed(0)
    prefixes = [p for n in range(length) for p in itertools.product(range(words), repeat=n)]
    z, t = torch.randn(2, len(prefixes), words, generator=generator, dtype=torch.float64)
    z.requires_grad_()
    where = [[prefixes.index(text[:n]) for n in range(length)] for text in texts]
    s, dist = torch.log_softmax(z, -1), torch.log_softmax(t, -1)
    places = list(zip(where, map(list, texts), strict=True))
    logprobs, teacher = (torch.stack([x[w, text] for w, text in places]) for x in (s, dist))
    mask = torch.ones(len(texts), length, dtype=torch.long)
    batch = {"loss_mask": mask, "teacher_logprobs": teacher, "old_logprobs": logprobs.detach()}
    config = od.Config(objective="policy_gradient", discount=discount)
    advantages = od.distillation_advantages(config, batch | {"rollout_logprobs": teacher}, [], 1.0)
    loss, ratio, _ = od.policy_loss(logprobs, logprobs.detach(), advantages, 0.2, 0.2, 3.0)
    assert (ratio == 1).all() and not advantages.requires_grad
    chance = logprobs.sum(1).exp().detach()
    (got,) = torch.autograd.grad((chance[:, None] * loss).sum(), z, retain_graph=True)
    if discount:
        exact = (logprobs.sum(1).exp() * (logprobs - teacher).sum(1)).sum()
    else:
        per_prefix = (s.exp() * (s - dist)).sum(-1)
        exact = (chance[:, None] * torch.stack([per_prefix[w] for w in where])).sum()
    torch.testing.assert_close(got, torch.autograd.grad(exact, z)[0], rtol=0, atol=1e-10)


def test_gradient_of_every_term_together_is_that_of_its_definition(setup):
    """Sampled token, reward, entropy, ratio and clip, written out per row."""
    settings = {"objective": "policy_gradient", "group_size": 2, "reward_coef": 0.7, "entropy_coef": 0.05}
    config, models = setup(**settings, ppo_epochs=2, aggregation="seq_mean_token_sum")
    samples = made_up_samples(models)
    batch = od.make_experience(config, models, samples, config.kl_coef)
    noise = torch.randn(batch["old_logprobs"].shape, generator=torch.Generator().manual_seed(1)) * 0.3
    batch["old_logprobs"] = batch["old_logprobs"] + noise * batch["response_mask"]
    got, sums = gradients(config, models, batch)
    total, ratios = 0.0, []
    for i, sample in enumerate(samples):
        ids, n = torch.tensor([sample["prompt_ids"] + sample["response_ids"]]), len(sample["response_ids"])
        dist = torch.log_softmax(models.policy(input_ids=ids).logits[0, -n - 1 : -1], -1)
        logprobs, where = dist.gather(-1, ids[0, -n:, None]).squeeze(-1), batch["response_mask"][i].bool()
        with torch.no_grad():
            teacher = torch.log_softmax(models.teacher.model(input_ids=ids).logits[0, -n - 1 : -1], -1)
            old = dist.gather(-1, ids[0, -n:, None]).squeeze(-1)
        mean = (samples[i // 2 * 2]["score"] + samples[i // 2 * 2 + 1]["score"]) / 2
        a = 0.7 * (sample["score"] - mean) - (old - teacher.gather(-1, ids[0, -n:, None]).squeeze(-1))
        ratio = (logprobs - old - noise[i, where]).exp()
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
        loss = torch.where(a < 0, torch.minimum(loss, -3 * a), loss)
        ratios += ratio.tolist()
        total = total + (loss.sum() + 0.05 * (dist.exp() * dist).sum()) / 6
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in models.policy.parameters()])
    assert relative(got, expected) < 1e-5
    assert sums["policy/ratio_max"].item() == pytest.approx(max(ratios), rel=1e-4) and sums["policy/clip_frac"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "jsd", "beta": 0.3},
        {"kl_top_k": 5, "ppo_epochs": 2},
        {"objective": "policy_gradient", "discount": 0.5, "entropy_coef": 0.02},
    ],
    ids=str,
)
def test_chunks_micro_batches_and_padding_change_nothing(setup, settings):
    config, models = setup("qwen2", "gpt2", **settings)
    samples = made_up_samples(models)
    batch = od.make_experience(config, models, samples, 1.0)
    whole, sums = gradients(config, models, batch)
    for change in ({"logits_chunk": 5 * 262}, {"micro_batch_tokens": 60}):
        other = dataclasses.replace(config, **change)
        again = od.make_experience(other, models, samples, 1.0)
        got, got_sums = gradients(other, models, again)
        assert relative(got, whole) < 2e-6, change
        torch.testing.assert_close(got_sums, sums, rtol=1e-5, atol=1e-6, equal_nan=True)
    wide = {}
    for name, x in batch.items():
        pads = (0, 0) * (x.dim() - 2) + (5, 3)
        wide[name] = torch.nn.functional.pad(x, pads, value=models.pad_id if name == "input_ids" else 0)
    assert relative(gradients(config, models, wide)[0], whole) < 2e-6
    spoilt = {**batch, "input_ids": torch.where(batch["attention_mask"].bool(), batch["input_ids"], 77)}
    assert torch.equal(gradients(config, models, spoilt)[0], whole)
    checkpointed = dataclasses.replace(config, gradient_checkpointing=True)
    models.policy.activation_checkpointing_enable({"use_reentrant": False})
    od.switch_checkpointing(models, True)
    assert relative(gradients(checkpointed, models, batch)[0], whole) < 2e-6


def test_a_sampled_row_that_the_teacher_does_not_have_is_not_in_the_loss(setup, folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder("llama"))
    model.resize_token_embeddings(320)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(tmp_path)
    narrow = dataclasses.replace(setup()[0], model=str(tmp_path))
    student = od.load_models(narrow, CPU)
    samples = made_up_samples(student)
    samples[1]["response_ids"][2] = 300
    for objective in ("reverse_kl", "policy_gradient"):
        settings = dataclasses.replace(narrow, objective=objective)
        batch = od.make_experience(settings, student, samples, 1.0)
        assert batch["loss_mask"].sum() == sum(LENGTHS) - 1
        gradients(settings, student, batch)


class Scripted:
    """An engine that says what is written down, and remembers its draws."""

    def __init__(self, answers):
        self.answers, self.draws = iter(answers), []

    def generate(self, prompts, draws):
        self.draws += [] if draws is None else [tuple(row) for row in draws]
        return [(ids, [-1.0] * len(ids)) for ids in itertools.islice(self.answers, len(prompts))]


def test_held_out_gap_is_the_mean_over_every_sampled_token(setup):
    """Against transformers' own logits in float64, row by row; micro-batches and pieces are small."""
    config, models = setup(teacher="noisy", eval_samples=3, micro_batch_tokens=64, logits_chunk=262 * 7)
    rows = rows_of(made_up_samples(models))
    generator = np.random.default_rng(5)
    answers = [generator.integers(6, 262, 1 + i % 9).tolist() for i in range(len(rows) * 3)]
    engine, silent = Scripted(answers), od.Reward([])
    silent.silent = True
    metrics, samples = od.held_out_gap(config, models, engine, silent, rows)
    assert [s["response_ids"] for s in samples] == answers and len(set(engine.draws)) == len(answers)
    sums = []
    for sample in samples:
        ids, start = torch.tensor([sample["prompt_ids"] + sample["response_ids"]]), len(sample["prompt_ids"]) - 1
        with torch.no_grad():
            s, t = (m(ids).logits[0, start:-1].double().log_softmax(-1) for m in (models.policy, models.teacher.model))
        sums.append((s.exp() * (s - t)).sum().item())
    assert metrics["eval/reverse_kl"] == pytest.approx(sum(sums) / sum(map(len, answers)), rel=1e-5)
    assert metrics["eval/reverse_kl_low"] < metrics["eval/reverse_kl"] < metrics["eval/reverse_kl_high"]
    assert metrics["eval/reverse_kl_top"] == pytest.approx(max(sums) / sum(sums), rel=1e-5)


def test_spread_of_a_mean():
    """Two prompts are drawn as 00, 01, 10 or 11, so 95% of the means reach from one prompt's to the other's."""
    found = od.spread_of_mean([1.0, 3.0, 10.0, 20.0], [1, 3, 2, 8], samples=2, seed=0)
    assert found == {"low": 1.0, "high": 3.0}  # 4 / 4 and 30 / 10: completions of a prompt stay together
    generator = np.random.default_rng(0)
    values = generator.normal(5.0, 2.0, 400)
    found = od.spread_of_mean(values, np.ones(400), samples=1, seed=0)
    normal = 1.96 * values.std() / 20  # beside which the bootstrap of a light tail lies
    expected = [values.mean() - normal, values.mean() + normal]
    assert [found["low"], found["high"]] == pytest.approx(expected, abs=0.06)
    assert found["top"] == pytest.approx(values.max() / values.sum())
    assert od.spread_of_mean([1.0] * 7 + [5.0], [1] * 8, samples=1, seed=0)["top"] == 5 / 12
    assert od.spread_of_mean([1.0] * 7, [1] * 7, samples=7, seed=0) == {}  # one prompt, too few completions


def test_mismatch_corrections_weigh_the_sampled_term(setup):
    config, models = setup(objective="policy_gradient", mismatch="icepop")
    samples, rng = made_up_samples(models), np.random.default_rng(0)
    first = od.make_experience(config, models, samples, 1.0)
    for sample, old, mask in zip(samples, first["old_logprobs"], first["response_mask"].bool(), strict=True):
        sample["rollout_logprobs"] = [x + rng.normal() for x in old[mask].tolist()]
    batch = od.make_experience(config, models, samples, 1.0)
    w = (batch["old_logprobs"] - batch["rollout_logprobs"]).exp() * batch["response_mask"]
    expected = torch.where((w >= 0.5) & (w <= 2), w, 0.0) * batch["response_mask"]
    torch.testing.assert_close(batch["corrections"] * batch["response_mask"], expected)
    timer = {"rollout": 1.0}
    assert 0 < od.batch_metrics(config, batch, samples, timer)["mismatch/cut_frac"] < 1
    plain = {k: v for k, v in batch.items() if k != "corrections"}
    one = plain | {"advantages": batch["advantages"] * batch["corrections"]}
    assert relative(gradients(config, models, batch)[0], gradients(config, models, one)[0]) < 1e-5


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda vocabulary: {"a": vocabulary["b"], "b": vocabulary["a"]}, ["in 2 tokens", "'a' ", "'b' "]),
        (None, ["splits", "'+'", "'-'"]),
    ],
    ids=["swapped", "normalised"],
)
def test_another_vocabulary_is_named_before_anything_is_loaded(tmp_path, small, capsys, monkeypatch, change, told):
    monkeypatch.setattr(od, "load_network", None)
    AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(tmp_path / "t")
    path = tmp_path / "t/tokenizer.json"
    content = json.loads(path.read_text())
    if change:
        content["model"]["vocab"] |= change(content["model"]["vocab"])
    else:
        content["normalizer"] = {"type": "Replace", "pattern": {"String": "+"}, "content": "-"}
    path.write_text(json.dumps(content))
    flags = [f"--teacher={tmp_path / 't'}", f"--data={small / 'train.jsonl'}", f"--output_dir={tmp_path / 'run'}"]
    assert od.main(flags) == 2
    text = capsys.readouterr().err
    assert all(part in text for part in told) and not (tmp_path / "run").exists(), text


SHORT = ["--steps", "2", "--batch_size", "8", "--max_new_tokens", "12", "--device", "cpu", "--plot_every", "0"]


@pytest.fixture
def flags(folder, small, tmp_path):
    """flags(name, *more) -> (command line, output folder) of a short run of the noisy student."""

    def make(name, *more, teacher=None, model=None):
        out = tmp_path / name
        common = ["--model", model or folder("noisy"), "--teacher", teacher or str(TINY_LM)]
        common += ["--data", str(small / "train.jsonl"), "--eval_data", str(small / "eval.jsonl")]
        common += ["--reward", f"{od.EMBEDDED_REWARDS}:correctness_reward", "--output_dir", str(out)]
        return [*common, *SHORT, *map(str, more)], out

    return make


@pytest.mark.long
def test_run_logs_learns_and_leaves_the_teacher_alone(flags, monkeypatch, capsys):
    """The teacher is run forward only: no cache is asked for, no weight changes."""
    seen, loaded, load = [], {}, od.load_models

    def watched(*args, **kwargs):
        models = load(*args, **kwargs)
        teacher = models.teacher.model
        teacher.base_model.register_forward_pre_hook(lambda m, a, k: seen.append(k["use_cache"]), with_kwargs=True)
        loaded.update(teacher=teacher, before={k: v.clone() for k, v in teacher.state_dict().items()})
        return models

    monkeypatch.setattr(od, "load_models", watched)
    command, out = flags("run", "--steps", 12, "--batch_size", 32, "--eval_every", 6, "--sample_every", 6)
    command[command.index("--max_new_tokens") + 1] = "24"
    assert od.main(command) == 0
    assert len(seen) >= 12 and not any(seen) and same(loaded["before"], loaded["teacher"].state_dict())
    assert not any(p.requires_grad for p in loaded["teacher"].parameters())
    rows = without_clock(out)
    assert [row["step"] for row in rows] == list(range(13))
    assert rows[-1]["eval/reverse_kl"] < 0.6 * rows[0]["eval/reverse_kl"]
    assert rows[3]["policy/loss"] == pytest.approx(rows[3]["kl/teacher"], rel=1e-5)
    assert {"policy/teacher_entropy", "reward/mean"} <= {*rows[3]} and {"eval/overlap", "eval/accuracy"} <= {*rows[-1]}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["reverse_kl_after"] == pytest.approx(rows[-1]["eval/reverse_kl"], rel=1e-6)
    interval = [rows[-1][f"eval/reverse_kl_{end}"] for end in ("low", "high")]
    assert summary["reverse_kl_interval_after"] == pytest.approx(interval, rel=1e-6)
    assert "held-out reverse KL " in capsys.readouterr().out
    assert {row["kind"] for row in read_lines(out / "samples.jsonl")} == {"eval", "train"}
    assert AutoModelForCausalLM.from_pretrained(out / "final").config.vocab_size == 262


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [
        "--objective forward_kl --lora_rank 4 --merge_lora",
        "--objective jsd --beta 0.1 --precision bf16 --teacher_precision fp32 --gradient_checkpointing",
    ],
)
def test_settings_run(flags, more):
    command, out = flags("run", *more.split())
    assert od.main(command) == 0
    rows = without_clock(out)
    assert [row["step"] for row in rows] == [0, 1, 2] and all(np.isfinite(list(row.values())).all() for row in rows)
    assert rows[1]["optim/updates"] > 0
    before, after = load_file(f"{command[1]}/model.safetensors"), weights(out)
    assert before.keys() == after.keys() and not same(before, after)


class Teacher:
    """What vLLM's OpenAI-compatible server answers to requests with prompt_logprobs, from the embedded model."""

    def __init__(self, fault: str):
        self.model = AutoModelForCausalLM.from_pretrained(TINY_LM)
        self.tokenizer = AutoTokenizer.from_pretrained(TINY_LM)
        self.fault, self.asked = fault, []

    def __call__(self, request) -> tuple:
        if request.body is None:
            return 200, {"data": [{"id": "served"} | ({"max_model_len": 32} if self.fault == "short" else {})]}
        self.asked.append(request.body)
        ids, k = request.body["prompt"], request.body["prompt_logprobs"]
        if self.fault == "gone" and len(self.asked) > 18:  # the check, 8 held-out prompts, a step of 8, and more
            return 400, {}
        if self.fault == "short" and len(ids) + request.body["max_tokens"] > 32:
            return 400, {"error": {"message": "maximum context length is 32 tokens"}}
        choice = {"text": "x"} if self.fault == "none" else {"text": "x", "prompt_logprobs": self.scored(ids, k)}
        return 200, {"choices": [choice]}

    def scored(self, ids: list[int], k: int) -> list:
        """Log-probs of each token behind those before it, and of the k best in its place."""
        with torch.no_grad():
            dist = torch.log_softmax(self.model(input_ids=torch.tensor([ids])).logits[0].double(), -1)
        scored = [None]
        for row, token in zip(dist, ids[1:], strict=False):
            best = row.topk(k).indices.tolist() if k else []
            entry = {str(i): {"logprob": row[i].item(), "decoded_token": self.text(i)} for i in [token, *best]}
            scored.append(entry)
        return scored

    def text(self, token: int) -> str:
        return self.tokenizer.decode([(token + 1) % 262 if self.fault == "vocabulary" else token])


@pytest.fixture
def server(monkeypatch):
    """server(fault) -> URL of a stand-in for the embedded model, and the list of what it was asked."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with contextlib.ExitStack() as running:

        def start(fault=""):
            teacher = Teacher(fault)
            return f"{running.enter_context(serving(teacher))}/v1", teacher.asked

        yield start


def test_a_server_that_is_gone_ends_the_run_with_the_steps_so_far(flags, server, capsys):
    command, out = flags("run", "--kl_top_k", 6, teacher=server("gone")[0])
    assert od.main(command) == 3
    assert "vllm serve" in capsys.readouterr().err
    assert [folder.name for folder in (out / "checkpoints").iterdir()] == ["step-000001"]


URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--objective policy_gradient --kl_top_k 3", "--kl_top_k with policy_gradient"),
        ("--beta 0.2", "--objective jsd"),
        ("--group_size 3", "whole groups"),
        ("--reward_coef 1", "--group_size 8"),
        ("--minibatches 3", "try --batch_size 9"),
        ("--kl_coef 0", "which leave no loss"),
        ("--teacher=", "make_tiny_lm.py --teacher"),
    ],
)
def test_wrong_settings_are_told(flags, capsys, more, told):
    command, out = flags("run", *more.split())
    assert od.main(command) == 2
    text = capsys.readouterr().err
    assert told in text and "got" in text and not out.exists(), text


@pytest.mark.parametrize(
    ("teacher", "more", "told"),
    [
        (URL, "", "--kl_top_k 20"),
        (URL, "--objective policy_gradient --temperature 0.5", "expected 1"),
        ("none", "--kl_top_k 6", "without prompt_logprobs"),  # of a server that answers
        ("vocabulary", "--kl_top_k 6", "vocabulary differs"),
        ("few positions", "", "at most 16 together, all that"),
        ("short", "--kl_top_k 3 --max_new_tokens 40", "a length of 32; expected one above; try --max-model-len"),
    ],
)
def test_wrong_teachers_are_told(flags, server, capsys, tmp_path, teacher, more, told):
    if teacher == "few positions":
        teacher = str(tmp_path / "short")
        AutoModelForCausalLM.from_pretrained(TINY_LM, max_position_embeddings=16).save_pretrained(teacher)
        AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(teacher)
    elif teacher.isalpha():
        teacher = server(teacher)[0]
    command, out = flags("run", *more.split(), teacher=teacher)
    assert od.main(command) == 2
    assert told in capsys.readouterr().err and not out.exists()


def test_plan_is_printed_without_loading_weights(flags, capsys, monkeypatch):
    monkeypatch.setattr(od, "load_network", None)
    command, out = flags("run", "--dry_run", "--teacher-precision", "bf16")
    assert od.main(command) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["batch"]["completions_per_step"] == 8 and plan["parameters"]["teacher"] == 427392
    assert plan["settings"]["lr"] == 1e-3 and not out.exists()
    assert plan["memory_estimate"]["teacher (GiB)"] == round(427392 * 2 / 2**30, 3)


def test_teacher_precision_is_its_own(setup):
    _, models = setup("tiny_lm", "llama", teacher_precision="bf16")
    kinds = {p.dtype for p in models.teacher.model.parameters() if p.dim() > 1}
    assert torch.bfloat16 in kinds and {p.dtype for p in models.policy.parameters()} == {torch.float32}
    piece = od.collate(made_up_samples(models), 0, CPU)
    exact = setup("tiny_lm", "llama")[1].teacher.states(piece)
    assert 1e-4 < relative(models.teacher.states(piece), exact) < 0.03


@pytest.mark.parametrize("updates", [1, 2])
def test_advantage_is_the_discounted_log_ratio_of_the_teacher(setup, updates):
    """Oracle: the teacher's Hugging Face logits of each row alone."""
    config, models = setup(objective="policy_gradient", discount=0.5, temperature=0.7, ppo_epochs=updates)
    samples = made_up_samples(models)
    batch = od.make_experience(config, models, samples, 2.0)
    for i, sample in enumerate(samples):
        ids, n = torch.tensor([sample["prompt_ids"] + sample["response_ids"]]), len(sample["response_ids"])
        with torch.no_grad():
            logits = (m(input_ids=ids).logits[0, -n - 1 : -1].double() for m in (models.teacher.model, models.policy))
            theirs, ours = (torch.log_softmax(x / 0.7, -1).gather(-1, ids[0, -n:, None]).squeeze(-1) for x in logits)
        seen = ours if updates > 1 else torch.tensor(sample["rollout_logprobs"], dtype=torch.float64)
        gap, expected = seen - theirs, []
        for t in range(n):
            expected.append(-2.0 * sum(0.5 ** (u - t) * gap[u].item() for u in range(t, n)))
        where = batch["response_mask"][i].bool()
        torch.testing.assert_close(batch["advantages"][i, where].tolist(), expected, rtol=1e-4, atol=1e-4)
        assert (batch["advantages"][i, ~where] == 0).all()


@pytest.mark.long
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(flags):
    more = ["--steps", 5, "--save_every", 1, "--eval_every", 2, "--objective", "policy_gradient", "--discount", 0.5]
    more += ["--group_size", 2, "--reward_coef", 0.5]
    plain, expected = flags("plain", *more, "--lr_schedule", "cosine")
    assert od.main(plain) == 0
    killed, out = flags("killed", *more, "--lr_schedule", "cosine", "--resume")
    run = start_script("on_policy_distillation", *killed)
    while not run.done() and not (out / "checkpoints" / "step-000002").exists():
        time.sleep(0.02)
    signal_script(signal.SIGKILL)
    assert run.result().returncode == -signal.SIGKILL, "it came to its end before the kill"
    assert od.main(killed) == 0
    assert without_clock(out) == without_clock(expected)
    assert same(weights(expected), weights(out))
