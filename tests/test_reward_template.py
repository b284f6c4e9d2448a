"""Generated rewards: each task and contract runs, passes ruff and its own test; scores by hand; ports; bad input."""

import ast
import asyncio
import contextlib
import io
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import threading
import time
import types
import warnings

import pytest
from conftest import ROOT, edited, load_module, load_script, run_script, script_env, write_lines
from local_server import serving
from preflight_here import try_here

LIBRARY = ROOT / "examples" / "reward_functions_library.py"
TASKS = ["math", "code", "qa", "format", "llm_judge"]
FILES = [*((task, "both") for task in TASKS), ("qa", "trl"), ("code", "verl")]
template = load_script("create_reward_template")
numbers = itertools.count()


def make(folder, *flags, name="my_reward.py") -> dict:
    """Write a reward as the command does; returns what it says."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert template.main([*map(str, flags), "--output", str(folder / name)]) == 0
    return json.loads(out.getvalue())


def load(folder, name="my_reward.py"):
    """A generated file as a module, with the sandbox beside it."""
    sys.modules.pop("sandbox", None)
    return load_module(folder / name, f"script_generated_{next(numbers)}")


def self_test(path) -> subprocess.CompletedProcess:
    """Run a generated file's own test, as its docstring says."""
    command = [sys.executable, path.name, "--test"]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=60, env=script_env())


def ruff(path, *flags) -> subprocess.CompletedProcess:
    """What ruff says of a generated file, by this project's rules unless flags say otherwise."""
    flags = flags or ("--config", str(ROOT / "pyproject.toml"))
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", *flags, str(path)]
    return subprocess.run(command, capture_output=True, text=True)


def by_trl(function, rows, texts, chat=False) -> list:
    """Scores of completions by TRL's contract; a row holds columns, and `prompt`."""
    columns = {name: [row.get(name) for row in rows] for row in rows for name in row if name != "prompt"}
    completions = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    prompts = [row.get("prompt") for row in rows]
    extras = {"trainer_state": object(), "log_extra": lambda *_: None, "log_metric": lambda *_: None}
    result = function(prompts=prompts, completions=completions, completion_ids=[[1]] * len(rows), **columns, **extras)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


def by_verl(module, row, text, gold="answer", **extra) -> dict:
    """What a generated compute_score says of a row in data_loader.py's layout, called as verl's naive manager calls."""
    loader = load_script("data_loader")
    made = loader.verl_row({"prompt": "?"} | {k: v for k, v in row.items() if k != "prompt"}, 0, "train")
    info = made["extra_info"] | extra | {"num_turns": None, "rollout_reward_scores": {}}
    info |= {"prompt": row["prompt"]} if "prompt" in row else {}
    truth = made["reward_model"]["ground_truth"]
    result = module.compute_score(data_source="data", solution_str=text, ground_truth=truth, extra_info=info)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


# ------------------------------------------------------------------------------------------------ every task
@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{(task, contract): the folder of its file}."""
    made = {}
    for task, contract in FILES:
        made[task, contract] = tmp_path_factory.mktemp(f"{task}_{contract}")
        flags = ["--task", task, "--for", contract, "--output", str(made[task, contract] / "my_reward.py")]
        assert template.main(flags) == 0
    return made


@pytest.mark.parametrize(("task", "contract"), FILES)
def test_file_is_complete_and_passes_its_own_test(files, task, contract, capsys):
    path = files[task, contract] / "my_reward.py"
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"TODO|FIXME|NotImplemented|^\s*(pass|\.\.\.)$|@[A-Z]+@", source, re.MULTILINE)
    defined = set(re.findall(r"^(?:async )?def (\w+)", source, re.MULTILINE))
    name = f"{task}_reward".replace("llm_", "")
    assert (name in defined, "compute_score" in defined) == (contract != "verl", contract != "trl")
    if contract == "both":
        assert load(path.parent).self_test() == 0
        said = capsys.readouterr().out
    else:
        said = self_test(path).stdout
    assert re.search(r"^\d+ scores, 0 wrong$", said) and int(said.split()[0]) >= 5, said
    assert ruff(path).returncode == 0, ruff(path).stdout
    helper = {"math": "math_grader.py", "code": "sandbox.py"}.get(task)
    assert {p.name for p in path.parent.iterdir()} - {"__pycache__"} == {"my_reward.py", helper} - {None}


MUTATIONS = {  # a fault in the core or an adapter, which the file's own test must see
    "math": ("math_score(text, row.get(GOLD)", 'math_score(text, "7"'),
    "code": ("float(verdict.all_passed)", "1.0"),
    "qa": ("float(bool(answers & golds))", "float(any(gold in normal(text) for gold in golds))"),
    "format": ("text.count(mark) != 1", "False"),
    "llm_judge": ("float(found[1])) / 10", "float(found[1]))"),
    "qa by trl": ("return [score(", "return [0.5 + score("),
    "qa by verl": ("row[field] = ", 'row["x"] = '),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_own_test_sees_a_fault(files, what, tmp_path, capsys):
    shutil.copytree(files[what.split()[0], "both"], tmp_path / "copy")
    path = tmp_path / "copy" / "my_reward.py"
    path.write_text(edited(path.read_text(), [MUTATIONS[what]]))
    if what == "qa by trl":
        with pytest.raises(TypeError):  # of a score that is None
            load(path.parent).self_test()
    else:
        assert load(path.parent).self_test() > 0 and "WRONG" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ scores by hand
BLOCK = "```python\n{}\n```"
BY_HAND = [
    ("math", r"so \boxed{12}", {"answer": "12"}, 1.0),
    ("math", "#### 1,200", {"answer": 1200}, 1.0),
    ("math", r"\boxed{6*2}", {"answer": "12", "prompt": [{"role": "user", "content": "6*2="}]}, 0.0),
    ("math", r"\boxed{12}", {"answer": None}, None),
    *[("math", f"#### 12{end}", {"answer": "12"}, 1.0) for end in ("</s>", "<|im_end|>\n<|endoftext|>", "<pad><pad>")],
    *[("qa", f"Paris{end}", {"answer": "Paris"}, 1.0) for end in ("</s>", "<end_of_turn>", "<｜end▁of▁sentence｜>")],
    ("code", BLOCK.format("def f(x):\n    return x + 1"), {"tests": ["assert f(1) == 2", "assert f(0) == 1"]}, 1.0),
    ("code", BLOCK.format("def f(x):\n    return 2"), {"tests": ["assert f(1) == 2", "assert f(0) == 1"]}, 0.0),
    ("code", BLOCK.format("def f(x):\n    return x + 1"), {"tests": "[[[1], 2]]", "entry_point": "f"}, 1.0),
    ("code", BLOCK.format("def f(x):\n    return x"), {"tests": "assert f(2) == TWO", "setup": "TWO = 2"}, 1.0),
    ("code", BLOCK.format("x = 1") + BLOCK.format("\ndef f():\n    return 5"), {"tests": ["assert f() == 5"]}, 1.0),
    ("code", f"{BLOCK.format('x')}\n{BLOCK.format('def f(): return 5')}", {"tests": ["assert f() == 5"]}, 1.0),
    ("code", "```python\ndef f(x):\n    return 5", {"tests": ["assert f(1) == 5"]}, 1.0),
    ("code", BLOCK.format("while True: pass"), {"tests": []}, None),
    ("qa", "The answer is: Paris.", {"answer": "Paris"}, 1.0),
    ("qa", "Answer: the  Nile\nIt is long.", {"answer": "NILE"}, 1.0),
    ("qa", "<answer> LON </answer>", {"answer": ["London", "LON"]}, 1.0),
    ("qa", "Paris or Rome", {"answer": "Paris"}, 0.0),
    ("qa", "-5", {"answer": "5"}, 0.0),
    ("qa", "C++", {"answer": "C"}, 0.0),
    ("qa", '**"Jean-Luc"**', {"answer": "jean luc"}, 1.0),
    *[
        ("qa", text, {"answer": "Paris"}, 1.0)
        for text in (
            *("**Answer**: Paris", "*Answer:* **Paris**.", "The answer would be Paris.", "The answer must be Paris"),
            *("Answer: Paris\n\nThe answer must be a city.", "I thought \\boxed{Rome}.\nThe answer is Paris."),
            *("The answer is Paris. It lies on the Seine.", "The answer is **Paris**. This city is old. It is big."),
            *("The answer is Paris because it is the capital.", "We look.\n\n### Final Answer\n\n**Paris**"),
            *(r"\boxed{Paris}", r"As asked in \boxed{}: $\boxed{\text{Paris}}$.", r"<answer>\boxed{Paris}</answer>"),
            *(r"The answer is the capital: \boxed{Paris}, not \boxed{Rome}", r"\boxed{Paris}, so \boxed{Paris}"),
        )
    ],
    *[
        ("qa", text, {"answer": "Paris"}, 0.0)
        for text in (
            *("The answer is Paris. That is wrong.", "\\boxed{Paris} is wrong. The answer is Rome."),
            *("The answer is Paris. It could be Rome.", "The answer is Paris. Or Rome is right.", "Paris. Rome. Oslo."),
            *("The answer is Paris. It isn't.", "The answer would not be Paris.", "**Wrong answer**: Paris"),
            *(r"\boxed{Rome} or \boxed{Paris}", r"The answer is not \boxed{Paris}.", r"<think>\boxed{Paris}</think>"),
            *("The answer is Paris because I guess. Or Rome.", "Not Paris because it is big"),
            r"<answer>\boxed{Paris}</answer><answer>Rome</answer>",
        )
    ],
    *[("qa", f"The answer is {said}. It lies on the Seine.", {"answer": said}, 1.0) for said in ("yes", "no", "42")],
    *[("qa", f"The answer is {name}", {"answer": name}, 1.0) for name in ("Mrs. Dalloway", "J. K. Rowling")],
    *[("qa", text, {"answer": "1914-1918"}, 1.0) for text in ("1914–1918", "Answer: 1914-1918")],
    ("qa", "−5", {"answer": "-5"}, 1.0),
    ("qa", "−5", {"answer": "5"}, 0.0),
    ("qa", "x", {"answer": " "}, None),
    ("format", "<think>a</think><answer>b</answer>", {}, 1.0),
    ("format", "<think>a</think><answer>b", {}, 0.375),
    ("format", "<think>\u200b</think><answer>\ufeff</answer>", {}, 0.5),  # empty, to the eye
    ("format", "so <think>a</think><answer>b</answer>", {}, 0.5),
    ("format", "<answer>b</answer><think>a</think>", {}, 0.25),  # <think> and </think> come in order, then no <answer>
]


@pytest.mark.long
def test_score_by_hand_by_both_contracts(files):
    modules = {task: load(files[task, "both"]) for task in TASKS}
    for task, text, row, expected in BY_HAND:
        for chat in (False, True):
            (got,) = by_trl(getattr(modules[task], f"{task}_reward"), [row], [text], chat)
            assert got is None if expected is None else got == pytest.approx(expected, abs=1e-12), (task, text)
        got = by_verl(modules[task], row, text)
        wanted = {"score": pytest.approx(expected or 0.0, abs=1e-12), "applies": float(expected is not None)}
        assert got == wanted, (task, text)
        assert all(type(value) is float for value in got.values())  # verl puts them into an array of numbers


def test_unusable_tests_do_not_apply_and_warn(files):
    module = load(files["code", "both"])
    with pytest.warns(UserWarning, match="cannot be used"):
        assert module.score("x = 1", {"tests": "assert ("}) is None
    module.PAY = "fraction"
    assert module.score("def f(x): return x", {"tests": ["assert f(1) == 1", "assert f(2) == 4"]}) == 0.5


def test_hostile_text_scores_in_time_and_never_raises(files):
    texts = ["(" * 20_000, *(x * 9_000 for x in ("answer is ", "<answer>", "<think>")), "<pad>" * 9_000 + "x"]
    texts += [" " * 50_000 + "x", "\ud800", "\x00" * 1000, "```\n" * 9_999]
    for task in ("math", "code", "qa", "format"):
        module, row = load(files[task, "both"]), DATA[task]
        started = time.process_time()
        scores = by_trl(getattr(module, f"{task}_reward"), [row] * len(texts), texts)
        assert all(0 <= value <= 0.5 for value in scores) and time.process_time() - started < 10
        assert [by_verl(module, row, text)["score"] for text in texts[-3:]] == scores[-3:]


def test_empty_batch_and_wrong_lengths(files):
    module = load(files["qa", "trl"])
    assert module.qa_reward([], [], answer=[]) == [] and module.qa_reward(None, ["a"], answer=["a"]) == [1.0]
    with pytest.raises(ValueError, match="argument"):  # of zip
        module.qa_reward(["?"] * 2, ["a", "b"], answer=["a"])
    with pytest.raises(TypeError, match="answer"):
        module.qa_reward(["?"], ["a"])


def test_rows_of_verl_from_other_tools(files):
    import numpy

    module = load(files["qa", "both"])
    score = module.compute_score
    assert score("nq", "Paris", "Paris")["score"] == 1.0  # plain ground_truth, no extra_info
    assert score("nq", "Paris", numpy.array(["Paris", "paris"]), None)["score"] == 1.0  # from pandas
    extra = {"answer": "a long solution", "index": 3, "reward_router_address": "x"}
    assert score("gsm8k", "7", "7", extra, reward_router_address="x")["score"] == 1.0  # ground_truth wins
    extra = {"ground_truth_field": "none", "json_columns": numpy.array(["answer"]), "answer": '["x", "y"]'}
    assert score("data", "y", "", extra)["score"] == 1.0
    module = load(files["math", "both"])
    messages = [{"role": "user", "content": "2^10 ="}]
    extras = [{"raw_prompt": numpy.array(messages)}, {"prompt": "2^10 ="}, {}]  # copying the task pays nothing
    assert [module.compute_score("d", r"\boxed{2^10}", "1024", e)["score"] for e in extras] == [0.0, 0.0, 1.0]
    assert module.verl_row("12", extras[0] | {"column:index": 4})["index"] == 4


def test_what_an_environment_says_is_not_paid(files):
    turns = [("assistant", "I give up."), ("user", "<answer>Paris</answer>"), ("tool", "Paris")]
    said = [{"role": role, "content": text} for role, text in turns]
    assert load(files["qa", "trl"]).qa_reward(["?"] * 2, [said, said[1:]], answer=["Paris"] * 2) == [0.0, 0.0]


DATA = {
    "math": {"prompt": "34+71=", "answer": "105"},
    "code": {"prompt": "Square x.", "tests": ["assert f(3) == 9"], "solution": "def f(x):\n    return x * x"},
    "qa": {"prompt": "Capital of France?", "answer": "Paris"},
    "format": {"prompt": "34+71=", "answer": "105"},
    "llm_judge": {"prompt": "34+71=", "answer": "105"},
}


@pytest.fixture
def judge(monkeypatch):
    """An endpoint, which the environment names: 10 where the fenced text is the reference answer, else 0.

    Before that it answers with the statuses of `script`; `reply` takes the place of the grade.
    """
    state = types.SimpleNamespace(seen=[], script=[], reply=None)

    def answer(asked) -> tuple:
        message = asked.body["messages"][0]["content"]
        state.seen.append((asked.path, asked.headers["Authorization"], asked.body["model"], message))
        text = message.split("\n" + message.splitlines()[-1] + "\n", 1)[-1].rpartition("\n")[0]
        gold = re.search(r"(?s)Reference answer:\n(.*?)\n\nThe answer to grade", message)
        reply = state.reply or f'So {{"score": {10 if gold and text == gold[1] else 0}}}'
        return state.script.pop(0) if state.script else 200, {"choices": [{"message": {"content": reply}}]}

    with serving(answer) as url:
        for name, value in (("BASE_URL", f"{url}/v1"), ("API_KEY", "secret-key")):
            monkeypatch.setenv(f"OPENAI_{name}", value)
        monkeypatch.setenv("JUDGE_MODEL", "grader")
        yield state


# ------------------------------------------------------------------------------------------------ judge
@pytest.fixture
def judging(files, judge):
    """The generated judge as a module, which waits only briefly between tries."""
    module = load(files["llm_judge", "both"])
    module.BACKOFF_S = 0.01
    return module


def test_judge_asks_with_task_reference_and_fence(judging, judge):
    row = {"prompt": [{"role": "user", "content": "34+71="}], "answer": "105"}
    assert by_trl(judging.judge_reward, [row, row], ["105", "104"]) == [1.0, 0.0]
    assert by_verl(judging, row, "105") == {"score": 1.0, "applies": 1.0}
    path, key, model, message = judge.seen[-1]
    assert (path, key, model) == ("/v1/chat/completions", "Bearer secret-key", "grader")
    assert "34+71=" in message and "Reference answer:\n105" in message
    fence = message.splitlines()[-1]
    assert message.count(fence) == 3 and fence not in judging.message_of("106", row)


REPLIES = {
    'I think {"score": 2} at first, then\n```json\n{"score": 8.5}\n```': 0.85,
    **{'{"score": 70}': 1.0, '{"score": 3} or so': None, '{"score": -1}': None, "seven": None},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_judge_reads_only_what_ends_the_reply(judging, judge):
    row = {"prompt": "?", "answer": "1"}
    for judge.reply, expected in REPLIES.items():
        assert by_trl(judging.judge_reward, [row], ["x"]) == [expected], judge.reply
        assert by_verl(judging, row, "x") == {"score": expected or 0.0, "applies": float(expected is not None)}


def test_judge_retries_what_can_pass_and_nothing_else(judging, judge):
    judge.script = [503, 429]
    assert by_trl(judging.judge_reward, [DATA["llm_judge"]], ["105"]) == [1.0] and len(judge.seen) == 3
    for judge.script, told, asked in (([401], "no score from grader", 4), ([500] * 9, "HTTPError 500", 9)):
        with pytest.warns(UserWarning, match=told):
            assert by_trl(judging.judge_reward, [DATA["llm_judge"]], ["105"]) == [None]
        assert len(judge.seen) == asked
    judging.BASE_URL, judging.RETRIES = "http://127.0.0.1:9/v1", 1
    with pytest.warns(UserWarning, match="no score"):
        assert by_trl(judging.judge_reward, [DATA["llm_judge"]], ["105"]) == [None]


def test_judge_is_asked_side_by_side_and_not_for_empty_text(judging):
    with pytest.warns(UserWarning, match="sees only the answer"):
        assert by_verl(judging, {"answer": "105"}, "105")["score"] == 1.0
    three = threading.Barrier(3)  # none passes before three are there; one after the other, the first breaks it
    judging.reply_to = lambda message: f'{{"score": {5 + 0 * three.wait(60)}}}'
    assert by_trl(judging.judge_reward, [{"prompt": "?"}] * 16, ["x"] * 15 + [" "]) == [0.5] * 15 + [0.0]


# ------------------------------------------------------------------------------------------------ options
def test_columns_tags_and_names_are_as_asked(tmp_path):
    make(tmp_path, "--task", "qa", "--gold-column", "label", "--name", "right", name="qa.py")
    module = load(tmp_path, "qa.py")
    assert module.right(["?"], ["x"], label=["x"]) == [1.0] and module.compute_score("d", "x", "x")["score"] == 1.0
    make(tmp_path, "--task", "code", "--gold_column", "checks", name="a.py")
    assert by_trl(load(tmp_path, "a.py").code_reward, [{"checks": "assert f() == 1"}], ["def f(): return 1"]) == [1]
    make(tmp_path, "--task", "format", "--tags", "plan", "code", "answer", name="format.py")
    whole = "<plan>a</plan><code>b</code><answer>c</answer>"
    scores = by_trl(load(tmp_path, "format.py").format_reward, [{}] * 2, [whole, "<plan>a</plan>"])
    assert scores == [1.0, pytest.approx(0.5 * 2 / 6)]
    assert load(tmp_path, "qa.py").self_test() == load(tmp_path, "format.py").self_test() == 0


# ------------------------------------------------------------------------------------------------ files
def test_nothing_is_overwritten_without_force(tmp_path, capsys):
    path = tmp_path / "my_reward.py"
    path.write_text("mine")
    assert template.main(["--task", "math", "--output", str(path)]) == 2
    said = capsys.readouterr()
    assert "which exists" in said.err and "--force" in said.err and said.out == ""
    assert path.read_text() == "mine" and list(tmp_path.iterdir()) == [path]


def test_helper_is_copied_once_and_never_replaced(tmp_path, capsys):
    (tmp_path / "my_reward.py").write_text("mine")
    report = make(tmp_path, "--task", "math", "--force")
    helper = tmp_path / "math_grader.py"
    assert report["copied"] and report["helper"] == str(helper)
    assert helper.read_bytes() == (ROOT / "scripts" / "math_grader.py").read_bytes()
    helper.write_text("def math_score(text, gold, prompt=''):\n    return 0.25\n")
    assert not make(tmp_path, "--task", "math", "--force")["copied"]
    assert "is kept; it differs" in capsys.readouterr().err
    assert load(tmp_path).score("1", {"answer": "1"}) == 0.25


# ------------------------------------------------------------------------------------------------ ports
MINE = """
import asyncio
import re

TAIL = re.compile("(-?[0-9]+)$")  # the last number

def last(text):
    found = TAIL.search(text.strip())
    return found and found[1]

def batch(prompts, completions, answer, **kwargs):
    texts = [c[-1]["content"] for c in completions]
    return [None if last(a) is None else 0.5 * (last(t) == last(a)) for t, a in zip(texts, answer)]

def text_batch(completions, answer, completion_ids=None):
    return [float(t == a) for t, a in zip(completions, answer)]

def single(prompt, completion, answer):
    return int(completion == answer)

def correct(prompts, completions, answer, **kwargs):
    return [float(a in c[0]["content"]) for a, c in zip(answer, completions)]

def plain_text(completions, answer):
    return [len(c) / len(a) for a, c in zip(answer, completions)]

async def slow(prompts, completions, answer, log_metric, trainer_state, **kwargs):
    await asyncio.sleep(0.001)
    log_metric("seen", 1.0)
    return [None if a == "none" else float(a in c[0]["content"]) for a, c in zip(answer, completions)]

def columns(prompts, completions, level, topic=None, **kwargs):
    return [n + len(t or "") + len(p or "") for p, n, t in zip(prompts, level, topic or [None] * len(level))]

def raises(prompts, completions, answer, **kwargs):
    return [1 / len(c[0]["content"]) for c in completions]

def needs_ids(prompts, completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]

class Length:
    __name__ = "length"
    weights = (1.0, 2.0)  # of its own, as a combination has them

    async def __call__(self, prompts, completions, **kwargs):
        return [float(len(c[0]["content"])) for c in completions]

def short(prompt, completion, answer, log_metric=None):
    if log_metric:
        log_metric("characters", len(completion))
    return None if answer == "none" else 1.0 - len(completion) / 100

class Preset(list):
    weights = [1.0, 0.5]

length = Length()
both = Preset([correct, slow])
REWARDS = [correct, short]
REWARD_WEIGHTS = [1.0, 0.2]

def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.25):
    right = float(ground_truth in solution_str) + len((extra_info or {}).get("topic") or "")
    return {"score": right + bonus * (data_source == "gsm8k"), "acc": right}

async def async_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(ground_truth in solution_str)

def tuple_score(solution_str, ground_truth):
    return float(solution_str == ground_truth), "note"

def no_default(data_source, solution_str, ground_truth, extra_info, bonus):
    return bonus

def neither(text, gold):
    return 0.0
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with rewards to port."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def port(mine, name, *flags):
    """The module of a port, which scored as its original when it was written."""
    report = make(mine, "--from", f"{mine / 'mine.py'}:{name}", *flags, "--force", name="port.py")
    raised = name == "raises"  # for the empty text
    assert report["tried"]["same_score"] == report["tried"]["completions"] - raised > 0
    return load(mine, "port.py")


def refused(mine, capsys, name, *flags) -> str:
    """What is said of a port that is not written."""
    assert template.main(["--from", f"{mine / 'mine.py'}:{name}", "--output", str(mine / "no.py"), *flags]) == 2
    assert not (mine / "no.py").exists()
    return capsys.readouterr().err


PORTS = {  # the function of MINE, flags: [(gold answer, text, score, what else compute_score says)]
    "correct*0.5": [("7", "it is 7", 0.5, {}), ("7", "it is 8", 0.0, {})],
    "plain_text --completions text --for verl": [("ab", "abcdef", 3.0, {})],
    "slow": [("x", "x", 1.0, {}), ("y", "x", 0.0, {}), ("none", "x", 0.0, {"applies": 0.0})],
    "length": [("a", "abc", 3.0, {})],
    "both*2": [  # of the second answer, the second function says None
        ("x", "x", 3.0, {"reward/correct": 1.0, "reward/slow": 1.0}),
        ("none", "none", 2.0, {"reward/correct": 1.0, "reward/slow": 0.0}),
    ],
}


@pytest.mark.parametrize("flags", PORTS)
def test_port_to_verl_gives_the_same_score(mine, flags):
    module = port(mine, *flags.split())
    assert ruff(mine / "port.py").returncode == 0
    for answer, text, score, more in PORTS[flags]:
        expected = {"score": score, "applies": 1.0, "raised": 0.0} | more
        assert by_verl(module, {"answer": answer}, text) == expected, text
    if flags == "correct*0.5":
        assert module.compute_score("d", "7", "7")["score"] == 0.5  # without extra_info
    assert asyncio.iscoroutinefunction(module.compute_score) == (flags in ("slow", "length", "both*2"))


RANKED = """
def ranked(completions, answer, **kwargs):
    return [float(len(str(c)) == min(map(len, map(str, completions)))) for c in completions]
"""


@pytest.mark.parametrize(
    ("code", "name", "told"),
    [
        (RANKED, "ranked", "1.0 alone, 0.0 beside others; verl scores each alone"),
        ("correct.needs_group = True", "correct", "compares the completions of a prompt; verl scores each by itself"),
    ],
)
def test_port_to_verl_of_a_reward_that_compares_completions_is_refused(mine, capsys, code, name, told):
    (mine / "mine.py").write_text(f"{MINE}\n\n{code}")
    assert told in refused(mine, capsys, name)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("yield 1.0", "which returned <generator"),
        ("return [float('nan')]", "which returned nan, on every completion"),
        ("import numpy as np\n    return [np.float32(1)]", ""),
    ],
)
def test_port_says_what_is_no_score(mine, body, told, capsys):
    (mine / "odd.py").write_text(f"def odd(completions, answer, **_):\n    {body}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the port's own, that it scores 0
        assert template.main(["--from", "odd.py:odd", "--output", "port.py"]) == 0
    said = capsys.readouterr()
    assert told in said.err and bool(told) == ("compared with nothing" in said.err)
    assert json.loads(said.out)["tried"]["same_score"] == (0 if told else json.loads(said.out)["tried"]["completions"])


def test_port_to_verl_asks_which_of_two_columns_is_the_gold_one(mine, capsys):
    code = "def odd(completions, size, wanted, **_):\n    return [float(x in wanted) for x in completions]\n"
    (mine / "mine.py").write_text(f"{MINE}\n\n{code}")
    assert "which reads size and wanted; expected --gold_column, one of them" in refused(mine, capsys, "odd")
    write_lines(mine / "rows.jsonl", [{"prompt": "?", "size": 1, "wanted": "7"}])
    module = port(mine, "odd", "--gold_column", "wanted", "--completions", "text", "--data", mine / "rows.jsonl")
    assert by_verl(module, {"wanted": "7", "size": 1}, "7")["score"] == 1.0


def test_port_of_a_list_with_weights_scores_as_trl_does(mine):
    """(rewards_per_func * weights).nansum(1), NaN where every function returns None; verl has no None."""
    module = port(mine, "REWARDS*REWARD_WEIGHTS")
    by_hand = [("7", "it is 7", 1.0, 0.93), ("7", "", 0.0, 1.0), ("none", "none", 1.0, None), ("8", "8" * 40, 1.0, 0.6)]
    for answer, text, correct, short in by_hand:
        found = by_verl(module, {"answer": answer}, text)
        assert found["score"] == pytest.approx(correct + 0.2 * (short or 0.0), abs=1e-6)
        assert found["reward/correct"] == correct and found["reward/short"] == pytest.approx(short or 0.0)


ONE = """import asyncio
async def one(prompt, completion, answer, barrier=None):
    if barrier:
        await asyncio.wait_for(barrier.wait(), 60)
    return 1.0
"""


def test_port_of_a_reward_of_one_sample_to_trl(mine):
    module = port(mine, "short", "--for", "trl")
    assert by_trl(module.short, [{"answer": "x"}, {"answer": "none"}], ["x", "y"], chat=True) == [0.99, None]
    (mine / "slow").mkdir()
    (mine / "slow" / "mine.py").write_text(ONE)
    module, barrier = port(mine / "slow", "one", "--for", "trl"), asyncio.Barrier(3)  # all are awaited at once
    assert by_trl(module.one, [{"answer": "x", "barrier": barrier}] * 3, ["x"] * 3) == [1.0] * 3


def test_port_to_verl_reads_columns_and_prompt_from_extra_info(mine, capsys):
    flags = ["--from", f"{mine / 'mine.py'}:columns", "--gold_column", "topic", "--output", str(mine / "unseen.py")]
    assert template.main(flags) == 0
    said = capsys.readouterr()
    assert "missing 1 required" in said.err and json.loads(said.out)["tried"]["same_score"] == 0
    (mine / "rows.jsonl").write_text('{"level": 3, "topic": "sum"}\n')
    module = port(mine, "columns", "--data", mine / "rows.jsonl")
    assert module.GOLD == "level"
    assert module.compute_score("d", "x", 3, {"topic": "sum", "prompt": "1234"})["score"] == 10.0
    assert by_verl(module, {"level": 3, "topic": "sum"}, "x")["score"] == 6.0
    module = port(mine, "columns", "--data", mine / "rows.jsonl", "--gold_column", "topic")
    assert module.compute_score("d", "x", "sum", {"level": 4})["score"] == 7.0
    with pytest.raises(TypeError, match="level"):
        module.compute_score("d", "x", "sum", {})


def test_port_to_verl_keeps_a_row_whose_reward_raises(mine):
    module = port(mine, "raises")
    with pytest.warns(UserWarning, match="raises raised ZeroDivisionError"):
        assert by_verl(module, {"answer": "a"}, "") == {"score": 0.0, "applies": 0.0, "raised": 1.0}
    assert by_verl(module, {"answer": "a"}, "ab") == {"score": 0.5, "applies": 1.0, "raised": 0.0}
    module.PARTS["raises"] = (lambda completions: [math.nan], 1.0)
    with pytest.warns(UserWarning, match="got the score nan"):
        assert by_verl(module, {"answer": "a"}, "a")["raised"] == 1.0


def test_a_port_that_would_score_otherwise_is_not_written(mine, capsys, monkeypatch):
    fault = template.PORT_TO_VERL.replace('"content": text', '"content": text[1:]')
    monkeypatch.setattr(template, "PORT_TO_VERL", fault)
    assert "it scores 1.0, the port 0.0" in refused(mine, capsys, "correct")


def test_port_to_trl_gives_the_same_score(mine):
    module = port(mine, "compute_score")
    module.DATA_SOURCE = "gsm8k"
    rows = [{"answer": "7", "topic": "ab"}, {"answer": 7}, {"answer": "9", "source": "other", "topic": ""}]
    assert by_trl(module.verl_reward, rows, ["7", "7", "9"]) == [3.25, 1.25, 1.0]
    assert by_trl(module.verl_reward, rows, ["7", "7", "9"], chat=True) == [3.25, 1.25, 1.0]
    row = {"reward_model": {"ground_truth": "7"}, "extra_info": {"topic": "abc"}, "data_source": "gsm8k"}
    write_lines(mine / "rows.jsonl", [row])  # of verl
    module = port(mine, "compute_score", "--gold_column", "reward_model", "--data", mine / "rows.jsonl")
    assert by_trl(module.verl_reward, [row], ["7"]) == [4.25]
    module = port(mine, "tuple_score", "--name", "right")
    assert module.right(["?"] * 2, ["7", "8"], answer=["7", "7"]) == [1.0, 0.0]
    module = port(mine, "async_score")
    assert asyncio.iscoroutinefunction(module.async_score)
    assert by_trl(module.async_score, [{"answer": "7"}] * 2, ["7", "8"]) == [1.0, 0.0]


def test_port_and_original_move_together(mine, tmp_path_factory):
    (mine / "rewards").mkdir()
    shutil.move(mine / "mine.py", mine / "rewards" / "mine.py")
    make(mine, "--from", f"{mine / 'rewards' / 'mine.py'}:correct", name="port.py")
    there = tmp_path_factory.mktemp("there") / "copy"
    shutil.move(mine / "port.py", there.parent / "port.py")
    with pytest.raises(FileNotFoundError, match=r"mine.py; expected .* port.py needs; try copying"):
        load(there.parent, "port.py")
    shutil.move(mine / "rewards", there.parent / "rewards")
    assert load(there.parent, "port.py").compute_score("d", "7", "7")["score"] == 1.0


RUN = """
from trl import GRPOConfig, GRPOTrainer

def correct(prompts, completions, answer, **kwargs):
    return [float(a in c[-1]["content"]) for c, a in zip(completions, answer)]

def brief(prompts, completions, **kwargs):
    return [float(c[-1]["content"] != "") for c in completions]

REWARDS = [correct, brief]
REWARD_WEIGHTS = [1.0, 0.2]
trainer = GRPOTrainer(reward_funcs=REWARDS, args=GRPOConfig(reward_weights=REWARD_WEIGHTS))
trainer.train()
"""


@pytest.mark.parametrize(
    "head", ["", "from types import SimpleNamespace as GRPOTrainer, SimpleNamespace as GRPOConfig"]
)
def test_rewards_of_a_run_are_taken_out_of_its_file(tmp_path, monkeypatch, capsys, head):
    """verl's environment has no TRL, and a port must not train: such a file is not imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text(RUN.replace("from trl import GRPOConfig, GRPOTrainer", head) if head else RUN)
    monkeypatch.setitem(sys.modules, "trl", None)  # an import of it fails
    flags = ["--from", "run.py:REWARDS*REWARD_WEIGHTS", "--for", "verl", "--output", "verl_reward.py"]
    assert template.main(flags) == 0 and "run_rewards.py has its rewards alone" in capsys.readouterr().err
    score = load_module(tmp_path / "verl_reward.py", f"ported_from_a_run_{next(numbers)}").compute_score
    assert [score("d", text, "42", {})["score"] for text in ("so 42", "41", "")] == [1.2, 0.2, 0.0]
    assert template.main([*flags, "--force"]) == 0
    (tmp_path / "run_rewards.py").write_text("mine = 1\n")
    assert template.main([*flags[:-1], "other.py"]) == 2 and "try --force" in capsys.readouterr().err
    assert (tmp_path / "run_rewards.py").read_text() == "mine = 1\n"


# ------------------------------------------------------------------------------------------------ the shortest files
def test_final_number_pays_the_only_number_behind_the_mark(tmp_path):
    report = make(tmp_path, "--task", "final_number", "--name", "right")
    module = load(tmp_path)
    assert report["lines"] <= 36 and "test" not in report
    gold = "6 * 200 = 1200\n#### 1,200"
    right = ["So #### 1200", "#### 1,200.", "####1200.00\n", "12 #### $1,200", [{"content": "#### 1200"}]]
    wrong = ["1200", "#### 12", "#### 9 #### 1200", "#### 1200 or 9", "#### 1,2,0,0", "#### ١٢٠٠", "", "####"]
    assert module.right(right, answer=[gold] * 5) == [1.0] * 5 and module.right(wrong, [gold] * 8) == [0.0] * 8
    ends = {"</s>\n<pad>": 1.0, "<|im_end|>": 1.0, "<｜end▁of▁sentence｜>": 1.0, "<30>": 0.0, " <million>": 0.0}
    assert module.right([f"#### 1200{end}" for end in ends], [gold] * len(ends)) == [*ends.values()]
    assert module.right(["#### 3", "#### -3", "#### 7"], ["no number", "#### -3", "7"]) == [None, 1.0, 1.0]
    for text, solution in [(x, gold) for x in right[:-1] + wrong] + [("#### 3", "no number")]:
        score = module.compute_score("gsm8k", text, solution, {"index": 0})
        assert type(score) is float and score == (module.right([text], [solution])[0] or 0.0)
    make(tmp_path, "--task", "final_number", "--for", "trl", "--gold_column", "solution", name="trl.py")
    only = load(tmp_path, "trl.py")
    assert only.final_number_reward(["#### 1"], solution=["#### 1"]) == [1.0] and not hasattr(only, "compute_score")


@pytest.mark.long
def test_the_short_code_reward_is_tried_on_hostile_programs(tmp_path):
    report = make(tmp_path, "--task", "passes_tests", "--name", "reward", name="code_reward.py")
    tried = report["tried"]
    assert report["lines"] <= 46 and report["copied"] and (tmp_path / "sandbox.py").is_file()
    assert tried["ready"] and not tried["paid_of_them"] and len(tried["hostile_programs"]) == 24
    assert tried["isolated"]["network"] and tried["isolated"]["files"]


FENCED = "```python\ndef double(x):\n    return 2 * x\n```"


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    """The folder of a code reward in one file, with what was said of it."""
    folder = tmp_path_factory.mktemp("one_file")
    flags = ["--task", "passes_tests", "--one_file", "--signature", "code_reward(completions, tests)"]
    flags += ["--per", "completion", "--timeout_s", "2", "--memory_mb", "256", "--stop_at_first_failure"]
    return folder, make(folder, *flags, name="code_reward.py")


@pytest.mark.long
def test_a_code_reward_in_one_file_is_called_as_asked_and_leaves_nothing_behind(one_file, tmp_path):
    folder, report = one_file
    assert report["tried"]["ready"]
    assert [path.name for path in folder.iterdir() if path.suffix == ".py"] == ["code_reward.py"]
    text = (folder / "code_reward.py").read_text()
    assert ruff(folder / "code_reward.py", "--isolated", "--select", "E4,E7,F").returncode == 0
    imports = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Import)]
    imported = {alias.name.partition(".")[0] for x in imports for alias in x.names}
    assert imported <= sys.stdlib_module_names | {"numpy"}
    assert "2 s in all tests or 256 MiB" in report["tried"]["right_but_0"]
    limits = {"timeout_s": 2.0, "total_timeout_s": 2.0, "memory_mb": 256, "strict": True, "stop_at_first_failure": True}
    assert f"LIMITS = {json.dumps(limits).replace('true', 'True')}" in text
    (tmp_path / "calls.py").write_text(ONE_FILE_CALLS)
    command = [sys.executable, "-I", "calls.py", folder]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    scores = {"scores": [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0], "by_keyword": [1.0], "endless": [0.0]}
    assert json.loads(done.stdout) == {"before": 0, **scores, "in_time": True, "after": 0}


ONE_FILE_CALLS = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
from code_reward import code_reward

def children():
    return len(open(f"/proc/self/task/{os.getpid()}/children").read().split())

plain = "def double(x):\\n    return 2 * x\\n"
tests = ["assert double(2) == 4", "assert double(0) == 0"]
said = [
    f"```python\\n{plain}```",
    f"```python\\n{plain.replace('2', '3')}```",
    plain,  # no fence
    f"So:\\n```python\\n{plain}",  # no fence closes it
    f"```bash\\npip list\\n```\\n```py\\n{plain}```\\nprints\\n```\\n8\\n```",
    [{"role": "assistant", "content": f"1. So\\n   ```python\\n   def double(x):\\n       return 2 * x\\n   ```"}],
    "```bash\\nls\\n```",
]
told = {"before": children(), "scores": code_reward(said, [tests] * len(said))}
about = {"trainer_state": None, "completion_ids": [[1]], "tests": [tests]}
told["by_keyword"] = code_reward(prompts=["?"], completions=said[:1], **about)
slow, started = "import time\\ndef double(x):\\n    time.sleep(1.2)\\n    return 2 * x", time.monotonic()
told["endless"] = code_reward([slow], [tests])  # 1.2 s a test, 2 s a completion
told["in_time"] = time.monotonic() - started < 60
print(json.dumps(told | {"after": children()}))
"""


@pytest.mark.long
def test_a_text_without_a_fence_is_no_program_where_that_is_asked(tmp_path):
    make(tmp_path, "--task", "passes_tests", "--one_file", "--no_fence", "empty", name="code_reward.py")
    reward = load(tmp_path, "code_reward.py").passes_tests_reward
    code = "def f():\n    return 1\n"
    assert reward(None, [code, f"```\n{code}```"], tests=["assert f() == 1"] * 2) == [0.0, 1.0]


@pytest.mark.long
def test_a_signature_says_name_column_and_order(tmp_path, capsys):
    make(tmp_path, "--task", "qa", "--signature", "def right(completions, gold, level=None)", name="qa.py")
    assert load(tmp_path, "qa.py").right(["Paris", "Rome"], ["paris", "Paris"], ["easy", "hard"]) == [1.0, 0.0]
    assert self_test(tmp_path / "qa.py").returncode == 0
    make(tmp_path, "--task", "passes_tests", "--signature", "code(completions, tests, prompts, level)", name="a.py")
    assert "does not read level of" in capsys.readouterr().err
    assert load(tmp_path, "a.py").code([FENCED], [["assert double(2) == 4"]], [""]) == [1.0]
    make(tmp_path, "--task", "code", "--signature", "code(completions, tests, entry_point)", name="c.py")
    one_name = load(tmp_path, "c.py").code([FENCED, FENCED.replace("double", "d")], ["[[[2], 4]]"] * 2, "double")
    assert one_name == [1.0, 0.0]


SQUARES = [((n,), n * n) for n in range(4)]
FRACTION = ["--pay", "fraction"]
SIGNATURES = [  # --signature, further flags, how a program that hangs in one of four calls is judged, its score
    ("grade(programs, cases)", [*FRACTION, "--one_file"], lambda m, code: m.grade([code], [SQUARES]), [0.75]),
    ("grade(programs, cases)", [*FRACTION, "--per", "test"], lambda m, code: m.grade([code], [SQUARES]), [0.5]),
    ("f(prompt, completion, tests)", [], lambda m, code: m.f("", code, SQUARES), 0.0),
]


@pytest.mark.long
@pytest.mark.parametrize(("signature", "flags", "call", "score"), SIGNATURES)
def test_a_signature_in_other_words_scores_each_call(tmp_path, signature, flags, call, score):
    flags = [*flags, "--timeout_s", "1", "--memory_mb", "256"]
    assert make(tmp_path, "--task", "passes_tests", "--signature", signature, *flags)["tried"]["ready"]
    reward = load(tmp_path)
    right = "def aid(n):\n    return n * n\n\ndef sq(n):\n    return aid(n)\n"
    assert call(reward, right) == ([1.0] if isinstance(score, list) else 1.0)
    assert call(reward, right.replace("    return aid", "    while n == 2: pass\n    return aid")) == score
    assert call(reward, "import os\nos._exit(0)") == ([0.0] if isinstance(score, list) else 0.0)


def test_the_task_code_pays_and_limits_as_asked(tmp_path):
    flags = ["--pay", "fraction", "--timeout_s", "0.5", "--memory_mb", "1024", "--signature", "f(response, tests)"]
    make(tmp_path, "--task", "code", *flags)
    written = load(tmp_path)
    assert written.LIMITS == {"timeout_s": 0.5, "memory_mb": 1024, "each_alone": True}
    assert written.f(FENCED, ["assert double(2) == 4", "assert double(2) == 5"]) == 0.5
    assert self_test(tmp_path / "my_reward.py").returncode == 0


# Nothing may run at import: the sandbox's own server, which starts from the same file, would start a server, and so on.
STAND_IN = """
def verdict(passed):
    return run_code(f"def f(x): return {4 if passed else 5}", ["assert f(2) == 4"])
"""


def with_stand_in(folder, stand_in) -> list:
    """Plant a sandbox.py whose run_many is this; returns the flags that write a reward beside it."""
    head, main, end = (ROOT / "scripts" / "sandbox.py").read_text().rpartition('if __name__ == "__main__":')
    (folder / "sandbox.py").write_text(f"{head}{STAND_IN}\n\nrun_many = {stand_in}\n\n\n{main}{end}")
    return ["--task", "passes_tests", "--output", folder / "code_reward.py"]


def test_a_code_reward_that_pays_hostile_programs_is_found(tmp_path):
    done = run_script("create_reward_template", *with_stand_in(tmp_path, "lambda jobs: [verdict(True)] * len(jobs)"))
    found = json.loads(done.stdout)["tried"]
    assert done.returncode == 1 and not found["ready"] and [*found["paid_of_them"]] == found["hostile_programs"]
    assert {"wrong", "no program", "deep nesting", "much output"} <= {*found["paid_of_them"]}, found
    ends = "lambda jobs: [verdict(False) for job in jobs if exec(job['code'], {}) is None]"
    done = run_script("create_reward_template", *with_stand_in(tmp_path, ends), "--force")
    assert done.returncode == 1 and "ended the process" in json.loads(done.stdout)["tried"]["ended"]


def test_a_code_reward_whose_sandbox_fails_is_not_written(tmp_path, capsys):
    flags = with_stand_in(tmp_path, "lambda jobs: 1 / 0")
    assert template.main([str(flag) for flag in flags]) == 2
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said and "sandbox.py --report" in said
    assert not (tmp_path / "code_reward.py").exists() and (tmp_path / "sandbox.py").exists()


def test_a_code_reward_that_does_not_come_back_is_found(tmp_path, monkeypatch, capsys):
    flags = with_stand_in(tmp_path, "lambda jobs: time.sleep(600)")
    monkeypatch.setattr(template, "TRIAL_S", 1)
    assert template.main([str(flag) for flag in flags]) == 1
    assert "did not return in 1 s" in json.loads(capsys.readouterr().out)["tried"]["ended"]


def test_data_tries_what_was_written(tmp_path, monkeypatch, capsys):
    try_here(monkeypatch, template)
    data = ROOT / "evals" / "files" / "word_problems.jsonl"
    tried = make(tmp_path, "--task", "final_number", "--data", data)["tried"]
    assert tried["ready"] and tried["rows"] == 6 and tried["gold_with_full_marks"] == 1.0 and not tried["findings"]
    assert {"empty", "prompt_echo", "truncated", "answer_listing", "wrong_answer"} <= {*tried["not_paid"]}
    monkeypatch.setattr(template, "FINAL_NUMBER", template.FINAL_NUMBER.replace("== gold)", "!= gold)"))
    flags = ["--task", "final_number", "--data", str(data), "--output", str(tmp_path / "paid.py")]
    assert template.main(flags) == 1 and (tmp_path / "paid.py").exists()
    found = json.loads(capsys.readouterr().out)["tried"]
    assert not found["ready"] and found["findings"]


@pytest.mark.parametrize("tags", [["think", "answer"], ["answer"]])
def test_a_format_pays_in_full_what_it_asks_for_on_data_without_answers(tmp_path, monkeypatch, tags):
    try_here(monkeypatch, template)
    write_lines(tmp_path / "rows.jsonl", [{"prompt": f"Say {word}"} for word in "abcd"])
    tried = make(tmp_path, "--task", "format", "--tags", *tags, "--data", tmp_path / "rows.jsonl")["tried"]
    assert tried["ready"] and tried["gold_with_full_marks"] == 1.0


def test_data_is_tried_in_columns_of_other_names_and_a_failed_trial_writes_nothing(tmp_path, monkeypatch, capsys):
    data = tmp_path / "sums.csv"
    data.write_text("question,result\nWhat is 1+1?,2\nWhat is 2+3?,so 5 #### 5\n")
    flags = ["--task", "final_number", "--data", str(data), "--output", str(tmp_path / "r.py")]
    named = [*flags, "--prompt_column", "question", "--gold_column", "result"]
    tried = json.loads(run_script("create_reward_template", *named).stdout)["tried"]
    assert tried["ready"] and tried["rows"] == 2 and tried["gold_with_full_marks"] == 1.0
    try_here(monkeypatch, template)
    before = (tmp_path / "r.py").read_text()
    for given, words in (
        (flags, ["expected 'prompt'", "try --prompt_column"]),
        ([*named, "--gold_column", "answer"], ["expected 'answer'", "try --gold_column"]),
        ([*flags, "--data", str(tmp_path / "none.csv")], ["none.csv", "not a file"]),
    ):
        assert template.main([*given, "--force"]) == 2
        said = capsys.readouterr().err
        assert all(word in said for word in [*words, "nothing is written"]), said
        assert (tmp_path / "r.py").read_text() == before  # --force replaces it by what was tried
    (tmp_path / "r.py").unlink()
    assert template.main(flags) == 2 and not (tmp_path / "r.py").exists()


@pytest.mark.long
def test_a_code_reward_is_tried_on_programs_and_on_data(tmp_path):
    row = {"text": "Write f, which doubles.", "code": "def f(x):\n    return 2 * x", "test_list": ["assert f(2) == 4"]}
    data = write_lines(tmp_path / "rows.jsonl", [row])
    flags = ["--data", data, "--prompt_column", "text", "--signature", "paid(responses, test_list)"]
    tried = make(tmp_path, "--task", "passes_tests", *flags)["tried"]
    assert tried["ready"] and tried["gold_with_full_marks"] == 1.0 and "network" in tried["hostile_programs"]


# ------------------------------------------------------------------------------------------------ inline
@pytest.mark.parametrize(
    ("name", "flags", "seen"),
    [("batch", [], [0.0, 0.5]), ("single", [], [0.0, 1.0]), ("text_batch", ["--completions", "text"], [0.0, 1.0])],
)
def test_inline_port_needs_no_other_file_and_pays_the_same(mine, name, flags, seen):
    pairs = [("1+1=", "2"), ("2+2=", "so 4"), ("?", "4 or 5")]
    write_lines(mine / "rows.jsonl", [{"prompt": prompt, "answer": answer} for prompt, answer in pairs])
    for data, count in (([], 10), (["--data", mine / "rows.jsonl", "--force"], 30)):
        report = make(mine, "--from", mine / f"mine.py:{name}", "--inline", *flags, *data, name="port.py")
        assert report["tried"] == {"completions": count, "same_score": count, "scores": seen}
    text = (mine / "port.py").read_text()
    assert report["lines"] == len(text.splitlines()) <= 35 and "REWARDS" not in text
    (mine / "mine.py").unlink()
    score = load(mine, "port.py").compute_score
    assert [score("d", x, "42", {"index": 1}, more=1) for x in ("42", "41", "")] == [seen[1], 0.0, 0.0]
    assert type(score("d", "", "")) is float, "None is 0"
    assert ruff(mine / "port.py", "--select", "E,F,W", "--line-length", "120").returncode == 0


def test_inline_port_that_would_score_otherwise_is_not_written(mine, capsys):
    """What a statement without a name does is not taken along."""
    rest = "FACTOR = [1]\n\n\ndef f(completion, answer):\n    return FACTOR[0]\n\n\n"
    (mine / "rest.py").write_text(rest + "FACTOR.append(2)\nFACTOR.reverse()\n")
    assert template.main(["--from", "rest.py:f", "--inline", "--output", "port.py"]) == 2
    assert "it scores 2.0, the port 1.0" in capsys.readouterr().err and not (mine / "port.py").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        *(
            (flags, "expected for verl a plain function of the completions and one column, no weight")
            for flags in (
                ["mine.py:slow"],
                ["mine.py:batch*0.5"],
                ["mine.py:columns"],
                ["mine.py:batch", "--for", "trl"],
            )
        ),
        (["mine.py:batch", "--data", "numbers.jsonl"], "numbers.jsonl:1: got answer 3; expected a text"),
        (["beside.py:near"], "which does not import alone: ModuleNotFoundError: No module named 'neighbour'"),
    ],
)
def test_inline_port_of_what_needs_more_is_refused(mine, capsys, flags, message):
    (mine / "numbers.jsonl").write_text('{"prompt": "1+2=", "answer": 3}\n')
    (mine / "neighbour.py").write_text("def score(text): return 1.0\n")
    near = "from neighbour import score\ndef near(completion, answer):\n    return score(completion)\n"
    (mine / "beside.py").write_text(near)
    assert template.main(["--from", *flags, "--inline", "--output", "port.py"]) == 2
    assert message in capsys.readouterr().err and not (mine / "port.py").exists()


# ------------------------------------------------------------------------------------------------ bad input
OUT = ["--output", "x.py"]
BAD = [  # flags, what the message holds
    (OUT, "try --task math"),
    (["--task", "math", "--from", "mine.py:correct", *OUT], "try --task math"),
    (["--task", "math"], "got no --output"),
    (["--task", "math", "--rule", "equals:answer", *OUT], "removed; try --task qa"),
    (["--task", "custom", *OUT], "got --task custom, which was removed; try --task qa"),
    (["--task", "math", "--output", "math.py"], "try --output my_math.py"),
    (["--task", "qa", "--gold_column", "prompts", *OUT], "neither trainers nor the file use"),
    (["--task", "qa", "--name", "compute_score", *OUT], "expected a Python name"),
    (["--task", "format", "--tags", "a b", *OUT], "expected a word such as think"),
    (["--from", "mine.py:corect", *OUT], "try correct"),
    (["--from", "mine.py:neither", *OUT], "expected (prompts, completions, **columns)"),
    (["--from", "mine.py:correct", "--for", "trl", *OUT], "a reward of TRL's contract; expected --for verl"),
    (["--from", "mine.py:REWARDS", "--for", "trl", *OUT], "a list of 2 rewards; expected --for verl; TRL takes it"),
    (["--from", "mine.py:needs_ids", *OUT], "requires completion_ids"),
    (["--from", "mine.py:no_default", *OUT], "verl gives none by itself; try a default"),
    (["--from", "mine.py:correct", "--output", "mine.py", "--force"], "the file of --output"),
    (["--from", "mine.py:REWARDS", *OUT], "try mine.py:REWARDS*REWARD_WEIGHTS"),
    (["--from", "mine.py:REWARDS", "--weights", "1", "2", *OUT], "try --from FILE.py:REWARDS*WEIGHTS"),
    (["--task", "passes_tests", "--for", "verl", *OUT], "expected trl; try --task code"),
    (["--task", "passes_tests", "--signature", "f(tests)", *OUT], "expected NAME(completions, COLUMN)"),
    (["--task", "passes_tests", "--one_file", "--name", "encode", *OUT], "got --name 'encode'; expected a Python name"),
    (["--task", "passes_tests", "--timeout_s", "0", *OUT], "got --timeout_s 0.0; expected a number above 0"),
    (["--task", "passes_tests", "--signature", "f(completions, a, timeout=2)", *OUT], "try --timeout_s"),
    (["--task", "qa", "--for", "verl", "--data", "x.jsonl", *OUT], "got --data with --for verl"),
]


def test_bad_input(mine, monkeypatch, capsys):
    before = sorted(mine.iterdir())
    for flags, message in BAD:
        try:
            code = template.main(flags)
        except SystemExit as error:
            code = error.code
        captured = capsys.readouterr()
        assert code == 2 and message in captured.err and captured.out == "", (flags, captured.err)
        assert [path for path in sorted(mine.iterdir()) if path.name != "__pycache__"] == before, flags
        assert (mine / "mine.py").read_text() == MINE
