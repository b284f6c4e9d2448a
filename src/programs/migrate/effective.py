"""What a run comes to: its settings under the old version and under the newest, side by side."""

import ast
import re

from programs.migrate.trl_run import SAMPLING, UNKNOWN, TrlRun

# Settings that have one name in all versions.
PLAIN = tuple(
    "learning_rate lr_scheduler_type num_train_epochs max_steps weight_decay adam_beta1 adam_beta2 adam_epsilon "
    "max_grad_norm optim seed data_seed bf16 fp16 gradient_checkpointing max_completion_length num_iterations epsilon "
    "epsilon_high delta reward_weights sync_ref_model mask_truncated_completions top_p min_p repetition_penalty "
    "num_generations beta label_smoothing packing truncation_mode lmbda max_new_tokens disable_dropout "
    "center_rewards_coefficient importance_sampling_level dataset_text_field completion_only_loss "
    "assistant_only_loss neftune_noise_alpha".split()
)
# What a version without the setting did.
NEUTRAL = {
    "assistant_only_loss": False,
    "completion_only_loss": False,
    "disable_dropout": False,
    "epsilon": 0.2,
    "importance_sampling_level": "token",
    "label_smoothing": 0.0,
    "mask_truncated_completions": False,
    "num_iterations": 1,
    "repetition_penalty": 1.0,
    "sync_ref_model": False,
    "top_p": 1.0,
    "truncation_mode": "keep_start",
}


def number(run: TrlRun, *names: str):
    """The product of settings; their source where one is known at run time only."""
    result = 1
    for name in names:
        value = run.value(name)
        if value is UNKNOWN:
            return " x ".join(run.text(n) for n in names)
        result *= 1 if value is None else value
    return result


def shown(run: TrlRun, name: str):
    value = run.value(name)
    return run.text(name) if value is UNKNOWN else value


def warmup(run: TrlRun):
    has_ratio = run.value("warmup_steps") in (None, 0, 0.0) and run.has("warmup_ratio")
    return shown(run, "warmup_ratio") if has_ratio else shown(run, "warmup_steps") or 0


def sampling_temperature(run: TrlRun):
    """That of generation_kwargs, which wins over the setting."""
    items, _ = run.source.items(run.node("generation_kwargs") or ast.Constant(None))
    if "temperature" not in items:
        return shown(run, "temperature")
    node = items["temperature"].value
    try:
        return run.source.value(node)
    except (ValueError, TypeError):
        return run.source.code(node)


def of_sampling(run: TrlRun) -> dict:
    """The settings of GRPO and RLOO that the versions name differently."""
    prompts_counted = run.config == "GRPOConfig" and run.before("0.15")
    completions = ["per_device_train_batch_size", "gradient_accumulation_steps"]
    size = number(run, *completions, *(["num_generations"] if prompts_counted else []))
    group = run.value("num_generations")
    is_number = isinstance(size, int | float) and isinstance(group, int)
    no_division = run.config == "GRPOConfig" and run.before("0.16")
    temperature = shown(run, "temperature")
    top_k = shown(run, "top_k")
    if no_division:
        vllm = run.value("use_vllm")
        top_k = f"0 if {run.text('use_vllm')} else 50" if vllm is UNKNOWN else 0 if vllm else 50
    kl = "none" if run.value("beta") == 0 else "k3"
    if kl == "k3" and run.value("use_bias_correction_kl"):
        kl = "k3 x ratio"
    kinds = "grpo" if no_division else "bnpo" if run.before("0.17") else shown(run, "loss_type")
    scale = {True: "group", False: "none", None: "group"}.get(run.value("scale_rewards"), shown(run, "scale_rewards"))
    settings = {
        "completions a step and process": size,
        "prompts a step and process": size // group if is_number else f"{size} / {shown(run, 'num_generations')}",
        "sampling temperature": sampling_temperature(run),
        "temperature in the log-probs": 1.0 if no_division else temperature,
        "top_k": top_k or 0,
        "KL": kl,
    }
    if run.config == "GRPOConfig":
        settings |= {"loss": kinds, "reward scale": scale}
    return settings


def effective(run: TrlRun) -> dict:
    """{Setting: value} of one run."""
    settings = (
        of_sampling(run)
        if run.config in SAMPLING
        else {"batch a step and process": number(run, "per_device_train_batch_size", "gradient_accumulation_steps")}
    )
    settings["warmup"] = warmup(run)
    if run.config not in SAMPLING:
        length = shown(run, "max_length")
        if run.config in ("SFTConfig", "GKDConfig") and run.before("0.16"):
            length = shown(run, "max_seq_length") or length or 1024
        elif run.config == "DPOConfig" and run.before("0.12"):
            length = length or 512
        settings["max_length"] = length
    for name in PLAIN:
        value = shown(run, name)
        if value is not None and value is not UNKNOWN:
            settings[name] = value
    if settings.get("bf16") is None and run.value("fp16"):
        settings["bf16"] = False
    return settings


def side_by_side(old: TrlRun, new: TrlRun) -> list[dict]:
    """Settings under both versions; `same` is None where one is known at run time only."""
    first, second = effective(old), effective(new)
    rows = []
    for name in dict.fromkeys([*first, *second]):
        before, after = first.get(name, NEUTRAL.get(name)), second.get(name, NEUTRAL.get(name))
        rows.append({"setting": name, "old": before, "new": after, "same": is_equal(before, after)})
    return rows


def is_equal(before, after) -> bool | None:
    """None where a value is known at run time only."""
    if any(isinstance(value, str) and re.search(r" [x/*] ", value) for value in (before, after)):
        return None
    return before == after
