"""What --dry_run prints: the batch, the memory beside what the machine has, the settings that are no defaults."""

import dataclasses
import json
import os
from pathlib import Path

from parts.data.chat import strings_past_template
from parts.foundation.messages import say, tell
from parts.foundation.processes import CGROUPS, group_folders
from parts.running.memory import in_gib

LIMITS = (  # files of version 2 and 1: the limit, what is used, and what of that is a cache of files
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.high", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def main_memory(proc: Path = Path("/proc"), groups: Path = CGROUPS) -> dict[str, float]:
    """Free and total bytes of the main memory, the limits of cgroups included; {} where the system does not say."""
    if not (proc / "meminfo").exists():
        return {}
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    total, free = sizes["MemTotal"], sizes["MemAvailable"]
    listing = proc / "self" / "cgroup"
    for folder in group_folders(groups, listing.read_text(), "memory") if listing.exists() else []:
        for limit, used, cache in LIMITS:
            if (folder / limit).exists() and (folder / used).exists() and (folder / limit).read_text().strip() != "max":
                most, taken = int((folder / limit).read_text()), int((folder / used).read_text())
                stat = folder / "memory.stat"
                counts = dict(line.split() for line in stat.read_text().splitlines()) if stat.exists() else {}
                total, free = min(total, most), min(free, most - taken + int(counts.get(cache, 0)))
    return {"free": max(0, free), "total": total}


def device_memory(device: str) -> dict[str, float]:
    """Free and total bytes of the memory that networks will lie in; {} where nobody says."""
    import torch

    if device.startswith("cuda"):
        return dict(zip(("free", "total"), torch.cuda.mem_get_info(torch.device(device)), strict=True))
    return main_memory() if device == "cpu" else {}


def changed_settings(config, **resolved) -> dict:
    """The settings that differ from their defaults, with the values that were worked out."""
    chosen = {name: getattr(config, name) for name in ("algorithm", "profile") if getattr(config, name, "")}
    usual = dataclasses.asdict(type(config)(**chosen))  # what these two set are defaults as well
    values = dataclasses.asdict(config) | resolved | {"dry_run": False}
    return chosen | {name: value for name, value in values.items() if value != usual.get(name)}


def batch_plan(config, tokenizer, rows: list[dict], held_out: list[dict]) -> dict:
    """What the batch of every plan begins with."""
    return {
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "prompts": len(rows),
        "held_out_prompts": len(held_out),
        "longest_prompt_tokens": max(len(row["prompt_ids"]) for row in rows),
        "prompts_past_the_chat_template": strings_past_template(
            config, tokenizer, [row["prompt"] for row in rows + held_out]
        ),
    }


def environment_plan(config, setup) -> dict:
    """What a plan shows of a `PlaySetup`; nothing without one."""
    if not setup:
        return {}
    tools = {kind.name: kind.tool_names for kind in setup.environments.kinds.values()}
    form = setup.form if isinstance(setup.form, str) else "response template"
    return {"environment": {"tools": tools, "tool_format": form, "conversation_tokens": config.conversation_tokens}}


def print_plan(device: str, plan: dict, memory: dict[str, float], settings: dict, fits: str) -> None:
    """Print a plan as JSON, and whether it fits the memory.

    Args:
        device: what networks will lie on.
        plan: the batch and what else is to be shown.
        memory: bytes that a process will need, by what for.
        settings: those that differ from their defaults.
        fits: a line about the memory.
    """
    machine = device_memory(device)
    batch, rest = {"batch": plan.pop("batch")}, plan
    held = {"memory_of_the_machine": {"device": device} | in_gib(machine)}
    tell(json.dumps(batch | {"memory_estimate": in_gib(memory)} | held | rest | {"settings": settings}, indent=1))
    if fits:
        say(fits)
