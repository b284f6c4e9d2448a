"""What a person does on the first day, on Qwen2.5-Coder-0.5B-Instruct and Gemma 3 270M: `make test-real`."""

import json
import math
import os
import subprocess

import pytest
import torch
from conftest import ROOT, read_lines, run_script, write_lines
from real_helpers import GEMMA, HUMANEVAL, MODELS, QWEN, REWARDS, first_layers, flags_of, held_out, lines_of, run
from transformers import AutoConfig

pytestmark = pytest.mark.skipif(
    not ((QWEN / "config.json").exists() and (GEMMA / "config.json").exists()),
    reason=f"no {QWEN.name} and {GEMMA.name} in {MODELS}; try REAL_MODELS=FOLDER",
)
TRAINERS = ["ppo_train", "on_policy_distillation", "ppo", "grpo", "distillation", "multi_turn"]
EMULATED = not (torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported())
NO_BF16 = pytest.mark.skipif(EMULATED, reason="this CPU emulates bf16, 4 to 80 times slower than fp32")
BOTH = pytest.mark.parametrize("model", [QWEN, GEMMA], ids=["qwen", "gemma"])
SMALL = ["--batch_size=8", "--max_new_tokens=16", "--micro_batch_tokens=512", "--eval_every=0", "--plot_every=0"]
SMALL += ["--save_every=0", "--algorithm=grpo", "--group_size=4", "--lora_rank=4"]
ENVIRONMENTS = ROOT / "examples" / "environments.py"


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """{model: prompts file}: sums as a chat for Qwen, as text for Gemma; beside it rewards.py and held-out ones."""
    folder, files = tmp_path_factory.mktemp("real_data"), {}
    (folder / "rewards.py").write_text(REWARDS)
    for model in (QWEN, GEMMA):
        rows = []
        for i in range(24):
            text = f"Q: 7 + 5 = ?\nA: 12\n\nQ: {11 + i} + {40 - i % 7} = ?\nA:"
            prompt = [{"role": "user", "content": text}] if model == QWEN else text
            rows.append({"prompt": prompt, "answer": str(51 + i - i % 7)})
        files[model] = folder / f"{model.name}.jsonl"
        write_lines(files[model], rows[:20])
        write_lines(folder / f"{model.name}.eval.jsonl", rows[20:])
    return files


@pytest.fixture(scope="session")
def shallow(tmp_path_factory):
    """{model: folder with its first layers}: Gemma's sixth is the first that attends to all tokens."""
    folder = tmp_path_factory.mktemp("shallow")
    return {QWEN: first_layers(QWEN, 2, folder / QWEN.name), GEMMA: first_layers(GEMMA, 6, folder / GEMMA.name)}


@BOTH
@pytest.mark.parametrize("trainer", TRAINERS)
def test_selfcheck_passes(model, trainer, data, shallow):
    """On real weights, vocabulary and tokenizer, but few layers: with all of them a selfcheck takes ten minutes."""
    folder = "scripts" if (ROOT / "scripts" / f"{trainer}.py").exists() else "templates"
    flags = ["--model", shallow[model], "--data", data[model]]
    if "distillation" in trainer:
        flags += ["--teacher", shallow[model]]
    elif trainer == "multi_turn":
        flags += ["--environment", f"{ENVIRONMENTS}:SecondAttempt"]
        if model == GEMMA:
            pytest.skip("a base model without a chat template plays no turns")
    else:
        flags += ["--reward", f"{data[model].parent / 'rewards.py'}:parity"]
    run("selfcheck", ROOT / folder / f"{trainer}.py", *flags)


@BOTH
@pytest.mark.parametrize(
    ("precision", "limit"),
    [("fp32", 1e-4), pytest.param("bf16", 0.5, marks=NO_BF16)],  # Qwen in bf16: 0.12
)
def test_sampler_and_trainer_agree(model, precision, limit, data, tmp_path):
    """The largest difference of a token's log-prob, and what it makes of the whole; two updates a step log it."""
    flags = [*flags_of(data, model), *SMALL, "--minibatches=2", "--steps=2", "--precision", precision]
    run("ppo_train", *flags, "--output_dir", tmp_path / "run")
    steps = [line for line in lines_of(tmp_path / "run") if "mismatch/kl" in line]
    assert steps
    for line in steps:
        assert line["rollout/logprob_gap_max"] < limit and line["mismatch/kl"] < (1e-8 if precision == "fp32" else 1e-2)


@BOTH
@pytest.mark.parametrize(
    ("precision", "limit"),
    [("fp32", 1e-4), pytest.param("bf16", 0.05, marks=NO_BF16)],  # Qwen: 6e-6, 0.018
)
def test_shared_prompts_and_groups_give_the_plain_gradients(model, precision, limit):
    from test_shared_prompts import GRPO, ppo_figures, relative

    settings = GRPO | {"lora_rank": 4, "precision": precision, "micro_batch_tokens": 512}
    plain, shared = (ppo_figures(str(model), how, **settings) for how in (False, True))
    for name, x in plain[0].items():
        if name.endswith("logprobs"):
            close = {"rtol": 1e-5, "atol": 1e-4} if precision == "fp32" else {"rtol": 0, "atol": 0.5}
            torch.testing.assert_close(shared[0][name], x, **close)
    assert relative(shared[2], plain[2]) < limit


def test_a_real_answer_calls_a_tool_and_the_second_turn_has_its_result(tmp_path):
    """Qwen2.5-Coder writes calls as JSON without the tags of its template, even after two examples with them."""
    system = 'Call calculate first, as JSON alone: {"name": "calculate", "arguments": {"expression": "31 + 5"}}'
    rows = [(f"What is {a} * {b}?", str(a * b)) for a, b in ((4123, 5678), (7791, 8313), (6437, 2911), (5209, 7717))]
    turns = [[{"role": "system", "content": system}, {"role": "user", "content": q}] for q, _ in rows]
    lines = [{"prompt": t, "answer": gold} for t, (_, gold) in zip(turns, rows, strict=True)]
    write_lines(tmp_path / "products.jsonl", lines)
    flags = ["--environment", f"{ENVIRONMENTS}:Calculator", "--max_turns=2", "--max_new_tokens=40", "--n=2"]
    flags += ["--temperature=0.7", "--max_prompt_tokens=512", "--model", QWEN, "--data", tmp_path / "products.jsonl"]
    run("evaluation", *flags, "--tool_format=llama3_json", "--output_dir", tmp_path / "out")
    played = read_lines(tmp_path / "out" / "samples.jsonl")
    tools = {gold: [m["role"] for r in played for m in r["messages"] if m["content"] == gold] for _, gold in rows}
    assert any("tool" in roles for roles in tools.values()), played[:4]
    assert any([m["role"] for m in r["messages"]][-2:] == ["tool", "assistant"] for r in played)


def test_adapters_on_four_bits_train(data, tmp_path):
    flags = [*flags_of(data, QWEN), *SMALL, "--load_in_4bit", "--steps=2", "--minibatches=2"]
    run("ppo_train", *flags, "--output_dir", tmp_path / "run")
    steps = [line for line in lines_of(tmp_path / "run") if "optim/grad_norm" in line]
    assert steps and all(math.isfinite(line["optim/grad_norm"]) and line["optim/grad_norm"] > 0 for line in steps)
    assert all(line["rollout/logprob_gap_max"] < 1e-3 for line in steps)  # measured: 5e-5


def test_a_student_of_half_the_layers_comes_nearer_to_its_teacher(data, tmp_path):
    student = first_layers(QWEN, AutoConfig.from_pretrained(QWEN).num_hidden_layers // 2, tmp_path / "student")
    flags = ["--model", student, "--teacher", QWEN, "--data", data[QWEN], "--batch_size=16", "--steps=8"]
    flags += ["--max_new_tokens=12", "--micro_batch_tokens=512", "--save_every=0", "--eval_every=0", "--plot_every=0"]
    run("on_policy_distillation", *flags, "--output_dir", tmp_path / "run")
    kl = [line["kl/teacher"] for line in lines_of(tmp_path / "run") if "kl/teacher" in line]
    assert len(kl) == 8 and sum(kl[-2:]) < 0.9 * sum(kl[:2])


def test_a_warm_start_from_own_samples_keeps_what_passes(data, tmp_path):
    sizes = ["--prompts_per_round=8", "--samples=4", "--max_draws=1", "--rounds=1", "--min_rounds=1"]
    sizes += ["--max_new_tokens=12", "--batch_size=8", "--eval_prompts=4", "--eval_samples=4"]
    flags = [*flags_of(data, QWEN, "has_answer"), *held_out(data, QWEN), "--self", "--lora_rank=4", *sizes]
    run("warm_start", *flags, "--output_dir", tmp_path / "run")
    rounds = json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"]
    assert len(rounds) == 2 and (tmp_path / "run" / "final").is_dir()


def test_humaneval_passes_through_the_sandbox(tmp_path):
    if not HUMANEVAL.exists():
        pytest.skip(f"no {HUMANEVAL}; try HUMANEVAL=FILE")
    flags = ["--task=code:k=1/2", "--data", HUMANEVAL, "--limit=20", "--n=2", "--temperature=0.2"]
    run("evaluation", *flags, "--max_new_tokens=160", "--model", QWEN, "--output_dir", tmp_path / "out")
    (figures,) = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"].values()
    passed = {name: entry["value"] for name, entry in figures["metrics"].items() if name.startswith("pass@")}
    assert 0 < passed["pass@1"] <= passed["pass@2"] <= 1


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=NO_BF16)])
def test_preflight_says_how_often_the_model_passes(precision, data):
    flags = [*flags_of(data, QWEN, "has_answer"), "--limit=4", "--max_new_tokens=12", "--json"]
    flags += ["--precision", precision]
    done = run_script("reward_preflight", *flags, timeout=3600)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["samples"] == 64 and 0 <= report["pass_at_k"]["1"] <= 1, done.stdout


def test_vllm_samples_what_the_trainer_has(data, tmp_path):
    python = ROOT / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        pytest.skip("no .venv-vllm; try make setup-vllm")
    flags = [*flags_of(data, QWEN), *SMALL, "--rollout_engine=vllm", "--check_sync=1", "--steps=2", "--minibatches=2"]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    env |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    command = [python, ROOT / "scripts" / "ppo_train.py", *flags, "--vllm_args", "enforce_eager=true"]
    command += ["--output_dir", tmp_path / "run"]
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(line["mismatch/kl"] < 1e-6 for line in lines_of(tmp_path / "run") if "mismatch/kl" in line)
