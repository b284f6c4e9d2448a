"""An environment: reward_preflight.py's checks, and whether all four programs pay the same scripted answers alike."""

import asyncio
import contextlib
import inspect
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

from parts.data.prompts import prompt_row
from parts.data.rows import read_rows
from parts.environments.conversations import PlayLimits
from parts.environments.environments import load_environments
from parts.environments.scripted_play import ScriptedPlayer
from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError
from parts.rewards.reward_forms import import_file
from programs.prove.proof import Proof, failures_of, preflight_of

TURNS = 8  # of a conversation, as in reward_preflight.py


def is_environment(file: Path, name: str) -> bool:
    """Whether a file's name makes environments: a class without __call__, a dictionary, a call without arguments."""
    member = getattr(import_file("reward", f"{file}:{name}", str(file)), name, None)
    if inspect.isclass(member):
        return not any("__call__" in vars(base) for base in member.__mro__)
    parameters = inspect.signature(member).parameters.values() if callable(member) else ()
    needs_none = all(p.default is not p.empty for p in parameters)  # `*args` and `**columns` have no default
    return isinstance(member, dict) or (callable(member) and needs_none)


def in_ppo_train(module, spec: str, s: ScriptedPlayer) -> list[float]:
    """Returns of ppo_train.py's rollout."""
    engine = SimpleNamespace(generate=lambda prompts, noise: [(ids, [0.0] * 2) for ids in s.continued(prompts)])
    models, config = SimpleNamespace(tokenizer=s.texts, eos_ids=[0]), SimpleNamespace(max_turns=TURNS)
    samples = module.converse(s.setup, config, models, engine, module.Reward(s.rewards), s.rows, None, {})
    return [sample["score"] for sample in samples]


def in_grpo_train(module, spec: str, s: ScriptedPlayer) -> list[float]:
    """Returns that grpo_train.py hands to TRL for conversations played in its rollout_func."""
    scorer, blank = module.Scorer(s.rows, s.rewards), [""] * len(s.rows)
    module.let_environments_score(SimpleNamespace(tool_format=""), s.setup.environments, scorer)
    trainer = SimpleNamespace(use_vllm=False, _generate_single_turn=lambda ids, *_: (s.continued(ids), None))
    numbers, totals = range(len(s.rows)), [0.0] * len(s.rows)
    ids = module.rollout_function(s.setup, scorer)(list(map(str, numbers)), trainer)["completion_ids"]
    for name, reward in zip(scorer.functions, scorer.for_trl(), strict=True):
        for i, score in enumerate(reward(blank, blank, completion_ids=ids, row=numbers)):
            totals[i] += scorer.weights[name] * (score or 0.0)
    return totals


def in_evaluation(module, spec: str, s: ScriptedPlayer) -> list[float]:
    """Scores of evaluation.py's conversations."""

    def generate(requests: list, done, numbers: list[int]) -> None:
        for place, number in enumerate(numbers):
            *ids, end = s.say(number)
            done(place, {"ids": ids, "end": [end]})

    task = object.__new__(module.EnvironmentTask)
    task.reward = module.Reward(s.rewards)
    model = SimpleNamespace(tokenizer=s.texts, eos_ids=[0], turns=lambda: generate)
    given = SimpleNamespace(max_new_tokens=1), s.setup, model, [row | {"sample": 0} for row in s.rows]
    records = task.records(*given, SimpleNamespace(rows={}, hits=0, add=lambda *_: None))
    return [record["metrics"]["score"] for record in records]


def in_verl(module, spec: str, s: ScriptedPlayer) -> list[float]:
    """Scores of the agent loop that verl_train.py gives to verl, with all conversations at once."""
    tools = {kind.name: kind.tools for kind in s.setup.environments.kinds.values()}
    environment = {"file": spec, "tools": tools, "limits": vars(s.setup.limits), "form": "hermes"}
    job = {"environment": environment, "rewards": s.rewards, "reward_limits": (), "columns": []}
    player = module.Player(job, SimpleNamespace(chat_template="-", apply_chat_template=len), [0])
    player.setup = s.setup  # which has texts in place of a tokenizer

    async def one(number: int) -> float:
        async def sample(ids: list[int]) -> tuple[list[int], list[float]]:
            return s.say(number), [0.0] * 2

        return player.scores(*await player.play(s.rows[number], sample), {})[0]

    async def every() -> list[float]:
        return await asyncio.gather(*map(one, range(len(s.rows))))

    return asyncio.run(every())


PLACES = {"ppo_train": in_ppo_train, "grpo_train": in_grpo_train, "evaluation": in_evaluation, "verl_train": in_verl}


def prove_environment(spec: str, data: str, flags: list[str], seconds: float) -> Proof:
    """Preflight an environment on the rows of `data`, then play the same answers in all four programs."""
    report = preflight_of("environment", spec, data, flags, seconds)
    proof, rows, plays = Proof("environment", spec), read_rows(data), report["plays"]
    proof.findings, proof.figures = failures_of(report), {name: report[name] for name in ("gold", "policies")}
    policies = [line for line in report["policies"] if line["name"] != "gold" and line["max"] is not None]
    paid = ", ".join(f"{line['name']} {line['max']:g}" for line in policies)
    if gold := report["gold"]:
        marks = f"gold answers ({gold['variant']}) have full marks in {gold['full_marks']:.0%} of {gold['rows']} rows"
        proof.say(f"reward_preflight.py played {spec} on {data}: {marks}; the most that others are paid: {paid}.")
    else:
        proof.skip("What gold answers are paid", "no row says them; try a column gold with the answers of each turn")
    if not plays:
        proof.skip("What the four places pay", "no conversation came to its end")
        return proof
    column = dict(itertools.pairwise(flags)).get("--prompt_column", "prompt")
    compare_places(proof, spec, report, [prompt_row(rows[play["row"] - 1], column, data) for play in plays])
    return proof


def compare_places(proof: Proof, spec: str, report: dict, rows: list[dict]) -> None:
    """Play the answers of reward_preflight.py's `report` in every program; add findings where returns differ."""
    plays, returns, same = report["plays"], {}, []
    expected, scripts = [play["return"] for play in plays], [play["script"] for play in plays]
    for name, play_there in PLACES.items():
        try:
            with contextlib.redirect_stdout(sys.stderr):
                module = import_file("script", name, str(BUNDLE / "scripts" / f"{name}.py"))
                player = ScriptedPlayer(load_environments(spec), rows, scripts, PlayLimits(TURNS, 10**15, 1))
                player.rewards = report["reward"]
                returns[name] = play_there(module, spec, player)
        except UserError as error:  # raised by the import: a script's own UserError is another class
            proof.skip(f"What {name}.py pays", str(error))
            continue
        except Exception as error:  # the environment may fail in another order or thread
            proof.find(f"{name}.py: {type(error).__name__}: {str(error)[:200]}")
            continue
        wrong = [i for i, (a, b) in enumerate(zip(returns[name], expected, strict=True)) if abs(a - b) > 1e-9]
        same += [] if wrong else [name]
        if wrong:
            play, got = plays[wrong[0]], returns[name][wrong[0]]
            where = f"row {play['row']}, policy {play['policy']}: {got:g}, alone {play['return']:g}"
            proof.find(f"{name}.py pays {len(wrong)} of {len(plays)} conversations otherwise, such as {where}")
    proof.figures["returns"] = {"alone": expected, **returns}
    proof.say(f"The same answers in {len(plays)} conversations are paid the same by {', '.join(same) or 'none'}.")
