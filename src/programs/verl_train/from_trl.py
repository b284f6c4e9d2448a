"""The settings of a run with TRL's GRPOTrainer as settings of ours, and what has no equal."""

import argparse
import ast
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from parts.data.rows import read_rows
from parts.foundation.messages import need, say
from parts.foundation.settings import parse_bool, yaml_flags
from parts.rewards.extracts import extract
from programs.verl_train.names import MODEL
from programs.verl_train.settings import Config
from programs.verl_train.trl_source import ARGUMENTS, PEFT_DEFAULTS, TRL_DEFAULTS, TrlSource, name_of
from programs.verl_train.trl_trial import trial_of

AGGREGATION_OF_TRL = {
    "grpo": "seq_mean_token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
    "dapo": "token_mean",
    "bnpo": "token_mean",
    "cispo": "token_mean",
}
# of the machine, the log, or what verl_train.py decides by itself: nothing is lost without them
OF_THE_MACHINE = set(
    "output_dir run_name report_to logging_steps logging_first_step log_completions num_completions_to_print bf16 fp16 "
    "tf32 use_cpu gradient_checkpointing gradient_checkpointing_kwargs save_strategy save_total_limit "
    "save_only_model eval_steps eval_strategy per_device_eval_batch_size use_vllm vllm_mode remove_unused_columns "
    "vllm_gpu_memory_utilization vllm_tensor_parallel_size vllm_enable_sleep_mode vllm_max_model_length deepspeed fsdp "
    "fsdp_config ddp_timeout dataloader_num_workers dataloader_pin_memory push_to_hub disable_tqdm log_level optim "
    "model_init_kwargs resume_from_checkpoint shuffle_dataset".split()
)
BESIDE = {"GRPOTrainer.processing_class", "LoraConfig.task_type"}  # verl has the model's tokenizer


class Readings(dict):
    """Settings of a TRL run that note which of them are read by [name]; .get(name) notes nothing."""

    taken: list[str]

    def __getitem__(self, name: str):
        self.taken += [name] if name not in self.taken else []
        return super().__getitem__(name)


@dataclass
class TrlRun:
    """A TRL run as settings of ours, and what each of them was read from."""

    settings: dict
    taken: dict[str, list[str]]  # names of TRL's, by setting of ours
    values: dict  # of TRL's, given or by default
    given: set[str]
    notes: list[str]

    @property
    def flags(self) -> list[str]:
        """The settings as flags."""
        text = {name: value if isinstance(value, list) else [value] for name, value in self.settings.items()}
        return [f"--{name}={v if isinstance(v, str) else json.dumps(v)}" for name, vs in text.items() for v in vs]


def rollout_size(t: dict) -> int:
    """Completions of a rollout: TRL's sizes count those of a process, ours those of a step."""
    if t.get("generation_batch_size"):
        return t["generation_batch_size"]
    rows, passes = t["per_device_train_batch_size"], t["gradient_accumulation_steps"]
    return rows * (t["steps_per_generation"] or passes) * t["processes"]


def minibatches(t: dict) -> int:
    """Optimizer steps of a pass over a rollout."""
    update = t["per_device_train_batch_size"] * t["gradient_accumulation_steps"] * t["processes"]
    return max(1, rollout_size(t) // update)


def updates(t: dict) -> int:
    """Optimizer steps of a rollout, which TRL's steps count; nothing is noted as read."""
    return minibatches({**t}) * t.get("num_iterations")


def steps(t: dict) -> int:
    """Rollouts: of TRL's optimizer steps, or of its epochs."""
    if t["max_steps"] > 0 or t.get("steps"):
        return t.get("steps") or max(1, -(-t["max_steps"] // updates(t)))
    return max(1, int(t["num_train_epochs"] * t.get("rows") * t.get("num_generations") / rollout_size({**t})))


def saves(t: dict) -> int:
    """Rollouts between checkpoints: TRL counts optimizer steps, below 1 a share of them; the last is always saved."""
    total, every = steps({**t}), t["save_steps"]
    return min(total, max(1, round(every * total if every < 1 else every / updates(t))))


def warmup(t: dict) -> int:
    """Rollouts over which the learning rate rises."""
    share = t["warmup_steps"]
    return round(share * steps({**t})) if 0 < share < 1 else -(-int(share) // updates(t))


def upper_bound(t: dict) -> float:
    """The bound above 1."""
    high = t["epsilon_high"]
    return (t["epsilon"] if high is None else high) - (t.get("loss_type") == "cispo")


def loss(t: dict) -> str:
    """The policy loss."""
    level = t["importance_sampling_level"]
    return "cispo" if t.get("loss_type") == "cispo" else "gspo" if level == "sequence" else "clip"


def aggregation(t: dict) -> str:
    """How token losses become one number."""
    kind = t["loss_type"]
    known = kind in AGGREGATION_OF_TRL
    need(known, f"got loss_type {kind!r}; expected one of {', '.join(AGGREGATION_OF_TRL)}: others have no equal here")
    return AGGREGATION_OF_TRL[kind]


def advantage(t: dict) -> str:
    """The estimator."""
    scale = {True: "group", False: "none"}.get(t["scale_rewards"], t["scale_rewards"])
    need(scale in ("group", "none"), f"got scale_rewards {scale!r}; expected group or none, batch has no equal in verl")
    return "grpo" if scale == "group" else "mean"


def kl_estimator(t: dict) -> str | None:
    """The form of the KL in the loss."""
    beta, corrected = t["beta"], t["use_bias_correction_kl"]
    if not beta:
        return None
    return ("k3_ratio" if updates(t) == 1 else "k2") if corrected else "k3"


def temperature(t: dict) -> float:
    """Of the whole distribution."""
    found = t["temperature"]
    for name, none in (("top_p", (None, 1.0)), ("top_k", (None, 0, -1))):
        need(t[name] in none, f"got {name} {t[name]}; expected none, as the ratio would be biased")
    return found


def mismatch(t: dict) -> str | None:
    """The correction for the sampler: TRL's default with vLLM."""
    corrected = t["vllm_importance_sampling_correction"]
    return None if t.get("use_vllm") and corrected else "none"


def weighted_rewards(t: dict) -> list[str]:
    """The reward functions with their weights."""
    names, weights = t["reward_funcs"], t["reward_weights"] or [1.0] * len(t["reward_funcs"])
    got = f"got {len(weights)} reward_weights for {len(names)} reward_funcs"
    need(not names or len(weights) == len(names), f"{got}; expected one for each")
    return [f"{name}*{weight}" for name, weight in zip(names, weights, strict=False)]


def target_override(t: dict) -> list[str]:
    """The override for adapters on other layers than all linear ones."""
    targets = t["LoraConfig.target_modules"] if "LoraConfig.target_modules" in t else "all-linear"
    fits = targets != "all-linear" and t.get("backend") != "megatron"  # which has names of its own
    listed = f"[{','.join(targets)}]" if isinstance(targets, list | tuple | set) else targets
    return [f"{MODEL}.target_modules={listed}"] if fits else []


# A setting of ours -> how it follows from TRL's; None leaves it out.
SETTINGS = {
    "model": lambda t: t["model"],
    "data": lambda t: t["train_dataset"],
    "eval_data": lambda t: t["eval_dataset"] if t.get("eval_dataset") else None,
    "reward": weighted_rewards,
    "group_size": lambda t: t["num_generations"],
    "batch_size": rollout_size,
    "minibatches": minibatches,
    "ppo_epochs": lambda t: t["num_iterations"],
    "max_new_tokens": lambda t: t["max_completion_length"],
    "temperature": temperature,
    "advantage": advantage,
    "loss": loss,
    "aggregation": aggregation,
    "clip_eps_low": lambda t: t["epsilon"] if t.get("loss_type") != "cispo" else 1,
    "clip_eps_high": upper_bound,
    "dual_clip": lambda t: t["delta"] or 0,
    "kl_coef": lambda t: t["beta"],
    "kl_in": lambda t: "loss" if t["beta"] else None,
    "kl_estimator": kl_estimator,
    "entropy_coef": lambda t: t["entropy_coef"],
    "mask_truncated": lambda t: t["mask_truncated_completions"],
    "mismatch": mismatch,
    "steps": steps,
    "lr": lambda t: t["learning_rate"],
    "lr_schedule": lambda t: "constant" if str(t["lr_scheduler_type"]).startswith("constant") else "cosine",
    "warmup_steps": warmup,
    "weight_decay": lambda t: t["weight_decay"],
    "adam_beta2": lambda t: t["adam_beta2"],
    "adam_eps": lambda t: t["adam_epsilon"],
    "max_grad_norm": lambda t: t["max_grad_norm"],
    "seed": lambda t: t["seed"],
    "save_every": saves,
    "lora_rank": lambda t: t["LoraConfig.r"] if "LoraConfig.r" in t else None,
    "lora_alpha": lambda t: t["LoraConfig.lora_alpha"] if "LoraConfig.r" in t else None,
    "override": target_override,
}


def other_meanings(t: dict) -> list[str]:
    """What is set in verl, and does not quite mean the same."""
    notes, kind, times = [], str(t["lr_scheduler_type"]), updates(t)
    if t["beta"] and t["use_bias_correction_kl"] and times > 1:
        notes.append("beta: ratio x k3 with several updates a batch has no equal; k2 has its gradient on-policy")
    if advantage(t) == "grpo":
        notes.append(
            "the group's deviation: verl adds 1e-6, TRL 1e-4; scores are rounded by 1e-6, or equal ones would count"
        )
    if t["loss_type"] == "bnpo":
        notes.append("loss_type bnpo: the mean over the tokens of each micro-batch; here over those of the batch")
    if kind not in ("constant", "constant_with_warmup", "cosine"):
        notes.append(f"lr_scheduler_type {kind}: verl's FSDP has constant and cosine; cosine taken, also down to 0")
    if t["max_steps"] <= 0 and not t.get("steps"):
        prompts = rollout_size(t) // t["num_generations"]
        epochs = f"num_train_epochs {t['num_train_epochs']:g}"
        notes.append(f"{epochs}: {steps(t)} steps of {prompts} prompts, for {t['rows']} rows")
    elif times > 1:
        notes.append(f"max_steps, save_steps and warmup_steps count optimizer steps, {times} of which are a step here")
    if "LoraConfig.r" in t and "LoraConfig.target_modules" not in t:
        notes.append("LoraConfig without target_modules: peft takes the architecture's, verl here all linear layers")
    return notes


def rewards_of_trl(source: TrlSource) -> list[str]:
    """The names of the reward functions."""
    given = source.of_trainer("reward_funcs")
    need(given is not None, f"got {source.file} without GRPOTrainer(reward_funcs=…); expected it; try --reward")
    node = source.resolved(given)
    functions = list(node.elts) if isinstance(node, ast.List | ast.Tuple) else [node]
    names = [item.id for item in functions if isinstance(item, ast.Name) and item.id in source.top]
    what = ", ".join(ast.unparse(item) for item in functions)
    expected = "expected functions of that file; try --reward FILE.py:function for each"
    need(len(names) == len(functions), f"got reward_funcs {what} in {source.file}; {expected}")
    return names


def place_of_data(source: TrlSource, name: str) -> str:
    """The file, or hub id[:config][@split], of a `load_dataset(…)`; "" where it is none that can be read off."""
    node = source.of_trainer(name)
    node, split = (source.resolved(node) if node else None), None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):  # load_dataset(…)["train"]
        node, split = source.resolved(node.value), node.slice.value
    if not isinstance(node, ast.Call) or name_of(node) != "load_dataset":
        return ""  # with calls around it, such as .map(…), its rows are others
    try:
        given = {keyword.arg: source.value(keyword.value) for keyword in node.keywords}
        given |= {key: source.value(x) for key, x in zip(("path", "name"), node.args, strict=False)}
    except ValueError:
        return ""
    split = given.pop("split", None) or split or "train"
    path, subset, files = (given.pop(key, None) for key in ("path", "name", "data_files"))
    if given or not str(split).isidentifier() or not isinstance(path, str) or len(node.args) > 2:
        return ""
    if path in ("json", "csv", "parquet"):
        near = Path(source.file).parent / str(files)
        plain = isinstance(files, str) and split == "train" and not set("*?[") & {*files}
        return (str(near) if near.is_file() else files) if plain else ""
    near = Path(source.file).parent / path
    if files or near.is_dir():
        return ""
    return path + f":{subset}" * bool(subset) + f"@{split}" * (split != "train")


def need_data(source: TrlSource, data: str) -> None:
    """Raise UserError with the place of a data set that cannot be read off."""
    node = source.of_trainer("train_dataset")
    shown = source.resolved(node) if node else None
    where = f", line {shown.lineno}: `{ast.unparse(shown)[:80]}`" if shown else ", no train_dataset"
    got = f"got {source.file}{where}, without a data set that can be read off"
    expected = "expected load_dataset(…) of a file or hub id, without .map and the like"
    way = "try --run_script, which runs the file up to GRPOTrainer(…); or there `DATASET.to_json('rows.jsonl')`"
    need(data, f"{got}; {expected}; {way}, then --data rows.jsonl here")


def settings_of_trl(source: TrlSource, given, processes: int) -> tuple[Readings, set[str]]:
    """(settings of a TRL run as given or by default, the names that are given). `given`: flags that win."""
    need("GRPOConfig" in source.calls, f"got --from_trl {source.file}, which has no GRPOConfig(…); expected one")
    trial = trial_of(source.file, given.output_dir or Config.output_dir) if given.run_script else {}
    config, unknown = (trial["config"], []) if trial else source.literals("GRPOConfig")
    try_run = "expected literals; try --run_script, or a copy with its values"
    need(not unknown, f"got {', '.join(unknown)} of {source.file}; {try_run}")
    lora, unknown = (trial["lora"], []) if trial else source.literals("LoraConfig")
    got = f"got LoraConfig({', '.join(unknown)}) in {source.file}"
    need(not unknown, f"{got}; {try_run}")
    values, names = {**TRL_DEFAULTS, **config}, {*config}
    if "LoraConfig" in source.calls and lora is not None:
        values |= {f"LoraConfig.{name}": x for name, x in ({"r": 8, "lora_alpha": 8} | lora).items()}
        names |= {f"LoraConfig.{name}" for name in lora}
    others = {f"GRPOTrainer.{k}": ast.unparse(x)[:60] for k, x in source.keywords("GRPOTrainer").items()}
    values |= {name: text for name, text in others.items() if name.partition(".")[2] not in (*ARGUMENTS, "peft_config")}
    names |= {*others} & {*values}
    model = source.of_trainer("model")
    try:
        values["model"] = trial.get("model") if trial else source.value(model) if model else None
    except ValueError:
        values["model"] = None
    named = isinstance(values["model"], str) or given.model
    need(named, f"got a model in {source.file} that is no text; expected one that can be read off; try --model M")
    values["reward_funcs"] = [] if given.reward else rewards_of_trl(source)
    for name in ("train_dataset", "eval_dataset"):
        values[name] = trial.get(name) or place_of_data(source, name)
    names |= {name for name in ARGUMENTS if name != "args" and source.of_trainer(name)}
    names |= {"processes"} if given.trl_processes else set()
    values |= {"processes": processes, "backend": given.backend, "steps": given.steps}
    need_data(source, given.data or values["train_dataset"])
    if values["max_steps"] <= 0 and not given.steps:
        values["rows"] = len(read_rows(given.data or values["train_dataset"]))
    return Readings(values), names


def run_of_trl(file: str, given, processes: int) -> TrlRun:
    """A file's run as settings of ours. `given`: flags that win, parsed."""
    source = TrlSource(file)
    t, names = settings_of_trl(source, given, processes)
    found, taken = {"algorithm": "grpo", "missing_eos_penalty": 0}, {}
    for setting, value_of in SETTINGS.items():
        t.taken = taken[setting] = []
        value = value_of(t)
        found |= {} if value is None else {setting: value}
    t.taken = []
    if found["reward"]:
        file = Path(given.output_dir or Config.output_dir) / "trl_rewards.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(extract(source.text, t["reward_funcs"]), encoding="utf-8")
        found["reward"] = [f"{file}:{spec}" for spec in found["reward"]]
    found |= {name: getattr(given, name) for name in ("model", "data") if getattr(given, name)}
    usual = {**TRL_DEFAULTS, **{f"LoraConfig.{name}": x for name, x in PEFT_DEFAULTS.items()}}
    read = {name for reads in taken.values() for name in reads}
    rest = [n for n in t if n in names and n not in read | OF_THE_MACHINE | BESIDE]
    if given.backend == "megatron" and "LoraConfig.target_modules" in names:
        rest.append("LoraConfig.target_modules")
    lost = [shown_setting(n, t.get(n)) for n in rest if n not in usual or usual[n] != t.get(n)]
    if "eval_dataset" in names and not (t.get("eval_dataset") or given.eval_data):
        lost.append("eval_dataset cannot be read off, so nothing is evaluated; try --eval_data FILE, or --run_script")
    return TrlRun(found, taken, {**t}, names, [*other_meanings({**t}), *lost])


def shown_setting(name: str, value) -> str:
    """A setting that has no equal, in words."""
    of, dot, key = name.partition(".")
    return f"{of}({key}={value!r}): has no equal here" if dot else f"{name} {value!r}: has no equal here"


def trl_run(argv: list[str]) -> TrlRun | None:
    """What --from_trl stands for; other flags win over it."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("from_trl", "config", "model", "data", "eval_data", "output_dir", "export", "hardware", "backend"):
        first.add_argument(f"--{name}", f"--{name.replace('_', '-')}", default="")
    for name, usual in {"nodes": 1, "gpus_per_node": 1, "steps": 0, "trl_processes": 0}.items():
        first.add_argument(f"--{name}", f"--{name.replace('_', '-')}", type=int, default=usual)
    first.add_argument("--reward", action="append", default=[])
    first.add_argument("--run_script", "--run-script", nargs="?", const=True, type=parse_bool, default=False)
    known, _ = first.parse_known_args(argv)
    names = [f.name for f in dataclasses.fields(Config)]
    in_file = known.config and any(flag.startswith("--from_trl=") for flag in yaml_flags(known.config, names))
    got = "got from_trl in the file of --config" if in_file else "got --from_trl with --config"
    both = in_file or (known.from_trl and known.config)
    need(not both, f"{got}; expected one of the two; try --from_trl with flags, which win over it")
    idle = " and ".join(f"--{name}" for name in ("trl_processes", "run_script") if getattr(known, name))
    need(known.from_trl or not idle, f"got {idle} without a TRL script; expected one; try --from_trl FILE.py")
    if not known.from_trl:
        return None
    if known.export:
        known.output_dir = f"{known.export}/run"
    processes = known.trl_processes or known.nodes * known.gpus_per_node
    run = run_of_trl(known.from_trl, known, processes)
    run.notes.insert(0, batch_note(run, "" if known.trl_processes else known.hardware or "--nodes, --gpus_per_node"))
    for note in run.notes:
        say(f"note: {note}")
    return run


def batch_note(run: TrlRun, guessed_from: str) -> str:
    """How the completions of a step follow from TRL's sizes, and where the number of its processes comes from."""
    sizes = " x ".join(f"{name} {run.values[name]}" for name in run.taken["batch_size"] if run.values[name])
    guess = f", as many as GPUs here ({guessed_from}); --trl_processes N if it had others" if guessed_from else ""
    return f"batch_size {run.settings['batch_size']} = {sizes} of the TRL run{guess}"
