"""Changes between the versions of TRL and verl: tables read from their packages."""

import functools
import json

from parts.data.trl_names import trl_defaults
from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError

TRL_CHANGES = file_text("trl_changes.json")
VERL_CHANGES = file_text("verl_changes.json")
# By hand: settings without an effect on the run, defaults that say nothing of it, what is gone and what to use instead.
NAMES_TEXT = file_text("names.json")
NAMES = json.loads(NAMES_TEXT)
BASE = "TrainingArguments"  # of transformers
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
    wanted = ".".join(text.removeprefix("v").split(".")[:2])
    if wanted in versions:
        return wanted
    known = f"{package}=={versions[0]} to {versions[-1]}"
    raise UserError(f"got --from {package}=={text}; expected {known}; try `pip index versions {package}`")


def newest(package: str) -> str:
    return changes(package)["versions"][-1]


def entry_at(entries: list[dict], version: str) -> dict:
    """The entry that holds in a version; empty before the first."""
    held = [entry for entry in entries if numbers(entry["since"]) <= numbers(version)]
    return held[-1] if held else {}


def is_there(entries: list[dict], version: str) -> bool:
    entry = entry_at(entries, version)
    return bool(entry) and not entry.get("gone")


def transformers_of(version: str) -> str:
    """The newest transformers that a version of TRL was published with; for the newest TRL, the newest of all."""
    return "99.0" if version == newest("trl") else changes("trl")["transformers"][version][1]


def entries_of(config: str, name: str) -> tuple[list[dict], list[dict]]:
    """(Entries of a setting in a TRL config, those in transformers' TrainingArguments)."""
    configs = changes("trl")["configs"]
    return configs.get(config, {}).get(name, []) if config != BASE else [], configs[BASE].get(name, [])


def default_at(config: str, name: str, version: str):
    """The default of a setting in a version of TRL, its own or that of transformers; ABSENT where it has none."""
    own, base = entries_of(config, name)
    if is_there(own, version):
        return entry_at(own, version)["default"]
    if base:
        there = is_there(base, transformers_of(version))
        return entry_at(base, transformers_of(version))["default"] if there else ABSENT
    return trl_defaults("" if own else config).get(name, ABSENT)


def gone_entry(config: str, name: str) -> dict:
    """The entry that says since when a setting is gone; empty for one that is there, or was never known."""
    own, base = entries_of(config, name)
    if is_there(own, newest("trl")):
        return {}
    last = base[-1] if base else own[-1] if own and name not in trl_defaults("") else {}
    return last if last.get("gone") else {}


def since_of(config: str, name: str, version: str) -> str:
    """The first version after this one that changed a setting."""
    own, base = entries_of(config, name)
    later = [e["since"] for e in own if numbers(e["since"]) > numbers(version)]
    from_version = changes("trl")["transformers"][version][1]
    later += [f"transformers {e['since']}" for e in base if numbers(e["since"]) > numbers(from_version)]
    gone = gone_entry(config, name).get("since", newest("trl"))
    return later[0] if later else f"transformers {gone}" if base else gone
