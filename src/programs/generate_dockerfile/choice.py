"""Choosing a row."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from parts.foundation.messages import UserError
from programs.generate_dockerfile.stacks import STACKS
from programs.generate_dockerfile.tables import MEGATRON_PINS, Stack


@dataclass(frozen=True)
class Choice:
    """One row of the table with one of its CUDA and Python versions."""

    stack: Stack
    cuda: str
    python: str

    @property
    def facts(self) -> dict[str, str]:
        """The value of each setting; empty where the row has none."""
        versions = self.stack.versions
        is_image = self.stack.base == "image"
        flash_attn = self.stack.held.get("flash-attn", "") or (self.cuda != "cpu" and self.stack.flash_attn) or ""
        megatron = is_image or (self.python == "3.12" and self.stack.megatron)
        return {
            "style": self.stack.style,
            "verl_base": self.stack.base if self.stack.style == "verl" else "",
            "cuda": self.cuda,
            "python": self.python,
            **{name: versions.get(name, "") for name in ("torch", "vllm", "sglang", "verl")},
            "flash_attn": flash_attn,
            "megatron": versions.get("megatron-core", MEGATRON_PINS["megatron-core"]) if megatron else "",
        }


# how much it hurts to change a setting: another style is further away than another Python
WEIGHTS = {
    "style": 25,
    "verl": 12,
    "vllm": 10,
    "sglang": 10,
    "torch": 10,
    "cuda": 8,
    "megatron": 6,
    "flash_attn": 6,
    "verl_base": 4,
    "python": 3,
}


def choices() -> Iterator[Choice]:
    """Every combination that the table allows, defaults first."""
    for stack in STACKS:
        for cuda in stack.cudas:
            for python in stack.pythons:
                yield Choice(stack, cuda, python)


def fits(wanted: str | bool, got: str) -> bool:
    """Whether a row's value is the one asked for: True means any, `2.13` any 2.13.x."""
    if wanted is True:
        return bool(got)
    return wanted is False or got == wanted or got.startswith(f"{wanted}.")


def version_gap(wanted: str | bool, got: str) -> float:
    """Distance of two versions in [0, 1); 1 where one of them is none."""
    pairs = [[int(number) for number in re.findall(r"\d+", str(v))] for v in (wanted, got)]
    if not all(pairs):
        return 1.0
    longest = max(map(len, pairs))
    one, two = (numbers + [0] * (longest - len(numbers)) for numbers in pairs)
    gap = sum(abs(a - b) * 0.01**place for place, (a, b) in enumerate(zip(one, two, strict=True)))
    return gap / (1 + gap)


def distance(wanted: dict, choice: Choice) -> float:
    """What changing the settings to those of a row would cost."""
    facts = choice.facts
    # what an image holds cannot be left out of it
    held = {name for name, value in wanted.items() if value is False and name.replace("_", "-") in choice.stack.held}
    misfits = [name for name, value in wanted.items() if name in held or not fits(value, facts[name])]
    missing = sum(20 for name in misfits if not facts[name])
    return missing + sum(WEIGHTS[name] + version_gap(wanted[name], facts[name]) for name in misfits)


def as_flags(wanted: dict, facts: dict[str, str] | None = None) -> str:
    """The settings as a command line; with `facts`, at that row's values."""
    words = []
    for name, value in wanted.items():
        got = value if facts is None else facts[name]
        if name == "flash_attn":
            words.append("--flash_attn" if got and value else "--no_flash_attn")
        elif name == "megatron":
            words += ["--megatron"] if got else []
        elif got is True:
            words.append(f"--{name}")
        elif got:
            words += [f"--{name}", str(got)]
    return " ".join(words)


def choose(wanted: dict) -> Choice:
    """The first row with every setting asked for; where there is none, an error that names the nearest."""
    found = next((choice for choice in choices() if distance(wanted, choice) == 0), None)
    if found is None:
        facts = min(choices(), key=lambda choice: distance(wanted, choice)).facts
        nearest = as_flags({"style": True, **wanted}, facts)
        raise UserError(
            f"got {as_flags(wanted)}; expected a row of the table (--list), the nearest that works has "
            + ", ".join(f"{name} {facts[name]}" for name in list(facts)[:-2] if facts[name])
            + f"; try {nearest}"
        )
    return found
