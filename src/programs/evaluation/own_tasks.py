"""Tasks of the user: reward functions, own prompts and scores, conversations with an environment."""

import dataclasses
import inspect
import math
from typing import ClassVar

from parts.data.prompts import RESERVED
from parts.data.rows import check_prompt
from parts.environments.conversations import Conversation
from parts.environments.play import play
from parts.environments.play_setup import (
    PlaySetup,
    check_chat_template,
    check_environment_rows,
    check_fits,
    load_scored,
    make_play_setup,
    pieces,
    playable_rows,
    score_talks,
    score_weights,
)
from parts.foundation.messages import RewardError, need
from parts.reading.paired_tests import Values
from parts.rewards.reward_forms import load_rewards
from parts.rewards.rewards import Reward, call_limits
from parts.rewards.user_code import visible_text
from parts.sampling.rollouts import shared_out
from programs.evaluation.requests import Request, ResultCache
from programs.evaluation.rows import PROMPT_COLUMNS
from programs.evaluation.settings import Config
from programs.evaluation.tasks import Task, mean_values, pass_values


class RewardTask(Task):
    """Any reward functions: the graders of training are the graders here."""

    name = "reward"
    targets_named = True
    definition = "the mean of each function where it applies; score: their weighted sum"

    def check(self):
        specs = [*self.targets, *self.config.reward]
        need(specs, "got the task reward without functions; expected at least one; try --task reward:FILE.py:function")
        self.graders = Reward(specs, call_limits(self.config))

    def columns(self, row: dict) -> dict:
        return {"prompt": self.question(row), "columns": {k: v for k, v in row.items() if k not in RESERVED}}

    def check_row(self, row):
        self.graders.check_columns(self.columns(row))

    def score(self, rows, outputs):
        flat = [(self.columns(row), out) for row, outs in zip(rows, outputs, strict=True) for out in outs]
        texts, ids = ([out[key] for _, out in flat] for key in ("text", "ids"))
        scores, parts = self.graders([row for row, _ in flat], texts, ids)
        scored = []
        for i, score in enumerate(scores):
            metrics = {name: values[i] for name, values in parts.items()}
            applies = any(x is not None for x in metrics.values())
            metrics["score"] = score if applies else None
            scored.append({"metrics": metrics, "extracted": None, "reason": "" if applies else "no function applies"})
        rest = iter(scored)
        records = [[next(rest) for _ in outs] for outs in outputs]
        return records, mean_values(records)


class Custom(Task):
    """A function `score(row, completion)` or a class with that method, `prompt(row)`, `target(row)`, `stop`."""

    name = "custom"
    targets_named = True
    definition = "the mean of what the task's own score returns"

    def check(self):
        need(len(self.targets) == 1, f"got {self.label!r}; expected custom:FILE.py:name")
        ((target, _),) = load_rewards(self.targets[0])
        self.user_task = target() if inspect.isclass(target) else target
        self.score_row = getattr(self.user_task, "score", self.user_task)
        need(callable(self.score_row), f"got {self.label!r}: no method score; expected score(row, completion)")

    def question(self, row):
        if not hasattr(self.user_task, "prompt"):
            return self.prompt(row)
        prompt = self.call_user(f"prompt of {self.label}", self.user_task.prompt, row)
        check_prompt(prompt, f"prompt of {self.label}")
        return prompt

    def target(self, row):
        if not hasattr(self.user_task, "target"):
            return super().target(row)
        return self.call_user(f"target of {self.label}", self.user_task.target, row)

    def call_user(self, where: str, function, *given):
        try:
            return function(*given)
        except Exception as error:
            raise RewardError(f"{where}: raised {type(error).__name__}: {error}") from error

    def stops(self, chat):
        return list(getattr(self.user_task, "stop", []))

    def score_one(self, row, out):
        where = f"task {self.label}, completion {out['text'][:200]!r}"
        result = self.call_user(where, self.score_row, row, out["text"])
        metrics = dict(result) if isinstance(result, dict) else {"score": result}
        extra = {key: metrics.pop(key) for key in ("extracted", "reason") if key in metrics}
        for name, value in metrics.items():
            value = value.item() if hasattr(value, "item") else value
            if not (value is None or (isinstance(value, int | float) and math.isfinite(value))):
                raise RewardError(f"{where}: got {name} {value!r}; expected a finite number, True, False or None")
            metrics[name] = None if value is None else float(value)
        return {"extracted": None, "reason": "", **extra, "metrics": metrics}


class EnvironmentTask(Task):
    """Conversations with --environment: what its tools and replies say, what it pays."""

    name = "environment"
    plays = True
    options: ClassVar[dict] = {"k": ""}
    passes = "accuracy"
    neutral = ("turns", "calls", "tool_seconds", "length_tokens")
    directions: ClassVar[dict] = dict.fromkeys(neutral) | {"limit_frac": False}
    definition = (
        "score: get_reward and the reward functions with their weights; accuracy: 1 or more by the first of them, and "
        "what pass@k counts; failure_frac: share of tool calls; limit_frac: ended by max_turns or by the tokens"
    )

    def check(self):
        given = self.config.environment
        need(given, "got the task environment without one; expected a class; try --environment FILE.py:Class")
        self.tried = set()
        self.environments, self.reward = load_scored(self.config)

    def example(self, row: dict) -> dict:
        """A row as conversations take it: its prompt, and the columns that `reset` and the rewards get."""
        asked = next((name for name in PROMPT_COLUMNS if row.get(name) is not None), "prompt")
        columns = {name: value for name, value in row.items() if name not in (*RESERVED, asked)}
        return {"prompt": self.question(row), "columns": columns, "row": row}

    def check_row(self, row):
        example = self.example(row)
        key = (self.environments.kind_of(example["columns"]).name, *example["columns"])
        if key not in self.tried:
            check_environment_rows(self.environments, [example])
            self.reward.check_columns(example)
            self.tried.add(key)

    def play(self, model, rows: list[dict]) -> tuple[list[dict], list[list[dict]], int]:
        """(examples that were played, the records of their conversations, answers that came from the cache)."""
        config = dataclasses.replace(self.config, model=model.source, max_new_tokens=self.max_new_tokens)
        check_chat_template(config, model.tokenizer)
        check_fits(config, model.max_length)
        setup = make_play_setup(config, model.tokenizer, model.eos_ids, self.environments)
        examples = playable_rows(config, setup, list(map(self.example, rows)), self.source)
        each = [{**example, "sample": i} for example in examples for i in range(config.n)]
        cache = ResultCache(config, model, "conversation")
        try:
            records = shared_out(lambda examples, _: self.records(config, setup, model, examples, cache), each, None)
        finally:
            cache.close()
        grouped = [records[start : start + config.n] for start in range(0, len(records), config.n)]
        return examples, grouped, cache.hits

    def records(self, config: Config, setup: PlaySetup, model, examples: list[dict], cache: ResultCache) -> list[dict]:
        """Play and score one conversation for each of this process's examples."""
        answer = answers_of(config, model, examples, cache)
        conversations = play(examples, setup.environments, setup.bridge, answer, setup.limits, setup.form)
        scores = score_talks(setup, examples, conversations, self.reward)
        weights = score_weights(self.reward, scores[0]) if scores else {}
        return [conversation_record(model, c, values, weights) for c, values in zip(conversations, scores, strict=True)]

    def values_of(self, records: list[list[dict]]) -> dict:
        values = mean_values(records, self.directions)
        del values["failures"]
        failed, calls = ([sum(r["metrics"][name] for r in row) for row in records] for name in ("failures", "calls"))
        values["failure_frac"] = Values(failed, calls, higher_is_better=False)
        return values | pass_values(records, self.passes, self.ks)


def answers_of(config: Config, model, examples: list[dict], cache: ResultCache):
    """The `sample` of `play`: the model's answers, taken from the cache where it has them."""
    from tqdm import tqdm

    generate = model.turns()

    def answer(prompts: list[list[int]], numbers: list[int], turn: int) -> list[tuple[list[int], list[float]]]:
        pairs = zip(prompts, numbers, strict=True)
        asked = [Request(ids, sample=examples[n]["sample"], limit=config.max_new_tokens) for ids, n in pairs]
        outputs = [cache.rows.get(request.key()) for request in asked]
        missing = [i for i, output in enumerate(outputs) if output is None]
        cache.hits += len(asked) - len(missing)
        with tqdm(total=len(missing), desc=f"turn {turn + 1}", disable=None) as bar:

            def done(place: int, output: dict) -> None:
                outputs[missing[place]] = output
                cache.add(asked[missing[place]].key(), output)
                bar.update()

            generate([asked[i] for i in missing], done, [numbers[i] for i in missing])
        ids = [[*output["ids"], *output["end"]] for output in outputs]  # as they were sampled
        return [(answer_ids, [0.0] * len(answer_ids)) for answer_ids in ids]

    return answer


def conversation_record(model, conversation: Conversation, scores: dict, weights: dict) -> dict:
    answers = [conversation.response_ids[start:end] for start, end in conversation.spans]
    first = next(iter(scores.values()))
    metrics = {
        "score": sum(weights[name] * value for name, value in scores.items() if value is not None),
        "accuracy": float(first is not None and first >= 1.0),
        **scores,
        "turns": len(conversation.spans),
        "calls": conversation.calls,
        "failures": conversation.failures,
        "limit_frac": float(conversation.ended_by in ("turns", "tokens")),
        "tool_seconds": conversation.seconds,
        "length_tokens": sum(conversation.response_mask),
    }
    return {
        "completion": "\n".join(visible_text(model.tokenizer, ids, model.eos_ids) for ids in answers),
        "tokens": sum(conversation.response_mask),
        "finish": conversation.ended_by,
        "metrics": metrics,
        "extracted": None,
        "reason": f"ended by {conversation.ended_by}",
        "turn_rewards": conversation.turn_rewards,
        "messages": conversation.messages,
        "pieces": pieces(model.tokenizer, conversation),
    }
