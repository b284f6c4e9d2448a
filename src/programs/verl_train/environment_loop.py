"""The agent loop: conversations with an environment in verl's workers, each as `play` would play it."""

import asyncio
import copy
import functools
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from parts.environments.conversations import Conversation, PlayLimits, PlaySetup
from parts.environments.environments import load_environments
from parts.environments.play import begin, play_metrics, score_all, take_turn
from parts.environments.play_setup import score_talks, score_weights
from parts.environments.tool_runs import SHORT_INTERVAL
from parts.environments.turn_bridge import TurnBridge
from parts.foundation.messages import RewardError, UserError
from parts.learning.advantages import overlong_penalty
from parts.rewards.rewards import CallLimits, Reward
from programs.verl_train.data import row_columns
from programs.verl_train.model_files import end_ids_of
from programs.verl_train.rewards import (
    REWARD_FAILED,
    Gathering,
    exact_in_means,
    job_settings,
    named_scores,
    tell_failure,
)

ENVIRONMENT_FAILED = "ENVIRONMENT FAILED"


class Player:
    """Plays conversations that come one at a time; what blocks runs in threads, never in the event loop.

    As in our trainers, one thread begins all waiting conversations together, and one scores all that have ended. `job`
    is what `job_settings` returns.
    """

    def __init__(self, job: dict, tokenizer, end_ids: list[int], template: dict | None = None):
        told = job["environment"]
        environments = load_environments(told["file"])
        for kind in environments.kinds.values():
            kind.tools = told["tools"][kind.name]
        bridge = TurnBridge(copy.deepcopy(tokenizer), end_ids, template)  # verl goes on using its own
        self.setup = PlaySetup(environments, bridge, told["form"], PlayLimits(**told["limits"]))
        self.reward = Reward(job["rewards"], CallLimits(*job["reward_limits"]))
        self.columns = job["columns"]
        self.beginning = Gathering(lambda rows: begin(rows, self.setup), "begin")
        self.scoring = Gathering(self.score_all, "score")
        self.turns = ThreadPoolExecutor(self.setup.limits.side_by_side, thread_name_prefix="turn")
        sys.setswitchinterval(SHORT_INTERVAL)  # jobs of many conversations begin and end all the time

    def row(self, given: dict) -> dict:
        """A row of verl's data as `play` takes it."""
        info, known = given["extra_info"], row_columns(given)
        return {
            "prompt": [dict(message) for message in given["raw_prompt"]],
            "columns": {name: known[name] for name in self.columns if name in known},
            "place": f"row {info['index'] + 1} of the {info['split']} data",
        }

    def score_all(self, ended: list[tuple[dict, Conversation]]) -> list[dict]:
        rows, conversations = zip(*ended, strict=True)
        score_all([*conversations], self.setup.limits)
        every = dict.fromkeys(self.columns)
        return score_talks(
            self.setup, [row | {"columns": every | row["columns"]} for row in rows], [*conversations], self.reward
        )

    async def play(self, row: dict, sample) -> tuple[Conversation, dict]:
        """Play one conversation; `sample` is async, (ids so far) -> (answer's ids, log-probs)."""
        conversation, turns = await asyncio.wrap_future(self.beginning.submit(row)), self.setup.limits.turns
        for turn in range(turns):
            sampled, last = [await sample(conversation.ids)], turn == turns - 1
            step = functools.partial(take_turn, [conversation], sampled, last, self.setup)
            await asyncio.wrap_future(self.turns.submit(step))
            if conversation.ended_by:
                break
        return conversation, await asyncio.wrap_future(self.scoring.submit((row, conversation)))

    def scores(self, conversation: Conversation, values: dict, penalties: dict) -> tuple[float, dict]:
        """(what the conversation is worth, what verl logs of it); a penalty for length looks at its longest answer."""
        weights = score_weights(self.reward, values)
        score = sum(weights[name] * value for name, value in values.items() if value is not None)
        answers = [conversation.response_ids[start:end] for start, end in conversation.spans]
        cut_off = not all(map(self.setup.bridge.ends, answers))
        share = penalties.get("overlong_share", 0)
        penalty = overlong_penalty(max(map(len, answers)), self.setup.limits.answer_tokens, share)
        penalty += penalties.get("missing_eos_penalty", 0) * cut_off
        return score - penalty, named_scores(score, values) | play_metrics([conversation])


class Sampler:
    """Asks verl's servers for the answers of one conversation, and keeps what they tell beside tokens."""

    def __init__(self, server, sampling: dict, limits: PlayLimits, request: dict):
        self.server, self.request = server, request
        self.sampling = {**sampling, "logprobs": True, "max_tokens": limits.answer_tokens}
        self.fields, self.seconds = {}, 0.0

    async def __call__(self, ids: list[int]) -> tuple[list[int], list[float]]:
        start = time.perf_counter()
        output = await self.server.generate(prompt_ids=ids, sampling_params=dict(self.sampling), **self.request)
        self.seconds += time.perf_counter() - start
        newest = {name: value for name, value in output.extra_fields.items() if name == "max_global_steps"}
        # the weights' version of the first answer, and of the last
        self.fields = {**output.extra_fields, **self.fields, **newest}
        return output.token_ids, output.log_probs


def environment_loop(job: Path):
    """The class EnvironmentLoop, for verl; verl_environment.py calls this."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
    from verl.utils.rollout_trace import rollout_trace_op

    settings, players = job_settings(job), []  # a player for a process
    load_environments(settings["environment"]["file"])  # its errors are best told at the start

    class EnvironmentLoop(AgentLoopBase):
        """One conversation with an environment; its tokens are those that were sampled, and those between turns."""

        def player(self) -> Player:
            if not players:
                ends = end_ids_of(self.config.actor_rollout_ref.model.path, self.tokenizer)
                players.append(Player(settings, self.tokenizer, ends, dict(self.apply_chat_template_kwargs or {})))
            return players[0]

        @rollout_trace_op
        async def run(self, sampling_params, priority: int = 0, **row):
            try:
                player = self.player()
                request = {"request_id": uuid4().hex, "priority": int(priority)}
                sample = Sampler(self.server_manager, sampling_params, player.setup.limits, request)
                conversation, values = await player.play(player.row(row), sample)
                score, logged = player.scores(conversation, values, self.config.reward.get("reward_kwargs") or {})
            except UserError as error:  # a plain error: Ray has to carry it to processes that do not know our classes
                failure = REWARD_FAILED if isinstance(error, RewardError) else ENVIRONMENT_FAILED
                tell_failure(f"{failure}: {error}", settings["error_file"])
                raise RuntimeError(f"{failure}: {error}") from None
            return AgentLoopOutput(
                prompt_ids=conversation.prompt_ids,
                response_ids=conversation.response_ids,
                response_mask=conversation.response_mask,
                response_logprobs=conversation.rollout_logprobs,
                reward_score=exact_in_means(score, self.rollout_config.n),
                num_turns=2 * len(conversation.spans),
                metrics={"generate_sequences": sample.seconds, "tool_calls": conversation.seconds},
                extra_fields={**sample.fields, "turn_scores": [], "tool_rewards": [], "reward_extra_info": logged},
            )

    return EnvironmentLoop
