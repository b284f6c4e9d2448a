"""Signs: what figures show without saying why; a cause explains them, and none has advice of its own."""

import statistics
from collections.abc import Iterator

from parts.reading.causes.cause import Fact, fact
from parts.reading.logged_run import LoggedRun, collapse, gained, is_constant, is_solved
from parts.reading.trends import TREND_STEPS, ends, is_flat, repeats, trend

# sign, series, share of the first stretch beyond which the last lies, least distance
MOVES = (
    ("length_rose", "length", 1.5, 0.0),
    ("length_fell", "length", 0.5, 0.0),
    ("entropy_fell", "entropy", 0.2, 0.01),
    ("entropy_rose", "entropy", 2.0, 0.2),
)
LEVELS = (  # sign, series, what its last stretch lies above, words
    ("equal_groups", "zero_std", 0.8 - 1e-9, "{:.0%} of the groups score all alike"),
    ("truncated", "truncated", 0.2 - 1e-9, "{:.0%} of the completions are cut"),
    ("kl_high", "kl", 0.3, "{name} is {:.3g} nats a token"),
    ("clipped", "clip_frac", 0.3, "{:.0%} of the tokens are clipped"),
    ("sampler_gap", "gap_mean", 0.049, "{name} is {:.3g}"),
    ("sampler_gap", "mismatch_kl", 0.01, "{name} is {:.3g}"),
)


def moves(run: LoggedRun) -> Iterator[tuple[str, Fact]]:
    """Length or entropy that moves far."""
    sharp = is_solved(run) or "kl/teacher" in run.columns
    for name, series, share, least in MOVES:
        values, way = run.values(series), 1 if share > 1 else -1
        if trend(values) != way or gained(run) or (name == "entropy_fell" and sharp):
            continue
        first, last = ends(values)
        if way * (last - share * first) > 0 and way * (last - first) > least:
            yield name, fact(run, series, f"{run.name(series)} went from {first:.4g} to {last:.4g}")


def levels(run: LoggedRun) -> Iterator[tuple[str, Fact]]:
    """Figures that lie where they should not."""
    for name, series, limit, words in LEVELS:
        late = run.last(series)
        fine = is_solved(run) if name == "equal_groups" else name == "kl_high" and gained(run)
        if late > limit and not fine:
            yield name, fact(run, series, words.format(late, name=run.name(series)))
    if run.last("explained_variance") < 0.03 and len(run.steps()) >= TREND_STEPS:
        text = f"the critic explains {run.last('explained_variance'):.2g} of the returns' variance"
        yield "critic_explains_little", fact(run, "explained_variance", text)
    if len(run.values("grad_norm")) >= 3 and run.last("grad_norm") == 0:
        yield "zero_gradient", fact(run, "grad_norm", f"{run.name('grad_norm')} is 0")


def signs(run: LoggedRun) -> dict[str, Fact]:
    """Every sign of a run, in the order of the table above."""
    seen, scores, lost = {}, run.values("score"), collapse(run)
    if is_constant(run):
        seen["constant_scores"] = fact(
            run, "score", f"all completions of nearly every step scored {run.last('score'):.4g}"
        )
    elif lost:
        seen["score_fell"] = fact(run, "score", f"the score fell from {lost[0]:.3g} to {lost[1]:.3g}", lost[2])
    elif is_flat(scores) and not is_solved(run):
        seen["flat_score"] = fact(run, "score", f"the score is flat over {len(scores)} steps")
    held_out = run.values("held_out")
    if len(held_out) >= 2 and not gained(run) and not is_solved(run):
        text = f"the held-out figure went from {held_out[0]:.3g} to {held_out[-1]:.3g}"
        seen["held_out_flat"] = fact(run, "held_out", text)
    seen |= dict(levels(run)) | dict(moves(run))
    last = [t for t in run.texts if t.kind == "train" and t.step == max(t.step for t in run.texts)]
    if last and statistics.median(repeats(t.completion) for t in last) > 0.5:
        seen["repetition"] = Fact("half of the last completions repeat themselves", "samples", last[0].step)
    return seen
