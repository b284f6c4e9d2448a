"""Checks of the updates: ratio, sampler, KL, critic, gradients, learning rate, memory."""

import itertools
import math
import statistics

from parts.reading.log_reading import as_number, common_name, dialect_of
from parts.reading.logged_run import LoggedRun, collapse, gained, is_constant, is_solved, late, rises_late, span
from parts.reading.trends import TREND_STEPS, ends, trend

CRITIC_STEPS = 5  # the first ones are a critic's warm-up, whatever the settings say; its value head starts at 0
STRETCHES, STEPS_EACH = 6, 5  # of what is left of a run without its first tenth, in which memory still settles
GROWN, UNEVEN = 0.1, 1 / 3  # of the first stretch's memory; of the growth, which is 0.2 each where it is even
MISMATCH = (  # series, lowest and highest value that is fine, words
    ("gap_mean", -math.inf, math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
    ("mismatch_kl", -math.inf, 0.01, "KL of sampler and trainer {:.3g} nats a token; above 0.01"),
    ("weight_mean", 0.5, 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
    ("weight_ess", 0.3, math.inf, "effective sample size {:.3g} of the batch; below 0.3"),
    ("weight_std", -math.inf, 1, "standard deviation of the importance weights {:.3g}; above 1"),
    ("probs_correlation", 0.9, math.inf, "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)"),
)


def check_finite(run: LoggedRun):
    """NaN, infinities, and updates left out for them."""
    watched, dialect = ("loss", "grad_norm", "kl", "entropy", "value_loss", "score"), dialect_of(run)
    bad = [entry for entry in run.broken if common_name(entry[0], dialect) in watched]
    if bad:
        metric, step, value = bad[0]
        saw = f"{metric} is {value} at step {step}, {len(bad)} such values in all"
        run.names["broken"] = metric
        yield run.find("not-finite", "broken", saw, step)
    skipped = run.series.get("skipped", {})
    steps = [step for step, value in sorted(skipped.items()) if value]
    allowed = 0.2 * len(skipped) if run.settings.get("fp16") else 0  # fp16's loss scale settles that way
    if steps and len(steps) > allowed and not bad:
        saw = f"{len(steps)} steps left updates out because a gradient was not finite, first step {steps[0]}"
        yield run.find("not-finite", "skipped", saw, steps[0], note=len(steps) < 0.01 * len(skipped))


def check_ratio(run: LoggedRun):
    """The ratio of a rollout's only update."""
    updates, constant = run.series.get("updates", {}), run.settings.get("updates")
    for name, limit in (("ratio_max", 1 + 1e-3), ("clip_frac", 1e-3)):
        for step, value in sorted(run.series.get(name, {}).items()):
            if updates.get(step, constant) == 1 and value > limit:
                saw = f"{run.names[name]} is {value:.4g} at step {step}, which has one update per rollout"
                yield run.find("ratio-first-update", name, saw, step)
                return


def check_mismatch(run: LoggedRun):
    """Sampler and trainer disagree on the probability of sampled tokens."""
    gap = 0.01 if run.settings.get("exact") else 2.0  # fp32 with one sampler: rounding; else tokens may differ much
    largest = ("gap_max", -math.inf, gap, f"largest difference of a token {{:.3g}} nats; above {gap} (our heuristic)")
    for name, low, high, text in (*MISMATCH, largest):
        values = run.values(name)
        if values and not low <= statistics.median(values) <= high:
            first = next(step for step, value in sorted(run.series[name].items()) if not low <= value <= high)
            saw = text.format(statistics.median(values)) + f"; median of all steps, first at step {first}"
            yield run.find("sampler-mismatch", name, saw, first)
            return


def check_stale_sampler(run: LoggedRun):
    """The sampler's distance from the trainer grows while the score stands still: weights that do not arrive."""
    scores = run.values("score")
    if len(scores) < TREND_STEPS or trend(scores) > 0 or gained(run) or is_solved(run):
        return
    for name in ("mismatch_kl", "gap_mean"):
        values = [abs(value) for value in run.values(name)]
        first, last = ends(values) if values else (0.0, 0.0)
        if trend(values) > 0 and last > max(1e-3, 5 * first):
            saw = f"{run.names[name]} grew from {first:.2g} to {last:.2g} nats a token while the score did not rise"
            yield run.find("stale-sampler", name, saw)
            return


def check_kl(run: LoggedRun):
    """KL to the reference: 0 at step 1, and slow after that."""
    values, first = run.values("kl"), min(run.series["kl"])
    one_update = run.settings.get("updates") == 1 or dialect_of(run) == "ours" or run.format == "trainer_state.json"
    if first <= 1 and abs(values[0]) > 0.01 and one_update:
        saw = f"KL to the reference is {values[0]:.3g} nats a token at step {first}, before any update"
        yield run.find("reference-differs", "kl", saw, first)
    last = ends(values)[1]
    risen = trend(values) > 0 or (values[0] <= 0.01 and last > 1 and not collapse(run))  # that came at once
    if len(values) >= TREND_STEPS and last > 0.3 and risen and not (gained(run) and rises_late(run)):
        saw = f"KL to the reference is {last:.3g} nats a token in {span(run, 'kl')}, and correctness does not follow"
        yield run.find("kl-runaway", "kl", saw)


def check_critic(run: LoggedRun):
    """A critic that explains nothing after its warm-up, while scores differ; a note once the task is solved."""
    variances = run.series["explained_variance"]
    warmup = max(CRITIC_STEPS, int(as_number(run.settings.get("critic_warmup")) or 0))
    steps = [step for step in sorted(variances) if step > warmup]
    if len(variances) < TREND_STEPS or len(steps) < CRITIC_STEPS or is_constant(run) or hardly_varies(run):
        return
    steps = steps[-max(CRITIC_STEPS, len(steps) // 2) :]
    values = [variances[step] for step in steps]
    middle = statistics.median(values)  # single steps scatter by hundredths: of few of them, each counts
    if middle > 0 and (middle if len(values) >= TREND_STEPS else max(values)) > 0.03:
        return
    saw = f"explained variance {middle:.3g}, median of steps {steps[0]}-{steps[-1]}"
    lowest = min(variances, key=variances.get)
    if variances[lowest] < min(-0.1, 2 * middle):
        saw += f"; {variances[lowest]:.3g} at step {lowest}"
    clip, scores = as_number(run.settings.get("value_clip")), run.values("score")
    if clip and scores and max(map(abs, scores)) > 10 * clip:
        saw += f"; a rollout moves a value by {clip:g} at most, and scores reach {max(scores, key=abs):.3g}"
    if is_solved(run):
        saw += "; the task was solved all the same"
    yield run.find("critic-useless", "explained_variance", saw, steps[-1], note=is_solved(run))


def hardly_varies(run: LoggedRun) -> bool:
    """Whether scores hardly differ any more, so that nothing is left to explain: beside the start, or their size."""
    spread = run.values("score_std")
    if not spread:
        return False
    first, last = ends(spread)
    return last < 0.25 * first or last < 0.05 * abs(late(run, "score") if run.values("score") else 0.0)


def check_gradients(run: LoggedRun):
    """Gradients far above those of the steps before."""
    norms, spikes = sorted(run.series["grad_norm"].items()), []
    for i in range(5, len(norms)):
        before = statistics.median(value for _, value in norms[max(0, i - 20) : i])
        if norms[i][1] > 1 and norms[i][1] > 10 * before > 0.01:
            spikes.append((norms[i][1], norms[i][0], before))
    if spikes:
        value, step, before = max(spikes, key=lambda spike: spike[0])
        saw = f"{len(spikes)} spikes; the largest {value:.3g} at step {step} after a median of {before:.3g}"
        rare = len(spikes) < 0.02 * len(norms) and not collapse(run)
        yield run.find("gradient-spikes", "grad_norm", saw, step, note=rare)


def check_rate(run: LoggedRun):
    """Learning rate too high, too low, or 0."""
    rates = run.values("lr")
    if len(rates) >= 3 and max(rates[: len(rates) // 2 + 2]) == 0:
        yield run.find("lr-zero", "lr", "the learning rate is 0 in the first half of the run")
        return
    limits = (("kl_step", 0.1, "KL of one step's update"), ("clip_frac", 0.3, "clipped share of tokens"))
    too_high = False
    for name, limit, words in limits:
        values = run.series.get(name, {})
        high = [step for step, value in sorted(values.items()) if value > limit]
        if not too_high and len(high) >= 3 and len(high) >= 0.1 * len(values):
            too_high, step = True, max(high, key=values.get)
            saw = (
                f"{words} above {limit} in {len(high)} of {len(values)} steps, up to {values[step]:.3g} at step {step}"
            )
            yield run.find("lr-high", name, saw, step)
    lost = collapse(run)
    if not lost:
        return
    best, last, step = lost
    kl = run.series.get("kl", {})
    before = max((s for s in kl if s < step), default=None)
    if before is not None and kl.get(step, 0) - kl[before] > 0.5 and not too_high:
        saw = f"KL to the reference went from {kl[before]:.3g} to {kl[step]:.3g} nats a token in one step"
        yield run.find("lr-high", "kl", saw, step)
    saw = f"the score fell from {best:.3g} to {last:.3g}; half of it was lost by step {step}"
    yield run.find("score-collapse", "score", saw, step)


def even_growth(values: list[float]) -> tuple[float, float] | None:
    """Medians of the first and of the last stretch where each of six lies above the one before, none by most of it.

    What settles gains most at first: of a logarithm's growth 0.37 lies between the first two stretches. None where
    memory does not grow so, or by less than a tenth, or the log is short.
    """
    values = values[len(values) // 10 :]
    size = len(values) // STRETCHES
    if size < STEPS_EACH:
        return None
    middles = [statistics.median(values[i * size : (i + 1) * size]) for i in range(STRETCHES)]
    gains = [after - before for before, after in itertools.pairwise(middles)]
    grown = middles[-1] - middles[0]
    even = min(gains) > 0 and max(gains) <= UNEVEN * grown and grown > GROWN * middles[0]
    return (middles[0], middles[-1]) if even else None


def check_memory(run: LoggedRun):
    """Memory that grows step by step although completions do not: of a GPU, or of the process."""
    if any(trend(run.values(name)) > 0 for name in ("length", "length_max", "turns")):
        return
    for name in ("gpu_memory", "memory"):
        growth = even_growth(run.values(name))
        if growth:
            saw = f"{run.names[name]} rose evenly from {growth[0]:.3g} to {growth[1]:.3g} GiB, completions did not grow"
            yield run.find("memory-grows", name, saw, max(run.series[name]))
            return
