"""The checks of a run."""

import math
import statistics

from parts.reading.finding_advice import IF_CUT
from parts.reading.finding_thresholds import CRITIC_STEPS, GAIN, SOLVED, TREND_STEPS
from parts.reading.held_out_findings import check_held_out
from parts.reading.log_reading import as_number, common_name, dialect_of, step_of
from parts.reading.logged_run import Finding, LoggedRun, collapse, first_part, is_constant, is_solved, late, span
from parts.reading.memory_findings import check_memory
from parts.reading.metric_names import SETTINGS
from parts.reading.tool_findings import check_tools, check_turns
from parts.reading.trends import ends, forecast, is_flat, is_format, repeats, trend

RARELY = 0.01  # share of completions below which a length limit explains nothing
TEXTS = 8  # completions of a step that are looked at for repetition: as many as the trainers log


def check_finite(run: LoggedRun):
    """NaN, infinities, and updates left out for them."""
    bad = [
        b
        for b in run.broken
        if common_name(b[0], dialect_of(run)) in ("loss", "grad_norm", "kl", "entropy", "value_loss", "score")
    ]
    if bad:
        metric, step, value = bad[0]
        run.names.setdefault("broken", metric)
        finding = run.find(
            "not-finite", "broken", f"{metric} is {value} at step {step}, {len(bad)} such values in all", step
        )
        finding.metric = metric
        yield finding
    skipped = run.series.get("skipped", {})
    steps = [step for step, value in sorted(skipped.items()) if value]
    allowed = 0.2 * len(skipped) if run.settings.get("fp16") else 0  # fp16's loss scale settles that way
    if steps and len(steps) > allowed and not bad:
        saw = f"{len(steps)} steps left updates out because a gradient was not finite, first step {steps[0]}"
        yield run.find("not-finite", "skipped", saw, steps[0], note=len(steps) < 0.01 * len(skipped))


def check_constant(run: LoggedRun):
    """Every completion scores the same."""
    if is_constant(run) and not is_solved(run) and not collapse(run):
        value, name = late(run, "score"), "score_std" if "score_std" in run.series else "score"
        saw = f"all completions of nearly every step scored the same, {value:.4g} in {span(run, 'score')}"
        cut = run.values("truncated")
        if cut:
            share = late(run, "truncated")
            saw += f"; {share:.0%} of them were cut by the length limit" * (share > 0.2)
            saw += "; none was cut" * (not any(cut))
        if run.values("grad_norm") and not any(run.values("grad_norm")):
            rates = run.values("lr")
            given = f" (it was up to {max(rates):.3g})" if rates and max(rates) > 0 else ""
            by_size = given and 0.0 in (run.config.get("lr"), run.config.get("learning_rate"))
            given = given.replace(")", "; the 0 in the settings means by size)") if by_size else given
            saw += f". So advantages and gradients are 0 at each step: loss and learning rate{given} are no cause"
        finding = run.find("constant-reward", name, saw)
        if cut and max(statistics.mean(cut), late(run, "truncated")) < RARELY:
            finding.change = [advice for advice in finding.change if not advice.endswith(IF_CUT)]
        yield finding


def check_signal(run: LoggedRun):
    """Groups without spread, against the binomial forecast."""
    if is_constant(run):
        return
    if "zero_std" in run.series:
        share = late(run, "zero_std")
        saw = f"{share:.0%} of the groups in {span(run, 'zero_std')} score all alike"
        name = "zero_std"
    else:
        pairs = list(zip(run.values("advantage_max"), run.values("advantage_min"), strict=False))[-20:]
        share = sum(high == low for high, low in pairs) / max(1, len(pairs))
        saw, name = f"in {share:.0%} of the last {len(pairs)} steps no completion had an advantage", "advantage_max"
    if share < 0.8 or len(run.values(name)) < 3:
        return
    part, means = first_part(run)
    p, group = (ends(means)[1] if means else -1), run.settings.get("group_size")
    if group and 0 <= p <= 1:
        expected = forecast(p, group)
        saw += (
            f"; p^G + (1-p)^G gives {expected:.0%} at pass rate {p:.3g} ({part}, taken as 0 or 1) and groups of {group}"
        )
        enough = next((g for g in (2**i for i in range(1, 9)) if g > group and forecast(p, g) < 0.5), None)
        if share > expected + 0.15:
            saw += ": more than chance, so prompts are always or never solved, or samples hardly differ"
        elif enough:
            saw += f"; groups of {enough} would bring it to {forecast(p, enough):.0%}"
    if is_solved(run):
        yield run.find("solved", name, saw)
    else:
        yield run.find("no-signal", name, saw)


def check_group(run: LoggedRun):
    """A group of one."""
    if run.settings.get("group_size") == 1 and run.settings.get("grouped"):
        words = SETTINGS[run.trainer]["group"]
        yield run.find("group-size-1", "score", f"{words} is 1 with an advantage that compares within groups")


def check_temperature(run: LoggedRun):
    """Nearly greedy sampling: by the setting, or by the entropy of the first steps."""
    temperature = run.settings.get("temperature")
    if temperature is not None and temperature < 0.2:
        yield run.find("cold-sampling", "entropy", f"{SETTINGS[run.trainer]['temperature']} is {temperature}")
    elif temperature is None and run.values("entropy") and ends(run.values("entropy"))[0] < 0.01:
        step = min(run.series["entropy"])
        saw = f"entropy of the first steps is {ends(run.values('entropy'))[0]:.3g} nats a token"
        yield run.find("cold-sampling", "entropy", saw, step)


def gained(run: LoggedRun) -> bool:
    """Whether the held-out figure rose, or without one the correctness reward, or without parts the score."""
    held_out = run.values("held_out")
    if len(held_out) >= 2:
        return held_out[-1] - held_out[0] > GAIN and held_out[-1] > max(held_out) - 2 * GAIN
    return trend(first_part(run)[1]) > 0


def mean_of_the_last(run: LoggedRun) -> tuple[str, float]:
    """Name and late mean of the score for correctness, which is a share where scores end at 1; 0 where they do not."""
    part, means = first_part(run)
    highest = [as_number(row.get("score")) or 0.0 for row in run.samples] + run.values("score_max") + means
    return part, ends(means)[1] if means and max(highest) <= 1 else 0.0


def check_length(run: LoggedRun):
    """Truncation, runaway and collapse of the completions."""
    cut, lengths = run.values("truncated"), run.values("length")
    if len(cut) >= 3 and ends(cut)[1] >= 0.2:
        first, last = ends(cut)
        saw = (
            f"{last:.0%} of the completions in {span(run, 'truncated')} hit the length limit ({first:.0%} at the start)"
        )
        part, mean = mean_of_the_last(run)
        if mean + last - 1 > 0.5 * min(mean, last):
            saw += f"; {part} is {mean:.3g} there, so at least {mean + last - 1:.0%} were cut and paid"
            yield run.find("paid-unfinished", "truncated", saw)
        else:
            yield run.find("truncation", "truncated", saw)
    if len(lengths) < TREND_STEPS:
        return
    first, last = ends(lengths)
    saw = f"mean length went from {first:.4g} to {last:.4g} tokens"
    if last > 1.5 * first and trend(lengths) > 0 and not gained(run):
        yield run.find("length-runaway", "length", saw + " without a gain in correctness")
    if last < 0.5 * first and trend(lengths) < 0 and not gained(run):
        yield run.find("length-collapse", "length", saw + " without a gain in correctness")


def check_repetition(run: LoggedRun):
    """Completions that repeat themselves, by samples.jsonl."""
    by_step: dict[int, list[str]] = {}
    for row in run.samples:
        text = row.get("completion")
        if row.get("kind", "train") == "train" and isinstance(text, str):
            of_step = by_step.setdefault(step_of(row), [])
            of_step += [text] if len(of_step) < TEXTS else []

    def share(step: int) -> float:
        return statistics.median(map(repeats, by_step[step]))

    if by_step and share(max(by_step)) > 0.5:
        shares = {step: share(step) for step in sorted(by_step)}
        run.series["repeats"], last = shares, max(shares)
        run.names["repeats"] = "samples.jsonl"
        saw = f"half of the completions of step {last} consist to {shares[last]:.0%} or more of repeated pieces"
        yield run.find("repetition", "repeats", saw)


def check_entropy(run: LoggedRun):
    """Entropy that falls without buying score, or explodes; what one is taught by a teacher may be sharp."""
    values = run.values("entropy")
    if len(values) < TREND_STEPS:
        return
    first, last = ends(values)
    half = run.values("score")[len(run.values("score")) // 2 :]
    rising = trend(half) > 0 or trend(run.values("score")) > 0
    saw = f"entropy went from {first:.3g} to {last:.3g} nats a token"
    taught = any("kl/teacher" in row for row in run.rows)
    if 0.01 < first and last < 0.2 * first and trend(values) < 0 and not is_solved(run) and not rising and not taught:
        yield run.find("entropy-collapse", "entropy", saw + " and the score does not rise")
    if last > max(2 * first, first + 0.2) and trend(values) > 0 and (collapse(run) or not gained(run)):
        yield run.find("entropy-explosion", "entropy", saw + " without a gain in correctness")


def check_kl(run: LoggedRun):
    """KL to the reference: 0 at step 1, and slow after that."""
    values, found = run.values("kl"), run.series.get("kl", {})
    if not values:
        return
    one_update = run.settings.get("updates") == 1 or dialect_of(run) == "ours" or run.format == "trainer_state.json"
    if min(found) <= 1 and abs(found[min(found)]) > 0.01 and one_update:
        saw = f"KL to the reference is {found[min(found)]:.3g} nats a token at step {min(found)}, before any update"
        yield run.find("reference-differs", "kl", saw, min(found))
    last = ends(values)[1]
    half = run.values("score")[len(run.values("score")) // 2 :]
    risen = trend(values) > 0 or (values[0] <= 0.01 and last > 1 and not collapse(run))  # that came at once
    if len(values) >= TREND_STEPS and last > 0.3 and risen and not (gained(run) and trend(half) > 0):
        saw = f"KL to the reference is {last:.3g} nats a token in {span(run, 'kl')}, and correctness does not follow"
        yield run.find("kl-runaway", "kl", saw)


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
    limits = [
        ("gap_mean", lambda v: v > math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
        ("mismatch_kl", lambda v: v > 0.01, "KL of sampler and trainer {:.3g} nats a token; above 0.01"),
        ("weight_mean", lambda v: not 0.5 <= v <= 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
        ("weight_ess", lambda v: v < 0.3, "effective sample size {:.3g} of the batch; below 0.3"),
        ("weight_std", lambda v: v > 1, "standard deviation of the importance weights {:.3g}; above 1"),
        (
            "probs_correlation",
            lambda v: v < 0.9,
            "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)",
        ),
    ]
    gap = 0.01 if run.settings.get("exact") else 2.0  # fp32 with one sampler: rounding; else tokens may differ much
    limits.append(
        ("gap_max", lambda v: v > gap, "largest difference of a token {:.3g} nats; above " + f"{gap} (our heuristic)")
    )
    for name, wrong, text in limits:
        values = run.values(name)
        if values and wrong(statistics.median(values)):
            first = next(step for step, value in sorted(run.series[name].items()) if wrong(value))
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


def check_critic(run: LoggedRun):
    """A critic that explains nothing after its warm-up, while scores differ; a note once the task is solved."""
    found = run.series["explained_variance"]
    warmup = max(CRITIC_STEPS, int(as_number(run.settings.get("critic_warmup")) or 0))
    steps = [step for step in sorted(found) if step > warmup]
    if len(found) < TREND_STEPS or len(steps) < CRITIC_STEPS or is_constant(run) or hardly_varies(run):
        return
    steps = steps[-max(CRITIC_STEPS, len(steps) // 2) :]
    values = [found[step] for step in steps]
    middle = statistics.median(values)  # single steps scatter by hundredths: of few of them, each counts
    if middle <= 0 or (middle if len(values) >= TREND_STEPS else max(values)) <= 0.03:
        saw = f"explained variance {middle:.3g}, median of steps {steps[0]}-{steps[-1]}"
        lowest = min(found, key=found.get)
        saw += f"; {found[lowest]:.3g} at step {lowest}" * (found[lowest] < min(-0.1, 2 * middle))
        clip, scores = as_number(run.settings.get("value_clip")), run.values("score")
        if clip and scores and max(map(abs, scores)) > 10 * clip:
            saw += f"; a rollout moves a value by {clip:g} at most, and scores reach {max(scores, key=abs):.3g}"
        saw += "; the task was solved all the same" * is_solved(run)
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
    found = sorted(run.series.get("grad_norm", {}).items())
    spikes = []
    for i in range(5, len(found)):
        before = statistics.median(value for _, value in found[max(0, i - 20) : i])
        if found[i][1] > 1 and found[i][1] > 10 * before > 0.01:
            spikes.append((found[i][0], found[i][1], before))
    if spikes:
        step, value, before = max(spikes, key=lambda s: s[1])
        saw = f"{len(spikes)} spikes; the largest {value:.3g} at step {step} after a median of {before:.3g}"
        yield run.find(
            "gradient-spikes", "grad_norm", saw, step, note=len(spikes) < 0.02 * len(found) and not collapse(run)
        )


def check_rate(run: LoggedRun):
    """Learning rate too high, too low, or 0."""
    rates = run.values("lr")
    if len(rates) >= 3 and max(rates[: len(rates) // 2 + 2]) == 0:
        yield run.find("lr-zero", "lr", "the learning rate is 0 in the first half of the run")
        return
    for name, limit, what in (
        ("kl_step", 0.1, "KL of one step's update"),
        ("clip_frac", 0.3, "clipped share of tokens"),
    ):
        found = sorted(run.series.get(name, {}).items())
        high = [(step, value) for step, value in found if value > limit]
        if len(high) >= 3 and len(high) >= 0.1 * len(found):
            step, value = max(high, key=lambda h: h[1])
            saw = f"{what} above {limit} in {len(high)} of {len(found)} steps, up to {value:.3g} at step {step}"
            yield run.find("lr-high", name, saw, step)
            break
    else:
        high = []
    lost = collapse(run)
    if lost:
        best, last, step = lost
        kl = run.series.get("kl", {})
        before = max((s for s in kl if s < step), default=None)
        if before is not None and kl.get(step, 0) - kl[before] > 0.5 and not high:
            saw = f"KL to the reference went from {kl[before]:.3g} to {kl[step]:.3g} nats a token in one step"
            yield run.find("lr-high", "kl", saw, step)
        saw = f"the score fell from {best:.3g} to {last:.3g}; half of it was lost by step {step}"
        yield run.find("score-collapse", "score", saw, step)


def check_movement(run: LoggedRun):
    """Scores differ and nothing changes."""
    scores = run.values("score")
    if len(scores) < 2 * TREND_STEPS or trend(scores) or is_solved(run) or is_constant(run):
        return
    if run.series.get("zero_std") and late(run, "zero_std") >= 0.8:
        return
    if run.series.get("kl"):
        name, still = "kl", abs(late(run, "kl")) < 1e-4
    elif run.series.get("kl_step") and (run.settings.get("updates") or 1) > 1:  # else 0 by construction
        name, still = "kl_step", abs(statistics.median(run.values("kl_step"))) < 1e-7
    elif run.series.get("entropy"):
        first, last = ends(run.values("entropy"))
        name, still = "entropy", abs(last - first) < 0.01 * abs(first)
    else:
        return
    if still:
        saw = f"the score is flat over {len(scores)} steps and {run.names[name]} is {late(run, name):.3g}"
        yield run.find("lr-low", name, saw)


def check_hacking(run: LoggedRun):
    """Score up, the task not."""
    if trend(run.values("score")) <= 0:
        return
    first, last = ends(run.values("score"))
    held_out, (name, part) = run.values("held_out"), first_part(run)
    saw = f"the score rose from {first:.3g} to {last:.3g}"
    if len(held_out) >= 2:
        if not gained(run) and max(held_out) < SOLVED:
            peak = max(held_out)
            saw += f", the held-out figure went from {held_out[0]:.3g} to {held_out[-1]:.3g} (best {peak:.3g})"
            yield run.find(
                "reward-hacking", "held_out", saw, max(run.series["held_out"], key=run.series["held_out"].get)
            )
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


def check_remarks(run: LoggedRun):
    """Notes: loss, slow rewards, solved, short, torn."""
    losses = run.values("loss")
    near = abs(statistics.median(losses)) < 1e-3 and not is_constant(run) if losses else False
    if len(losses) >= 3 and (trend(losses) > 0 or near):
        first, last = ends(losses)
        yield run.find("loss-is-no-measure", "loss", f"the loss went from {first:.3g} to {last:.3g}: this is no fault")
    scoring, step = run.values("time_reward"), run.values("time_step")
    if len(scoring) >= 3:
        whole = (
            statistics.median(step)
            if step
            else statistics.median(scoring) + statistics.median(run.values("time_rollout") or [0])
        )
        if whole and statistics.median(scoring) > 0.3 * whole:
            saw = f"rewards take {statistics.median(scoring):.3g} s of {whole:.3g} s"
            yield run.find("slow-reward", "time_reward", saw)
    if is_solved(run) and not (run.series.get("zero_std") and late(run, "zero_std") >= 0.8):
        held_out = run.values("held_out")
        saw = (
            f"held-out {held_out[-1]:.3g}" if held_out else f"{first_part(run)[0]} at {ends(first_part(run)[1])[1]:.3g}"
        )
        yield run.find("solved", "held_out" if held_out else "score", saw)
    if len(run.steps()) < TREND_STEPS:
        yield run.find("short-run", "score", f"{len(run.steps())} steps: trends were not judged")
    for remark in run.remarks:
        if "line" in remark:
            yield run.find("partial-log", "score", remark)


# (check, one of these series is needed)
CHECKS = [
    (check_held_out, ()),
    (check_finite, ()),
    (check_ratio, ("ratio_max", "clip_frac")),
    (
        check_mismatch,
        ("gap_mean", "gap_max", "mismatch_kl", "weight_mean", "weight_ess", "weight_std", "probs_correlation"),
    ),
    (check_stale_sampler, ("mismatch_kl", "gap_mean", "gap_max")),
    (check_group, ()),
    (check_temperature, ()),
    (check_constant, ("score_std", "score_max")),
    (check_signal, ("zero_std", "advantage_max")),  # above what follows from it
    (check_rate, ("score",)),
    (check_length, ("length", "truncated")),
    (check_tools, ()),
    (check_turns, ()),
    (check_repetition, ()),
    (check_entropy, ("entropy",)),
    (check_kl, ("kl",)),
    (check_critic, ("explained_variance",)),
    (check_gradients, ("grad_norm",)),
    (check_movement, ("kl", "kl_step", "entropy")),
    (check_hacking, ("held_out", "score")),
    (check_format, ("score",)),
    (check_memory, ("gpu_memory", "memory")),
    (check_remarks, ()),
]


def diagnose(run: LoggedRun) -> tuple[list[Finding], list[str]]:
    """Findings of a run, findings before notes, and the names of the checks for which the log has no figures."""
    found, left_out = [], []
    for check, needs in CHECKS:
        if needs and not any(run.series.get(name) for name in needs):
            left_out.append(check.__name__.removeprefix("check_"))
        else:
            found += check(run)
    lost = collapse(run)  # after which scores are equal

    def rank(finding: Finding) -> tuple[bool, bool]:
        return finding.severity == "note", bool(lost) and finding.id == "no-signal"

    return sorted(found, key=rank), left_out
