"""GRPO through TRL: every flag reaches TRL, runs and what they leave, resuming, processes, and bad input."""

import dataclasses
import functools
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import ROOT, TINY_LM, load_script, read_lines, run_script, save_random_model, without_clock, write_lines
from small_runs import same, small_task, weights
from transformers import AutoModelForCausalLM, GenerationConfig

grpo = load_script("grpo_train")

SIZES = "--per_device_train_batch_size=8 --num_generations=4 --max_completion_length=8 --plot_every=0".split()
SIZES += ["--save_steps=0", "--eval_every=0"]


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    return small_task(tmp_path_factory.mktemp("small"))


@pytest.fixture
def task(small):
    """Flags of a small task."""
    files = [f"--data={small / 'train.jsonl'}", f"--eval_data={small / 'eval.jsonl'}"]
    return [*files, f"--reward={small / 'rewards.py'}:digits", *SIZES]


def run_in_process(capsys, *flags):
    """Run the command line in this process; return (exit code, stdout, stderr)."""
    for name, module in [*sys.modules.items()]:
        if re.search(r"/small\d+/rewards.py$", str(getattr(module, "__file__", ""))):
            del sys.modules[name]  # reward functions start anew, as in a new process
    try:
        code = grpo.main([*map(str, flags)])
    except SystemExit as stop:  # argparse
        code = stop.code
    return code, *capsys.readouterr()


@pytest.fixture
def ours(capsys):
    return functools.partial(run_in_process, capsys)


class Seen(Exception):
    """Carries a trainer that is not trained."""


@pytest.fixture
def trainer_of(monkeypatch, tmp_path):
    """The trainer that a command line would train, not trained."""

    def catch(trainer, checkpoint):
        raise Seen(trainer)

    def build(*flags):
        monkeypatch.setattr(grpo, "run_steps", catch)
        with pytest.raises(Seen) as seen:
            grpo.main([*map(str, flags), f"--output_dir={tmp_path / 'trainer'}"])
        return seen.value.args[0]

    return build


TO_TRL = {  # flag: (value on the command line, {field of TRL's config: its value})
    "num_train_epochs": ("2", {"max_steps": 5}),  # 40 prompts x 8 / 128 a step, twice
    "per_device_train_batch_size": ("24", {"per_device_train_batch_size": 24, "generation_batch_size": 24}),
    "gradient_accumulation_steps": ("3", {"gradient_accumulation_steps": 3, "steps_per_generation": 3}),
    "steps_per_generation": ("4", {"steps_per_generation": 4, "generation_batch_size": 512}),
    "use_vllm": ("colocate", {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 768}),
    "epsilon_high": ("0.28", {"epsilon_high": 0.28}),
    "precision": ("bf16", {"bf16": True, "fp16": False}),
    "dtype": ("bfloat16", {"model_init_kwargs": {"dtype": "bfloat16"}}),
    "attn_implementation": ("eager", {"model_init_kwargs": {"dtype": "float32", "attn_implementation": "eager"}}),
    "use_cpu": ("true", {"use_cpu": True, "dataloader_pin_memory": False}),
    "gradient_checkpointing": ("true", {"activation_checkpointing": True, "gradient_checkpointing": True}),
    "save_steps": ("9", {"save_steps": 9, "save_strategy": "steps"}),
    "output_dir": ("somewhere/run", {"output_dir": "somewhere/run/checkpoints", "run_name": "run"}),
    "trainer_args": ("min_p=0.05", {"min_p": 0.05}),
}


def trl_args(*flags):
    """TRL's config for a command line, for the embedded model and 40 prompts."""
    config = grpo.fill_in(grpo.parse_config([*map(str, flags)]), 400_000)
    return grpo.trl_config(config, grpo.plan_batches(config, 1, 40).steps)


def test_flags_reach_trl():
    plain, own = trl_args(), {"use_cpu", "dataloader_pin_memory", "vllm_mode", "fp16", "save_strategy"}
    for flag, (value, fields) in TO_TRL.items():
        args = trl_args(f"--{flag.replace('_', '-')}", value)
        assert {name: getattr(args, name) for name in fields} == fields, flag
        changed = {name for name in fields if getattr(plain, name) != fields[name]}
        assert changed >= fields.keys() - own, f"{flag}: the value is not the default"


def test_choices_and_defaults_are_those_of_trl():
    from trl import GRPOConfig
    from trl.trainer import grpo_trainer

    source = Path(grpo_trainer.__file__).read_text()
    choices = {f.name: f.metadata["choices"] for f in dataclasses.fields(grpo.Config)}
    compared = " ".join(re.findall(r"self\.loss_type (?:==|in) (\[.*?\]|\"\w+\")", source))
    assert {*choices["loss_type"]} == {*re.findall(r'"(\w+)"', compared)}
    assert all(f'"{value}"' in source for value in choices["scale_rewards"] + choices["importance_sampling_level"])
    args = grpo.trl_config(grpo.fill_in(grpo.parse_config([]), 500_000_000), 10)
    differs = {"per_device_eval_batch_size", "gradient_accumulation_steps", "max_completion_length", "seed"}
    differs |= {"logging_steps", "save_total_limit", "output_dir", "report_to", "save_steps", "shuffle_dataset"}
    differs |= {"gradient_checkpointing", "chat_template_kwargs", "num_train_epochs", "steps_per_generation"}
    names = {f.name for f in dataclasses.fields(grpo.Config)} & {f.name for f in dataclasses.fields(GRPOConfig)}
    for name in names - differs:
        assert getattr(args, name) == getattr(GRPOConfig(use_cpu=True, bf16=False), name), name
    assert args.learning_rate == 1e-6 and not args.shuffle_dataset  # prompt_order shuffles
    cases = ("", "--lora_rank=8", "--lora_rank=8 --learning_rate=2e-6")
    rates = [grpo.fill_in(grpo.parse_config(flags.split()), 400_000).learning_rate for flags in cases]
    assert rates == pytest.approx([5e-4, 5e-3, 2e-6])


def test_trainer_args_are_typed_and_merged():
    for text, value in (
        ("adam_epsilon=5e-6", 5e-6),
        ("sync_ref_model=true", True),
        ('generation_kwargs={"min_new_tokens": 3}', {"min_new_tokens": 3}),
        ("hub_model_id=123", "123"),
    ):
        got = grpo.trainer_fields([text])[text.partition("=")[0]]
        assert got == value and type(got) is type(value), text
    flags = ["--trainer_args", "min_p=0.1", 'model_init_kwargs={"attn_implementation": "eager"}', "--steps", "3"]
    config = grpo.parse_config([*flags, "--trainer-args", "adam_beta1=0.8"])
    assert config.trainer_args[0] == "min_p=0.1" and len(config.trainer_args) == 3 and config.steps == 3
    args = trl_args(*flags)
    assert args.model_init_kwargs == {"dtype": "float32", "attn_implementation": "eager"}


def test_trainer_args_that_cannot_be():
    for pair, message in (
        ("min_pp=0.1", "try min_p"),
        ("use_liger_loss=1", "Where memory may be stale"),
        ("learning_rate=1", "try --learning_rate 1"),
        ("min_p", "expected key=value"),
        ("ref_model_sync_steps=often", "invalid int"),
        ("generation_kwargs={1", "expected JSON"),
    ):
        with pytest.raises(grpo.UserError, match=re.escape(message)):
            grpo.trainer_fields([pair])


def test_profile_is_the_default_and_yaml_and_flags_win(tmp_path):
    (tmp_path / "s.yaml").write_text("profile: memory\nlora_rank: 4\nlearning_rate: 5e-6\n")
    config = grpo.parse_config(["--config", str(tmp_path / "s.yaml"), "--gradient_accumulation_steps=2"])
    assert (config.profile, config.lora_rank, config.gradient_accumulation_steps) == ("memory", 4, 2)
    assert config.learning_rate == 5e-6 and config.per_device_train_batch_size == 2 and config.precision == "bf16"


@pytest.mark.parametrize(
    ("flags", "world", "expected"),
    [  # completions a rollout, prompts a rollout, completions a step, steps a rollout, rollouts, steps
        ("", 1, (128, 16, 128, 1, 100, 100)),
        ("--per_device_train_batch_size=2 --gradient_accumulation_steps=2", 4, (16, 2, 16, 1, 100, 100)),
        ("--per_device_train_batch_size=8 --steps_per_generation=4", 1, (32, 4, 8, 4, 25, 100)),
        ("--per_device_train_batch_size=8 --num_iterations=2", 1, (8, 1, 8, 2, 50, 100)),
        (
            "--per_device_train_batch_size=8 --gradient_accumulation_steps=4 --steps_per_generation=2",
            1,
            (16, 2, 32, 1, 200, 100),
        ),
        ("--per_device_train_batch_size=8 --num_train_epochs=0.5", 1, (8, 1, 8, 1, 20, 20)),
    ],
)
def test_batch_arithmetic(flags, world, expected):
    config = grpo.fill_in(grpo.parse_config(flags.split()), 400_000)
    assert dataclasses.astuple(grpo.plan_batches(config, world, 40)) == expected
    assert world > 1 or grpo.trl_config(config, 100).generation_batch_size == expected[0]


def test_prompts_come_in_a_new_order_every_pass_and_none_is_dropped():
    config = grpo.Config(seed=3)
    order = grpo.prompt_order(config, 10, 35)
    passes = [order[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(p) == [*range(10)] for p in passes) and passes[0] != passes[1]
    assert grpo.prompt_order(config, 10, 50)[:35] == order, "a longer run begins with the same prompts"


def test_share_of_groups_without_signal():
    assert grpo.signal_free([1.2] * 8 + [0.0, 1.0] * 4, 8) == 0.5


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Twenty steps of the embedded task through the real command line, with its defaults."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    flags = "--steps=20 --sample_every=10 --eval_every=10 --save_steps=10 --plot_every=10 --eval_rows=200".split()
    flags += ["--output_dir", folder, "--report_to", "tensorboard"]
    result = run_script("grpo_train", *flags, env={"DRAW": "1"})
    assert result.returncode == 0, result.stderr
    return folder, result


@pytest.mark.long
def test_twenty_steps_raise_reward_and_accuracy_and_leave_what_they_should(finished):
    folder, result = finished
    lines, summary = read_lines(folder / "metrics.jsonl"), json.loads((folder / "summary.json").read_text())
    first, last = (sum(line["reward/mean"] for line in lines[part]) / 5 for part in (slice(1, 6), slice(16, 21)))
    assert last > first + 0.1
    assert summary["accuracy_before"] <= 0.55 and summary["accuracy_after"] > summary["accuracy_before"] + 0.2
    assert [line["step"] for line in lines] == [*range(21)]
    glossary = (ROOT / "references" / "metrics.md").read_text()
    expected = {*grpo.METRICS.values(), "reward/zero_std_frac", "time/reward", "memory/process_gib"}
    for line in lines[1:]:
        assert expected - {"kl/ref", "rollout/logprob_gap_max"} <= {*line}
        assert all(math.isfinite(value) for value in line.values())
        assert {"reward/correctness_reward", "reward/format_reward"} <= {*line}
        named = {re.sub("/(correctness|format)_reward$", "/<function>", key) for key in line.keys() - {"step"}}
        assert all(f"| `{key}` |" in glossary for key in named), named
    held_out = [line for line in lines if "eval/accuracy" in line]
    assert [line["step"] for line in held_out] == [0, 10, 20] and {line["eval/rows"] for line in held_out} == {200}
    assert all(line["eval/accuracy_low"] < line["eval/accuracy"] < line["eval/accuracy_high"] for line in held_out)
    entries = read_lines(folder / "samples.jsonl")  # steps 1 and 3 show most faults
    steps = {"eval": (0, 10, 20), "train": (1, 3, 10, 20)}
    assert {(e["step"], e["kind"]) for e in entries} == {(step, kind) for kind in steps for step in steps[kind]}
    for step in (10, 20):  # the logged ones are a whole group; Shao 2024, section 4.1.2
        group = [e for e in entries if (e["step"], e["kind"]) == (step, "train")]
        parts = [e["rewards"]["correctness_reward"] + 0.2 * e["rewards"]["format_reward"] for e in group]
        scores = torch.tensor([e["score"] for e in group], dtype=torch.float64)
        assert scores.tolist() == pytest.approx(parts)
        advantages = (scores - scores.mean()) / (scores.std() + 1e-4)
        assert [e["advantage"] for e in group] == pytest.approx(advantages.tolist(), rel=5e-3, abs=1e-3)  # three digits
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (folder / "checkpoints").glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-20"]
    assert same(weights(folder), weights(folder, "checkpoints/checkpoint-20/model.safetensors"))
    assert "held-out accuracy" in result.stdout and "step 20: held-out accuracy 0." in result.stderr
    assert "warning" not in result.stderr.lower() and "Traceback" not in result.stderr


@pytest.mark.long
def test_lora_trains_and_merges(ours, task, tmp_path):
    flags = ["--lora_rank=4", "--lora_alpha=12", "--steps=2", "--merge_lora"]
    code, _, error = ours(*task, *flags, f"--output_dir={tmp_path}")
    assert code == 0, error
    adapter = json.loads((tmp_path / "final/adapter/adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (4, 12)
    layers = {name.rpartition(".")[2] for name in adapter["target_modules"]}
    assert layers == {f"{x}_proj" for x in ("q", "k", "v", "o", "gate", "up", "down")}
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():  # an adapter's folder finds its base by itself
        merged, base, adapted = (
            AutoModelForCausalLM.from_pretrained(path)(ids).logits
            for path in (tmp_path / "final", TINY_LM, tmp_path / "final/adapter")
        )
    assert (merged - base).abs().max() > 1e-4 and torch.allclose(merged, adapted, atol=1e-4)


KEEP = """
import json, pathlib


def keep(prompts, completions, **columns):
    columns["prompt"] = prompts
    seen = {name: columns[name] for name in ("prompt", "answer", "mixed", "when", "deep", "row")}
    pathlib.Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
    return [float(len(c)) for c in completions]
"""


def test_rewards_get_every_column_as_it_is_in_the_file_and_trls_extras(ours, small, tmp_path):
    columns = {"when": "2026-01-02", "row": "x"}
    rows = [{"prompt": f"{n}+1=", "answer": f"{n + 1}", "mixed": n if n % 2 else "two", **columns} for n in range(6)]
    rows = [row | {"deep": {"a": [n]}} for n, row in enumerate(rows)]
    (tmp_path / "r.py").write_text(KEEP)
    rewards = [f"--reward={small / 'rewards.py'}:slow", f"--reward={small / 'rewards.py'}:noisy*0.5"]
    flags = [f"--data={write_lines(tmp_path / 'd.jsonl', rows)}", f"--reward={tmp_path / 'r.py'}:keep", *rewards]
    flags += [*SIZES, "--steps=2", "--save_steps=2"]
    code, _, error = ours(*flags, f"--output_dir={tmp_path / 'run'}")
    assert code == 0, error
    seen = json.loads((tmp_path / "seen.json").read_text())
    given = [dict(zip(seen, row, strict=True)) for row in zip(*seen.values(), strict=True)]
    assert len(given) == 8 and len({row["prompt"] for row in given}) == 2 and all(row in rows for row in given)
    state = json.loads((tmp_path / "run/checkpoints/checkpoint-2/trainer_state.json").read_text())
    assert [entry["steps_seen"] for entry in state["log_history"] if "steps_seen" in entry] == [0.0, 1.0]
    assert {"reward/slow", "reward/noisy"} <= {*read_lines(tmp_path / "run/metrics.jsonl")[-1]}


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [(["--precision=bf16"], "bfloat16"), (["--dtype=bfloat16"], "bfloat16"), (["--dtype=auto"], "float32")],
)
def test_trls_engine_gets_a_dtype_and_the_seed(monkeypatch, flags, dtype):
    """TRL passes neither: vLLM would take bfloat16 for float32, and each run the same draws."""
    from trl.generation import vllm_generation

    def build(**settings):
        return settings

    monkeypatch.setattr(vllm_generation, "LLM", build, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace(__version__="0.30.0"))
    flags = ["--use_vllm=colocate", "--use_cpu", "--seed=7", *flags]
    config, args = grpo.parse_config(flags), trl_args(*flags)
    with grpo.engine_arguments(config, args):
        made = vllm_generation.LLM(model="m", seed=1)
    assert made == {"model": "m", "seed": 8, "dtype": dtype, "enforce_eager": True}
    assert vllm_generation.LLM is build


@pytest.mark.parametrize(
    ("flags", "gap", "ends"),
    [
        *(([], 0.02, True), ([], float("nan"), True), ([], 0.005, False), ([], None, False)),
        *((["--precision=bf16"], 0.02, False), (["--precision=bf16"], 0.6, True)),
        *((["--vllm_args", "quantization=fp8"], 0.02, False), (["--top_p=0.9"], 0.6, False)),
        *((["--trainer_args", "min_p=0.1"], 0.6, False), (["--check_sync=0"], 0.6, False)),
    ],
)
def test_logprobs_far_from_the_trainers_end_the_run(flags, gap, ends):
    """TRL's mean difference in a log entry; rounded samplers may be farther away, and top-p moves it by itself."""
    flags = ["--use_vllm=colocate", "--use_cpu", *flags]
    config, args = grpo.parse_config(flags), trl_args(*flags)
    logs = {} if gap is None else {"sampling/sampling_logp_difference/mean": gap}
    watch = grpo.SyncCheck(config.check_sync, "another")
    grpo.judge_logprobs(config, args, None, 3, logs)  # without vLLM
    if not ends:
        return grpo.judge_logprobs(config, args, watch, 3, logs)
    with pytest.raises(grpo.UserError, match=r"step 3: .* differ by") as error:
        grpo.judge_logprobs(config, args, watch, 3, logs)
    assert error.value.code == 5


def test_held_out_completions_are_greedy_and_sampling_stays_as_it_was(trainer_of, task):
    trainer = trainer_of(*task, "--steps=1", "--trainer_args", 'generation_kwargs={"min_new_tokens": 7}')
    kept = trainer.generation_config
    prompts = [[5, 6, 7], [9], [5, 6, 7, 8, 9, 10]]
    found = grpo.greedy_completions(trainer, prompts, 2)
    assert trainer.generation_config is kept and trainer.model.training
    plain = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=trainer.eos_token_ids, pad_token_id=0)
    for prompt, ids in zip(prompts, found, strict=True):
        alone = trainer.model.eval().generate(torch.tensor([prompt]), generation_config=plain)[0, len(prompt) :]
        assert ids == alone.tolist()


@pytest.fixture(scope="module")
def uninterrupted(small, tmp_path_factory):
    """A run whose outcome depends on the generators, the schedule and several passes over few prompts."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    files = [f"--data={small / 'eval.jsonl'}", f"--eval_data={small / 'eval.jsonl'}", "--allow_overlap"]
    rewards = [f"--reward={small / 'rewards.py'}:{name}" for name in ("noisy", "adaptive")]
    flags = [*files, *rewards, *SIZES, "--steps=7", "--lr_scheduler_type=cosine"]
    flags += ["--save_steps=2", "--eval_every=2", "--sample_every=1", "--save_total_limit=3"]
    done = run_script("grpo_train", *flags, "--output_dir", out)
    assert done.returncode == 0, done.stderr
    return out, flags


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code", "kept"),
    [(signal.SIGKILL, -signal.SIGKILL, (2, 4)), (signal.SIGTERM, 128 + signal.SIGTERM, (2, 4, 5))],
)
def test_killed_and_resumed_equals_uninterrupted(ours, uninterrupted, tmp_path, number, code, kept):
    """The eighth call of the reward is that of step 5: three evaluations (0, 2, 4) and four rollouts come before."""
    plain, flags = uninterrupted
    out = tmp_path / "run"
    env = {"SIGNAL_AT": "8", "SIGNAL": str(int(number))}
    cut = run_script("grpo_train", *flags, "--output_dir", out, env=env)
    assert cut.returncode == code, cut.stderr
    assert "Traceback" not in cut.stderr and not (out / "final").exists()
    assert sorted(p.name for p in (out / "checkpoints").glob("checkpoint-*")) == [f"checkpoint-{n}" for n in kept]
    broken = out / "checkpoints" / "checkpoint-6"  # as a kill while saving leaves it
    broken.mkdir()
    (broken / "trainer_state.json").write_text('{"global_step": 6, "stateful')
    resumed, _, error = ours(*flags, f"--output_dir={out}", "--resume")
    assert resumed == 0, error
    assert json.loads((out / "summary.json").read_text())["steps"] == 7
    assert without_clock(out) == without_clock(plain)
    assert same(weights(out), weights(plain))
    assert (out / "samples.jsonl").read_text() == (plain / "samples.jsonl").read_text()
    shutil.rmtree(out / "final")  # a resume after the last step writes it
    assert ours(*flags, f"--output_dir={out}", "--resume")[0] == 0
    assert same(weights(out), weights(plain)) and without_clock(out) == without_clock(plain)


@pytest.mark.parametrize(
    ("schedule", "before", "after", "told"),
    [
        ("linear", 2, 6, "step 4 is 0.5 of its peak, not 0"),
        ("constant_with_warmup", 4, 8, "step 4 is 0.75 of its peak, not 1"),
        ("constant", 2, 6, ""),
    ],
)
def test_more_steps_that_move_the_learning_rate_are_noted(schedule, before, after, told, tmp_path, capsys):
    """After two steps; the third has the rate that the checkpoint holds. By hand, with half of all steps as warm-up."""
    args = types.SimpleNamespace(lr_scheduler_type=schedule, lr_scheduler_kwargs=None)
    args.get_warmup_steps = lambda steps: steps // 2 if "warmup" in schedule else 0
    run, saved = object.__new__(grpo.GrpoRun), {"attributes": {"sizes": [8, 8], "rewards": {}}}
    run.config, run.trainer = grpo.Config(lr_scheduler_type=schedule), types.SimpleNamespace(args=args)
    run.plan, run.sizes, run.kept, run.scorer = types.SimpleNamespace(steps=after), [8, 8], {}, Mock()
    state = {"global_step": 2, "max_steps": before, "stateful_callbacks": {"RunCallback": saved}}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    run.restore(tmp_path)
    error = capsys.readouterr().err
    assert told in error and bool(told) == (f"steps {before} -> {after}: by lr_scheduler_type {schedule}" in error)


def test_a_checkpoint_never_lies_inside_a_rollout_of_two_steps_beside_a_reference(ours, task, tmp_path):
    out = tmp_path / "run"
    flags = ["--num_iterations=2", "--steps=4", "--save_steps=1", "--save_total_limit=9", "--beta=0.01"]
    flags += ["--loss_type=luspo", "--importance_sampling_level=sequence"]
    code, _, error = ours(*[f for f in task if "save_steps" not in f], *flags, f"--output_dir={out}")
    assert code == 0 and "checkpoints every 2 steps" in error
    assert sorted(p.name for p in (out / "checkpoints").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    lines = read_lines(out / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4] and all("kl/ref" in line for line in lines[1:])
    assert not same(weights(out), weights(TINY_LM, "model.safetensors"))


@pytest.mark.long
def test_accelerate_launches_two_processes_on_cpu(small, tmp_path):
    files = [f"--data={small / 'train.jsonl'}", f"--eval_data={small / 'eval.jsonl'}", *SIZES, "--eval_every=2"]
    flags = [*files, *(f"--reward={small / 'rewards.py'}:{name}" for name in ("digits", "adaptive"))]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
    launch += "--num_machines=1 --mixed_precision=no --dynamo_backend=no --main_process_port=0".split()
    launch.append(str(ROOT / "scripts" / "grpo_train.py"))
    command = [*launch, *flags, "--steps=3", "--save_steps=3", f"--output_dir={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in read_lines(tmp_path / "run/metrics.jsonl")] == [0, 1, 2, 3]
    assert (tmp_path / "run/checkpoints/checkpoint-3/rng_state_1.pth").exists(), "there were two processes"


BAD = {
    "batch is no whole groups": (
        ["--per_device_train_batch_size=12", "--num_generations=8"],
        "expected whole groups, a multiple of num_generations 8; try --per_device_train_batch_size 16",
    ),
    "vllm absent": (["--use_vllm=colocate"], "vLLM is not installed"),
    "vllm's arguments without it": (["--vllm_args", "max_num_seqs=8", "seed=1"], "try --use_vllm colocate"),
    "4 bit without adapters": (["--load_in_4bit"], "try --lora_rank 16"),
    "fast profile without vllm": (["--profile=fast"], "leave --use_vllm (or --profile fast) out"),
    "fp16 on a CPU": (["--precision=fp16"], "try --precision fp32"),
    "8-bit optimizer on a CPU": (["--optim=paged_adamw_8bit"], "try --optim adamw_torch_fused"),
    "removed": (["--stages=format:2"], "removed; try one run for each"),
    "foreign": (["--tools=x.py"], "expected a flag of --help; try --environment FILE.py:Class, with the functions as"),
    "context": (["--max_completion_length=2000"], "expected at most 1024 together"),
    "refused by TRL": (["--dry_run", "--lr_scheduler_type=bogus"], "TRL refuses these settings: bogus is not a valid"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_the_users_words(ours, task, tmp_path, case):
    flags, message = BAD[case]
    out = tmp_path / "run"
    code, _, error = ours(*task, "--steps=2", f"--output_dir={out}", *flags)
    assert code == 2, error
    assert message in error and "Traceback" not in error
    assert not (out / "metrics.jsonl").exists()


@pytest.mark.long
def test_reward_that_raises_is_named_and_the_steps_before_are_kept(ours, small, tmp_path, monkeypatch):
    out = tmp_path / "run"
    flags = [f"--data={small / 'train.jsonl'}", f"--reward={small / 'rewards.py'}:fails", *SIZES, "--steps=4"]
    code, _, error = ours(*flags, f"--output_dir={out}")
    assert code == 3, error
    assert re.search(r"reward fails, \S+train\.jsonl:\d+, completion '.*': raised KeyError: 'no such thing'", error)
    assert "saved step 2" in error
    monkeypatch.setenv("MENDED", "1")
    code, _, error = ours(*flags, f"--output_dir={out}", "--resume")
    assert code == 0, error
    assert [line["step"] for line in read_lines(out / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "flags", "status", "told"),
    [
        ("none", [], 3, "reward none: got None for every completion"),
        ("digits", ["--learning_rate=1e30", "--max_grad_norm=0", "--optim=sgd"], 4, "try a lower --learning_rate"),
    ],
)
def test_what_cannot_train_ends_the_run(ours, small, tmp_path, name, flags, status, told):
    flags = [f"--data={small / 'train.jsonl'}", f"--reward={small / 'rewards.py'}:{name}", *SIZES, *flags, "--steps=8"]
    code, _, error = ours(*flags, f"--output_dir={tmp_path / 'run'}")
    assert code == status and told in error and "Traceback" not in error, error


def test_positions_that_padding_moves_are_warned_of(task, trainer_of, tmp_path, capsys):
    for kind, warned in (("gpt2", True), ("qwen3", False)):
        trainer = trainer_of(*task, f"--model={save_random_model(kind, tmp_path / kind)}", "--steps=1", "--beta=0.1")
        assert ("padding moves this model's log-probs" in capsys.readouterr().err) is warned
        assert trainer.ref_model is not None
