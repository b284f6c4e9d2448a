"""Which version of TRL a script was written for, by what it uses."""

import ast
import re
from pathlib import Path

from parts.foundation.messages import UserError
from programs.migrate.python_source import PythonSource
from programs.migrate.tables import changes, entry_at, known_version, newest
from programs.migrate.trl_arguments import default_changes
from programs.migrate.trl_calls import config_base, config_call, trainer_calls
from programs.migrate.trl_meanings import MEANINGS
from programs.migrate.trl_run import CONFIGS, TrlRun
from programs.migrate.edits import Report


def pinned(source: PythonSource) -> tuple[str, str] | None:
    """(Version, where) of a pin trl==… in the script, or in a requirements.txt beside it."""
    pattern = re.compile(r"\btrl(?:\[[\w,]+\])?\s*==\s*v?(\d+\.\d+)")
    texts = {source.name: source.text}
    near = Path(source.name).parent / "requirements.txt"
    if near.is_file():
        texts[str(near)] = near.read_text(encoding="utf-8", errors="replace")
    for name, text in texts.items():
        match = pattern.search(text)
        if match:
            return known_version("trl", match[1]), f"{Path(name).name}: {match[0]}"
    return None


def uses(source: PythonSource) -> list[tuple[str, str, list[dict]]]:
    """(What the script uses, line, its entries) for names whose presence depends on the version."""
    tables, named = changes("trl"), []
    for trainer, call in trainer_calls(source):
        place = source.place(source.span(call)[0])
        for name in source.arguments(call)[0]:
            if name in tables["trainers"].get(trainer, {}):
                named.append((f"{trainer}({name}=…)", place, tables["trainers"][trainer][name]))
        made, _ = config_call(source, trainer, call)
        named += config_uses(source, CONFIGS[trainer], made)
    for config in CONFIGS.values():
        for call in source.calls.get(config, []):
            named += config_uses(source, config, call)
    for name, (module, original, node) in source.imports.items():
        if module.split(".")[0] == "trl" and original in tables["modules"]:
            entries = [
                e for e in tables["modules"][original] if e.get("gone") or e["at"] == module or module.count(".") > 1
            ]
            named.append((f"from {module} import {name}", source.place(source.span(node)[0]), entries))
    return named


def config_uses(source: PythonSource, config: str, call: ast.Call | None) -> list:
    if call is None:
        return []
    run, table = TrlRun(source, config, newest("trl"), call), changes("trl")["configs"].get(config, {})
    base = changes("trl")["configs"]["TrainingArguments"]
    place = source.place(source.span(call)[0])
    names = [n for n in (*run.arguments, *run.attributes) if n in table and n not in base and n not in INHERITABLE]
    return [(f"{config}({name}=…)", place, table[name]) for name in names]


INHERITABLE = (
    {"per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "bf16", "logging_steps"}
    | {"gradient_checkpointing", "remove_unused_columns", "push_to_hub", "run_name", "use_liger_kernel"}
    | {"lr_scheduler_kwargs", "seed", "max_grad_norm", "dataloader_drop_last", "neftune_noise_alpha"}
)


def fitting(source: PythonSource) -> list[str]:
    """The versions that have all that the script uses.

    Raises:
        UserError: there are none.
    """
    versions = changes("trl")["versions"]
    named = uses(source)
    fits = {v: [what for what, _, entries in named if not is_there(entries, v)] for v in versions}
    chosen = [v for v in versions if not fits[v]]
    if chosen:
        return chosen
    best = min(versions, key=lambda v: len(fits[v]))
    missing = ", ".join(fits[best])
    raise UserError(
        f"got {source.name}, which fits no version of TRL: {best} is nearest and has no {missing}; "
        f"expected one; try --from trl=={best}"
    )


def is_there(entries: list[dict], version: str) -> bool:
    entry = entry_at(entries, version)
    return entry is not None and not entry.get("gone")


def check_fits(source: PythonSource, version: str) -> None:
    """Raise UserError for a version that lacks what the script uses and that a later one brought."""
    for what, place, entries in uses(source):
        if entries and entry_at(entries, version) is None:
            since = entries[0]["since"]
            raise UserError(
                f"{source.name}, {place}: got --from trl=={version} and {what}, which TRL has since {since}; "
                f"expected a version from {since} on; try without --from, which says what fits"
            )


def outcome(source: PythonSource, version: str) -> dict[str, str]:
    """What a version makes of a script where it says nothing: {setting: value}, by what would be written out."""
    settings, report = {}, Report()
    for trainer, call in trainer_calls(source):
        run = TrlRun(source, CONFIGS[trainer], version, config_call(source, trainer, call)[0])
        for name, change in default_changes(run).items():
            settings[name] = change.text
        for meaning in MEANINGS:
            settings |= {change.name: change.text or "" for change in meaning(run, report)}
        if run.value("max_prompt_length"):
            settings["prompts"] = f"cut to {run.text('max_prompt_length')}"
    return settings


def groups_of(source: PythonSource, versions: list[str]) -> list[tuple[list[str], dict]]:
    """Versions that make the same run of a script, with what they write out."""
    groups: list[tuple[list[str], dict]] = []
    for version in versions:
        result = outcome(source, version)
        if groups and groups[-1][1] == result:
            groups[-1][0].append(version)
        else:
            groups.append(([version], result))
    return groups
