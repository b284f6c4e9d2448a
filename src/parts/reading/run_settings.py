"""What the checks want to know of a run's settings: ours, those of a page, verl's."""

import ast
import math
import re

from parts.reading.metric_names import ACTOR


def printed_config(text: str) -> dict:
    """verl's configuration, which it prints at the start over many lines, each with Ray's prefix; {} without one."""
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
                return ast.literal_eval("\n".join(lines))
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
    return {}


def value_at(config: dict, path: str, default=None):
    """A value of nested dicts by its dotted path."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return default if config is None else config


def flat_config(config: dict, prefix: str = "") -> dict:
    """Nested settings by their dotted names."""
    flat = {}
    for key, value in config.items():
        flat |= (
            flat_config(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
        )
    return flat


def verl_settings(config: dict) -> dict:
    """What the checks want to know of verl's configuration."""
    if not config:
        return {}
    batch, mini = value_at(config, "data.train_batch_size"), value_at(config, f"{ACTOR}.ppo_mini_batch_size")
    epochs = value_at(config, f"{ACTOR}.ppo_epochs", 1)
    bypass = value_at(config, "algorithm.rollout_correction.bypass_mode", False)
    warmup = value_at(config, "trainer.critic_warmup", 0)
    return {
        **({"critic_warmup": warmup} if warmup else {}),
        "group_size": value_at(config, "actor_rollout_ref.rollout.n"),
        "temperature": value_at(config, "actor_rollout_ref.rollout.temperature"),
        "max_length": value_at(config, "data.max_response_length"),
        "updates": None if bypass or not batch or not mini else epochs * max(1, batch // mini),
        "grouped": value_at(config, "algorithm.adv_estimator")
        in ("grpo", "rloo", "grpo_passk", "gpg", "rloo_vectorized"),
    }


def our_settings(config: dict) -> tuple[str, dict]:
    """(trainer, what the checks want to know) of a config.json; `trainer` is "" where it does not say."""
    if "num_generations" in config:
        passes, per = config.get("num_iterations", 1), config.get("steps_per_generation", 0)
        one = passes == 1 and per in (0, config.get("gradient_accumulation_steps", 0))
        one = one and not config.get("generation_batch_size")
        settings = {"group_size": config["num_generations"], "max_length": config.get("max_completion_length")}
        settings |= {"temperature": config.get("temperature"), "updates": 1 if one else None, "grouped": True}
        return "grpo_train", settings | {"fp16": config.get("precision") == "fp16"}
    if "ppo_epochs" in config:
        advantage = config.get("advantage") or config.get("algorithm") or "gae"
        alone = ("gae", "ppo", "remax", "reinforce_pp")
        settings = {"group_size": config.get("group_size"), "max_length": config.get("max_new_tokens")}
        settings |= {"temperature": config.get("temperature"), "grouped": advantage not in alone}
        settings |= {"updates": config["ppo_epochs"] * config.get("minibatches", 1)}
        settings |= {"critic_warmup": config.get("critic_warmup_steps", 0), "value_clip": config.get("value_clip", 0)}
        settings |= {"exact": config.get("precision") == "fp32" and config.get("rollout_engine") == "hf"}
        if "teacher" in config:  # a distillation's rewards may be measured only
            settings["grouped"] = bool(config.get("reward_coef"))
        settings |= {"tools": bool(config.get("tool_format"))}  # refused where an environment has none
        return "ppo_train", settings | {"fp16": config.get("precision") == "fp16"}
    return "", {}


# what multiplies the updates of a batch in a page, and under which names a page of one's own has it
REPEATS = ("minibatches", "epochs", "ppo_epochs", "updates", "iterations", "num_iterations")


def page_settings(given: dict) -> dict:
    """What the checks want to know of a one-page trainer's settings.json."""
    settings = {"group_size": given.get("group_size"), "max_length": given.get("max_new_tokens")}
    settings |= {"temperature": given.get("temperature"), "grouped": "group_size" in given}
    settings |= {"updates": math.prod(given.get(name) or 1 for name in REPEATS)}
    return settings | {"critic_warmup": given.get("critic_warmup_steps", 0), "value_clip": given.get("value_clip", 0)}
