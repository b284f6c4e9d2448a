"""What a run's findings come to."""

from dataclasses import asdict

from parts.logged_run import Finding, LoggedRun

TOO_SHORT = "too short to judge"


def judgement(run: LoggedRun, found: list[Finding], left_out: list[str]) -> dict:
    """A run's verdict as plain data."""
    steps = run.steps() or [b[1] for b in run.broken]
    verdict = TOO_SHORT if any(f.id == "short-run" for f in found) else "healthy"
    verdict = "findings" if any(f.severity == "finding" for f in found) else verdict
    facts = {"path": run.path, "format": run.format, "trainer": run.trainer, "steps": [min(steps), max(steps)]}
    return facts | {"verdict": verdict, "findings": [asdict(f) for f in found], "not_judged": left_out}
