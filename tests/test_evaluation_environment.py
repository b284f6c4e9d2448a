"""evaluation.py --environment: the conversations and rewards of ppo_train, its figures, files, cache and messages."""

import copy
import json

import pytest
import torch
from chat_tokenizers import call, chat_tokenizer
from conftest import EVAL_DATA, ROOT, read_lines, save_random_model

from parts.environments.conversations import play_metrics
from parts.environments.play_setup import load_scored, make_play_setup
from parts.evaluating.paired_tests import Values, compare_values, summarize
from parts.sampling.sampling import HFEngine
from programs.evaluation.local_model import LocalModel, PrefixEngine
from programs.evaluation.own_tasks import EnvironmentTask
from programs.evaluation.requests import Request
from programs.evaluation.run import main
from programs.evaluation.settings import Config
from programs.ppo_train.models import load_models
from programs.ppo_train.rollout import converse
from programs.ppo_train.settings import Config as TrainConfig

EXAMPLES = ROOT / "examples" / "environments.py"
ROWS = 10
REWARD = """
def said(prompts, completions, completion_ids, answer, **kwargs):
    turns = [sum(m["role"] == "assistant" for m in messages) for messages in completions]
    return [n + 0.001 * len(ids) + 0.1 * len(a) for n, ids, a in zip(turns, completion_ids, answer, strict=True)]
"""


def environment_of(folder) -> dict:
    """What results.json says of the task `environment`."""
    return json.loads((folder / "results.json").read_text())["tasks"]["environment"]


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """(folder, flags) of an evaluation of the embedded model at SecondAttempt, with a reward beside it."""
    folder = tmp_path_factory.mktemp("second")
    (folder / "own.py").write_text(REWARD)
    flags = ["--environment", f"{EXAMPLES}:SecondAttempt", "--reward", f"{folder}/own.py:said*0.5", "--limit", ROWS]
    flags += ["--max_turns", 2, "--max_new_tokens", 24, "--data", EVAL_DATA, "--precision", "fp32"]
    flags = [*map(str, flags), "--cache_dir", str(folder / "cache")]
    assert main([*flags, "--output_dir", str(folder / "one")]) == 0
    return folder, flags


def test_same_conversations_and_rewards_as_in_training(second):
    folder, _ = second
    played = {"environment": f"{EXAMPLES}:SecondAttempt", "reward": [f"{folder}/own.py:said*0.5"], "max_turns": 2}
    config = TrainConfig(algorithm="rloo", kl_coef=0.0, max_new_tokens=24, precision="fp32", **played)
    models = load_models(config, torch.device("cpu"))
    environments, reward = load_scored(config)
    setup = make_play_setup(config, models.tokenizer, models.eos_ids, environments)
    rows = read_lines(EVAL_DATA)[:ROWS]
    rows = [{"prompt": row["prompt"], "columns": {"answer": row["answer"]}} for row in rows]
    expected = converse(setup, config, models, HFEngine(config, models), reward, rows, None, {})
    found = read_lines(folder / "one" / "samples.jsonl")
    assert {len(sample["turn_ends"]) for sample in expected} == {1, 2}, "right and wrong first answers"
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("messages", "pieces", "turn_rewards", "completion"):
            assert ours[name] == theirs[name]
        scores = {name: ours["metrics"][name] for name in ("environment", "said")}
        assert scores == theirs["rewards"] and ours["metrics"]["score"] == theirs["score"]
        assert ours["metrics"]["length_tokens"] == ours["tokens"] == sum(theirs["response_mask"])
    accuracy = sum(sample["rewards"]["environment"] >= 1 for sample in expected) / ROWS
    metrics = environment_of(folder / "one")["metrics"]
    assert metrics["accuracy"]["value"] == accuracy and metrics["accuracy"]["interval"] == "wilson"
    played = play_metrics([sample["talk"] for sample in expected])
    assert metrics["turns"]["value"] == pytest.approx(played["rollout/turns_mean"], abs=1e-12)
    assert metrics["limit_frac"]["value"] == played["rollout/limit_frac"] == 0


def test_cache_comparison_and_page(second, capsys):
    folder, flags = second
    assert main([*flags, "--output_dir", str(folder / "two")]) == 0
    one, two = (environment_of(folder / name) for name in ("one", "two"))
    answers = sum(sample["metrics"]["turns"] for sample in read_lines(folder / "one" / "samples.jsonl"))
    assert (one["from_cache"], two["from_cache"]) == (0, answers)
    assert two["values"]["score"] == one["values"]["score"] and two["keys"] == one["keys"]
    assert main([*flags, "--max_turns", "1", "--output_dir", str(folder / "short")]) == 0
    short = environment_of(folder / "short")
    assert short["from_cache"] == ROWS and short["metrics"]["limit_frac"]["value"] > 0
    capsys.readouterr()
    folders = [str(folder / name) for name in ("one", "short")]
    assert main(["--compare", *folders, "--output_dir", str(folder / "compared")]) == 0
    found = json.loads((folder / "compared" / "comparison.json").read_text())["tasks"]["environment"]["accuracy"]
    assert found["test"] == "exact McNemar" and found["rows"] == ROWS and found["difference"] == 0
    assert "environment accuracy" in capsys.readouterr().out


def test_shares_of_few_calls_have_finite_figures():
    before = Values([0, 1, 0, 0, 0], [0, 2, 0, 0, 0], higher_is_better=False)  # most resamples hold no call
    after, nothing = Values([0, 0, 0, 0, 0], [0, 2, 0, 1, 0], higher_is_better=False), Values([0] * 5, [0] * 5)
    assert summarize(before, 200, 0)["ci95"] == [0.5, 0.5] and summarize(nothing, 200, 0)["value"] is None
    assert compare_values(before, after, 200, 0)["ci95"] == [-0.5, -0.5]
    assert compare_values(before, nothing, 200, 0) is None


SAID = {  # by row and sample: the answers of each turn
    ("4", 0): [call("calculate", expression="2+2"), call("submit", answer="4"), "Done."],
    ("4", 1): [call("calculate", expression="1/0") + call("none"), "4"],
    ("7", 0): [call("calculate", expression="3+4")] * 3,
    ("7", 1): [call("submit", answer="7"), "Done."],
}


class ScriptedModel:
    """A model that says what is written, as token ids."""

    source, hash, max_length, tokens, eos_ids = "scripted", "0", 10**6, 0, [2]

    def __init__(self):
        self.tokenizer, self.asked = chat_tokenizer("tiny_tools", "<|end|>"), []
        self.eos_ids = [self.tokenizer.eos_token_id]

    def turns(self):
        return self.generate

    def generate(self, requests, done, numbers):
        for i, request in enumerate(requests):
            text = self.tokenizer.decode(request.ids)
            row = text.split("<|user|>")[1].split("<|end|>")[0].split("=")[1]
            turn = text.count("<|assistant|>") - 1
            ids = self.tokenizer(SAID[row, request.sample][turn], add_special_tokens=False).input_ids
            self.asked.append((row, request.sample, turn))
            assert request.limit == 300
            done(i, {"text": "", "ids": ids, "end": self.eos_ids, "tokens": len(ids), "finish": "eos"})


def played_with_tools(folder):
    """(task, model, rows that were played, their prompts, records, counts) of SAID."""
    settings = {"n": 2, "temperature": 0.5, "max_turns": 3, "max_new_tokens": 300, "output_dir": str(folder)}
    config = Config(environment=f"{EXAMPLES}:Calculator", task=["environment:k=1/2"], **settings)
    assert config.task == ["environment:k=1/2"]
    task, model = EnvironmentTask("environment:k=1/2", config), ScriptedModel()
    rows = [{"prompt": f"Say ={answer}", "answer": answer} for answer in ("4", "7", "x" * 600)]
    for row in rows:
        task.check_row(row)
    return task, model, *task.play(model, rows)


def test_tools_samples_and_rows_left_out(tmp_path, capsys):
    task, _, rows, _, records, counts = played_with_tools(tmp_path)
    assert [row["answer"] for row in rows] == ["4", "7"]
    assert (counts["rows_left_out"], counts["from_cache"]) == (1, 0)
    assert "left out 1 of 3 prompts longer than 512 tokens" in capsys.readouterr().err
    table = [[[r["metrics"][k] for k in ("accuracy", "turns", "calls", "failures")] for r in own] for own in records]
    assert table == [[[1, 3, 2, 0], [0, 2, 2, 2]], [[0, 3, 2, 0], [1, 2, 1, 0]]]
    assert [[r["finish"] for r in own] for own in records] == [["answer", "answer"], ["turns", "answer"]]
    values = task.values_of(records)
    assert values["pass@1"].top == [0.5, 0.5] and values["pass@2"].top == [1.0, 1.0]
    assert (values["failure_frac"].top, values["failure_frac"].bottom) == ([2, 0], [4, 3])
    assert values["limit_frac"].top == [0, 0.5] and values["limit_frac"].higher_is_better is False
    assert "failures" not in values and values["calls"].top == [2, 1.5]
    told = [m["content"] for m in records[0][1]["messages"] if m["role"] == "tool"]
    assert told == ["{'error': 'division by zero'}", "{'error': 'Tool none not found.'}"]
    pieces = records[0][0]["pieces"]
    assert [piece["sampled"] for piece in pieces] == [True, False] * 2 + [True]
    assert pieces[1]["text"] == "<|user|>4<|end|><|assistant|>"


BETWEEN = [[5], [61, 62, 63, 64, 65], [*range(60, 85)]]  # what is said to conversations 0, 1, … between turns
HEAD = [*range(40, 60)]  # what all prompts begin with


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """local(family, settings): a LocalModel with random weights; one token in seven ends an answer."""
    loaded = {}

    def model(family: str, **settings) -> LocalModel:
        config = Config(device="cpu", precision="fp32", max_new_tokens=12, **settings)
        if family not in loaded:
            folder = save_random_model(family, tmp_path_factory.mktemp(family))
            loaded[family] = LocalModel(config, folder, torch.device("cpu"))
        found = copy.copy(loaded[family])
        found.engine = PrefixEngine(config, found.models)  # it measures the cache before tokens are counted
        found.config, found.budget = config, config.batch_tokens
        return found

    return model


def talked(model, generate, asked=None) -> tuple[dict, list[int]]:
    """(the texts of seven conversations of three turns, tokens that each turn has read and sampled).

    Args:
        asked: the numbers of those that are asked in each turn, in this order.
    """
    texts, read = {n: HEAD + [90 + n // 2] * (1 + n) for n in range(7)}, []
    network = model.model.base_model
    network.forward = lambda **k: read[-1].append(k["input_ids"].numel()) or type(network).forward(network, **k)
    for numbers in asked or (range(7), (6, 0, 2, 3, 4), (0, 3, 6)):
        read.append([])
        requests = [Request(ids=texts[n], sample=n, limit=12) for n in numbers]

        def done(i, output, numbers=numbers):
            texts[numbers[i]] = texts[numbers[i]] + output["ids"] + output["end"] + BETWEEN[numbers[i] % 3] + [90]

        generate(requests, done, list(numbers))
    return texts, list(map(sum, read))


def anew(model):
    """`generate` of a model that reads each turn anew."""
    return lambda requests, done, numbers: model.generate(requests, done)


@pytest.mark.parametrize(("family", "temperature"), [("llama", 0.8), ("gpt2", 0.0)])
def test_turns_go_on_with_the_cache_and_say_the_same(local, family, temperature):
    model = local(family, temperature=temperature, seed=3)
    assert model.engine.decoding.plain
    (expected, whole), (found, less) = talked(model, anew(model)), talked(model, model.turns())
    assert found == expected and len({len(ids) for ids in found.values()}) > 3
    assert less[0] == whole[0] - len(HEAD), "the beginning of all is kept from before"
    assert less[1] < 0.7 * whole[1] and less[2] < 0.6 * whole[2]


def test_turns_of_several_batches_or_unknown_beginnings_are_read_anew(local):
    model = local("llama", temperature=0.8, batch_size=3)
    assert talked(model, model.turns())[0] == talked(model, anew(model))[0]
    model = local("llama", temperature=0.8)
    joined = [(0, 1), (1, 2), (2, 0, 1)]  # a conversation whose first answer came from the cache of answers
    (expected, whole), (found, read) = (talked(model, way, joined) for way in (anew(model), model.turns()))
    assert found == expected and read[1:] == whole[1:]


@pytest.mark.parametrize("family", ["mistral", pytest.param("falcon_h1", marks=pytest.mark.long)])
def test_caches_that_forget_are_not_gone_on_with(local, family):
    model = local(family)
    assert not model.engine.decoding.plain and talked(model, model.turns()) == talked(model, anew(model))


def test_an_environment_that_raises_is_named(tmp_path, capsys):
    file = tmp_path / "own.py"
    file.write_text(
        "class Bad:\n    def reset(self, answer, **row):\n        self.answer = answer\n\n"
        "    def get_reward(self):\n        return 1 / (self.answer != '121')\n"
    )
    flags = ["--environment", f"{file}:Bad", "--data", EVAL_DATA, "--limit", 3, "--max_new_tokens", 4]
    assert main([*map(str, flags), "--max_turns", "1", "--output_dir", str(tmp_path / "o")]) == 3
    message = capsys.readouterr().err
    assert f"{file}:6" in message and ", row 2, prompt " in message and "ZeroDivisionError" in message
