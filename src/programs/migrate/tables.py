"""What changed between the versions of TRL and verl: tables read from their packages, by version."""

import functools
import json

from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError

TRL_CHANGES = file_text("trl_changes.json")
VERL_CHANGES = file_text("verl_changes.json")
# What a TRL config inherits where its table begins later: defaults of transformers that never changed.
INHERITED = {
    "bf16": False,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": False,
    "learning_rate": 5e-5,
    "logging_steps": 500,
    "per_device_train_batch_size": 8,
    "remove_unused_columns": True,
    "use_liger_kernel": False,
}
ABSENT = object()  # the default of a setting that a version does not have


@functools.cache
def changes(package: str) -> dict:
    return json.loads(TRL_CHANGES if package == "trl" else VERL_CHANGES)


def numbers(version: str) -> tuple[int, ...]:
    """A version up to its minor number, for comparison."""
    return tuple(int(part) for part in version.split(".")[:2])


def known_version(package: str, text: str) -> str:
    """The minor version of the table for `0.14`, `0.14.2` or `v0.14`; UserError for one that it does not have."""
    versions = changes(package)["versions"]
    try:
        wanted = numbers(text.removeprefix("v"))
    except ValueError:
        wanted = ()
    for version in versions:
        if numbers(version) == wanted:
            return version
    known = f"{package}=={versions[0]} to {versions[-1]}"
    raise UserError(f"got --from {package}=={text}; expected a version of {known}; try `pip index versions {package}`")


def newest(package: str) -> str:
    return changes(package)["versions"][-1]


def entry_at(entries: list[dict], version: str) -> dict | None:
    """The entry that holds in a version; None before the first."""
    held = [entry for entry in entries if numbers(entry["since"]) <= numbers(version)]
    return held[-1] if held else None
