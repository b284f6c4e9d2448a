"""The command line: input, the version it was written for, output, messages."""

import argparse
import ast
import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from parts.data.trl_names import trl_defaults
from parts.data.trl_scripts import CONFIGS, trainer_calls
from parts.foundation.messages import Help, UserError, need, tell
from parts.foundation.user_scripts import PythonSource
from programs.migrate.edits import Change, Edit, Report, edited_source
from programs.migrate.job_files import SECTIONS, ShellJob, YamlJob
from programs.migrate.tables import ABSENT, changes, histories, is_gone, known_version, newest, numbers, value_at
from programs.migrate.trial import ONE_STEP, one_step, trial
from programs.migrate.trl_script import TrlMigration, outcome
from programs.migrate.trl_settings import config_of, migrate_yaml, run_of
from programs.migrate.verl_run import VerlMigration, other_mains

Use = tuple[str, str, dict]  # name that a file uses, its place, its history
MIGRATED = re.compile(r"(?:^|\")# Migrated from (trl|verl)==([\d.]+) to \1==([\d.]+) by migrate\.py", re.M)
INSTALL = re.compile(  # an install command with its continuation lines, Ray's list, or a script's PEP 723 block
    r"\b(?:pip3?|uv)\b[^\n]*?\b(?:install|add|run)\b(?:[^\n\\]|\\.)*|\bpip\W+\[[^]]*\]"
    r"|^# /// script\n(?:#.*\n)*?# ///",
    re.M | re.S,
)
ORDER = r"(?:===?|[<>!~]=|[<>])\s*[\w.*+!]+"
PIN = re.compile(
    r"(?<![\w-])(?P<name>trl|transformers|verl|vllm|sglang|torch|peft|accelerate|bitsandbytes|deepspeed)(?:\[[\w,]+\])?"
    rf"\s*(?P<version>{ORDER}(?:\s*,\s*{ORDER})*)"
)
ACCELERATE = {"compute_environment", "distributed_type"}  # keys that only Accelerate's own YAML files have
NOT_SAME = 3
AS_JOB = "try a verl job as a file .sh with its words KEY=VALUE, or as YAML"


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
            in_config, in_base = histories(config, name)
            if in_config and not in_base and name not in trl_defaults(""):
                version_uses.append((f"{config}({name}=…)", place, in_config))
    for name, (module, original, node) in source.imports.items():
        if module.split(".")[0] == "trl" and original in tables["modules"]:
            history = tables["modules"][original]
            here = {v: home for v, home in history.items() if module != "trl" or home == module or is_gone(home)}
            if module != "trl" and "experimental" not in module:  # has a name as long as trl itself has it
                here = {tables["versions"][0]: module}
                here |= {v: {"gone": ""} for v, home in history.items() if home != "trl"}
            version_uses.append((f"from {module} import {name}", source.place(node), here))
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
    for use, place, history in file_uses if given else []:
        first = next(iter(history), given)
        if numbers(first) > numbers(given):
            got = f"{file}, {place}: got --from {package}=={given} and {use}, there since {first}"
            expected = f"expected a version from {first} on"
            raise UserError(f"{got}; {expected}; try without --from, which says what fits")
    if given:
        return given, "given"
    if pin := pinned(package, file, text):
        return pin
    versions = changes(package)["versions"]
    lacking = {v: [use for use, _, history in file_uses if value_at(history, v) is ABSENT] for v in versions}
    fitting = [v for v in versions if not lacking[v]]
    if not fitting:
        later = {v: sum(numbers(next(iter(h), v)) > numbers(v) for _, _, h in file_uses) for v in versions}
        best = min(versions, key=lambda v: (later[v], len(lacking[v])))
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
    expected = f"expected that of the environment that ran it; try --from {package}=={fitting[0]}, the oldest that fits"
    raise UserError("\n".join([got, *lines, expected]))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help, allow_abbrev=False)
    parser.add_argument("file", help="script (.py), notebook (.ipynb), job (.sh) or YAML")
    parser.add_argument("--from", dest="version", metavar="PACKAGE==VERSION", help="trl==0.14, verl==0.3")
    parser.add_argument("--out", help="the new file; without it only the table is shown")
    parser.add_argument("--config_class", "--config-class", help="class of a YAML file: GRPOConfig, SFTConfig, …")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument("--check", action="store_true", help="run one step of the new script, with a cut-down model")
    parser.add_argument("--model", help="--check: a folder or hub id instead of the script's model")
    parser.add_argument("--data", help="--check: a file of rows instead of the script's data set")
    return parser.parse_args(argv)


def result_of(package: str, version: tuple[str, str], report: Report, place, new_text, text: str) -> dict:
    """The migrated text and its report; an edited file also gets a comment that names both versions.

    `version`: (version, how it was found); `new_text`: function that applies edits to `text`, the old text.
    """
    report.drop_inner()
    if report.edits:
        start = re.match(r"((?:#!|%%)[^\n]*\n)?(#.*coding[:=][^\n]*\n)?", text).end()
        line = f"# Migrated from {package}=={version[0]} to {package}=={newest(package)} by migrate.py.\n"
        report.edits.insert(0, Edit(start, start, line))
    result = {"package": package, "version": version[0], "found": version[1], "report": report}
    return result | {"rows": report.rows(place), "text": new_text(report.edits)}


def migrate_python(file: str, text: str, version: str) -> dict:
    source = PythonSource(file, text)
    uses_trl = any(module.split(".")[0] in ("trl", "unsloth") for module, _, _ in source.imports.values())
    got = f"got {file}, which imports nothing from TRL"
    need(uses_trl, f"{got}; expected a script with one of its trainers; {AS_JOB}")
    chosen = chosen_version("trl", file, source.text, version, uses(source), lambda v: outcome(source, v))
    migration = TrlMigration(source, chosen[0])
    report = migration.migrate()
    edit_pins(source.text, {"trl": newest("trl"), "transformers": "5.23"}, report)
    result = result_of("trl", chosen, report, source.place, lambda edits: edited_source(source, edits), source.text)
    compiled(file, result["text"])
    runs = [(run, change) for run, plan in migration.runs if not run.unseen for change in plan.values() if change.text]
    rows = [{"config": run.config, "setting": change.name, "new": change.text} for run, change in runs]
    return result | {"settings": rows}


def edit_pins(text: str, newer: dict[str, str], report: Report) -> None:
    """Raise the pins of `newer` packages in install commands; note which others of their stack are pinned."""
    others = []
    for match in [pin for block in INSTALL.finditer(text) for pin in PIN.finditer(text, *block.span())]:
        if match["name"] not in newer:
            others.append(match[0])
        elif re.search("[=<~]", match["version"].replace(">=", "")):
            version = f"=={newer[match['name']]}.*"
            pin = Change(f"{match['name']}{version}", "", newer[match["name"]], "the version of the new file", match[0])
            report.edit(*match.span("version"), version, pin)
    if others:
        report.note(f"pinned for the old version, too: {', '.join(dict.fromkeys(others))}")


def compiled(name: str, text: str) -> None:
    """Raise UserError unless the new text compiles; parsing alone would accept an argument given twice."""
    try:
        compile(PythonSource(name, text).runnable, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    except (SyntaxError, ValueError) as error:
        got = f"got {error} in the new text of {name}; expected Python, so nothing was written"
        raise UserError(f"{got}; try writing each setting once in the old file") from None


def migrate_job(file: str, text: str, version: str) -> dict:
    """Migrate a verl job: a shell script, or its settings in YAML."""
    kind = YamlJob if Path(file).suffix in (".yaml", ".yml") else ShellJob
    job = kind(file, text)
    inherits = kind is YamlJob and re.search(r"\bppo_\w*trainer\b", text)  # from verl's own file, in `defaults`
    is_verl = job.mains or inherits or any(word.key.split(".")[0] in SECTIONS for word in job.words)
    advice = "; for settings of TRL try --from trl==VERSION, that of their run" if kind is YamlJob else ""
    need(is_verl, f"got {file} without a setting of verl; expected a job or its YAML{advice}")

    def migrations(version: str, report: Report) -> list[VerlMigration]:
        return [VerlMigration(command, version, report) for command in job.commands()]

    def outcome_of(version: str) -> dict:
        report = Report()
        silent = [migration.silent() for migration in migrations(version, report)]
        settings = {key: change.text for changes in silent for key, change in changes.items()}
        return settings | {entry["setting"]: entry["why"] for entry in report.impossible}

    table, report = changes("verl")["keys"], Report()
    named = [(w.key, job.place(w.start), table[w.key]) for w in job.words if w.key in table and w.sign != "+"]
    chosen = chosen_version("verl", file, text, version, named, outcome_of)
    for migration in migrations(chosen[0], report):
        migration.migrate()
    if kind is ShellJob:
        edit_pins(text, {"verl": newest("verl")}, report)
    result = result_of("verl", chosen, report, job.place, job.edited, text)
    if kind is ShellJob and not all(map(other_mains, job.commands())):
        engine = " and model_engine=megatron" if "ppo_megatron" in text else ""
        way = f"verl_train.py --check --overrides FILE composes its words, one KEY=VALUE a line{engine}"
        report.note(f"only names of keys were checked; in verl's environment, {way}")
    return result


def shown_rows(rows: list[dict], names: list[str]) -> str:
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [min(60, max(len(line[i]) for line in lines)) for i in range(len(names))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def say_result(file: str, result: dict, out: str | None) -> None:
    report, rows, package = result["report"], result["rows"], result["package"]
    if report.impossible:
        tell("NOT THE SAME RUN: today's package has no equivalent for")
        for entry in report.impossible:
            where = f"{entry['line']}: " if entry["line"] else ""
            tell(f"  {where}{entry['setting']}: {entry['why']}; nearest: {entry['nearest']}")
        tell("")
    version = f"{package}=={result['version']} ({result['found']}) to {package}=={newest(package)}"
    condition = f"; the same run if {', and '.join(report.conditions)}" if report.conditions else ""
    tell(f"{file}: {version}, {len(rows)} changes{condition}")
    for note in report.notes:
        tell(f"note: {note}")
    if rows:
        tell("\n" + shown_rows(rows, ["line", "setting", "since", "why", "otherwise"]))
        tell("\n--json has file and line in the old source of each change that no signature shows")
    if step := result.get("trial"):
        tell("\n" + shown_rows(step["settings"], ["setting", "new", "read"]))
        tell(f"--check: one step of {step['trainer']}, loss {step['loss']:.4g}")
    tell(f"\n{out} written" if out else "\nnothing written; try --out NEW")


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == [ONE_STEP]:
        return one_step(*words[1:])
    try:
        return run(parse(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code


def check_step(args: argparse.Namespace, result: dict, path: Path) -> None:
    """Run one step of the new script; put what TRL read beside each setting that the script gives."""
    need(path.suffix in (".py", ".ipynb"), "got --check with settings; expected a script; try verl_train.py --check")
    script = PythonSource(path.name, result["text"]).runnable
    answer = trial(script, path.parent, args.model, args.data)
    rows = [row | {"read": answer.get(row["config"], {}).get(row["setting"], "")} for row in result["settings"]]
    result["report"].notes += answer["notes"]
    result["trial"] = {"loss": answer["loss"], "trainer": answer["trainer"], "settings": rows}


def migrated(args: argparse.Namespace, path: Path, text: str) -> dict:
    """Migrate a file as a TRL script, TRL settings or a verl job, by its suffix and --from."""
    given = re.fullmatch(r"(trl|verl)\s*==\s*v?([\w.]+)", args.version or "")
    got = f"got --from {args.version!r}"
    need(given or not args.version, f"{got}; expected trl==VERSION or verl==VERSION; try --from trl==0.14")
    package, version = (given[1], known_version(given[1], given[2])) if given else ("", "")
    is_python, is_yaml = path.suffix in (".py", ".ipynb"), path.suffix in (".yaml", ".yml")
    need(not (is_python and package == "verl"), f"got {args.file} with --from verl; {AS_JOB}")
    if is_python:
        return migrate_python(args.file, text, version)
    if package == "trl" or args.config_class:
        got = f"got {args.file} with --from trl; expected .py, .ipynb or .yaml"
        need(is_yaml, f"{got}; try its flags as a YAML file, KEY: VALUE")
        job = YamlJob(args.file, text)
        config = args.config_class or config_of(job)
        need(config, f"got {args.file} without --config_class; expected that of its run; try --config_class GRPOConfig")
        need(version, f"got {args.file} without --from; expected trl==VERSION; try that of the environment that ran it")
        report = migrate_yaml(job, run_of(job, config, version))
        return result_of("trl", (version, "given"), report, job.place, job.edited, text)
    return migrate_job(args.file, text, version)


def run(args: argparse.Namespace) -> int:
    path, out = Path(args.file), Path(args.out) if args.out else None
    try:
        with path.open(encoding="utf-8-sig", newline="") as f:
            text = f.read()
    except (OSError, ValueError) as error:
        raise UserError(f"got {args.file} ({getattr(error, 'strerror', error)}); expected a file in UTF-8") from None
    need(not out or not out.exists(), f"got --out {args.out}, which exists; expected a new file; try another name")
    is_dos = "\r\n" in text and text.count("\r\n") == text.count("\n")
    text = text.replace("\r\n", "\n") if is_dos else text
    if before := MIGRATED.search(text):
        tell(f"{args.file} was migrated before, from {before[1]}=={before[2]} to {before[3]}: nothing changes")
        return 0
    if path.suffix in (".yaml", ".yml") and ACCELERATE & {word.key for word in YamlJob(args.file, text).words}:
        tell(f"{args.file} is accelerate's, without a setting of TRL: nothing changes; `accelerate test` tries it")
        return 0
    result = migrated(args, path, text)
    report = result["report"]
    asked = re.search(r"==\s*v?(\d+\.\d+)", args.version or result["found"])
    if asked and numbers(asked[1]) < numbers(result["version"]):
        report.note(f"read as {result['package']} {result['version']}, with which the tables of changes begin")
    if out:
        with out.open("w", encoding="utf-8", newline="\r\n" if is_dos else "") as f:
            f.write(result["text"])
    if args.check:
        check_step(args, result, path)
    if args.json:
        shown = {name: result[name] for name in ("package", "version", "found", "trial") if name in result}
        shown |= {"to": newest(result["package"]), "changes": result["rows"], "not_expressible": report.impossible}
        shown |= {"notes": report.notes, "same_if": report.conditions, "out": args.out}
        tell(json.dumps(shown, indent=1))
    elif not report.edits and not report.impossible and not report.notes:
        tell(f"{args.file} needs no change: {result['package']} {newest(result['package'])} makes the same run of it")
    else:
        say_result(args.file, result, args.out)
    return NOT_SAME if report.impossible else 0


if __name__ == "__main__":
    sys.exit(main())
