"""The parts of a proof: figures, sentences, findings, and what was not measured."""

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
    """The outcome for one thing."""

    kind: str
    thing: str
    figures: dict = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)
    is_open: bool = False  # what matters most could not be measured

    @property
    def proved(self) -> bool:
        """Whether nothing was found against it, and what matters most was measured."""
        return not self.findings and not self.is_open

    def say(self, sentence: str) -> None:
        """Add a sentence that can be quoted."""
        self.sentences.append(sentence)

    def find(self, finding: str) -> None:
        """Add a finding against the thing."""
        self.findings.append(finding)

    def skip(self, what: str, why: str) -> None:
        """Note, as a sentence too, what could not be measured."""
        self.not_measured.append(f"{what}: {why}")
        self.say(f"{what} was not measured: {why}.")


def parsed(path: Path) -> list[ast.stmt]:
    """What a file defines; it is parsed and not run."""
    try:
        return ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"got {path}, which cannot be read ({error}); expected Python in UTF-8") from None


def shown(values, digits: int = 3) -> str:
    """Numbers as `0.434 to 0.910`, one number as it is."""
    return " to ".join(f"{x:.{digits}f}" for x in (values if isinstance(values, list | tuple) else [values]))


def report_of(script: str, words: list[str], seconds: float, python: str = sys.executable) -> dict:
    """What another script of the bundle says in JSON; UserError where it does not take what it is given."""
    path = BUNDLE / "scripts" / script
    need(path.is_file(), f"got no {path}; expected it, as prove.py calls it; try prove.py from inside the bundle")
    try:
        done = subprocess.run([python, str(path), *words], capture_output=True, text=True, timeout=max(10.0, seconds))
    except subprocess.TimeoutExpired:
        raise UserError(f"got checks that take longer than {seconds:g} s; try a larger --minutes") from None
    if done.returncode not in (0, 1) or not done.stdout.strip():
        said = (done.stderr.strip().splitlines() or [f"got exit code {done.returncode} of {path}"])[-1]
        behind = f"; flags of {script} go behind --" if "try --" in said else ""
        raise UserError(said.removeprefix("error: ") + behind)
    return json.loads(done.stdout)


def preflight_of(kind: str, spec: str, data: str, flags: list[str], seconds: float) -> dict:
    """What reward_preflight.py says of a reward or an environment; a call that hangs is told within the time."""
    words = [f"--{kind}", spec, "--data", data, "--json", "--timeout_s", f"{seconds / 8:g}"]
    words += ["--tool_timeout", f"{seconds / 8:g}"] if kind == "environment" else []
    return report_of("reward_preflight.py", [*words, *flags], seconds)


def failures_of(report: dict) -> list[str]:
    """What reward_preflight.py finds against a reward or an environment, once for each check."""
    against = [x for x in reversed(report["findings"]) if x["severity"] == "fail" or x["check"] == "reset"]
    failed = {x["check"]: f"{x['message']}; try: {x['try']}" if x.get("try") else x["message"] for x in against}
    return [f"{check}: {message}" for check, message in reversed(failed.items())]
