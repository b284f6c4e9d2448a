"""The record of a proof, and reports of the bundle's other scripts."""

import ast
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need


@dataclass
class Proof:
    """What was found out about one thing."""

    kind: str
    thing: str
    figures: dict = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)
    is_open: bool = False  # the most important figure could not be measured

    @property
    def proved(self) -> bool:
        """Whether nothing was found against the thing and its most important figure was measured."""
        return not self.findings and not self.is_open

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def find(self, finding: str) -> None:
        self.findings.append(finding)

    def skip(self, what: str, why: str) -> None:
        """Note what could not be measured, also as a sentence."""
        self.not_measured.append(f"{what}: {why}")
        self.say(f"{what} was not measured: {why}.")


def parsed(path: Path) -> list[ast.stmt]:
    """The top-level statements of a Python file, which is not run."""
    try:
        return ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"got {path}, which cannot be read ({error}); expected Python in UTF-8") from None


def shown(values) -> str:
    """Numbers as text: `0.434 to 0.910` for two, `0.434` for one."""
    return " to ".join(f"{x:.3f}" for x in (values if isinstance(values, list | tuple) else [values]))


def report_of(script: str, words: list[str], seconds: float, python: str = sys.executable) -> dict:
    """Run another script of the bundle and return its JSON; UserError if it refuses its input or takes too long."""
    path = BUNDLE / "scripts" / script
    need(path.is_file(), f"got no {path}; expected it, as prove.py calls it; try prove.py from inside the bundle")
    try:
        done = subprocess.run([python, str(path), *words], capture_output=True, text=True, timeout=max(10.0, seconds))
    except subprocess.TimeoutExpired:
        raise UserError(f"got checks that take longer than {seconds:g} s; try a larger --minutes") from None
    if done.returncode not in (0, 1) or not done.stdout.strip():
        message = (done.stderr.strip().splitlines() or [f"got exit code {done.returncode} of {path}"])[-1]
        hint = f"; flags of {script} go after --" if "try --" in message else ""
        raise UserError(message.removeprefix("error: ") + hint)
    return json.loads(done.stdout)


def preflight_of(kind: str, spec: str, data: str, flags: list[str], seconds: float) -> dict:
    """reward_preflight.py's report on a reward or environment; a call may take 1/8 of the time before it is a hang."""
    words = [f"--{kind}", spec, "--data", data, "--json", "--timeout_s", f"{seconds / 8:g}"]
    words += ["--tool_timeout", f"{seconds / 8:g}"] if kind == "environment" else ["--budget_s", f"{0.6 * seconds:g}"]
    return report_of("reward_preflight.py", [*words, *flags], seconds)


def failures_of(report: dict) -> list[str]:
    """The first failure of each check in reward_preflight.py's report, as text; a failed reset counts too."""
    against = [x for x in reversed(report["findings"]) if x["severity"] == "fail" or x["check"] == "reset"]
    failed = {x["check"]: f"{x['message']}; try: {x['try']}" if x.get("try") else x["message"] for x in against}
    return [f"{check}: {message}" for check, message in reversed(failed.items())]
