"""The settings of a run with TRL's GRPOTrainer as settings of ours, and what has no equal; the file is not run."""

import ast
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from parts.data.rows import read_rows
from parts.data.trl_names import trl_defaults
from parts.data.verl_keys import MODEL
from parts.foundation.messages import need, say
from parts.foundation.user_scripts import PythonSource
from parts.rewards.extracts import bound_names, extract
from programs.verl_train.settings import Config, given_flags

# settings of GRPOConfig that count only where the file gives them: without, those of --hardware hold
ONLY_GIVEN = set(
    "bf16 fp16 gradient_checkpointing save_total_limit vllm_gpu_memory_utilization vllm_tensor_parallel_size".split()
)
PEFT_DEFAULTS = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none", "use_rslora": False, "use_dora": False}
ARGUMENTS = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset")  # of GRPOTrainer, by their places
AGGREGATION_OF_TRL = {
    "grpo": "seq_mean_token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
    **dict.fromkeys(("dapo", "bnpo", "cispo"), "token_mean"),
}
# of the machine, the log, or what verl_train.py decides by itself: nothing is lost without them
OF_THE_MACHINE = set(
    "output_dir run_name report_to logging_steps logging_first_step log_completions num_completions_to_print tf32 "
    "use_cpu gradient_checkpointing_kwargs save_strategy save_only_model eval_strategy per_device_eval_batch_size "
    "use_vllm vllm_mode remove_unused_columns vllm_enable_sleep_mode vllm_max_model_length deepspeed fsdp "
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
    """A TRL run as settings of ours."""

    settings: dict
    notes: list[str]  # what has no equal, or does not quite mean the same
    idle: list[str]  # names that the run gives, of the machine or the log
    origins: dict[str, str]  # the names of TRL's that a setting of ours follows from, as a comment

    @property
    def flags(self) -> list[str]:
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


def rollouts_between(t: dict, name: str) -> int | None:
    """Rollouts between checkpoints or evaluations: TRL counts optimizer steps, below 1 a share of them all."""
    every, total = t[name] if t.get(name) else None, steps({**t})
    return every and min(total, max(1, round(every * total if every < 1 else every / updates(t))))


def warmup(t: dict) -> int:
    """Rollouts over which the learning rate rises."""
    share = t["warmup_steps"]
    return round(share * steps({**t})) if 0 < share < 1 else -(-int(share) // updates(t))


def loss(t: dict) -> str:
    level = t["importance_sampling_level"]
    return "cispo" if t.get("loss_type") == "cispo" else "gspo" if level == "sequence" else "clip"


def aggregation(t: dict) -> str:
    kind = t["loss_type"]
    known = kind in AGGREGATION_OF_TRL
    need(known, f"got loss_type {kind!r}; expected one of {', '.join(AGGREGATION_OF_TRL)}: verl has no others")
    return AGGREGATION_OF_TRL[kind]


def advantage(t: dict) -> str:
    scale = {True: "group", False: "none"}.get(t["scale_rewards"], t["scale_rewards"])
    need(scale in ("group", "none"), f"got scale_rewards {scale!r}; expected group or none, as verl has no batch")
    return "grpo" if scale == "group" else "mean"


def kl_estimator(t: dict) -> str | None:
    if not t["beta"]:
        return None
    return ("k3_ratio" if updates(t) == 1 else "k2") if t["use_bias_correction_kl"] else "k3"


def temperature(t: dict) -> float:
    value = t["temperature"]
    for name, none in (("top_p", (None, 1.0)), ("top_k", (None, 0, -1))):
        need(t[name] in none, f"got {name} {t[name]}; expected none, as the ratio would be biased")
    return value


def weighted_rewards(t: dict) -> list[str]:
    names, weights = t["reward_funcs"], t["reward_weights"] or [1.0] * len(t["reward_funcs"])
    got = f"got {len(weights)} reward_weights for {len(names)} reward_funcs"
    need(not names or len(weights) == len(names), f"{got}; expected one for each")
    return [f"{name}*{weight}" for name, weight in zip(names, weights, strict=False)]


def lora_rank(t: dict) -> int | None:
    """The rank of the adapters, which lie on all linear layers."""
    if t.get("LoraConfig.target_modules") == "all-linear":
        t.taken.append("LoraConfig.target_modules")
    return t["LoraConfig.r"] if "LoraConfig.r" in t else None


def target_override(t: dict) -> list[str]:
    """The override for adapters on other layers than all linear ones."""
    if t.get("LoraConfig.target_modules", "all-linear") == "all-linear":
        return []
    targets = t["LoraConfig.target_modules"]
    listed = f"[{','.join(targets)}]" if isinstance(targets, list | tuple | set) else targets
    return [f"{MODEL}.target_modules={listed}"]


# A setting of ours -> TRL's of the same meaning, or how it follows from them; None leaves it out.
SETTINGS = {
    "model": "model",
    "data": "train_dataset",
    "eval_data": lambda t: t["eval_dataset"] if t.get("eval_dataset") else None,
    "reward": weighted_rewards,
    "group_size": "num_generations",
    "batch_size": rollout_size,
    "minibatches": minibatches,
    "ppo_epochs": "num_iterations",
    "max_new_tokens": "max_completion_length",
    "temperature": temperature,
    "advantage": advantage,
    "loss": loss,
    "aggregation": aggregation,
    "clip_eps_low": lambda t: t["epsilon"] if t.get("loss_type") != "cispo" else 1,
    "clip_eps_high": lambda t: (  # of cispo the bound is on the ratio
        (t["epsilon"] if t["epsilon_high"] is None else t["epsilon_high"]) - (t.get("loss_type") == "cispo")
    ),
    "dual_clip": lambda t: t["delta"] or 0,
    "kl_coef": "beta",
    "kl_in": lambda t: "loss" if t["beta"] else None,
    "kl_estimator": kl_estimator,
    "entropy_coef": "entropy_coef",
    "mask_truncated": "mask_truncated_completions",
    "mismatch": lambda t: None if t["vllm_importance_sampling_correction"] and t.get("use_vllm") else "none",
    "steps": steps,
    "lr": "learning_rate",
    "lr_schedule": lambda t: "constant" if str(t["lr_scheduler_type"]).startswith("constant") else "cosine",
    "warmup_steps": warmup,
    "weight_decay": "weight_decay",
    "adam_beta2": "adam_beta2",
    "adam_eps": "adam_epsilon",
    "max_grad_norm": "max_grad_norm",
    "seed": "seed",
    "save_every": lambda t: rollouts_between(t, "save_steps"),
    "keep_checkpoints": "save_total_limit",
    "eval_every": lambda t: rollouts_between(t, "eval_steps"),
    "precision": lambda t: next((name for name in ("fp16", "bf16") if name in t if t[name]), None),
    "gradient_checkpointing": "gradient_checkpointing",
    "vllm_memory": "vllm_gpu_memory_utilization",
    "rollout_tensor_parallel": "vllm_tensor_parallel_size",
    "lora_rank": lora_rank,
    "lora_alpha": "LoraConfig.lora_alpha",
    "override": target_override,
}


def other_meanings(t: dict) -> list[str]:
    """What is set in verl, and does not quite mean the same."""
    notes, kind, times = [], str(t["lr_scheduler_type"]), updates(t)
    if t["beta"] and t["use_bias_correction_kl"] and times > 1:
        notes.append("beta: verl lacks ratio x k3 with several updates per batch; on-policy, k2 has the same gradient")
    if advantage(t) == "grpo":
        notes.append("the group's deviation: verl adds 1e-6, TRL 1e-4; scores are rounded to keep equal ones equal")
    if t["loss_type"] == "bnpo":
        notes.append("loss_type bnpo: the mean over the tokens of each micro-batch; here over those of the batch")
    if kind not in ("constant", "constant_with_warmup", "cosine"):
        notes.append(f"lr_scheduler_type {kind}: verl's FSDP has constant and cosine; cosine is used, also down to 0")
    if t["max_steps"] <= 0 and not t.get("steps"):
        prompts = rollout_size(t) // t["num_generations"]
        epochs = f"num_train_epochs {t['num_train_epochs']:g}"
        notes.append(f"{epochs}: {steps(t)} steps of {prompts} prompts, for {t['rows']} rows")
    elif times > 1:
        notes.append(f"max_steps, save_steps and warmup_steps count optimizer steps, {times} of which are a step here")
    if "LoraConfig.r" in t and "LoraConfig.target_modules" not in t:
        notes.append("LoraConfig without target_modules: peft takes the architecture's, verl here all linear layers")
    return notes


class TrlFile:
    """A Python file or notebook with one GRPOTrainer, read from its source without running it."""

    def __init__(self, file: str):
        need(Path(file).is_file(), f"got --from_trl {file!r}; expected the Python file of a run with GRPOTrainer")
        self.file, self.source = file, PythonSource(file, Path(file).read_text(encoding="utf-8", errors="replace"))
        calls = {name: self.source.calls.get(name, []) for name in ("GRPOConfig", "GRPOTrainer", "LoraConfig")}
        need(calls["GRPOConfig"], f"got --from_trl {file}, which has no GRPOConfig(…); expected one")
        for name, places in calls.items():
            lines = ", ".join(str(call.lineno) for call in places)
            several = f"got {file} with several {name}(…), in lines {lines}; expected one; try a copy with one of them"
            need(len(places) <= 1, several)
        self.config, self.trainer, self.lora = (places[0] if places else None for places in calls.values())

    def of_trainer(self, name: str) -> ast.expr | None:
        return self.source.argument(self.trainer, name, ARGUMENTS) if self.trainer else None

    def literals(self, call: ast.Call) -> dict:
        """The keywords of a call, and what is assigned to its object later; UserError where one is not a literal."""
        source, values = self.source, {}
        arguments, unseen = source.arguments(call)
        unknown = [f"**{source.code(node)} in line {node.lineno}" for node in unseen]
        for argument in [*arguments, *source.changes(call)]:
            try:
                values[argument.name] = source.value(argument.value if argument.is_sure else ast.Pass())
            except (ValueError, TypeError):
                unknown.append(f"{argument.name}={source.code(argument.value)} in line {argument.value.lineno}")
        unknown += [f"{source.code(node)} in line {node.lineno}" for node in source.hidden_changes(call)]
        got = f"got {', '.join(unknown)} for {source.name_of(call)}(…) of {self.file}"
        need(not unknown, f"{got}; expected literals; try a copy with its values")
        return values

    def rewards(self) -> list[str]:
        """The names of the reward functions."""
        given = self.of_trainer("reward_funcs")
        need(given is not None, f"got {self.file} without GRPOTrainer(reward_funcs=…); expected it; try --reward")
        node = self.source.resolved(given)
        functions = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        own = [item for item in self.source.tree.body if not isinstance(item, ast.Import | ast.ImportFrom)]
        tops = {name for item in own for name in bound_names(item)}
        names = [item.id for item in functions if isinstance(item, ast.Name) and item.id in tops]
        got = f"got reward_funcs {', '.join(map(ast.unparse, functions))} in {self.file}"
        got += "; expected functions of that file; try --reward FILE.py:function for each"
        need(len(names) == len(functions), got)
        return names

    def data(self, name: str) -> str:
        """The file, or hub id[:config][@split], of a `load_dataset(…)`; "" where it is none that can be read off."""
        source, node, split = self.source, self.source.resolved(self.of_trainer(name)), None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):  # load_dataset(…)["train"]
            node, split = source.resolved(node.value), node.slice.value
        if not isinstance(node, ast.Call) or source.name_of(node) != "load_dataset" or len(node.args) > 2:
            return ""  # with calls around it, such as .map(…), its rows are others
        arguments, unseen = source.arguments(node)
        nodes = {argument.name: argument.value for argument in arguments}
        nodes |= dict(zip(("path", "name"), node.args, strict=False))
        try:
            given = {key: source.value(value) for key, value in nodes.items()}
        except (ValueError, TypeError):
            return ""
        path, subset, files = (given.pop(key, None) for key in ("path", "name", "data_files"))
        split = given.pop("split", None) or split or "train"
        if given or unseen or not str(split).isidentifier() or not isinstance(path, str):
            return ""
        is_file = path in ("json", "csv", "parquet")
        near = Path(self.file).parent / str(files if is_file else path)
        if is_file:
            is_plain = isinstance(files, str) and split == "train" and not set("*?[") & {*files}
            return (str(near) if near.is_file() else files) if is_plain else ""
        is_hub = not files and not near.is_dir()
        return (path + f":{subset}" * bool(subset) + f"@{split}" * (split != "train")) * is_hub


def settings_of_trl(file: TrlFile, given) -> tuple[Readings, set[str]]:
    """(settings of a TRL run, the names that it gives). Flags in `given` win."""
    config, lora = file.literals(file.config), file.literals(file.lora) if file.lora else None
    values, names = trl_defaults("GRPOConfig") | config, {*config}
    values = {name: value for name, value in values.items() if name in config or name not in ONLY_GIVEN}
    if lora is not None:
        values |= {f"LoraConfig.{name}": x for name, x in ({"r": 8, "lora_alpha": 8} | lora).items()}
        names |= {f"LoraConfig.{name}" for name in lora}
    for argument in file.source.arguments(file.trainer)[0] if file.trainer else []:
        if argument.name not in (*ARGUMENTS, "peft_config"):
            values[f"GRPOTrainer.{argument.name}"] = ast.unparse(argument.value)[:60]
            names.add(f"GRPOTrainer.{argument.name}")
    values["model"] = None
    with contextlib.suppress(ValueError, TypeError):
        values["model"] = file.source.value(file.of_trainer("model"))
    named = isinstance(values["model"], str) or given.model
    need(named, f"got a model in {file.file} whose name cannot be read; expected a text; try --model M")
    values["reward_funcs"] = [] if given.reward else file.rewards()
    values |= {name: file.data(name) for name in ("train_dataset", "eval_dataset")}
    names |= {name for name in ARGUMENTS if name != "args" and file.of_trainer(name)}
    shown = file.source.resolved(file.of_trainer("train_dataset"))
    where = f", line {shown.lineno}: `{ast.unparse(shown)[:80]}`" if shown else ", no train_dataset"
    got = f"got {file.file}{where}, without a data set that can be read off the source"
    expected = "expected load_dataset(…) of a file or hub id, without .map and the like"
    way = "try `DATASET.to_json('rows.jsonl')` there, and --data rows.jsonl here"
    need(given.data or values["train_dataset"], f"{got}; {expected}; {way}")
    values["steps"] = given.steps
    if values["max_steps"] <= 0 and not given.steps:
        values["rows"] = len(read_rows(given.data or values["train_dataset"]))
    return Readings(values), names


def run_of_trl(name: str, given, processes: int) -> TrlRun:
    """A file's run as settings of ours. `given`: flags that win; None where there is none."""
    file = TrlFile(name)
    t, names = settings_of_trl(file, given)
    t |= {"processes": processes}
    settings, taken, notes = {"algorithm": "grpo", "missing_eos_penalty": 0}, {}, []
    for setting, rule in SETTINGS.items():
        t.taken = taken[setting] = []
        value = rule(t) if callable(rule) else t[rule] if rule in t else None
        settings |= {} if value is None else {setting: value}
    t.taken = []
    factors = " x ".join(f"{name} {t[name]}" for name in taken["batch_size"] if t[name])
    notes.append(f"batch_size {settings['batch_size']} = {factors} of the TRL run")
    if not given.trl_processes:
        notes[0] += f", as many as GPUs ({given.hardware or '--gpus_per_node'}); --trl_processes N if it had others"
    if settings["reward"]:
        rewards = Path(given.output_dir or Config.output_dir) / "trl_rewards.py"
        rewards.parent.mkdir(parents=True, exist_ok=True)
        rewards.write_text(extract(file.source.runnable, t["reward_funcs"]), encoding="utf-8")
        settings["reward"] = [f"{rewards}:{spec}" for spec in settings["reward"]]
    settings |= {name: getattr(given, name) for name in ("model", "data") if getattr(given, name)}
    usual = trl_defaults("GRPOConfig") | {f"LoraConfig.{name}": x for name, x in PEFT_DEFAULTS.items()}
    rest = [name for name in t if name in names and name not in {name for reads in taken.values() for name in reads}]
    idle = OF_THE_MACHINE | BESIDE | (set() if t["beta"] else {"use_bias_correction_kl"})
    lost = [name for name in rest if name not in idle and usual.get(name) != t[name]]
    lost = [name for name in lost if t[name] not in (None, {}, [], ())]
    notes += other_meanings({**t})
    for name in lost:
        of, dot, key = name.partition(".")
        notes.append(f"{of}({key}={t[name]!r}): has no equal here" if dot else f"{name} {t[name]!r}: has no equal here")
    if "eval_dataset" in names and not (t["eval_dataset"] or given.eval_data):
        notes.append("eval_dataset is not in the file, so nothing is evaluated; try --eval_data FILE")
    origins = {
        setting: f" (TRL: {', '.join(reads)}{'' if names & {*reads} else ', by default'})"
        for setting, reads in taken.items()
        if reads and getattr(given, setting) is None
    }
    return TrlRun(settings, notes, [name for name in rest if name not in lost], origins)


def trl_run(words: list[str], machines: list[str] = ()) -> TrlRun | None:
    """What --from_trl stands for; other flags win over it. `machines`: the flags of --hardware."""
    given, defaults = given_flags(words), given_flags(machines)
    need(given.from_trl or not given.trl_processes, "got --trl_processes; expected it with --from_trl FILE.py")
    if not given.from_trl:
        return None
    need(not given.config, "got --from_trl with --config; expected one of the two; try --from_trl with flags")
    if given.export:
        given.output_dir = f"{given.export}/run"
    sizes = [getattr(given, name) or getattr(defaults, name) or 1 for name in ("nodes", "gpus_per_node")]
    run = run_of_trl(given.from_trl, given, given.trl_processes or sizes[0] * sizes[1])
    for note in run.notes:
        say(f"note: {note}")
    return run
