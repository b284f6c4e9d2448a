"""The record of a proof, reports of the bundle's other scripts, and what rests on them alone: trainers, verl jobs."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError, need

CONTRACT = {"accumulate_gradients", "make_experience"}  # functions that only trainers have
SHOWN = ("logprob_shift", "advantages_detached", "accumulation")  # checks whose measurements are quoted
NEVER_RUN = "its train and what a run saves, for which try prove.py OUT"


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
        self.findings += [finding] if finding not in self.findings else []

    def skip(self, figure: str, why: str) -> None:
        """Note what could not be measured, also as a sentence."""
        self.not_measured.append(f"{figure}: {why}")
        self.say(f"{figure} was not measured: {why}.")


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


def preflight_of(spec: str, data: str, flags: list[str], seconds: float) -> dict:
    """reward_preflight.py's report on a reward; a call may take 1/8 of the time before it is a hang."""
    limits = ["--timeout_s", f"{seconds / 8:g}", "--budget_s", f"{0.6 * seconds:g}"]
    return report_of("reward_preflight.py", ["--reward", spec, "--data", data, "--json", *limits, *flags], seconds)


def failures_of(report: dict) -> list[str]:
    """The first failure of each check in reward_preflight.py's report, as text."""
    against = [x for x in reversed(report["findings"]) if x["severity"] == "fail"]
    failed = {x["check"]: f"{x['message']}; try: {x['try']}" if x.get("try") else x["message"] for x in against}
    return [f"{check}: {message}" for check, message in reversed(failed.items())]


def prove_trainer(file: Path, flags: list[str], seconds: float) -> Proof:
    proof, report = Proof("trainer", str(file)), report_of("selfcheck.py", [str(file), *flags, "--json"], seconds)
    passed, failed, rest = ([x for x in report["checks"] if x["status"] == s] for s in ("pass", "FAIL", "n/a"))
    proof.figures["checks"] = {x["name"]: x for x in report["checks"]}
    proof.findings = [f"{x['name']}: {x['measured']}; try: {x['try']}" for x in failed]
    proof.not_measured = [f"{x['name']}: {x['measured']}" for x in rest]
    ran, named = len(passed) + len(failed), " ".join([str(file), *flags])
    proof.say(f"{len(passed)} of {ran} checks of selfcheck.py pass for {named}.")
    if measured := [f"{x['name']}: {x['measured']}" for x in passed if x["name"] in SHOWN]:
        proof.say(f"Measured: {'; '.join(measured)}.")
    proof.say(f"Not checked: {'; '.join([*(x['name'] for x in rest), NEVER_RUN])}.")
    return proof


def prove_job(path: Path, python: str, seconds: float) -> Proof:
    """Check settings of verl_train.py (.yaml), or Hydra overrides, one a line (others), in a Python that has verl."""
    proof, flag = Proof("verl job", str(path)), "--config" if path.suffix in (".yaml", ".yml") else "--overrides"
    is_hydra = flag == "--config" and re.search("(?m)^actor_rollout_ref:", path.read_text("utf-8", "replace"))
    advice = "expected settings of verl_train.py; try overrides in a .txt, one KEY=VALUE per line"
    need(not is_hydra, f"got {path}, which is verl's own YAML; {advice}")
    need(Path(python).is_file(), f"got --python {python}, which is not a file; expected a Python that has verl")
    report = report_of("verl_train.py", ["--check", flag, str(path)], seconds, python)
    proof.findings, proof.figures = report.pop("findings"), report
    if "checked" in report:
        proof.skip("What verl says", f"{python} has no verl; checked: {report['checked'].partition(';')[0]}")
        return proof
    proof.say(f"verl {report['verl']} composes the {report['overrides']} overrides of {path} in its own configuration.")
    if "data" in report:
        rows = f"{report['data']['rows that fit']} of {report['data']['rows']} training rows"
        same = "" if flag == "--overrides" else "; prompts have the same token ids as in ppo_train.py"
        proof.say(f"verl's own data set takes {rows}{same}.")
    if tried := report.get("reward"):
        reward = "The reward" if flag == "--overrides" else "The job's copy of the reward, alone in its folder,"
        how = f"{tried['completions']} completions of {tried['rows']} rows one by one, as verl does"
        proof.say(f"{reward} scores {how}; the scores are {tried['scores']}.")
        if len(tried["scores"]) == 1:
            proof.is_open = True
            proof.skip("Whether the reward tells right from wrong", "all texts, golds among them, have one score")
    if "unchecked" in report:
        proof.skip("What the reward pays for the job's rows", report["unchecked"])
    return proof
