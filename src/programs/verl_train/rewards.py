"""Our modules that verl loads: rewards and their manager, a replay buffer, missing estimators and losses."""

import asyncio
import contextlib
import json
import math
import queue
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from parts.learning.advantages import gpg_advantages, maxrl_advantages, overlong_penalty
from parts.learning.own_functions import own_function
from parts.rewards.rewards import CallLimits, Reward
from parts.rewards.user_code import visible_text
from programs.verl_train.data import row_columns
from programs.verl_train.model_files import end_ids_of
from programs.verl_train.names import OWN_NAME

REWARD_ERROR = "reward_error.txt"  # of the output folder: why a reward or an environment ended the run
REWARD_FAILED = "REWARD FAILED"
JOB_FILE, JOB_FOLDER = "job.json", "$JOB"  # what a job's modules are told, and what stands there for its folder


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
            told = await self.batcher.score(item.non_tensor_batch, visible_text(self.tokenizer, ids, self.ends), ids)
            missing = 0.0 if ids and ids[-1] in self.ends else self.missing
            score = told["score"] - missing - overlong_penalty(length, self.limit, self.share)
            return {"reward_score": exact_in_means(score, self.group_size), "reward_extra_info": told}

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
