"""All checks of a run, and its verdict."""

import re
import statistics
from dataclasses import asdict

from parts.reading.completion_findings import check_conversations, check_repetition, check_truncation, check_waiting
from parts.reading.log_reading import common_name, dialect_of, is_finite
from parts.reading.logged_run import (
    Finding,
    LoggedRun,
    collapse,
    first_part,
    gained,
    is_constant,
    is_solved,
    late,
    rises_late,
)
from parts.reading.plain_logs import NAMED_COLUMNS
from parts.reading.reward_findings import (
    check_constant,
    check_format,
    check_hacking,
    check_held_out,
    check_movement,
    check_sampling,
    check_signal,
)
from parts.reading.trends import TREND_STEPS, ends, trend
from parts.reading.update_findings import (
    check_critic,
    check_finite,
    check_gradients,
    check_kl,
    check_memory,
    check_mismatch,
    check_rate,
    check_ratio,
    check_stale_sampler,
)

TOO_SHORT, NOT_JUDGED = "too short to judge", "not judged"
LENGTHS = "mean length went from {:.4g} to {:.4g} tokens without a gain in correctness"
ENTROPIES = "entropy went from {:.3g} to {:.3g} nats a token "


def may_be_sharp(run: LoggedRun) -> bool:
    """Whether low entropy is no fault: the task is solved, the score rises, or a teacher is sharp."""
    taught = any("kl/teacher" in row for row in run.rows)
    return is_solved(run) or taught or trend(run.values("score")) > 0 or rises_late(run)


def gained_and_kept(run: LoggedRun) -> bool:
    """Whether correctness rose and the score did not collapse."""
    return gained(run) and not collapse(run)


MOVES = (  # finding, series, share of the first stretch beyond which the last lies, least distance, excuse, words
    ("length-runaway", "length", 1.5, 0.0, gained, LENGTHS),
    ("length-collapse", "length", 0.5, 0.0, gained, LENGTHS),
    ("entropy-collapse", "entropy", 0.2, 0.01, may_be_sharp, ENTROPIES + "and the score does not rise"),
    ("entropy-explosion", "entropy", 2.0, 0.2, gained_and_kept, ENTROPIES + "without a gain in correctness"),
)


def check_moves(run: LoggedRun, series: str):
    """Length or entropy that moves far, without what excuses it."""
    values = run.values(series)
    way = trend(values)
    for id, name, share, least, excuse, words in MOVES:
        if name != series or way != (1 if share > 1 else -1):
            continue
        first, last = ends(values)
        if way * (last - share * first) > 0 and way * (last - first) > least and not excuse(run):
            yield run.find(id, name, words.format(first, last))


def check_length(run: LoggedRun):
    """Truncation, runaway and collapse of the completions."""
    yield from check_truncation(run)
    yield from check_moves(run, "length")


def check_entropy(run: LoggedRun):
    """Entropy that falls without buying score, or explodes."""
    yield from check_moves(run, "entropy")


def check_remarks(run: LoggedRun):
    """Notes: loss, solved, short, torn."""
    losses = run.values("loss")
    if len(losses) >= 3 and (trend(losses) > 0 or (abs(statistics.median(losses)) < 1e-3 and not is_constant(run))):
        saw = "the loss went from {:.3g} to {:.3g}: this is no fault".format(*ends(losses))
        yield run.find("loss-is-no-measure", "loss", saw)
    if is_solved(run) and not (run.series.get("zero_std") and late(run, "zero_std") >= 0.8):
        held_out, (part, means) = run.values("held_out"), first_part(run)
        saw = f"held-out {held_out[-1]:.3g}" if held_out else f"{part} at {ends(means)[1]:.3g}"
        yield run.find("solved", "held_out" if held_out else "score", saw)
    if len(run.steps()) < TREND_STEPS:
        yield run.find("short-run", "score", f"{len(run.steps())} steps: trends were not judged")
    for remark in run.remarks:
        if "line" in remark:
            yield run.find("partial-log", "score", remark)


# (check, one of these series is needed), in the order of the report
CHECKS = (
    (check_held_out, ()),
    (check_finite, ()),
    (check_ratio, ("ratio_max", "clip_frac")),
    (
        check_mismatch,
        ("gap_mean", "gap_max", "mismatch_kl", "weight_mean", "weight_ess", "weight_std", "probs_correlation"),
    ),
    (check_stale_sampler, ("mismatch_kl", "gap_mean", "gap_max")),
    (check_sampling, ()),
    (check_constant, ("score_std", "score_max")),
    (check_signal, ("zero_std", "advantage_max")),  # above what follows from it
    (check_rate, ("score",)),
    (check_length, ("length", "truncated")),
    (check_conversations, ()),
    (check_waiting, ()),
    (check_repetition, ()),
    (check_entropy, ("entropy",)),
    (check_kl, ("kl",)),
    (check_critic, ("explained_variance",)),
    (check_gradients, ("grad_norm",)),
    (check_movement, ("score",)),
    (check_hacking, ("held_out", "score")),
    (check_format, ("score",)),
    (check_memory, ("gpu_memory", "memory")),
    (check_remarks, ()),
)


def diagnose(run: LoggedRun) -> tuple[list[Finding], list[str]]:
    """Findings of a run, findings before notes, and the names of the checks for which the log has no figures."""
    findings, left_out = [], []
    for check, needs in CHECKS:
        if needs and not any(run.series.get(name) for name in needs):
            left_out.append(check.__name__.removeprefix("check_"))
        else:
            findings += check(run)
    lost = collapse(run) is not None  # after which scores are equal
    return sorted(findings, key=lambda f: (f.severity == "note", lost and f.id == "no-signal")), left_out


# what a run is judged by: its figure for --columns, the series that hold it, and names that may be it in other logs
MEASURES = {
    "reward": ("reward", ("score",), r"reward|score|return"),
    "completion length": ("length", ("length",), r"length|_len\b|tokens"),
    "accuracy": ("accuracy", ("held_out", "part:"), r"\bacc\b|accuracy|correct\b|correctness|solve|pass@|pass_rate"),
    "KL": ("kl", ("kl", "kl_step"), r"(?:\b|_)kl(?:\b|_)"),
}
SPREAD = "spread of the reward"
SPREAD_SERIES = ({"score_std"}, {"zero_std"}, {"score_max", "score_min"}, {"advantage_max", "advantage_min"})
SPREADS = {"ours": "reward/std", "trl": "reward_std", "verl": "critic/score/max and critic/score/min"}


def unknown_keys(run: LoggedRun) -> list[str]:
    """Names in the log of figures that have no known name."""
    keys = dict.fromkeys(str(key) for row in run.rows for key, value in row.items() if is_finite(value))
    dialect = dialect_of(run)
    return [key for key in keys if common_name(key, dialect) is None and not re.match("eval|val|time|step", key)]


def names_like(run: LoggedRun, measure: str) -> list[str]:
    """Names in the log that a measure may have there."""
    return [key for key in unknown_keys(run) if re.search(MEASURES[measure][2], key, re.IGNORECASE)]


def level_of_all_steps(run: LoggedRun) -> float | None:
    """The mean reward of four steps in five, where it is one number and the log has nothing of the scores' spread."""
    scores = [f"{score:.6g}" for score in run.values("score")]
    known = any(spread <= run.series.keys() for spread in SPREAD_SERIES)
    if len(scores) < TREND_STEPS or known or is_constant(run):
        return None
    level = statistics.mode(scores)
    return float(level) if scores.count(level) >= 0.8 * len(scores) else None


def unread_measures(run: LoggedRun) -> dict[str, str]:
    """What could not be judged, each with what the log has or lacks for it."""
    unread, keys = {}, dict.fromkeys(str(key) for row in run.rows for key in row)
    for measure, (_, series, _) in MEASURES.items():
        if any(name.startswith(series) for name in run.series) or (measure == "reward" and "kl/teacher" in keys):
            continue
        near = names_like(run, measure) if dialect_of(run) != "ours" else []
        if run.format == NAMED_COLUMNS:  # whose user has said what the log has
            if measure == "reward":
                unread[measure] = "reward (no column is named for it)"
        elif near or measure in ("reward", "completion length"):
            names = near or unknown_keys(run) or list(keys)
            unread[measure] = f"{measure} (the log has {', '.join(names[:8])}{', …' if len(names) > 8 else ''})"
    level = level_of_all_steps(run)
    if level is not None:
        saw = f"the mean reward is {level:.4g} at nearly every step, as if all completions scored the same"
        unread[SPREAD] = f"needs {SPREADS[dialect_of(run)]} ({saw})"
    return unread


def remedies(run: LoggedRun) -> list[str]:
    """How a run that is not judged could be, as far as its log goes."""
    unread, pairs, advice = unread_measures(run), [], []
    for measure, (figure, series, _) in MEASURES.items():
        names = [run.names[name] for name in series if name in run.names] or names_like(run, measure)
        if names or measure == "reward":
            pairs.append(f"{figure}={names[0] if names else 'NAME'}")
    spreads = [key for key in unknown_keys(run) if re.search("std|stdev|variance", key, re.IGNORECASE)]
    if SPREAD in unread and spreads:
        pairs.append(f"reward_std={spreads[0]}")
    elif SPREAD in unread:
        advice = ["logging the standard deviation of a step's scores; scripts/reward_preflight.py scores gold answers"]
    if spreads or unread.keys() - {SPREAD}:
        advice.insert(0, f"--columns {' '.join(pairs)}; what the log does not have is then left out")
    return advice


def judgement(run: LoggedRun, findings: list[Finding], left_out: list[str]) -> dict:
    """A run's verdict as plain data; a log with a part that cannot be read is never healthy."""
    steps = run.steps() or [step for _, step, _ in run.broken]
    unread = unread_measures(run)
    if any(f.severity == "finding" for f in findings):
        verdict = "findings"
    elif any(f.id == "short-run" for f in findings):
        verdict = TOO_SHORT
    else:
        verdict = f"{NOT_JUDGED}: {'; '.join(unread.values())}" if unread else "healthy"
    facts = {"path": run.path, "format": run.format, "trainer": run.trainer, "steps": [min(steps), max(steps)]}
    facts |= {"verdict": verdict, "findings": [asdict(f) for f in findings]}
    return facts | {"not_judged": [*unread, *left_out]}
