"""The arguments of a TRL config, as the new script has them."""

import ast

from programs.migrate.edits import Report, Row
from programs.migrate.python_source import Argument
from programs.migrate.tables import ABSENT, changes, newest, numbers
from programs.migrate.trl_meanings import MEANINGS, Change
from programs.migrate.trl_names import BESIDE_THE_RUN, LOSSLESS, RENAMED
from programs.migrate.trl_run import ELSEWHERE, TrlRun, changed_names, default_at, is_gone

SAME = ({None, 0, -1}, {"sigmoid"}, {True, "group"}, {False, "none"})  # values that are one setting


def python(value) -> str:
    if isinstance(value, dict) and set(value) == {"expr"}:
        return value["expr"]
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def is_same(name: str, old, new) -> bool:
    """Whether two defaults mean the same."""
    if type(old) is type(new) and old == new:
        return True
    if isinstance(new, list) and new == [old]:
        return True
    neutral = name in ("top_k", "scale_rewards")
    return neutral and any(old in group and new in group for group in map(list, SAME))


def since_of(config: str, name: str, version: str) -> str:
    """The first version after this one that changed a setting."""
    tables = changes("trl")["configs"]
    for entry in tables.get(config, {}).get(name, []):
        if numbers(entry["since"]) > numbers(version):
            return entry["since"]
    base = tables["TrainingArguments"].get(name, [])
    from_version = changes("trl")["transformers"][version][1]
    return next(
        (f"transformers {e['since']}" for e in base if numbers(e["since"]) > numbers(from_version)), newest("trl")
    )


def given_changes(run: TrlRun, report: Report) -> dict[str, Change]:
    """What becomes of the arguments that the script gives and that are gone."""
    plan = {}
    for name in dict.fromkeys((*run.arguments, *run.attributes, *run.of_class)):
        gone = is_gone(run.config, name)
        if not gone:
            continue
        since = since_of(run.config, name, run.version)
        new = gone.get("renamed") or RENAMED.get(name)
        value, text = run.value(name), run.text(name)
        if name in ELSEWHERE:
            continue
        if new and new not in run.arguments:
            plan[name] = Change(name, text, Row(f"{new}={text}", since, f"the new name of {name}", "TypeError"), new)
        elif name in LOSSLESS or new or value in (None, False, ""):
            plan[name] = Change(name, None, Row("", since, f"{name} is gone, and the run is the same", "TypeError"))
        else:
            plan[name] = Change(name, None, Row("", since, f"{name} is gone", "TypeError"))
            place = run.source.place((run.arguments.get(name) or PLACELESS).start)
            report.refuse(place, f"{name}={text}", f"gone since {since}", "leaving it out")
    return plan


PLACELESS = Argument("", ast.Constant(None), 0, 0, 0)


def default_changes(run: TrlRun) -> dict[str, Change]:
    """Defaults that changed and that the script does not give, with their old values."""
    plan = {}
    for name in changed_names(run.config):
        if run.has(name) or name in BESIDE_THE_RUN:
            continue
        old, new = default_at(run.config, name, run.version), default_at(run.config, name, newest("trl"))
        if old is ABSENT or new is ABSENT or is_same(name, old, new) or is_idle(run, name):
            continue
        since = since_of(run.config, name, run.version)
        row = Row(f"{name}={python(old)}", since, "its default then", python(new))
        plan[name] = Change(name, python(old), row)
    return plan


def is_idle(run: TrlRun, name: str) -> bool:
    """Whether a setting cannot act beside what the script gives."""
    if name == "use_bias_correction_kl":
        return run.value("beta") == 0
    if name == "bf16":
        return run.has("fp16") and run.value("fp16") is not False
    if name.startswith("vllm_"):
        return run.value("use_vllm") in (False, None)
    if name.startswith("ref_model_"):
        return run.value("sync_ref_model") in (False, None)
    if name == "packing_strategy":
        return run.value("packing") in (False, None)
    if name == "f_alpha_divergence_coef":
        return "alpha" not in str(run.value("f_divergence_type")).lower()
    if name == "logging_steps":
        return run.value("logging_strategy") in ("epoch", "no")
    return name == "average_tokens_across_devices"


def planned(run: TrlRun, report: Report) -> dict[str, Change]:
    plan = given_changes(run, report) | default_changes(run)
    for meaning in MEANINGS:
        for change in meaning(run, report):
            plan[change.name] = change
    if run.has("generation_kwargs") and "generation_kwargs" in plan:
        merged = f"{{**{plan['generation_kwargs'].text}, **{run.text('generation_kwargs')}}}"
        plan["generation_kwargs"] = Change("generation_kwargs", merged, plan["generation_kwargs"].row)
    return plan


def write_arguments(run: TrlRun, plan: dict[str, Change], report: Report) -> list[Change]:
    """Edit the given arguments; the additions that found no place of a removed one come back."""
    additions = [change for name, change in plan.items() if not run.in_config(name) and change.text is not None]
    start, end = run.source.span(run.call)
    own = [a for a in run.arguments.values() if start <= a.start < end]  # others may stand in a shared dictionary
    for name, change in plan.items():
        argument = run.arguments.get(name)
        if argument is None:
            if name in run.attributes:
                edit_attribute(run, name, change, report)
            continue
        is_shared = argument not in own
        if change.text is None and additions and not is_shared:
            report.edit(argument.end, argument.end, "", change.row)
            change = additions.pop(0)
        if change.text is None:
            report.edit(*run.source.removal(argument), "", change.row)
            continue
        new = change.new_name or change.name
        text = f'"{new}": {change.text}' if argument.quoted else f"{new}={change.text}"
        report.edit(argument.start, argument.end, text, change.row)
    return additions


def edit_attribute(run: TrlRun, name: str, change: Change, report: Report) -> None:
    """`config.name = value` behind the call."""
    statement = run.attributes[name]
    start, end = run.source.span(statement)
    if change.text is None:
        report.edit(start, end, f"pass  # {name} is gone", change.row)
        return
    target = run.source.code(statement.targets[0].value)
    report.edit(start, end, f"{target}.{change.new_name or name} = {change.text}", change.row)


def add_to_call(run: TrlRun, call: ast.Call, additions: list[Change], report: Report) -> None:
    """Put new arguments behind the last one of a call."""
    if not additions:
        return
    if run.unseen:
        shown = ", ".join(run.source.code(node) for node in run.unseen)
        place = run.source.place(run.source.span(call)[0])
        names = ", ".join(change.name for change in additions)
        why = f"made at run time: nothing says whether it has {names}, whose defaults changed"
        report.refuse(place, f"**{shown}", why, offer_to_read(run, shown))
        return
    for edit in run.source.additions(call, [(f"{c.new_name or c.name}={c.text}", c.row) for c in additions]):
        report.edits.append(edit)


def offer_to_read(run: TrlRun, name: str) -> str:
    """The command that migrates the file that a dictionary is read from."""
    node = run.source.resolved(run.unseen[0])
    if any(isinstance(n, ast.Dict) or n in run.source.calls.get("dict", []) for n in run.source.bound_to(name)):
        return f"one dictionary {name} with all settings, which nothing changes later"
    files = [
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Constant) and str(n.value).endswith((".yaml", ".yml", ".json"))
    ]
    file = files[0] if files else f"{name}.yaml" if name.isidentifier() else "FILE.yaml"
    return (
        f"migrate.py {file} --config_class {run.config} --from trl=={run.version} --out NEW.yaml, with what {name} has"
    )
