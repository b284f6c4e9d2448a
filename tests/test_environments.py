"""Environments: loading and the contract, tools side by side, hostile tools, and conversations in tokens."""

import inspect
import subprocess
import sys
import threading
import time

import pytest
from chat_tokenizers import call, chat_tokenizer, end_ids
from conftest import ROOT, patch_rooms, script_env

from parts.environments.conversations import PlayLimits, PlaySetup, play, play_metrics
from parts.environments.environments import EnvironmentFault, load_environments
from parts.environments.tool_runs import LeftBehind, OutOfTime, run_jobs
from parts.environments.turn_bridge import turn_bridge
from parts.foundation.messages import UserError

ENVIRONMENTS = '''
import asyncio
import threading

OPENED = threading.Event()


class Talk:
    def reset(self, answer, **row):
        self.answer, self.heard = answer, []
        return f" Hint: {row['hint']}" if "hint" in row else None

    def reply(self, text):
        self.heard.append(text)
        return None if text == self.answer else f"Not {text}."

    def get_reward(self):
        return 1.0 / len(self.heard) if self.heard[-1] == self.answer else 0.0


class Tools:
    def reset(self, **row):
        self.log, self.turn_reward = [], 0.0

    def note(self, text: str) -> str:
        """Note a text.

        Args:
            text: What to note.
        """
        self.log.append(text)
        self.turn_reward += 1.0
        return f"{len(self.log)} noted"

    async def later(self, text: str) -> str:
        """Note a text, async.

        Args:
            text: What to note.
        """
        await asyncio.sleep(0)
        return self.note(text)

    def fail(self, kind: str = "x") -> str:
        """Raise.

        Args:
            kind: What.
        """
        if kind == "exit":
            raise SystemExit(3)
        if kind == "silent":
            raise ValueError
        raise KeyError(kind)

    def huge(self) -> str:
        """Print 10 MB."""
        return "x" * 10_000_000

    def sleep(self) -> str:
        """Sleep in a call that nothing interrupts."""
        OPENED.wait()

    async def wait(self) -> str:
        """Wait for long."""
        await asyncio.sleep(1000)

    def _hidden(self):
        pass


class Both(Tools):
    def reply(self, text):
        return None if text == "bye" else "Go on."

    async def get_reward(self):
        return float(len(self.log))


MIXED = {"talk": Talk, "tools": Tools}
'''


@pytest.fixture
def file(tmp_path):
    """Write a file of environments and return its path."""

    def write(text: str = ENVIRONMENTS) -> str:
        path = tmp_path / f"own{len([*tmp_path.iterdir()])}.py"
        path.write_text(text)
        return str(path)

    return write


def test_kinds_are_what_their_classes_offer_with_trls_tools_and_schemas(file):
    from transformers.utils import get_json_schema

    path = file()
    kinds = {name: load_environments(f"{path}:{name}").kinds[None] for name in ("Talk", "Tools", "Both")}
    assert [(bool(k.tools), k.talks, k.scores) for k in kinds.values()] == [(0, 1, 1), (1, 0, 0), (1, 1, 1)]
    kind = kinds["Tools"]
    environment = kind.make()
    # the lines of TRL 1.16's GRPOTrainer.__init__
    found = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    methods = [n for n, _ in found if n not in ("reset", "get_reward") and not n.startswith("_")]
    assert kind.tools == [get_json_schema(getattr(environment, name)) for name in methods]
    assert kind.tools[3]["function"]["parameters"]["required"] == ["text"]


def test_a_dictionary_mixes_by_a_column(file):
    environments = load_environments(f"{file()}:MIXED")
    row = {"environment": "talk", "answer": "4"}
    assert environments.reset_arguments(lambda **row: 0, "p", row) == {"prompt": "p", "answer": "4"}
    assert environments.reset_arguments(lambda answer, seed=0: 0, "p", row) == {"answer": "4"}
    for name, said in (("tolk", r"'tolk'; expected one of talk, tools; try talk"), (["talk"], r"\['talk'\]; expected")):
        with pytest.raises(UserError, match=f"environment {said}"):
            environments.kind_of({"environment": name})
    numbered = load_environments(f"{file(ENVIRONMENTS + 'BY_NUMBER = {1: Talk, 2: Tools}')}:BY_NUMBER")
    assert numbered.kind_of({"environment": 1}).talks and numbered.kind_of({"environment": 2}).tools
    with pytest.raises(UserError, match=r"Talk|talk: reset does not take this data.*'answer'.*try def reset"):
        environments.check_row("p", {"environment": "talk"})
    environments.check_row("p", {"environment": "talk", "answer": "4"})


RESET = "class E:\n    def reset(self, **row):\n        pass\n\n"
WORDS = '        """F.\n\n        Args:\n            x: A.\n        """\n'
REFUSED = {
    "no such name": ("class A:\n    pass\n", r"has no 'E'; expected one of A; try A|expected one of A"),
    "no reset": ("class E:\n    pass\n", "without reset"),
    "no hints": (RESET + "    def f(self, x):\n" + WORDS, "type hint"),
    "no docstring": (RESET + "    def f(self, x: int): pass\n", "no docstring"),
    "unknown hint": (RESET + "    def f(self, x: object):\n" + WORDS, "no schema"),
    "gymnasium's step": (RESET + "    def step(self, action):\n        return 1\n", "type hints .*try GameEnvironment"),
    "any arguments": (RESET + "    def f(self, **x: int):\n" + WORDS, "by name"),
    "generator": (RESET + '    def f(self):\n        """F."""\n        yield 1\n', "is a generator"),
    "empty": ("E = {}\n", "an empty dictionary"),
    "arguments": ("class E:\n    def __init__(self, x): pass\n    def reset(self): pass\n", "without arguments"),
    "one object": (RESET + "one = E()\n\n\ndef E():\n    return one\n", "the same object twice"),
    "no class": ("E = 3\n", "got a int; expected a class"),
    "raises": ("class E:\n    def __init__(self):\n        1 / 0\n", r"Error: division by zero at .*own0.py:3;"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_what_is_wrong(name, file):
    text, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as error:
        load_environments(f"{file(text)}:E")
    assert "expected" in str(error.value)
    with pytest.raises(UserError, match=r"no file 'none\.py'; expected FILE\.py:Class"):
        load_environments("none.py:E")


def threads() -> list[threading.Thread]:
    """Threads of jobs."""
    return [thread for thread in threading.enumerate() if thread.name == "environment"]


def ended() -> bool:
    """Whether all threads of jobs end, within a minute."""
    for _ in range(600):
        if not threads():
            return True
        time.sleep(0.1)
    return False


def test_jobs_run_side_by_side_and_calls_of_a_job_in_order():
    barrier, order = threading.Barrier(50), []  # it opens only if all wait at once
    jobs = [[barrier.wait, lambda i=i: order.append(i) or i, lambda i=i: -i] for i in range(50)]
    assert [o[0].value for o in run_jobs([[lambda i=i: i] for i in range(300)], 60)] == [*range(300)]
    found = run_jobs(jobs, 60)
    assert [[o.value for o in outcomes[1:]] for outcomes in found] == [[i, -i] for i in range(50)]
    assert sorted(order) == [*range(50)] and threads() == []


def spin() -> None:
    """Never return, whatever exception is raised in it."""
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass


def test_a_call_that_never_returns_is_left_behind():
    kept = []
    found = run_jobs([[lambda: 1, spin, lambda: kept.append(1)], [lambda: 2]], 1)
    assert [o.value for o in found[0]] == [1, None, None] and found[1][0].value == 2
    assert all(isinstance(o.error, OutOfTime) for o in found[0][1:])
    assert str(found[0][1].error) == "no answer in 1 s" and "not called" in str(found[0][2].error)
    assert ended() and kept == [] and issubclass(LeftBehind, SystemExit)


def test_async_functions_share_one_loop():
    import asyncio

    loops = set()

    async def quick():
        loops.add(id(asyncio.get_running_loop()))
        return 4

    assert [o[0].value for o in run_jobs([[quick], [quick]], 60)] == [4, 4] and len(loops) == 1


def test_a_blocked_loop_is_named(monkeypatch):
    patch_rooms(monkeypatch, "LOOP_PATIENCE", 0.2)
    opened = threading.Event()

    async def blocks():
        opened.wait(60)

    with pytest.raises(UserError, match=r"blocked at .*threading|blocked at .*test_environments\.py:\d+"):
        run_jobs([[blocks]], 0.2)
    opened.set()
    assert ended()


def test_a_process_ends_though_a_tool_does_not(tmp_path):
    code = "import time; from parts.environments.tool_runs import run_jobs; "
    code += "print(run_jobs([[lambda: time.sleep(1000)]], 0.1))"
    environment = script_env({"PYTHONPATH": str(ROOT / "src")})
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "") and "OutOfTime" in done.stdout


END = 2  # <|end|>


class Play:
    """Plays conversations whose answers are written here."""

    def __init__(self, spec: str, template: str = "tiny_tools", **limits):
        self.environments = load_environments(spec)
        end = "<end_of_turn>" if template == "gemma" else "<|end|>"
        self.tokenizer = chat_tokenizer(template, end)
        self.bridge = turn_bridge(self.tokenizer, end_ids(self.tokenizer, end), self.environments)
        self.limits = PlayLimits(**{"answer_tokens": 100, "tokens": 5000, "seconds": 60, **limits})
        self.prompts = []

    def ids(self, text: str) -> list[int]:
        """Sampled ids of an answer: it ended by itself unless the text ends in `…`."""
        cut = text.endswith("…")
        return self.tokenizer(text.removesuffix("…"), add_special_tokens=False).input_ids + ([] if cut else [END])

    def __call__(self, rows: list[dict], answers: list[list[str]], form: str = "hermes") -> list:
        def sample(prompts, numbers, turn):
            self.prompts.append(prompts)
            texts = [answers[number][min(turn, len(answers[number]) - 1)] for number in numbers]
            return [(self.ids(text), [-0.5 - turn] * len(self.ids(text))) for text in texts]

        return play(rows, PlaySetup(self.environments, self.bridge, form, self.limits), sample)


def row(prompt="2+2=", **columns) -> dict:
    """A row of data."""
    return {"prompt": prompt, "columns": columns}


def check_lists(talk) -> None:
    """The lists of a conversation fit one another, and the mask is that of the answers' spans."""
    n = len(talk.response_ids)
    assert len(talk.response_mask) == len(talk.rollout_logprobs) == n
    sampled = [i for start, end in talk.spans for i in range(start, end)]
    assert [i for i in range(n) if talk.response_mask[i]] == sampled
    assert all((p != 0.0) == bool(m) for p, m in zip(talk.rollout_logprobs, talk.response_mask, strict=True))
    assert len(talk.turn_rewards) == len(talk.spans)


def test_a_conversation_in_tokens(file):
    playing = Play(f"{file()}:Talk")
    (talk,) = playing([row(answer="4", hint="even")], [["5", "6…", "4"]])
    text = "<|user|>2+2= Hint: even<|end|><|assistant|>5<|end|><|user|>Not 5.<|end|><|assistant|>6<|end|>"
    text += "<|user|>Not 6.<|end|><|assistant|>4<|end|>"
    assert playing.tokenizer.decode(talk.ids) == text
    assert talk.ids == playing.tokenizer(text, add_special_tokens=False).input_ids
    spans = [playing.tokenizer.decode(talk.response_ids[a:b]) for a, b in talk.spans]
    assert spans == ["5<|end|>", "6", "4<|end|>"]  # the end of the second turn was not sampled
    assert [talk.rollout_logprobs[a] for a, _ in talk.spans] == [-0.5, -1.5, -2.5]
    assert (talk.score, talk.turn_rewards, talk.ended_by, talk.finished) == (1 / 3, [0, 0, 1 / 3], "reply", True)
    assert [m["role"] for m in talk.messages] == ["user", "assistant"] * 3
    assert playing.prompts[2] == [talk.ids[: -len(playing.ids("4"))]]
    check_lists(talk)


def test_ids_are_kept_as_sampled_and_not_encoded_again(file):
    playing = Play(f"{file()}:Talk", turns=2)
    odd = [*playing.tokenizer("4", add_special_tokens=False).input_ids, *playing.tokenizer("2").input_ids, 4, END]
    setup = PlaySetup(playing.environments, playing.bridge, "", playing.limits)
    talks = play([row(answer="x")], setup, lambda p, n, t: [(odd, [-1.0] * len(odd))])
    assert [talks[0].response_ids[a:b] for a, b in talks[0].spans] == [odd, odd]
    assert talks[0].environment.heard == ["42<|user|>"] * 2  # what it forged is seen


def test_conversations_that_are_open_are_sampled_in_one_batch(file):
    playing = Play(f"{file()}:Talk", turns=4)
    talks = playing([row(answer=a) for a in "abc"], [["a"], ["x", "b"], ["x", "y", "z"]])
    assert [len(prompts) for prompts in playing.prompts] == [3, 2, 1, 1]
    assert [(t.ended_by, t.score, len(t.spans)) for t in talks] == [("reply", 1, 1), ("reply", 0.5, 2), ("turns", 0, 4)]
    assert talks[2].environment.heard == ["x", "y", "z", "z"]  # the last answer was heard, its reply is not in the ids
    metrics = play_metrics(talks)
    assert metrics["rollout/turns_mean"] == 7 / 3 and metrics["rollout/limit_frac"] == 1 / 3


def test_tools_and_their_failures(file):
    playing = Play(f"{file()}:Tools", characters=100)
    failing = call("fail") + call("fail", kind="exit") + call("fail", kind="silent") + call("none", x=1)
    said = ["I note." + call("note", text="a") + call("later", text="b"), failing + call("note", y=1)]
    said += ["<tool_call>{", call("huge") + call("x" * 1000), "done"]
    (talk,) = playing([row()], [said])
    results = [m["content"] for m in talk.messages if m["role"] == "tool"]
    assert results[:3] == ["1 noted", "2 noted", str({"error": "'x'"})]
    assert results[3:6] == ["{'error': '3'}", "{'error': 'ValueError'}", "{'error': 'Tool none not found.'}"]
    assert "missing 1 required positional argument" in results[6] or "unexpected keyword argument 'y'" in results[6]
    assert results[7].startswith("{'error': 'the tool call cannot be read (JSONDecodeError")
    assert results[8] == "x" * 100 + "\n[cut: the first 100 of 10000000 characters]"
    assert talk.messages[-2]["name"] == "x" * 64 and len(results[9]) < 200
    assert (talk.calls, talk.failures, talk.ended_by) == (10, 7, "answer")
    assert talk.turn_rewards == [2, 0, 0, 0, 0] and talk.score == 2  # without get_reward the turns' add up
    assert talk.messages[1]["content"] == "I note." and len(talk.messages[1]["tool_calls"]) == 2
    check_lists(talk)
    # what is written in canonical form is what the template writes
    tools = playing.environments.kinds[None].tools
    rendered = playing.tokenizer.apply_chat_template(talk.messages[:4], tools)["input_ids"]
    assert talk.ids[: len(rendered)] == rendered


def test_half_a_surrogate_pair_ends_no_run(file):
    """No tokenizer takes one: of a model's JSON it is a bad call, of an environment's text a question mark."""
    path = file(
        "class E:\n    def reset(self, **row):\n        return ' \\ud83d'\n"
        "    def reply(self, text):\n        return '\\ude00 what?'\n"
        "    def give(self, text: str) -> str:\n"
        '        """Give.\n\n        Args:\n            text: A text.\n        """\n'
        "        return text + '\\ud800'\n"
    )
    asked = '<tool_call>{"name": "give", "arguments": {"text": "\\ud800"}}</tool_call>'
    (talk,) = Play(f"{path}:E", turns=4)([row()], [[asked, call("give", text="a"), "hm"]])
    first, cut_short, given, reply = [m["content"] for m in talk.messages if m["role"] != "assistant"]
    assert (first, given, reply) == ("2+2= ?", "a?", "? what?") and "UnicodeEncodeError" in cut_short
    check_lists(talk)


def test_tools_and_replies_together_and_async_rewards(file):
    (last,) = Play(f"{file()}:Tools", turns=2)([row()], [[call("note", text="a")]])  # the call of its last turn is not
    assert last.environment.log == ["a"] and (last.ended_by, len(last.spans), last.calls) == ("turns", 2, 1)
    playing = Play(f"{file()}:Both")
    (talk,) = playing([row()], [[call("note", text="a"), "hm", call("later", text="b"), "bye"]])
    said = [m["content"] for m in talk.messages if m["role"] in ("tool", "user")]
    assert said == ["2+2=", "1 noted", "Go on.", "2 noted"]
    assert (talk.score, talk.turn_rewards, talk.ended_by) == (2.0, [1, 0, 1, 0], "reply")


def test_a_result_that_leaves_no_room_ends_the_conversation(file):
    playing = Play(f"{file()}:Tools", tokens=700)
    (talk,) = playing([row()], [[call("note", text="a"), call("huge"), "x"]])
    assert talk.ended_by == "tokens" and len(talk.ids) <= 600 and talk.response_mask[-1] == 1
    assert talk.messages[-1]["role"] == "assistant"  # the result is in neither
    with pytest.raises(UserError, match=r"row 1 of the batch, prompt 'x+'.*at most 600.*--max_conversation_tokens 8"):
        playing([row("x" * 700)], [["x"]])


def test_hanging_tools_leave_the_rest_of_the_batch_unharmed(file):
    playing, kinds = Play(f"{file()}:Tools", seconds=2, characters=100), ["note", "sleep", "wait", "note"]
    answers = [[call(kind, **({"text": "a"} if kind == "note" else {})), call("note", text="b"), "x"] for kind in kinds]
    talks = playing([row()] * 4, answers)
    for kind, talk in zip(kinds, talks, strict=True):
        check_lists(talk)
        first, second = [m["content"] for m in talk.messages if m["role"] == "tool"]
        assert (first, second) in (("1 noted", "2 noted"), ("{'error': 'no answer in 2 s'}", "1 noted"))
        assert (first == "1 noted") == (kind == "note") and talk.ended_by == "answer"
    sys.modules[type(talks[0].environment).__module__].OPENED.set()  # of a call into C, which nothing interrupts
    assert ended()


def test_results_do_not_depend_on_order_or_neighbours(file):
    path = file()
    answers = [["a", "b", "c"], ["b"], ["c", "a"], ["a…", "c"]]
    rows = [row(answer=x, hint=str(i)) for i, x in enumerate("cbac")]
    together = Play(f"{path}:Talk", turns=3)(rows, answers)
    turned = Play(f"{path}:Talk", turns=3)(rows[::-1], answers[::-1])[::-1]
    alone = [Play(f"{path}:Talk", turns=3)([r], [a])[0] for r, a in zip(rows, answers, strict=True)]
    for one in (turned, alone):
        assert [(t.ids, t.response_mask, t.score) for t in one] == [(t.ids, t.response_mask, t.score) for t in together]


def test_no_state_is_shared_by_conversations_of_one_row(file):
    path = file(
        "class E:\n    def reset(self, tests, prompt, **row):\n        tests.append(1)\n        prompt.clear()\n"
        "        self.n = len(tests)\n    def get_reward(self):\n        return self.n\n"
    )
    shared = {"prompt": [{"role": "user", "content": "x"}], "columns": {"tests": []}}
    talks = Play(f"{path}:E")([shared] * 3, [["a"]] * 3)
    assert [t.score for t in talks] == [1, 1, 1] and len({id(t.environment) for t in talks}) == 3
    assert shared == {"prompt": [{"role": "user", "content": "x"}], "columns": {"tests": []}}


def test_what_reset_returns_goes_after_the_prompt(file):
    playing = Play(f"{file()}:Talk", turns=1)
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    begun = [*turns, {"role": "assistant", "content": "So"}]  # the answer goes on with it
    talks = playing([row(prompt, answer="a", hint="h") for prompt in (turns, begun, None)], [["b"]] * 3)
    decoded = [playing.tokenizer.decode(t.prompt_ids) for t in talks]
    asked = "<|user|>{} Hint: h<|end|><|assistant|>"
    whole = "<|system|>s<|end|>" + asked.format("u")
    assert decoded == [whole, whole + "So", asked.format("")]
    with pytest.raises(UserError, match="a prompt of the assistant's turn alone; expected a user's turn before it"):
        playing([row([{"role": "assistant", "content": "So"}], answer="4", hint="even")], [["4"]])
    with pytest.raises(UserError, match=r"row 1 of the batch, .*got a prompt that the template refuses"):
        Play(f"{file()}:Talk", template="gemma")([row(turns, answer="a")], [["b"]])  # it has no system message


def test_an_answer_of_no_tokens_is_one_that_was_cut_off(file):
    playing = Play(f"{file()}:Talk", turns=2)
    (talk,) = playing([row(answer="4")], [["…", "4"]])
    assert playing.tokenizer.decode(talk.response_ids) == "<|end|><|user|>Not .<|end|><|assistant|>4<|end|>"
    assert talk.spans[0] == (0, 0) and talk.score == 0.5
    check_lists(talk)


FAULTS = {
    "reset": ("        raise ValueError('no')", "", "", r"reset raised ValueError: no at .*own0\.py:3"),
    "reply": ("        pass", "        return 1 / 0", "", r"reply raised ZeroDivisionError.* at .*own0\.py:5"),
    "reply of a number": ("        pass", "        return 3", "", "reply returned a int; expected a string or None"),
    "reset of a list": ("        return [1]", "", "", "reset returned a list; expected a string or None"),
    "reward is text": ("        pass", "", "        return '1'", "got get_reward '1'; expected a finite number"),
    "reward exits": ("        pass", "", "        raise SystemExit(0)", "get_reward raised SystemExit: 0 at"),
    "turn reward": ("        self.turn_reward = 'x'", "", "", "got turn_reward 'x'"),
    "slow reply": ("        pass", "        while True: pass", "", r"reply gave no answer in 0\.3 s"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_environment_stops_the_run_and_is_named(name, file):
    reset, reply, reward, message = FAULTS[name]
    text = f"class E:\n    def reset(self, **row):\n{reset}\n    def reply(self, text):\n{reply or '        return'}"
    path = file(f"{text}\n    def get_reward(self):\n{reward or '        return 1'}\n")
    with pytest.raises(EnvironmentFault, match=message) as error:
        Play(f"{path}:E", seconds=0.3 if name == "slow reply" else 60)([row("Why?")] * 2, [["a"]] * 2)
    assert error.value.code == 3 and "environment E, row 1 of the batch, prompt 'Why?': " in str(error.value)


def test_a_tool_that_needs_the_main_thread_stops_the_run(file):
    text = "import signal\nclass E:\n    def reset(self, **row):\n        pass\n    def look(self) -> str:\n"
    text += "        'Look.'\n        signal.signal(signal.SIGALRM, signal.SIG_DFL)\n"
    with pytest.raises(EnvironmentFault, match=r"tool look .*--tool_timeout.* raised ValueError: .* at .*:7"):
        Play(f"{file(text)}:E")([row("Why?")], [[call("look"), "a"]])


BY_THE_MODEL = ["exec('import signal; signal.signal(signal.SIGALRM, signal.SIG_DFL)')", "raise Odd()"]


@pytest.mark.parametrize("line", BY_THE_MODEL)
def test_what_the_models_code_raises_in_a_tool_does_not_stop_the_run(line, file):
    text = "class Odd(Exception):\n    def __str__(self):\n        raise OSError\nclass E:\n"
    text += f"    def reset(self, **row):\n        pass\n    def look(self) -> str:\n        'Look.'\n        {line}\n"
    (conversation,) = Play(f"{file(text)}:E")([row("Why?")], [[call("look"), "a"]])
    assert (conversation.calls, conversation.failures, conversation.ended_by) == (1, 1, "answer")


def test_a_reward_of_none_leaves_nothing_to_its_turns(file):
    """Their sum would otherwise be taken from the last answer."""
    paid = "        self.turn_reward = 1.0\n        return None if text == 'b' else 'Go on.'\n"
    talks = "class E:\n    def reset(self, **row):\n        pass\n    def reply(self, text):\n" + paid
    for score, expected in ((None, [0.0, 0.0]), (5.0, [1.0, 4.0])):
        path = file(f"{talks}    def get_reward(self):\n        return {score}\n")
        (talk,) = Play(f"{path}:E")([row()], [["a", "b"]])
        assert talk.turn_rewards == expected and talk.score == score


def test_a_mixed_batch(file):
    playing = Play(f"{file()}:MIXED")
    rows = [row(environment="talk", answer="a"), row(environment="tools"), row(environment="talk", answer="b")]
    talks = playing(rows, [["x", "a"], [call("note", text="n"), "x"], [call("note", text="n"), "b"]])
    assert [t.score for t in talks] == [0.5, 1.0, 0.5]
    assert talks[2].calls == 0  # an environment without tools takes a call for text
    shown = ["note" in playing.tokenizer.decode(t.prompt_ids) for t in talks]
    assert shown == [False, True, False]
