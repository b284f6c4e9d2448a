"""evaluation.py and grpo_train.py with the real vLLM."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EVAL_DATA, ROOT, load_script, read_lines, script_env, write_lines
from vllm_helpers import ENV, metrics, with_wider_heads


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with 48 held-out rows."""
    folder = tmp_path_factory.mktemp("data")
    write_lines(folder / "eval.jsonl", read_lines(EVAL_DATA)[:48])
    return folder


DATA = ROOT / "tests" / "data" / "evaluation"
PROBLEMS = ["--task", "math:template=gsm8k", "--data", DATA / "problems.jsonl"]
PROBLEMS += ["--max_new_tokens", 40, "--cache", "false"]
FEW_SHOTS = ["--fewshot", 3, "--fewshot_data", DATA / "shots.jsonl", "--chat_template", "off"]
SETTINGS = {"3 text": FEW_SHOTS, "0 chat": ["--chat_template", "on"]}
EXAMPLES = ROOT / "examples" / "environments.py"
PRODUCTS = ["--environment", f"{EXAMPLES}:Calculator", "--data", ROOT / "assets" / "data" / "products_eval.jsonl"]
PRODUCTS += ["--limit", 24, "--max_turns", 3, "--max_new_tokens", 32, "--max_prompt_tokens", 64, "--cache", "false"]
ON_VLLM = ["--engine", "vllm", "--vllm_args", "max_num_seqs=16"]


def evaluated(out, model, *flags) -> tuple[dict, list]:
    """Results of the only task, without times, and the lines of samples.jsonl."""
    code = load_script("evaluation").main([*map(str, ["--model", model, "--output_dir", out, *flags])])
    assert code == 0
    (task,) = json.loads((out / "results.json").read_text())["tasks"].values()
    return task["values"], read_lines(out / "samples.jsonl")


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The stored models with heads of a size that vLLM's kernels on a CPU take; their own are of 12 and 16."""
    folder = tmp_path_factory.mktemp("wide")
    sources = {"bos": DATA / "bos", "plain": DATA / "plain", "tools": ROOT / "assets" / "tiny_tools_lm"}
    return {name: with_wider_heads(source, folder / name) for name, source in sources.items()}


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("name", ["bos", "plain"])
def test_vllm_gives_the_figures_of_our_engine_and_of_the_harness(tmp_path, wide, name, how):
    """On the two models whose completions by lm-evaluation-harness are stored."""
    expected = json.loads((DATA / "oracle.json").read_text())[f"{name} problems {how} 64"]
    ours = evaluated(tmp_path / "hf", DATA / name, *PROBLEMS, *SETTINGS[how])
    theirs = evaluated(tmp_path / "vllm", wide[name], *PROBLEMS, *SETTINGS[how], *ON_VLLM)
    assert theirs[0] == ours[0]
    assert [s["completion"] for s in theirs[1]] == [s["completion"] for s in ours[1]] == expected["texts"]


def test_vllm_plays_the_conversations_of_our_engine(tmp_path, wide):
    """Of a model that calls a tool, by token ids."""
    ours = evaluated(tmp_path / "hf", ROOT / "assets" / "tiny_tools_lm", *PRODUCTS)
    theirs = evaluated(tmp_path / "vllm", wide["tools"], *PRODUCTS, *ON_VLLM)
    for values, _ in (ours, theirs):
        values.pop("tool_seconds")
    assert theirs[0] == ours[0] and sum(ours[0]["calls"]["top"]) > 12
    assert [s["pieces"] for s in theirs[1]] == [s["pieces"] for s in ours[1]]


@pytest.fixture(scope="module")
def grpo(folder):
    """Exit codes and messages of the runs of grpo_runs.py, in a process of their own with TRL's vLLM in it."""
    command = [sys.executable, str(Path(__file__).with_name("grpo_runs.py")), str(folder)]
    done = subprocess.run(command, env=script_env(ENV), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "outcomes.json").read_text())


def test_trl_learns_with_vllm_in_its_process(grpo, folder):
    assert grpo["learns"][0] == 0, grpo["learns"][1]
    lines = metrics(folder / "learns")
    assert lines[-1]["eval/accuracy"] > lines[0]["eval/accuracy"] + 0.15
    gaps = [line["rollout/logprob_gap_max"] for line in lines if "rollout/logprob_gap_max" in line]
    assert len(gaps) == 6 and max(gaps) < 1e-4, "0.36 where the output layer is left out of the copies"


@pytest.mark.parametrize("name", ["adapters", "talks"])
def test_merged_adapters_and_conversations_have_logprobs_that_are_the_trainers(grpo, folder, name):
    assert grpo[name][0] == 0, grpo[name][1]
    lines = [line for line in metrics(folder / name) if "policy/loss" in line]
    assert len(lines) == 3 and all(line["rollout/logprob_gap_max"] < 1e-4 for line in lines)
    assert name == "adapters" or all(line["rollout/turns_mean"] > 1.1 for line in lines)


FAULTS = [("partly", 1, "1 tensors: model.layers.1.self_attn.qkv_proj.weight;"), ("unmerged", 2, "log-probs differ by")]


@pytest.mark.parametrize(("fault", "step", "told"), FAULTS)
def test_a_sampler_with_other_weights_ends_trls_run(grpo, folder, fault, step, told):
    """Exit code 5: one tensor not copied, adapters not merged."""
    code, said = grpo[fault]
    assert code == 5 and f"step {step}: got a sampler w" in said and told in said, said
    assert "Traceback" not in said and len(metrics(folder / fault)) < 5


def test_a_server_needs_a_gpu(folder, capsys):
    flags = ["--use_vllm=server", "--use_cpu", "--steps=1"]
    assert load_script("grpo_train").main([*flags, f"--output_dir={folder / 'served'}"]) == 2
    assert "try --use_vllm colocate" in capsys.readouterr().err
    assert not (folder / "served").exists()
