"""The command line: what is read, what is written, what is said."""

import argparse
import json
import re
import sys
from pathlib import Path

from parts.foundation.messages import UserError, need, tell
from programs.migrate.edits import Edit, Report, Row
from programs.migrate.effective import side_by_side
from programs.migrate.python_source import PythonSource, runnable
from programs.migrate.tables import known_version, newest
from programs.migrate.trial import ONE_STEP, one_step, trial
from programs.migrate.trl_calls import TrlMigration, is_config
from programs.migrate.trl_run import TrlRun
from programs.migrate.trl_version import check_fits, fitting, groups_of, pinned

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


def chosen_version(source: PythonSource, given: str) -> tuple[str, str]:
    """(Version, how it was found).

    Raises:
        UserError: several versions fit, and make different runs of the script.
    """
    if given:
        check_fits(source, given)
        return given, "given"
    pin = pinned(source)
    if pin:
        return pin[0], f"pinned in {pin[1]}"
    versions = fitting(source)
    groups = groups_of(source, versions)
    span = f"trl {versions[0]}" + f" to {versions[-1]}" * (len(versions) > 1)
    if len(groups) == 1:
        return versions[-1], f"{span} fit by the names used, and make the same run"
    lines = []
    names = dict.fromkeys(name for _, settings in groups for name in settings)
    for name in names:
        values = [settings.get(name, "as today") for _, settings in groups]
        if len(set(values)) > 1:
            spans = ("-".join(dict.fromkeys([g[0], g[-1]])) for g, _ in groups)
            lines.append(f"  {name}: " + ", ".join(f"{s}: {v}" for s, v in zip(spans, values, strict=True)))
    raise UserError(
        f"got {source.name} without --from; {span} fit by the names used, and make different runs:\n"
        + "\n".join(lines)
        + f"\nexpected one version; try --from trl=={groups[-1][0][-1]}, or the pin of the environment that ran it"
    )


def migrate_python(file: str, text: str, version: str) -> dict:
    """The new text and the report of a script or notebook that uses TRL."""
    source = PythonSource(file, text)
    uses_trl = any(module.split(".")[0] in ("trl", "unsloth") for module, _, _ in source.imports.values())
    need(
        uses_trl, f"got {file}, which imports nothing of TRL; expected a script with one of its trainers, or a verl job"
    )
    version, found = chosen_version(source, version)
    migration = TrlMigration(source, version)
    report = migration.migrate()
    pin_edits(source, report)
    if report.edits:
        report.edits.insert(0, mark_edit(source.text, "trl", version))
    result = {"package": "trl", "version": version, "found": found, "report": report, "place": source.place}
    result["text"] = source.edited(report.edits)
    result["effective"] = compared(migration.runs, file, result["text"], report)
    return result


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
    result = migrate_python(args.file, text, version)
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
