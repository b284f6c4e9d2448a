"""The settings of a GRPOTrainer run as ours, and those without an equal; its file is never run."""

import ast
import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from parts.data.rows import read_rows
from parts.data.trl_names import trl_defaults, trl_today
from parts.data.trl_scripts import class_names, trainer_calls
from parts.data.verl_keys import CORRECTION, MODEL, OFF
from parts.foundation.dialect import relation
from parts.foundation.messages import need, say
from parts.foundation.user_scripts import DEFS, PythonSource
from parts.rewards.extracts import bound_names, extract
from programs.verl_train.settings import Config, given_flags

# settings of GRPOConfig that count only where the file gives them: without, those of --hardware hold
ONLY_GIVEN = set(
    "bf16 fp16 gradient_checkpointing save_total_limit vllm_gpu_memory_utilization vllm_tensor_parallel_size".split()
)
PEFT_DEFAULTS = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none", "use_rslora": False, "use_dora": False}
READ = {"model", "reward_funcs", "args", "train_dataset", "eval_dataset", "peft_config"}  # arguments of GRPOTrainer
AGGREGATION_OF_TRL = {
    "grpo": "seq_mean_token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
    **dict.fromkeys(("dapo", "bnpo", "cispo"), "token_mean"),
}
# settings of which verl expresses some values only: (these, why)
LIMITED = {
    "loss_type": (tuple(AGGREGATION_OF_TRL), "verl has no others"),
    "scale_rewards": (("group", "none", True, False), "verl has no batch"),
    **{name: ((None, none, -1), "the ratio would be biased") for name, none in (("top_p", 1.0), ("top_k", 0))},
}
MISMATCH_OF_TRL = {  # vllm_importance_sampling_mode -> mismatch
    "sequence_mask": "seq_mask",
    "token_mask": "icepop",
    **dict.fromkeys(("token_truncate", "sequence_truncate"), "tis"),
}
# of the machine or the log; verl has the model's tokenizer
OF_THE_MACHINE = set(
    "output_dir run_name report_to logging_steps logging_first_step log_completions num_completions_to_print tf32 "
    "use_cpu gradient_checkpointing_kwargs save_strategy save_only_model eval_strategy per_device_eval_batch_size "
    "vllm_mode remove_unused_columns vllm_enable_sleep_mode vllm_max_model_length deepspeed fsdp fsdp_config "
    "ddp_timeout dataloader_num_workers dataloader_pin_memory push_to_hub disable_tqdm log_level "
    "resume_from_checkpoint GRPOTrainer.processing_class LoraConfig.task_type".split()
)
# of model_init_kwargs: settings of the job decide
LOADING = {"dtype", "torch_dtype", "attn_implementation", "device_map", "use_cache"}
PATH = "pretrained_model_name_or_path"  # of from_pretrained(…); REMADE: calls that make its model another
REMADE = set("load_state_dict resize_token_embeddings load_adapter add_adapter get_peft_model requires_grad_".split())


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


def kl_estimator(t: dict) -> str | None:
    if not t["beta"]:
        return None
    return ("k3_ratio" if updates(t) == 1 else "k2") if t["use_bias_correction_kl"] else "k3"


def weighted_rewards(t: dict) -> list[str]:
    names, weights = t["reward_funcs"], t["reward_weights"] or [1.0] * len(t["reward_funcs"])
    got = f"got {len(weights)} reward_weights for {len(names)} reward_funcs"
    need(not names or len(weights) == len(names), f"{got}; expected one for each")
    return [f"{name}*{weight}" for name, weight in zip(names, weights, strict=False)]


def precision(t: dict) -> str | None:
    """Of the flags that the file gives: TRL computes in bf16 unless one of them says otherwise."""
    given = {name: t[name] for name in ("fp16", "bf16") if name in t}
    return "fp16" if given.get("fp16") else {True: "bf16", False: "fp32"}.get(given.get("bf16"))


def mismatch(t: dict) -> str:
    """TRL corrects only where vLLM samples."""
    if not (t["use_vllm"] and t["vllm_importance_sampling_correction"]):
        return "none"
    mode, modes = t["vllm_importance_sampling_mode"], ", ".join(MISMATCH_OF_TRL)
    need(mode in MISMATCH_OF_TRL, f"got vllm_importance_sampling_mode {mode!r}; expected one of {modes}")
    return MISMATCH_OF_TRL[mode]


def mismatch_bounds(t: dict) -> tuple[float | None, float | None]:
    """(lower, upper); TRL's are None where there is none, and `cap` is the upper one's old name."""
    if mismatch({**t}) == "none":
        return None, None
    lower, cap = t["vllm_importance_sampling_clip_min"], "vllm_importance_sampling_cap"
    upper = t[cap] if t.get(cap) is not None else t["vllm_importance_sampling_clip_max"]
    return None if mismatch({**t}) == "tis" else lower or 1e-9, OFF if upper is None else upper


def lora_rank(t: dict) -> int | None:
    """The rank of the adapters, which lie on all linear layers."""
    if t.get("LoraConfig.target_modules") == "all-linear":
        t.taken.append("LoraConfig.target_modules")
    return t["LoraConfig.r"] if "LoraConfig.r" in t else None


def overrides(t: dict) -> list[str]:
    """What verl expresses and no setting of ours does."""
    lines, targets = [] if t["shuffle_dataset"] else ["data.shuffle=False"], "LoraConfig.target_modules"
    if t.get(targets, "all-linear") != "all-linear":
        names = t[targets] if isinstance(t[targets], str) else f"[{','.join(t[targets])}]"
        lines.append(f"{MODEL}.target_modules={names}")
    if mismatch({**t}) != "none" and t.get("vllm_importance_sampling_mode") == "sequence_truncate":
        lines.append(f"{CORRECTION}.rollout_is=sequence")
    return lines


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
    "temperature": "temperature",
    "advantage": lambda t: "grpo" if t["scale_rewards"] in ("group", True) else "mean",
    "loss": lambda t: (
        "cispo" if t.get("loss_type") == "cispo" else "gspo" if t["importance_sampling_level"] == "sequence" else "clip"
    ),
    "aggregation": lambda t: AGGREGATION_OF_TRL[t["loss_type"]],
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
    "chat_template_kwargs": "chat_template_kwargs",
    "mismatch": mismatch,
    "mismatch_low": lambda t: mismatch_bounds(t)[0],
    "mismatch_high": lambda t: mismatch_bounds(t)[1],
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
    "precision": precision,
    "gradient_checkpointing": "gradient_checkpointing",
    "vllm_memory": "vllm_gpu_memory_utilization",
    "rollout_tensor_parallel": "vllm_tensor_parallel_size",
    "lora_rank": lora_rank,
    "lora_alpha": "LoraConfig.lora_alpha",
    "override": overrides,
}


def other_meanings(t: dict) -> list[str]:
    """What is set in verl, and does not quite mean the same."""
    notes, kind, times = [], str(t["lr_scheduler_type"]), updates(t)
    if t["beta"] and t["use_bias_correction_kl"] and times > 1:
        notes.append("beta: verl lacks ratio x k3 with several updates per batch; on-policy, k2 has the same gradient")
    if t["scale_rewards"] in ("group", True):
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
    if mismatch(t) == "tis" and t["vllm_importance_sampling_clip_min"]:
        lower = f"vllm_importance_sampling_clip_min {t['vllm_importance_sampling_clip_min']}"
        notes.append(f"{lower}: verl truncates at the upper bound only")
    if "LoraConfig.r" in t and "LoraConfig.target_modules" not in t:
        notes.append("LoraConfig without target_modules: peft takes the architecture's, verl here all linear layers")
    return notes


def is_idle(t: dict, name: str) -> bool:
    """Whether a setting that no rule reads leaves the training as it is: by its name, its value, or another's."""
    nothing = (None, {}, [], (), (trl_defaults("GRPOConfig") | PEFT_DEFAULTS).get(name.removeprefix("LoraConfig.")))
    off = {
        "use_bias_correction_kl": not t["beta"],
        "num_train_epochs": t["max_steps"] > 0,
        "optim": t["optim"] == "adamw_torch",  # the default without its fused kernel
        "model_init_kwargs": {*(t["model_init_kwargs"] or ())} <= LOADING,
    }
    without_vllm = name.startswith("vllm_") and not t["use_vllm"]
    return name in OF_THE_MACHINE or name in LIMITED or t[name] in nothing or off.get(name, False) or without_vllm


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


class TrlFile:
    """A Python file or notebook with one GRPOTrainer, read from its source without running it."""

    def __init__(self, file: str):
        need(Path(file).is_file(), f"got --from_trl {file!r}; expected the Python file of a run with GRPOTrainer")
        self.file = file
        self.source = source = PythonSource(file, Path(file).read_text(encoding="utf-8", errors="replace"))
        calls = {"GRPOConfig": source.calls.get("GRPOConfig", [])}
        calls["GRPOTrainer"] = [call for kind, call in trainer_calls(source) if kind == "GRPOTrainer"]
        got = f"got --from_trl {file}, which has no GRPOConfig(…)"
        need(calls["GRPOConfig"], f"{got}; expected one; try a copy with GRPOConfig(…) of what a parser gives it")
        for name, places in calls.items():
            lines = ", ".join(str(call.lineno) for call in places)
            several = f"got {file} with several {name}(…), in lines {lines}; expected one; try a copy with one of them"
            need(len(places) <= 1, several)
        self.config, self.call = (next(iter(places), None) for places in calls.values())
        words, unseen = source.arguments(self.call) if self.call else ([], [])
        in_order = self.call.args if self.call else []
        unseen += [node for node in in_order if isinstance(node, ast.Starred)]
        got = f"got GRPOTrainer(…) of {file} with {', '.join(map(ast.unparse, unseen))}"
        need(not unseen, f"{got}; expected each argument; try a copy with them")
        given = dict(zip(trl_today("trainers")["GRPOTrainer"], in_order, strict=False))
        given |= {argument.name: argument.value for argument in words}
        self.trainer = {name: node for name, node in given.items() if not is_none(node)}

    def replaced(self) -> list[str]:
        """Notes on the methods that the file's own trainer and its bases in the file replace or add."""
        names, definitions, notes = class_names(self.source, self.call), self.source.definitions, []
        for name in names:
            owner = definitions.get(name)
            names += [x for x in self.source.bases(owner) if x not in names]
            methods = [x for x in getattr(owner, "body", []) if isinstance(x, DEFS)]
            notes += [f"line {x.lineno}: {name} has its own `{x.name}`, which has no equivalent here" for x in methods]
        return notes

    def model(self) -> tuple[str | None, dict]:
        """(The name of GRPOTrainer's model, what else its from_pretrained(…) is given); None if it cannot be read."""
        source, node, others = self.source, self.source.origin(self.trainer.get("model")), {}
        while isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("to", "cuda"):
            node = source.origin(node.func.value)
        loader = source.code(node.func) if isinstance(node, ast.Call) else ""
        is_frozen = "requires_grad" in {name for _, name in source.stores}
        is_own = loader.partition(".")[0] in source.definitions or is_frozen or REMADE & {*source.calls}
        if re.fullmatch(r"(\w+\.)?(?!AutoPeft)\w+ForCausalLM\.from_pretrained", loader) and not is_own:
            arguments, unseen = source.arguments(node)
            others = {argument.name: source.code(argument.value) for argument in arguments}
            node = None if unseen else source.argument(node, PATH, (PATH,))
        with contextlib.suppress(ValueError, TypeError):
            name = source.value(node)
            return (name if isinstance(name, str) else None), {key: x for key, x in others.items() if key != PATH}
        return None, {}

    def lora(self, is_given: bool) -> ast.Call | None:
        """The LoraConfig(…) of GRPOTrainer; UserError for adapters that cannot be read, unless a flag decides."""
        node = self.source.origin(self.trainer.get("peft_config"))
        if node is None or is_none(node):
            return None
        is_read = isinstance(node, ast.Call) and self.source.name_of(node) == "LoraConfig"
        got = f"got peft_config={ast.unparse(node)[:80]} in {self.file}"
        need(is_read or is_given, f"{got}; expected LoraConfig(…) with literals; try --lora_rank R, or 0 for none")
        return node if is_read else None

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
        given = self.trainer.get("reward_funcs")
        need(given is not None, f"got {self.file} without GRPOTrainer(reward_funcs=…); expected it; try --reward")
        node = self.source.resolved(given)
        functions = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        definitions = [item for item in self.source.tree.body if not isinstance(item, ast.Import | ast.ImportFrom)]
        tops = {name for item in definitions for name in bound_names(item)}
        names = [item.id for item in functions if isinstance(item, ast.Name) and item.id in tops]
        got = f"got reward_funcs {', '.join(map(ast.unparse, functions))} in {self.file}"
        got += "; expected functions of that file; try --reward FILE.py:function for each"
        need(len(names) == len(functions), got)
        return names

    def data(self, name: str) -> str:
        """The file, or hub id[:config][@split], of a `load_dataset(…)`; "" where it is none that can be read off."""
        source, node, split = self.source, self.source.resolved(self.trainer.get(name)), None
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
        if files or near.is_dir():
            return ""  # not of the hub
        name = f"{path}:{subset}" if subset else path
        return name if split == "train" else f"{name}@{split}"


def settings_of_trl(file: TrlFile, given) -> tuple[Readings, set[str]]:
    """(settings of a TRL run, the names that it gives). Flags in `given` win."""
    config, lora = file.literals(file.config), file.lora(given.lora_rank is not None)
    values, names = trl_defaults("GRPOConfig") | config, {*config}
    values = {name: value for name, value in values.items() if name in config or name not in ONLY_GIVEN}
    lora_settings = file.literals(lora) if lora else {}
    values |= {f"LoraConfig.{name}": value for name, value in ((PEFT_DEFAULTS if lora else {}) | lora_settings).items()}
    rest = {f"GRPOTrainer.{name}": ast.unparse(node)[:60] for name, node in file.trainer.items() if name not in READ}
    values |= rest
    names |= {*rest, *(f"LoraConfig.{name}" for name in lora_settings)}
    values["model"], loading = file.model()
    values |= {"model_init_kwargs": loading} if loading else {}  # GRPOConfig's are for a model by name
    names |= {"model_init_kwargs"} if loading else set()
    named = values["model"] or given.model
    need(named, f"got a model in {file.file} whose name cannot be read; expected a text; try --model M")
    values["reward_funcs"] = [] if given.reward else file.rewards()
    values |= {name: file.data(name) for name in ("train_dataset", "eval_dataset")}
    names |= READ & {*file.trainer}
    shown = file.source.resolved(file.trainer.get("train_dataset"))
    where = f", line {shown.lineno}: `{ast.unparse(shown)[:80]}`" if shown else ", no train_dataset"
    got = f"got {file.file}{where}, without a data set that can be read off the source"
    expected = "expected load_dataset(…) of a file or hub id, without .map and the like"
    way = "try `DATASET.to_json('rows.jsonl')` there, and --data rows.jsonl here (--eval_data for the eval_dataset)"
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
    for setting, (values, why) in LIMITED.items():
        words = [value for value in values if isinstance(value, str)]
        fits = f"one of {', '.join(words)}" if words else "none"
        need(t.get(setting) in values, f"got {setting} {t.get(setting)!r}; expected {fits}: {why}")
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
    for name in [name for name in ("model", "data", "eval_data") if getattr(given, name)]:  # their flags follow
        settings.pop(name, None)
    rest = [x for x in t if x in names - {"eval_dataset"} - {name for reads in taken.values() for name in reads}]
    lost = [name for name in rest if not is_idle({**t}, name)]
    notes += other_meanings({**t}) + file.replaced()
    if given.lora_rank is None and "LoraConfig.r" not in t:
        no_adapters = "is not GRPOTrainer's peft_config: no adapters; try --lora_rank"
        notes += [f"LoraConfig in line {x.lineno} {no_adapters}" for x in file.source.calls.get("LoraConfig", [])]
    for name in lost:
        of, dot, key = name.partition(".")
        known = relation(name, vars(given), {})
        none = f"has no equivalent here{known and f'; {known}'}"
        notes.append(f"{of}({key}={t[name]!r}): {none}" if dot else f"{name} {t[name]!r}: {none}")
    if "eval_dataset" in names and not (t["eval_dataset"] or given.eval_data or given.hold_out):
        notes.append("eval_dataset is not in the file, so nothing is evaluated; try --eval_data FILE, or --hold_out N")
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
