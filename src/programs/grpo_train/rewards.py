"""Rewards as TRL calls them, checked and logged; the stages of a run."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from parts.foundation.bundle import EMBEDDED_REWARDS, specs_for
from parts.foundation.messages import UserError, need
from parts.rewards.reward_forms import library_rewards, load_rewards, spec_parts
from parts.rewards.rewards import TAKEN, CallLimits, call_limits, check_columns, checked_scores, raw_results
from parts.rewards.user_code import TRL_EXTRAS, text_of_turns, visible_text
from programs.grpo_train.settings import Config


@dataclass
class Stage:
    """Some steps of the run with their own rewards."""

    weights: dict[str, float]  # by name of the function
    steps: int


def environment_score(rows: list[dict]) -> list[float | None]:
    """The environments' own scores of conversations, known once these were played; None where there is none."""
    return [row["talk"].score for row in rows]


class Scorer:
    """The reward functions of all stages, as TRL calls them, and what they said of the latest rollout.

    TRL sees one function per name and one column, `row`: the number of the row in `rows`. So rewards get the values of
    the file itself, not what a table with one type per column would have made of them.
    """

    def __init__(self, rows: list[dict], limits: CallLimits | None = None):
        self.rows, self.functions, self.names, self.active, self.weights = rows, {}, {}, set(), {}
        self.limits, self.tokenizer, self.eos_ids = limits or CallLimits(), None, []  # make_trainer gives the others
        self.latest, self.seconds, self.none_in_a_row = {}, 0.0, 0
        self.heard = None  # (rows, messages) of the latest conversations, where completions are conversations

    def add(self, function, weight: float, weights: dict[str, float]) -> None:
        """Take a function into a stage's weights, under its own name where no other has that."""
        name = self.names.get(id(function))
        if not name:
            name = getattr(function, "__name__", type(function).__name__)
            while name in {*self.functions, *TAKEN}:
                name += "_2"
            self.names[id(function)], self.functions[name] = name, function
        weights[name] = weights.get(name, 0.0) + weight

    def check_columns(self, row: dict) -> None:
        """Raise UserError if a function requires an argument that the data does not have."""
        functions = {name: function for name, function in self.functions.items() if function is not environment_score}
        check_columns(functions, row, others=(*TRL_EXTRAS, "environments"))

    def enter(self, stage: Stage) -> None:
        self.active, self.weights = {*stage.weights}, stage.weights

    def for_trl(self) -> list[Callable]:

        def named(name: str) -> Callable:
            def reward(prompts, completions, **given):
                return self.scored(name, completions, **given)

            reward.__name__ = name
            return reward

        return [named(name) for name in self.functions]

    def scored(self, name: str, completions: list, completion_ids: list, row: list[int], **extra) -> list:
        """Score a rollout in training and remember it."""
        begin = time.perf_counter()
        if self.latest.get("completion_ids") is not completion_ids:
            rows = [self.rows[i] for i in row]
            said = as_completions(self.tokenizer, rows, completion_ids, self.eos_ids) if not self.heard else None
            seen, said = self.heard or (rows, said)
            self.latest = {"completion_ids": completion_ids, "completions": said, "rows": seen, "rewards": {}}
        if name not in self.active:
            return [None] * len(completion_ids)
        values = self.score(name, self.latest["rows"], self.latest["completions"], completion_ids, extra)
        self.latest["rewards"][name] = values
        self.seconds += time.perf_counter() - begin
        return values

    def score(self, name: str, rows: list[dict], completions: list, completion_ids: list, extra: dict) -> list:
        """Floats and None of one function; an exception names function, row and completion."""
        function = self.functions[name]
        if function is environment_score:
            return environment_score(rows)
        results = raw_results({name: function}, rows, completions, completion_ids, self.limits, **extra)
        return checked_scores(name, results[name], rows, completions)

    def as_samples(
        self, rows: list[dict], completions: list, ids: list[list[int]], rewards: dict, weights: dict
    ) -> list:
        samples = []
        for i, row in enumerate(rows):
            parts = {name: values[i] for name, values in rewards.items()}
            sample = {"prompt": row["prompt"], "completion": text_of_turns(completions[i]), "rewards": parts}
            score = sum(weights[name] * value for name, value in parts.items() if value is not None and name in weights)
            sample |= {"score": score, "length": len(ids[i]), "columns": row["columns"]}
            samples.append(sample | {"finished": bool(ids[i]) and ids[i][-1] in self.eos_ids})
        return samples

    def samples(self) -> list[dict]:
        seen = self.latest
        return self.as_samples(seen["rows"], seen["completions"], seen["completion_ids"], seen["rewards"], self.weights)

    def state_dict(self) -> dict:
        """State of the functions that have one."""
        return {name: f.state_dict() for name, f in self.functions.items() if hasattr(f, "load_state_dict")}

    def load_state_dict(self, states: dict) -> None:
        for name, state in states.items():
            self.functions[name].load_state_dict(state)


def signal_free(scores: list[float], group: int) -> float:
    """Share of groups whose completions all score the same, so that they teach nothing.

    TRL's frac_reward_zero_std asks for a standard deviation below 1e-8, which rounding alone exceeds: eight scores of
    1.2 have 1.3e-7 in float32.
    """
    spread = [max(scores[i : i + group]) - min(scores[i : i + group]) for i in range(0, len(scores), group)]
    return sum(s < 1e-6 for s in spread) / len(spread)


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


def stage_rewards(name: str, config: Config) -> list[tuple]:
    """(function, weight) pairs of a stage's word: FILE.py:function, a --reward by its name, or one of the library."""
    word, star, weight = name.partition("*")
    given = {spec_parts(spec)[1]: spec for spec in config.reward}
    library = {one: one for one in library_rewards(EMBEDDED_REWARDS)}
    names = (word, f"{word}_reward")
    target = next((known[one] for known in (given, library) for one in names if one in known), word)
    return load_rewards(target.partition("*")[0] + star + weight if star else target)


def parse_stages(specs: list[str]) -> list[tuple[list[str], int]]:
    """(rewards, steps) per stage, from `a+b*0.5:200,c:800`."""
    stages = []
    for part in ",".join(specs).split(",") if specs else []:
        match = re.fullmatch(r"\s*(.+):([1-9]\d*)\s*", part)
        need(match, f"got stage {part!r}; expected rewards:steps; try --stages format:200,correctness:800")
        stages.append((match[1].split("+"), int(match[2])))
    return stages


def load_stages(config: Config, rows: list[dict]) -> tuple[Scorer, list[Stage]]:
    """The reward functions and the stages of the run; without --stages there is one."""
    scorer, stages, staged = Scorer(rows, call_limits(config)), [], parse_stages(config.stages)
    planned = [([pair for name in names for pair in stage_rewards(name, config)], steps) for names, steps in staged]
    if not planned:
        given = config.reward if config.environment else specs_for(config.data, config.reward)
        planned = [([pair for spec in given for pair in load_rewards(spec)], 0)]
    for pairs, steps in planned:
        stages.append(Stage({}, steps))
        for function, weight in pairs:
            scorer.add(function, weight, stages[-1].weights)
    named = {spec_parts(word)[1] for words, _ in staged for word in words}
    for spec in config.reward if named else []:
        name = spec_parts(spec)[1]
        got = f"got --reward {spec!r}, which no stage of --stages names"
        need({name, name.removesuffix("_reward")} & named, f"{got}; expected each in one; try it without")
    try:
        json.dumps(scorer.state_dict())
    except TypeError as error:
        raise UserError(f"got a state_dict that is not JSON ({error}); expected numbers, text, lists") from error
    scorer.enter(stages[0])
    return scorer, stages
