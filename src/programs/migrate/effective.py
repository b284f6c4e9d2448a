"""What a run comes to: its settings under the old version and under the newest, side by side."""

import re

from programs.migrate.trl_names import SAMPLING
from programs.migrate.trl_run import UNKNOWN, TrlRun

# Settings that have one name and one meaning in all versions.
PLAIN = (
    "learning_rate lr_scheduler_type num_train_epochs max_steps weight_decay adam_beta1 adam_beta2 adam_epsilon "
    "max_grad_norm optim seed data_seed bf16 fp16 gradient_checkpointing max_completion_length num_iterations epsilon "
    "epsilon_high delta reward_weights sync_ref_model mask_truncated_completions top_p min_p repetition_penalty "
    "num_generations beta label_smoothing packing truncation_mode lmbda max_new_tokens disable_dropout "
    "center_rewards_coefficient importance_sampling_level dataset_text_field completion_only_loss "
    "assistant_only_loss neftune_noise_alpha"
).split()


def shown(run: TrlRun, name: str):
    value = run.value(name)
    return run.text(name) if value is UNKNOWN else value


def total(run: TrlRun, *names: str):
    """The product of settings; their source where one is known at run time only."""
    result = 1
    for name in names:
        value = run.value(name)
        if value is UNKNOWN:
            return " x ".join(run.text(n) for n in names)
        result *= 1 if value is None else value
    return result


def sampling_temperature(run: TrlRun):
    """That of generation_kwargs, which wins over the setting."""
    given = run.source.items(run.nodes["generation_kwargs"])[0] if run.has("generation_kwargs") else {}
    if "temperature" not in given:
        return shown(run, "temperature")
    try:
        return run.source.value(given["temperature"].value)
    except (ValueError, TypeError):
        return run.source.code(given["temperature"].value)


def of_sampling(run: TrlRun) -> dict:
    """The settings of GRPO and RLOO that the versions name differently."""
    sizes = ["per_device_train_batch_size", "gradient_accumulation_steps"]
    prompts_counted = run.config == "GRPOConfig" and run.before("0.15")
    size, group = total(run, *sizes, *["num_generations"] * prompts_counted), run.value("num_generations")
    is_number = isinstance(size, int | float) and isinstance(group, int)
    is_undivided = run.config == "GRPOConfig" and run.before("0.16")
    top_k, vllm = shown(run, "top_k"), run.value("use_vllm")
    if is_undivided:
        top_k = f"0 if {run.text('use_vllm')} else 50" if vllm is UNKNOWN else 0 if vllm else 50
    kl = "none" if run.value("beta") == 0 else "k3 x ratio" if run.value("use_bias_correction_kl") else "k3"
    settings = {
        "completions a step and process": size,
        "prompts a step and process": size // group if is_number else f"{size} / {shown(run, 'num_generations')}",
        "sampling temperature": sampling_temperature(run),
        "temperature in the log-probs": 1.0 if is_undivided else shown(run, "temperature"),
        "top_k": top_k or 0,
        "KL": kl,
    }
    if run.config == "GRPOConfig":
        scale = shown(run, "scale_rewards")
        settings["loss"] = "grpo" if is_undivided else "bnpo" if run.before("0.17") else shown(run, "loss_type")
        settings["reward scale"] = {True: "group", False: "none", None: "group"}.get(scale, scale)
    return settings


def effective(run: TrlRun) -> dict:
    """{Setting: value} of one run."""
    if run.config in SAMPLING:
        settings = of_sampling(run)
    else:
        length = shown(run, "max_length")
        if run.config in ("SFTConfig", "GKDConfig") and run.before("0.16"):
            length = shown(run, "max_seq_length") or length or 1024
        elif run.config == "DPOConfig" and run.before("0.12"):
            length = length or 512
        size = total(run, "per_device_train_batch_size", "gradient_accumulation_steps")
        settings = {"batch a step and process": size, "max_length": length}
    has_ratio = run.value("warmup_steps") in (None, 0) and run.has("warmup_ratio")
    settings["warmup"] = shown(run, "warmup_ratio" if has_ratio else "warmup_steps") or 0
    settings |= {name: shown(run, name) for name in PLAIN}
    if settings["bf16"] is None and run.value("fp16"):
        settings["bf16"] = False
    return settings


def side_by_side(old: TrlRun, new: TrlRun) -> list[dict]:
    """Settings that both versions have; `same` is None where one is known at run time only."""
    first, second, rows = effective(old), effective(new), []
    for name, before in first.items():
        after = second[name]
        if before is None or after is None:
            continue
        products = [value for value in (before, after) if re.search(r" [x/*] ", str(value))]
        rows.append({"setting": name, "old": before, "new": after, "same": None if products else before == after})
    return rows
