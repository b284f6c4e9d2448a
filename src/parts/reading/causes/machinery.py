"""Machinery at fault: overflow, restarts, a sampler unlike the trainer, stale weights, tools, memory."""

import bisect
import itertools
import math
import statistics

from parts.reading.causes.cause import CERTAIN, FLAT, LIKELY, LOST, STILL, Evidence, Fact, cause, fact
from parts.reading.dialects import NAMES
from parts.reading.logged_run import LoggedRun
from parts.reading.trends import ends, noise, trend

WATCHED = ("loss", "grad_norm", "kl", "entropy", "value_loss", "score")
MISMATCH = (  # series, lowest and highest value that is fine, words
    ("gap_mean", -math.inf, math.log(1.05), "mean difference of log-probs {:.3g} nats; above log 1.05 = 0.049"),
    ("mismatch_kl", -math.inf, 0.01, "KL of sampler and trainer {:.3g} nats a token; above 0.01"),
    ("weight_mean", 0.5, 2, "mean importance weight {:.3g}; outside 0.5 to 2"),
    ("weight_ess", 0.3, math.inf, "effective sample size {:.3g} of the batch; below 0.3"),
    ("weight_std", -math.inf, 1, "standard deviation of the importance weights {:.3g}; above 1"),
    ("probs_correlation", 0.9, math.inf, "correlation of the two probabilities {:.3g}; below 0.9 (our heuristic)"),
)
LEAST_GROWTH = {"mismatch_kl": 1e-3, "gap_mean": 1e-3, "gap_max": 0.05}  # least distance, in nats, that counts


@cause(
    "numbers overflow: an update too large, a log-prob of -inf, or fp16",
    explains=f"{FLAT} {LOST} updates_too_large",
    change="{precision}; keep {grad_clip} at 1; lower {lr}; continue from a checkpoint before this step",
    source="definition; unsloth#3006, verl#2505",
    breaks=True,
)
def overflow(run: LoggedRun) -> Evidence | None:
    """The first value that is not finite; skipped updates, in fp16 only where a fifth of the steps has them."""
    names = {key for dialect in NAMES.values() for key, name in dialect.items() if name in WATCHED}
    bad = [entry for entry in run.bad if entry[0].removeprefix("train/") in names]
    if bad:
        metric, step, value = bad[0]
        text = f"{metric} is {value} at step {step}, {len(bad)} such values in all"
        return Evidence(CERTAIN + 0.09, [Fact(text, metric, step)], step)
    large = next((step for step, value in run.points("score") if abs(value) > 1e15), None)
    if large is not None:
        text = f"{run.name('score')} is {run.series['score'][large]:.3g}; squares of such scores overflow in float32"
        return Evidence(CERTAIN + 0.08, [fact(run, "score", text, large)], large)
    skipped = run.points("skipped")
    steps = [step for step, value in skipped if value]
    allowed = 0.2 if run.settings.get("fp16") else 0.01  # fp16's loss scale settles that way
    if steps and len(steps) > allowed * len(skipped):
        text = f"{len(steps)} steps left updates out because a gradient was not finite, first step {steps[0]}"
        return Evidence(CERTAIN + 0.07, [fact(run, "skipped", text, steps[0])], steps[0])
    return None


def jumps_at(run: LoggedRun, series: dict[str, list], step: int, least: float) -> list[Fact]:
    """Figures whose steps from a step on lie beyond those before it, and nearer to the run's start."""
    facts = []
    for name, points in series.items():
        place = bisect.bisect_left(points, (step, -math.inf))
        before, after = (
            [value for _, value in part] for part in (points[max(0, place - 6) : place], points[place:][:3])
        )
        if len(before) < 4 or len(after) < 2:
            continue
        a, b, start = (statistics.median(values) for values in (before, after, [v for _, v in points[:3]]))
        scatter = max(noise(before), 0.05 * abs(a), 1e-6)
        if min(abs(b - a), abs(start - a)) > least * scatter and (b - a) / (start - a) >= 0.6:
            text = f"{run.name(name)} goes from {a:.3g} back to {b:.3g}, where the run began"
            facts.append(fact(run, name, text, step))
    return facts


def schedules_anew(run: LoggedRun) -> list[int]:
    """Steps at which the learning rate's schedule restarts."""
    rates = run.points("lr")
    pairs = ((rates[i], rates[i - 1][1], rates[i - 2][1]) for i in range(3, len(rates)))
    return [step for (step, rate), last, before in pairs if before > last and rate > 1.5 * last]


@cause(
    "the run jumps at a restart: weights, optimizer, schedule, data order or settings are not those before it",
    explains=f"{STILL} {LOST} updates_too_large part_dies critic_useless stale_weights part_bought memorised_prompts",
    change="resume from the run's own newest checkpoint with its optimizer and the same settings (--resume)",
    source="an exact resume gives the figures of an uninterrupted run; six times the scatter: our heuristic",
    breaks=True,
)
def jump_at_restart(run: LoggedRun) -> Evidence | None:
    """Figures jump where the log shows a restart; without one, two of them go back to the run's start in one step."""
    anew, series = schedules_anew(run), {name: run.points(name) for name in ("entropy", "score", "length")}
    restarts = {*anew, *run.settings.get("restarts", ())}
    for step in sorted({*restarts, *run.steps()[5:-2]}):
        facts = jumps_at(run, series, step, 1.5 if step in restarts else 6)
        if step in restarts and (facts or step in anew):  # a restarted schedule is itself a jump
            said = Fact(f"the log shows a restart at step {step}", "step", step)
            return Evidence(CERTAIN + 0.06 if facts else LIKELY + 0.1, [said, *facts], since=step)
        if step not in restarts and len(facts) > 1 and facts[0].figure == run.name("entropy"):
            return Evidence(CERTAIN + 0.06, facts, since=step)
    return None


@cause(
    "sampler and trainer give the same tokens different probabilities",
    explains=f"{LOST} sampler_gap flat_score held_out_flat critic_explains_little updates_too_large critic_useless "
    "stale_weights part_dies nothing_moves",
    change="the same {temperature}, top-p 1 and top-k off on both sides, old log-probs by the trainer's own forward "
    "pass (dropout off), weights copied after every step; {mismatch} corrects what is left",
    decide_with="python scripts/selfcheck.py scripts/ppo_train.py",
    source="NeMo-RL docs/guides/grpo.md (1.05, 0.01); verl docs/algo/rollout_corr.md; verl#2996, verl#6280",
    breaks=True,
)
def sampler_mismatch(run: LoggedRun) -> Evidence | None:
    """A distance beyond its limit in most steps, or a ratio other than 1 in a rollout's only update."""
    penalty = run.number("repetition_penalty")
    if penalty is not None and penalty != 1:
        text = f"the sampler has a repetition penalty of {penalty:g}, the trainer has none"
        return Evidence(CERTAIN + 0.04, [Fact(text, "repetition_penalty")], since=1)
    gap = 0.01 if run.settings.get("exact") else 2.0  # fp32 with one sampler: rounding; else tokens may differ much
    largest = ("gap_max", -math.inf, gap, f"largest difference of a token {{:.3g}} nats; above {gap} (our heuristic)")
    for name, low, high, text in (*MISMATCH, largest):
        points, values = run.points(name), run.values(name)
        middle = statistics.median(values) if values else low
        # where it begins within the limits, weights go stale
        if values and not low <= middle <= high and not low <= statistics.median(values[:2]) <= high:
            first = next(step for step, value in points if not low <= value <= high)
            text = f"{text.format(middle)}; median of all steps"
            return Evidence(CERTAIN + 0.03, [fact(run, name, text, first)], since=first)
    updates, constant = run.series.get("updates", {}), run.settings.get("updates")
    for name, limit in (("ratio_max", 1 + 1e-3), ("clip_frac", 1e-3)):
        for step, value in run.points(name):
            if updates.get(step, constant) == 1 and value > limit:
                text = f"{run.name(name)} is {value:.4g} at step {step}, which has one update per rollout"
                return Evidence(CERTAIN + 0.03, [fact(run, name, text, step)], since=step)
    return None


@cause(
    "the sampler keeps old weights, wholly or in part, while the trainer moves away from them",
    explains=f"{FLAT} {LOST} sampler_gap sampler_mismatch updates_too_large",
    change="copy all weights to the sampler after every step; --check_sync of our trainers names the tensors that "
    "differ",
    decide_with="--check_sync 1 for ten steps",
    source="allenai/open-instruct#1473; five times the start: our heuristic, kernels differ less",
    breaks=True,
)
def stale_weights(run: LoggedRun) -> Evidence | None:
    """Sampler and trainer agree at the first step, and their distance grows to five times that and more."""
    for name, least in LEAST_GROWTH.items():
        values = [abs(value) for value in run.values(name)]
        if len(values) < 4:
            continue
        middle, first = statistics.median(values[2:]), values[0]
        synced = 0 < first < 0.01 * least and middle > least  # one engine: they agree to rounding at the first step
        drifts = trend(values) > 0 and ends(values)[1] > max(least, 5 * ends(values)[0]) and run.trend("score") <= 0
        if synced or drifts:
            step = next(step for step, value in run.points(name) if abs(value) > least)
            text = f"{run.name(name)} grew from {first:.2g} to {max(middle, ends(values)[1]):.2g} nats a token"
            return Evidence(CERTAIN + 0.05, [fact(run, name, text, step)], since=step)
    return None


@cause(
    "the model does not use its tools: it calls none, or most calls end in an error",
    explains=f"{STILL} too_hard too_sparse nothing_moves",
    change="read the calls and errors in samples.jsonl; an instruct model that was trained on tools; {tool_form}",
    source="definition: what is never sampled gets no gradient; every second call: our heuristic",
)
def conversation_fails(run: LoggedRun) -> Evidence | None:
    """No tool call at all where there are tools, or every second call in error."""
    calls, failures = run.values("tool_calls"), run.values("tool_failures")
    # where nothing was called and nothing took a moment, nothing replied either: then there are tools
    tools = run.settings.get("tools") or not any(run.values("tool_seconds"))
    if len(calls) >= 3 and not any(calls) and tools:
        return Evidence(CERTAIN, [fact(run, "tool_calls", f"not one tool call in {len(calls)} steps")])
    if len(failures) >= 3 and run.last("tool_failures") >= 0.5 and (not calls or run.last("tool_calls") > 0):
        text = f"{run.last('tool_failures'):.0%} of the tool calls come to an error"
        return Evidence(CERTAIN, [fact(run, "tool_failures", text)])
    return None


@cause(
    "memory grows without end: something keeps what each step made",
    explains="",
    change="keep metrics as numbers (.item()), and look for lists and dicts that a reward or environment only adds to",
    source="a tenth, in six even stretches: our heuristic; what settles gains most at first",
)
def memory_grows(run: LoggedRun) -> Evidence | None:
    """Memory rises over six equal stretches after the first tenth, while completions do not get longer."""
    if any(run.trend(name) > 0 for name in ("length", "length_max", "turns")):
        return None
    for name in ("gpu_memory", "memory"):
        values = run.values(name)[len(run.values(name)) // 10 :]
        size = len(values) // 6
        middles = [statistics.median(values[i * size : (i + 1) * size]) for i in range(6)] if size >= 5 else []
        gains = [after - before for before, after in itertools.pairwise(middles)]
        # of a logarithm's growth, which settles, 0.37 lies between the first two stretches
        if gains and min(gains) > 0 and max(gains) <= sum(gains) / 3 and sum(gains) > 0.1 * middles[0]:
            text = f"{run.name(name)} rose evenly from {middles[0]:.3g} to {middles[-1]:.3g} GiB"
            return Evidence(CERTAIN, [fact(run, name, text)])
    return None


MACHINERY_CAUSES = (overflow, jump_at_restart, sampler_mismatch, stale_weights, conversation_fails, memory_grows)
