"""Sampling and scoring the rows of a batch over all processes."""

import time
from collections.abc import Callable

from parts.foundation.messages import UserError
from parts.foundation.processes import dealt, gather_rows, world
from parts.foundation.settings import BaseConfig
from parts.networks.models import Models
from parts.rewards.reward_texts import visible_text
from parts.rewards.rewards import Reward
from parts.sampling.early_scores import early_scores, note_speed


def collect(
    config: BaseConfig, models: Models, engine, reward: Reward, rows: list[dict], noise, timer: dict
) -> list[dict]:
    """Sample and score one completion per row; every process gets the whole batch."""

    def complete(mine: list[dict], draws) -> list[dict]:
        start = time.perf_counter()
        prompts, early = [row["prompt_ids"] for row in mine], early_scores(config, models, engine, reward, mine)
        if early:
            outputs, sampled = early.sample(engine, prompts, draws)
        else:
            outputs, sampled = engine.generate(prompts, draws), time.perf_counter()
        texts = [visible_text(models.tokenizer, ids, models.eos_ids) for ids, _ in outputs]
        known = [early.results()] if early else []
        scores, parts = reward(mine, texts, [ids for ids, _ in outputs], *known)
        note_speed(reward, start, sampled)
        count_seconds(timer, start, sampled)
        samples = []
        for i, (row, (ids, logprobs)) in enumerate(zip(mine, outputs, strict=True)):
            sample = {"prompt": row["prompt"], "prompt_ids": row["prompt_ids"], "completion": texts[i]}
            sample |= {"response_ids": ids, "rollout_logprobs": logprobs, "finished": ids[-1] in models.eos_ids}
            sample["rewards"] = {name: values[i] for name, values in parts.items()}
            sample["weights"] = getattr(reward, "weights", {})
            samples.append(sample | {"score": scores[i]})
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
    (rank, size), samples, failure = world(), [], None
    shares = dealt([1] * len(rows), [str(row["prompt"]) for row in rows], size, slack=0)  # prompts are read once
    own = shares[rank]
    try:
        samples = make([rows[i] for i in own], None if noise is None else noise[own])
    except Exception as error:  # the other processes wait for this one: tell them
        what = f"process {rank}: {type(error).__name__}: {error}"
        failure = error if size == 1 or isinstance(error, UserError) else UserError(what)
    return gather_rows(samples, failure, shares)
