"""Changes between the versions of TRL and verl: tables read from their packages."""

import functools
import json
import re

from parts.data.trl_names import trl_defaults
from parts.data.trl_scripts import BASE
from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError

TRL_CHANGES = file_text("trl_changes.json")
VERL_CHANGES = file_text("verl_changes.json")
# Written by hand: settings and defaults that do not affect a run, and replacements for names that are gone.
NAMES_TEXT = file_text("names.json")
NAMES = json.loads(NAMES_TEXT)
ABSENT = object()  # the default of a setting that a version does not have


@functools.cache
def changes(package: str) -> dict:
    """The tables of a package; a history is {version: value from it on, or {"gone": its new name}}, oldest first."""
    return json.loads(TRL_CHANGES if package == "trl" else VERL_CHANGES)


def numbers(version: str) -> tuple[int, ...]:
    """(Major, minor) of a version, for comparison."""
    return tuple(int(part) for part in version.split(".")[:2])


def known_version(package: str, text: str) -> str:
    """The table's version 0.14 for `0.14`, `0.14.2` or `v0.14`, its first for older ones; UserError for others."""
    versions = changes(package)["versions"]
    wanted = ".".join(text.removeprefix("v").split(".")[:2])
    if wanted in versions:
        return wanted
    if re.fullmatch(r"\d+\.\d+", wanted) and numbers(wanted) < numbers(versions[0]):
        return versions[0]
    known = f"{package}=={versions[0]} to {versions[-1]}"
    raise UserError(f"got --from {package}=={text}; expected {known}; try `pip index versions {package}`")


def newest(package: str) -> str:
    return changes(package)["versions"][-1]


def is_gone(value) -> bool:
    return isinstance(value, dict) and "gone" in value


def value_at(history: dict, version: str, default=ABSENT):
    """What holds in a version; the default before the first, and where it is gone."""
    values = [value for since, value in history.items() if numbers(since) <= numbers(version)]
    return values[-1] if values and not is_gone(values[-1]) else default


def end_of(history: dict) -> dict:
    """{"since", "renamed"} of what is gone today; else {}."""
    since, value = [*history.items()][-1] if history else ("", None)
    return {"since": since, "renamed": value["gone"]} if is_gone(value) else {}


def transformers_of(version: str) -> str:
    """The newest transformers at the time of a TRL release; 99.0, above all, for the newest TRL."""
    return "99.0" if version == newest("trl") else changes("trl")["transformers"][version]


def histories(config: str, name: str) -> tuple[dict, dict]:
    """(History of a setting in a TRL config, that in transformers' TrainingArguments)."""
    configs = changes("trl")["configs"]
    return configs.get(config, {}).get(name, {}) if config != BASE else {}, configs[BASE].get(name, {})


def default_at(config: str, name: str, version: str):
    """The default of a setting in a version of TRL, from its config or from transformers; ABSENT if it is not there."""
    in_config, in_base = histories(config, name)
    value = value_at(in_config, version)
    if value is not ABSENT:
        return value
    if in_base:
        return value_at(in_base, transformers_of(version))
    return trl_defaults("" if in_config else config).get(name, ABSENT)


def gone_entry(config: str, name: str) -> dict:
    """The entry that removed a setting; {} if the setting still exists or never did."""
    in_config, in_base = histories(config, name)
    if value_at(in_config, newest("trl")) is not ABSENT or (not in_base and name in trl_defaults("")):
        return {}
    return end_of(in_base or in_config)


def since_of(config: str, name: str, version: str) -> str:
    """The first version after this one that changed a setting."""
    in_config, in_base = histories(config, name)
    later = [since for since in in_config if numbers(since) > numbers(version)]
    from_version = changes("trl")["transformers"][version]
    later += [f"transformers {since}" for since in in_base if numbers(since) > numbers(from_version)]
    gone = gone_entry(config, name).get("since", newest("trl"))
    return later[0] if later else f"transformers {gone}" if in_base else gone
