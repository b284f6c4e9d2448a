"""No variance within groups, though scores differ between prompts."""

from parts.reading.cause import CERTAIN, STILL, Cause, Evidence, fact, shown
from parts.reading.causes.too_hard import pass_rate
from parts.reading.logged_run import LoggedRun, is_constant, is_solved
from parts.reading.trends import forecast


def find_no_group_variance(run: LoggedRun) -> Evidence | None:
    """Groups score alike from the start, far more often than the pass rate forecasts, while prompts differ."""
    alike, rate, group = run.early("zero_std"), pass_rate(run), run.number("group_size")
    if group == 1 and run.settings.get("grouped"):
        return Evidence(CERTAIN, [fact(run, "score", "the group has 1 completion: nothing to compare it with", 1)])
    groups = {}
    for t in run.texts:
        if t.kind == "train" and t.score is not None:
            groups.setdefault((t.step, t.prompt), []).append(t)
    several = [group for group in groups.values() if len({t.completion for t in group}) > 2]
    spreads = [max(t.score for t in group) - min(t.score for t in group) for group in several]
    means = {round(group[0].score, 6) for group in several}
    if len(several) >= 5 and max(spreads) <= 1e-6 and len(means) > 2:
        text = f"different completions of one prompt score alike, in all {len(several)} logged groups"
        return Evidence(CERTAIN + 0.06, [shown(several[0], text)])
    equal = list(zip(run.early("advantage_max"), run.early("advantage_min"), strict=False))
    share = sum(alike) / len(alike) if alike else sum(a == b for a, b in equal) / len(equal) if equal else 0.0
    if is_constant(run) or is_solved(run) or share < 0.8 or len(alike or equal) < 3:
        return None
    if rate and 0.1 < rate[1] < 0.9:
        expected = forecast(rate[1], int(group or 8))
        if share < expected + 0.25:
            return None
        text = f"at a pass rate of {rate[1]:.2g}, where chance gives {expected:.0%}"
    elif rate or not run.series.get("score_std") or min(run.early("score_std")) <= 1e-6:
        return None
    else:
        text = f"while scores differ by {run.first('score_std'):.3g} between prompts"
    text = f"{share:.0%} of the groups score all alike {text}"
    return Evidence(CERTAIN + 0.02, [fact(run, "zero_std" if alike else "advantage_max", text, min(run.steps()))])


NO_GROUP_VARIANCE = Cause(
    "no_group_variance",
    "groups have no variance: prompts are always or never solved, or scored by what their completions share",
    find_no_group_variance,
    f"{STILL} nothing_moves critic_useless reward_ignores_answer part_bought kl_holds_policy",
    "score what differs between completions of one prompt; {filter}; {group} 8 or more",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "definition of a group's advantage; p^G + (1 - p)^G",
)
