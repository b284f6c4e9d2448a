"""Sizes that fit the memory: chosen and reported in one line, refused if too large; the plan of --dry_run."""

import contextlib
import copy
import ctypes
import dataclasses
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from parts.data.chat import strings_past_template
from parts.foundation.messages import need, say, tell
from parts.foundation.processes import CGROUPS, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, gather_rows, group_folders, torch
from parts.foundation.settings import BaseConfig, free_on_resume
from parts.running.memory import longest_row

USABLE_SHARE = 0.85  # of free memory that a choice may take: the estimate was up to 15 % below what was measured
LEAST_LOGITS = 2**24  # numbers of a piece below which the output layer is slow
ROLLOUT_SIZES = ("micro_batch_tokens", "logits_chunk", "rollout_batch_size")
LOADING = "while the networks were loaded and tried out", "a smaller --model, or --lora_rank 16 in a new run"
UPDATE, SAMPLING = "peak of the update", "peak of sampling"
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
    """Free and total bytes of the memory that networks will use; {} where they are not known."""
    if device.startswith("cuda"):
        return dict(zip(("free", "total"), torch.cuda.mem_get_info(torch.device(device)), strict=True))
    return main_memory() if device == "cpu" else {}


def memory_for_each(device: str, aside: float = 0.0) -> dict[str, float]:
    """Free and total bytes per process: processes on one device share its memory, and all use the smallest figure.

    Every process must call it; {} if any process does not know.
    """
    machine, sharing = device_memory(device), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if machine and device != "cpu":
        places = gather_rows([(platform.node(), str(torch.cuda.get_device_properties(torch.device(device)).uuid))])
        sharing = max(map(places.count, places))
    of_all = gather_rows([machine])
    if not all(of_all):
        return {}
    fixed = os.environ.get("VLLM_CPU_KVCACHE_SPACE") if device == "cpu" and aside else None  # GiB, in place of a share
    free = min(one["free"] - (sharing * int(fixed) * 2**30 if fixed else aside * one["total"]) for one in of_all)
    return {"free": max(0.0, free) / sharing, "total": min(one["total"] for one in of_all)}


@dataclass(frozen=True)
class Sizes:
    """What a program lets `settle_sizes` choose."""

    estimate: Callable  # config -> bytes by name, {} where nothing is known of the architecture
    choices: Callable  # (config, whether to heed what the user gave) -> {peak: settings to try, the largest first}
    text: Callable  # config -> the sizes in words
    lighter: list[list[dict]]  # other settings that need less; of each list, the first that fits is advised
    aside: float = 0.0


def is_chosen_here(config: BaseConfig, name: str) -> bool:
    """Whether a setting is at its default because nobody gave it."""
    return name not in config.given and getattr(config, name) == type(config).__dataclass_fields__[name].default


def ladder(largest: int, least: int) -> list[int]:
    """`largest`, 3/4 and 1/2 of it, and so on, down to `least`."""
    rungs, size = [largest], largest
    while size > least:
        rungs += [max(least, 3 * size // 4), max(least, size // 2)]
        size //= 2
    return list(dict.fromkeys(rungs))


def rollout_sizes(config: BaseConfig, estimate: Callable, prompt: int, processes: int) -> Sizes:
    """The sizes of trainers with this bundle's step, whose longest prompt has `prompt` tokens."""
    bits = config.rollout_engine == "hf" and not config.merge_lora
    recompute = {} if config.gradient_checkpointing else {"gradient_checkpointing": True}

    def choices(changed: BaseConfig, heed: bool) -> dict[str, list[dict]]:
        tokens, chunk, rows = (getattr(changed, name) for name in ROLLOUT_SIZES)
        free = {name: not heed or is_chosen_here(changed, name) for name in ROLLOUT_SIZES}
        budgets = ladder(tokens, longest_row(changed, prompt)) if free["micro_batch_tokens"] else [tokens]
        chunks = ladder(chunk, LEAST_LOGITS) if free["logits_chunk"] else [chunk]
        counts = [rows, *ladder(rows or changed.batch_size // processes, 1)] if free["rollout_batch_size"] else [rows]
        return {
            UPDATE: [{"micro_batch_tokens": a, "logits_chunk": b} for a in budgets for b in chunks],
            SAMPLING: [{"rollout_batch_size": count} for count in counts],
        }

    def text(changed: BaseConfig) -> str:
        rows = changed.rollout_batch_size
        return f"micro-batches of {changed.micro_batch_tokens:,} tokens" + (f", {rows} sampled at once" if rows else "")

    lighter = lighter_settings(config, "max_new_tokens", recompute, bits)
    return Sizes(estimate, choices, text, lighter, config.vllm_memory if config.rollout_engine == "vllm" else 0.0)


def lighter_settings(config: BaseConfig, length: str, recompute: dict, bits: bool) -> list[list[dict]]:
    """Settings that need less memory than those of a config.

    Args:
        length: name of the setting that bounds a completion.
        recompute: the settings that recompute activations, {} where they are on.
        bits: whether 4-bit weights are possible.
    """
    longest = getattr(config, length)
    shorter = [{length: longest >> i} for i in range(1, longest.bit_length()) if longest >> i >= 16]
    lora = {} if config.lora_rank else {"lora_rank": 16}
    packed = lora | {"load_in_4bit": True} if bits and not config.load_in_4bit else {}
    small = [lora, lora | recompute, packed, packed | recompute]
    return [[{"critic": "shared"}], [recompute], shorter, [one for one in small if one and one != recompute]]


def choose(config: BaseConfig, sizes: Sizes, room: float, heed: bool = True) -> float:
    """Set the largest sizes whose peaks are within `room`, else the smallest; returns the highest peak."""
    for peak, choices in sizes.choices(config, heed).items():
        for choice in choices:
            vars(config).update(choice)
            if sizes.estimate(config)[peak] <= room:
                break
    return max(sizes.estimate(config)[peak] for peak in (UPDATE, SAMPLING))


def gib(size: float) -> str:
    """Bytes as GiB."""
    return f"{size / 2**30:.1f}" if size >= 2**30 else f"{size / 2**30:.2g}"


def settle_sizes(config: BaseConfig, device: str, sizes: Sizes) -> tuple[bool, str]:
    """Replace sizes that the user left open by the largest that fit, at most the defaults; the same on all ranks.

    They change results only by the order of sums. Returns (whether the run fits, what to say).
    """
    machine = memory_for_each(device, sizes.aside)
    if not machine or not sizes.estimate(config):
        return True, ""
    free, asked = machine["free"], copy.copy(config)
    peak = choose(config, sizes, USABLE_SHARE * free)
    of = f"{gib(peak)} of {gib(free)} GiB"
    if peak <= free:
        return True, f"{sizes.text(config)}: {of}"
    smaller = copy.copy(asked)
    if choose(smaller, sizes, USABLE_SHARE * free, heed=False) <= free:
        advice = f"try {sizes.text(smaller)}, the values chosen if you leave these settings out"
        return True, f"warning: {sizes.text(config)} need about {of} free on {device}; {advice}"
    advised = list(lighter_that_fit(asked, sizes, free)) or ["a smaller model, or a machine with more memory"]
    return (
        False,
        f"got {asked.model} with settings that need {gib(peak)} GiB even with the smallest batches; expected at most "
        f"the {gib(free)} GiB that {device} has free for a process; try {', or '.join(advised)}",
    )


def lighter_that_fit(config: BaseConfig, sizes: Sizes, free: float) -> Iterator[str]:
    """Settings with which a run would fit, as flags with what they need."""
    allowed = set(free_on_resume(config) if config.resume else vars(config))
    for alternatives in sizes.lighter:
        for change in alternatives:
            lighter = copy.copy(config)
            vars(lighter).update(change)
            if change and change.keys() <= allowed:
                peak = choose(lighter, sizes, USABLE_SHARE * free, heed=False)
                if peak <= free:
                    flags = (f"--{name}" + ("" if value is True else f" {value}") for name, value in change.items())
                    yield f"{' '.join(flags)} ({gib(peak)} GiB)"
                    break


def settle_or_refuse(config: BaseConfig, device: str, sizes: Sizes) -> None:
    """`settle_sizes`, said in one line; UserError, before anything is loaded, where a run cannot fit."""
    fits, line = settle_sizes(config, device, sizes)
    need(fits, line)
    if line:
        say(line)
    peak = max(sizes.estimate(config).values(), default=0)
    if device == "cpu" and peak > 2**30:
        reuse_memory(1.25 * peak < memory_for_each(device, sizes.aside).get("free", 0))


def reuse_memory(keep: bool) -> None:
    """Keep the memory of freed tensors for later ones, or give blocks of 1 MiB and more back to the system at once.

    Getting fresh memory from the system took 40 % of a PPO update with two networks of 0.3B parameters. But small
    tensors fragment the heap that glibc keeps: that run took 15.5 GiB instead of 12.4, and a LoRA update 3.8 GiB
    instead of 2.5. Without this call, glibc keeps tensors below 32 MiB, which suits small models.
    """
    with contextlib.suppress(OSError, AttributeError):  # another system, another libc
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, 2**30 if keep else 2**20) or mallopt(M_MMAP_THRESHOLD, 2**25)  # the most in old glibc
        if keep:
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def batch_plan(config, tokenizer, rows: list[dict], held_out: list[dict]) -> dict:
    """The first entries of `batch` in every plan."""
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


def in_gib(memory: dict[str, float]) -> dict[str, float]:
    """Bytes by name as GiB, rounded."""
    return {f"{name} (GiB)": round(value / 2**30, 3) for name, value in memory.items()}


def show_plan(config: BaseConfig, device: str, sizes: Sizes, plan: dict, **resolved) -> None:
    """Print a plan as JSON, with sizes that fit, the machine's memory, and changed and `resolved` settings."""
    _, line = settle_sizes(config, device, sizes)
    batch, memory, machine = {"batch": plan.pop("batch")}, in_gib(sizes.estimate(config)), in_gib(device_memory(device))
    chosen = {name: getattr(config, name) for name in ("algorithm", "profile") if getattr(config, name, "")}
    usual = dataclasses.asdict(type(config)(**chosen))  # what these two choose are defaults too
    values = dataclasses.asdict(config) | resolved | {"dry_run": False}
    settings = chosen | {name: value for name, value in values.items() if value != usual.get(name)}
    held = {"memory_estimate": memory, "memory_of_the_machine": {"device": device} | machine}
    tell(json.dumps(batch | held | plan | {"settings": settings}, indent=1))
    if line:
        say(line)
