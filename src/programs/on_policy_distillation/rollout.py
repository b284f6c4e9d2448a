"""The batch of a step."""

import time

from parts.rewards.rewards import Reward
from parts.sampling.rollouts import batch_rows, collect
from programs.on_policy_distillation.data import data_sample, teacher_of
from programs.on_policy_distillation.settings import Config, offpolicy_rows
from programs.on_policy_distillation.teachers import ask_servers, teacher_specs


def rollout_batch(config: Config, models, engine, reward: Reward, rows: list, step: int, start: int, timer: dict):
    """The batch of a step: sampled completions, then completions of the data, from prompt `start` of the stream on.

    Returns:
        (samples, the stream's next position).
    """
    import numpy as np

    given, size = offpolicy_rows(config), config.group_size
    fresh = config.batch_size - given
    picked = batch_rows(rows, config, start, fresh // size + given)
    prompts, rest = [row for row in picked[: fresh // size] for _ in range(size)], picked[fresh // size :]
    noise = np.random.default_rng([config.seed, 3, step]).random((fresh, config.max_new_tokens))
    samples = collect(config, models, engine, reward, prompts, noise, timer) if prompts else []
    samples += [data_sample(config, models, row) for row in rest]
    names = list(teacher_specs(config))
    for sample, row in zip(samples, prompts + rest, strict=True):
        sample["teacher"] = teacher_of(config, row, names)
    begin = time.perf_counter()
    ask_servers(models, samples)
    timer["teacher"] = time.perf_counter() - begin
    return samples, start + len(picked)
