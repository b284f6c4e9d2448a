"""What only a GPU can show, in minutes: the scripts run on one, agree with themselves, learn, resume. `make test-gpu`.

With "cuda" replaced by "cpu" it runs on a CPU too, but for the tests of memory and waits.
"""

import importlib.util
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from conftest import EVAL_DATA, ROOT, TINY_LM, TRAIN_DATA, load_module, load_script, read_lines, run_script

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICE = "cuda"
SIZES = "--batch_size 16 --group_size 4 --max_new_tokens 24 --eval_rows 8 --plot_every 0 --save_every 0".split()
GRPO = ["--algorithm=grpo", *SIZES, f"--device={DEVICE}"]


def metrics(folder) -> list[dict]:
    """A run's rows that have a step's update."""
    return [row for row in read_lines(folder / "metrics.jsonl") if "policy/loss" in row]


def trained(tmp_path, *flags, program="ppo_train") -> list[dict]:
    """Metrics of a run, which must end well."""
    done = run_script(program, *flags, f"--output_dir={tmp_path}", fresh=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return metrics(tmp_path)


def test_the_demo_learns(tmp_path):
    flags = load_module(ROOT / "benchmarks" / "demo_seeds.py", "demo_seeds").demo_flags()
    flags = [str(ROOT / flag) if flag.startswith("assets/") else flag for flag in flags]
    trained(tmp_path, *flags, f"--device={DEVICE}", "--plot_every=0")
    rows = read_lines(tmp_path / "metrics.jsonl")
    assert [row["eval/accuracy"] for row in rows if "eval/accuracy" in row][-1] >= 0.95


@pytest.mark.parametrize(
    "flags",
    [
        ["--precision=bf16"],
        ["--precision=fp16"],
        ["--precision=bf16", "--lora_rank=8"],
    ],
    ids=" ".join,
)
def test_sampler_and_trainer_agree(flags, tmp_path):
    rows = trained(tmp_path, *GRPO, *flags, "--steps=3")
    assert len(rows) == 3 and all(row["mismatch/kl"] < 0.01 for row in rows), rows[-1]


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    flags = [*GRPO, "--precision=fp32", "--save_every=2", "--steps=4"]
    whole = trained(tmp_path / "whole", *flags)
    trained(tmp_path / "cut", *flags, "--steps=2")
    resumed = trained(tmp_path / "cut", *flags, "--resume")
    assert resumed[-1]["optim/grad_norm"] == pytest.approx(whole[-1]["optim/grad_norm"], rel=1e-3)


def test_two_processes_on_one_gpu_are_one(tmp_path):
    flags = [*GRPO, "--precision=fp32", "--steps=2", "--minibatches=2", "--kl_coef=0.05"]
    one = trained(tmp_path / "one", *flags)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    launch += [ROOT / "tests" / "gpu" / "in_group.py", *flags, f"--output_dir={tmp_path / 'two'}"]
    subprocess.run(launch, check=True)
    for a, b in zip(one, metrics(tmp_path / "two"), strict=True):
        assert b["optim/grad_norm"] == pytest.approx(a["optim/grad_norm"], rel=1e-4)
        assert b["kl/ref"] == pytest.approx(a["kl/ref"], rel=1e-4, abs=1e-7)


def test_vllm_samples_with_the_weights_of_the_policy(tmp_path):
    if not importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is not installed")
    rows = trained(tmp_path, *GRPO, "--precision=bf16", "--rollout_engine=vllm", "--steps=3")
    assert all(row["mismatch/kl"] < 0.01 for row in rows), rows[-1]


PROMPTS = ["--model", TINY_LM, "--data", TRAIN_DATA]
CORRECT = ["--reward", f"{ROOT / 'examples' / 'reward_functions_library.py'}:correctness_reward"]
ENVIRONMENT = ["--environment", f"{ROOT / 'examples' / 'environments.py'}:SecondAttempt"]
SHORT = [*PROMPTS, "--steps=2", "--max_new_tokens=24"]
OD = "scripts/on_policy_distillation.py"
DISTILL = [*SHORT, "--teacher", TINY_LM, "--batch_size=16", "--eval_rows=8", "--plot_every=0", f"--device={DEVICE}"]
TRL = "--steps=2 --num_generations=4 --max_completion_length=24 --eval_rows=8 --plot_every=0".split()
EVALUATION = ["--model", TINY_LM, "--task=math", "--data", EVAL_DATA, "--limit=48", "--max_new_tokens=32"]
PAGE = [*SHORT, "--eval_data", EVAL_DATA]
COMMANDS = {  # name: (program, flags, what it leaves)
    "TRL": ("grpo_train", [*TRL, "--output_dir=out"], "out/final"),
    "reverse KL": ("on_policy_distillation", [*DISTILL, "--output_dir=out"], "out/final"),
    "forward KL": ("on_policy_distillation", [*DISTILL, "--objective=forward_kl", "--output_dir=out"], "out/final"),
    "evaluation": ("evaluation", [*EVALUATION, f"--device={DEVICE}", "--output_dir=out"], "out/results.json"),
    "page of GRPO": ("templates/grpo.py", [*PAGE, *CORRECT], "out/result.json"),
    "page of PPO": ("templates/ppo.py", [*PAGE, *CORRECT], "out/result.json"),
    "page of distillation": ("templates/distillation.py", [*PAGE, "--teacher", TINY_LM], "out/result.json"),
    "page of turns": ("templates/multi_turn.py", [*PAGE, *ENVIRONMENT], "out/result.json"),
    "selfcheck of PPO": ("selfcheck", [ROOT / "scripts/ppo_train.py", *PROMPTS, *CORRECT], "."),
    "selfcheck of a page": ("selfcheck", [ROOT / "templates/ppo.py", *PROMPTS, *CORRECT], "."),
    "selfcheck of distillation": ("selfcheck", [ROOT / OD, *PROMPTS, "--teacher", TINY_LM], "."),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_program_runs_on_the_gpu(name, tmp_path):
    program, flags, left = COMMANDS[name]
    done = run_script(ROOT / program if "/" in program else program, *flags, cwd=tmp_path, fresh=True)
    assert done.returncode == 0 and (tmp_path / left).exists(), (done.stdout + done.stderr)[-3000:]


def test_the_preflight_of_a_model_samples_on_the_gpu():
    done = run_script("reward_preflight", *PROMPTS, *CORRECT, "--json", fresh=True)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr[-3000:]


def test_turns_of_an_environment_train(tmp_path):
    flags = [*SIZES, *ENVIRONMENT, "--max_turns=2", "--algorithm=grpo", f"--device={DEVICE}", "--steps=2"]
    rows = trained(tmp_path, *PROMPTS, *flags)
    assert len(rows) == 2 and all(row["mismatch/kl"] < 0.01 for row in rows), rows


@pytest.mark.parametrize("flags", [["--precision=fp32"], ["--precision=bf16", "--lora_rank=8"]], ids=" ".join)
def test_recorded_steps_sample_the_same_tokens(flags, tmp_path):
    runs = [tmp_path / "graphs", tmp_path / "plain"]
    for run, more in zip(runs, ([], ["--decode_graphs=false"]), strict=True):
        trained(run, *GRPO, *flags, *more, "--steps=2", "--max_new_tokens=160", "--lr=1e-6")
    graphs, plain = (metrics(run) for run in runs)
    for a, b in zip(plain, graphs, strict=True):
        assert b["mismatch/kl"] < 0.01
        assert b["reward/mean"] == pytest.approx(a["reward/mean"], abs=1e-6 if "fp32" in flags[0] else 0.2)


def test_a_page_needs_little_beside_a_model_with_a_large_vocabulary():
    page, transformers = load_module(ROOT / "templates/grpo.py", "gpu_page"), importlib.import_module("transformers")
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Qwen2Config(vocab_size=262_144, num_hidden_layers=2, **shape)
    policy = transformers.Qwen2ForCausalLM(config).to(DEVICE).eval()
    ids, ones = torch.randint(5, 1000, (16, 276), device=DEVICE), torch.ones(16, 276, device=DEVICE, dtype=torch.long)
    response = ones * (torch.arange(276, device=DEVICE) >= 20)
    batch = {"input_ids": ids, "attention_mask": ones, "response_mask": response}
    batch |= {"old_logprobs": response * -12.5, "advantages": response * 1.0}
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    settings = page.Config(model="", data="", reward="")
    page.accumulate_gradients(settings, SimpleNamespace(policy=policy), batch, torch.arange(16))
    assert torch.cuda.max_memory_allocated() - before < 10 * 2**30


def test_experts_are_sampled_without_graphs(tmp_path, capsys):
    ppo, transformers = load_script("ppo_train"), importlib.import_module("transformers")
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"vocab_size": 300, "num_hidden_layers": 2, "num_local_experts": 4, "experts_implementation": "eager"}
    transformers.MixtralForCausalLM(transformers.MixtralConfig(**shape, **experts)).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(TINY_LM).save_pretrained(tmp_path)
    config = ppo.Config(model=str(tmp_path), algorithm="grpo", device=DEVICE, batch_size=8, max_new_tokens=8)
    ppo.settle_precision(config, torch.device(DEVICE))
    engine = ppo.HFEngine(config, ppo.load_models(config, torch.device(DEVICE)))
    assert DEVICE == "cpu" or engine.graphs or "without CUDA graphs" in capsys.readouterr().err
    assert len(engine.generate([[5, 6, 7]] * 8, torch.full((8, 8), 0.5).numpy())) == 8


def test_the_sampler_waits_for_the_gpu_at_most_once_in_eight_tokens():
    ppo = load_script("ppo_train")
    config = ppo.Config(algorithm="grpo", device=DEVICE, batch_size=8, max_new_tokens=64)
    ppo.settle_precision(config, torch.device(DEVICE))
    models = ppo.load_models(config, torch.device(DEVICE))
    models.eos_ids = [10**6]
    engine, noise = ppo.HFEngine(config, models), torch.full((8, 64), 0.5).numpy()
    engine.generate([[5, 6, 7]] * 8, noise)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        engine.generate([[5, 6, 7]] * 8, noise)
        torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "synchroniz" in str(warning.message)]
    assert len(waits) <= 64 / 8 + 16, [f"{w.filename}:{w.lineno}" for w in waits]
