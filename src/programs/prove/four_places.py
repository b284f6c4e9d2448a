"""Play the same scripted answers in all four programs that take an environment, and compare what they pay."""

import asyncio
import functools
from types import SimpleNamespace

from parts.environments.environments import load_environments
from parts.environments.scripted_play import ScriptedPlayer
from parts.foundation.bundle import BUNDLE
from parts.foundation.messages import UserError
from parts.rewards.reward_forms import import_file
from programs.prove.proof import Proof

CAUSE = "try setting every attribute in reset, on self, and taking nothing from chance, time or a class attribute"


def in_ppo_train(module, spec: str, s: ScriptedPlayer) -> list[float]:
    """Returns of ppo_train.py's rollout."""
    engine = SimpleNamespace(generate=lambda prompts, noise: [(ids, [0.0] * 2) for ids in s.continued(prompts)])
    models = SimpleNamespace(tokenizer=s.texts, eos_ids=[0])
    config = SimpleNamespace(max_turns=s.setup.limits.turns)
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


def places(spec: str, rewards: list[str], limits, plays: list[dict]) -> dict:
    """{program: function that plays the answers there and gives their returns}."""
    rows, scripts = [play["row"] for play in plays], [play["script"] for play in plays]

    def played(name: str) -> list[float]:
        module = import_file("script", name, str(BUNDLE / "scripts" / f"{name}.py"))
        scripted = ScriptedPlayer(load_environments(spec), rows, scripts, limits)
        scripted.rewards = rewards
        return PLACES[name](module, spec, scripted)

    return {f"{name}.py": functools.partial(played, name) for name in PLACES}


def compare_ways(proof: Proof, plays: list[dict], ways: dict) -> None:
    """Play the same answers in every way; add findings where returns differ from those of conversations alone."""
    returns, same = {}, []
    for name, play_there in ways.items():
        is_program = name.endswith(".py")
        try:
            returns[name] = play_there()
        except Exception as error:  # the environment may fail in another order or thread
            if is_program and isinstance(error, UserError):  # of the import: a script's own UserError is another class
                proof.skip(f"What {name} pays", str(error))
            else:
                proof.find(f"{name} fails: {type(error).__name__}: {str(error)[:200]}")
            continue
        wrong = [(play, x) for play, x in zip(plays, returns[name], strict=True) if abs(x - play["return"]) > 1e-9]
        if wrong:
            play, got = wrong[0]
            where = f"row {play['row']['number']}, policy {play['policy']}: {got:g}, alone {play['return']:g}"
            cause = "" if is_program else f"; {CAUSE}"
            proof.find(f"{name} pays {len(wrong)} of {len(plays)} conversations otherwise, such as {where}{cause}")
        elif is_program:
            same.append(name.removesuffix(".py"))
    proof.figures["returns"] = {"alone": [play["return"] for play in plays], **returns}
    proof.say(f"The same answers in {len(plays)} conversations are paid the same by {', '.join(same) or 'none'}.")
