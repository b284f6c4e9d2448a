"""Tasks of the user: reward functions, conversations with an environment."""

import dataclasses
from typing import ClassVar

from parts.data.prompts import RESERVED
from parts.environments.conversations import Conversation, PlaySetup, play
from parts.environments.play_setup import (
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
from parts.evaluating.paired_tests import Values
from parts.foundation.messages import need
from parts.rewards.rewards import Reward, call_limits
from parts.rewards.user_code import visible_text
from parts.sampling.rollouts import shared_out
from programs.evaluation.requests import Request, ResultCache
from programs.evaluation.rows import PROMPT_COLUMNS
from programs.evaluation.settings import Config
from programs.evaluation.tasks import Task


class RewardTask(Task):
    """Any reward functions: the graders of training are the graders here."""

    name = "reward"
    targets_named = True
    definition = "the mean of each function where it applies; score: their weighted sum"

    def check(self):
        specs = [*self.targets, *self.config.reward]
        need(specs, "got task reward without a function; try --task reward:FILE.py:function")
        self.graders = Reward(specs, call_limits(self.config))

    def columns(self, row: dict) -> dict:
        return {"prompt": self.question(row), "columns": {k: v for k, v in row.items() if k not in RESERVED}}

    def check_row(self, row):
        self.graders.check_columns(self.columns(row))

    def score_pairs(self, pairs):
        texts, ids = ([out[key] for _, out in pairs] for key in ("text", "ids"))
        scores, parts = self.graders([self.columns(row) for row, _ in pairs], texts, ids)
        for i, score in enumerate(scores):
            metrics = {name: values[i] for name, values in parts.items()}
            applies = any(x is not None for x in metrics.values())
            metrics["score"] = score if applies else None
            yield {"metrics": metrics, "extracted": None, "reason": "" if applies else "no function applies"}


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
        need(given, "got task environment without a class; try --environment FILE.py:Class")
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

    def play(self, model, rows: list[dict]) -> tuple:
        """(rows that were played, their prompts, the records of their conversations, counts)."""
        config = dataclasses.replace(self.config, model=model.source, max_new_tokens=self.max_new_tokens)
        check_chat_template(config, model.tokenizer)
        check_fits(config, model.max_length)
        setup = make_play_setup(config, model.tokenizer, model.eos_ids, self.environments)
        examples = [self.example(row) | {"place": f"{self.source}, row {i}"} for i, row in enumerate(rows, start=1)]
        examples = playable_rows(config, setup, examples, self.source)
        each = [{**example, "sample": i} for example in examples for i in range(config.n)]
        cache = ResultCache(config, model, "conversation")
        try:
            records = shared_out(lambda examples, _: self.records(config, setup, model, examples, cache), each, None)
        finally:
            cache.close()
        grouped = [records[start : start + config.n] for start in range(0, len(records), config.n)]
        counts = {"prompts_cut": 0, "rows_left_out": len(rows) - len(examples), "from_cache": cache.hits}
        return [e["row"] for e in examples], [e["prompt"] for e in examples], grouped, counts

    def records(self, config: Config, setup: PlaySetup, model, examples: list[dict], cache: ResultCache) -> list[dict]:
        """Play and score one conversation for each of this process's examples."""
        answer = answers_of(config, model, examples, cache)
        conversations = play(examples, setup, answer)
        scores = score_talks(setup, examples, conversations, self.reward)
        weights = score_weights(self.reward, scores[0]) if scores else {}
        return [conversation_record(model, c, values, weights) for c, values in zip(conversations, scores, strict=True)]

    def values_of(self, records):
        values = super().values_of(records)
        del values["failures"]
        failed, calls = ([sum(r["metrics"][name] for r in row) for row in records] for name in ("failures", "calls"))
        return values | {"failure_frac": Values(failed, calls, higher_is_better=False)}


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
