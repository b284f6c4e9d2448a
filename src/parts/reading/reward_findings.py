"""Checks of the reward: equal scores, groups without signal, held-out prompts, gains that are none."""

import statistics

from parts.reading.finding_advice import IF_CUT
from parts.reading.log_reading import as_number, step_of
from parts.reading.logged_run import (
    SOLVED,
    LoggedRun,
    collapse,
    first_part,
    gained,
    is_constant,
    is_solved,
    late,
    span,
)
from parts.reading.metric_names import SETTINGS
from parts.reading.trends import TREND_STEPS, ends, forecast, is_flat, is_format, trend

RARELY = 0.01  # share of completions below which a length limit explains nothing
DATA_FILES = (("data", "eval_data"), ("data.train_files", "data.val_files"))  # settings of ours and of verl


def check_held_out(run: LoggedRun):
    """Held-out prompts that also train, as the run counted them or by the names of its files."""
    counts = [row for row in run.rows if as_number(row.get("eval/trained_rows"))]
    files = [(run.config.get(a), run.config.get(b)) for a, b in DATA_FILES]
    if counts:
        of = as_number(counts[0].get("eval/rows"))
        saw = f"{counts[0]['eval/trained_rows']:.0f}" + (f" of {of:.0f}" if of else "")
        saw += " evaluation prompts also occur in training; the accuracy is inflated"
        yield run.find("held-out-trains", "held_out", saw, step_of(counts[0]))
    elif run.values("held_out") and any(train and train == held_out for train, held_out in files):
        yield run.find("held-out-trains", "held_out", "the training file is the evaluation file too")


def check_sampling(run: LoggedRun):
    """A group of one; nearly greedy sampling, by the setting or by the entropy of the first steps."""
    words, entropy = SETTINGS[run.trainer], run.values("entropy")
    if run.settings.get("group_size") == 1 and run.settings.get("grouped"):
        yield run.find("group-size-1", "score", f"{words['group']} is 1 with an advantage that compares within groups")
    temperature = run.settings.get("temperature")
    if temperature is not None and temperature < 0.2:
        yield run.find("cold-sampling", "entropy", f"{words['temperature']} is {temperature}")
    elif temperature is None and entropy and ends(entropy)[0] < 0.01:
        saw = f"entropy of the first steps is {ends(entropy)[0]:.3g} nats a token"
        yield run.find("cold-sampling", "entropy", saw, min(run.series["entropy"]))


def check_constant(run: LoggedRun):
    """Every completion scores the same."""
    if not is_constant(run) or is_solved(run) or collapse(run):
        return
    saw = f"all completions of nearly every step scored the same, {late(run, 'score'):.4g} in {span(run, 'score')}"
    cut, gradients = run.values("truncated"), run.values("grad_norm")
    if cut and late(run, "truncated") > 0.2:
        saw += f"; {late(run, 'truncated'):.0%} of them were cut by the length limit"
    if cut and not any(cut):
        saw += "; none was cut"
    if gradients and not any(gradients):
        saw += (
            f". So advantages and gradients are 0 at each step: loss and learning rate{highest_rate(run)} are no cause"
        )
    finding = run.find("constant-reward", "score_std" if "score_std" in run.series else "score", saw)
    if cut and max(statistics.mean(cut), late(run, "truncated")) < RARELY:
        finding.change = [advice for advice in finding.change if not advice.endswith(IF_CUT)]
    yield finding


def highest_rate(run: LoggedRun) -> str:
    """The highest learning rate in brackets, where the log has one above 0."""
    highest = max(run.values("lr"), default=0)
    by_size = 0.0 in (run.config.get("lr"), run.config.get("learning_rate"))
    return (
        f" (it was up to {highest:.3g}{'; the 0 in the settings means by size' if by_size else ''})" if highest else ""
    )


def check_signal(run: LoggedRun):
    """Groups without spread, against the binomial forecast."""
    if is_constant(run):
        return
    if "zero_std" in run.series:
        name, share = "zero_std", late(run, "zero_std")
        saw = f"{share:.0%} of the groups in {span(run, 'zero_std')} score all alike"
    else:
        pairs = list(zip(run.values("advantage_max"), run.values("advantage_min"), strict=False))[-20:]
        name, share = "advantage_max", sum(high == low for high, low in pairs) / max(1, len(pairs))
        saw = f"in {share:.0%} of the last {len(pairs)} steps no completion had an advantage"
    if share < 0.8 or len(run.values(name)) < 3:
        return
    part, means = first_part(run)
    p, group = (ends(means)[1] if means else -1), run.settings.get("group_size")
    if group and 0 <= p <= 1:
        expected = forecast(p, group)
        saw += f"; p^G + (1-p)^G gives {expected:.0%} at pass rate {p:.3g} ({part}, taken as 0 or 1)"
        saw += f" and groups of {group}"
        enough = next((2**i for i in range(1, 9) if 2**i > group and forecast(p, 2**i) < 0.5), None)
        if share > expected + 0.15:
            saw += ": more than chance, so prompts are always or never solved, or samples hardly differ"
        elif enough:
            saw += f"; groups of {enough} would bring it to {forecast(p, enough):.0%}"
    yield run.find("solved" if is_solved(run) else "no-signal", name, saw)


def check_movement(run: LoggedRun):
    """Scores differ and nothing changes; or the score alone does not."""
    scores = run.values("score")
    if is_constant(run) and not run.series.keys() & {"score_std", "score_max"}:
        yield from check_constant(run)
    if len(scores) < 2 * TREND_STEPS or trend(scores) or is_solved(run) or is_constant(run):
        return
    if run.series.get("zero_std") and late(run, "zero_std") >= 0.8:
        return
    name, still = "", False
    if run.series.get("kl"):
        name, still = "kl", abs(late(run, "kl")) < 1e-4
    elif run.series.get("kl_step") and (run.settings.get("updates") or 1) > 1:  # else 0 by construction
        name, still = "kl_step", abs(statistics.median(run.values("kl_step"))) < 1e-7
    elif run.series.get("entropy"):
        first, last = ends(run.values("entropy"))
        name, still = "entropy", abs(last - first) < 0.01 * abs(first)
    saw = f"the score is flat over {len(scores)} steps"
    if still:
        yield run.find("lr-low", name, f"{saw} and {run.names[name]} is {late(run, name):.3g}")
    elif not run.values("held_out") and ends(scores)[1] < SOLVED:
        first, last = ends(scores)
        yield run.find("flat-reward", "score", f"{saw}, {first:.3g} at the start and {last:.3g} at the end")


def check_hacking(run: LoggedRun):
    """Score up, the task not."""
    if trend(run.values("score")) <= 0:
        return
    first, last = ends(run.values("score"))
    held_out, (name, part) = run.values("held_out"), first_part(run)
    saw = f"the score rose from {first:.3g} to {last:.3g}"
    if len(held_out) >= 2:
        peak = max(held_out)
        if not gained(run) and peak < SOLVED:
            saw += f", the held-out figure went from {held_out[0]:.3g} to {held_out[-1]:.3g} (best {peak:.3g})"
            best_step = max(run.series["held_out"], key=run.series["held_out"].get)
            yield run.find("reward-hacking", "held_out", saw, best_step)
        return
    rising = [other for other, values in run.parts().items() if other != name and trend(values) > 0]
    falls, stands = trend(part) < 0, is_flat(part) and not all(map(is_format, rising))
    if rising and ends(part)[0] < SOLVED and (falls or stands):
        saw += f" by {', '.join(rising)}, while {name} went from {ends(part)[0]:.3g} to {ends(part)[1]:.3g}"
        yield run.find("reward-hacking", f"part:{name}", saw)


def check_format(run: LoggedRun):
    """The format is full, the answers stand still."""
    name, part = first_part(run)
    if not is_flat(part) or ends(part)[1] >= 0.9 or gained(run):
        return
    for other, values in run.parts().items():
        if other == name or not is_format(other) or not values:
            continue
        top = max(max(values), 1.0 if max(values) > 0.5 else 0.05)  # parts may be logged with their weight
        if ends(values)[1] >= 0.9 * top:
            saw = f"{other} is at {ends(values)[1]:.3g} in {span(run, f'part:{other}')}"
            yield run.find("format-only", f"part:{other}", f"{saw}, {name} stands at {ends(part)[1]:.3g}")
            return
