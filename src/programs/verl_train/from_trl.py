"""The settings of a run with TRL's GRPOTrainer as settings of ours, and what has no equal."""

import argparse
import ast
import dataclasses
import json
from pathlib import Path

from parts.extracts import extract
from parts.messages import need, say
from parts.settings import yaml_flags
from programs.verl_train.settings import Config
from programs.verl_train.trl_source import TRL_DEFAULTS, TrlSource

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
    "model_init_kwargs generation_batch_size resume_from_checkpoint shuffle_dataset".split()
)


def batch_of_trl(t: dict, processes: int) -> dict:
    """Batch sizes: TRL's count completions of a process, ours those of a step."""
    update = t["per_device_train_batch_size"] * t["gradient_accumulation_steps"] * processes
    rollout = t["steps_per_generation"] or t["gradient_accumulation_steps"]
    rollout *= t["per_device_train_batch_size"] * processes
    rollout = t.get("generation_batch_size") or rollout
    return {"batch_size": rollout, "minibatches": max(1, rollout // update), "group_size": t["num_generations"]}


def algorithm_of_trl(t: dict) -> tuple[dict, list[str]]:
    """Loss, advantage and KL, and what has no equal."""
    kind, level = t["loss_type"], t["importance_sampling_level"]
    known = kind in AGGREGATION_OF_TRL
    need(known, f"got loss_type {kind!r}; expected one of {', '.join(AGGREGATION_OF_TRL)}: others have no equal here")
    notes, scale = [], {True: "group", False: "none"}.get(t["scale_rewards"], t["scale_rewards"])
    need(scale in ("group", "none"), f"got scale_rewards {scale!r}; expected group or none, batch has no equal in verl")
    found = {"advantage": "grpo" if scale == "group" else "mean", "aggregation": AGGREGATION_OF_TRL[kind]}
    found["loss"] = "cispo" if kind == "cispo" else "gspo" if level == "sequence" else "clip"
    high = t["epsilon"] if t["epsilon_high"] is None else t["epsilon_high"]
    found |= {"clip_eps_low": t["epsilon"], "clip_eps_high": high, "dual_clip": t["delta"] or 0}
    if kind == "cispo":  # TRL's epsilon_high is the cap of the weight itself
        found |= {"clip_eps_low": 1, "clip_eps_high": high - 1}
    one_update = t["num_iterations"] == 1 and batch_of_trl(t, 1)["minibatches"] == 1
    corrected = t["use_bias_correction_kl"] and one_update
    if t["beta"]:
        found |= {"kl_coef": t["beta"], "kl_in": "loss", "kl_estimator": "k3_ratio" if corrected else "k3"}
        if t["use_bias_correction_kl"] and not one_update:
            found["kl_estimator"] = "k2"
            notes.append("beta: ratio x k3 with several updates a batch has no equal; k2 has its gradient on-policy")
    if scale == "group":
        notes.append(
            "the group's deviation: verl adds 1e-6, TRL 1e-4; scores are rounded by 1e-6, or equal ones would count"
        )
    if kind == "bnpo":
        notes.append("loss_type bnpo: the mean over the tokens of each micro-batch; here over those of the batch")
    return found | {"kl_coef": t["beta"], "missing_eos_penalty": 0}, notes


def schedule_of_trl(t: dict, rows: int, prompts: int) -> tuple[dict, list[str]]:
    """Optimizer, steps and learning rate, and what has no equal."""
    kind, notes = str(t["lr_scheduler_type"]), []
    shape = {"constant": "constant", "constant_with_warmup": "constant"}.get(kind, "cosine")
    if kind not in ("constant", "constant_with_warmup", "cosine"):
        notes.append(f"lr_scheduler_type {kind}: verl's FSDP has constant and cosine; cosine taken, also down to 0")
    steps = t["max_steps"]
    if steps <= 0:
        need(rows, "got no max_steps, and no data to count epochs by; expected one of them; try --steps N")
        steps = max(1, int(t["num_train_epochs"] * rows / prompts))
        notes.append(f"num_train_epochs {t['num_train_epochs']:g}: {steps} steps of {prompts} prompts, for {rows} rows")
    warmup = t["warmup_steps"]
    found = {"steps": steps, "lr": t["learning_rate"], "lr_schedule": shape, "weight_decay": t["weight_decay"]}
    found |= {"warmup_steps": round(warmup * steps) if 0 < warmup < 1 else int(warmup)}
    saves = t["save_steps"] if t["save_steps"] >= 1 else t["save_steps"] * steps  # below 1 a share of the steps
    found["save_every"] = min(steps, max(1, round(saves)))  # verl_train.py always saves the last step
    found |= {"adam_beta2": t["adam_beta2"], "adam_eps": t["adam_epsilon"], "max_grad_norm": t["max_grad_norm"]}
    return found, notes


def rewards_of_trl(source: TrlSource, t: dict, folder: Path) -> list[str]:
    """Specs of the rewards, written to OUTPUT_DIR/trl_rewards.py without what else the file does."""
    given = source.of_trainer(1, "reward_funcs")
    need(given is not None, f"got {source.file} without GRPOTrainer(reward_funcs=…); expected it; try --reward")
    node = source.resolved(given)
    functions = list(node.elts) if isinstance(node, ast.List | ast.Tuple) else [node]
    names = [item.id for item in functions if isinstance(item, ast.Name) and item.id in source.top]
    what = ", ".join(ast.unparse(item) for item in functions)
    expected = "expected functions of that file; try --reward FILE.py:function for each"
    need(len(names) == len(functions), f"got reward_funcs {what} in {source.file}; {expected}")
    weights = t["reward_weights"] or [1.0] * len(names)
    got = f"got {len(weights)} reward_weights for {len(names)} reward_funcs in {source.file}"
    need(len(weights) == len(names), f"{got}; expected one for each")
    file = folder / "trl_rewards.py"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(extract(source.text, names), encoding="utf-8")
    return [f"{file}:{name}*{weight}" for name, weight in zip(names, weights, strict=True)]


def place_of_data(source: TrlSource) -> str:
    """The file or hub id of the `load_dataset(…)` of train_dataset, or "" where it is none that can be read off."""
    node = source.of_trainer(3, "train_dataset")
    calls = [n for n in ast.walk(source.resolved(node)) if isinstance(n, ast.Call)] if node else []
    loads = [call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) == "load_dataset"]
    if len(loads) != 1 or len(calls) > 1:  # with calls around it, such as .map(…), its rows are others
        return ""
    try:
        files = [source.value(keyword.value) for keyword in loads[0].keywords if keyword.arg == "data_files"]
        first = source.value(loads[0].args[0]) if loads[0].args else ""
    except ValueError:
        return ""
    data = files[0] if files else "" if first in ("json", "csv", "parquet", "text") else first
    near = Path(source.file).parent / str(data)
    return str(near) if isinstance(data, str) and near.is_file() else data if isinstance(data, str) else ""


def model_of_trl(source: TrlSource, given: str) -> tuple[dict, list[str]]:
    """Model and adapters, and what has no equal; a model that is no literal has to be given by the flag."""
    model, found = source.of_trainer(0, "model"), {"model": given}
    try:
        found["model"] = given or (source.value(model) if model else None)
    except ValueError:
        found["model"] = None
    try:
        lora = {name: source.value(node) for name, node in source.keywords("LoraConfig").items()}
    except ValueError:
        lora = None
    named = isinstance(found["model"], str)
    need(named, f"got a model in {source.file} that is no text; expected one that can be read off; try --model M")
    need(
        lora is not None, f"got a LoraConfig in {source.file} that is no literal; expected one; try a copy with values"
    )
    if "LoraConfig" in source.calls:
        found |= {"lora_rank": lora.get("r", 8), "lora_alpha": lora.get("lora_alpha", 8)}  # peft's defaults
    dropped = lora.keys() - {"r", "lora_alpha", "task_type"}
    return found, [f"LoraConfig({name}={lora[name]!r}): has no equal here" for name in sorted(dropped)]


def run_of_trl(file: str, given, processes: int) -> tuple[dict, list[str]]:
    """(settings of ours for a file's run, what has no equal). `given`: flags that win, parsed."""
    source = TrlSource(file)
    t, unknown = source.config()
    dropped = [name for name in t if name not in OF_THE_MACHINE and name not in TRL_DEFAULTS]
    need(not unknown, f"got {', '.join(unknown)} in {file}; expected literals; try a copy with its values")
    found, notes = algorithm_of_trl(t)
    found |= batch_of_trl(t, processes)
    found |= {"algorithm": "grpo", "max_new_tokens": t["max_completion_length"], "temperature": t["temperature"]}
    found |= {"seed": t["seed"], "mask_truncated": t["mask_truncated_completions"], "ppo_epochs": t["num_iterations"]}
    if not (t.get("use_vllm") and t["vllm_importance_sampling_correction"]):
        found["mismatch"] = "none"
    model, unmatched = model_of_trl(source, given.model)
    found |= model
    found["data"] = given.data or place_of_data(source)
    need(found["data"], f"got {file} without a data set that can be read off; expected one; try --data FILE")
    rows = Path(found["data"]).read_bytes().count(b"\n") if Path(found["data"]).is_file() else 0
    t["max_steps"] = given.steps or t["max_steps"]
    more, told = schedule_of_trl(t, rows, found["batch_size"] // found["group_size"])
    for name, none in (("top_k", (None, 0, -1)), ("top_p", (None, 1.0))):
        need(t[name] in none, f"got {name} {t[name]}; expected none, as the ratio would be biased")
    if not given.reward:  # flags of a list add to one another
        found["reward"] = rewards_of_trl(source, t, Path(given.output_dir or Config.output_dir))
    return found | more, [*notes, *told, *unmatched, *(f"{name} {t[name]!r}: has no equal here" for name in dropped)]


def trl_flags(argv: list[str]) -> list[str]:
    """The flags that --from_trl stands for; others win over them."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("from_trl", "config", "model", "data", "output_dir", "export"):
        first.add_argument(f"--{name}", f"--{name.replace('_', '-')}", default="")
    for name in ("nodes", "gpus_per_node", "steps"):
        first.add_argument(f"--{name}", f"--{name.replace('_', '-')}", type=int, default=0 if name == "steps" else 1)
    first.add_argument("--reward", action="append", default=[])
    known, _ = first.parse_known_args(argv)
    names = [f.name for f in dataclasses.fields(Config)]
    in_file = known.config and any(flag.startswith("--from_trl=") for flag in yaml_flags(known.config, names))
    got = "got from_trl in the file of --config" if in_file else "got --from_trl with --config"
    both = in_file or (known.from_trl and known.config)
    need(not both, f"{got}; expected one of the two; try --from_trl with flags, which win over it")
    if not known.from_trl:
        return []
    if known.export:
        known.output_dir = f"{known.export}/run"
    found, notes = run_of_trl(known.from_trl, known, known.nodes * known.gpus_per_node)
    for note in notes:
        say(f"note: {note}")
    text = {name: [value] if not isinstance(value, list) else value for name, value in found.items()}
    return [f"--{name}={v if isinstance(v, str) else json.dumps(v)}" for name, values in text.items() for v in values]
