"""Where the model stands on held-out prompts, and whether RL can take over."""

import statistics
from collections import Counter

from parts.data.pass_rates import describe_pass_rates
from programs.warm_start.samples import HELD_OUT, Sampler
from programs.warm_start.settings import Config
from programs.warm_start.workshop import Workshop, write_json

LEAST_GAIN = 0.05  # of coverage, by which a round must have widened it for the next; ours


def measured(config: Config, samples: list[dict], number: int) -> dict:
    """Figures of held-out samples after a round.

    `entropy` is minus the mean log-prob of the sampled tokens, an unbiased estimate at the sampler's temperature.
    `format` is the share with full marks from the first reward that is named …format…; None where there is none.
    """
    tried = Counter(one["row"] for one in samples)
    passed = Counter(one["row"] for one in samples if one["passed"])
    counts = [(n, passed[row]) for row, n in tried.items()]
    shape = next((name for name in samples[0]["rewards"] if "format" in name), None)
    shaped = [one["rewards"][shape] for one in samples if shape and one["rewards"][shape] is not None]
    rates = describe_pass_rates(counts, config.group_size, config.pass_low, config.pass_high)
    return (
        {"round": number}
        | rates
        | {
            "ends": statistics.fmean(one["finished"] for one in samples),
            "format": statistics.fmean(value >= 1 for value in shaped) if shaped else None,
            "entropy": -sum(one["logprob"] for one in samples) / sum(len(one["ids"]) for one in samples),
            "different": len({(one["row"], one["text"]) for one in samples}) / len(samples),
            "tokens_mean": statistics.fmean(len(one["ids"]) for one in samples),
        }
    )


def measure(shop: Workshop, number: int) -> dict:
    """Sample held-out prompts with the policy after a round, and write measure.json."""
    import numpy as np

    config, folder = shop.config, shop.round_folder(number)
    order = np.random.default_rng([config.seed, 6]).permutation(len(shop.held_out)).tolist()
    picked = sorted(order[: config.eval_prompts or None])

    # one noise for all rounds: what differs between them is the policy
    sampler = Sampler(
        shop, folder / "held_out", lambda: shop.sampler(number, config.temperature), HELD_OUT, 0, config.eval_samples
    )
    figures = measured(config, sampler.parts(shop.held_out, picked), number)
    write_json(folder / "measure.json", figures)
    return figures


def coverage(figures: dict) -> float:
    """Share of held-out prompts with a sample that passes: those that RL can reinforce."""
    return 1 - figures["prompts_by_pass_rate"]["0"] / figures["prompts"]


def widens(config: Config, measures: list[dict]) -> bool:
    """Whether a further round of samples pays though RL could begin: few prompts are solved, and more each time.

    Args:
        measures: measures of the rounds so far.
    """
    if not config.samples_solutions or len(measures) < 2 or coverage(measures[-1]) >= config.min_coverage:
        return False
    return coverage(measures[-1]) - coverage(measures[-2]) >= LEAST_GAIN


def obstacles(config: Config, figures: dict) -> dict[str, str]:
    """What keeps RL from taking over, by name: too low a pass rate, the format, a collapsed entropy."""
    wrong = {}
    if figures["pass_rate"] < config.pass_low:
        wrong["pass rate"] = f"pass rate {figures['pass_rate']:.3f}, below {config.pass_low:g}"
    for name, kind in (("ends", "completions that end"), ("format", "completions of the right format")):
        if figures[name] is not None and figures[name] < config.min_format:
            wrong[name] = f"{figures[name]:.3f} {kind}, below {config.min_format:g}"
    if figures["entropy"] < config.min_entropy:
        wrong["entropy"] = f"entropy {figures['entropy']:.4f} nats per token, below {config.min_entropy:g}"
    return wrong
