"""Machinery at fault: overflow, restarts, a sampler unlike the trainer, stale weights, tools, memory."""

import bisect
import math
import statistics

from parts.reading.causes.cause import CERTAIN, FLAT, LIKELY, LOST, STILL, Evidence, cause
from parts.reading.dialects import NAMES
from parts.reading.log_reading import common_name
from parts.reading.logged_run import Fact, LoggedRun, ends, noise, trend

WATCHED = ("loss", "grad_norm", "kl", "entropy", "value_loss", "score")
MISMATCH = (  # series, lowest and highest value that is fine, words
    ("gap_mean", -math.inf, math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
    ("weight_mean", 0.5, 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
    ("probs_correlation", 0.9, math.inf, "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)"),
)
LEAST_GROWTH = {"mismatch_kl": 1e-3, "gap_mean": 1e-3, "gap_max": 0.05}  # smaller distances, in nats, are ignored


@cause(
    explains=f"{FLAT} {LOST} updates_too_large",
    change="compute in bf16 on float32 weights; clip gradients to 1; lower {lr}; continue from an earlier checkpoint",
    source="definition; unsloth#3006, verl#2505",
    breaks=True,
)
def overflow(run: LoggedRun) -> Evidence | None:
    """Numbers overflow: an update too large, a log-prob of -inf, or fp16."""
    bad = [entry for entry in run.bad if any(common_name(entry[0], dialect) in WATCHED for dialect in NAMES)]
    if run.dialect == "trl" and len(bad) <= max(5, 0.05 * len(run.steps())):  # as fp16's loss scale settles
        bad = bad if any(common_name(key, "trl") != "grad_norm" for key, *_ in bad) else []
    skipped = [step for step, value in run.points("skipped") if value]
    allowed = 0.2 if run.settings.get("precision") == "fp16" else 0.01
    if bad:
        metric, step, value = bad[0]
        text = f"{metric} is {value} at step {step}, {len(bad)} such values in all"
        return Evidence(CERTAIN + 0.09, [Fact(text, metric, step)], step)
    if len(skipped) > allowed * len(run.values("skipped")):
        text = f"{len(skipped)} steps left updates out because a gradient was not finite, first step {skipped[0]}"
        return Evidence(CERTAIN + 0.07, [run.fact("skipped", text, skipped[0])], skipped[0])
    return None


def jumps_at(run: LoggedRun, series: dict[str, tuple[list, float]], step: int, least: float) -> list[Fact]:
    """Facts on figures that at one step go back towards where the run began, by over `least` times their noise."""
    facts = []
    for name, (points, usual) in series.items():
        place = bisect.bisect_left(points, (step, -math.inf))
        parts = (points[max(0, place - 6) : place], points[place : place + 3], points[:3])
        before, after, begin = ([value for _, value in part] for part in parts)
        if len(before) < 4 or len(after) < 2:
            continue
        a, b, start = map(statistics.median, (before, after, begin))
        scatter = max(noise(before), usual, 0.02 * abs(a), 1e-6)
        way = math.copysign(1, start - a)
        back = min(way * (b - a), way * (after[0] - before[-1]))  # at this very step, and it stays there
        if min(abs(b - a), abs(start - a)) > least * scatter and back >= 0.6 * abs(start - a):
            text = f"{run.name(name)} goes from {a:.3g} back to {b:.3g}, where the run began"
            facts.append(run.fact(name, text, step))
    return facts


def rescaled_score(run: LoggedRun) -> Fact | None:
    """A fact if a steady score, and its spread if logged, triples between two steps and stays above 1: no mere gain."""
    values, spreads = run.values("score"), run.values("score_std")
    for i in range(5, len(values) - 4):
        before, after = values[i - 5 : i], values[i : i + 5]
        if 3 * max(before) < min(after) and max(before) <= 1 < min(after) and max(before) < 2 * min(before):
            both = [values, spreads if len(spreads) == len(values) else values]
            scale, wider = (statistics.median(x[i : i + 5]) / (statistics.median(x[i - 5 : i]) or 1e-9) for x in both)
            if 0.7 < wider / scale < 1.4:
                text = f"the score is {scale:.3g} times as large from one step on"
                return run.fact("score", text, run.points("score")[i][0])
    return None


@cause(
    explains=f"{STILL} {LOST} updates_too_large part_dies critic_useless stale_weights part_bought memorised_prompts",
    change="resume from the run's newest checkpoint with its optimizer and settings (--resume); keep the reward's unit",
    source="an exact resume gives the figures of an uninterrupted run; limits: our heuristic",
    breaks=True,
)
def jump_at_restart(run: LoggedRun) -> Evidence | None:
    """The run jumps: a restart changes weights, optimizer, schedule, data or settings, or the reward's unit changes."""
    if fact := rescaled_score(run):
        return Evidence(CERTAIN + 0.06, [fact], since=fact.step)
    rates, named = run.points("lr")[1:], [x for x in ("entropy", "score", "length") if len(run.series.get(x, {})) > 5]
    series = {name: (run.points(name), noise(run.values(name))) for name in named}
    trios = zip(rates, rates[1:], rates[2:], strict=False)  # a rate that rises again after a fall shows a new schedule
    anew = {step for (_, before), (_, last), (step, rate) in trios if before > last and rate > 1.5 * last}
    kl = run.points("kl")
    first = max(2 * abs(kl[0][1]), 1e-6) if kl else 0.0  # the KL of the starting weights, up to rounding
    past = [(step, value, [before for _, before in kl[i - 5 : i]]) for i, (step, value) in enumerate(kl) if i >= 5]
    started = {step for step, value, before in past if abs(value) <= first and statistics.median(before) > 100 * first}
    restarts = {*anew, *started, *run.settings.get("restarts", ())}
    for step in sorted({*restarts, *run.steps()[5:-2]}):
        facts = jumps_at(run, series, step, 1.2 if step in restarts else 2)
        if step in restarts and (facts or (step in anew and not run.learns())):  # a new schedule is itself a jump
            shows = "KL to the start is 0 again" if step in started else "log shows a restart"
            restart = Fact(f"the {shows} at step {step}", "kl" if step in started else "step", step)
            return Evidence(CERTAIN + 0.06 if facts else LIKELY + 0.1, [restart, *facts], since=step)
        # without a known restart, entropy and another series must jump back at once
        if step not in restarts and len(facts) > 1 and facts[0].figure == run.name("entropy"):
            return Evidence(CERTAIN + 0.06, facts, since=step)
    return None


@cause(
    explains=f"{LOST} flat_score held_out_flat updates_too_large critic_useless stale_weights part_dies nothing_moves",
    change="the same {temperature}, top-p 1, top-k off, no penalty on both sides; importance weights for what is left",
    source="NeMo-RL docs/guides/grpo.md; verl docs/algo/rollout_corr.md; verl#2996, verl#6280",
    decide_with="python scripts/selfcheck.py scripts/ppo_train.py",
    breaks=True,
)
def sampler_mismatch(run: LoggedRun) -> Evidence | None:
    """Sampler and trainer give the same tokens different probabilities."""
    penalty = run.number("repetition_penalty")
    if penalty is not None and penalty != 1:
        text = f"the sampler has a repetition penalty of {penalty:g}, the trainer has none"
        return Evidence(LIKELY + 0.34 * (abs(penalty - 1) >= 0.2), [Fact(text, "repetition_penalty")], since=1)
    # exact (fp32, our sampler): the two differ by rounding alone; else single tokens may differ much
    gap, kl = (0.01, 1e-6) if run.settings.get("exact") else (2.0, 0.01)
    largest = ("gap_max", -math.inf, gap, f"largest difference of a token {{:.3g}} nats; above {gap} (our heuristic)")
    apart = ("mismatch_kl", -math.inf, kl, f"KL of sampler and trainer {{:.3g}} nats a token; above {kl:g}")
    sure = LIKELY + 0.2 if run.learns() else CERTAIN + 0.03
    # single tokens differ much in bf16, so the mean decides if it is logged
    for name, low, high, words in (*MISMATCH, apart, *([] if run.values("gap_mean") else [largest])):
        points, values = run.points(name), run.values(name) or [low]
        # if it begins within the limits, `stale_weights` is the cause
        if not any(low <= statistics.median(part) <= high for part in (values, values[:2])):
            first = next(step for step, value in points if not low <= value <= high)
            text = f"{words.format(statistics.median(values))}; median of all steps"
            return Evidence(sure, [run.fact(name, text, first)], since=first)
    updates, constant = run.series.get("updates", {}), run.settings.get("updates")
    for name, least, clear in (("ratio_max", 1 + 1e-3, 1.2), ("clip_frac", 1e-3, 0.02)):
        points = [(step, value) for step, value in run.points(name) if updates.get(step, constant) == 1]
        usual = points and statistics.median(value for _, value in points) > least
        high = [point for point in points if point[1] > (least if usual else clear)]
        if usual or len(high) >= 3:  # single steps may be bf16's rounding
            step, value = high[0]
            text = f"{run.name(name)} is {value:.4g} at step {step}, which has one update per rollout"
            return Evidence(sure, [run.fact(name, text, step)], since=step)
    return None


@cause(
    explains=f"{FLAT} {LOST} sampler_mismatch updates_too_large",
    change="copy all weights to the sampler after every step; --check_sync names the tensors that differ",
    source="allenai/open-instruct#1473; five times the start: our heuristic",
    breaks=True,
)
def stale_weights(run: LoggedRun) -> Evidence | None:
    """The sampler keeps old weights, wholly or in part, while the trainer moves away from them."""
    for name, least in LEAST_GROWTH.items():
        values = [abs(value) for value in run.values(name)]
        if len(values) < 4:
            continue
        middle, first, (early, late) = statistics.median(values[2:]), values[0], ends(values)
        synced = 0 < first < 0.01 * least and middle > least  # with one engine the first step agrees up to rounding
        if synced or (trend(values) > 0 and late > max(least, 5 * early) and run.trend("score") <= 0):
            step = next(step for step, value in run.points(name) if abs(value) > least)
            text = f"{run.name(name)} grew from {first:.2g} to {max(middle, late):.2g} nats a token"
            return Evidence(CERTAIN + 0.05, [run.fact(name, text, step)], since=step)
    return None


@cause(
    explains=f"{STILL} too_hard too_sparse nothing_moves",
    change="read the calls in samples.jsonl; check the form of calls; use an instruct model that was trained on tools",
    source="definition: what is never sampled gets no gradient; every second call: our heuristic",
)
def conversation_fails(run: LoggedRun) -> Evidence | None:
    """The model does not use its tools: it calls none, or most calls end in an error."""
    calls, failures, late = run.values("tool_calls"), run.values("tool_failures"), run.ends("tool_failures")[1]
    # no time spent in tools or replies means that the environment has no reply, so it must have tools
    tools = run.settings.get("tools") or not any(run.values("tool_seconds"))
    if len(calls) >= 3 and not any(calls) and tools:
        return Evidence(CERTAIN, [run.fact("tool_calls", f"not one tool call in {len(calls)} steps")])
    if len(failures) >= 3 and late >= 0.5 and (not calls or run.ends("tool_calls")[1] > 0):
        return Evidence(CERTAIN, [run.fact("tool_failures", f"{late:.0%} of the tool calls end in an error")])
    return None


MACHINERY_CAUSES = (overflow, jump_at_restart, sampler_mismatch, stale_weights, conversation_fails)
