"""The command line: what is read, what is written, what is said."""

import argparse
import json
import re
import sys
from pathlib import Path

from parts.foundation.messages import UserError, need, tell
from programs.migrate.edits import Edit, Report, Row
from programs.migrate.effective import side_by_side
from programs.migrate.job_files import ShellJob, YamlJob
from programs.migrate.python_source import PythonSource, runnable
from programs.migrate.tables import changes, known_version, newest
from programs.migrate.trial import ONE_STEP, one_step, trial
from programs.migrate.trl_calls import TrlMigration, is_config
from programs.migrate.trl_run import TrlRun
from programs.migrate.trl_version import outcome, uses
from programs.migrate.trl_yaml import config_of, migrate_yaml, run_of
from programs.migrate.verl_run import VerlMigration, composed, verl_side_by_side
from programs.migrate.versions import chosen_version

MARK = re.compile(r"^# Migrated from (trl|verl)==([\d.]+) to \1==([\d.]+) by migrate\.py\.?$", re.M)
NOT_SAME = 3


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("file", help="script (.py), notebook (.ipynb), job (.sh) or YAML")
    parser.add_argument("--from", dest="version", metavar="PACKAGE==VERSION", help="trl==0.14, verl==0.3")
    parser.add_argument("--out", help="the new file; without it only the table is shown")
    parser.add_argument("--config_class", "--config-class", help="of a YAML file: GRPOConfig, SFTConfig, …")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument("--check", action="store_true", help="run one step of the new script, on a cut of its model")
    parser.add_argument("--model", help="--check: a folder or hub id instead of the script's model")
    parser.add_argument("--data", help="--check: a file of rows instead of the script's data set")
    return parser.parse_args(argv)


def split_version(text: str | None) -> tuple[str, str]:
    """(Package, version) of PACKAGE==VERSION."""
    match = re.fullmatch(r"(trl|verl)\s*==\s*v?([\w.]+)", text or "")
    need(match or not text, f"got --from {text!r}; expected trl==VERSION or verl==VERSION; try --from trl==0.14")
    return (match[1], known_version(match[1], match[2])) if match else ("", "")


def marked(text: str) -> tuple[str, str] | None:
    """(Package==version, newest) of a file that was migrated before."""
    match = MARK.search(text)
    return (f"{match[1]}=={match[2]}", match[3]) if match else None


def mark_edit(text: str, package: str, version: str) -> Edit:
    """The line that says that a file was migrated, behind a shebang and an encoding."""
    match = re.match(r"(#![^\n]*\n)?(#.*coding[:=][^\n]*\n)?", text)
    line = f"# Migrated from {package}=={version} to {package}=={newest(package)} by migrate.py.\n"
    return Edit(match.end(), match.end(), line)


def pin_edits(source: PythonSource, report: Report) -> None:
    """Pins of TRL and transformers in the script: its dependencies, or `pip install`."""
    newer = {"trl": f"trl=={newest('trl')}.*", "transformers": "transformers>=5.19,<6"}
    for match in re.finditer(r"\b(trl|transformers)\s*(==|<=|~=|<)\s*[\d.*]+", source.text):
        row = Row(newer[match[1]], newest("trl"), "the version that the new script is for", match[0])
        report.edit(match.start(), match.end(), newer[match[1]], row)


def result_of(package: str, version: str, how: str, report: Report, source, text: str) -> dict:
    """The new text and what is said of it; a file that changes gets the line that says so."""
    if report.edits:
        report.edits.insert(0, mark_edit(text, package, version))
    new = source.edited(report.edits)
    return {"package": package, "version": version, "found": how, "report": report, "place": source.place, "text": new}


def migrate_python(file: str, text: str, version: str) -> dict:
    """A script or notebook that uses TRL."""
    source = PythonSource(file, text)
    uses_trl = any(module.split(".")[0] in ("trl", "unsloth") for module, _, _ in source.imports.values())
    need(
        uses_trl, f"got {file}, which imports nothing of TRL; expected a script with one of its trainers, or a verl job"
    )
    version, how = chosen_version("trl", file, source.text, version, uses(source), lambda v: outcome(source, v))
    migration = TrlMigration(source, version)
    report = migration.migrate()
    pin_edits(source, report)
    result = result_of("trl", version, how, report, source, source.text)
    return result | {"effective": compared(migration.runs, file, result["text"], report)}


def migrate_job(file: str, text: str, version: str) -> dict:
    """A verl job."""
    kind = YamlJob if Path(file).suffix in (".yaml", ".yml") else ShellJob
    job = kind(file, text)
    need(job.words or job.mains, f"got {file} without a setting of verl; expected a job or its YAML; try its path")
    table = changes("verl")["keys"]
    named = [(w.key, job.place(w.start), table[w.key]) for w in job.words if w.key in table and w.sign != "+"]

    def outcome_of(version: str) -> dict:
        return {key: value for key, value, _ in VerlMigration(job, version).silent()}

    version, how = chosen_version("verl", file, text, version, named, outcome_of)
    migration = VerlMigration(job, version)
    report = migration.migrate()
    result = result_of("verl", version, how, report, job, text)
    new = kind(file, result["text"])
    if kind is ShellJob:
        report.note(f"checked: {composed(new, report)}")
    return result | {"effective": verl_side_by_side(migration, new)}


ACCELERATE = {"compute_environment", "distributed_type", "num_processes", "num_machines"}  # keys of its files


def migrate_settings(file: str, text: str, version: str, config: str | None) -> dict:
    """A YAML file with the settings of a TRL config."""
    job = YamlJob(file, text)
    config = config or config_of(job)
    need(config, f"got {file} without --config_class; expected that of its run; try --config_class GRPOConfig")
    need(version, f"got {file} without --from; expected trl==VERSION; try that of the environment that ran it")
    run, report = run_of(job, config, version), Report()
    migrate_yaml(job, run, report)
    result = result_of("trl", version, "given", report, job, text)
    rows = side_by_side(run, run_of(YamlJob(file, result["text"]), config, newest("trl")))
    return result | {"effective": [{"config": config} | row for row in rows]}


def compared(runs: list[TrlRun], file: str, text: str, report: Report) -> list[dict]:
    """Settings side by side; one that differs is reported, as it was not meant to."""
    new, rows = PythonSource(file, text), []
    calls = [c for name in list(new.calls) for c in new.calls[name] if is_config(new, c)]
    calls.sort(key=lambda call: new.span(call))
    old_calls = sorted((run for run in runs if run.call), key=lambda run: run.source.span(run.call))
    if len(calls) < len(old_calls):
        return rows
    for run in runs:
        place = old_calls.index(run) if run.call else len(calls) - 1
        if not calls or run.unseen:
            continue
        after = TrlRun(new, run.config, newest("trl"), calls[place])
        for row in side_by_side(run, after):
            rows.append({"config": run.config} | row)
            if row["same"] is False:
                why = f"{row['old']} then, {row['new']} in the new file"
                report.refuse("", row["setting"], why, "setting it by hand")
    return rows


def shown_rows(rows: list[dict], names: list[str]) -> str:
    """Rows as a table of text."""
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [min(60, max(len(line[i]) for line in lines)) for i in range(len(names))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def say_result(file: str, result: dict, out: str | None) -> None:
    report, rows = result["report"], result["rows"]
    package, version = result["package"], result["version"]
    if report.impossible:
        tell("NOT THE SAME RUN: today's package has no equal for")
        for entry in report.impossible:
            where = f"{entry['line']}: " if entry["line"] else ""
            tell(f"  {where}{entry['setting']}: {entry['why']}; nearest: {entry['nearest']}")
        tell("")
    tell(f"{file}: {package}=={version} ({result['found']}) to {package}=={newest(package)}, {len(rows)} changes")
    for note in report.notes:
        tell(f"note: {note}")
    if rows:
        tell("\n" + shown_rows(rows, ["line", "setting", "since", "why", "otherwise"]))
    if result["effective"]:
        tell("\n" + shown_rows(result["effective"], ["setting", "old", "new"] + ["read"] * ("trial" in result)))
    if "trial" in result:
        for note in result["trial"]["said"]:
            tell(f"note: {note}")
        tell(f"--check: one step of {result['trial']['trainer']}, loss {result['trial']['loss']:.4g}")
    tell(f"\n{out} written" if out else "\nnothing written; try --out NEW")


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == [ONE_STEP]:
        return one_step(*words[1:])
    try:
        return run(parse(argv))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.code


def check_step(args: argparse.Namespace, result: dict, path: Path) -> dict:
    """Run one step, and put what TRL read into the table of settings."""
    answer = trial(runnable(path.name, result["text"]), path.parent, args.model, args.data)
    for row in result["effective"]:
        settings = answer.get(row["config"], {})
        if row["setting"] in settings:
            row["read"] = settings[row["setting"]]
    return {name: answer[name] for name in ("loss", "trainer", "said")}


def run(args: argparse.Namespace) -> int:
    package, version = split_version(args.version)
    path = Path(args.file)
    try:
        with path.open(encoding="utf-8", newline="") as f:
            text = f.read()
    except (OSError, ValueError) as error:
        raise UserError(f"got {args.file} ({error}); expected a readable text file; try its path") from None
    out = Path(args.out) if args.out else None
    need(not out or not out.exists(), f"got --out {args.out}, which exists; expected a new file; try another name")
    before = marked(text)
    if before:
        tell(f"{args.file} was migrated before, from {before[0]} to {before[1]}: nothing changes")
        return 0
    if path.suffix in (".yaml", ".yml") and ACCELERATE & {word.key for word in YamlJob(args.file, text).words}:
        tell(f"{args.file} is accelerate's, without a setting of TRL: nothing changes; `accelerate test` tries it")
        return 0
    is_python = path.suffix in (".py", ".ipynb")
    need(not (is_python and package == "verl"), f"got {args.file} with --from verl; expected a job (.sh) or its YAML")
    is_trl = package == "trl" or args.config_class or is_python
    need(
        not is_trl or is_python or path.suffix in (".yaml", ".yml"),
        f"got {args.file} with --from trl; expected .py, .ipynb or .yaml; try its flags as a YAML file, KEY: VALUE",
    )
    if is_python:
        result = migrate_python(args.file, text, version)
    elif is_trl:
        result = migrate_settings(args.file, text, version, args.config_class)
    else:
        result = migrate_job(args.file, text, version)
    report = result["report"]
    result["rows"] = report.rows(result["place"])
    if out:
        with out.open("w", encoding="utf-8", newline="") as f:
            f.write(result["text"])
    if args.check:
        need(
            path.suffix in (".py", ".ipynb"),
            "got --check with a job; expected a script; verl_train.py --check tries jobs",
        )
        result["trial"] = check_step(args, result, path)
    code = NOT_SAME if report.impossible else 0
    if args.json:
        names = ("package", "version", "found", "effective", "trial")
        shown = {name: result[name] for name in names if name in result} | {
            "to": newest(result["package"]),
            "changes": result["rows"],
        }
        tell(
            json.dumps(shown | {"not_expressible": report.impossible, "notes": report.notes, "out": args.out}, indent=1)
        )
    elif not report.edits and not report.impossible:
        tell(f"{args.file} needs no change: {result['package']} {newest(result['package'])} makes the same run of it")
    else:
        say_result(args.file, result, args.out)
    return code


if __name__ == "__main__":
    sys.exit(main())
