"""How sure a held-out mean is: an interval, and whether a single completion carries it."""

HEAVY = 1 / 3  # share of a sum in one completion above which the mean is mostly about that one
RESAMPLED = 1000


def spread_of_mean(sums, tokens, samples: int, seed: int) -> dict[str, float]:
    """The 95% interval of sum(sums) / sum(tokens), `low` and `high`, and `top`, the largest completion's share of it.

    The interval is the percentile bootstrap over prompts, whose completions stay together: it is about other prompts
    and other samples. With one prompt there is none; with fewer than 8 completions no `top`, as some share is large.

    Args:
        sums, tokens: [prompts x samples] of each completion, those of a prompt beside each other.
    """
    import numpy as np

    sums, tokens = (np.asarray(x, dtype=np.float64).reshape(-1, samples) for x in (sums, tokens))
    found, count = {}, len(sums)
    if count > 1:
        generator, per_prompt = np.random.default_rng(seed), (sums.sum(1), tokens.sum(1))
        drawn = (generator.integers(count, size=count) for _ in range(RESAMPLED))
        means = [per_prompt[0][rows].sum() / per_prompt[1][rows].sum() for rows in drawn]
        found["low"], found["high"] = np.quantile(means, [0.025, 0.975]).tolist()
    if sums.size >= 8 and sums.sum() > 0:
        found["top"] = float(sums.max() / sums.sum())
    return found
