"""The rollout: prompts drawn, completions or conversations sampled and measured, and the held-out evaluation."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable

from parts.environments.conversations import Conversation, PlaySetup, play, play_metrics
from parts.environments.play_setup import pieces, score_talks, score_weights
from parts.evaluating.paired_tests import held_out_figures
from parts.foundation.processes import np
from parts.learning.advantages import equal_groups, estimator, shaped_score
from parts.networks.batches import explained_variance, masked_mean
from parts.networks.models import Models
from parts.rewards.rewards import Reward, is_scored, refuse_unscored
from parts.rewards.user_code import visible_text
from parts.running.checkpoints import TrainState
from parts.running.progress import rollout_metrics
from parts.sampling.rollouts import batch_rows, collect, count_seconds, shared_out
from parts.sampling.sampling import turn_sampler
from programs.ppo_train.settings import Config


def converse(
    setup: PlaySetup, config: Config, models: Models, engine, reward: Reward, rows: list[dict], noise, timer: dict
) -> list[dict]:
    """Play and score one conversation per row; every process gets the whole batch.

    noise [rows, max_turns x draws of an answer] holds those of a turn after those of the turn before; None is greedy.
    """
    width = 0 if noise is None else noise.shape[1] // config.max_turns

    def conversations(local_rows: list[dict], draws) -> list[dict]:
        generate = turn_sampler(engine)

        def answer(prompts: list[list[int]], numbers: list[int], turn: int) -> list:
            answer_draws = None if draws is None else draws[numbers, turn * width : (turn + 1) * width]
            return generate(prompts, answer_draws, numbers)

        start = time.perf_counter()
        talks = play(local_rows, setup, answer)
        sampled = time.perf_counter()
        values = score_talks(setup, local_rows, talks, reward)
        count_seconds(timer, start, sampled)
        weights = score_weights(reward, values[0]) if values else {}
        played = zip(local_rows, talks, values, strict=True)
        return [conversation_sample(models, row, conversation, of_row, weights) for row, conversation, of_row in played]

    return shared_out(conversations, rows, noise)


def conversation_sample(models: Models, row: dict, conversation: Conversation, values: dict, weights: dict) -> dict:
    """A conversation as a sample: the whole response, a mask of what was sampled, and its score."""
    answers = [conversation.response_ids[start:end] for start, end in conversation.spans]
    said = [visible_text(models.tokenizer, ids, models.eos_ids) for ids in answers]
    taken = ("prompt_ids", "response_ids", "response_mask", "rollout_logprobs", "ended_by", "turn_rewards", "messages")
    return {name: getattr(conversation, name) for name in taken} | {
        "prompt": row["prompt"],
        "completion": "\n".join(said),  # what was sampled
        "answer_lengths": list(map(len, answers)),
        "finished": all(ids[-1] in models.eos_ids for ids in answers),
        "rewards": values,
        "weights": weights,
        "score": sum(weights[name] * value for name, value in values.items() if value is not None),
        "turn_ends": [end for _, end in conversation.spans],
        "pieces": pieces(models.tokenizer, conversation),
        "talk": dataclasses.replace(
            conversation, kind=None, environment=None
        ),  # for metrics; processes exchange samples
    }


MEMORY = 0.9  # of the share of groups that were kept: what a step counts beside the next one


class Sampler:
    """Samples the batches of a run, by `collect` or the like; keeps how many groups differed."""

    def __init__(self, config, models: Models, engine, reward: Reward, rows, state: TrainState, sample=collect):
        self.config, self.models, self.engine, self.reward, self.rows = config, models, engine, reward, rows
        self.sample, self.position, self.kept, self.none_in_a_row = sample, state.prompts, state.kept, 0

    def state(self) -> dict:
        return {"prompts": self.position, "kept": self.kept}

    def rollout(self, step: int, timer: dict) -> tuple[list[dict], list[dict]]:
        """Sample the batch of a step, `group_size` completions of each prompt, from the next prompts of the stream.

        With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2), newly sampled groups replace those of equal score,
        in at most `max_refills` further rounds. Places still open are then filled with equal-score groups, masked.
        Differing groups beyond the batch are not used.

        Returns:
            (samples of the batch, all that were sampled).
        """
        config, size, each = self.config, self.config.group_size, estimator(self.config).each_reward
        self.engine.sync(step)
        prompts, kept, spare, drawn = config.batch_size // size, [], [], []
        for attempt in range(1 + config.dynamic_sampling * config.max_refills):
            samples = self.round(step, attempt, self.groups_to_sample(prompts - len(kept)), timer)
            drawn += [one | {"round": attempt} for one in samples]
            for i, equal in enumerate(equal_groups(samples, size, each)):
                group = samples[i * size : (i + 1) * size]
                (spare if config.dynamic_sampling and equal else kept).append(group)
            if len(kept) >= prompts:
                break
        self.none_in_a_row = 0 if any(map(is_scored, drawn)) else self.none_in_a_row + 1
        refuse_unscored(self.none_in_a_row, config.steps, drawn[0]["rewards"])
        differ = [not equal for equal in equal_groups(drawn, size, each)]
        self.kept = [MEMORY * old + new for old, new in zip(self.kept, (sum(differ), len(differ)), strict=True)]
        chosen = (kept + spare)[:prompts]
        batch = [s | {"group": i, "filler": i >= len(kept)} for i, group in enumerate(chosen) for s in group]
        return batch, drawn

    def round(self, step: int, attempt: int, count: int, timer: dict) -> list[dict]:
        """Scored completions of `count` prompts, those of a prompt beside each other."""
        config, size = self.config, self.config.group_size
        picked = batch_rows(self.rows, config, self.position, count)
        self.position += count
        width = config.max_new_tokens if config.rollout_engine == "hf" else 1  # one seeds vLLM
        width *= config.max_turns if config.environment else 1
        seed = [config.seed, 3, step, attempt] if attempt else [config.seed, 3, step]
        noise = np.random.default_rng(seed).random((count * size, width))
        given = self.config, self.models, self.engine, self.reward
        samples = self.sample(*given, [row for row in picked for _ in range(size)], noise, timer)
        if estimator(config).greedy:
            greedy = self.sample(*given, picked, None, timer)
            for i, one in enumerate(samples):
                other = greedy[i // size]
                one["baseline"] = shaped_score(config, other) if is_scored(other) else math.nan
        return samples

    def groups_to_sample(self, missing: int) -> int:
        """Groups of which `missing` are likely to differ, at most `max_oversampling` times as many.

        With n groups that are kept at rate p, n p - sqrt(n p (1 - p)) = missing: enough in about five rounds of six.
        """
        kept, sampled = self.kept
        most = int(missing * self.config.max_oversampling)
        if not kept:  # nothing is known, or none differed
            return most if sampled else missing
        p = kept / sampled
        spread = math.sqrt(p * (1 - p))
        root = (spread + math.sqrt(spread**2 + 4 * p * missing)) / (2 * p)
        return max(missing, min(math.ceil(root**2 - 1e-9), most))


def sample_metrics(config: Config, batch: dict, samples: list[dict], timer: dict) -> dict:
    """Metrics of a rollout: rewards, KL to the reference, lengths, explained variance, speed.

    `samples` are all that were sampled; with dynamic sampling, `batch` holds only those that train.
    """
    metrics = rollout_metrics(samples, sampled_lengths(samples), timer)
    if "talk" in samples[0]:
        metrics |= play_metrics([s["talk"] for s in samples])
    if "values" in batch:
        spread = explained_variance(batch["values"], batch["returns"], batch["loss_mask"])
        metrics["value/explained_variance"] = spread
    if config.group_size > 1:
        equal = equal_groups(samples, config.group_size, estimator(config).each_reward)
        metrics["reward/zero_std_frac"] = statistics.fmean(equal)
    if config.dynamic_sampling:
        metrics["rollout/samples"] = len(samples)
        metrics["rollout/rounds"] = 1 + max(s.get("round", 0) for s in samples)
        differ = equal.count(False)
        metrics["rollout/unused"] = max(0, differ * config.group_size - config.batch_size)
    if "ref_logprobs" in batch and "old_logprobs" in batch:
        metrics["kl/ref"] = masked_mean(batch["kl"], batch["response_mask"]).item()
        metrics["kl/ref_completion"] = batch["kl"].sum(1).mean().item()
    if "old_logprobs" in batch:
        gap = (batch["old_logprobs"] - batch["rollout_logprobs"]).abs() * batch["response_mask"]
        metrics["rollout/logprob_gap_max"] = gap.max().item()
    return metrics


def sampled_lengths(samples: list[dict]) -> list[int]:
    """Tokens that were sampled, of each sample; tools' and replies' are not."""
    return [sum(s["response_mask"]) if "response_mask" in s else len(s["response_ids"]) for s in samples]


def evaluate(
    config: Config, models: Models, engine, reward: Reward, rows: list[dict], sample: Callable = collect
) -> tuple[dict, list[dict]]:
    """Greedy held-out evaluation: mean of each reward, and accuracy = share with full marks (>= 1) from the first.

    `sample` takes the place of `collect`.
    """
    samples = sample(config, models, engine, reward, rows, None, {})
    return held_out_figures(samples, sampled_lengths(samples), rows), samples
