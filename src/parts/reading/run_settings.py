"""What the checks want to know of a run's settings: ours, those of a page, verl's."""

import ast
import math
import re

from parts.reading.metric_names import ACTOR

# what multiplies the updates of a batch in a page, and under which names a page of one's own has it
REPEATS = ("minibatches", "epochs", "ppo_epochs", "updates", "iterations", "num_iterations")


def flat_config(config: dict, prefix: str = "") -> dict:
    """Nested settings by their dotted names."""
    flat = {}
    for key, value in config.items():
        is_folder = isinstance(value, dict) and value
        flat |= flat_config(value, f"{prefix}{key}.") if is_folder else {f"{prefix}{key}": value}
    return flat


def printed_config(text: str) -> dict:
    """verl's settings by dotted names, which it prints at the start over many lines with Ray's prefix; {} without."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    start = re.search(r"\{'actor_rollout_ref': ", plain)
    lines = []
    for line in plain[start.start() :].split("\n", 5000)[:5000] if start else []:
        line = re.sub(r"^.*?\(\w+ pid=\d+(, ip=[\d.]+)?\) ?", "", line)
        if line[:1] not in " {" and line != "":  # another process in between
            continue
        lines.append(line)
        if line.endswith("}}"):
            try:
                return flat_config(ast.literal_eval("\n".join(lines)))
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
    return {}


def verl_settings(flat: dict) -> dict:
    """What the checks want to know of verl's settings by their dotted names."""
    if not flat:
        return {}
    batch, mini = flat.get("data.train_batch_size"), flat.get(f"{ACTOR}.ppo_mini_batch_size")
    epochs, estimator = flat.get(f"{ACTOR}.ppo_epochs", 1), flat.get("algorithm.adv_estimator")
    bypass = flat.get("algorithm.rollout_correction.bypass_mode")
    warmup = flat.get("trainer.critic_warmup")
    settings = {
        "group_size": flat.get("actor_rollout_ref.rollout.n"),
        "temperature": flat.get("actor_rollout_ref.rollout.temperature"),
        "max_length": flat.get("data.max_response_length"),
        "updates": None if bypass or not batch or not mini else epochs * max(1, batch // mini),
        "grouped": estimator in ("grpo", "rloo", "grpo_passk", "gpg", "rloo_vectorized"),
    }
    return settings | ({"critic_warmup": warmup} if warmup else {})


def our_settings(config: dict) -> tuple[str, dict]:
    """(trainer, what the checks want to know) of a config.json; `trainer` is "" where it does not say."""
    settings = {"temperature": config.get("temperature"), "fp16": config.get("precision") == "fp16"}
    if "num_generations" in config:
        per_rollout = config.get("steps_per_generation", 0)
        one = config.get("num_iterations", 1) == 1 and not config.get("generation_batch_size")
        one = one and per_rollout in (0, config.get("gradient_accumulation_steps", 0))
        settings |= {"group_size": config["num_generations"], "max_length": config.get("max_completion_length")}
        return "grpo_train", settings | {"updates": 1 if one else None, "grouped": True}
    if "ppo_epochs" not in config:
        return "", {}
    advantage = config.get("advantage") or config.get("algorithm") or "gae"
    grouped = advantage not in ("gae", "ppo", "remax", "reinforce_pp")
    return "ppo_train", settings | {
        "group_size": config.get("group_size"),
        "max_length": config.get("max_new_tokens"),
        "updates": config["ppo_epochs"] * config.get("minibatches", 1),
        # a distillation's rewards may be measured only
        "grouped": bool(config.get("reward_coef")) if "teacher" in config else grouped,
        "critic_warmup": config.get("critic_warmup_steps", 0),
        "value_clip": config.get("value_clip", 0),
        "exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf",
        "tools": bool(config.get("tool_format")),  # refused where an environment has none
    }


def page_settings(given: dict) -> dict:
    """What the checks want to know of a one-page trainer's settings.json."""
    return {
        "group_size": given.get("group_size"),
        "max_length": given.get("max_new_tokens"),
        "temperature": given.get("temperature"),
        "grouped": "group_size" in given,
        "updates": math.prod(given.get(name) or 1 for name in REPEATS),
        "critic_warmup": given.get("critic_warmup_steps", 0),
        "value_clip": given.get("value_clip", 0),
    }
