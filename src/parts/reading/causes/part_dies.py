"""One part or turn dies while the whole rises."""

import statistics

from parts.reading.cause import CERTAIN, LIKELY, Cause, Evidence, fact, shown
from parts.reading.logged_run import LoggedRun, first_part
from parts.reading.trends import ends, onset, trend


def dying_turn(run: LoggedRun) -> Evidence | None:
    """Rewards of a later turn that were paid early and are not any more, in logged conversations."""
    rows = [
        (row.get("step", 0), row["turn_rewards"]) for row in run.samples if isinstance(row.get("turn_rewards"), list)
    ]
    steps = sorted({step for step, _ in rows})
    for turn in range(1, 4) if len(steps) > 1 else []:
        halves = [
            [
                x[turn]
                for step, x in rows
                if (step > steps[len(steps) // 2 - 1]) is late and len(x) > turn and x[turn] is not None
            ]
            for late in (False, True)
        ]
        if (
            len(halves[0]) >= 6
            and len(halves[1]) >= 6
            and statistics.fmean(halves[1]) < 0.2 * statistics.fmean(halves[0])
        ):
            means = [statistics.fmean(half) for half in halves]
            text = f"turn {turn + 1} paid {means[0]:.3g} in the first half and {means[1]:.3g} in the second"
            return Evidence(LIKELY + 0.2, [shown([], text)], since=steps[len(steps) // 2])
    return None


def find_part_dies(run: LoggedRun) -> Evidence | None:
    """A part that was paid falls to a fifth of it and stays there, while the score does not fall."""
    if run.trend("score") < 0:
        return None
    for name, values in run.parts().items():
        if len(values) < 6 or name == first_part(run)[0] or run.trend(f"part:{first_part(run)[0]}") < 0:
            continue
        first, last = ends(values)
        if first > 0.05 and last < 0.2 * first and trend(values) <= 0 and max(values[-3:]) < 0.5 * first:
            step = onset(run.series[f"part:{name}"])
            text = f"{name} went from {first:.3g} to {last:.3g}"
            text += f" while the score went from {run.first('score'):.3g} to {run.last('score'):.3g}"
            return Evidence(CERTAIN + 0.05, [fact(run, f"part:{name}", text, step)], since=step)
    return dying_turn(run)


PART_DIES = Cause(
    "part_dies",
    "one part of the reward, or one turn, dies while the whole rises",
    find_part_dies,
    "length_fell length_rose entropy_fell held_out_flat entropy_rose part_bought updates_too_large kl_high",
    "a weight that makes the part worth keeping, or for turns a baseline of their own (--turn_baseline turn)",
    "",
    "each part's own curve; references/environments.md, second attempts",
    breaks=True,
)
