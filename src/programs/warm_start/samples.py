"""Samples of a round: drawn in parts that are written as they come, then chosen."""

import contextlib
import json
import sys
from collections import defaultdict
from pathlib import Path

from parts.messages import UserError, say
from parts.prompts import batch_rows
from programs.warm_start.settings import Config, is_server
from programs.warm_start.solutions import solution_ids
from programs.warm_start.whole_files import read_lines, write_lines
from programs.warm_start.workshop import ServerTeacher, Teacher, Workshop

HELD_OUT, TRAINING = 1, 2  # which draws: of the noise


class Sampler:
    """Draws samples of prompts into a folder; parts that are there are read, and no model is loaded for them.

    Args:
        source: returns a function of rows and noise that samples and scores a completion of each, when asked.
        kind: which noise is drawn, with the round's number.
    """

    def __init__(self, shop: Workshop, folder: Path, source, kind: int, number: int, count: int):
        self.shop, self.folder, self.source, self.count = shop, folder, source, count
        self.seed, self.ready = [shop.config.seed, 5, kind, number], None
        self.what = "held-out samples" if kind == HELD_OUT else f"samples of round {number}"

    def parts(self, rows: list[dict], numbers: list[int]) -> list[dict]:
        """Samples of rows[numbers], `count` of each, in this order."""
        from tqdm import tqdm

        size, wait = max(1, self.shop.config.rollout_batch_size // self.count), 0.5 if sys.stderr.isatty() else 20
        starts, found = range(0, len(numbers), size), []
        for part, start in enumerate(tqdm(starts, self.what, mininterval=wait, delay=wait, dynamic_ncols=True)):
            path = self.folder / f"part-{part:05d}.jsonl"
            if not path.exists():
                self.shop.check_stop()
                write_lines(path, self.draw(rows, numbers[start : start + size], part))
            found += read_lines(path)
        return found

    def draw(self, rows: list[dict], numbers: list[int], part: int) -> list[dict]:
        """Sample and score one part."""
        import numpy as np

        self.ready = self.ready or self.source()
        config, asked = self.shop.config, [rows[i] for i in numbers for _ in range(self.count)]
        width = config.max_new_tokens if config.rollout_engine == "hf" else 1  # vLLM seeds a row by its first draw
        noise = np.random.default_rng([*self.seed, part]).random((len(asked), width))
        made = self.ready(asked, noise)
        return [
            {"row": numbers[i // self.count], "prompt": one["prompt"], "text": one["completion"]}
            | {"ids": one["response_ids"], "passed": passes(config, one), "score": one["score"]}
            | {"rewards": one["rewards"], "finished": one["finished"], "logprob": sum(one["rollout_logprobs"])}
            for i, one in enumerate(made)
        ]


def passes(config: Config, sample: dict) -> bool:
    """Whether the first reward passes a sample that ended."""
    score = next(iter(sample["rewards"].values()))
    return bool(sample["finished"] and score is not None and score >= config.pass_score)


def samples_of_round(shop: Workshop, number: int) -> list[dict]:
    """The samples of a round by the policy before it, or by the teacher."""
    config = shop.config
    count = min(config.prompts_per_round, len(shop.rows))
    numbered = [row | {"number": i} for i, row in enumerate(shop.rows)]
    picked = [row["number"] for row in batch_rows(numbered, config, (number - 1) * count, count)]

    def source():
        if config.teacher:
            return (ServerTeacher if is_server(config.teacher) else Teacher)(shop).sample
        return shop.sampler(number - 1, config.sample_temperature)

    folder = shop.round_folder(number) / "samples"
    return Sampler(shop, folder, source, TRAINING, number, config.samples).parts(shop.rows, picked)


def chosen_samples(config: Config, samples: list[dict]) -> list[dict]:
    """Different samples that pass: of a prompt as many as it had failures, one at least, max_per_prompt at most."""
    groups = defaultdict(list)
    for one in samples:
        groups[one["row"]].append(one)
    kept = []
    for group in groups.values():
        different = [*{one["text"]: one for one in group if one["passed"]}.values()]
        failures = sum(not one["passed"] for one in group)
        kept += different[: min(config.max_per_prompt, max(1, failures))]
    return kept


def in_policys_ids(shop: Workshop, number: int, kept: list[dict]) -> list[dict]:
    """A teacher's solutions as the policy's tokens; those that it cannot say within max_new_tokens are left out."""
    config, models, found = shop.config, shop.load(number - 1), []
    for one in kept:
        with contextlib.suppress(UserError):  # an end token inside the text
            ids = solution_ids(config, models, shop.rows[one["row"]], one["text"])
            found += [one | {"ids": ids}] * (len(ids) <= config.max_new_tokens)
    if len(found) < len(kept):
        lost = len(kept) - len(found)
        say(f"left out {lost} of them, longer than {config.max_new_tokens} of the policy's tokens or with an end token")
    return found


def sampled_solutions(shop: Workshop, number: int) -> list[dict]:
    """Solutions of this round and of those before it, each text of a prompt once; a teacher's in the policy's ids."""
    config, samples = shop.config, samples_of_round(shop, number)
    kept = chosen_samples(config, samples)
    passed = sum(one["passed"] for one in samples)
    say(f"round {number}: {passed} of {len(samples)} samples pass, {len(kept)} are kept")
    if config.teacher and kept:
        kept = in_policys_ids(shop, number, kept)
    found = {}
    for one in [*read_lines(shop.round_folder(number - 1) / "supervised.jsonl"), *kept]:
        found[json.dumps(one["prompt"]), one["text"]] = {key: one[key] for key in ("row", "text", "ids", "prompt")}
    return [*found.values()]
