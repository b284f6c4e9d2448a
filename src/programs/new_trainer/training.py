"""The check of a page, its run, and what both come to."""

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.bundle import BUNDLE
from parts.messages import need, say
from programs.new_trainer.saved_model import by_answers, by_generate, by_playing, saved


def follow(command: list[str], **kwargs) -> tuple[int, int]:
    """(exit code of a command, signal that ended it or 0); SIGINT and SIGTERM reach it as SIGINT, which saves."""
    heard = []
    with subprocess.Popen(command, start_new_session=True, **kwargs) as process:

        def forward(number, frame):
            heard.append(number)
            process.send_signal(signal.SIGINT)

        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return code, heard[0] if heard else 0


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
        sys.exit(128 + ended_by)
    need(
        code in (0, 1) and text, f"got exit code {code} of selfcheck; expected 0; try what it says above; {file} stays"
    )
    told = json.loads(text)
    rows = told["checks"]
    failed = {row["name"]: row["measured"] for row in rows if row["status"] == "FAIL"}
    found = {"passed": sum(row["status"] == "pass" for row in rows), "failed": failed}
    found["seconds"] = told["seconds"]
    return found | ({"left_out": left_out} if left_out else {})


def time_left(given: dict, check: dict) -> dict:
    """--minutes less the time that the check took; {} where none are given."""
    if "minutes" not in given:
        return {}
    took = check["seconds"] / 60
    left = max(0.0, given["minutes"] - took)
    say(f"note: the check took {took:.1f} of {given['minutes']:g} minutes; the run has {left:.1f}")
    return {"minutes": round(left, 2)}


def prompts_of(file: str) -> list[str]:
    """The prompts of a JSONL file as text; of a file that is none, nothing, as the page says what is wrong with it."""
    try:
        lines = Path(file).read_bytes().splitlines()
        return [json.dumps(json.loads(line)["prompt"]) for line in lines if line.strip()]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def trained(file: str, flags: list[str], model: str, out: Path) -> dict:
    """Train with the file; what the run says of itself, what diagnose.py says of it, and what it saved."""
    earlier = out.stat().st_ino if out.exists() else None
    code, ended_by = follow([sys.executable, file, *flags], stdout=sys.stderr)
    found = {"exit_code": code, "ended_by": ended_by, "out": str(out)}
    if not out.exists() or out.stat().st_ino == earlier:  # it ended before it began: what lies there is an earlier run
        return found
    if (out / "metrics.jsonl").is_file():
        steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        found["steps"] = max(step["step"] for step in steps)
    if (out / "samples.jsonl").is_file():
        samples = [json.loads(line) for line in (out / "samples.jsonl").read_text(encoding="utf-8").split("\n") if line]
        found["last_samples"] = [{k: str(x)[:300] for k, x in sample.items()} for sample in samples[-2:]]
        if samples and "messages" in samples[-1]:  # the file is empty where a run ends in its first step
            found["by_answers"] = by_answers(samples)
    if (out / "result.json").is_file():
        found |= json.loads((out / "result.json").read_text(encoding="utf-8"))
    if not code:
        command = [sys.executable, str(BUNDLE / "scripts" / "diagnose.py"), str(out), "--json"]
        judged = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["runs"][0]
        found |= {
            "verdict": judged["verdict"],
            "findings": [x for x in judged["findings"] if x["severity"] == "finding"],
            "saved_model": saved(model, out),
        }
        settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))
        if settings.get("eval_data") and found["saved_model"]["loads"]:
            how = {"by_generate": by_generate} if settings.get("reward") or settings.get("teacher") else {}
            how |= {"sampled": by_playing} if settings.get("environment") else {}
            for name, evaluate in how.items():
                try:
                    found["saved_model"][name] = evaluate(file, out)
                except (Exception, SystemExit) as error:  # a page ends by SystemExit
                    found["saved_model"][name] = f"{type(error).__name__}: {error}"
    return found
