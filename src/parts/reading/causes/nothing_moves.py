"""Nothing moves: scores differ in groups and the policy stays what it was."""

import itertools

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, Fact, fact, shown
from parts.reading.logged_run import LoggedRun, gained, is_constant
from parts.reading.trends import ends

SLOW = 20  # steps after which a usual rate has moved the policy by more than 1e-4 nats a token


def held_still(run: LoggedRun) -> int:
    """Steps at the start in which the policy is not meant to move: the critic's warm-up, then the rate's."""
    return int((run.number("critic_warmup") or 0) + max(run.number("warmup") or 0, 0))


def unchanged_texts(run: LoggedRun) -> Fact | None:
    """Held-out completions of the first and the last evaluation that are the same, all of them."""
    held_out = [t for t in run.texts if t.kind == "eval"]
    steps = sorted({t.step for t in held_out})
    if len(steps) < 2 or steps[-1] - steps[0] < 3 or steps[-1] < held_still(run) + 3:
        return None
    first, last = ({t.prompt: t for t in held_out if t.step == step} for step in (steps[0], steps[-1]))
    both = [prompt for prompt in first if prompt in last]
    same = [prompt for prompt in both if first[prompt].completion == last[prompt].completion]
    if len(both) < 4 or len(same) < len(both):
        return None
    text = f"all {len(same)} held-out completions of step {steps[-1]} are those of step {steps[0]}"
    return shown([last[prompt] for prompt in same], text)


def rate_facts(run: LoggedRun) -> list[Fact]:
    """A learning rate of 0, a warm-up as long as the run, a rate far below any in use."""
    rates, facts = run.values("lr"), []
    if len(rates) >= 2 and max(rates[: len(rates) // 2 + 2]) == 0:
        facts.append(fact(run, "lr", "the learning rate is 0 in the first half of the run", min(run.series["lr"])))
    warmup, steps = run.number("warmup"), max(run.steps(), default=0)
    if warmup and warmup > 1 and warmup >= max(steps, run.number("steps") or 0):
        facts.append(Fact(f"the warm-up takes {warmup:g} steps, the run {steps}", "warmup"))
    if not facts and len(rates) >= 10 and max(rates) < 1e-6 and all(b > a for a, b in itertools.pairwise(rates)):
        facts.append(fact(run, "lr", f"the learning rate still rises at the last step and is {rates[-1]:.3g} there"))
    clip = run.number("grad_clip")
    if clip is not None and 0 < clip < 1e-6:
        facts.append(Fact(f"gradients are clipped to {clip:g}", "max_grad_norm"))
    highest = max([*rates, *([run.number("lr")] if run.number("lr") is not None and not rates else [])], default=None)
    if not facts and highest is not None and highest < 2e-8:
        facts.append(fact(run, "lr", f"the highest learning rate is {highest:.3g}"))
    rounded = "bf" in str(run.settings.get("precision", "")) and run.trainer != "ppo_train"
    if not facts and rounded and highest is not None and highest <= 5e-6 and not run.config.get("bf16"):
        facts.append(Fact(f"weights are kept in bfloat16 and the learning rate is {highest:.3g}", "dtype"))
    return facts


def still_figures(run: LoggedRun) -> list[Fact]:
    """Figures that show that the policy is where it began, though scores differ."""
    facts, start = [], held_still(run)
    steps = len([step for step in run.steps() if step > start])
    kl, norms, moved, entropy = (
        [value for step, value in sorted(run.series.get(name, {}).items()) if step > start]
        for name in ("kl", "grad_norm", "kl_step", "entropy")
    )
    if len(kl) >= 3 and max(map(abs, kl[1:])) < (1e-4 if len(kl) >= SLOW else 1e-7):
        facts.append(fact(run, "kl", f"{run.name('kl')} stays below {max(map(abs, kl[1:])):.2g} nats a token"))
    if len(norms) >= 2 and max(norms) < 1e-9:
        facts.append(fact(run, "grad_norm", f"{run.name('grad_norm')} is {max(norms):.2g} although scores differ", 1))
    if not kl and moved and (run.settings.get("updates") or 1) > 1 and max(map(abs, moved)) < 1e-7:
        facts.append(fact(run, "kl_step", f"{run.name('kl_step')} stays below {max(map(abs, moved)):.2g}"))
    if not kl and steps >= 20 and entropy and abs(ends(entropy)[1] - ends(entropy)[0]) < 0.01 * abs(ends(entropy)[0]):
        facts.append(fact(run, "entropy", f"{run.name('entropy')} stays at {ends(entropy)[1]:.3g}"))
    return facts


def find_nothing_moves(run: LoggedRun) -> Evidence | None:
    """The rate cannot move anything, or scores differ and KL, gradient or held-out texts stand still."""
    if max(run.steps(), default=0) <= (run.number("critic_warmup") or 0):
        return None  # only the critic has been trained so far
    if is_constant(run) or (gained(run) and run.trend("score") > 0):
        return None
    rates, still, texts = rate_facts(run), still_figures(run), unchanged_texts(run)
    held_out = run.values("held_out")
    if len(held_out) >= 2 and max(held_out) - min(held_out) > 0.02:
        texts = None
    elif len(held_out) >= 3 and max(held_out) == min(held_out) and not texts and 0.02 < held_out[0] < 0.98:
        texts = fact(run, "held_out", f"the held-out figure is {held_out[0]:.4g} at all {len(held_out)} evaluations")
    facts = rates + still + ([texts] if texts else [])
    if not facts:
        return None
    decisive = any(f.figure == run.name("grad_norm") and "although" in f.text for f in still)
    rounded = rates and all(f.figure == "dtype" for f in rates)
    if (rates and not rounded) or decisive or (texts and (still or rounded)) or len(still) > 1:
        return Evidence(CERTAIN + 0.03, facts)
    return Evidence(LIKELY + (0.25 if texts or run.series.get("kl") else 0.0), facts)


NOTHING_MOVES = Cause(
    "nothing_moves",
    "nothing moves: scores differ, and the policy stays where it began",
    find_nothing_moves,
    f"{STILL} critic_useless kl_holds_policy too_sparse part_bought",
    "raise {lr} (LoRA: about ten times that of full training), a warm-up far shorter than the run, trained weights in "
    "float32, and something left to train: not all frozen, masked or filtered",
    "",
    "definition; TRL lora_without_regret.md; a bf16 weight swallows updates below 1/256 of it",
)
