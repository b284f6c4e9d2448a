"""Which version of a package a file was written for: a pin, or the names that it uses."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

from parts.data.trl_names import trl_defaults
from parts.foundation.messages import UserError
from parts.foundation.user_scripts import PythonSource
from programs.migrate.tables import changes, entries_of, entry_at, is_there, known_version
from programs.migrate.trl_run import CONFIGS
from programs.migrate.trl_script import trainer_calls

Use = tuple[str, str, list[dict]]  # name that a file uses, its place, its table entries


def uses(source: PythonSource) -> list[Use]:
    """Arguments and imports of a script that only some versions have."""
    tables, version_uses = changes("trl"), []
    configs = [(config, call) for config in CONFIGS.values() for call in source.calls.get(config, [])]
    for trainer, call in trainer_calls(source):
        table, place = tables["trainers"].get(trainer, {}), source.place(call)
        names = [argument.name for argument in source.arguments(call)[0]]
        version_uses += [(f"{trainer}({n}=…)", place, table[n]) for n in names if n in table]
    for config, call in configs:
        place = source.place(call)
        for name in [argument.name for argument in source.arguments(call)[0] + source.changes(call)]:
            in_config, in_base = entries_of(config, name)
            if in_config and not in_base and name not in trl_defaults(""):
                version_uses.append((f"{config}({name}=…)", place, in_config))
    for name, (module, original, node) in source.imports.items():
        if (module == "trl" or "experimental" in module) and original in tables["modules"]:
            entries = [e for e in tables["modules"][original] if module != "trl" or e.get("value", module) == module]
            version_uses.append((f"from {module} import {name}", source.place(node), entries))
    return version_uses


def pinned(package: str, file: str, text: str) -> tuple[str, str] | None:
    """(Version, where) of a pin PACKAGE==… in a file, or in a requirements.txt beside it."""
    pattern = re.compile(rf"(?<![\w-]){package}(?:\[[\w,]+\])?(?:\s*==\s*|(?:\.git)?@)v?(\d+\.\d+)")
    texts, requirements = {file: text}, Path(file).parent / "requirements.txt"
    if requirements.is_file():
        texts[str(requirements)] = requirements.read_text(encoding="utf-8", errors="replace")
    for name, content in texts.items():
        if match := pattern.search(content):
            return known_version(package, match[1]), f"pinned in {Path(name).name}: {match[0]}"
    return None


def chosen_version(package: str, file: str, text: str, given: str, file_uses: list[Use], outcome: Callable) -> tuple:
    """(Version, how it was found).

    Raises:
        UserError: the given version, or every version, lacks a name of the file; or several fit, with different runs.
    """
    for use, place, entries in file_uses if given else []:
        if entries and not entry_at(entries, given):
            got = f"{file}, {place}: got --from {package}=={given} and {use}, there since {entries[0]['since']}"
            expected = f"expected a version from {entries[0]['since']} on"
            raise UserError(f"{got}; {expected}; try without --from, which says what fits")
    if given:
        return given, "given"
    if pin := pinned(package, file, text):
        return pin
    versions = changes(package)["versions"]
    lacking = {v: [use for use, _, entries in file_uses if not is_there(entries, v)] for v in versions}
    fitting = [v for v in versions if not lacking[v]]
    if not fitting:
        best = min(versions, key=lambda v: len(lacking[v]))
        got = f"got {file}, which fits no version of {package}: {best} is nearest and has no {', '.join(lacking[best])}"
        raise UserError(f"{got}; expected one that has all names; try --from {package}=={best}")
    span = f"{package} {fitting[0]} to {fitting[-1]} fit by the names used"
    outcomes = {version: outcome(version) for version in fitting}
    names = dict.fromkeys(name for settings in outcomes.values() for name in settings)
    lines = []
    for name in names:
        parts = []
        for value, group in itertools.groupby(fitting, lambda v, name=name: outcomes[v].get(name, "as today")):
            same = [*group]
            parts.append("-".join(dict.fromkeys((same[0], same[-1]))) + f": {value}")
        if len(parts) > 1:
            lines.append(f"  {name}: {', '.join(parts)}")
    if not lines:
        return fitting[-1], f"{span}, and make the same run"
    got = f"got {file} without --from; {span}, and make different runs:"
    expected = f"expected one version; try --from {package}=={fitting[-1]}, or that of the environment that ran it"
    raise UserError("\n".join([got, *lines, expected]))
