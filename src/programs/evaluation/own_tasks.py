"""Tasks of the user: reward functions, own prompts and scores."""

import inspect
import math

from parts.data.rows import check_prompt
from parts.foundation.messages import RewardError, need
from parts.rewards.reward_forms import load_rewards
from parts.rewards.rewards import Reward, call_limits
from programs.evaluation.tasks import Task, mean_values


class RewardTask(Task):
    """Any reward functions: the graders of training are the graders here."""

    name = "reward"
    targets_named = True
    definition = "the mean of each function where it applies; score: their weighted sum"

    def check(self):
        specs = [*self.targets, *self.config.reward]
        need(specs, "got the task reward without functions; expected some; try --task reward:FILE.py:function")
        self.graders = Reward(specs, call_limits(self.config))

    def columns(self, row: dict) -> dict:
        """A row as the Reward class takes it."""
        reserved = ("prompt", "prompts", "completions", "completion_ids")
        return {"prompt": self.question(row), "columns": {k: v for k, v in row.items() if k not in reserved}}

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
        """What the user's code says."""
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
