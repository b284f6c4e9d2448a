"""Stages of rewards over a run."""

import json
import math
import re

from parts.foundation.bundle import EMBEDDED_REWARDS, specs_for
from parts.foundation.messages import UserError, need, suggest
from parts.rewards.reward_forms import library_rewards, load_rewards
from parts.rewards.rewards import call_limits
from programs.grpo_train.rewards import Scorer, Stage
from programs.grpo_train.settings import Config


def resolve_rewards(name: str, config: Config) -> list[tuple]:
    """(function, weight) pairs of a stage's word: FILE.py:function, a --reward by its name, or one of the library."""
    word, star, weight = name.partition("*")
    if ".py:" in word:
        return load_rewards(name)
    specs = {spec.partition("*")[0].rpartition(":")[2]: spec.partition("*")[0] for spec in config.reward}
    for candidate in (word, f"{word}_reward"):
        if candidate in specs:
            return load_rewards(specs[candidate] + star + weight)
    known = library_rewards(EMBEDDED_REWARDS)
    for candidate in (f"{word}_reward", word):
        if candidate in known:
            return load_rewards(candidate + star + weight)
    near = suggest(word, [*specs, *(n.removesuffix("_reward") for n in known)])
    raise UserError(f"got stage reward {name!r}; expected FILE.py:function, a --reward's name or a library's{near}")


def parse_stages(specs: list[str]) -> list[tuple[list[str], int, float]]:
    """(rewards, steps, learning rate or 0) per stage, from `a+b*0.5:200@1e-5,c:800`, or a YAML mapping each."""
    import yaml

    stages = []
    for part in [part for spec in specs for part in ([spec] if spec.lstrip().startswith("{") else spec.split(","))]:
        got = (
            f"got stage {part!r}; expected rewards:steps[@learning_rate], or the keys rewards, steps and learning_rate"
        )
        got += "; try --stages format:200,correctness:800, or --config FILE.yaml with a list `stages:`"
        match = re.fullmatch(r"\s*(?P<rewards>.+):(?P<steps>\d+)(@(?P<learning_rate>[\d.eE+-]+))?\s*", part)
        try:
            if part.lstrip().startswith("{"):
                stage = yaml.safe_load(part)
            else:
                stage = match and match.groupdict() | {"rewards": match["rewards"].split("+")}
            need(isinstance(stage, dict) and {*stage} <= {"rewards", "steps", "learning_rate"}, got)
            rate, steps = float(stage.get("learning_rate") or 0), int(stage.get("steps") or 0)
        except (TypeError, ValueError, yaml.YAMLError):
            raise UserError(got) from None
        rewards = stage.get("rewards") or []
        need(rewards and steps > 0 and rate >= 0 and math.isfinite(rate), got)
        stages.append(([rewards] if isinstance(rewards, str) else list(rewards), steps, rate))
    return stages


def load_stages(config: Config, rows: list[dict]) -> tuple[Scorer, list[Stage]]:
    """The reward functions and the stages of the run; without --stages there is one."""
    scorer, stages = Scorer(rows, call_limits(config)), []
    for rewards, steps, rate in parse_stages(config.stages):
        stages.append(Stage({}, steps, rate))
        for function, weight in [pair for name in rewards for pair in resolve_rewards(name, config)]:
            scorer.add(function, weight, stages[-1].weights)
    if not stages:
        specs = [*config.reward, *(f"{EMBEDDED_REWARDS}:{name}" for name in config.preset)]
        if not config.converses:
            specs = specs_for(config.data, specs, ", or --preset MATH_REASONING_REWARDS")
        stages = [Stage({}, 0)]
        for function, weight in [pair for spec in specs for pair in load_rewards(spec)]:
            scorer.add(function, weight, stages[0].weights)
    try:
        json.dumps(scorer.state_dict())
    except TypeError as error:
        raise UserError(f"got a reward whose state_dict is no JSON ({error}); expected numbers, text, lists") from error
    scorer.enter(stages[0])
    return scorer, stages


def stage_at(stages: list[Stage], step: int) -> int:
    """Index of the stage to which the step after `step` optimizer steps belongs."""
    for i, stage in enumerate(stages[:-1]):
        if step < stage.steps:
            return i
        step -= stage.steps
    return len(stages) - 1
