"""Draw prompts by their running pass rate: those outside a band rarely, none dropped for good."""

from parts.foundation.messages import need
from parts.foundation.processes import np
from parts.sampling.rollouts import epoch_order

RARE = 0.1  # share of their turns at which prompts outside the band are drawn; ours


def check_band(config, group_size: int) -> None:
    """Raise UserError for bounds that are none, or that would keep all, or where no group tells a pass rate."""
    got, hint = f"got keep_between {' '.join(config.keep_between)}", "try --keep_between 0.1 0.9"
    if not config.keep_between:
        return
    try:
        low, high = map(float, config.keep_between)
    except ValueError:
        low = high = -1.0
    need(0 <= low <= high <= 1, f"{got}; expected two numbers, 0 <= LOW <= HIGH <= 1; {hint}")
    need(low > 0 or high < 1, f"{got}, which includes every pass rate; expected a narrower band; {hint}")
    need(group_size > 1, f"{got} with one completion per prompt; expected groups; try groups of 8")


def draw_in_band(config, count: int, start: int, wanted: int, rates: dict[str, float]) -> tuple[list[int], int]:
    """Draw `wanted` of `count` rows, from position `start` of an endless stream; returns (rows, next position).

    A row whose pass rate is within the band, or unknown, is drawn at each of its turns, any other at every tenth. The
    passes are those of `batch_rows`, so without rates the same rows come. `rates` has row numbers as text.
    """
    (low, high), picked, order = map(float, config.keep_between), [], None
    while len(picked) < wanted:
        epoch, index = divmod(start, count)
        if order is None or index == 0:
            order = epoch_order(config, epoch, count)
            rare = np.random.default_rng([config.seed, 7, epoch]).random(count) < RARE
        row, start = order[index], start + 1
        if rare[index] or low <= rates.get(str(row), low) <= high:
            picked.append(row)
    return picked, start


def passes_fully(rewards: dict[str, float | None]) -> bool | None:
    """Whether a completion has full marks, 1 or more, from the first reward; None where that does not apply."""
    first = next(iter(rewards.values()), None)
    return None if first is None else first >= 1.0


def next_rates(rates: dict[str, float], seen: list[tuple[int, bool | None]]) -> dict[str, float]:
    """Running pass rates after a step: half of a row's rate so far, half of what its completions show now.

    Args:
        seen: (row number, whether it passes) of every completion of the step.

    >>> next_rates({"3": 0.5}, [(3, True), (3, True), (8, False), (8, True), (9, None)])
    {'3': 0.75, '8': 0.5}
    """
    by_row: dict[str, list[bool]] = {}
    for row, passed in seen:
        if passed is not None:
            by_row.setdefault(str(row), []).append(passed)
    shares = {row: sum(passed) / len(passed) for row, passed in by_row.items()}
    return rates | {row: (rates.get(row, share) + share) / 2 for row, share in shares.items()}


def band_metrics(config, rates: dict[str, float], count: int) -> dict[str, float]:
    """Shares of all prompts: sampled so far, and with a running pass rate below, within and above the band."""
    low, high = map(float, config.keep_between)
    below, above = (sum(outside(rate) for rate in rates.values()) for outside in (low.__gt__, high.__lt__))
    return {
        "prompts/seen_frac": len(rates) / count,
        "prompts/below_frac": below / count,
        "prompts/within_frac": (len(rates) - below - above) / count,
        "prompts/above_frac": above / count,
    }
