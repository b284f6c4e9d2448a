"""Rollouts with an environment: conversations of several turns in the place of completions."""

import dataclasses
import time

from parts.environments.conversations import Conversation
from parts.environments.play import play
from parts.environments.play_setup import PlaySetup, pieces, score_talks, score_weights
from parts.networks.models import Models
from parts.rewards.rewards import Reward
from parts.rewards.user_code import visible_text
from parts.sampling.rollouts import count_seconds, shared_out
from parts.sampling.sampling import turn_sampler
from programs.ppo_train.settings import Config


def converse(
    setup: PlaySetup, config: Config, models: Models, engine, reward: Reward, rows: list[dict], noise, timer: dict
) -> list[dict]:
    """Play and score one conversation per row; every process gets the whole batch.

    Args:
        noise: uniform draws [rows, max_turns x those of an answer], those of a turn after those of the turn before;
            None decodes greedily.
    """
    width = 0 if noise is None else noise.shape[1] // config.max_turns

    def conversations(local_rows: list[dict], draws) -> list[dict]:
        generate = turn_sampler(engine)

        def answer(prompts: list[list[int]], numbers: list[int], turn: int) -> list:
            answer_draws = None if draws is None else draws[numbers, turn * width : (turn + 1) * width]
            return generate(prompts, answer_draws, numbers)

        start = time.perf_counter()
        talks = play(local_rows, setup.environments, setup.bridge, answer, setup.limits, setup.form)
        sampled = time.perf_counter()
        values = score_talks(setup, local_rows, talks, reward)
        count_seconds(timer, start, sampled)
        weights = score_weights(reward, values[0]) if values else {}
        played = zip(local_rows, talks, values, strict=True)
        return [conversation_sample(models, row, talk, of_row, weights) for row, talk, of_row in played]

    return shared_out(conversations, rows, noise)


def conversation_sample(models: Models, row: dict, talk: Conversation, values: dict, weights: dict) -> dict:
    """A conversation as a sample: the whole response, a mask of what was sampled, and its score."""
    answers = [talk.response_ids[start:end] for start, end in talk.spans]
    said = [visible_text(models.tokenizer, ids, models.eos_ids) for ids in answers]
    return {
        "prompt": row["prompt"],
        "prompt_ids": talk.prompt_ids,
        "completion": "\n".join(said),  # what was sampled
        "response_ids": talk.response_ids,
        "response_mask": talk.response_mask,
        "rollout_logprobs": talk.rollout_logprobs,
        "answer_lengths": list(map(len, answers)),
        "finished": all(ids[-1] in models.eos_ids for ids in answers),
        "rewards": values,
        "weights": weights,
        "score": sum(weights[name] * value for name, value in values.items() if value is not None),
        "ended_by": talk.ended_by,
        "turn_ends": [end for _, end in talk.spans],
        "turn_rewards": talk.turn_rewards,
        "messages": talk.messages,
        "pieces": pieces(models.tokenizer, talk),
        "talk": dataclasses.replace(talk, kind=None, environment=None),  # for metrics; processes exchange samples
    }
