"""One environment class in four places: the same sampled answers become the same conversations and the same rewards.

The places are ppo_train.py, grpo_train.py (what it hands TRL), evaluation.py and the agent loop that verl_train.py
writes; with_verl runs that loop in verl's own trainer.
"""

import asyncio
import json
import types

import pytest
import test_verl_environment as verl_side
import torch
from chat_tokenizers import TOOLS
from conftest import ROOT, TINY_LM, load_script, read_lines, write_lines

from parts.environments.play_setup import load_with_reward, make_play_setup
from programs.ppo_train.models import load_models
from programs.ppo_train.rollout import converse
from programs.ppo_train.settings import Config

grpo, evaluation, verl = (load_script(name) for name in ("grpo_train", "evaluation", "verl_train"))
END = 2
REWARD = """
def spoils(prompts, completions, **kwargs):  # what the next function gets
    for messages in completions:
        messages.clear()
    return [0.0] * len(completions)


def turns(prompts, completions, **kwargs):
    return [float(sum(m["role"] == "assistant" for m in messages)) for messages in completions]
"""


def call(name: str, **arguments) -> str:
    """A tool call in Hermes' form."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


# (environment, prompt, gold answer, what is sampled, the environment's score)
TALKS = [
    ("second", "1+1=", "2", ["<answer>2</answer>"], 1.0),
    ("second", "2+2=", "4", ["<answer>5</answer>", "<answer>4</answer>"], 0.5),
    ("second", "3+3=", "6", ["<answer>5</answer>", "six"], 0.0),
    ("calculator", "4*4=", "16", [call("calculate", expression="4*4"), call("submit", answer="16"), "Done."], 1.0),
    ("calculator", "5*5=", "25", [call("calculate", expression="1/0"), call("submit", answer="10"), "Done."], 0.0),
    ("calculator", "6*6=", "36", ["I do not know."], 0.0),
]
BEGINS = [begun for _, begun, *_ in TALKS]
SCORES = [score + 0.25 * len(said) for *_, said, score in TALKS]  # with the reward's weight


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the rows, the reward, and the embedded model with a chat template that shows tools."""
    import transformers

    folder = tmp_path_factory.mktemp("place")
    rows = [{"prompt": prompt, "answer": gold, "environment": kind} for kind, prompt, gold, *_ in TALKS]
    write_lines(folder / "rows.jsonl", rows)
    (folder / "tools.jinja").write_text(TOOLS)
    (folder / "own.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'examples')!r})\n"
        "from environments import Calculator, SecondAttempt\n"
        "KINDS = {'second': SecondAttempt, 'calculator': Calculator}\n" + REWARD
    )
    tokenizer = tokenizer_of(TINY_LM)
    tokenizer.chat_template = TOOLS
    transformers.AutoModelForCausalLM.from_pretrained(TINY_LM).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


def tokenizer_of(folder):
    """The tokenizer of a model."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


def flags_of(place, *more: str) -> list[str]:
    """The flags that all four take."""
    flags = [f"--model={place}/model", f"--data={place}/rows.jsonl", f"--environment={place}/own.py:KINDS"]
    return [*flags, *(f"--reward={spec}" for spec in rewards_of(place)), "--max_turns=3", *more]


def rewards_of(place) -> list[str]:
    """The reward functions beside the environments."""
    return [f"{place}/own.py:spoils", f"{place}/own.py:turns*0.25"]


class Scripted:
    """Samples what TALKS says, for each conversation by the prompt that it began with."""

    def __init__(self, tokenizer):
        self.tokenizer, self.said = tokenizer, dict.fromkeys(BEGINS, 0)

    def answer(self, ids: list[int]) -> list[int]:
        """Token ids of the next answer to a conversation."""
        begun = next(prompt for prompt in BEGINS if prompt in self.tokenizer.decode(ids))
        self.said[begun] += 1
        text = TALKS[BEGINS.index(begun)][3][self.said[begun] - 1]
        return [*self.tokenizer(text, add_special_tokens=False).input_ids, END]

    def generate(self, prompts, noise):
        """As the sampling engine of ppo_train."""
        return [(ids := self.answer(prompt), [-1.0] * len(ids)) for prompt in prompts]


def in_ppo_train(place) -> tuple[list, list[float]]:
    """(ids after the prompts, scores)."""
    config = Config(
        **{"model": f"{place}/model", "environment": f"{place}/own.py:KINDS", "reward": rewards_of(place)},
        **{"max_turns": 3, "max_new_tokens": 96, "algorithm": "grpo", "max_prompt_tokens": 736, "precision": "fp32"},
    )
    models = load_models(config, torch.device("cpu"))
    environments, reward = load_with_reward(config, models.tokenizer)
    setup = make_play_setup(config, models.tokenizer, models.eos_ids, environments)
    rows = read_lines(place / "rows.jsonl")
    rows = [{"prompt": row.pop("prompt"), "columns": row} for row in rows]
    samples = converse(setup, config, models, Scripted(models.tokenizer), reward, rows, None, {})
    return [(s["response_ids"], s["response_mask"]) for s in samples], [s["score"] for s in samples]


def in_grpo_train(place) -> tuple[list, list[float]]:
    """(ids after the prompts, weighted sums), as TRL gets them."""
    sizes = ["--max_completion_length=96", "--max_prompt_length=736", "--num_generations=2"]
    ready = grpo.prepare_run(grpo.parse_config(flags_of(place, *sizes)))
    engine, numbers = Scripted(ready.tokenizer), list(range(len(TALKS)))

    def sample(prompts, *_):
        return [engine.answer(ids) for ids in prompts], None

    trainer = types.SimpleNamespace(use_vllm=False, _generate_single_turn=sample)
    out = grpo.rollout_function(ready.setup, ready.scorer)([str(n) for n in numbers], trainer)
    given = {"prompts": [""] * 6, "completions": [""] * 6, "completion_ids": out["completion_ids"], "row": numbers}
    extras = {"trainer_state": None, "log_extra": None, "log_metric": None}
    values = {f.__name__: f(**given, **extras) for f in ready.scorer.for_trl()}
    scores = [sum(ready.scorer.weights[name] * column[i] for name, column in values.items()) for i in numbers]
    return list(zip(out["completion_ids"], out["env_mask"], strict=True)), scores


def in_evaluation(place, monkeypatch) -> tuple[list, list[float]]:
    """(ids after the prompts, scores)."""
    talks, play, engine = [], evaluation.play, Scripted(tokenizer_of(place / "model"))

    def generate(requests, done, numbers):
        for i, request in enumerate(requests):
            *ids, end = engine.answer(request.ids)
            done(i, {"ids": ids, "end": [end], "text": "", "finished": True})

    monkeypatch.setattr(evaluation, "play", lambda *given: talks.append(play(*given)) or talks[-1])
    monkeypatch.setattr(evaluation.LocalModel, "turns", lambda _: generate)
    output = place / "evaluated"
    flags = flags_of(place, "--max_new_tokens=96", "--max_prompt_tokens=736", "--precision=fp32", "--cache=false")
    assert evaluation.main([*flags, f"--output_dir={output}"]) == 0
    samples = read_lines(output / "samples.jsonl")
    ids = [(talk.response_ids, talk.response_mask) for talk in talks[0]]
    return ids, [sample["metrics"]["score"] for sample in samples]


def in_verl(place) -> tuple[list, list[float]]:
    """(ids after the prompts, scores), by the loop that the job folder holds."""
    output = place / "job"
    sizes = ["--max_new_tokens=96", "--max_prompt_tokens=736", "--algorithm=grpo", "--group_size=2", "--batch_size=12"]
    verl.prepare_job(verl.parse_config(flags_of(place, *sizes, "--print", f"--output_dir={output}")))
    settings = verl_side.verl.job_settings(output / "job")
    rows, tokenizer = verl_side.rows_of_parquet(output / "job" / "train.parquet"), tokenizer_of(place / "model")
    engine = Scripted(tokenizer)

    async def generate(request_id, prompt_ids, sampling_params, priority):
        ids = engine.answer(prompt_ids)
        found = types.SimpleNamespace(token_ids=ids, log_probs=[-1.0] * len(ids), num_preempted=None)
        found.routed_experts, found.extra_fields = None, {}
        return found

    async def all_of_them():
        player = verl.Player(settings, tokenizer, [END])

        async def one(row: dict):
            request = {"request_id": row["prompt"], "priority": 0}
            server = types.SimpleNamespace(generate=generate)
            sample = verl.Sampler(server, {"temperature": 1.0}, player.setup.limits, request)
            talk, values = await player.play(player.row(row), sample)
            return (talk.response_ids, talk.response_mask), player.scores(talk, values, {})[0]

        return await asyncio.gather(*map(one, rows))

    return tuple(map(list, zip(*asyncio.run(all_of_them()), strict=True)))


@pytest.fixture(scope="module")
def expected(place):
    """What ppo_train makes of the answers."""
    return in_ppo_train(place)


def test_ppo_train_pays_what_the_environment_says(place, expected):
    talks, scores = expected
    assert scores == pytest.approx(SCORES)
    sampled = [sum(mask) for _, mask in talks]
    engine = Scripted(tokenizer_of(place / "model"))
    for (kind, prompt, _, said, _), count in zip(TALKS, sampled, strict=True):
        ids = [engine.answer(engine.tokenizer(prompt).input_ids) for _ in said]
        assert count == sum(map(len, ids)), (kind, prompt)


def test_grpo_train_has_the_same(place, expected):
    assert in_grpo_train(place) == (expected[0], pytest.approx(expected[1]))


def test_evaluation_has_the_same(place, expected, monkeypatch):
    assert in_evaluation(place, monkeypatch) == (expected[0], pytest.approx(expected[1]))


def test_verls_loop_has_the_same(place, expected):
    assert in_verl(place) == (expected[0], pytest.approx(expected[1]))
