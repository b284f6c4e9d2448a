"""Too sparse for the group: right answers occur, but most groups have none."""

from parts.reading.cause import CERTAIN, LIKELY, STILL, Cause, Evidence, fact
from parts.reading.causes.too_hard import pass_rate
from parts.reading.logged_run import LoggedRun, gained
from parts.reading.trends import forecast


def find_too_sparse(run: LoggedRun) -> Evidence | None:
    """A pass rate between 0 and 12 %, most groups without a right answer, as its forecast says, and no gain."""
    rate, group = pass_rate(run, steps=20), int(run.number("group_size") or 8)
    alike = run.early("zero_std", 20)
    if (
        not rate
        or not (alike or run.number("group_size"))
        or not 0.002 < rate[1] < 0.12
        or group == 1
        or (gained(run) and run.trend("score") > 0)
    ):
        return None
    expected = forecast(rate[1], group)
    share = sum(alike) / len(alike) if alike else expected
    if share < 0.6 or share < expected - 0.15:
        return None
    enough = next((2**i for i in range(1, 10) if forecast(rate[1], 2**i) < 0.5), 512)
    text = f"pass rate {rate[1]:.2%}: {expected:.0%} of groups of {group} are all alike by forecast"
    text += f", {share:.0%} were; groups of {enough} would bring it to {forecast(rate[1], enough):.0%}"
    sure = CERTAIN if alike and run.number("group_size") else LIKELY + 0.1
    return Evidence(sure, [fact(run, "zero_std" if alike else "score", text, min(run.steps()))])


TOO_SPARSE = Cause(
    "too_sparse",
    "right answers are too rare for the group: most groups have none, so most of a batch teaches nothing",
    find_too_sparse,
    f"{STILL} no_group_variance nothing_moves too_hard critic_useless kl_holds_policy",
    "raise {group}; {filter}; prompts that the model solves now and then, or partial credit",
    "python scripts/reward_preflight.py --reward FILE.py:{reward} --data DATA --model MODEL",
    "p^G + (1 - p)^G; DAPO (Yu 2025), section 3.2",
)
