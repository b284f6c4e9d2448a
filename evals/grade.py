#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""Prepare runs of evals.json with and without the skill, and grade what they left by its assertions.

An assertion is one of these sentences, so that no judge is needed:

    `FILE` exists · `FILE` has N lines · `FILE` matches /REGEX/ · `FILE` exists and does not match /REGEX/
    `COMMAND` exits N · `COMMAND` prints /REGEX/

Beside the score stands the effort, as the score tells little where both arms are right: each prompt ends by asking for
`record.json` (tool calls, minutes, files read with their lines), and the lines delivered are counted here.

Commands run in the folder of outputs; `python` is this interpreter, $SKILL the bundle. What comes behind the sentence
in brackets is for readers. Deliberately left out: starting the agent (evals/README.md shows how), and judging style.

GRADING RUNS CODE THAT AN AGENT WROTE. Do it where its runs were made: in a container, without secrets.

    python evals/grade.py prepare runs/evals                # folders with files and prompt, for both configurations
    python evals/grade.py grade runs/evals                  # grading.json for each run, benchmark.json for all
    python evals/grade.py check runs/evals/eval-07-csv/with_skill/outputs --eval 7
    python evals/grade.py table evals/records.jsonl --since 2026-11-24T15  # medians, as a Markdown table

Exit codes: 0 done (check: all passed), 1 check: an assertion failed, 2 bad input.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATIONS = ("with_skill", "without_skill")
FORMS = re.compile(
    r"`(?P<what>[^`]+)` (?:(?P<exists>exists)(?: and does not match /(?P<absent>.+)/)?|has (?P<lines>\d+) lines"
    r"|matches /(?P<match>.+)/|exits (?P<code>\d+)|prints /(?P<prints>.+)/)(?: \[(?P<why>[^\]]+)\])?"
)


RECORD = """
When you are done, write ../record.json: {"calls": N, "minutes": M, "read": {"path": lines}, "before_first": L} - the
tool calls you made for the request, without the one that writes this file, minutes by the clock of `date` from the
first to the last, for each file that you read and did not write how many of its lines you looked at, and how many
lines of a skill you had read (0 without one) when you ran the first command, or wrote the first file, that did a part
of the job.
"""
ARMS = ("with", "without")  # as a record names them
DELIVERED = (".py", ".sh", ".md", ".yaml", ".ipynb", "Dockerfile")


def load_evals() -> list[dict]:
    """The test cases of evals.json."""
    return json.loads((ROOT / "evals" / "evals.json").read_text(encoding="utf-8"))["evals"]


def run(command: str, folder: Path, timeout_s: float) -> tuple[int, str]:
    """Exit code and output of a command in a folder of outputs."""
    words = [word.replace("$SKILL", str(ROOT)) for word in shlex.split(command)]
    words[0] = sys.executable if words[0] == "python" else words[0]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    given = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL, "timeout": timeout_s}
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", **given)
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout + done.stderr


def judge(assertion: str, folder: Path, timeout_s: float = 300) -> tuple[bool, str]:
    """(passed, evidence) of one assertion."""
    form = FORMS.fullmatch(assertion)
    if not form:
        raise ValueError(f"got assertion {assertion!r}; expected a sentence of evals/grade.py --help")
    what, flags = form["what"], re.IGNORECASE | re.MULTILINE
    if form["code"] or form["prints"]:
        code, output = run(what, folder, timeout_s)
        passed = code == int(form["code"]) if form["code"] else bool(re.search(form["prints"], output, flags))
        return passed, f"exit {code}: {output.strip()[-300:]}"
    if not (folder / what).exists():
        return False, f"no {what}"
    if form["exists"] and not form["absent"]:
        return True, f"{what} exists"
    text = (folder / what).read_text(encoding="utf-8", errors="replace")
    if form["lines"]:
        lines = sum(bool(line.strip()) for line in text.split("\n"))
        return lines == int(form["lines"]), f"{lines} lines"
    found = re.search(form["match"] or form["absent"], text, flags)
    return bool(found) == bool(form["match"]), f"found {found[0][:200]!r}" if found else "not found"


def grade(case: dict, folder: Path) -> dict:
    """grading.json of one run."""
    results = []
    for assertion in case["assertions"]:
        passed, evidence = judge(assertion, folder)
        results.append({"text": assertion, "passed": passed, "evidence": evidence})
    passed, total = sum(result["passed"] for result in results), len(results)
    summary = {"passed": passed, "failed": total - passed, "total": total, "pass_rate": passed / total}
    return {"assertion_results": results, "summary": summary}


def folder_of(workspace: Path, case: dict, configuration: str) -> Path:
    """Folder of one run."""
    return workspace / f"eval-{case['id']:02d}-{case['name']}" / configuration


def place_files(case: dict, outputs: Path) -> None:
    """Copy the files of a case, by their own names."""
    outputs.mkdir(parents=True)
    for name in case["files"]:
        source, target = ROOT / name, outputs / Path(name).name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)


def make(command: str, folder: Path) -> None:
    """Write a model that a case needs by a script of the bundle, which takes the folder last."""
    print(f"{folder.name}: {command}", file=sys.stderr)
    whole = [sys.executable, *shlex.split(command), str(folder)]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"got exit code {done.returncode} of {command}; expected 0: {done.stderr.strip()[-300:]}")


def prepare(workspace: Path) -> None:
    """Make the folder of every run, with files and prompt."""
    if workspace.exists():
        raise FileExistsError(f"got workspace {workspace}, which exists; expected a new name")
    made = workspace.resolve() / "made"
    for case in load_evals():
        for name, command in case.get("makes", {}).items():
            made.mkdir(parents=True, exist_ok=True)
            make(command, made / name)
        for configuration in CONFIGURATIONS:
            folder = folder_of(workspace, case, configuration)
            place_files(case, folder / "outputs")
            for name in case.get("makes", {}):
                shutil.copytree(made / name, folder / "outputs" / name)
            (folder / "prompt.txt").write_text(case["prompt"] + "\n" + RECORD, encoding="utf-8")


def lines_of(path: Path) -> int:
    """How many lines a text file has."""
    return len(path.read_text(encoding="utf-8", errors="replace").splitlines())


def effort(case: dict, folder: Path) -> dict:
    """Calls, minutes and lines read as record.json tells them, None without, and lines delivered as they are found."""
    file, given = folder / "record.json", {}
    if file.is_file():
        given = json.loads(file.read_text(encoding="utf-8"))
        wrong = not isinstance(given, dict) or not {"calls", "minutes"} <= set(given)
        if wrong or not isinstance(given.get("read", {}), dict):
            raise ValueError(f"got {file} without calls, minutes and a mapping read; expected the form of prompt.txt")
    placed = {Path(name).name: ROOT / name for name in case["files"]}
    found = [path for path in (folder / "outputs").iterdir() if path.is_file() and path.name.endswith(DELIVERED)]
    new = [f for f in found if f.name not in placed or f.read_bytes() != placed[f.name].read_bytes()]
    read = sum(map(int, given["read"].values())) if "read" in given else None
    return {
        "calls": given.get("calls"),
        "minutes": given.get("minutes"),
        "lines_read": read,
        "lines_before_first_command": given.get("before_first"),
        "lines_delivered": sum(map(lines_of, new)),
    }


def rate_of(values: list[float]) -> dict:
    """Mean and spread of pass rates."""
    return {"mean": statistics.mean(values), "stddev": statistics.stdev(values) if len(values) > 1 else 0.0}


def grade_all(workspace: Path) -> dict:
    """Write grading.json into every run that has been made, and benchmark.json."""
    summary, efforts = {}, {}
    for configuration in CONFIGURATIONS:
        rates: dict[str, list[float]] = {"seen": [], "fresh": []}
        for case in load_evals():
            folder = folder_of(workspace, case, configuration)
            if not (folder / "outputs").is_dir():
                raise FileNotFoundError(f"got no {folder / 'outputs'}; expected a workspace made by prepare")
            graded = grade(case, folder / "outputs")
            (folder / "grading.json").write_text(json.dumps(graded, indent=1), encoding="utf-8")
            rates[case["set"]].append(graded["summary"]["pass_rate"])
            told = {"pass_rate": graded["summary"]["pass_rate"], **effort(case, folder)}
            efforts.setdefault(case["name"], {})[configuration] = told
        summary[configuration] = {name: rate_of(values) for name, values in rates.items() if values}
    first, second = (summary[configuration] for configuration in CONFIGURATIONS)
    summary["delta"] = {name: first[name]["mean"] - second[name]["mean"] for name in first}
    result = {"run_summary": summary, "efforts": efforts}
    (workspace / "benchmark.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result


def load_records(path: Path) -> list[dict]:
    """The records of runs, one a line: date, task, arm, calls, minutes, lines, score."""
    names, records = {case["name"] for case in load_evals()}, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        record = json.loads(line)
        lacking = {"date", "task", "arm"} - set(record)
        if lacking or record["task"] not in names or record["arm"] not in ARMS:
            what = f"without {', '.join(sorted(lacking))}" if lacking else f"of {record['task']}, arm {record['arm']}"
            raise ValueError(f"got {path}:{number} {what}; expected a task of evals.json, with or without")
        records.append(record)
    return records


def middle(records: list[dict], arm: str, key: str) -> float | None:
    """Median of a figure over the runs of an arm; minutes of runs that waited for the service are left out."""
    runs = [record for record in records if record["arm"] == arm]
    runs = [record for record in runs if key != "minutes" or not record.get("waited")]
    values = [record[key] for record in runs if record.get(key) is not None]
    return statistics.median(values) if values else None


def pair_of(records: list[dict], key: str) -> str:
    """`median with / median without (ratio)` of a figure, a dash for what there is none of."""
    a, b = (middle(records, arm, key) for arm in ARMS)
    text = " / ".join("–" if value is None else f"{value:,.1f}".removesuffix(".0") for value in (a, b))
    return text if a is None or not b or key == "delivered" else f"{text} ({a / b:.2f})"


def table(records: list[dict], since: str = "", before: str = "9", part: str = "") -> str:
    """A Markdown table of the records with since <= date < before, a row for each task of a set (or of both)."""
    chosen = [record for record in records if since <= record["date"] < before]
    lines = [
        "| task | runs | calls | minutes | lines delivered | lines read first | lowest score |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in [case["name"] for case in load_evals() if part in ("", case["set"])]:
        runs = [record for record in chosen if record["task"] == name]
        if runs:
            counts = [sum(record["arm"] == arm for record in runs) for arm in ARMS]
            first, scores = middle(runs, "with", "before_first"), [r["score"] for r in runs if "score" in r]
            figures = [pair_of(runs, key) for key in ("calls", "minutes", "delivered")]
            cells = [name, f"{counts[0]} / {counts[1]}", *figures, "–" if first is None else f"{first:g}"]
            lines.append(f"| {' | '.join(cells)} | {min(scores):g} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape, allow_abbrev=False)
    parser.add_argument("action", choices=["prepare", "grade", "check", "table"])
    parser.add_argument(
        "folder", type=Path, help="workspace; with check a folder of outputs, with table a records file"
    )
    parser.add_argument("--eval", type=int, default=0, help="with check: id of the case")
    parser.add_argument("--since", default="", help="with table: the first date, such as 2026-11-24T15")
    parser.add_argument("--before", default="9", help="with table: the date after the last")
    parser.add_argument("--set", choices=["seen", "fresh"], default="", help="with table: the tasks of one set")
    arguments = parser.parse_args(argv)
    cases = {case["id"]: case for case in load_evals()}
    try:
        if arguments.action == "prepare":
            prepare(arguments.folder)
        elif arguments.action == "grade":
            print(json.dumps(grade_all(arguments.folder), indent=1))
        elif arguments.action == "table":
            print(table(load_records(arguments.folder), arguments.since, arguments.before, arguments.set))
        else:
            if arguments.eval not in cases:
                raise ValueError(f"got --eval {arguments.eval}; expected one of {sorted(cases)}")
            graded = grade(cases[arguments.eval], arguments.folder)
            print(json.dumps(graded, indent=1))
            return int(graded["summary"]["failed"] > 0)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
