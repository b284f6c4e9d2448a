"""Batch sizes by the memory that is free, runs that cannot fit, and memory that runs out during a run."""

import dataclasses
import json
import types
from unittest.mock import Mock

import pytest
import torch
from conftest import FEW, QWEN, TINY_LM, load_script, read_lines

from parts.foundation.exit_codes import code_of
from parts.foundation.messages import MemoryShortage, UserError, is_out_of_memory
from parts.foundation.processes import room_for
from parts.networks.cache_probe import holds
from parts.running import fit
from parts.running.memory import DRAWN, PassShape, decoder_shape, sampling_bytes
from parts.sampling import sampling
from programs.warm_start import workshop
from programs.warm_start.settings import Config as WarmStart

GIB, MIB = 2**30, 2**20
TRAINERS = ("ppo_train", "on_policy_distillation", "grpo_train", "warm_start")
SMALL = {  # a run of a few seconds on the embedded model
    "ppo_train": [*FEW, "--batch_size=16", "--eval_rows=4", "--max_new_tokens=8", "--steps=3"],
    "on_policy_distillation": [*FEW, f"--teacher={TINY_LM}", "--batch_size=8", "--eval_rows=4", "--steps=3"],
    "grpo_train": [*FEW, "--use_cpu", "--num_generations=4", "--max_completion_length=8", "--eval_rows=4", "--steps=3"],
    "warm_start": [*FEW, "--self", "--max_new_tokens=24", "--eval_prompts=4", "--eval_samples=2"],
}


def with_free(monkeypatch, script, mib: float) -> None:
    """Let a script find so many MiB free of 64 GiB."""
    monkeypatch.setattr(script, "main_memory", lambda: {"free": mib * MIB, "total": 64 * GIB})


@pytest.mark.parametrize(
    ("free", "value", "lowered", "warned"),
    [(64 * 1024, "", False, False), (60, "", True, False), (60, "auto", True, False), (60, "8192", False, True)],
)
def test_sizes_follow_free_memory_and_a_users_own_is_kept(free, value, lowered, warned, capsys, monkeypatch):
    ppo = load_script("ppo_train")
    with_free(monkeypatch, ppo, free)
    given = [f"--model={TINY_LM}", *[f"--micro_batch_tokens={value}"] * bool(value)]
    assert ppo.main(["--dry_run", "--device=cpu", *FEW, *given]) == 0
    out, said = capsys.readouterr()
    shown = json.loads(out)
    tokens = shown["settings"].get("micro_batch_tokens", 8192)
    assert (tokens < 8192) is lowered and f"micro-batches of {tokens:,} tokens" in said
    peaks = [size for name, size in shown["memory_estimate"].items() if name.startswith("peak")]
    assert (max(peaks) * 1024 > free) is warned is ("warning: micro-batches of 8,192 tokens" in said)


def test_processes_share_and_heed_the_one_that_has_least(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(fit, "device_memory", lambda _: {"free": 8.0, "total": 16.0})
    monkeypatch.setattr(fit, "gather_rows", lambda mine: [*mine, {"free": 6.0, "total": 12.0}])
    assert fit.memory_for_each("cpu") == {"free": 3.0, "total": 12.0}
    assert fit.memory_for_each("cpu", aside=0.25) == {"free": 1.5, "total": 12.0}
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # what vLLM takes on a CPU, in place of its share
    assert fit.memory_for_each("cpu", aside=0.25)["free"] < fit.memory_for_each("cpu")["free"] == 3.0


def test_half_the_forward_pass_of_trl_has_twice_the_passes(capsys, monkeypatch):
    grpo = load_script("grpo_train")
    flags = ["--dry_run", "--use_cpu", *FEW, f"--model={TINY_LM}", "--precision=fp32"]

    def batch(free, *more):
        with_free(monkeypatch, grpo, free)
        assert grpo.main([*flags, *more]) == 0
        shown = json.loads(capsys.readouterr().out)
        size = shown["settings"].get("per_device_train_batch_size", 8)
        return size, size * shown["settings"].get("gradient_accumulation_steps", 8), shown["batch"]

    whole, product, plan = batch(64 * 1024)
    less, same, plan_of_less = batch(700)
    assert (less < whole, same, plan_of_less) == (True, product, plan)
    assert batch(700, "--loss_type=bnpo")[0] == whole  # its loss is divided by a forward pass's tokens
    assert batch(400, "--profile=cpu")[0] < 64  # a profile is no wish
    assert batch(400, "--profile=cpu", "--per_device_train_batch_size=64")[0] == 64


def test_draws_in_pieces_are_the_draws_of_all(monkeypatch):
    torch.manual_seed(0)
    engine, dist = object.__new__(sampling.HFEngine), torch.randn(7, 50).log_softmax(-1)
    uniform = torch.rand(7, dtype=torch.float64)
    whole = engine.draw(dist, uniform)
    monkeypatch.setattr(sampling, "DRAWN_ON_CPU", 100)
    assert torch.equal(engine.draw(dist, uniform), whole)


def test_sampling_counts_logits_and_probabilities():
    """1,024 rows of Qwen2.5's vocabulary: three tensors in float32, and three pieces in float64."""
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 151_936}
    shape = decoder_shape(config)
    by_hand = 1024 * 151_936 * 12 + 3 * 8 * 2**24 + 2 * 8 * 4 * 1024 * 20  # and the cache
    assert sampling_bytes(shape, PassShape(1024, 12), 8) == by_hand and sampling.DRAWN_AT_ONCE == DRAWN


@pytest.mark.parametrize("name", TRAINERS)
def test_a_run_that_cannot_fit_is_refused_before_loading(name, tmp_path, capsys, monkeypatch):
    script, out = load_script(name), tmp_path / "run"
    with_free(monkeypatch, script, 2)
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", lambda *_, **__: pytest.fail("loaded"))
    assert script.main([*SMALL[name], f"--model={TINY_LM}", f"--output_dir={out}"]) == 2
    error = capsys.readouterr().err
    assert "even with the smallest batches; expected at most the 0.002 GiB that cpu has free" in error
    assert not (out / "config.json").exists()


def test_what_would_fit_is_named_with_its_need_and_fits():
    """By the estimate of Qwen2.5-0.5B alone: 4 GiB free hold no 16 bytes a weight, and hold adapters."""
    ppo = load_script("ppo_train")
    config = ppo.Config(algorithm="grpo", kl_coef=0.0, precision="fp32", max_new_tokens=512)
    config.__class__ = type("Config", (ppo.Config,), {})
    network = torch.nn.Linear(1, 1, device="meta")
    network.weight = torch.nn.Parameter(torch.empty(494_000_000, device="meta"))
    network.config = type("C", (), {"_attn_implementation": "sdpa", "get_text_config": lambda self: self})()
    network.config.to_dict = lambda: QWEN
    sizes = ppo.rollout_sizes(config, lambda c: ppo.memory_estimate(c, network, 100, 1), 100, 1)
    advised = list(ppo.lighter_that_fit(config, sizes, 4 * GIB))
    assert len(advised) == 1 and advised[0].startswith("--lora_rank 16")  # neither recomputing nor short answers help
    needs = float(advised[0].rpartition("(")[2].split()[0])
    assert 494e6 * 4 / GIB < needs <= 4
    bits = list(ppo.lighter_that_fit(config, sizes, 1.5 * GIB))
    assert bits and "--load_in_4bit" in bits[0]
    config.resume = True  # adapters are another run
    assert not list(ppo.lighter_that_fit(config, sizes, 4 * GIB))


def test_ppo_is_told_to_share_its_critic():
    ppo = load_script("ppo_train")
    config = ppo.Config(model=str(TINY_LM), precision="fp32", device="cpu")
    sizes = ppo.sizes_of_run(config, [{"prompt_ids": [1] * 8}], 1)
    need = ppo.choose(dataclasses.replace(config, critic="shared"), sizes, 0, heed=False)
    assert next(ppo.lighter_that_fit(config, sizes, need)).startswith("--critic shared (")


ERRORS = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    "older cuda": RuntimeError("CUDA out of memory. Tried to allocate"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"),
    "windows": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    "python": MemoryError(),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_of_memory_are_known(kind):
    wrapped = ValueError("does not load")
    wrapped.__cause__ = ERRORS[kind]
    assert is_out_of_memory(ERRORS[kind]) and is_out_of_memory(wrapped)
    told = r"got an out-of-memory error while sampling \(.+\); expected enough memory; try less"
    with pytest.raises(MemoryShortage, match=told), room_for("while sampling", "less"):
        raise ERRORS[kind]


def test_other_errors_pass():
    for error in (RuntimeError("shape"), UserError("reward f: out of memory")):
        with pytest.raises(type(error), match=str(error)), room_for("while sampling", "less"):
            raise error
    with pytest.raises(torch.OutOfMemoryError):  # a probe that runs out of memory does not judge the architecture
        holds(Mock(side_effect=ERRORS["cuda"]), 0.1)


def test_out_of_memory_while_loading_is_no_fault_of_the_model(tmp_path, capsys, monkeypatch):
    script = load_script("ppo_train")

    scarce = Mock(side_effect=ERRORS["cuda"])
    for place in ("load_pretrained", "plain_states"):
        with monkeypatch.context() as patch:
            patch.setattr(script, place, scarce)
            assert script.main([*SMALL["ppo_train"], f"--output_dir={tmp_path / place}"]) == 2
        error = capsys.readouterr().err
        assert "got an out-of-memory error while" in error and "architecture" not in error and "hub id" not in error


PHASES = {  # what is said, what goes on, and the checkpoint that is there
    "sampling": ("while sampling", "--rollout_batch_size=4", ["step-000001"]),
    "update": ("in the update", "--micro_batch_tokens=4096", []),  # a minibatch may have trained already
}


def figures(out) -> list[dict]:
    """What a run logged of its steps, rewards and losses."""
    rows = read_lines(out / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k.split("/")[0] in ("reward", "step", "policy")} for row in rows]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "phase"), [("ppo_train", "sampling"), ("ppo_train", "update"), ("on_policy_distillation", "update")]
)
def test_a_run_goes_on_where_memory_ran_out(name, phase, tmp_path, capsys, monkeypatch):
    script, out = load_script(name), tmp_path / "run"
    said, flag, saved = PHASES[phase]
    flags = [*SMALL[name], "--eval_every=0", "--save_every=0"]
    holder, attribute = (script.HFEngine, "sample") if phase == "sampling" else (script, "accumulate_gradients")
    real = getattr(holder, attribute)

    def scarce(*args, **kwargs):
        if (out / "metrics.jsonl").exists() and '"step": 1,' in (out / "metrics.jsonl").read_text():
            raise ERRORS["cuda"]
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(holder, attribute, scarce)
        assert script.main([*flags, f"--output_dir={out}"]) == 2
    error = capsys.readouterr().err
    assert f"got an out-of-memory error {said} (CUDA out of memory. Tried to allocate 2 GiB)" in error
    assert f"try --resume {flag.split('=')[0]}" in error and "Traceback" not in error
    assert [path.name for path in (out / "checkpoints").glob("*")] == saved and not (out / "final").exists()
    assert script.main([*flags, f"--output_dir={out}", "--resume", flag]) == 0
    assert script.main([*flags, f"--output_dir={tmp_path / 'undisturbed'}"]) == 0
    for one, other in zip(figures(out), figures(tmp_path / "undisturbed"), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)


def test_a_warm_start_samples_on_in_smaller_batches(capsys, monkeypatch):
    shop = object.__new__(workshop.Workshop)
    shop.at_once, shop.vllm, shop.reward, sizes = 8, None, None, []
    engine = types.SimpleNamespace(config=WarmStart())

    def scarce(config, *_):
        sizes.append(config.rollout_batch_size)
        if sizes[-1] > 2:
            raise ERRORS["cuda"]
        return ["done"]

    monkeypatch.setattr(workshop, "collect", scarce)
    assert shop.samples(None, engine, [], None) == ["done"]
    assert sizes == [8, 4, 2] and "going on with 2 completions at once" in capsys.readouterr().err
    assert engine.config.rollout_batch_size == 2


def test_ctrl_c_while_memory_runs_out_stays_ctrl_c(capsys):
    error = KeyboardInterrupt()
    error.__context__ = RuntimeError("CUDA out of memory")
    assert code_of(error, "fix it", "stopped at once") == 130
    assert "stopped at once" in capsys.readouterr().err
