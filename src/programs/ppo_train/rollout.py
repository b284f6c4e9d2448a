"""The batch of a step, with dynamic sampling."""

import math
from collections.abc import Callable

from parts.data.pass_band import draw_rows
from parts.learning.shaping import all_equal, shaped_score
from parts.networks.models import Models
from parts.rewards.rewards import Reward
from parts.sampling.rollouts import collect
from programs.ppo_train.settings import Config

MEMORY = 0.9  # of the share of groups that were kept: what a step counts beside the next one


def groups_to_sample(config: Config, missing: int, lately: list[float]) -> int:
    """Groups of which `missing` are likely to differ, at most `max_oversampling` times as many.

    With n groups that are kept at rate p, n p - sqrt(n p (1 - p)) = missing: enough in about five rounds of six.

    Args:
        lately: `kept_lately`.
    """
    kept, sampled = lately
    most = int(missing * config.max_oversampling)
    if not kept:  # nothing is known, or none differed
        return most if sampled else missing
    p = kept / sampled
    spread = math.sqrt(p * (1 - p))
    root = (spread + math.sqrt(spread**2 + 4 * p * missing)) / (2 * p)
    return max(missing, min(math.ceil(root**2 - 1e-9), most))


def kept_lately(config: Config, lately: list[float], drawn: list[dict]) -> list[float]:
    """[groups that differed, groups sampled] of the steps so far, older ones counting less, after a step's samples."""
    size = config.group_size
    differ = [not all_equal(config, drawn[i : i + size]) for i in range(0, len(drawn), size)]
    return [MEMORY * old + new for old, new in zip(lately, (sum(differ), len(differ)), strict=True)]


def rollout(
    config: Config,
    models: Models,
    engine,
    reward: Reward,
    rows: list,
    step: int,
    start: int,
    timer: dict,
    sample: Callable = collect,
    lately: tuple[float, float] = (0.0, 0.0),
    rates: dict | None = None,
):
    """Sample the batch of a step, `group_size` completions of each prompt, beginning at prompt `start` of the stream.

    With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2), groups of equal score give their place to newly sampled
    ones, in at most `max_refills` further rounds; places still open then go to such groups, which train nothing.
    Groups that differ beyond the batch are not used.

    Args:
        sample: what takes the place of `collect`.
        lately: `kept_lately` of the steps before.
        rates: running pass rates of the prompts, with `keep_between`.

    Returns:
        (samples of the batch, all that were sampled, the stream's next position).
    """
    import numpy as np

    prompts, size = config.batch_size // config.group_size, config.group_size
    kept, spare, drawn = [], [], []
    for attempt in range(1 + config.dynamic_sampling * config.max_refills):
        count = groups_to_sample(config, prompts - len(kept), lately)
        picked, start = draw_rows(config, rows, start, count, rates or {})
        seed = [config.seed, 3, step] + [attempt] * (attempt > 0)
        width = config.max_new_tokens if config.rollout_engine == "hf" else 1  # one seeds vLLM
        width *= config.max_turns if config.environment else 1
        noise = np.random.default_rng(seed).random((count * size, width))
        samples = sample(config, models, engine, reward, [row for row in picked for _ in range(size)], noise, timer)
        if config.advantage == "remax":
            greedy = sample(config, models, engine, reward, picked, None, timer)
            for i, one in enumerate(samples):
                one["baseline"] = shaped_score(config, greedy[i // size])
        for i, one in enumerate(samples):
            one["number"] = picked[i // size].get("number")  # of the prompt, with keep_between
        drawn += [one | {"round": attempt} for one in samples]
        for i in range(0, len(samples), size):
            group = samples[i : i + size]
            (spare if config.dynamic_sampling and all_equal(config, group) else kept).append(group)
        if len(kept) >= prompts:
            break
    chosen = (kept + spare)[:prompts]
    batch = [s | {"group": i, "filler": i >= len(kept)} for i, group in enumerate(chosen) for s in group]
    return batch, drawn, start
