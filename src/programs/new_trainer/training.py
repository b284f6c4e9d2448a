"""The check of a page, its run, and the results of both."""

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.data.prompts import read_prompts
from parts.data.rows import SUFFIXES, placed_json_lines, prompt_of
from parts.environments.environments import load_environments
from parts.environments.play_setup import check_environment_rows
from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need, say
from parts.rewards.reward_forms import load_rewards
from parts.rewards.rewards import check_columns
from parts.running.run_end import faults_at_end
from parts.sampling.saved_models import saved

STOPS = (signal.SIGINT, signal.SIGTERM)


def follow(command: list[str], **kwargs) -> tuple[int, int]:
    """(exit code of a command, signal that ended it or 0); SIGINT and SIGTERM reach it as SIGTERM, a third as SIGKILL.

    A command that a shell has started in the background would ignore SIGINT.
    """
    heard, processes = [], []

    def forward(number, frame):
        heard.append(number)
        for process in processes:
            process.send_signal(signal.SIGTERM if len(heard) < 3 else signal.SIGKILL)

    before = {number: signal.signal(number, forward) for number in STOPS}
    try:
        with subprocess.Popen(command, start_new_session=True, **kwargs) as process:
            processes.append(process)
            if heard:  # while it was being started
                process.terminate()
            code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code, heard[0] if heard else 0


def logged(file: Path) -> list[dict]:
    """The rows of a run's log, without a last line that was cut off when the run was killed."""
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
    return [json.loads(line) for line in lines]


def checked(file: str, flags: list[str], left_out: list[str]) -> dict:
    """What selfcheck says about the file: how many checks pass, and which fail with what was seen."""
    say(f"selfcheck of {file} with your model, data and reward")
    command = [sys.executable, str(BUNDLE / "scripts" / "selfcheck.py"), file, *flags, "--json"]
    command += ["--leave_out", *left_out] if left_out else []
    with tempfile.TemporaryFile("w+") as out:
        code, ended_by = follow(command, stdout=out)
        out.seek(0)
        text = out.read()
    if ended_by:
        raise KeyboardInterrupt(ended_by)
    need(code in (0, 1) and text, f"got exit code {code} of selfcheck; expected 0; its message is above")
    printed = json.loads(text)
    rows = printed["checks"]
    failed = {row["name"]: row["measured"] for row in rows if row["status"] == "FAIL"}
    counts = {"passed": sum(row["status"] == "pass" for row in rows), "failed": failed}
    counts["seconds"] = printed.get("seconds", 0.0)
    return counts | ({"left_out": left_out} if left_out else {})


def time_left(given: dict, check: dict) -> dict:
    """--minutes less the time that the check took; {} where none are given."""
    if "minutes" not in given:
        return {}
    took = check["seconds"] / 60
    left = max(0.0, given["minutes"] - took)
    say(f"note: the check took {took:.1f} of {given['minutes']:g} minutes; the run has {left:.1f}")
    return {"minutes": round(left, 2)}


def page_rows(flag: str, file: str, column: str) -> tuple[list[dict], bool]:
    """(rows {"prompt", "columns"} of a file, whether a page reads it as it is); UserError without a prompt."""
    need(Path(file).is_file(), f"got --{flag} {file}, which is not a file; expected rows with a column {column}")
    form = SUFFIXES.get(Path(file).suffix.lower())
    try:
        lines = placed_json_lines(Path(file)) if form in (None, "jsonl") else []
        placed = read_prompts(file, column) if form else lines
        need(placed, f"got --{flag} {file} without rows; expected some with a column {column}")
        rows = [{"prompt": prompt_of(row, column, place), "columns": row} for place, row in placed]
        return rows, placed == lines
    except UserError as error:
        reader = f"python {BUNDLE / 'scripts' / 'data_loader.py'} {file} --out {Path(file).stem}_read.jsonl"
        raise UserError(f"{error}; other forms of data become such a file by {reader}") from None


def check_functions(given: dict, rows: list[dict], column: str) -> None:
    """Raise UserError for a reward or environment that needs a column which the data do not have."""
    prompt = rows[0]["prompt"]
    columns = {k: v for row in rows for k, v in row["columns"].items() if k != column}
    for function, _ in load_rewards(given["reward"]) if given.get("reward") else ():
        name = getattr(function, "__name__", type(function).__name__)
        check_columns({name: function}, {"prompt": prompt, "columns": columns})
    if given.get("environment"):
        theirs = [row | {"columns": {k: v for k, v in row["columns"].items() if k != column}} for row in rows]
        check_environment_rows(load_environments(given["environment"]), theirs)


def by_answers(samples: list[dict]) -> dict[int, dict]:
    """{answers of the model in a conversation: how many conversations in the log, and their mean return}."""
    scores = {}
    for sample in samples:
        before = len(sample["prompt"]) if isinstance(sample["prompt"], list) else 1
        answers = sum(message["role"] == "assistant" for message in sample["messages"][before:])
        scores.setdefault(answers, []).append(sample["score"])
    return {n: {"conversations": len(x), "mean_return": round(sum(x) / len(x), 4)} for n, x in sorted(scores.items())}


def trained(file: str, flags: list[str], model: str, out: Path, record: dict) -> None:
    """Train with the file; `record` gets what the run says of itself, what diagnose.py says, and what it saved."""
    earlier = out.stat().st_ino if out.exists() else None
    code, ended_by = follow([sys.executable, file, *flags], stdout=sys.stderr)
    record |= {"exit_code": code, "ended_by": ended_by, "out": str(out)}
    if not out.exists() or out.stat().st_ino == earlier:  # it ended before it began: what lies there is an earlier run
        return
    steps = logged(out / "metrics.jsonl")
    record |= {"steps": max((row["step"] for row in steps), default=0), "faults": faults_at_end(steps, {}, "--lr")}
    samples = logged(out / "samples.jsonl")
    record["last_samples"] = [{k: str(x)[:300] for k, x in sample.items()} for sample in samples[-2:]]
    if samples and "messages" in samples[-1]:
        record["by_answers"] = by_answers(samples)
    if (out / "result.json").is_file():
        record |= json.loads((out / "result.json").read_text(encoding="utf-8"))
    if not code:
        command = [sys.executable, str(BUNDLE / "scripts" / "diagnose.py"), str(out), "--json"]
        if record["steps"]:
            judged = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["runs"][0]
            names = ("verdict", "since_step", "causes", "had", "lacked", "error")
            record |= {name: judged[name] for name in names if name in judged}
        record["saved_model"] = saved(model, out)
