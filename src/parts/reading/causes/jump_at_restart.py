"""A jump at a restart: figures after it do not go on from those before."""

import statistics

from parts.reading.cause import CERTAIN, LIKELY, LOST, STILL, Cause, Evidence, Fact, fact
from parts.reading.logged_run import LoggedRun
from parts.reading.trends import noise


def jumps_at(run: LoggedRun, step: int, least: float) -> list[Fact]:
    """Figures whose five steps from a step on lie beyond those before it, and nearer to the run's start."""
    facts = []
    for name in ("entropy", "score", "length"):
        points = sorted(run.series.get(name, {}).items())
        before = [value for at, value in points if at < step][-6:]
        after = [value for at, value in points if at >= step][:3]
        if len(before) < 4 or len(after) < 2:
            continue
        a, b, start = (statistics.median(values) for values in (before, after, [v for _, v in points[:3]]))
        scatter = max(noise(before), 0.05 * abs(a), 1e-6)
        if abs(b - a) > least * scatter and (b - a) / (start - a or 1e-9) >= 0.6 and abs(start - a) > least * scatter:
            facts.append(
                fact(run, name, f"{run.name(name)} goes from {a:.3g} back to {b:.3g}, where the run began", step)
            )
    return facts


def restart_steps(run: LoggedRun) -> list[int]:
    """Steps at which the log itself shows a restart: they come again, the rate's schedule or the KL begins anew."""
    steps = list(run.settings.get("restarts", ()))
    rates = sorted(run.series.get("lr", {}).items())
    falling = [
        i for i in range(3, len(rates)) if rates[i - 2][1] > rates[i - 1][1] and rates[i][1] > 1.5 * rates[i - 1][1]
    ]
    kl = sorted(run.series.get("kl", {}).items())
    kl = kl if kl and abs(kl[0][1]) < 1e-6 and sum(abs(value) < 1e-6 for _, value in kl) < 4 else []
    anew = []
    for i in range(3, len(kl) - 1):
        before, after = [abs(value) for _, value in kl[max(1, i - 4) : i]], [abs(value) for _, value in kl[i : i + 4]]
        # it grows again from 0; a single 0 among values that scatter is chance
        if after[0] < 1e-6 < 1e-4 < min(before) and max(after) < 0.5 * statistics.median(before):
            anew.append(i)
    return steps + [rates[i][0] for i in falling] + [kl[i][0] for i in anew]


def find_jump_at_restart(run: LoggedRun) -> Evidence | None:
    """Figures jump where the log shows a restart; without one, two of them go back to the run's start in one step."""
    restarts = restart_steps(run)
    for step in sorted({*restarts, *run.steps()[5:-2]}):
        facts = jumps_at(run, step, 1.5 if step in restarts else 6)
        if step in restarts:
            said = Fact(f"the log shows a restart at step {step}", "step", step)
            again = step in run.settings.get("restarts", ())
            if facts or not again:  # a schedule or a KL that begins anew is a jump by itself
                return Evidence(CERTAIN + 0.06 if facts else LIKELY + 0.1, [said, *facts], since=step)
        elif len(facts) > 1 and facts[0].figure == run.name("entropy"):
            return Evidence(CERTAIN + 0.06, facts, since=step)
    return None


JUMP_AT_RESTART = Cause(
    "jump_at_restart",
    "the run jumps at a restart: weights, optimizer, schedule, data order or settings are not those before it",
    find_jump_at_restart,
    f"{STILL} {LOST} updates_too_large part_dies critic_useless stale_weights part_bought memorised_prompts",
    "resume from the run's own newest checkpoint with its optimizer and the same settings (--resume)",
    "",
    "an exact resume gives the figures of an uninterrupted run; six times the scatter: our heuristic",
    breaks=True,
)
