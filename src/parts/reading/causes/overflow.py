"""Overflow: a loss, gradient or KL that is not finite, or updates left out for that."""

from parts.reading.cause import CERTAIN, LOST, STILL, Cause, Evidence, Fact
from parts.reading.logged_run import LoggedRun
from parts.reading.metric_names import NAMES

WATCHED = ("loss", "grad_norm", "kl", "entropy", "value_loss", "score")


def find_overflow(run: LoggedRun) -> Evidence | None:
    """The first value that is not finite; skipped updates, in fp16 only where a fifth of the steps has them."""
    names = {key for dialect in NAMES.values() for key, name in dialect.items() if name in WATCHED}
    bad = [entry for entry in run.broken if entry[0].removeprefix("train/") in names]
    if bad:
        metric, step, value = bad[0]
        return Evidence(
            0.99, [Fact(f"{metric} is {value} at step {step}, {len(bad)} such values in all", metric, step)], step
        )
    large = next((step for step, value in sorted(run.series.get("score", {}).items()) if abs(value) > 1e15), None)
    if large is not None:
        text = f"{run.name('score')} is {run.series['score'][large]:.3g}; squares of such scores overflow in float32"
        return Evidence(CERTAIN + 0.08, [Fact(text, run.name("score"), large)], large)
    skipped = run.series.get("skipped", {})
    steps = [step for step, value in sorted(skipped.items()) if value]
    allowed = 0.2 if run.settings.get("fp16") else 0.01  # fp16's loss scale settles that way
    if steps and len(steps) > allowed * len(skipped):
        text = f"{len(steps)} steps left updates out because a gradient was not finite, first step {steps[0]}"
        return Evidence(CERTAIN + 0.07, [Fact(text, run.name("skipped"), steps[0])], steps[0])
    return None


OVERFLOW = Cause(
    "overflow",
    "numbers overflow: an update too large, a log-prob of -inf, or fp16",
    find_overflow,
    f"{STILL} {LOST} nothing_moves updates_too_large constant_reward critic_useless too_hard",
    "{precision}; keep {grad_clip} at 1; lower {lr}; go on from a checkpoint before this step",
    "",
    "definition; unsloth#3006, verl#2505",
    breaks=True,
)
