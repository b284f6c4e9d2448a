"""Sample and score a batch's rows over all processes; slow rewards run while other completions are sampled."""

import inspect
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from parts.foundation.messages import say
from parts.foundation.processes import dealt, gather_rows, leaving_early, np, raised_in_all, torch, world
from parts.foundation.settings import BaseConfig
from parts.networks.models import Models
from parts.rewards.reward_forms import PerSample
from parts.rewards.rewards import Reward, reward_calls, reward_loop
from parts.rewards.user_code import REWARD_STATE, reward_arguments, visible_text
from parts.sampling.sampling import HFEngine, restore_rng, rng_state, same_rng

WORTH_HIDING = 0.05  # share of sampling's time that rewards take; a thread beside a small model costs as much


def epoch_order(config: BaseConfig, epoch: int, count: int) -> list[int]:
    """The order of `count` prompts in one pass over the data."""
    return np.random.default_rng([config.seed, 1, epoch]).permutation(count).tolist()


def batch_rows(rows: list[dict], config: BaseConfig, start: int, count: int) -> list[dict]:
    """`count` prompts from position `start` of one endless stream of reshuffled passes over the data."""
    picked = []
    for position in range(start, start + count):
        epoch, index = divmod(position, len(rows))
        if not picked or index == 0:
            order = epoch_order(config, epoch, len(rows))
        picked.append(rows[order[index]])
    return picked


def scores_alone(function) -> bool:
    """Whether a reward scores each completion by itself: one of one sample, or one whose `needs_group` is False."""
    if isinstance(function, PerSample):
        return True
    alone = getattr(function, "needs_group", None) is False and not hasattr(function, "load_state_dict")
    return alone and all(map(scores_alone, getattr(function, "functions", ())))


class EarlyScores:
    """What reward functions say of completions that have ended, asked while the others are sampled.

    A slow judge or a sandbox then costs only what it takes longer. Sampling has a thread of its own meanwhile, as
    rewards may need the main one (signals, connections of one thread).

    It is what they would say of all rows in order: where one raises or draws random numbers, none of it counts.
    """

    def __init__(self, functions: dict, reward: Reward, models: Models, rows: list[dict]):
        columns = {name: None for row in rows for name in row["columns"]}  # of all rows, as a batch has them
        self.rows = [row | {"columns": {name: row["columns"].get(name) for name in columns}} for row in rows]
        self.groups, self.waiting = [id(row) for row in rows], Counter(map(id, rows))
        self.functions, self.reward, self.models = functions, reward, models
        self.ids, self.asked, self.failed, self.before = {}, [], False, rng_state()

    def sample(self, engine, prompts: list[list[int]], noise) -> tuple[list, float]:
        """(what `engine.generate` returns, when that was), with completions scored as they end."""
        ended, gone = queue.SimpleQueue(), threading.Event()

        def tell(completions: list[tuple[int, list[int]]]) -> None:
            if gone.is_set():
                raise InterruptedError("nobody waits for these samples")
            ended.put(completions)

        def generate() -> tuple[list, float]:
            if self.models.device.index is not None:  # each thread has its own current GPU, first cuda:0
                torch.cuda.set_device(self.models.device)
            return engine.generate(prompts, noise, tell), time.perf_counter()

        with ThreadPoolExecutor(1, "sampler") as pool:
            sampled = pool.submit(generate)
            sampled.add_done_callback(lambda _: ended.put(None))
            try:
                while (completions := ended.get()) is not None:
                    self.score(completions)
            except BaseException:
                gone.set()
                raise
            return sampled.result()

    def score(self, completions: list[tuple[int, list[int]]]) -> None:
        """Ask the functions about completions (row, ids) that have ended."""
        if self.failed or not completions:
            return
        self.ids |= completions
        self.waiting.subtract(self.groups[row] for row, _ in completions)
        whole = {self.groups[row] for row, _ in completions if not self.waiting[self.groups[row]]}
        of_groups = [row for row, group in enumerate(self.groups) if group in whole]
        try:
            for name, function in self.functions.items():
                rows = [row for row, _ in completions] if scores_alone(function) else of_groups
                self.ask(name, function, rows)
        except (Exception, SystemExit):  # it will be raised again, by all rows in order
            self.failed = True

    def ask(self, name: str, function, rows: list[int]) -> None:
        """Call a function for some rows; what is to be awaited is begun."""
        if not rows:
            return
        texts = [visible_text(self.models.tokenizer, self.ids[row], self.models.eos_ids) for row in rows]
        arguments = reward_arguments([self.rows[row] for row in rows], texts, [self.ids[row] for row in rows])
        calls = reward_calls(function, arguments)
        owners = [[row] for row in rows] if isinstance(function, PerSample) else [rows]
        for owned, call in zip(owners, calls, strict=True):
            with REWARD_STATE.swapped():
                answer = call()
            if inspect.isawaitable(answer):
                answer = reward_loop().start([(0, call, answer)], self.reward.limits)
            self.asked.append((name, owned, answer))

    def results(self) -> dict[str, list]:
        """Raw results by function, of all rows; {} where they would not be those of a call after sampling."""
        results = {name: [None] * len(self.rows) for name in self.functions}
        try:
            for name, rows, answer in [] if self.failed else self.asked:
                value = answer.result()[0] if isinstance(answer, Future) else answer
                values = value.tolist() if hasattr(value, "tolist") else value
                values = [value] if isinstance(self.functions[name], PerSample) else list(values)
                for row, one in zip(rows, values, strict=True):
                    results[name][row] = one
        except Exception:
            self.failed = True
        finally:
            for *_, answer in self.asked:
                if isinstance(answer, Future):
                    answer.cancel()
        drawn = not same_rng(self.before, rng_state())
        if drawn and not self.failed:
            self.reward.in_turn = True
            say("note: a reward draws random numbers: all rewards are called after sampling, in the order of the rows")
        if drawn or self.failed:
            restore_rng(self.before)
            return {}
        return results


def early_scores(config: BaseConfig, models: Models, engine, reward: Reward, rows: list[dict]) -> EarlyScores | None:
    """EarlyScores of the functions that `score_while_sampling` names; None where there are none, or vLLM samples.

    Those that score each alone are called so once they have been slow; it changes no score.
    """
    how = config.score_while_sampling
    ours = isinstance(engine, HFEngine) and isinstance(reward, Reward)
    if how == "never" or not rows or not ours or reward.in_turn:
        return None
    chosen = reward.functions
    if how == "samples":
        chosen = {name: function for name, function in chosen.items() if reward.slow and scores_alone(function)}
    return EarlyScores(chosen, reward, models, rows) if chosen else None


def collect(
    config: BaseConfig, models: Models, engine, reward: Reward, rows: list[dict], noise, timer: dict
) -> list[dict]:
    """Sample and score one completion per row; every process gets the whole batch."""

    def complete(local_rows: list[dict], draws) -> list[dict]:
        start = time.perf_counter()
        prompts = [row["prompt_ids"] for row in local_rows]
        early = early_scores(config, models, engine, reward, local_rows)
        if early:
            outputs, sampled = early.sample(engine, prompts, draws)
        else:
            outputs, sampled = engine.generate(prompts, draws), time.perf_counter()
        texts = [visible_text(models.tokenizer, ids, models.eos_ids) for ids, _ in outputs]
        known = [early.results()] if early else []
        scores, parts = reward(local_rows, texts, [ids for ids, _ in outputs], *known)
        if isinstance(reward, Reward):
            reward.slow = reward.slow or time.perf_counter() - sampled > WORTH_HIDING * (sampled - start)
        count_seconds(timer, start, sampled)
        samples = []
        for i, (row, (ids, logprobs)) in enumerate(zip(local_rows, outputs, strict=True)):
            sample = {name: row[name] for name in ("prompt", "prompt_ids", "columns")} | {"completion": texts[i]}
            sample |= {"response_ids": ids, "rollout_logprobs": logprobs, "finished": ids[-1] in models.eos_ids}
            sample |= {"score": scores[i], "weights": getattr(reward, "weights", {})}
            samples.append(sample | {"rewards": {name: values[i] for name, values in parts.items()}})
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
    rank, size = world()
    shares = dealt([1] * len(rows), [str(row["prompt"]) for row in rows], size, slack=0)  # prompts are read once
    local = shares[rank]
    with raised_in_all(), leaving_early():
        samples = make([rows[i] for i in local], None if noise is None else noise[local])
    return gather_rows(samples, shares=shares)
