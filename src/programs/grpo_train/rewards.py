"""Rewards as TRL calls them, checked and logged."""

import asyncio
import functools
import inspect
import time
from dataclasses import dataclass

from parts.data.pass_band import passes_fully
from parts.rewards.reward_forms import PerSample, as_reward
from parts.rewards.rewards import CallFailed, CallLimits, blamed_row, check_columns, checked_scores, scored_batch
from parts.rewards.user_code import reward_arguments, text_of_turns, visible_text
from programs.grpo_train.data import TRL_EXTRAS


@dataclass
class Stage:
    """Some steps of the run with their own rewards and learning rate (0: the run's)."""

    weights: dict[str, float]  # by name of the function
    steps: int
    learning_rate: float = 0.0


def plain_function(function):
    """The user's function inside a PerSample; any other as it is."""
    return function.function if isinstance(function, PerSample) else function


def environment_score(rows: list[dict]) -> list[float | None]:
    """The environments' own scores of conversations, known once these were played; None where there is none."""
    return [row["talk"].score for row in rows]


class Scorer:
    """The reward functions of all stages, as TRL calls them, and what they said of the latest rollout.

    TRL sees one function per name and one column, `row`: the number of the row in `rows`. So rewards get the values of
    the file itself, not what a table with one type per column would have made of them.
    """

    def __init__(self, rows: list[dict], limits: CallLimits | None = None):
        self.rows, self.functions, self.active, self.weights = rows, {}, set(), {}
        self.limits, self.tokenizer, self.eos_ids = limits or CallLimits(), None, []  # make_trainer gives the others
        self.latest, self.seconds, self.none_in_a_row = {}, 0.0, 0
        self.seen = []  # (row, whether it passes the first reward) of completions since they were last asked for
        self.heard = None  # (rows, messages) of the latest conversations, where completions are conversations

    def add(self, function, weight: float, weights: dict[str, float]) -> None:
        """Take a function into a stage's weights, under its own name or, if another has that, one with a number."""
        name = base = getattr(function, "__name__", type(function).__name__)
        taken = {"mean", "std", "zero_std_frac", "accuracy", "score", "length_mean"}  # other metrics' keys
        number = 1
        while name in taken or plain_function(self.functions.get(name, function)) is not function:
            number += 1
            name = f"{base}_{number}"
        self.functions.setdefault(name, as_reward(function))
        weights[name] = weights.get(name, 0.0) + weight

    def check_columns(self, row: dict) -> None:
        """Raise UserError if a function requires an argument that the data does not have."""
        functions = {name: function for name, function in self.functions.items() if function is not environment_score}
        check_columns(functions, row, others=(*TRL_EXTRAS, "environments"))

    def enter(self, stage: Stage) -> None:
        """Let only a stage's functions score from now on."""
        self.active, self.weights = {*stage.weights}, stage.weights

    def for_trl(self) -> list:
        """One function per name for TRL's reward_funcs; those of async functions are async, so that they overlap."""
        wrapped = []
        for name, function in self.functions.items():
            scored = functools.partial(self.scored, name)
            plain = plain_function(function)
            if any(map(inspect.iscoroutinefunction, (plain, plain.__call__))):
                scored = functools.partial(self.scored_in_thread, name)

            def reward(prompts, completions, scored=scored, **given):
                return scored(completions, **given)

            async def reward_async(prompts, completions, scored=scored, **given):
                return await scored(completions, **given)

            shown = reward_async if scored.func == self.scored_in_thread else reward
            shown.__name__ = name
            wrapped.append(shown)
        return wrapped

    async def scored_in_thread(self, name: str, completions: list, **given) -> list:
        """`scored` beside other async functions."""
        return await asyncio.to_thread(self.scored, name, completions, **given)

    def scored(self, name: str, completions: list, completion_ids: list, row: list[int], **extra) -> list:
        """Score a rollout in training and remember it."""
        begin = time.perf_counter()
        if self.latest.get("completion_ids") is not completion_ids:
            rows = [self.rows[i] for i in row]
            said = as_completions(self.tokenizer, rows, completion_ids, self.eos_ids) if not self.heard else None
            seen, said = self.heard or (rows, said)
            self.latest = {"completion_ids": completion_ids, "completions": said, "rows": seen, "rewards": {}}
        completions = self.latest["completions"]
        values = [None] * len(completions)
        if name in self.active:
            values = self.score(name, self.latest["rows"], completions, completion_ids, extra)
            self.latest["rewards"][name] = values
            if name == next(iter(self.weights)):
                self.seen += [(number, passes_fully({name: value})) for number, value in zip(row, values, strict=True)]
            self.seconds += time.perf_counter() - begin
        return values

    def score(self, name: str, rows: list[dict], completions: list, completion_ids: list, extra: dict) -> list:
        """Floats and None of one function; an exception names function, row and completion."""
        function = self.functions[name]
        if function is environment_score:
            return environment_score(rows)

        def given(chosen: slice) -> dict:
            arguments = reward_arguments(rows[chosen], [""] * len(rows[chosen]), completion_ids[chosen])
            return arguments | {"completions": completions[chosen], **extra}

        try:
            result = scored_batch(function, given(slice(None)), self.limits)
        except CallFailed as failed:
            cause, call = failed.__cause__, failed.number
            raise blamed_row(
                name, function, call, cause, completions, lambda row: given(slice(row, row + 1)), self.limits
            ) from cause
        return checked_scores(name, result, completions)

    def samples(self, eos_ids: list[int]) -> list[dict]:
        """The latest rollout of this process."""
        seen, rewards = self.latest, self.latest["rewards"]
        samples = []
        for i, ids in enumerate(seen["completion_ids"]):
            parts = {name: values[i] for name, values in rewards.items()}
            sample = {
                "prompt": seen["rows"][i]["prompt"],
                "completion": text_of_turns(seen["completions"][i]),
                "columns": seen["rows"][i]["columns"],
            }
            sample |= {"score": weighted_sum(parts, self.weights), "rewards": parts}
            samples.append(sample | {"finished": bool(ids) and ids[-1] in eos_ids})
        return samples

    def scores(self) -> list[float]:
        """Scores of this process's completions in the latest rollout."""
        rewards = self.latest["rewards"]
        count = len(self.latest["completion_ids"])
        return [weighted_sum({k: v[i] for k, v in rewards.items()}, self.weights) for i in range(count)]

    def state_dict(self) -> dict:
        """State of the functions that have one, such as AdaptiveReward."""
        return {name: f.state_dict() for name, f in self.functions.items() if hasattr(f, "load_state_dict")}

    def load_state_dict(self, states: dict) -> None:
        """Put saved states back."""
        for name, state in states.items():
            self.functions[name].load_state_dict(state)


def signal_free(scores: list[float], group: int) -> float:
    """Share of groups whose completions all score the same, so that they teach nothing.

    TRL's frac_reward_zero_std asks for a standard deviation below 1e-8, which rounding alone exceeds: eight scores of
    1.2 have 1.3e-7 in float32.
    """
    spread = [max(scores[i : i + group]) - min(scores[i : i + group]) for i in range(0, len(scores), group)]
    return sum(s < 1e-6 for s in spread) / len(spread)


def weighted_sum(parts: dict[str, float | None], weights: dict[str, float]) -> float:
    """Weighted sum of the parts that apply."""
    return sum(weights[name] * value for name, value in parts.items() if value is not None and name in weights)


def as_completions(tokenizer, rows: list[dict], ids: list[list[int]], eos_ids: list[int]) -> list:
    """Completions in the form in which rewards get them: text, or a message where the row's prompt is chat.

    A message is what the tokenizer's own template or schema of responses makes of it, if it has one.
    """
    from trl.chat_template_utils import parse_response

    parsed = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))
    made = []
    for row, token_ids in zip(rows, ids, strict=True):
        text = visible_text(tokenizer, token_ids, eos_ids)
        if isinstance(row["prompt"], str):
            made.append(text)
        else:
            made.append([parse_response(tokenizer, token_ids) if parsed else {"role": "assistant", "content": text}])
    return made
