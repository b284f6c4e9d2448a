"""Sample and score a batch's rows over all processes."""

import time
from collections.abc import Callable

from parts.foundation.processes import dealt, gather_rows, leaving_early, np, raised_in_all, world
from parts.foundation.settings import BaseConfig
from parts.networks.models import Models
from parts.rewards.rewards import Reward
from parts.rewards.user_code import visible_text


def batch_rows(rows: list[dict], config: BaseConfig, start: int, count: int) -> list[dict]:
    """`count` prompts from position `start` of one endless stream of reshuffled passes over the data."""
    picked = []
    for position in range(start, start + count):
        epoch, index = divmod(position, len(rows))
        if not picked or index == 0:
            order = np.random.default_rng([config.seed, 1, epoch]).permutation(len(rows)).tolist()
        picked.append(rows[order[index]])
    return picked


def collect(
    config: BaseConfig, models: Models, engine, reward: Reward, rows: list[dict], noise, timer: dict
) -> list[dict]:
    """Sample and score one completion per row; every process gets the whole batch."""

    def complete(local_rows: list[dict], draws) -> list[dict]:
        start = time.perf_counter()
        outputs = engine.generate([row["prompt_ids"] for row in local_rows], draws)
        sampled = time.perf_counter()
        texts = [visible_text(models.tokenizer, ids, models.eos_ids) for ids, _ in outputs]
        scores, parts = reward(local_rows, texts, [ids for ids, _ in outputs])
        count_seconds(timer, start, sampled)
        samples = []
        for i, (row, (ids, logprobs)) in enumerate(zip(local_rows, outputs, strict=True)):
            sample = {name: row[name] for name in ("prompt", "prompt_ids", "columns")} | {"completion": texts[i]}
            sample |= {"response_ids": ids, "rollout_logprobs": logprobs, "finished": ids[-1] in models.eos_ids}
            sample |= {"score": scores[i], "weights": getattr(reward, "weights", {})}
            samples.append(sample | {"rewards": {name: values[i] for name, values in parts.items()}})
        return samples

    return shared_out(complete, rows, noise)


def count_seconds(timer: dict, start: float, sampled: float) -> None:
    """Add the time from a rollout's start to `sampled`, and that of its rewards from then on."""
    for phase, seconds in (("rollout", sampled - start), ("reward", time.perf_counter() - sampled)):
        timer[phase] = timer.get(phase, 0.0) + seconds


def shared_out(make: Callable, rows: list[dict], noise) -> list[dict]:
    """What `make` returns for rows and their noise, shared out over the processes; every one gets the whole batch.

    Each process takes as many rows, as it is not known how long completions become; those of a prompt stay together.
    """
    rank, size = world()
    shares = dealt([1] * len(rows), [str(row["prompt"]) for row in rows], size, slack=0)  # prompts are read once
    local = shares[rank]
    with raised_in_all(), leaving_early():
        samples = make([rows[i] for i in local], None if noise is None else noise[local])
    return gather_rows(samples, shares=shares)
