"""What a GPU or a launch of several processes needs, as far as a CPU shows it."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import FEW, TINY_LM, free_port, run_script, save_random_model
from safetensors.torch import load_file
from transformers import AutoTokenizer

from parts.foundation.exit_codes import exit_code
from parts.foundation.messages import UserError, say_once
from parts.foundation.processes import start_processes
from parts.networks.cache_probe import groups_gap, load_sampler
from parts.networks.faster_layers import foldable_layers
from parts.networks.key_cache import wide_product
from parts.networks.models import settle_precision
from parts.sampling.sampling import HFEngine
from programs.ppo_train.models import load_models
from programs.ppo_train.settings import Config
from programs.warm_start.settings import Config as WarmStart
from programs.warm_start.workshop import Teacher

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7], [8, 9, 10, 11]] * 4


def config_of(**settings) -> Config:
    plain = {"algorithm": "grpo", "kl_coef": 0.0, "device": "cpu", "batch_size": 8, "max_new_tokens": 12}
    return Config(**plain | settings)


def engine_of(**settings) -> HFEngine:
    config = config_of(**settings)
    return HFEngine(config, load_models(config, CPU))


def with_adapters(**settings) -> HFEngine:
    """An engine whose policy has LoRA that changes it, and is folded as on a GPU of 80 GiB."""
    torch.manual_seed(0)
    engine, generator = engine_of(lora_rank=4, **settings), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in engine.models.policy.named_parameters():
            if "lora_B" in name:
                p += 0.05 * torch.randn(p.shape, generator=generator)
    engine.layers = on_a_gpu(engine.models.policy)
    return engine


def on_a_gpu(policy, gib: float = 80) -> list:
    """The layers that would be folded on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (0, int(gib * 2**30)))
        return foldable_layers(policy, torch.device("cuda"))


def fails_beside_a_sum(rank: int, port: int, out) -> None:
    """Process 1 raises while process 0 waits for it in a sum; leaving the group waits for ever, as under NCCL."""
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.stderr = open(f"{out}/{rank}", "w")
    dist.destroy_process_group = lambda: time.sleep(1000)

    def run():
        start_processes(config_of())
        if rank == 1:
            raise UserError("no such file")
        dist.all_reduce(torch.zeros(1))

    sys.exit(exit_code(run))


def test_an_error_of_one_process_ends_it_at_once(tmp_path):
    port = free_port()
    forks = multiprocessing.get_context("fork")  # torch is loaded already
    processes = [forks.Process(target=fails_beside_a_sum, args=(i, port, tmp_path)) for i in range(2)]
    for process in processes:
        process.start()
    try:
        processes[1].join(120)
        assert processes[1].exitcode == 2 and "error: no such file" in (tmp_path / "1").read_text()
        processes[0].join(120)
        assert processes[0].exitcode not in (None, 0)
    finally:
        for process in processes:
            process.kill()


def test_one_gpu_for_several_processes_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"got --device cuda:1 for 2 processes.*try --device cuda.*CUDA_VISIBLE"):
        start_processes(config_of(device="cuda:1"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # one process on each of several machines
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    assert start_processes(config_of(device="cuda:1")) == torch.device("cuda:1") and chosen == [torch.device("cuda:1")]


NOISY = """
import os, random, signal

calls = 0

def noisy(prompts, completions, **kwargs):
    global calls
    calls += 1
    scores = [len(str(c)) % 7 + random.random() for c in completions]
    if str(calls) == os.environ.get("SIGNAL_AT"):
        os.kill(os.getpid(), signal.SIGTERM)
        while True:  # a reward that takes longer than torchrun waits
            pass
    return scores
"""


@pytest.mark.long
def test_a_step_left_before_its_update_is_done_again_exactly(tmp_path):
    """Calls of the reward: the evaluation before step 1, step 1, its evaluation, step 2, its evaluation, step 3."""
    (tmp_path / "rewards.py").write_text(NOISY)
    flags = [*FEW, "--eval_rows=4", "--eval_every=1"]
    flags += ["--reward", f"{tmp_path / 'rewards.py'}:noisy", "--steps=3", "--save_every=0", "--plot_every=0"]
    flags += ["--batch_size=4", "--minibatches=1", "--max_new_tokens=6", "--sample_every=1"]

    def run(name: str, *more: str, **env: str):
        return run_script("ppo_train", *flags, f"--output_dir={tmp_path / name}", *more, env=env)

    assert run("whole").returncode == 0
    for more, call, step in ((), 3, 1), (("--resume",), 4, 2):  # in an evaluation, which is made again; in a rollout
        cut = run("parts", *more, TORCHELASTIC_RUN_ID="none", SIGNAL_AT=str(call))
        assert cut.returncode == 128 + signal.SIGTERM, cut.stderr
        assert f"stopped by signal 15 after step {step}" in cut.stderr
    resumed = run("parts", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    logs = [(tmp_path / name / "samples.jsonl").read_text() for name in ("whole", "parts")]
    assert logs[0] == logs[1]
    weights = [load_file(tmp_path / name / "final" / "model.safetensors") for name in ("whole", "parts")]
    assert all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())


def test_a_teacher_that_only_samples_is_frozen_in_the_precision_of_the_run():
    config = WarmStart(teacher=str(TINY_LM), precision="bf16", device="cpu")
    shop = SimpleNamespace(config=config, device=CPU, rows=[{"prompt": "1+1=", "columns": {}}], release=lambda: None)
    policy = Teacher(shop).models.policy
    assert not any(p.requires_grad for p in policy.parameters())
    assert {m.weight.dtype for m in policy.model.layers.modules() if isinstance(m, torch.nn.Linear)} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("precision", "able", "warned"), [("bf16", False, True), ("bf16", True, False), ("auto", False, False)]
)
def test_a_precision_that_a_cpu_emulates_is_said_to_be_slow(precision, able, warned, monkeypatch, capsys):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: able)
    say_once.cache_clear()
    torch.backends.cuda.enable_cudnn_sdp(True)
    settle_precision(config_of(precision=precision), CPU)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert (f"warning: got precision {precision} on a CPU" in capsys.readouterr().err) == warned


def test_scores_of_bf16_are_summed_and_kept_in_float32():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(shape, generator=generator).bfloat16() * 4 for shape in ((2, 3, 5, 64), (2, 3, 64, 7)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = wide_product(x, y)
    expected = x.double() @ y.double()
    assert product.dtype == torch.float32
    torch.testing.assert_close(product.double(), expected, rtol=1e-6, atol=1e-4)  # rounded to bf16: off by 1 and more


def test_grouped_prompts_stay_on_in_bf16_where_scores_are_large(tmp_path):
    """With scores of 60 and more, as Qwen2.5 has them, bf16 scores moved states by 0.09."""
    config = config_of(model=save_random_model("llama", tmp_path), precision="bf16")
    models = load_models(config, CPU)
    with torch.no_grad():
        for layer in models.policy.model.layers:
            layer.self_attn.q_proj.weight *= 12
            layer.self_attn.k_proj.weight *= 12
        size = models.policy.get_input_embeddings().weight.shape[0]
        assert groups_gap(config, models, size) < 0.06


def test_a_cache_is_kept_as_attention_reads_it(monkeypatch):
    """Half the memory in bf16, no rounding of all keys for each token; the completions are the same."""
    engine = engine_of(precision="bf16")
    draws = np.random.default_rng(0).random((8, 12))
    with engine.ready():
        *_, cache = engine.read(PROMPTS)
    assert {x.dtype for layer in cache.layers for x in (layer.keys, layer.values)} == {torch.bfloat16}
    outputs = engine.generate(PROMPTS, draws)
    monkeypatch.setattr("parts.networks.key_cache.as_read", lambda x: x)
    assert engine.generate(PROMPTS, draws) == outputs


def test_sampling_runs_the_weights_with_lora_in_them():
    """Log-probs are those of the policy with its adapters beside; test_pretended_cuda.py counts the kernels."""
    engine = with_adapters()
    outputs = engine.generate(PROMPTS, np.full((8, 12), 0.5))
    for prompt, (ids, logprobs) in zip(PROMPTS, outputs, strict=True):
        with torch.no_grad():
            logits = engine.models.policy(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        logits = logits[:, : engine.models.policy.get_base_model().known_tokens]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprobs), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("precision", "fails"), [("bf16", False), ("fp32", True)])
def test_the_base_is_bitwise_the_same_after_sampling(precision, fails):
    engine = with_adapters(precision=precision)
    policy = engine.models.policy
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in policy.named_parameters()}
    inside = {}

    with contextlib.suppress(InterruptedError), engine.ready():
        inside.update((name, p.detach().clone()) for name, p in policy.named_parameters())
        if fails:
            raise InterruptedError
    for name, p in policy.named_parameters():
        place, value = before[name]
        assert p.data_ptr() == place and torch.equal(p, value), name
    assert sum(not torch.equal(inside[name], value) for name, (_, value) in before.items()) == len(engine.layers) > 0
    assert not any(layer.merged for layer in engine.layers)


def test_where_a_copy_does_not_fit_lora_stays_beside_its_base(capsys):
    policy = with_adapters().models.policy
    assert "note: LoRA runs" not in capsys.readouterr().err
    assert not on_a_gpu(policy, gib=0.001)
    assert "note: LoRA runs beside its base while sampling" in capsys.readouterr().err
    assert not foldable_layers(policy, CPU)


def test_a_tied_output_layer_under_lora_is_not_folded(capsys):
    """Its weight is the input embedding's, too."""
    from peft import LoraConfig, get_peft_model

    base = load_sampler(config_of(), AutoTokenizer.from_pretrained(TINY_LM), CPU, "model").policy
    assert base.get_input_embeddings().weight is base.get_output_embeddings().weight
    model = get_peft_model(base, LoraConfig(target_modules=["lm_head", "q_proj"]))
    names = [name for name, m in model.named_modules() if any(m is layer for layer in on_a_gpu(model))]
    assert names and all(name.endswith("q_proj") for name in names)
    assert f"in 1 of {len(names) + 1} layers" in capsys.readouterr().err
