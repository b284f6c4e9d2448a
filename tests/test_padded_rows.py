"""Rows of an embedding that no token has: neither sampled nor learnt about, whatever their probability."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, TINY_LM, TRAIN_DATA, load_module, load_script, read_lines, write_lines
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from programs.grpo_train.colocated import sample_tokens_only
from programs.grpo_train.settings import Config as GRPOSettings

od, ppo, ev = (load_script(name) for name in ("on_policy_distillation", "ppo_train", "evaluation"))
page = load_module(ROOT / "templates" / "distillation.py", "padded_page")
CPU, TOKENS = torch.device("cpu"), 262


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    """padded(rows) -> the embedded model with more rows, which are likelier than the tokens."""

    def make(rows: int) -> str:
        folder = tmp_path_factory.mktemp(f"rows{rows}")
        model = AutoModelForCausalLM.from_pretrained(TINY_LM, dtype=torch.float32)
        model.resize_token_embeddings(rows)
        generator = torch.Generator().manual_seed(rows)
        with torch.no_grad():
            model.get_output_embeddings().weight[TOKENS:] = torch.randn(rows - TOKENS, 128, generator=generator)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(folder)
        return str(folder)

    return make


def test_loss_and_gradient_are_those_of_the_shared_tokens():
    """Against sums over a vocabulary of 5 tokens in float64; the student has 9 rows."""
    torch.manual_seed(0)
    policy = LlamaForCausalLM(
        LlamaConfig(vocab_size=9, hidden_size=6, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1)
    ).double()
    policy.known_tokens = 5
    weight = policy.lm_head.weight
    torch.nn.init.normal_(weight)
    hidden = torch.randn(3, 6, dtype=torch.float64)
    teacher = torch.randn(3, 5, dtype=torch.float64).log_softmax(-1)
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    known = {"weights": weights, "input_ids": torch.tensor([0, 4, 2])}
    leaf, config = hidden.clone().requires_grad_(), od.Config(teacher="t", temperature=0.7)
    scale = torch.ones((), dtype=torch.float64)
    loss, figures, _ = od.token_gradients(config, policy, leaf, known, teacher, scale)

    other, total = hidden.clone().requires_grad_(), 0
    for n in range(3):
        raw = [(weight[v].detach() * other[n]).sum() / 0.7 for v in range(9)]
        z = sum(x.exp() for x in raw[:5])
        kl = sum(raw[v].exp() / z * (raw[v] - z.log() - teacher[n, v]) for v in range(5))
        lost = sum(x.exp() for x in raw[5:]) / sum(x.exp() for x in raw)
        assert figures[n, 0].item() == pytest.approx(kl.item(), rel=1e-10)
        assert figures[n, -1].item() == pytest.approx(lost.item(), rel=1e-10) and lost > 0.05
        total = total + weights[n] * kl
    total.backward()
    assert loss.item() == pytest.approx(total.item(), rel=1e-10)
    torch.testing.assert_close(leaf.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert not weight.grad[5:].any()


def test_student_and_teacher_of_any_widths_share_the_tokens(padded):
    student, teacher = padded(320), padded(300)
    config = od.Config(model=student, teacher=teacher, batch_size=4, max_new_tokens=12, ppo_epochs=2)
    models = od.load_models(config, CPU)
    prompts = [[5, 40, 41], [60, 61], [7], [90, 91, 92, 93]]
    noise = np.random.default_rng(0).random((4, 12))
    sampled = od.HFEngine(config, models).generate(prompts, noise)
    assert max(id for ids, _ in sampled for id in ids) < TOKENS
    same, samples = {"finished": True, "score": 0.0, "rewards": {}, "prompt": "", "completion": ""}, []
    for i, (p, (ids, q)) in enumerate(zip(prompts, sampled, strict=True)):
        samples.append(same | {"prompt_ids": p, "response_ids": ids, "rollout_logprobs": q, "group": i})
    batch = od.make_experience(config, models, samples, 1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    figures = od.accumulate_gradients(config, models, batch, np.arange(4), scaler).values
    kl, lost, count = 0.0, 0.0, 0
    for sample in samples:
        ids, start = torch.tensor([sample["prompt_ids"] + sample["response_ids"]]), len(sample["prompt_ids"]) - 1
        with torch.no_grad():
            whole, theirs = (m(ids).logits[0, start:-1].double() for m in (models.policy, models.teacher.model))
        s, t = whole[:, :TOKENS].log_softmax(-1), theirs[:, :TOKENS].log_softmax(-1)
        own = torch.tensor(sample["response_ids"])[:, None]
        assert sample["rollout_logprobs"] == pytest.approx(s.gather(1, own)[:, 0].tolist(), abs=1e-4)
        kl, count = kl + (s.exp() * (s - t)).sum().item(), count + len(own)
        lost += whole.softmax(-1)[:, TOKENS:].sum().item()
    assert figures["kl/teacher"].item() == pytest.approx(kl / count, rel=1e-4)
    assert figures["policy/lost_mass"] == pytest.approx(lost / count, rel=1e-4) and lost / count > 0.1


def test_ppo_samples_and_trains_on_tokens_alone(padded):
    config = ppo.Config(model=padded(300), algorithm="grpo", max_new_tokens=12, batch_size=4, kl_coef=0.1)
    models = ppo.load_models(config, CPU)
    [(ids, logprobs)] = ppo.HFEngine(config, models).generate([[5, 40, 41]], np.full((1, 12), 0.999))
    assert max(ids) < TOKENS
    piece = {"input_ids": torch.tensor([[5, 40, 41, *ids]])}
    piece |= {"attention_mask": torch.ones_like(piece["input_ids"])}
    piece["response_mask"] = piece["attention_mask"] * torch.tensor([[0] * 3 + [1] * len(ids)])
    with torch.no_grad():
        for network in (models.policy, models.reference):
            hidden = ppo.predicting_states(network, piece)
            found, _ = ppo.token_logprobs(config, network, hidden, piece)
            torch.testing.assert_close(found[0, 3:], torch.tensor(logprobs), atol=1e-4, rtol=0)


def test_evaluation_samples_tokens_alone_and_scores_by_all_rows(padded):
    """Log-probs are those of lm-eval, which knows of no rows without token."""
    model = ev.LocalModel(ev.Config(task=["math"], cache=False, max_new_tokens=12), padded(300), CPU)
    prompt, answer, results = [5, 40, 41], [60, 61], {}
    model.generate([ev.Request(ids=prompt, limit=12, sample=0, stops=[])], results.__setitem__)
    assert max(results[0]["ids"]) < TOKENS
    model.logprob([ev.Request(ids=prompt, limit=0, sample=0, stops=[], scored=answer)], results.__setitem__)
    with torch.no_grad():
        logits = model.model(torch.tensor([prompt + answer])).logits[0, 2:-1].double()
    expected = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum().item()
    assert results[0]["logprob"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("rows", [(320, 300), (300, 320)])
def test_the_page_samples_and_learns_tokens_alone(padded, rows, tmp_path, monkeypatch):
    student, teacher = map(padded, rows)
    write_lines(tmp_path / "train.jsonl", read_lines(TRAIN_DATA)[:8])
    monkeypatch.chdir(tmp_path)
    names = {"model": student, "teacher": teacher, "data": "train.jsonl"}
    config = page.Config(**names, max_new_tokens=12, steps=1, batch_size=4)
    models = page.load_models(config)
    batch = page.generate(config, models, [[5, 40, 41], [60]])
    assert batch["input_ids"].max() < TOKENS
    page.train(config)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.vocab_size == rows[0]
    assert np.isfinite(read_lines(tmp_path / "out/metrics.jsonl")[0]["kl/teacher"])


def test_trl_samples_tokens_alone(padded):
    """Of TRL's trainer only what samples: the network and its own generation settings."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(padded(300)), AutoTokenizer.from_pretrained(TINY_LM)
    settings = GenerationConfig(do_sample=True, max_new_tokens=30, pad_token_id=0)
    trainer = SimpleNamespace(model=model, processing_class=tokenizer, eos_token_ids=[2], generation_config=settings)
    ids = torch.tensor([[5, 40, 41]] * 4)
    assert model.generate(ids, generation_config=settings)[:, 3:].max() >= TOKENS
    sample_tokens_only(GRPOSettings(), trainer)
    torch.manual_seed(0)
    assert model.generate(ids, generation_config=settings)[:, 3:].max() < TOKENS
