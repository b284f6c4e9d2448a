"""Batch sizes that fit the memory: chosen, said in one line, and what cannot fit refused."""

import contextlib
import copy
import ctypes
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from parts.foundation.messages import need, say
from parts.foundation.processes import gather_rows
from parts.foundation.settings import BaseConfig, free_on_resume
from parts.running.memory import longest_row
from parts.running.plan import changed_settings, device_memory, print_plan

USABLE_SHARE = 0.85  # of free memory that a choice may take: the estimate was up to 15 % below what was measured
LEAST_LOGITS = 2**24  # numbers of a piece below which the output layer is slow
ROLLOUT_SIZES = ("micro_batch_tokens", "logits_chunk", "rollout_batch_size")
LOADING = "while the networks were loaded and tried out", "a smaller --model, or --lora_rank 16 in a new run"
UPDATE, SAMPLING = "peak of the update", "peak of sampling"


@dataclass(frozen=True)
class Sizes:
    """What a program lets `settle_sizes` choose."""

    estimate: Callable  # config -> bytes by name, {} where nothing is known of the architecture
    choices: Callable  # (config, whether to heed what the user gave) -> {peak: settings to try, the largest first}
    text: Callable  # config -> the sizes in words
    lighter: list[list[dict]]  # other settings that need less; of each list, the first that fits is advised
    aside: float = 0.0  # share of all memory that vLLM takes beside


@dataclass(frozen=True)
class Fit:
    """Whether a run fits, and what to say."""

    fits: bool
    line: str = ""


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
    """The sizes of trainers with this bundle's step.

    Args:
        prompt: tokens of the longest prompt.
    """
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
    shorter, tokens = [], getattr(config, length) // 2
    while tokens >= 16:
        shorter.append({length: tokens})
        tokens //= 2
    lora = {} if config.lora_rank else {"lora_rank": 16}
    packed = lora | {"load_in_4bit": True} if bits and not config.load_in_4bit else {}
    small = [lora, lora | recompute, packed, packed | recompute]
    return [[recompute], shorter, [one for one in small if one and one != recompute]]


def memory_for_each(device: str, aside: float = 0.0) -> dict[str, float]:
    """Free and total bytes for a process: what shares a device shares its memory, and all heed who has least.

    Every process must call it; {} where one does not know.
    """
    machine = device_memory(device)
    if device == "cpu":
        sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    elif machine:
        import torch

        places = gather_rows([(platform.node(), str(torch.cuda.get_device_properties(torch.device(device)).uuid))])
        sharing = max(map(places.count, places))
    of_all = gather_rows([machine])
    if not all(of_all):
        return {}
    fixed = os.environ.get("VLLM_CPU_KVCACHE_SPACE") if device == "cpu" and aside else None  # GiB, in place of a share
    free = min(one["free"] - (sharing * int(fixed) * 2**30 if fixed else aside * one["total"]) for one in of_all)
    return {"free": max(0.0, free) / sharing, "total": min(one["total"] for one in of_all)}


def choose(config: BaseConfig, sizes: Sizes, room: float, heed: bool = True) -> float:
    """Set the largest sizes whose peaks are within `room`, else the smallest; returns the highest peak."""
    for peak, choices in sizes.choices(config, heed).items():
        for choice in choices:
            set_all(config, choice)
            if sizes.estimate(config)[peak] <= room:
                break
    return max(sizes.estimate(config)[peak] for peak in (UPDATE, SAMPLING))


def set_all(config: BaseConfig, values: dict) -> BaseConfig:
    """Set fields of a config, and return it."""
    for name, value in values.items():
        setattr(config, name, value)
    return config


def gib(size: float) -> str:
    """Bytes as GiB."""
    return f"{size / 2**30:.1f}" if size >= 2**30 else f"{size / 2**30:.2g}"


def as_flags(values: dict) -> str:
    """Settings as flags of a command line."""
    return " ".join(f"--{name}" + ("" if value is True else f" {value}") for name, value in values.items())


def settle_sizes(config: BaseConfig, device: str, sizes: Sizes) -> Fit:
    """Replace the sizes that the user left open by the largest that fit, the defaults at most; the same for all ranks.

    Results do not depend on them, but for the order of sums.
    """
    machine, whole = memory_for_each(device, sizes.aside), sizes.estimate(config)
    if not machine or not whole:
        return Fit(True)
    free, asked = machine["free"], copy.copy(config)
    peak = choose(config, sizes, USABLE_SHARE * free)
    of = f"{gib(peak)} of {gib(free)} GiB"
    if peak <= free:
        return Fit(True, f"{sizes.text(config)}: {of}")
    smaller = copy.copy(asked)
    if choose(smaller, sizes, USABLE_SHARE * free, heed=False) <= free:
        advice = f"try {sizes.text(smaller)}, chosen where these settings are left out"
        return Fit(True, f"warning: {sizes.text(config)} need about {of} free on {device}; {advice}")
    advised = list(lighter_that_fit(asked, sizes, free)) or ["a smaller model, or a machine with more memory"]
    return Fit(
        False,
        f"got {asked.model} with settings that need {gib(peak)} GiB even with the smallest batches; expected at most "
        f"the {gib(free)} GiB that {device} has free for a process; try {', or '.join(advised)}",
    )


def lighter_that_fit(config: BaseConfig, sizes: Sizes, free: float) -> Iterator[str]:
    """Settings with which a run would fit, as flags with what they need."""
    allowed = free_on_resume(config) if config.resume else vars(config)
    for alternatives in sizes.lighter:
        for change in alternatives:
            lighter = set_all(copy.copy(config), change)
            if change and change.keys() <= set(allowed):
                peak = choose(lighter, sizes, USABLE_SHARE * free, heed=False)
                if peak <= free:
                    yield f"{as_flags(change)} ({gib(peak)} GiB)"
                    break


def settle_or_refuse(config: BaseConfig, device: str, sizes: Sizes) -> None:
    """`settle_sizes`, said in one line; UserError, before anything is loaded, where a run cannot fit."""
    fit = settle_sizes(config, device, sizes)
    need(fit.fits, fit.line)
    if fit.line:
        say(fit.line)
    if device == "cpu" and max(sizes.estimate(config).values(), default=0) > 2**30:
        give_back_tensors()


def show_plan(config: BaseConfig, device: str, sizes: Sizes, plan: dict, **resolved) -> None:
    """Print what --dry_run shows, with the sizes that fit.

    Args:
        resolved: settings with the values that were worked out.
    """
    fit = settle_sizes(config, device, sizes)
    print_plan(device, plan, sizes.estimate(config), changed_settings(config, **resolved), fit.line)


def give_back_tensors() -> None:
    """Let freed tensors of 1 MiB and more go back to the system at once.

    glibc would keep those below 32 MiB in a heap that small tensors leave full of holes: measured with LoRA on 0.5B
    parameters, an update took 3.8 GiB in place of 2.5. Small models are quicker with that heap.
    """
    mmap_threshold = -3  # M_MMAP_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another system, another libc
        ctypes.CDLL("libc.so.6").mallopt(mmap_threshold, 2**20)
