"""Faulty updates: too large, without effect, held back by the KL, or led by a useless critic."""

import itertools
import math
import statistics

from parts.evaluating.paired_tests import share_gain
from parts.reading.causes.cause import CERTAIN, FLAT, LIKELY, LOST, STILL, Evidence, cause
from parts.reading.logged_run import TREND_STEPS, Fact, LoggedRun, ends, noise, trend

LARGE = (("kl_step", 0.1, "KL of one step's update"), ("clip_frac", 0.3, "clipped share of tokens"))
FAR = 1.0  # KL to the reference, nats per token, beyond which a lost score is blamed on the updates
SLOW = 20  # steps in which a usual learning rate moves the policy by more than 1e-4 nats per token
HEAVY = 0.3  # KL weight, for scores of about 1, that is suspicious; 0 to 0.1 is usual
CRITIC_STEPS = 5  # first steps, always counted as the critic's warm-up, as its value head starts at 0


def large_steps(run: LoggedRun) -> list[Fact]:
    """Facts on updates: too large in three steps and a tenth of the run, far too large in one, or a lasting KL jump."""
    facts, kl, highest = [], run.points("kl"), -math.inf
    for name, limit, words in LARGE:
        points = run.points(name)
        high = [step for step, value in points if abs(value) > limit]
        most = max((value for _, value in points), key=abs, default=0.0)
        if name == "clip_frac" and 0 < max(map(abs, run.values("kl_step")), default=0.0) < 0.01:
            continue  # the clip range is narrow, as GSPO's
        if (len(high) >= 3 and len(high) >= 0.1 * len(points)) or (high and abs(most) > 10 * limit):
            text = f"{words} above {limit} in {len(high)} of {len(points)} steps, up to {most:.3g}"
            facts.append(run.fact(name, text, high[0]))
    for i, ((_, before), (step, after)) in enumerate(itertools.pairwise(kl if kl and abs(kl[0][1]) < 0.05 else [])):
        highest = max(highest, before)
        stays = min(value for _, value in kl[i + 1 : i + 5]) > 0.5  # else it is noise
        if stays and after - before > 0.5 and after > 2 * highest:
            text = f"KL to the reference went from {before:.3g} to {after:.3g} nats a token in one step"
            return [*facts, run.fact("kl", text, step)]
    return facts


def lost_at_once(run: LoggedRun) -> bool:
    """Whether the first updates destroyed nearly all of the training score, beyond chance or held out as well."""
    scores, held_out, gain = run.values("score"), run.values("held_out"), run.held_out_gain()
    if len(scores) < 2 or min(scores) < 0 or max(scores[1:]) > 0.02 * scores[0]:
        return False
    if gain is not None and gain[2] < 0 and held_out[-1] <= 0.02 * held_out[0]:
        return True
    size = int(run.number("group_size") or 1)  # the completions of a group count as one draw
    draws = [max(1, run.batch(count) // size) for count in (1, len(scores) - 1)]
    lost = share_gain((min(1.0, scores[0]), draws[0]), (0.0, draws[1]))
    later = [value for step, value in run.series.get("held_out", {}).items() if step > min(run.series["score"])]
    return lost[2] < 0 and max(later, default=0.0) <= 0.1 * scores[0]


@cause(
    explains=f"{FLAT} {LOST} part_dies limit_too_short sampler_mismatch stale_weights",
    change="lower {lr} by 3 to 10 times, or fewer updates a rollout ({epochs}); continue from an earlier checkpoint",
    source="Spinning Up's PPO stops at KL 0.015; limits 0.1 and 0.5 nats, 0.3 of tokens: our heuristic",
    breaks=True,
)
def updates_too_large(run: LoggedRun) -> Evidence | None:
    """Updates are too large: the policy leaves the region that its samples cover."""
    facts, lost, at_once, points = large_steps(run), run.collapse(), lost_at_once(run), run.points("score")
    if run.learns() and not lost and not at_once:
        return None
    if facts and run.values("lr"):
        facts.append(run.fact("lr", f"the learning rate is {max(run.values('lr')):.3g}"))
    if not lost and not at_once:
        return Evidence(CERTAIN + 0.04 if len(facts) > 2 else LIKELY + 0.2, facts) if facts else None
    begin, end, step = lost or (points[0][1], points[-1][1], points[1][0])
    if facts:
        return Evidence(CERTAIN + 0.04, facts, min(step, *(f.step for f in facts if f.step is not None)))
    text = f"the score fell from {begin:.3g} to {end:.3g}; half of it was lost by step {step}"
    facts, kl = [run.fact("score", text, step)], run.ends("kl")[1]
    if kl > FAR:
        facts.append(run.fact("kl", f"KL to the reference ends at {kl:.3g} nats a token"))
    return Evidence(CERTAIN + 0.01 if at_once or kl > FAR else LIKELY + 0.1, facts, step)


def is_warming_up(run: LoggedRun) -> bool:
    """Whether the learning rate still rises at the log's end, so that the policy need not move yet."""
    return all(after > before for before, after in itertools.pairwise(run.values("lr") or [1, 0]))


def rate_fact(run: LoggedRun) -> Fact | None:
    """A fact if the rate is 0 or far too low, the warm-up as long as the run, or gradients are clipped to nothing."""
    rates, steps, warmup = run.values("lr"), run.number("steps") or 0, run.number("warmup") or 0
    highest_logged, clip = max(rates, default=math.inf), run.number("grad_clip") or 1
    highest = min(run.number("lr") or math.inf, math.inf if is_warming_up(run) else highest_logged)
    rounded = "bf" in str(run.settings.get("precision", "")) and not run.config.get("bf16")
    off = [step for step, rate in run.points("lr") if rate == 0]
    if len(rates) >= 2 and len(off) >= min(len(rates), len(rates) // 2 + 2):
        return run.fact("lr", f"the learning rate is 0 at {len(off)} of {len(rates)} steps", off[0])
    if warmup > 1 and warmup >= max(steps, *run.steps(), 1) and steps > 0:
        return Fact(f"the warm-up takes {warmup:g} steps, the run {steps:g}", "warmup")
    if len(rates) >= 5 and is_warming_up(run):
        *_, before, last = run.steps()
        if last + (last - before) > steps > 0:
            return run.fact("lr", f"the learning rate still rises at the log's last step; it is {rates[-1]:.3g} there")
    if 0 < clip < 1e-6:
        return Fact(f"gradients are clipped to {clip:g}", "max_grad_norm")
    if highest < 2e-8:
        return run.fact("lr", f"the highest learning rate is {highest:.3g}")
    if rounded and run.trainer != "ppo_train" and highest <= 5e-6:
        return Fact(f"weights are kept in bfloat16 and the learning rate is {highest:.3g}", "dtype")
    return None


def still_figures(run: LoggedRun, critic: float) -> list[Fact]:
    """Facts on metrics which show that the policy has not moved although scores differ."""
    start = math.inf if is_warming_up(run) else critic + max(run.number("warmup") or 0, 0)
    kl, entropy = ([value for step, value in run.points(name) if step > start] for name in ("kl", "entropy"))
    alike, spread, scores = run.series.get("zero_std", {}), run.series.get("score_std", {}), run.values("score")
    varied = max(scores, default=0.0) - min(scores, default=0.0)
    # a log entry over several steps has the last one's norm, so most of its groups must differ
    differ = {step for step in run.steps() if alike.get(step, float(spread.get(step, varied) <= 1e-6)) < 0.7}
    norms = [value for step, value in run.points("grad_norm") if step > critic and step in differ]
    first, last = ends(entropy) if len(entropy) >= SLOW else (0.0, math.inf)
    checks = (
        ("kl", len(kl) >= 3 and max(map(abs, kl[1:])) < (1e-4 if len(kl) >= SLOW else 1e-7), "stays at 0"),
        ("grad_norm", len(norms) >= 2 and max(norms) < 1e-9, "is 0 although scores differ"),
        ("entropy", not kl and abs(last - first) < 0.01 * abs(first), f"stays at {last:.3g}"),
    )
    facts = [run.fact(name, f"{run.name(name)} {words}") for name, holds, words in checks if holds]
    if {fact.figure for fact in facts} == {run.name("entropy")} and max(entropy) - min(entropy) > 1e-5 * abs(first):
        return []  # the entropy varies; its ends are alike by chance
    return facts


@cause(
    explains=f"{STILL} critic_useless kl_holds_policy too_sparse part_bought",
    change="raise {lr} (LoRA: about ten times that of full training); a short warm-up; trainable float32 weights",
    source="definition; TRL lora_without_regret.md; a bf16 weight swallows updates below 1/256 of it",
    decide_with="python scripts/diagnose.py RUN --settings FILE",
)
def nothing_moves(run: LoggedRun) -> Evidence | None:
    """Nothing moves: scores differ, and the policy stays where it began."""
    critic, held_out, facts = run.number("critic_warmup") or 0, run.values("held_out"), []
    rises = any(trend(values) > 0 for values in (run.values("score"), *run.parts().values()))
    if max(run.steps(), default=0) <= critic or run.is_constant() or rises:
        return None  # or only the critic was trained yet
    rate, still = rate_fact(run), still_figures(run, critic)
    same = len(held_out) >= 3 and max(held_out) == min(held_out) and 0.02 < held_out[0] < 0.98
    if same:
        text = f"the held-out figure is {held_out[0]:.4g} at all {len(held_out)} evaluations"
        facts = [run.fact("held_out", text)]
    facts = [*([rate] if rate else []), *still, *facts]
    unsure = rate is not None and rate.figure == "dtype"  # rounding need not stop all weights
    decisive = any(fact.figure == run.name("grad_norm") for fact in still) or len(still) > 1
    if decisive or (rate and not unsure) or (same and (still or unsure)):
        return Evidence(CERTAIN + 0.03, facts)
    return Evidence(LIKELY + (0.25 if same or run.series.get("kl") else 0.0), facts) if facts else None


def weight_of_kl(run: LoggedRun) -> float:
    """The KL's weight by the settings, by the log, or by the loss's slope where it goes with the KL; else 0."""
    if (given := run.number("kl")) is not None:
        return given
    if run.values("kl_weight") or run.correlation("kl", "loss") <= 0.9:
        return max(run.values("kl_weight"), default=0.0)
    kl, loss = run.series["kl"], run.series["loss"]
    steps = [*(kl.keys() & loss.keys())]
    return statistics.linear_regression(*([series[step] for step in steps] for series in (kl, loss))).slope


@cause(
    explains="flat_score held_out_flat entropy_rose score_fell clipped "
    "nothing_moves critic_useless updates_too_large too_sparse",
    change="lower {kl} to 0.01 or 0",
    source="under a KL of weight b the optimum is the start's policy times exp(reward / b); 0.3: our heuristic",
)
def kl_holds_policy(run: LoggedRun) -> Evidence | None:
    """The KL term holds the policy where it began: moving costs more than the reward pays."""
    weight, late = weight_of_kl(run), run.ends("kl")[1]
    spreads = sorted(spread for spread in run.values("score_std") or [1.0] if spread > 1e-6) or [0.0]
    scale = max(spreads[9 * (len(spreads) - 1) // 10], 0.05)  # of steps whose groups are not alike; no single one
    light = run.config.get("teacher") or weight < HEAVY * min(1.0, 2 * scale)  # in a distillation the KL is the goal
    if light or late > 0.3 or run.is_constant() or run.learns():
        return None
    text = f"the KL's weight is {weight:.3g}, scores differ by {scale:.2g}"
    return Evidence(CERTAIN + 0.02 if weight >= 1 else LIKELY + 0.2, [run.fact("kl", text)])


@cause(
    explains=f"flat_score {LOST} updates_too_large nothing_moves part_bought overflow",
    change="a warm-up, more updates and another rate for the critic, no value clip; or a method without a critic",
    source="definition of explained variance; limit 0.03: our heuristic",
)
def critic_useless(run: LoggedRun) -> Evidence | None:
    """The critic predicts returns no better than a constant, so advantages are as noisy as without it."""
    variances = run.series.get("explained_variance", {})
    warmup = max(CRITIC_STEPS, int(run.number("critic_warmup") or 0))
    steps = [step for step in sorted(variances) if step > warmup]
    rate, lr = run.number("critic_lr"), run.number("lr") or max(run.values("lr"), default=0.0)
    facts, losses = [], run.early("value_loss", 20)
    if variances and rate and (rate < 1e-3 * lr or rate > 0.05):
        facts.append(Fact(f"the critic's learning rate is {rate:g}, the policy's {lr:g}", "critic_lr"))
    # a critic that predicts 0 has about the scores' mean square as its loss
    square = max(map(abs, [*run.values("score"), *run.values("score_std")]), default=math.inf) ** 2
    if len(losses) >= 3 and sorted(losses)[-3] > 30 * square:
        text = f"the value loss reaches {max(losses):.3g} in its first steps; scores are below "
        facts.append(run.fact("value_loss", f"{text}{math.sqrt(square):.3g}"))
    if facts:
        return Evidence(CERTAIN + 0.08, facts)
    if len(steps) < CRITIC_STEPS or run.is_constant():
        return None
    if max(abs(variances[step]) for step in steps) < 1e-5:
        text = f"explained variance is 0 at all steps from {steps[0]} on: the critic does not learn"
        return Evidence(CERTAIN + 0.03, [run.fact("explained_variance", text)])
    first, last = run.ends("score_std")
    alike = last < 0.25 * first or last < 0.05 * abs(run.ends("score")[1])  # nothing is left to explain
    if len(variances) < TREND_STEPS or alike or run.is_solved():
        return None
    steps = steps[-max(CRITIC_STEPS, len(steps) // 2) :]
    values = [variances[step] for step in steps]
    middle, error = statistics.median(values), 1.25 * noise(values) / math.sqrt(len(values))
    # near 0 is no fault in a run that learns: a short run ends before its critic is useful
    learns = middle > -0.1 and (run.gained() or run.trend("score") > 0)
    better = run.ends("explained_variance")[1] > -0.1 or len(variances) < 5 * TREND_STEPS
    better = better and run.trend("explained_variance") > 0
    if learns or better or middle + 2 * error > 0.03:
        return None
    text = f"explained variance {middle:.3g}, median of steps {steps[0]}-{steps[-1]}"
    sure = middle + 2 * error < 0  # near 0, the reward may be noise that no critic could predict
    return Evidence(CERTAIN if sure else LIKELY + 0.2, [run.fact("explained_variance", text, steps[-1])])


UPDATE_CAUSES = (updates_too_large, nothing_moves, kl_holds_policy, critic_useless)
