"""A curriculum for verl 0.9: a data set in order of difficulty. (The sampler class of older versions is gone.)

    data.custom_cls.path=examples/verl/curriculum_dataset.py data.custom_cls.name=CurriculumDataset
    data.shuffle=False data.validation_shuffle=False
    +data.difficulty_key=difficulty   # a number in `extra_info`, larger is harder; `difficulty` without this
    +data.curriculum_blur=0.2         # 0: strictly by difficulty · 1: at random; 0.2 without this

Rows sort by (1 - blur) · rank + blur · u, where rank in [0, 1) is the place by difficulty and u is uniform: some hard
rows turn up early now and then and easy ones are not forgotten. Every epoch runs through the same order; resuming
continues in it. difficulty_buffer.py beside this file adapts to the policy instead.
"""

import numpy as np
from verl.utils.dataset.rl_dataset import RLHFDataset


def curriculum_order(difficulty, blur, seed=0):
    """Return the row indices, easy to hard, blurred; equal difficulties keep the file's order at blur 0."""
    rank = np.empty(len(difficulty))
    rank[np.argsort(difficulty, kind="stable")] = np.arange(len(difficulty)) / max(1, len(difficulty))
    noise = np.random.default_rng(seed).random(len(difficulty))
    return np.argsort((1 - blur) * rank + blur * noise, kind="stable")


class CurriculumDataset(RLHFDataset):
    """verl's own data set, its rows reordered once after they were read."""

    def maybe_filter_out_long_prompts(self, dataframe=None):
        """Filter as verl does, then put the rows in order."""
        if self.config.get("shuffle", True):
            raise ValueError("got data.shuffle=True; expected False, as shuffling undoes the order of a curriculum")
        blur = float(self.config.get("curriculum_blur", 0.2))
        if not 0 <= blur <= 1:
            raise ValueError(f"got data.curriculum_blur={blur}; expected 0 to 1")
        rows = super().maybe_filter_out_long_prompts(dataframe)
        key = self.config.get("difficulty_key", "difficulty")
        difficulty = [(extra or {}).get(key) for extra in rows["extra_info"]]
        if None in difficulty:
            got = f"got no extra_info.{key} in row {difficulty.index(None)}"
            raise ValueError(f"{got}; expected a number in every row; try +data.difficulty_key=NAME")
        return rows.select(curriculum_order(np.asarray(difficulty, float), blur, self.config.get("seed") or 0))
