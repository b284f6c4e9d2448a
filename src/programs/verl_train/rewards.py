"""Our modules that verl loads: rewards and their manager, a replay buffer, estimators, losses, and an agent loop."""

import asyncio
import contextlib
import copy
import functools
import json
import math
import queue
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

from parts.environments.conversations import (
    Conversation,
    PlayLimits,
    PlaySetup,
    begin,
    play_metrics,
    score_all,
    take_turn,
)
from parts.environments.environments import load_environments
from parts.environments.play_setup import score_talks, score_weights
from parts.environments.tool_runs import SHORT_INTERVAL, SIDE_BY_SIDE
from parts.environments.turn_bridge import TurnBridge
from parts.foundation.messages import RewardError, UserError
from parts.learning.advantages import gpg_advantages, maxrl_advantages, overlong_penalty
from parts.learning.own_functions import own_function
from parts.rewards.rewards import CallLimits, Reward
from parts.rewards.user_code import visible_text
from programs.verl_train.data import end_ids_of, row_columns
from programs.verl_train.settings import OWN_NAME

REWARD_ERROR = "reward_error.txt"  # of the output folder: why a reward or an environment ended the run
REWARD_FAILED = "REWARD FAILED"
JOB_FILE, JOB_FOLDER = "job.json", "$JOB"  # what a job's modules are told, and what stands there for its folder
ENVIRONMENT_FAILED = "ENVIRONMENT FAILED"


def job_settings(job: Path) -> dict:
    """What a job's modules are told, with the files where they lie."""
    text = (job / JOB_FILE).read_text(encoding="utf-8")
    return json.loads(text.replace(JOB_FOLDER, json.dumps(str(job))[1:-1]))


class Gathering:
    """Calls a function of a list, in one thread, with all that waits: what arrives meanwhile is its next list."""

    def __init__(self, function, name: str):
        self.function = function
        self.waiting, self.thread = queue.SimpleQueue(), ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, item) -> Future:
        """Queue one item; the future is the item's entry in the list that the function returns."""
        future = Future()
        self.waiting.put((item, future))
        self.thread.submit(self.drain)
        return future

    def drain(self) -> None:
        """Call the function with all that waits; what it raises is every item's."""
        batch = []
        with contextlib.suppress(queue.Empty):
            while True:
                batch.append(self.waiting.get_nowait())
        try:
            results = self.function([item for item, _ in batch]) if batch else []
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)


class RewardBatcher:
    """Scores completions that come one at a time, as verl sends them, in the batches that reward functions expect.

    One thread calls the functions, as in our trainers; what arrives while it is busy is its next batch. `job` is what
    `job_settings` returns.
    """

    def __init__(self, job: dict):
        self.reward = Reward(job["rewards"], CallLimits(*job["reward_limits"]))
        self.columns, self.error_file = job["columns"], job["error_file"]
        self.gathering = Gathering(self.score_all, "reward")

    def score_all(self, batch: list[tuple]) -> list[dict]:
        """What verl gets for each completion (row, text, ids)."""
        rows, texts, ids = zip(*batch, strict=True)
        try:
            scores, parts = self.reward(list(rows), list(texts), list(ids))
        except Exception as error:  # a plain error: Ray has to carry it to processes that do not know our classes
            raise RuntimeError(f"{REWARD_FAILED}: {error}") from None
        return [named_scores(score, {name: each[i] for name, each in parts.items()}) for i, score in enumerate(scores)]

    async def score(self, row: dict, text: str, ids: list[int]) -> dict:
        """The weighted sum as `score`, and every function's own value; a failure is told and left for the launcher."""
        try:
            return await asyncio.wrap_future(self.gathering.submit((self.row(row), text, ids)))
        except Exception as error:
            tell_failure(str(error), self.error_file)
            raise

    def row(self, row: dict) -> dict:
        """A row of verl's data as our rewards know it."""
        known, messages = row_columns(row), [dict(message) for message in row["raw_prompt"]]
        is_text = bool(row["extra_info"].get("prompt_is_text"))
        prompt = "".join(message["content"] for message in messages) if is_text else messages
        return {"prompt": prompt, "columns": {name: known.get(name) for name in self.columns}}


def bits_of(group_size: int) -> int:
    """Bits of a number of which float32 adds up group_size equal ones exactly."""
    return 24 - (group_size - 1).bit_length()


def exact_in_means(score: float, group_size: int) -> float:
    """The score to so few bits that float32 adds up a group of equal ones exactly; it changes by 2^-bits at most.

    verl's mean of eight 1.2 is 1.1999999; beside a deviation of 1e-7 and its epsilon of 1e-6 that makes advantages of
    0.1 where there should be none.
    """
    bits = bits_of(group_size)
    mantissa, exponent = math.frexp(score)
    return math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)


def named_scores(score: float, parts: dict[str, float | None]) -> dict[str, float]:
    """What verl gets for one completion; `acc`, its name for accuracy, is full marks of the first function."""
    first = next(iter(parts.values()), None)
    named = {("acc_2" if name == "acc" else name): value or 0.0 for name, value in parts.items()}
    return {"score": score, "acc": float(first is not None and first >= 1), **named}


def tell_failure(text: str, error_file: str) -> None:
    """Print why a run will end, and leave it where the launcher looks for it."""
    print(f"\n{text}\n", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):  # the folder may be another machine's
        if error_file:
            Path(error_file).write_text(f"{text}\n", encoding="utf-8")


def hooks(job: Path) -> tuple[type, type]:
    """(TokenRewardManager, StrictReplayBuffer), for verl, with our estimators registered; verl_hooks.py calls this."""
    settings = job_settings(job)
    register_estimators(job, settings["own"].get("advantage", ""))
    return token_reward_manager(settings), strict_replay_buffer()


def token_reward_manager(job: dict):
    """The class TokenRewardManager, for verl."""
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    class TokenRewardManager(RewardManagerBase):
        """Tells our rewards the prompt, the token ids and special tokens, and takes penalties for length."""

        def __init__(self, config, tokenizer, compute_score, **kwargs):
            super().__init__(config, tokenizer, compute_score)
            given = config.reward.get("reward_kwargs") or {}
            self.missing, self.share = float(given.get("missing_eos_penalty", 0)), float(given.get("overlong_share", 0))
            self.limit, self.group_size = config.data.max_response_length, config.actor_rollout_ref.rollout.n
            self.ends = end_ids_of(config.actor_rollout_ref.model.path, tokenizer)
            self.batcher = RewardBatcher(job)

        async def run_single(self, data) -> dict:
            item = data[-1]
            width = item.batch["responses"].shape[-1]
            length = int(item.batch["attention_mask"][-width:].sum())
            ids = item.batch["responses"][:length].tolist()
            scored = await self.batcher.score(item.non_tensor_batch, visible_text(self.tokenizer, ids, self.ends), ids)
            missing = 0.0 if ids and ids[-1] in self.ends else self.missing
            score = scored["score"] - missing - overlong_penalty(length, self.limit, self.share)
            return {"reward_score": exact_in_means(score, self.group_size), "reward_extra_info": scored}

    return TokenRewardManager


def strict_replay_buffer():
    """The class StrictReplayBuffer, for verl."""
    from collections import Counter

    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    class StrictReplayBuffer(ReplayBuffer):
        """verl's replay buffer; a failed rollout or reward ends the run, DAPO's replacements are counted."""

        def __init__(self, *args, sampler_kwargs, refill_fn, **kwargs):
            options = dict(sampler_kwargs or {})
            self.error_file, self.max_refills = Path(options.get("error_file", "")), options.get("max_refills", 0)
            self.refilled, self.dispatch = 0, refill_fn
            filtering = {}
            if options.get("filter_groups_metric"):
                filtering = {"filter_groups_metric": options["filter_groups_metric"], "gen_batch_size": 1}
                filtering["train_batch_size"] = options["train_batch_size"]
            super().__init__(*args, sampler_kwargs=sampler_kwargs, refill_fn=self.refill, **filtering, **kwargs)

        def refill(self, count: int) -> int:
            self.refilled += count
            return self.dispatch(count)

        def sample(self, global_steps, partition_id, batch_size):
            """A batch of the step; the count of replacements starts anew."""
            self.refilled = 0
            return super().sample(global_steps, partition_id, batch_size)

        def _dapo_filtered_keys(self, partition_id):
            if self.filter_groups_metric and self.refilled >= self.max_refills * self.train_batch_size:
                return set(), Counter()
            return super()._dapo_filtered_keys(partition_id)

        def _select_prompt_uids(self, partition_id, sampleable_keys, batch_size):
            last = super()._dapo_filtered_keys(partition_id)[0]  # their places are left over, once refills are used up
            picked, *snapshots = super()._select_prompt_uids(partition_id, sampleable_keys - last, batch_size)
            more, *_ = super()._select_prompt_uids(partition_id, sampleable_keys & last, batch_size - len(picked))
            return [*picked, *more], *snapshots

        def _sync_metadata_from_transfer_queue(self):
            super()._sync_metadata_from_transfer_queue()
            failed, file = sum(map(len, self.failure_keys.values())), self.error_file
            if failed:
                why = file.read_text(encoding="utf-8") if file.is_file() else "its log stands above"
                raise RuntimeError(f"got {failed} prompts whose rollout or reward failed; the run ends here: {why}")

    return StrictReplayBuffer


def own_of(kind: str, job: Path, spec: str) -> tuple:
    """(An estimator or loss of the user's own; the run's settings, which it takes as config)."""
    settings = json.loads((job / "settings.json").read_text(encoding="utf-8"))["settings"]
    return own_function(kind, spec), SimpleNamespace(**settings)


def register_estimators(job: Path, spec: str = "") -> None:
    """Put our estimators that verl lacks, and FILE.py:function of the job, into its registry."""
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

    def registered(name, advantages, config=None):
        def estimate(token_level_rewards, response_mask, index, **_):
            scores = token_level_rewards.sum(-1)
            groups = torch.as_tensor(np.unique(index, return_inverse=True)[1], device=scores.device)
            known = {"rewards": token_level_rewards, "mask": response_mask.to(scores.dtype), "config": config}
            result = advantages(scores=scores, groups=groups, **known)
            result = (result if result.dim() == 2 else result[:, None]) * response_mask
            return result, result

        if name not in ADV_ESTIMATOR_REGISTRY:  # verl loads this file once for each of its uses
            register_adv_est(name)(estimate)

    registered("gpg_ours", gpg_advantages)
    registered("maxrl_ours", maxrl_advantages)
    if spec:
        registered(OWN_NAME, *own_of("advantage", job, spec))


def register_loss(job: Path) -> None:
    """Put FILE.py:function of the job into verl's registry of policy losses; verl_own_loss.py calls this."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, agg_loss, register_policy_loss

    function, settings = own_of("loss", job, job_settings(job)["own"]["loss"])

    def policy_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights=None):
        mask = response_mask.to(log_prob.dtype)
        known = {"logprobs": log_prob, "old_logprobs": old_log_prob, "advantages": advantages, "mask": mask}
        losses, clipped = function(**known, config=settings)
        losses = losses if rollout_is_weights is None else losses * rollout_is_weights
        loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)

        def mean(values) -> float:
            return ((values.detach() * mask).sum() / mask.sum().clamp(min=1)).item()

        return loss, {"actor/pg_clipfrac": mean(clipped), "actor/ppo_kl": mean(old_log_prob - log_prob)}

    if OWN_NAME not in POLICY_LOSS_REGISTRY:
        register_policy_loss(OWN_NAME)(policy_loss)


class Player:
    """Plays conversations that come one at a time; what blocks runs in threads, never in the event loop.

    As in our trainers, one thread begins all waiting conversations together, and one scores all that have ended. `job`
    is what `job_settings` returns.
    """

    def __init__(self, job: dict, tokenizer, end_ids: list[int], template: dict | None = None):
        environment = job["environment"]
        environments = load_environments(environment["file"])
        for kind in environments.kinds.values():
            kind.tools = environment["tools"][kind.name]
        bridge = TurnBridge(copy.deepcopy(tokenizer), end_ids, template)  # verl goes on using its own
        self.setup = PlaySetup(environments, bridge, environment["form"], PlayLimits(**environment["limits"]))
        self.reward = Reward(job["rewards"], CallLimits(*job["reward_limits"]))
        self.columns = job["columns"]
        self.beginning = Gathering(lambda rows: begin(rows, self.setup), "begin")
        self.scoring = Gathering(self.score_all, "score")
        self.turns = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="turn")
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
        rows = [row | {"columns": dict.fromkeys(self.columns) | row["columns"]} for row in rows]
        return score_talks(self.setup, rows, [*conversations], self.reward)

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
