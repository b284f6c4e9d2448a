"""Rules that all trainers share: rows that count, AdamW, precision and device, files, learning rates."""

import itertools
import json
import os
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import EVAL_DATA, FEW, ROOT, TINY_LM, TRAIN_DATA, load_script, read_lines, write_lines
from safetensors import SafetensorError
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer
from transformers.modeling_layers import GradientCheckpointingLayer

from parts.foundation.bundle import has_embedded_prompts

ppo, distillation, grpo, verl = map(load_script, ("ppo_train", "on_policy_distillation", "grpo_train", "verl_train"))
CPU = torch.device("cpu")


def anchored_loss(logprobs, old_logprobs, advantages, **_):
    """-A ratio + 0.1 (log ratio)^2: the second term stands outside the advantage."""
    d = logprobs - old_logprobs
    return -advantages * d.exp() + 0.1 * d**2, d.detach() * 0


@pytest.mark.parametrize(("declared", "rows"), [(True, [0, 1]), (False, [1])])
def test_a_new_loss_says_whether_rows_of_advantage_zero_train(monkeypatch, declared, rows):
    monkeypatch.setitem(ppo.LOSSES, "anchored", ppo.PolicyLoss(anchored_loss, trains_zero_advantage=declared))
    config = ppo.Config(algorithm="grpo", loss="anchored", kl_coef=0.0)
    advantages = torch.tensor([[0.0, 0.0], [0.0, 0.5], [1.0, 1.0]])
    batch = {"loss_mask": torch.tensor([[1, 1], [0, 1], [0, 0]]), "advantages": advantages}
    assert ppo.contributing(config, batch) == rows
    with pytest.raises(TypeError, match="trains_zero_advantage"):
        ppo.PolicyLoss(anchored_loss)


def test_adamw_moves_small_gradients_as_far_as_torch_does():
    """Gradients of 1e-7, as large models have them: with an epsilon of 1e-5 the step would be 1 % as long."""
    weight = torch.nn.Linear(3, 2, bias=False)
    models = SimpleNamespace(policy=weight, critic=None)
    for settings, betas, eps in (({}, (0.9, 0.999), 1e-8), ({"adam_beta2": 0.95, "adam_eps": 1e-6}, (0.9, 0.95), 1e-6)):
        before = weight.weight.detach().clone()
        expected = before.clone().requires_grad_()
        optimizer = ppo.make_optimizer(ppo.Config(lr=1e-2, **settings), models)
        oracle = torch.optim.AdamW([expected], lr=1e-2, betas=betas, eps=eps, weight_decay=0.0)
        for size in (1e-7, 3e-7):
            for p, step in ((weight.weight, optimizer), (expected, oracle)):
                p.grad = torch.full_like(p, size)
                step.step()
        torch.testing.assert_close(weight.weight, expected, rtol=0, atol=1e-7)


def test_learning_rates_by_role_and_size():
    for role, rates in {  # of all weights and of LoRA, from 50M parameters on; of both below
        "policy": [1e-6, 1e-5, 2e-4, 2e-4],
        "critic": [1e-5, 1e-5, 1e-3, 1e-3],
        "student": [1e-5, 1e-4, 1e-3, 1e-3],
        "trl_policy": [1e-6, 1e-5, 5e-4, 5e-3],
    }.items():
        cases = itertools.product((5e7, 4.9e7), (False, True))
        assert [ppo.default_learning_rate(role, *case) for case in cases] == rates, role


def test_every_trainer_takes_the_rule():
    assert ppo.learning_rates(ppo.Config(), 4e5) == verl.learning_rates(verl.Config(), 4e5) == (2e-4, 1e-3)
    assert ppo.learning_rates(ppo.Config(lr=3e-5, lora_rank=4), 1e9) == (3e-5, 1e-5)
    assert distillation.student_learning_rate(distillation.Config(lora_rank=4), 1e9) == 1e-4
    assert [grpo.fill_in(grpo.Config(lora_rank=r), n).learning_rate for r, n in ((4, 1e9), (0, 4e5))] == [1e-5, 5e-4]


def test_auto_precision_is_bf16_where_the_gpu_has_it(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: asked.append(how) or able)
    for able, name in ((True, "bf16"), (False, "fp32")):  # noqa: B007 (read by the lambda)
        assert ppo.precision_on("auto", torch.device("cuda")) == name
    assert asked == [{"including_emulation": False}] * 2, "an emulated bf16 is slower than fp32"
    for kind in ("cpu", "mps"):
        assert ppo.precision_on("auto", torch.device(kind)) == "fp32"
    assert ppo.precision_on("fp16", CPU) == "fp16"


def test_precision_and_tf32_are_said_on_a_gpu(monkeypatch, capsys):
    chosen = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    for precision, device, told in (
        ("auto", "cuda", "precision bf16 (auto); float32 matrix products may use TF32"),
        ("fp32", "cuda", "precision fp32; float32 matrix products without TF32"),
        ("auto", "cpu", ""),
    ):
        ppo.settle_precision(ppo.Config(precision=precision), torch.device(device))
        error = capsys.readouterr().err
        assert told in error and bool(told) == bool(error)
    assert chosen == ["high", "highest", "highest"]


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    named = {name: ppo.device_name(ppo.Config(device=name)) for name in ("auto", "cpu", "mps")}
    assert named == {"auto": "cpu", "cpu": "cpu", "mps": "mps"}
    for name in ("cuda", "cuda:1", "gpu", "mps:0"):
        with pytest.raises(ppo.UserError, match=f"got --device {name}; expected"):
            ppo.device_name(ppo.Config(device=name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [ppo.device_name(ppo.Config(device=name)) for name in ("auto", "cuda:1")] == ["cuda", "cuda:1"]


class NoFloat64(TorchDispatchMode):
    """Fails where an operation gives float64, conversions of what numpy drew aside, as Apple's GPUs have none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        wide = isinstance(out, torch.Tensor) and out.dtype == torch.float64
        assert not wide or func.overloadpacket.__name__ in ("detach", "lift_fresh", "alias"), func
        return out


def test_a_step_and_its_draws_without_float64(monkeypatch, tmp_path):
    """Tokens drawn in float32 are those in float64, and none of probability 0 is drawn at the edge."""
    log_probs = torch.log_softmax(torch.randn(500, 40, generator=torch.Generator().manual_seed(0)), -1)
    uniform = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wide, narrow_uniform = ppo.inverse_cdf(log_probs, uniform), uniform.float()
    assert ppo.widest_float(torch.device("mps")) == torch.float32 and ppo.widest_float(CPU) == torch.float64
    monkeypatch.setattr(ppo, "widest_float", lambda device: torch.float32)
    flags = ["--steps=1", "--batch_size=8", "--max_new_tokens=4", "--algorithm=clip_cov", "--group_size=4"]
    flags += ["--plot_every=0", "--save_every=0", "--eval_data=", f"--output_dir={tmp_path / 'run'}"]
    with NoFloat64():
        narrow = ppo.inverse_cdf(log_probs, narrow_uniform)
        edge = ppo.inverse_cdf(torch.tensor([[0.5, 0.5, 0.0]]).log(), torch.ones(1))
        assert ppo.main([*flags, f"--data={EVAL_DATA}"]) == 0
    assert (narrow != wide).sum() <= 1 and edge.tolist() == [1]


@pytest.fixture
def umask():
    """Set the umask of this process, until the test ends."""
    earlier = os.umask(0o027)
    yield 0o027
    os.umask(earlier)


PADDING = {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None}
PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
SMALL = ["--batch_size=8", "--max_new_tokens=4", "--save_every=1"]
RUNS = {
    "ppo_train": [*SMALL, "--plot_every=1", "--report_to=tensorboard"],
    "ppo_train LoRA": [*SMALL, "--lora_rank=2", "--algorithm=grpo"],
    "on_policy_distillation": SMALL,
    "grpo_train": ["--profile=cpu", "--per_device_train_batch_size=8", "--max_completion_length=8", "--save_steps=1"],
}


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS)
def test_outputs_follow_the_umask_and_the_tokenizer_is_the_loaded_one(run, umask, tmp_path):
    """Of a copy of the embedded model whose tokenizer.json asks for padding."""
    start, expected, out = tmp_path / "model", tmp_path / "expected", tmp_path / "run"
    shutil.copytree(TINY_LM, start)
    settings = json.loads((start / "tokenizer.json").read_text())
    (start / "tokenizer.json").write_text(json.dumps(settings | {"padding": PADDING}))
    AutoTokenizer.from_pretrained(start).save_pretrained(expected)
    assert json.loads((expected / "tokenizer.json").read_text())["padding"] == PADDING
    trainer, data = load_script(run.split()[0]), write_lines(tmp_path / "few.jsonl", read_lines(EVAL_DATA)[:8])
    flags = [f"--model={start}", f"--data={data}", "--steps=1", *RUNS[run], f"--output_dir={out}"]
    flags += [f"--teacher={start}"] * (trainer is distillation)
    flags += [f"--reward={ROOT / 'examples' / 'reward_functions_library.py'}:correctness_reward"]
    assert trainer.main(flags) == 0
    found = {str(p.relative_to(out)): p.stat().st_mode & 0o777 for p in out.rglob("*") if p.is_file()}
    assert any(name.endswith(".safetensors") for name in found)
    assert {name: mode for name, mode in found.items() if mode != 0o666 & ~umask} == {}
    saved = [p.parent for p in out.rglob("tokenizer.json")]
    assert len(saved) == 2, "final/ and the checkpoint"
    for folder in saved:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            assert (folder / name).read_bytes() == (expected / name).read_bytes(), (folder, name)


def test_selfcheck_runs_the_network_as_the_trainer_does(monkeypatch):
    """With recomputation only its layers are in train mode; a Dropout-like module stays in eval mode."""
    trainer, seen = load_script("selfcheck").ScriptsTrainer(ppo), set()
    trainer.config = ppo.Config(gradient_checkpointing=True, batch_size=4, max_new_tokens=4)
    trainer.models = models = ppo.load_models(trainer.config, CPU)
    modules = [*models.policy.modules(), *models.critic.backbone.modules()]

    def look(*_) -> None:
        seen.update((isinstance(module, GradientCheckpointingLayer), module.training) for module in modules)

    monkeypatch.setattr(ppo, "accumulate_gradients", look)
    trainer.gradients({})
    assert seen == {(True, True), (False, False)} and not any(module.training for module in modules)


@pytest.mark.parametrize("name", ["ppo_train", "verl_train"])
def test_data_without_a_reward_are_refused_in_the_same_words(name, tmp_path, capsys):
    (tmp_path / "own.jsonl").write_text('{"prompt": "Name a colour.", "answer": "red"}\n' * 8)
    flags = [f"--data={tmp_path / 'own.jsonl'}", f"--eval_data={EVAL_DATA}", f"--output_dir={tmp_path / 'run'}"]
    flags += ["--batch_size=8", *(["--print"] if name == "verl_train" else [])]
    assert load_script(name).main(flags) == 2
    said = "got --data without a reward; expected one that fits it; try --reward FILE.py:function"
    assert said in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("row", "is_embedded"),
    [
        (TRAIN_DATA.read_text().splitlines()[5], True),
        ('{"prompt": "What is 3 + 4?"}', False),
        ('["prompt"]', False),
        ("prompt,answer", False),
    ],
)
def test_a_part_of_the_embedded_prompts_has_the_embedded_rewards(row, is_embedded, tmp_path):
    (tmp_path / "some.jsonl").write_text(f"{TRAIN_DATA.read_text().splitlines()[0]}\n\n{row}\n")
    assert has_embedded_prompts(str(tmp_path / "some.jsonl")) is is_embedded


WITHOUT_WORDS = RuntimeError()
WITHOUT_WORDS.__cause__ = OSError(28, "No space left on device")
BY_SAFETENSORS = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
FULL = [lambda *_: torch.save({"x": torch.zeros(10_000)}, "/dev/full")]
FULL += [Mock(side_effect=error) for error in (BY_SAFETENSORS, WITHOUT_WORDS)]


@pytest.mark.parametrize("fill", FULL, ids=["by torch", "by safetensors", "without words"])
def test_a_full_disk_is_named(fill, tmp_path, capsys):
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "state.json").write_text("{}")
    with pytest.raises(ppo.UserError, match=r"a full disk while saving .*checkpoints are intact"):
        ppo.write_folder(tmp_path / "step-1", fill)
    assert [str(x.relative_to(tmp_path)) for x in tmp_path.rglob("*.json")] == ["step-1/state.json"]
    assert ppo.exit_code(fill) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: got no space left on the disk (") and "--resume" in said and said.count("\n") == 1


WRITERS = {  # of each way to write: where root, too, can write nothing
    "create_reward_template": ["--task", "math", "--output", "/proc/x.py"],
    "new_notebook": ["--output", "/proc/x.ipynb"],
    "verl_train": ["--print", *FEW, "--output_dir", "/proc/x"],
    "data_loader": [str(EVAL_DATA), "--out", "/proc/x.jsonl"],
    "generate_dockerfile": ["--output", "/proc/x"],
    "new_trainer": ["grpo", "/proc/x.py"],
    "evaluation": ["--task", "math", *FEW[:1], "--limit", "2", "--output_dir", "/proc/x"],
    "ppo_train": [*FEW, "--output_dir", "/proc/x", "--steps", "1", "--batch_size", "4"],
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_cannot_be_written_is_a_sentence(name, capsys):
    assert load_script(name).main(WRITERS[name]) == 2
    assert "error: got " in (said := capsys.readouterr().err) and "Traceback" not in said
