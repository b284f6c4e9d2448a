"""Every trainer on a pretended CUDA device: nothing lies on the wrong device, the host rarely waits."""

import functools
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import EVAL_DATA, FEW, ROOT, SECOND_ATTEMPT, TINY_LM, TRAIN_DATA, load_module, read_lines, write_lines
from pretended_cuda import PretendedCuda
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

from parts.networks import key_cache
from parts.networks.faster_layers import one_kernel_norms, replaced
from parts.networks.models import settle_precision
from parts.sampling.room_steps import RoomSteps
from parts.sampling.sampling import HFEngine
from programs.ppo_train.models import load_models
from programs.ppo_train.settings import Config


@functools.cache
def page(name: str):
    """templates/NAME.py as a module."""
    return load_module(ROOT / "templates" / f"{name}.py", f"pretended_{name}")


def test_planted_faults_are_reported_with_their_lines_and_waits_are_counted():
    """Ids that stayed on the CPU, in a recomputed layer; numpy without a copy; in a graph, a wait and a copy."""
    with PretendedCuda() as gpu:
        x = torch.ones(3, device="cuda") * torch.tensor(2.0)
        for count, call in enumerate((x.tolist, lambda: x[x > 0], lambda: torch.tensor([1, 2], device="cuda"))):
            assert gpu.waits.total() == count and not gpu.faults, (gpu.waits, gpu.faults)
            call()
        embedding(torch.tensor([1]), x.view(3, 1))
        checkpoint(lambda y: y.exp() * torch.ones(3), x.requires_grad_(), use_reentrant=False).sum().backward()
        x.detach().numpy()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.sum().item()
            torch.tensor([1.0], device="cuda")
    for text in ("tensor [(1,)]", "tensor [(3,)]", "numpy of a CUDA", "in a graph"):
        assert any("test_pretended_cuda.py:" in fault and text in fault for fault in gpu.faults), (text, gpu.faults)


# (kernels, waits of the host) for each more token of a batch, at most, with the embedded model of 2 layers; they may
# only fall. A page waits once: transformers looks whether the mask has a pad
PER_TOKEN = {"fp32": (93, 0.125), "bf16, LoRA": (107, 0.125), "bf16, LoRA, graphs": (32, 0.125), "page": (133, 1.125)}


def per_token(gpu, sample, few: int = 9, many: int = 17) -> tuple[float, float]:
    """(launches, waits) for each token between `few` and `many`; no row ends."""
    counts = []
    for tokens in (few, many):
        launches, waits = gpu.launches, gpu.waits.total()
        sample(tokens)
        counts.append((gpu.launches - launches, gpu.waits.total() - waits))
    return tuple((b - a) / (many - few) for a, b in zip(*counts, strict=True))


def engine_of(kind: str) -> HFEngine:
    """A sampler of 8 rows on the pretended GPU."""
    precision, *more = kind.split(", ")
    settings = {"lora_rank": 4 * ("LoRA" in more), "decode_graphs": "graphs" in more}
    config = Config(algorithm="grpo", device="cuda", batch_size=8, precision=precision, **settings)
    settle_precision(config, torch.device("cuda"))
    return HFEngine(config, load_models(config, torch.device("cuda")))


@pytest.mark.parametrize("kind", [kind for kind in PER_TOKEN if kind != "page"])
def test_a_token_of_the_sampler_waits_rarely_and_launches_few_kernels(kind):
    with PretendedCuda() as gpu, torch.no_grad():
        engine = engine_of(kind)
        config = engine.config
        engine.end_ids.fill_(10**6)

        def sample(tokens: int) -> None:
            config.max_new_tokens = tokens
            engine.generate([[5, 6, 7], [5, 6, 7, 8]] * 4, np.full((8, tokens), 0.5))

        launches, waits = per_token(gpu, sample)
    most = PER_TOKEN[kind]
    assert launches <= most[0] and waits <= most[1] and not gpu.faults, (launches, waits, gpu.faults)


def test_what_a_graph_replays_is_what_runs_without_it(monkeypatch):
    """Numbers and addresses stay as they were recorded, while rooms grow and rows leave."""
    monkeypatch.setattr(key_cache, "BLOCK", 4)
    prompts, draws = [[5, 6, 7], [5, 6, 7, 8], [9], [*range(20, 50)]] * 2, np.random.default_rng(0).random((8, 20))
    with PretendedCuda() as gpu, torch.no_grad():
        engine, recorded = engine_of("fp32, graphs"), []
        engine.config.max_new_tokens = 20
        record = RoomSteps.record
        monkeypatch.setattr(RoomSteps, "record", lambda steps: recorded.append(len(steps.token)) or record(steps))
        replayed = engine.generate(prompts, draws)
        engine.graphs = False
        plain = engine.generate(prompts, draws)
    assert not gpu.faults and len(recorded) >= 4 and recorded[-1] < 8, (gpu.faults, recorded)
    assert [ids for ids, _ in replayed] == [ids for ids, _ in plain]
    for (_, one), (_, other) in zip(replayed, plain, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("name", ["Llama", "Gemma3", "Mamba2"])
def test_norms_in_one_kernel_are_those_of_transformers(name):
    module = importlib.import_module(f"transformers.models.{name.lower()}.modeling_{name.lower()}")
    kind = module.MambaRMSNormGated if name == "Mamba2" else getattr(module, f"{name}RMSNorm")
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(0)) * 3
    for dtype in (torch.float32, torch.bfloat16):
        norm = (kind(64, 64) if name == "Mamba2" else kind(64)).to(dtype)
        norm.weight.data += torch.linspace(-1, 1, 64).to(dtype)
        pairs = one_kernel_norms(norm, torch.device("cuda"))
        if name == "Mamba2":  # it has a gate
            assert not pairs
            continue
        expected = norm(x.to(dtype))
        with replaced(pairs):
            torch.testing.assert_close(norm(x.to(dtype)), expected, rtol=1e-6, atol=1e-6)
            assert norm.forward is pairs[0][1]
        assert "forward" not in vars(norm)


@pytest.mark.parametrize("name", ["grpo", "distillation"])  # the pages sample by the same function
def test_a_token_of_a_page_waits_rarely_and_its_head_is_in_fp32(name):
    settings = {"model": str(TINY_LM), "data": "", "teacher": str(TINY_LM), "kl_coef": 0.0}
    with PretendedCuda() as gpu:
        models = page(name).load_models(SimpleNamespace(**settings))
        models.eos_ids, dtypes = [10**6], set()
        for module in (models.policy.get_output_embeddings(), models.policy.model.layers[0].self_attn.q_proj):
            module.register_forward_hook(lambda module, _, out: dtypes.add((module.out_features > 200, out.dtype)))

        def sample(tokens: int) -> None:
            config = SimpleNamespace(max_new_tokens=tokens, temperature=1.0)
            page(name).generate(config, models, [[5, 6, 7], [5, 6, 7, 8]] * 4)

        launches, waits = per_token(gpu, sample)
    most = PER_TOKEN["page"]
    assert launches <= most[0] and waits <= most[1] and not gpu.faults, (launches, waits, gpu.faults)
    assert dtypes == {(True, torch.float32), (False, torch.bfloat16)}
    assert not torch.backends.cuda.cudnn_sdp_enabled()


PPO = "--batch_size 8 --max_new_tokens 12 --eval_rows 4 --plot_every 0 --save_every 1 --steps 1 --device cuda".split()
PPO += FEW
GRPO = [*PPO, "--algorithm=grpo", "--group_size=4"]
TRL_SIZES = "--steps 1 --num_generations 4 --max_completion_length 12 --eval_rows 4 --plot_every 0".split()
WARM_SIZES = "--self --prompts_per_round 12 --samples 4 --rounds 1 --min_rounds 1 --max_new_tokens 24"
WARM_SIZES += " --batch_size 8 --rollout_batch_size 16 --eval_prompts 4 --eval_samples 4 --device cuda"
EVALUATION = f"--model {TINY_LM} --task math --data {EVAL_DATA} --limit 8 --max_new_tokens 12 --device cuda".split()
RUNS = {
    "PPO, a reference, two updates": ("ppo_train", [*PPO, "--minibatches=2", "--kl_coef=0.05"]),
    "GRPO, layers recomputed": ("ppo_train", [*GRPO, "--gradient_checkpointing", "--precision=fp32"]),
    "GRPO with LoRA": ("ppo_train", [*GRPO, "--lora_rank=4"]),
    "GRPO with an environment": ("ppo_train", [*GRPO, f"--environment={SECOND_ATTEMPT}", "--max_turns=2"]),
    "distillation": ("on_policy_distillation", [*PPO, f"--teacher={TINY_LM}"]),
    "evaluation": ("evaluation", EVALUATION),
    "TRL": ("grpo_train", [*FEW, *TRL_SIZES]),
    "warm start": ("warm_start", [*FEW, *WARM_SIZES.split()]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_run_and_its_resume_keep_to_the_device(name, tmp_path, monkeypatch):
    program, flags = RUNS[name]
    if name in ("TRL", "warm start"):
        for trainer in ("grpo", "sft"):  # they look for CUDA as they load
            importlib.import_module(f"trl.trainer.{trainer}_trainer")
    command = importlib.import_module(f"programs.{program}.run")
    monkeypatch.setattr("programs.warm_start.supervise.FEWEST_STEPS", 2)
    monkeypatch.setattr("parts.running.progress.plot_curves", lambda source, target: target.touch())

    def run(flags: list[str]) -> int:
        return command.run(command.parse_config(flags) if program == "evaluation" else flags)

    with PretendedCuda() as gpu:
        assert run([*flags, f"--output_dir={tmp_path}"]) == 0
        if name.startswith(("PPO", "distillation")):  # what a checkpoint brings back is loaded in one place for all
            assert run([*flags, f"--output_dir={tmp_path}", "--steps=2", "--resume"]) == 0
    assert not gpu.faults and gpu.launches > 1000


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {"reward": "my.py:reward", "batch_size": 4}),
        ("grpo", {"reward": "my.py:reward", "prompts": 2, "group_size": 2}),
        ("distillation", {"reward": "my.py:reward", "batch_size": 4, "teacher": str(TINY_LM)}),
        ("multi_turn", {"environment": SECOND_ATTEMPT, "prompts": 2, "group_size": 2}),
    ],
)
def test_a_page_keeps_to_the_device(name, settings, tmp_path, monkeypatch):
    for file, source in (("train", TRAIN_DATA), ("test", EVAL_DATA)):
        write_lines(tmp_path / f"{file}.jsonl", read_lines(source)[:4])
    (tmp_path / "my.py").write_text("def reward(completion, answer):\n    return float(answer in completion)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page(name).signal, "signal", lambda *_: None)
    common = {"model": str(TINY_LM), "data": "train.jsonl", "eval_data": "test.jsonl", "steps": 1, "max_new_tokens": 8}
    with PretendedCuda() as gpu:
        page(name).train(page(name).Config(**common, **settings))
    assert not gpu.faults and gpu.launches > 1000 and (tmp_path / "out" / "result.json").exists()
