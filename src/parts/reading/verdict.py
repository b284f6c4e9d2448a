"""What a run's findings come to."""

import re
from dataclasses import asdict

from parts.reading.log_reading import common_name, dialect_of, is_finite
from parts.reading.logged_run import Finding, LoggedRun
from parts.reading.plain_logs import NAMED_COLUMNS

TOO_SHORT, NOT_JUDGED = "too short to judge", "not judged"

# what a run is judged by: the series that hold it, and names that may be it in a log that calls it otherwise
MEASURES = {
    "reward": (("score",), r"reward|score|return"),
    "completion length": (("length",), r"length|_len\b|tokens"),
    "accuracy": (("held_out", "part:"), r"\bacc\b|accuracy|correct\b|correctness|solve|pass@|pass_rate"),
    "KL": (("kl", "kl_step"), r"(?:\b|_)kl(?:\b|_)"),
}


def unread_measures(run: LoggedRun) -> list[str]:
    """What could not be judged as the log has no known name for it, each with the names that it may have there."""
    dialect = dialect_of(run)
    keys = dict.fromkeys(str(key) for row in run.rows for key, value in row.items() if is_finite(value))
    unknown = [key for key in keys if common_name(key, dialect) is None and not re.match("eval|val|time|step", key)]
    if run.format == NAMED_COLUMNS:  # whose user has said what the log has
        return [] if "score" in run.series else ["reward (no column is named for it)"]
    taught, found = "kl/teacher" in keys, []
    for measure, (series, pattern) in MEASURES.items():
        if any(name.startswith(series) for name in run.series) or (taught and measure == "reward"):
            continue
        near = [key for key in unknown if re.search(pattern, key, re.IGNORECASE)] if dialect != "ours" else []
        if near or measure in ("reward", "completion length"):
            names = near or unknown or list(keys)
            found.append(f"{measure} (the log has {', '.join(names[:8])}{', …' * (len(names) > 8)})")
    return found


def judgement(run: LoggedRun, found: list[Finding], left_out: list[str]) -> dict:
    """A run's verdict as plain data; a log with a part that cannot be read is never healthy."""
    steps = run.steps() or [b[1] for b in run.broken]
    unread = unread_measures(run)
    verdict = f"{NOT_JUDGED}: {'; '.join(unread)}" if unread else "healthy"
    verdict = TOO_SHORT if any(f.id == "short-run" for f in found) else verdict
    verdict = "findings" if any(f.severity == "finding" for f in found) else verdict
    facts = {"path": run.path, "format": run.format, "trainer": run.trainer, "steps": [min(steps), max(steps)]}
    facts |= {"verdict": verdict, "findings": [asdict(f) for f in found]}
    return facts | {"not_judged": [*(text.partition(" (")[0] for text in unread), *left_out]}
