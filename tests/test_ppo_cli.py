"""The PPO trainer through its command line: what a run leaves, resuming, processes, rewards, data, and bad input."""

import dataclasses
import json
import math
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from conftest import SCRIPTS, TINY_LM, load_script, read_lines, run_script, torchrun, without_clock
from safetensors.torch import load_file
from small_runs import bf16_model, same, small_task, weights

SIZES = ["--batch_size=8", "--max_new_tokens=8", "--plot_every=0", "--save_every=0", "--eval_every=0"]


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    return small_task(tmp_path_factory.mktemp("small"))


@pytest.fixture
def data(small):
    return [f"--data={small / 'train.jsonl'}", f"--eval_data={small / 'eval.jsonl'}"]


@pytest.fixture
def ours(ppo, capsys):
    """Run the command line in this process; return (exit code, stdout, stderr)."""

    def run(*flags):
        try:
            code = ppo.main([*map(str, flags)])
        except SystemExit as stop:  # argparse
            code = stop.code
        return code, *capsys.readouterr()

    return run


def checkpoints(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    """A finished run of the embedded task through the real command line."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    files = [f"--data={small / 'train.jsonl'}", f"--eval_data={small / 'eval.jsonl'}", f"--output_dir={folder}"]
    sizes = ["--steps=4", "--batch_size=8", "--max_new_tokens=20", "--save_every=1", "--eval_every=3"]
    sizes += ["--sample_every=2", "--plot_every=2", "--keep_checkpoints=2"]
    result = run_script("ppo_train", *files, *sizes, env={"DRAW": "1"})
    assert result.returncode == 0, result.stderr
    return folder, result


def test_metrics_and_samples_of_every_step(finished):
    lines, entries = (read_lines(finished[0] / f"{name}.jsonl") for name in ("metrics", "samples"))
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    expected = {"reward/correctness_reward", "kl/ref", "value/loss", "rollout/tokens_per_s", "time/rollout"}
    assert all(expected <= {*line} for line in lines[1:])
    assert all(math.isfinite(v) for line in lines for v in line.values())
    assert [line["step"] for line in lines if "eval/accuracy" in line] == [0, 3, 4]
    steps = {"eval": (0, 3, 4), "train": (1, 2, 3, 4)}  # steps 1 and 3 show most faults
    assert {(e["step"], e["kind"]) for e in entries} == {(step, kind) for kind in steps for step in steps[kind]}
    for e in entries:
        assert e["prompt"][0]["role"] == "user" and isinstance(e["completion"], str)
        parts = e["rewards"]
        assert e["score"] == pytest.approx(parts["correctness_reward"] + 0.2 * parts["format_reward"])


def test_a_run_leaves_a_summary_its_settings_checkpoints_curves_and_a_model(finished):
    from transformers import AutoModelForCausalLM

    folder, result = finished
    assert "held-out accuracy" in result.stdout and "tokens/s" in result.stderr, "the outcome, and the progress bar"
    assert "warning" not in result.stderr.lower() and "Traceback" not in result.stderr
    summary, lines = json.loads((folder / "summary.json").read_text()), read_lines(folder / "metrics.jsonl")
    assert summary["steps"] == 4 and summary["seed"] == 0 and summary["seconds"] > 0
    assert [summary[f"accuracy_{when}"] for when in ("before", "after")] == [lines[i]["eval/accuracy"] for i in (0, -1)]
    ends = [lines[-1][f"eval/accuracy_{end}"] for end in ("low", "high")]
    assert summary["accuracy_interval_after"] == pytest.approx(ends) and ends[0] <= lines[-1]["eval/accuracy"] < ends[1]
    config = json.loads((folder / "config.json").read_text())
    assert config["max_new_tokens"] == 20
    assert checkpoints(folder) == ["step-000003", "step-000004"]
    assert json.loads((folder / "checkpoints/step-000004/state.json").read_text())["config"] == config
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    model, start = (AutoModelForCausalLM.from_pretrained(path) for path in (folder / "final", TINY_LM))
    assert model.dtype == start.dtype
    gap = max((a - b).abs().max() for a, b in zip(model.parameters(), start.parameters(), strict=True))
    assert 1e-5 < gap < 0.1


@pytest.mark.parametrize(
    ("program", "flags", "wanted"),
    [
        ("ppo_train", (), torch.bfloat16),
        ("ppo_train", ("--save_dtype=fp32", "--precision=bf16", "--lora_rank=2", "--merge_lora"), torch.float32),
        ("grpo_train", ("--save_dtype=fp32",), torch.float32),
    ],
    ids=["checkpoint", "merged in fp32", "TRL in fp32"],
)
def test_final_is_written_in_the_dtype_that_is_asked_for(data, small, tmp_path, program, flags, wanted):
    out, sizes = tmp_path / "run", SIZES
    if program == "grpo_train":
        sizes = ["--per_device_train_batch_size=8", "--num_generations=4", "--max_completion_length=8"]
    given = [*data, *sizes, "--plot_every=0", f"--model={bf16_model(tmp_path / 'model')}"]
    given += [f"--reward={small / 'rewards.py'}:digits", f"--output_dir={out}", "--steps=1"]
    assert load_script(program).main([*given, *flags]) == 0
    final = weights(out)
    assert {x.dtype for x in final.values()} == {wanted}
    if flags:
        assert any(not torch.equal(x, x.bfloat16().float()) for x in final.values()), "fp32 of what bf16 rounded"
    else:
        saved = weights(out, "checkpoints/step-000001/policy/model.safetensors")
        assert {x.dtype for x in saved.values()} == {torch.float32}, "checkpoints keep the fp32 weights"


@pytest.mark.long
def test_trackers(small, data, tmp_path):
    """Tensorboard and wandb (offline) leave their files; the numbers are those of metrics.jsonl."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    flags = [*data, *SIZES, f"--output_dir={out}", "--steps=2", "--report_to=tensorboard", "--report_to=wandb"]
    env = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    env |= {f"WANDB_{name}_DIR": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
    result = run_script("ppo_train", *flags, env=env)
    assert result.returncode == 0, result.stderr
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    lines, name = read_lines(out / "metrics.jsonl")[1:], "rollout/length_mean"  # never 0, as a mean reward may be
    shown = [(m["step"], pytest.approx(m[name], rel=1e-5)) for m in lines]
    assert [(e.step, e.value) for e in events.Scalars(name)] == shown and lines[-1][name] > 0
    assert list((out / "wandb").glob("offline-run-*/*.wandb"))


STATEFUL = [
    *("--steps=6", "--save_every=2", "--eval_every=2", "--sample_every=1", "--minibatches=2"),
    *("--kl_target=0.5", "--lr_schedule=cosine", "--warmup_steps=2", "--batch_size=8", "--max_new_tokens=8"),
]


@pytest.fixture(scope="module")
def uninterrupted(ppo, small, tmp_path_factory):
    """A run whose outcome depends on every kind of state: schedule, adaptive KL, moments, and global generators."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    files = [f"--data={small / 'train.jsonl'}", f"--eval_data={small / 'eval.jsonl'}"]
    flags = [*files, f"--reward={small / 'rewards.py'}:noisy", *STATEFUL]
    assert ppo.main([*flags, f"--output_dir={out}"]) == 0
    return out, flags


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_cut_short_and_resumed_equals_an_uninterrupted_one(ours, uninterrupted, tmp_path, number):
    """The fifth call of the reward (one evaluation at the start, one after step 2) is that of step 3."""
    (plain, flags), out = uninterrupted, tmp_path / "run"
    env = {"SIGNAL_AT": "5", "SIGNAL": str(int(number))}
    cut = run_script("ppo_train", *flags, f"--output_dir={out}", env=env)
    assert cut.returncode == 128 + number, cut.stderr
    assert "Traceback" not in cut.stderr
    assert checkpoints(out) == ["step-000002", "step-000003"]
    assert not (out / "final").exists()
    for _ in "12":  # the second resumes a finished run, which changes nothing
        resumed, _, error = ours(*flags, f"--output_dir={out}", "--resume")
        assert resumed == 0, error
        assert same(weights(out), weights(plain)) and without_clock(out) == without_clock(plain)
    for name in ("critic.pt", "policy/model.safetensors"):
        mine, expected = (folder / "checkpoints" / "step-000006" / name for folder in (out, plain))
        load = load_file if name.endswith("safetensors") else lambda path: torch.load(path, weights_only=True)
        assert same(load(mine), load(expected))
    assert (out / "samples.jsonl").read_text() == (plain / "samples.jsonl").read_text()


@pytest.mark.long
def test_a_reward_that_fails_in_one_process_ends_both(small, data, tmp_path):
    (tmp_path / "fails.py").write_text(
        "import os\n\n\ndef half(prompts, completions, **kwargs):\n"
        "    return [1 / (1 - int(os.environ['RANK'])) for _ in completions]\n"
    )
    flags = [f"--data={small / 'train.jsonl'}", *SIZES, "--steps=2", f"--reward={tmp_path / 'fails.py'}:half"]
    result = torchrun(SCRIPTS / "ppo_train.py", *flags, f"--output_dir={tmp_path / 'run'}")
    assert result.returncode != 0
    assert re.search(r"reward half, \S+train\.jsonl:\d+, completion .*ZeroDivisionError", result.stderr)


def test_rewards_of_every_kind_at_once(ours, small, tmp_path):
    """Weights, None, columns, tensors, two functions of one name, and async ones, which run at the same time."""
    (tmp_path / "other.py").write_text("def first(completions, **kwargs):\n    return [2.0 for _ in completions]\n")
    (tmp_path / "mine.py").write_text("""
import asyncio
import numpy as np
import torch
meeting = asyncio.Barrier(2)
def first(completions, answer):
    return [float(a) for a in answer]
def second(prompts, completions, **kwargs):
    return [None] * (len(prompts) - 1) + [4]
def never(completions, **kwargs):
    return [None] * len(completions)
async def one(completions, **kwargs):
    await asyncio.wait_for(meeting.wait(), 300)
    return torch.ones(len(completions))
async def two(completions, **kwargs):
    await asyncio.wait_for(meeting.wait(), 300)
    return np.full(len(completions), 2.0)
""")
    specs = [f"mine.py:{spec}" for spec in ("first*0.5", "second*-0.1", "never", "one", "two")] + ["other.py:first"]
    flags = [f"--data={small / 'train.jsonl'}", *SIZES, "--steps=1", f"--output_dir={tmp_path / 'run'}"]
    code, _, error = ours(*flags, *(f"--reward={tmp_path}/{spec}" for spec in specs))
    assert code == 0, error
    (line,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert line["reward/second"] == 4.0, "the mean over the rows to which it applies"
    assert line["reward/mean"] == pytest.approx(0.5 * line["reward/first"] - 0.1 * 4 / 8 + 1 + 2 + 2, rel=1e-5)
    assert "reward/never" not in line and [v for k, v in line.items() if k.startswith("reward/first_")] == [2.0]


def test_a_reward_that_fails_stops_the_run_which_goes_on_once_it_is_mended(ours, small, tmp_path, monkeypatch):
    files = [f"--data={small / 'train.jsonl'}", f"--reward={small / 'rewards.py'}:fails"]
    flags, out = [*files, *SIZES, f"--output_dir={tmp_path}", "--steps=3"], tmp_path
    code, _, error = ours(*flags)
    assert code == 3 and "Traceback" not in error
    assert re.search(r"reward fails, .*train.jsonl:\d+, completion .*KeyError: 'no such thing'", error), error
    assert checkpoints(out) == ["step-000002"]
    monkeypatch.setenv("MENDED", "1")
    assert ours(*flags, "--resume")[0] == 0
    assert [line["step"] for line in read_lines(out / "metrics.jsonl")] == [1, 2, 3]


OF_STEP_0 = {"config.json": '{"output_dir": "run", "lr": 1.0}', "metrics.jsonl": '{"step": 0, "eval/accuracy": 0.5}\n'}


@pytest.mark.parametrize(
    ("files", "is_free"),
    [
        (OF_STEP_0, True),
        (OF_STEP_0 | {"checkpoints/.step-000001.tmp/state.json": "{}"}, True),
        (OF_STEP_0 | {"rounds/round-000/measure.json": "{}"}, False),
        (OF_STEP_0 | {"checkpoints/step-000001/state.json": "{}"}, False),
        (OF_STEP_0 | {"checkpoints/checkpoint-20/trainer_state.json": "{}"}, False),
        (OF_STEP_0 | {"metrics.jsonl": OF_STEP_0["metrics.jsonl"] + '{"step": 1, "rew'}, False),
        (OF_STEP_0 | {"metrics.jsonl": '{"loss": 1.5}\n'}, False),  # of another program
        (OF_STEP_0 | {"final/config.json": "{}"}, False),
        ({"config.json": '{"model_type": "llama"}', "model.safetensors": ""}, False),
        ({"config.json": "[]"}, False),
        ({"samples.jsonl": '{"step": 3, "mine": 1}\n'}, False),
    ],
)
def test_what_a_finished_step_has_left_keeps_the_folder(files, is_free, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    ppo = load_script("ppo_train")
    for resume, work in ((False, "holds a run"), (True, "changed settings: lr")):
        config = ppo.Config(output_dir=str(tmp_path), lr=2.0, resume=resume)
        if is_free:
            assert ppo.check_folder(config) is False
        else:
            with pytest.raises(ppo.UserError, match=f"{work}|belongs to no run|no run's config.json"):
                ppo.check_folder(config)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("train.jsonl", "warning: got --resume with a changed {}: prompts are taken from the new rows by number"),
        ("test.jsonl", "warning: got --resume with a changed {}: held-out figures from now on come from other rows"),
        ("own.py", "warning: got --resume with a changed {}: earlier steps ran with another one"),
        ("run/versions.json", "warning: got --resume with a changed torch: earlier steps ran with another one"),
        ("run/metrics.jsonl", ""),
    ],
)
def test_files_and_versions_that_changed_are_told_on_resume(tmp_path, capsys, monkeypatch, changed, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "checkpoints" / "step-000001").mkdir(parents=True)
    for name in ("train.jsonl", "test.jsonl", "own.py", "run/metrics.jsonl"):
        (tmp_path / name).write_text("{}\n")
    ppo = load_script("ppo_train")
    files = {"data": "train.jsonl", "eval_data": "test.jsonl", "metrics_file": "run/metrics.jsonl"}
    config = ppo.Config(output_dir="run", reward=["own.py:f*0.5"], resume=True, **files)
    ppo.write_settings(config)
    path = tmp_path / changed
    path.write_text(path.read_text().replace("{}", "{} ").replace(f'"torch": "{torch.__version__}"', '"torch": "0.9"'))
    assert ppo.check_folder(config)
    said = capsys.readouterr().err
    assert said.startswith(told.format(changed)) and said.count("got --resume") == bool(told)


def test_more_steps_that_move_the_learning_rate_are_noted(tmp_path, capsys):
    """By hand: half of the way, and (1 + cos 45 degrees) / 2."""
    (tmp_path / "checkpoints" / "step-000025").mkdir(parents=True)
    ppo = load_script("ppo_train")
    for schedule, steps, told in (("cosine", 100, True), ("constant", 100, False), ("cosine", 50, False)):
        config = ppo.Config(output_dir=str(tmp_path), resume=True, steps=steps, lr_schedule=schedule)
        (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(config) | {"steps": 50}))
        assert ppo.find_checkpoint(config).name == "step-000025"
        assert ("learning rate of step 26 is 0.854 of its peak, not 0.5" in capsys.readouterr().err) is told


def file_with(name: str, text: str, spec: str = ""):
    """A maker of a flag's value: the path of a file in the test's folder with this text, and what stands behind it."""

    def make(folder: Path) -> str:
        (folder / name).write_text(text)
        return f"{folder / name}{spec}"

    return make


def tokenizer_only(folder: Path) -> str:
    """A model folder whose weights are missing."""
    (folder / "model").mkdir()
    for file in TINY_LM.iterdir():
        if file.suffix != ".safetensors":
            (folder / "model" / file.name).write_bytes(file.read_bytes())
    return str(folder / "model")


def strict_template(folder: Path) -> str:
    """A model whose chat template refuses a role, as Gemma 2's does."""
    tokenizer_only(folder)
    (folder / "model" / "chat_template.jinja").write_text("{{ raise_exception('No user role here') }}")
    return str(folder / "model")


GOOD = '{"prompt": "1+1=", "answer": "2"}\n'
BAD_INPUT = {
    "model absent": (["--model=", "no/such/folder"], ["no/such/folder", "expected"]),
    "model folder without weights": (["--model=", tokenizer_only], ["got model"]),
    "data absent": (["--data=", "nowhere.jsonl"], ["nowhere.jsonl", "expected"]),
    "data broken line": (["--data=", file_with("rows.jsonl", f"{GOOD}\n{{'a'\n{GOOD}")], ["rows.jsonl:3:", "expected"]),
    "data too deep": (["--data=", file_with("rows.jsonl", "[" * 100_000)], ["rows.jsonl"]),
    "data that the template refuses": (["--model=", strict_template], ["jsonl:1", "No user role here"]),
    "data of one long prompt": (["--data=", file_with("rows.jsonl", json.dumps({"prompt": "x" * 2000}))], ["1 of 1"]),
    "reward import": (["--reward=", file_with("r.py", "import nothing_like_it\n", ":f")], ["ModuleNotFoundError"]),
    "reward needs a column": (["--reward=", file_with("r.py", "def f(gold): 1\n", ":f")], ["'gold'", "answer"]),
    "flag unknown": (["--batchsize=", "8"], ["--batchsize", "try --batch_size"]),
    "temperature 0": (["--temperature=", "0"], ["got temperature 0", "expected"]),
    "minibatches": (["--minibatches=", "3"], ["group_size 1, minibatches 3", "multiple of 3", "try --batch_size 9"]),
    "4 bit merged": (["--load_in_4bit=", "true", "--lora_rank=4", "--merge_lora"], ["got --merge_lora", "try merging"]),
    "tracker unknown": (["--report_to=", "mlflow"], ["mlflow", "expected wandb"]),
    "device": (["--device=", "cuda:77"], ["cuda:77", "try --device cpu"]),
    "vLLM absent": (["--rollout_engine=", "vllm"], ["got --rollout_engine vllm", "pip install 'vllm>="]),
    "context": (["--max_new_tokens=", "1020"], ["1020", "1024", "try a lower --max_new_tokens"]),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_named_and_nothing_is_written(ours, data, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)
    ((flag, value, *more), said) = BAD_INPUT[case]
    value = value(tmp_path) if callable(value) else value
    before = sorted(tmp_path.iterdir())
    code, out, error = ours(*data, *SIZES, f"--output_dir={tmp_path / 'run'}", "--steps=1", flag + value, *more)
    assert code == 2, error
    assert all(word in error for word in said), error
    assert "argument --" in error or ("got" in error and ("expected" in error or "try" in error)), error
    assert "Traceback" not in error and out == ""
    left = [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"]
    assert left == before
