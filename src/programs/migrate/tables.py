"""Changes between the versions of TRL and verl: tables read from their packages."""

import functools
import json

from parts.data.trl_names import trl_defaults
from parts.foundation.file_text import file_text
from parts.foundation.messages import UserError

TRL_CHANGES = file_text("trl_changes.json")
VERL_CHANGES = file_text("verl_changes.json")
# Written by hand: settings and defaults that do not affect a run, and replacements for names that are gone.
NAMES_TEXT = file_text("names.json")
NAMES = json.loads(NAMES_TEXT)
BASE = "TrainingArguments"  # transformers' class, from which TRL's configs derive
ABSENT = object()  # the default of a setting that a version does not have


@functools.cache
def changes(package: str) -> dict:
    """The tables of a package, with the history of each name as a list of entries."""
    tables = json.loads(TRL_CHANGES if package == "trl" else VERL_CHANGES)
    of_trl = [tables["modules"], *tables["configs"].values(), *tables["trainers"].values()] if package == "trl" else []
    for table in of_trl or [tables["keys"]]:
        table |= {name: as_entries(history) for name, history in table.items()}
    return tables


def as_entries(history: dict) -> list[dict]:
    """A history {version: what holds from it on} as a list; each entry has "value", or "gone" and its new name."""
    result = []
    for since, value in history.items():
        is_gone = isinstance(value, dict) and "gone" in value
        result.append({"since": since} | ({"gone": True, "renamed": value["gone"]} if is_gone else {"value": value}))
    return result


def numbers(version: str) -> tuple[int, ...]:
    """(Major, minor) of a version, for comparison."""
    return tuple(int(part) for part in version.split(".")[:2])


def known_version(package: str, text: str) -> str:
    """The table's version 0.14 for `0.14`, `0.14.2` or `v0.14`; UserError if the table does not have it."""
    versions = changes(package)["versions"]
    wanted = ".".join(text.removeprefix("v").split(".")[:2])
    if wanted in versions:
        return wanted
    known = f"{package}=={versions[0]} to {versions[-1]}"
    raise UserError(f"got --from {package}=={text}; expected {known}; try `pip index versions {package}`")


def newest(package: str) -> str:
    return changes(package)["versions"][-1]


def entry_at(entries: list[dict], version: str) -> dict:
    """The table entry in force in a version; {} before the first."""
    earlier = [entry for entry in entries if numbers(entry["since"]) <= numbers(version)]
    return earlier[-1] if earlier else {}


def is_there(entries: list[dict], version: str) -> bool:
    entry = entry_at(entries, version)
    return bool(entry) and not entry.get("gone")


def transformers_of(version: str) -> str:
    """The newest transformers at the time of a TRL release; 99.0, above all, for the newest TRL."""
    return "99.0" if version == newest("trl") else changes("trl")["transformers"][version][1]


def entries_of(config: str, name: str) -> tuple[list[dict], list[dict]]:
    """(Entries of a setting in a TRL config, those in transformers' TrainingArguments)."""
    configs = changes("trl")["configs"]
    return configs.get(config, {}).get(name, []) if config != BASE else [], configs[BASE].get(name, [])


def default_at(config: str, name: str, version: str):
    """The default of a setting in a version of TRL, from its config or from transformers; ABSENT if it is not there."""
    in_config, in_base = entries_of(config, name)
    if is_there(in_config, version):
        return entry_at(in_config, version)["value"]
    if in_base:
        exists = is_there(in_base, transformers_of(version))
        return entry_at(in_base, transformers_of(version))["value"] if exists else ABSENT
    return trl_defaults("" if in_config else config).get(name, ABSENT)


def gone_entry(config: str, name: str) -> dict:
    """The entry that removed a setting; {} if the setting still exists or never did."""
    in_config, in_base = entries_of(config, name)
    if is_there(in_config, newest("trl")):
        return {}
    last = in_base[-1] if in_base else in_config[-1] if in_config and name not in trl_defaults("") else {}
    return last if last.get("gone") else {}


def since_of(config: str, name: str, version: str) -> str:
    """The first version after this one that changed a setting."""
    in_config, in_base = entries_of(config, name)
    later = [e["since"] for e in in_config if numbers(e["since"]) > numbers(version)]
    from_version = changes("trl")["transformers"][version][1]
    later += [f"transformers {e['since']}" for e in in_base if numbers(e["since"]) > numbers(from_version)]
    gone = gone_entry(config, name).get("since", newest("trl"))
    return later[0] if later else f"transformers {gone}" if in_base else gone
