"""verl_train.py --environment without verl: the job folder, its player against `play`, refusals, what ends a run."""

import asyncio
import json
import threading
import types

import pytest
from chat_tokenizers import TOOLS, chat_tokenizer
from conftest import load_script, write_lines

from parts.environments.conversations import PlayLimits, PlaySetup, play
from parts.environments.environments import load_environments
from parts.environments.turn_bridge import TurnBridge
from programs.verl_train.rewards import Gathering

verl = load_script("verl_train")

ENVIRONMENTS = '''
import threading
import time

from own_word import WORD

GATE, BUSY = threading.Event(), threading.Lock()


class Talk:
    def reset(self, answer, hint="none", **row):
        with BUSY:  # one conversation begins at a time
            time.sleep(0)
        self.answer, self.heard, self.given = answer, [], sorted(row)
        return f" Hint: {hint}"

    def reply(self, text):
        self.heard.append(text)
        return None if text == self.answer else f"{WORD} {text}."

    def get_reward(self):
        return 1.0 / len(self.heard) if self.heard[-1] == self.answer else 0.0


class Tools:
    def reset(self, answer, size: int, **row):
        self.answer, self.size, self.said = answer, size, None

    def show(self, times: int) -> str:
        """Show what ends a turn.

        Args:
            times: How often.
        """
        return "<|end|><|assistant|>" * times

    def wait(self) -> str:
        """Wait until somebody opens the gate."""
        GATE.wait()
        return "open"

    def open(self) -> str:
        """Open the gate."""
        GATE.set()
        return "opened"

    def say(self, answer: str) -> str:
        """Say the answer.

        Args:
            answer: The answer.
        """
        self.said = answer
        return "Said."

    def get_reward(self):
        return float(self.said == self.answer)


class Broken(Talk):
    def reply(self, text):
        raise ValueError("no such reply")


MIXED = {"talk": Talk, "tools": Tools}


def length(prompts, completions, hint, **kwargs):
    return [float(len(said)) for said in completions]
'''
ROWS = [
    {"prompt": "1+1=", "answer": "2", "environment": "talk", "hint": "two"},
    {"prompt": [{"role": "user", "content": "2+2="}], "answer": "4", "environment": "talk"},
    {"prompt": "3+3=", "answer": "6", "environment": "tools", "size": 3},
    {"prompt": "4+4=", "answer": "8", "environment": "tools", "size": 4},
]


def call(name: str, **arguments) -> str:
    """A tool call in Hermes' form."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


# answers by turn; "…" is cut off; the last turn's call is not made
SCRIPTS = {
    "1+1=": ["3", "2"],
    "2+2=": ["4"],
    "3+3=": [call("show", times=2), call("wrong") + "…", call("say", answer="6"), call("say", answer="7")],
    "4+4=": [call("say", answer="7"), "<tool_call>{", "<|user|>", "", ""],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with environments, what they import, rows and a template that shows tools."""
    path = tmp_path_factory.mktemp("own")
    (path / "own.py").write_text(ENVIRONMENTS)
    (path / "own_word.py").write_text("WORD = 'Not'\n")
    write_lines(path / "rows.jsonl", ROWS + ROWS)
    (path / "tools.jinja").write_text(TOOLS)
    return path


def flags_of(folder, name: str, *more: str) -> list[str]:
    """A command line that prints a job with an environment of the folder."""
    flags = ["--print", f"--environment={folder}/own.py:{name}", f"--chat_template={folder}/tools.jinja"]
    flags += [f"--data={folder}/rows.jsonl", "--algorithm=grpo", "--group_size=4", "--batch_size=16"]
    return [*flags, "--max_turns=4", "--max_new_tokens=96", "--max_prompt_tokens=64", *more]


@pytest.fixture(scope="module")
def job(folder, tmp_path_factory):
    """(settings, job folder, overrides) of a job with two kinds of environments, and a reward beside them."""
    output = tmp_path_factory.mktemp("job")
    reward = f"--reward={folder}/own.py:length*0.5"
    flags = flags_of(folder, "MIXED", reward, "--tool_timeout=60", f"--output_dir={output}", "--overlong_share=0.5")
    config = verl.parse_config([*flags, "--missing_eos_penalty=0.25"])
    overrides = verl.prepare_job(config)[1]
    return config, output / "job", {o.key: o.value for o in overrides}


@pytest.fixture(scope="module")
def settings(job):
    """What the job folder tells its loop."""
    return verl.job_settings(job[1])


@pytest.fixture(scope="module")
def rows(job):
    """Its training rows as verl hands them to an agent loop."""
    return rows_of_parquet(job[1] / "train.parquet")


def rows_of_parquet(path) -> list[dict]:
    """Rows as verl hands them to an agent loop."""
    import datasets

    rows = datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(path.parent / "cache"))["train"]
    return [{**row, "raw_prompt": row["prompt"]} for row in rows]


def answer_ids(tokenizer, text: str) -> list[int]:
    """What a model samples when it says a text."""
    return tokenizer(text.removesuffix("…"), add_special_tokens=False).input_ids + [2] * (not text.endswith("…"))


class Server:
    """Gives each conversation the answers of its script, by the question and how many answers it has had."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked = tokenizer, []

    async def generate(self, request_id, prompt_ids, sampling_params, priority):
        """The next answer."""
        text = self.tokenizer.decode(prompt_ids)
        question = next(q for q in SCRIPTS if q in text)
        turn = sum(name == request_id for name, _ in self.asked)
        self.asked.append((request_id, sampling_params["max_tokens"]))
        ids = answer_ids(self.tokenizer, SCRIPTS[question][turn])
        fields = {"min_global_steps": turn, "max_global_steps": turn}
        return types.SimpleNamespace(token_ids=ids, log_probs=[-1.0 - turn] * len(ids), extra_fields=fields)


def played(settings, rows: list[dict], tokenizer, penalties=None) -> list[tuple]:
    """(conversation, sampler, score, what is told) of each row, all at the same time in one event loop."""
    server = Server(tokenizer)

    async def all_of_them():
        player = verl.Player(settings, tokenizer, [2])

        async def one(number: int, row: dict):
            request = {"request_id": str(number), "priority": 0}
            sample = verl.Sampler(server, {"temperature": 1.0}, player.setup.limits, request)
            talk, values = await player.play(player.row(row), sample)
            return (talk, sample, *player.scores(talk, values, penalties or {}))

        return await asyncio.gather(*(one(i, row) for i, row in enumerate(rows)))

    found = asyncio.run(all_of_them())
    assert {limit for _, limit in server.asked} == {settings["environment"]["limits"]["answer_tokens"]}
    return found


def test_job_folder_has_the_environment_and_selects_its_loop(job, settings):
    config, path, overrides = job
    agent = "actor_rollout_ref.rollout.agent"
    assert overrides[f"{agent}.default_agent_loop"] == "environment"
    assert overrides[f"{agent}.agent_loop_config_path"] == str(path / "verl_environment.yaml")
    assert "_target_: verl_environment.EnvironmentLoop" in (path / "verl_environment.yaml").read_text()
    assert {f.name for f in (path / "environment").iterdir()} >= {"own.py", "own_word.py"}
    # a prompt and four answers; verl's bound of what follows the prompt is one that no conversation meets
    assert config.conversation_tokens == 64 + 4 * 96 == overrides["data.max_response_length"]
    assert overrides["data.max_prompt_length"] == 64
    told = settings["environment"]
    assert told["file"] == f"{path}/environment/own.py:MIXED" and told["form"] == "hermes"
    assert settings["rewards"] == [f"{path}/rewards_0/own.py:length*0.5"]
    assert PlayLimits(**told["limits"]) == PlayLimits(4, 448, 96, 60.0, 8000)
    names = {name: [tool["function"]["name"] for tool in tools] for name, tools in told["tools"].items()}
    assert names == {"talk": [], "tools": ["open", "say", "show", "wait"]}


def test_what_waits_is_gathered_and_an_error_is_that_of_its_batch():
    gate, batches = threading.Event(), []

    def double(items):
        batches.append(items)
        assert gate.wait(60)
        return [2 * item if item else 1 / item for item in items]

    gathering = Gathering(double, "double")
    first = gathering.submit(1)
    while not batches:
        pass
    rest = [gathering.submit(item) for item in (2, 3)]
    gate.set()
    assert [future.result(60) for future in (first, *rest)] == [2, 4, 6] and batches == [[1], [2, 3]]
    with pytest.raises(ZeroDivisionError):
        gathering.submit(0).result(60)
    assert gathering.submit(5).result(60) == 10


def test_player_gives_the_tokens_and_scores_of_play(rows, settings):
    tokenizer = chat_tokenizer("tiny_tools", "<|end|>")
    found = played(settings, rows[:4], tokenizer, {"missing_eos_penalty": 0.25, "overlong_share": 0.5})
    environments = load_environments(settings["environment"]["file"])

    def sample(prompts, numbers, turn):
        return [(ids := answer_ids(tokenizer, SCRIPTS[[*SCRIPTS][n]][turn]), [-1.0 - turn] * len(ids)) for n in numbers]

    own = [{"prompt": row["prompt"], "columns": {k: v for k, v in row.items() if k != "prompt"}} for row in ROWS]
    limits = PlayLimits(**settings["environment"]["limits"])
    setup = PlaySetup(environments, TurnBridge(tokenizer, [2]), "hermes", limits)
    expected = play(own, setup, sample)
    for (talk, *_), ours in zip(found, expected, strict=True):
        for name in ("messages", "prompt_ids", "response_ids", "response_mask", "rollout_logprobs", "spans", "score"):
            assert getattr(talk, name) == getattr(ours, name), name
        assert (talk.ended_by, talk.calls, talk.failures) == (ours.ended_by, ours.calls, ours.failures)
    # by hand: the environment's score, half a message's count, and what is taken for an answer that was cut off, or
    # for one of more than 48 of 96 tokens
    longest = [max(end - start for start, end in talk.spans) for talk, *_ in found]
    overlong = [max(0.0, (length - 48) / 48) for length in longest]
    base = [0.5 + 0.5 * 3, 1.0 + 0.5 * 1, 1.0 + 0.5 * 7 - 0.25, 0.0 + 0.5 * 5]
    for (_, _, score, told), value, penalty in zip(found, base, overlong, strict=True):
        assert score == pytest.approx(value - penalty)
        assert told["score"] == pytest.approx(value + 0.25 * (value == base[2])) and "length" in told
    assert [told["acc"] for *_, told in found] == [0.0, 1.0, 1.0, 0.0]
    assert [told["tool/failure_frac"] for *_, told in found] == [0.0, 0.0, 1 / 3, 1 / 2]
    assert [told["rollout/turns_mean"] for *_, told in found] == [2, 1, 4, 3]
    first, last = found[0][1], found[2][1]
    assert first.fields == {"min_global_steps": 0, "max_global_steps": 1} and last.seconds > 0


def test_a_tool_that_waits_holds_nobody_up(rows, settings, monkeypatch):
    """One conversation's tool returns only after another one, which begins after it, has gone on."""
    monkeypatch.setitem(SCRIPTS, "3+3=", [call("wait"), call("say", answer="6"), "Done."])
    monkeypatch.setitem(SCRIPTS, "4+4=", ["Thinking." + call("show", times=1), call("open"), "Done."])
    found = played(settings, [rows[2], rows[3]], chat_tokenizer("tiny_tools", "<|end|>"))
    assert [talk.score for talk, *_ in found] == [1.0, 0.0] and found[0][0].messages[2]["content"] == "open"


def test_a_fault_of_the_environment_is_named_with_its_row(rows, settings):
    file = settings["environment"]["file"].replace("MIXED", "Broken")
    broken = settings | {"environment": settings["environment"] | {"file": file, "tools": {"Broken": []}}}
    with pytest.raises(verl.UserError, match=r"row 2 of the train data, prompt '2\+2='.* at .*own.py:\d+") as caught:
        played(broken, [rows[1]], chat_tokenizer("tiny_tools", "<|end|>"))
    assert "reply raised ValueError: no such reply" in str(caught.value)


REFUSED = {
    "MIXED --turn_baseline=turn": "verl's estimators compare whole conversations",
    "MIXED --max_conversation_tokens=99": "expected room for a prompt and an answer",
    "MIXED --max_turns=12": "expected at most the model's 1024",
    "Nothing": "has no 'Nothing'",
    "MIXED --tool_format=klingon": "klingon",
    "MIXED --prompt_column=answer": "expected 'answer'",
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_what_is_wrong(case, folder, tmp_path, capsys):
    name, *more = case.split()
    path = f"--data={tmp_path}/rows.jsonl" if "prompt_column" in case else f"--data={folder}/rows.jsonl"
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}\n' * 8)
    assert verl.main([*flags_of(folder, name, f"--output_dir={tmp_path}", path), *more]) == 2
    told = capsys.readouterr().err
    assert REFUSED[case] in told and "error: " in told


def test_a_response_template_is_refused(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(verl, "call_format", lambda tokenizer, choice: {"fields": {}})
    assert verl.main(flags_of(folder, "Tools", f"--output_dir={tmp_path}")) == 2
    assert "try --tool_format NAME" in capsys.readouterr().err


def test_a_template_of_trls_goes_into_the_job(folder, tmp_path, monkeypatch):
    real = verl.TurnBridge

    def other(tokenizer, ends, environments, settings):
        return real(tokenizer, ends, settings, TOOLS + "{# kept #}")

    monkeypatch.setattr(verl, "turn_bridge", other)
    layout, overrides = verl.prepare_job(verl.parse_config(flags_of(folder, "Talk", f"--output_dir={tmp_path}")))
    assert {o.key: o.value for o in overrides}["actor_rollout_ref.model.custom_chat_template"].endswith("{# kept #}")
    assert layout.template.endswith("{# kept #}")
