"""Which version of a package a file was written for, by what it uses."""

import re
from collections.abc import Callable
from pathlib import Path

from parts.foundation.messages import UserError
from programs.migrate.tables import changes, entry_at, known_version, numbers

Use = tuple[str, str, list[dict]]  # what the file uses, where, its entries in the table


def pinned(package: str, file: str, text: str) -> tuple[str, str] | None:
    """(Version, where) of a pin PACKAGE==… in a file, or in a requirements.txt beside it."""
    pattern = re.compile(rf"\b{package}(?:\[[\w,]+\])?(?:\s*==\s*|(?:\.git)?@)v?(\d+\.\d+)")
    texts, near = {file: text}, Path(file).parent / "requirements.txt"
    if near.is_file():
        texts[str(near)] = near.read_text(encoding="utf-8", errors="replace")
    for name, content in texts.items():
        match = pattern.search(content)
        if match:
            return known_version(package, match[1]), f"{Path(name).name}: {match[0]}"
    return None


def is_there(entries: list[dict], version: str) -> bool:
    entry = entry_at(entries, version)
    return entry is not None and not entry.get("gone")


def fitting(package: str, file: str, named: list[Use]) -> list[str]:
    """The versions that have all that a file uses.

    Raises:
        UserError: there are none.
    """
    versions = changes(package)["versions"]
    lacking = {v: [use for use, _, entries in named if not is_there(entries, v)] for v in versions}
    chosen = [v for v in versions if not lacking[v]]
    if chosen:
        return chosen
    best = min(versions, key=lambda v: len(lacking[v]))
    missing = f"{best} is nearest and has no {', '.join(lacking[best])}"
    got = f"got {file}, which fits no version of {package}: {missing}"
    raise UserError(f"{got}; expected one that has all names; try --from {package}=={best}")


def check_fits(package: str, file: str, version: str, named: list[Use]) -> None:
    """Raise UserError for a version before the one that brought what the file uses."""
    for use, place, entries in named:
        if entries and entry_at(entries, version) is None:
            got = f"{file}, {place}: got --from {package}=={version} and {use}, there since {entries[0]['since']}"
            expected = f"expected a version from {entries[0]['since']} on"
            raise UserError(f"{got}; {expected}; try without --from, which says what fits")


def groups_of(versions: list[str], outcome: Callable) -> list[tuple[list[str], dict]]:
    """Versions that make the same run of a file, with what each makes of it."""
    groups: list[tuple[list[str], dict]] = []
    for version in versions:
        result = outcome(version)
        if groups and groups[-1][1] == result:
            groups[-1][0].append(version)
        else:
            groups.append(([version], result))
    return groups


def chosen_version(package: str, file: str, text: str, given: str, named: list[Use], outcome: Callable) -> tuple:
    """(Version, how it was found).

    Raises:
        UserError: several versions fit, and make different runs of the file.
    """
    if given:
        check_fits(package, file, given, named)
        return given, "given"
    pin = pinned(package, file, text)
    if pin:
        return pin[0], f"pinned in {pin[1]}"
    versions = fitting(package, file, named)
    groups = groups_of(versions, outcome)
    span = f"{package} {versions[0]}" + f" to {versions[-1]}" * (len(versions) > 1)
    if len(groups) == 1:
        return versions[-1], f"{span} fit by the names used, and make the same run"
    lines = []
    for name in dict.fromkeys(name for _, settings in groups for name in settings):
        parts: list[list] = []  # [first version, last version, value]
        for fit, settings in groups:
            value = settings.get(name, "as today")
            if parts and parts[-1][2] == value:
                parts[-1][1] = fit[-1]
            else:
                parts.append([fit[0], fit[-1], value])
        if len(parts) > 1:
            spans = ("-".join(dict.fromkeys(part[:2])) + f": {part[2]}" for part in parts)
            lines.append(f"  {name}: " + ", ".join(spans))
    likely = max((v for v in versions), key=numbers)
    got = f"got {file} without --from; {span} fit by the names used, and make different runs:"
    expected = f"expected one version; try --from {package}=={likely}, or that of the environment that ran it"
    raise UserError("\n".join([got, *lines, expected]))
