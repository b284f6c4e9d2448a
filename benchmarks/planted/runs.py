"""Make planned runs: a folder like a user's, with the trainer's output in `out`, and label.json beside it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tests"))
from warm_process import WarmProcess  # noqa: E402

from planted.faults import OURS, Plan  # noqa: E402
from planted.rewards import source  # noqa: E402

NAMES = {  # common name: (ours, TRL's)
    "steps": ("steps", "max_steps"),
    "batch": ("batch_size", "per_device_train_batch_size"),
    "group": ("group_size", "num_generations"),
    "lr": ("lr", "learning_rate"),
    "kl": ("kl_coef", "beta"),
    "max_tokens": ("max_new_tokens", "max_completion_length"),
    "passes": ("ppo_epochs", "num_iterations"),
    "warmup": ("warmup_steps", "warmup_steps"),
    "grad_norm": ("max_grad_norm", "max_grad_norm"),
    "eval_every": ("eval_every", "eval_steps"),
}
EXTRA = {"min_p", "repetition_penalty"}  # fields of GRPOConfig that are no flags of grpo_train.py
SECONDS = 600


def warm_process() -> WarmProcess:
    """A process with the libraries loaded, TRL included."""
    process = WarmProcess()
    request = {"command": [str(ROOT / "scripts" / "grpo_train.py"), "--help"], "env": dict(os.environ), "cwd": None}
    process.run(request | {"out": os.devnull, "err": os.devnull, "timeout": SECONDS})
    return process


def command(plan: Plan, model: str) -> list[str]:
    """The command line of one of our trainers."""
    settings = dict(plan.settings)
    if plan.trainer == "ppo":
        del settings["group"]
    ours = plan.trainer in OURS
    words = [str(ROOT / "scripts" / ("ppo_train.py" if ours else "grpo_train.py")), "--model", model]
    words += ["--data", "train.jsonl", "--eval_data", "eval.jsonl", "--output_dir", "out", "--seed", str(plan.seed)]
    words += ["--algorithm", plan.trainer] if ours else []
    words += ["--eval_rows", "128", "--plot_every", "0", f"--save_{'every' if ours else 'steps'}", "0"]
    words += ["--rollout_batch_size" if ours else "--per_device_eval_batch_size", "128"]  # one batch per evaluation
    for public, weight in plan.parts.values():
        words += ["--reward", f"reward.py:{public}" + (f"*{weight}" if weight != 1 else "")]
    for key in EXTRA & settings.keys():
        words += ["--trainer_args", f"{key}={settings.pop(key)}"]
    for key, value in settings.items():
        name = NAMES.get(key, (key, key))[0 if ours else 1]
        words += ["--" + {"max_steps": "steps", "eval_steps": "eval_every"}.get(name, name), str(value)]
    return words


def script(plan: Plan, model: str) -> str:
    """A plain TRL script with literal arguments."""
    settings = {NAMES.get(key, (key, key))[1]: value for key, value in plan.settings.items() if key != "sample_every"}
    rate = settings.pop("learning_rate", 5e-4)
    settings |= {"learning_rate": rate, "logging_steps": 1 + plan.seed % 2, "seed": plan.seed}
    settings["save_steps"] = settings["max_steps"]
    weights = [weight for _, weight in plan.parts.values()]
    if weights != [1.0]:
        settings["reward_weights"] = weights
    if "dtype" in settings:
        settings["model_init_kwargs"] = {"dtype": settings.pop("dtype")}
    if plan.seed % 2 and plan.cause != "memorised_prompts":
        del settings["eval_steps"]
    else:
        settings |= {"eval_strategy": "steps", "per_device_eval_batch_size": 256}
    if "warmup" in plan.settings or plan.seed % 3 == 0:
        settings["lr_scheduler_type"] = "constant_with_warmup"
    lines = "".join(f"    {name}={value!r},\n" for name, value in settings.items())
    text = (HERE / "train.py").read_text(encoding="utf-8").replace('    save_strategy="steps",\n', lines)
    names = ", ".join(public for public, _ in plan.parts.values())
    text = text.replace("import REWARDS", f"import {names}").replace("REWARDS", f"[{names}]")
    return text.replace('"MODEL"', repr(model))


VERL = {  # common name: verl's
    "steps": "trainer.total_training_steps",
    "group": "actor_rollout_ref.rollout.n",
    "lr": "actor_rollout_ref.actor.optim.lr",
    "kl": "actor_rollout_ref.actor.kl_loss_coef",
    "max_tokens": "data.max_response_length",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "warmup": "actor_rollout_ref.actor.optim.lr_warmup_steps",
    "grad_norm": "actor_rollout_ref.actor.grad_clip",
    "eval_every": "trainer.test_freq",
}
SCORE = """

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    parts = {PARTS}
    return {"score": TOTAL, **parts}
"""


def verl_job(plan: Plan, folder: Path, model: str) -> list[str]:
    """The parquet files, reward and run.sh of a job for verl; returns what starts it."""
    import pyarrow
    from pyarrow import parquet

    for name, rows in (("train", plan.train), ("eval", plan.held_out[:64])):
        table = [
            {"data_source": "sums", "prompt": row["prompt"], "reward_model": {"ground_truth": row["answer"]}}
            for row in rows
        ]
        parquet.write_table(pyarrow.Table.from_pylist(table), folder / f"{name}.parquet")
        (folder / f"{name}.jsonl").unlink()
    calls = [f'"{name}": {name}([solution_str], answer=[ground_truth])[0]' for name, _ in plan.parts.values()]
    total = " + ".join(f'{weight} * parts["{name}"]' for name, weight in plan.parts.values())
    with (folder / "reward.py").open("a", encoding="utf-8") as file:
        file.write(SCORE.replace("PARTS", ", ".join(calls)).replace("TOTAL", total))
    settings = {name: value for name, value in plan.settings.items() if name not in ("batch", "sample_every")}
    prompts = plan.settings["batch"] // plan.settings["group"]
    settings = {VERL[name]: value for name, value in settings.items()}
    settings |= {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.actor.use_kl_loss": "kl" in plan.settings,
        "actor_rollout_ref.actor.ppo_mini_batch_size": prompts,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 64,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 64,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 64,
        "data.train_files": "train.parquet",
        "data.val_files": "eval.parquet",
        "data.train_batch_size": prompts,
        "data.max_prompt_length": 48,
        "reward.custom_reward_function.path": "reward.py",
        "trainer.total_epochs": 50,
        "trainer.save_freq": -1,
        "trainer.logger": "[console,file]",
        "trainer.rollout_data_dir": "out/rollouts",
        "trainer.default_local_dir": "out/checkpoints",
    }
    words = [f"{name}={value}" for name, value in settings.items()]
    text = " \\\n    ".join(["python -m verl.trainer.main_ppo", *words]) + "\n"
    (folder / "run.sh").write_text(text, encoding="utf-8")
    (folder / "out").mkdir()
    return [str(ROOT / ".venv-verl" / "bin" / "python"), str(HERE / "verl_run.py"), str(folder)]


def write_files(plan: Plan, folder: Path, model: str) -> list[str]:
    """Data, reward and script of a run; returns what starts it."""
    for name, rows in (("train", plan.train), ("eval", plan.held_out)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    publics = {function: public for function, (public, _) in plan.parts.items()}
    (folder / "reward.py").write_text(source(publics, plan.level), encoding="utf-8")
    if plan.trainer == "verl":
        return verl_job(plan, folder, model)
    if plan.trainer == "trl":
        (folder / "train.py").write_text(script(plan, model), encoding="utf-8")
        return [str(folder / "train.py")]
    words = command(plan, model)
    (folder / "run.sh").write_text(" ".join(["python", *words]) + "\n", encoding="utf-8")
    if plan.sampler:
        held = {"EVERY": 1, "SHIFT": 0.0} | plan.sampler
        text = (HERE / "sampler.py").read_text(encoding="utf-8").replace("PPO_TRAIN", words[0])
        text = text.replace("EVERY, SHIFT = 1, 0.0", f"EVERY, SHIFT = {held['EVERY']}, {held['SHIFT']}")
        (folder.parent / "sampler.py").write_text(text, encoding="utf-8")
        words[0] = str(folder.parent / "sampler.py")
    return words


def join(first: Path, second: Path) -> None:
    """Append a second run's log to the first one's, as after a restart that continues the log."""
    for name in ("metrics.jsonl", "samples.jsonl"):
        if (first / name).exists():
            rows = [json.loads(line) for line in (second / name).read_text(encoding="utf-8").splitlines()]
            lines = (first / name).read_text(encoding="utf-8").splitlines()
            last = max(json.loads(line)["step"] for line in lines)
            lines += [json.dumps(row | {"step": row["step"] + last}) for row in rows if row["step"]]
            (first / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    for old in sorted(first.glob("checkpoint-*/trainer_state.json")):
        new = json.loads(next(second.glob("checkpoint-*/trainer_state.json")).read_text(encoding="utf-8"))
        state = json.loads(old.read_text(encoding="utf-8"))
        last = state["global_step"]
        state["log_history"] += [row | {"step": row["step"] + last} for row in new["log_history"]]
        state["global_step"] = state["max_steps"] = last + new["global_step"]
        old.write_text(json.dumps(state, indent=1), encoding="utf-8")


def curves(out: Path) -> dict[str, list[float]]:
    """The logged figures of a run by name, in their order."""
    rows = []
    if (out / "metrics.jsonl").exists():
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for path in list(out.glob("checkpoint-*/trainer_state.json"))[-1:]:
        rows = json.loads(path.read_text(encoding="utf-8"))["log_history"]
    rows = [row.get("data", row) for row in rows]  # verl's have their figures one level down
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row[name] for row in rows if name in row] for name in names}


def took(plan: Plan, out: Path) -> bool:
    """Whether the fault took effect; else the run is left out of the score.

    A bought part brings most of the rise in score; a dying part falls and right answers do not; memorised prompts rise
    in training by twice as much as held out; too large an update leaves no better policy. It looks at curves whose
    meaning the plan knows, never at a diagnosis.
    """
    series = curves(out)

    def change(*names: str) -> float:
        values = next((series[name] for name in names if name in series), [0.0])
        size = max(1, len(values) // 4)
        return sum(values[-size:]) / size - sum(values[:size]) / size

    def part(public: str) -> float:
        return change(f"reward/{public}", f"rewards/{public}/mean", f"val-aux/sums/{public}/mean@1")

    score, (first, _) = change("reward/mean", "reward", "critic/score/mean"), next(iter(plan.parts.values()))
    if plan.cause == "part_bought":
        public, weight = list(plan.parts.values())[-1]
        return weight * part(public) > max(0.05, score / 2)
    if plan.cause == "part_dies":
        return part("tagged") < -0.2 and part(first) > -0.1
    if plan.cause == "memorised_prompts":
        held_out = change(f"eval/{first}", f"eval_rewards/{first}/mean")
        return part(first) > max(0.1, 2 * held_out)
    return plan.cause != "updates_too_large" or score < 0.05


def tidy(out: Path) -> None:
    """Delete large files: weights, optimizers, pictures."""
    for pattern in ("**/*.safetensors", "**/*.pt", "**/*.pth", "**/*.bin", "*.png"):
        for path in out.glob(pattern):
            path.unlink()


def make(plan: Plan, folder: Path, model: str, process: WarmProcess) -> int:
    """Train a planned run in a folder; returns the exit code of its trainer."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
    request = {"command": write_files(plan, folder, model), "env": os.environ | quiet, "cwd": str(folder)}
    request |= {"out": str(folder / "train.log"), "err": str(folder / "train.log"), "timeout": SECONDS}
    if plan.trainer == "verl":
        code = subprocess.run(request["command"], cwd=folder).returncode
    else:
        code = process.run(request)
    if plan.restarts and code == 0:
        shutil.move(folder / "out", folder / "first")
        plan.seed += 1000
        process.run(request | {"command": write_files(plan, folder, model)})
        plan.seed -= 1000
        join(folder / "first", folder / "out")
        shutil.rmtree(folder / "out")
        shutil.move(folder / "first", folder / "out")
    tidy(folder / "out")
    label = {"cause": plan.cause, "variant": plan.variant, "trainer": plan.trainer, "seed": plan.seed}
    label |= {"strength": plan.strength, "exit_code": code, "took": took(plan, folder / "out")}
    (folder / "label.json").write_text(json.dumps(label), encoding="utf-8")
    return code
