"""Rewards as TRL calls them, checked and logged."""

import json
import time
from collections.abc import Callable

from parts.foundation.bundle import specs_for
from parts.foundation.messages import UserError
from parts.rewards.rewards import CallLimits, Reward, call_limits, checked_scores, raw_results
from parts.rewards.user_code import TRL_EXTRAS, text_of_turns, visible_text
from programs.grpo_train.settings import Config


def environment_score(rows: list[dict]) -> list[float | None]:
    """The environments' own scores of conversations, known once these were played; None where there is none."""
    return [row["talk"].score for row in rows]


class Scorer(Reward):
    """The reward functions, as TRL calls them, and what they said of the latest rollout.

    TRL sees one function per name and one column, `row`: the number of the row in `rows`. So rewards get the values of
    the file itself, not what a table with one type per column would have made of them.
    """

    def __init__(self, rows: list[dict], specs: list[str], limits: CallLimits | None = None):
        super().__init__(specs, limits)
        self.others = (*TRL_EXTRAS, "environments")
        self.rows, self.tokenizer, self.eos_ids = rows, None, []  # make_trainer gives the last two
        self.latest, self.seconds, self.none_in_a_row = {}, 0.0, 0
        self.heard = None  # (rows, messages) of the latest conversations, where completions are conversations

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

    def as_samples(self, rows: list[dict], completions: list, ids: list[list[int]], rewards: dict) -> list[dict]:
        samples = []
        for i, row in enumerate(rows):
            parts = {name: values[i] for name, values in rewards.items()}
            sample = {"prompt": row["prompt"], "completion": text_of_turns(completions[i]), "rewards": parts}
            score = sum(self.weights[name] * value for name, value in parts.items() if value is not None)
            sample |= {"score": score, "length": len(ids[i]), "columns": row["columns"]}
            samples.append(sample | {"finished": bool(ids[i]) and ids[i][-1] in self.eos_ids})
        return samples

    def samples(self) -> list[dict]:
        seen = self.latest
        return self.as_samples(seen["rows"], seen["completions"], seen["completion_ids"], seen["rewards"])

    def state_dict(self) -> dict:
        """State of the functions that have one, such as AdaptiveReward."""
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


def load_scorer(config: Config, rows: list[dict]) -> Scorer:
    """The reward functions of a run."""
    specs = config.reward if config.environment else specs_for(config.data, config.reward)
    scorer = Scorer(rows, specs, call_limits(config))
    try:
        json.dumps(scorer.state_dict())
    except TypeError as error:
        raise UserError(f"got a state_dict that is not JSON ({error}); expected numbers, text, lists") from error
    return scorer
