"""Dynamic generation for verl 0.9: keep groups the policy solves now and then, sample new prompts for the others.

    trainer.v1.sampler.custom_sampler.path=examples/verl/difficulty_buffer.py
    trainer.v1.sampler.custom_sampler.name=DifficultyBuffer
    data.gen_batch_size=1                                    # new prompts are fetched one by one
    +trainer.v1.sampler.sampler_kwargs.train_batch_size=64   # the same number as data.train_batch_size
    +trainer.v1.sampler.sampler_kwargs.low=0.1               # a group stays if low <= its mean score <= high ...
    +trainer.v1.sampler.sampler_kwargs.high=0.9              # ... and its scores differ; 0.1 and 0.9 without these
    +trainer.v1.sampler.sampler_kwargs.max_dropped=256       # groups dropped in a step before all are kept

verl's own algorithm.filter_groups (DAPO) drops the groups whose scores are all equal, without an end; this takes a band
of difficulty, so what is trained on moves with the policy. Leave algorithm.filter_groups.enable at False.
"""

from collections import Counter, defaultdict

import numpy as np
import transfer_queue
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


def dropped_groups(scores, low, high):
    """Return {group: mean score} of the groups outside the band or without a difference; scores are {group: [...]}."""
    means = {group: float(np.mean(values)) for group, values in scores.items()}
    return {g: mean for g, mean in means.items() if not low <= mean <= high or np.std(scores[g]) == 0}


class DifficultyBuffer(ReplayBuffer):
    """verl's buffer for synchronous training with another rule for which groups to drop; refilling stays verl's."""

    def __init__(self, sampler_kwargs, **kwargs):
        self.low, self.high = sampler_kwargs.get("low", 0.1), sampler_kwargs.get("high", 0.9)
        self.max_dropped, self.dropped, self.step = sampler_kwargs.get("max_dropped", 256), 0, None
        size = sampler_kwargs.train_batch_size
        super().__init__(
            **kwargs,
            sampler_kwargs=sampler_kwargs,
            filter_groups_metric="reward",
            train_batch_size=size,
            gen_batch_size=1,
        )

    def sample(self, global_steps, partition_id, batch_size):
        """Collect a batch; the count of dropped groups starts again with each step."""
        self.dropped = 0
        return super().sample(global_steps, partition_id, batch_size)

    def _dapo_filtered_keys(self, partition_id):
        """The finished groups to drop, and how many of each mean score."""
        finished = self.finished_keys[partition_id]
        keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in finished]
        if partition_id == "val" or not keys or self.dropped >= self.max_dropped:
            return set(), Counter()
        data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["rm_scores"])
        scores = defaultdict(list)
        for key, value in zip(keys, data["rm_scores"], strict=True):
            scores[key.split("_")[0]].append(float(value.sum()))
        dropped = dropped_groups(scores, self.low, self.high)
        dropped = dict(list(dropped.items())[: self.max_dropped - self.dropped])
        self.dropped += len(dropped)
        return set(dropped), Counter(dropped.values())
