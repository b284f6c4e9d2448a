"""How every script calls rewards: both forms, async ones in one event loop with limits, and what text they get."""

import math
import re
import threading
import types

import httpx
import numpy as np
import pytest
import torch
from conftest import TINY_LM, load_script, save_random_model, write_lines
from local_server import serving

from parts.foundation.messages import RewardError, UserError
from parts.rewards.reward_forms import load_rewards
from parts.rewards.rewards import Reward, checked_scores, is_passing
from parts.rewards.user_code import visible_text

# Reward, as in four scripts; what TRL calls; the process of the preflight
WAYS = ("ppo_train", "grpo_train", "reward_preflight")
ROWS = [{"prompt": f"{i}+1=", "columns": {"answer": str(i + 1)}} for i in range(4)]
TEXTS = ["1", "2", "no", "4"]  # the third is wrong
IDS = [[5], [6], [7, 8], [9]]

FORMS = """
import asyncio

def one(prompt, completion, answer):
    return float(completion == answer and prompt.endswith("+1="))

def of_chat(prompt, completion):
    return float(prompt[-1]["content"] == "0+1=" and completion == "1")

async def one_async(completion, answer, prompt):
    await asyncio.sleep(0)
    return float(completion == answer)

def none_of_one(completion, **columns):
    assert set(columns) == {"prompt", "answer", "completion_ids"}, columns
    return float(len(columns["completion_ids"])) if columns["answer"] != "2" else None

def batch(completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer)]

def both(prompt, completions):
    return [0.0] * len(completions)

def raises(completion, answer):
    return 1.0 / (completion != "no")

def single(prompts, completions):
    return 1.0

def misspelt(completion, anwser=None):
    return 0.0

def optional(completion, answer, anwser=None, tolerance=0.1):
    return 0.0

def strips(completions, **kwargs):
    return [float(c.strip() == "2") for c in completions]

class Object:
    async def __call__(self, prompt, completion):
        return len(completion)

an_object = Object()
"""

# a client that is bound to the event loop in which it first connected
CLIENT = """
import httpx

client = httpx.AsyncClient(base_url="{url}", trust_env=False)

async def judge(prompts, completions, **kwargs):
    return [(await client.get("/score", params={{"text": text}})).raise_for_status().json() for text in completions]

async def judge_one(prompt, completion):
    return (await client.get("/score", params={{"text": completion}})).raise_for_status().json()
"""


class Judge:
    """Scores are lengths; counts calls, fails or waits when told."""

    def __init__(self):
        self.fail, self.calls, self.now, self.most, self.lock = [], 0, 0, 0, threading.Lock()
        self.release, self.wanted = threading.Event(), 0

    def __call__(self, asked) -> tuple:
        with self.lock:
            self.calls, self.now = self.calls + 1, self.now + 1
            self.most = max(self.most, self.now)
            status = self.fail.pop(0) if self.fail else 200
            if self.now == self.wanted:
                self.release.set()
        if self.wanted:
            self.release.wait(60)
        with self.lock:
            self.now -= 1
        return status, len(asked.path.partition("text=")[2])


@pytest.fixture
def server():
    found = Judge()
    with serving(found) as found.url:
        yield found
        found.release.set()


@pytest.fixture
def forms(tmp_path):
    (tmp_path / "forms.py").write_text(FORMS)
    return str(tmp_path / "forms.py")


@pytest.fixture
def client(tmp_path, server):
    (tmp_path / "client.py").write_text(CLIENT.format(url=server.url))
    return str(tmp_path / "client.py")


def call(name: str, spec: str, rows=ROWS, texts=TEXTS, ids=IDS, limits=None) -> list:
    """Scores of one function by the script's own way of calling rewards."""
    script = load_script(name)
    limits = limits or script.CallLimits()
    if name == "ppo_train":
        return next(iter(script.Reward([spec], limits)(rows, texts, ids)[1].values()))
    if name == "reward_preflight":
        ((function, _),) = script.load_rewards(spec)
        given = script.reward_arguments(rows, texts, ids)
        reply = script.call_once(function, given, [], limits)
        if "raised" in reply:
            raise script.UserError(reply["raised"])
        return reply["values"]
    scorer = script.Scorer(rows, [spec], limits)
    turns = script.reward_arguments(rows, texts, ids)["completions"]
    return scorer.score(next(iter(scorer.functions)), rows, turns, ids, {})


@pytest.mark.parametrize("name", WAYS)
def test_both_forms_are_called_with_what_they_name(name, forms):
    right = [1.0, 1.0, 0.0, 1.0]
    assert call(name, f"{forms}:batch") == right
    assert call(name, f"{forms}:one") == right
    assert call(name, f"{forms}:one_async") == right
    assert call(name, f"{forms}:none_of_one") == [1.0, None, 2.0, 1.0]
    assert call(name, f"{forms}:an_object") == [1.0, 1.0, 2.0, 1.0]
    rows = [{"prompt": [{"role": "user", "content": "0+1="}], "columns": {}}]
    assert call(name, f"{forms}:of_chat", rows, ["1"], [[5]]) == [1.0]  # of one sample of a chat, it is the text


def test_a_signature_of_both_forms_is_refused_with_both_shown(forms):
    with pytest.raises(UserError) as caught:
        Reward([f"{forms}:both"])
    text = str(caught.value)
    assert "def reward(prompt, completion, answer) -> float" in text and "def reward(prompts, completions," in text
    assert "prompt and completions" in text and caught.value.code == 2


RAISING = {
    "in a batch": "def f(completions, **kwargs):\n    return [helper.grade(c) for c in completions]\n",
    "of one sample": "def f(completion):\n    return helper.grade(completion)\n",
    "async": "async def f(completion):\n    return helper.grade(completion)\n",
    "at import": "helper.grade('x')\ndef f(completion):\n    return 1.0\n",
}


@pytest.mark.parametrize("kind", RAISING)
def test_an_error_names_the_innermost_file_and_line_of_the_users(tmp_path, ppo, kind):
    """json.loads raises in the standard library, called by a neighbour of the reward."""
    (tmp_path / "helper.py").write_text("import json\n\n\ndef grade(text):\n    return json.loads('(' + text)\n")
    (tmp_path / "raises.py").write_text(f"import helper\n{RAISING[kind]}")
    with pytest.raises(ppo.UserError, match=rf"JSONDecodeError: .* at {tmp_path / 'helper.py'}:5(;|$)"):
        call("ppo_train", f"{tmp_path / 'raises.py'}:f")


def test_the_form_of_verl_is_refused_with_the_command_that_ports_it(tmp_path):
    file = tmp_path / "verl_form.py"
    file.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n")
    command = f"python scripts/create_reward_template.py --from {file}:compute_score --output my_reward.py"
    with pytest.raises(UserError, match=f"has verl's form.*try {re.escape(command)}$") as caught:
        load_rewards(f"{file}:compute_score*0.5")
    assert caught.value.code == 2
    command = [*command.split()[2:-1], str(tmp_path / "my_reward.py")]
    assert load_script("create_reward_template").main(command) == 0
    assert call("ppo_train", f"{tmp_path / 'my_reward.py'}:verl_reward") == [1.0] * 4


@pytest.mark.parametrize("name", WAYS)
def test_the_row_that_raises_is_named(name, forms):
    script = load_script(name)
    with pytest.raises(script.UserError, match="ZeroDivisionError") as caught:
        call(name, f"{forms}:raises")
    assert name == "reward_preflight" or "reward raises, row 3 of the batch, completion 'no'" in str(caught.value)


def test_one_score_for_a_batch_says_how_to_take_one_sample(forms):
    with pytest.raises(RewardError, match=r"got a float; expected a list of 4.*parameters prompt and completion"):
        Reward([f"{forms}:single"])(ROWS, TEXTS, IDS)
    with pytest.raises(RewardError, match=r"reward f: got 1 values?; expected a list of 2"):
        checked_scores("f", [1.0], [{}, {}], ["a", "b"])


def test_an_optional_argument_with_nearly_a_columns_name_is_noted(forms, capsys):
    row = {"prompt": "a", "columns": {"answer": "2"}}
    Reward([f"{forms}:misspelt"]).check_columns(row)
    assert capsys.readouterr().err.count("\n") == 1
    Reward([f"{forms}:optional"]).check_columns(row)
    assert capsys.readouterr().err == ""


def test_an_error_on_messages_says_that_completions_are_messages(forms):
    chat = [{"prompt": [{"role": "user", "content": row["prompt"]}], "columns": row["columns"]} for row in ROWS]
    reward = Reward([f"{forms}:strips"])
    with pytest.raises(RewardError, match=r"AttributeError.*each completion is \[\{\"role\""):
        reward(chat, TEXTS, IDS)


@pytest.mark.parametrize("name", WAYS)
def test_a_client_of_the_module_serves_several_batches(name, client, server):
    for function in ("judge", "judge_one", "judge"):
        assert call(name, f"{client}:{function}") == [1.0, 1.0, 2.0, 1.0]
    assert server.calls == 12


@pytest.mark.parametrize("name", WAYS)
def test_a_busy_judge_is_asked_again_but_a_fault_is_not(name, client, server):
    script = load_script(name)
    server.fail = [503, 429]
    assert call(name, f"{client}:judge_one") == [1.0, 1.0, 2.0, 1.0] and server.calls == 6
    server.fail, server.calls = [404], 0
    with pytest.raises(script.UserError, match="404"):
        call(name, f"{client}:judge_one", ROWS[:1], TEXTS[:1], IDS[:1])
    assert server.calls == 1
    server.fail, server.calls = [500] * 9, 0
    with pytest.raises(script.UserError, match="500"):
        call(name, f"{client}:judge", ROWS[:1], TEXTS[:1], IDS[:1], limits=script.CallLimits(retries=1))
    assert server.calls == 2  # and no search for the row: the failure is of the connection


def test_no_more_calls_at_once_than_allowed(client, server, ppo):
    server.wanted = 2  # answers come once two calls wait together
    limits = ppo.CallLimits(concurrency=2)
    assert call("ppo_train", f"{client}:judge_one", limits=limits) == [1.0, 1.0, 2.0, 1.0]
    assert server.most == 2


def test_a_call_that_takes_too_long_is_ended(tmp_path, ppo):
    source = "import asyncio\nended = []\nasync def never(completion):\n    try:\n        await asyncio.sleep(3600)\n"
    (tmp_path / "never.py").write_text(source + "    finally:\n        ended.append(1)\n")
    limits = ppo.CallLimits(timeout=0.05, retries=1)
    with pytest.raises(ppo.RewardError, match=r"row 1 of.*TimeoutError: no answer in 0.05 s; try a higher"):
        call("ppo_train", f"{tmp_path / 'never.py'}:never", ROWS[:1], TEXTS[:1], IDS[:1], limits)
    ((function, _),) = ppo.load_rewards(f"{tmp_path / 'never.py'}:never")
    assert function.__globals__["ended"] == [1, 1]


@pytest.mark.parametrize("kind", ["async def", "def"])
def test_an_exit_in_a_reward_is_its_error_and_ends_no_loop(tmp_path, ppo, kind):
    (tmp_path / "leave.py").write_text(f"import sys\n{kind} leave(completion):\n    sys.exit(7)\n")
    with pytest.raises(ppo.RewardError, match=r"reward leave, row 1 of.*raised SystemExit: 7 at \S+leave.py:3$"):
        call("ppo_train", f"{tmp_path / 'leave.py'}:leave")
    (tmp_path / "stay.py").write_text("async def stay(completion):\n    return 1.0\n")
    assert call("ppo_train", f"{tmp_path / 'stay.py'}:stay") == [1.0] * 4


def test_which_failures_may_pass():
    limited = Exception()
    limited.status_code = 429  # as OpenAI's client has it
    passing = [ConnectionResetError(), TimeoutError(), httpx.ConnectError("x"), httpx.ReadTimeout("x"), limited]
    assert all(map(is_passing, passing)) and not any(map(is_passing, [KeyError("a"), FileNotFoundError()]))


@pytest.fixture
def strings(tmp_path):
    return write_lines(tmp_path / "strings.jsonl", [{"prompt": "1+1=", "answer": "2"}] * 8)


TRAINERS = ("ppo_train", "grpo_train")


def loaded(name: str, strings, *flags):
    """(rows, tokenizer) of a trainer's data."""
    script = load_script(name)
    config = script.parse_config([f"--data={strings}", *flags])
    tokenizer = (script.left_tokenizer if name == "grpo_train" else script.load_tokenizer)(config)
    return script.load_prompts(config, tokenizer, strings), tokenizer


TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TEMPLATE += "{% if loud is defined %}{{ loud }}{% endif %}"


@pytest.mark.parametrize("name", TRAINERS)
def test_chat_and_template_settings_decide_what_the_model_reads(name, strings, tmp_path, tokenizer):
    turns = [{"role": "user", "content": "1+1="}]
    rows, _ = loaded(name, strings, "--chat")
    assert rows[0]["prompt_ids"] == tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    assert rows[0]["prompt"] == "1+1="  # what rewards get stays the data's
    (tmp_path / "own.jinja").write_text(TEMPLATE)
    flags = ["--chat", f"--chat_template={tmp_path}/own.jinja", '--chat_template_kwargs={"loud": "!?"}']
    rows, own = loaded(name, strings, *flags)
    assert own.decode(rows[0]["prompt_ids"]) == "[user]1+1=!?" and own.chat_template == TEMPLATE


@pytest.mark.parametrize("name", [*TRAINERS, "verl_train"])
def test_template_settings_that_cannot_work_are_refused(name, strings, tmp_path):
    script = load_script(name)
    bare = save_random_model("llama", tmp_path / "bare", chat_template=False)
    for value in ("{", "[1]", '{"tokenize": false}'):
        with pytest.raises(script.UserError, match="expected a JSON object"):
            script.template_settings(types.SimpleNamespace(chat_template_kwargs=value))
    with pytest.raises(script.UserError, match="which is not a file"):
        script.template_text(str(tmp_path / "none.jinja"))
    if name != "verl_train":
        with pytest.raises(script.UserError, match="no chat template"):
            loaded(name, strings, "--chat", f"--model={bare}")
    else:
        rows, _ = script.verl_rows([{"prompt": "1+1="}], "prompt")
        with pytest.raises(script.UserError, match="no chat template"):
            script.chat_template(bare, rows, chat=True)


@pytest.fixture(scope="module")
def user(tokenizer) -> str:
    """The special token of the user's turn."""
    return next(token for token in tokenizer.all_special_tokens if "user" in token)


def test_only_the_end_is_cut_from_a_completion(tokenizer, user):
    ids, end, pad = tokenizer(f"#### 1{user}2").input_ids, tokenizer.eos_token_id, tokenizer.pad_token_id
    for tail in ([], [end], [end, pad, pad], [pad]):
        assert visible_text(tokenizer, [*ids, *tail], [end]) == f"#### 1{user}2"
    assert visible_text(tokenizer, [end, *ids], [end]) == f"{tokenizer.eos_token}#### 1{user}2"


@pytest.mark.parametrize("chat", [False, True])
def test_grpo_gives_rewards_the_tokens_that_trl_leaves_out(chat, tmp_path, user):
    grpo = load_script("grpo_train")
    tokenizer = grpo.left_tokenizer(grpo.parse_config([]))
    ids = [*tokenizer(f"1{user}2").input_ids, tokenizer.eos_token_id]
    prompt = [{"role": "user", "content": "p"}] if chat else "p"
    source = "SEEN = []\ndef r(prompt, completion):\n    SEEN.append(completion)\n    return 0.0\n"
    (tmp_path / "r.py").write_text(source)
    scorer = grpo.Scorer([{"prompt": prompt, "columns": {}}], [f"{tmp_path / 'r.py'}:r"])
    scorer.tokenizer, scorer.eos_ids = tokenizer, [tokenizer.eos_token_id]
    said = [[{"role": "assistant", "content": "12"}]] if chat else ["12"]  # as TRL decodes it
    scorer.scored("r", said, [ids], [0])
    assert scorer.functions["r"].__globals__["SEEN"] == [f"1{user}2"]


def test_evaluation_scores_what_the_model_wrote(user):
    evaluation = load_script("evaluation")
    config = evaluation.parse_config(["--task=math"])
    model = evaluation.LocalModel(config, str(TINY_LM), evaluation.start_processes(config))
    ids = [*model.tokenizer(f"#### 1{user}2").input_ids, model.tokenizer.eos_token_id]
    assert model.finished(evaluation.Request([]), ids)["text"] == f"#### 1{user}2"
    cut = model.finished(evaluation.Request([], stops=[user]), ids)
    assert cut["text"] == "#### 1" and cut["finish"] == "stop"


LISTS = """
def right(prompts, completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer)]

def short(completion):
    return 1.0 / len(completion)

class Preset(list):
    weights = [1.0, 0.5]

REWARDS, REWARD_WEIGHTS, THREE, ONE = [right, short], [1.0, 0.25], (1, 2, 3), [short]
PRESET, EMPTY = Preset(REWARDS), []
"""


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "listed.py"
    path.write_text(LISTS)
    return path


def test_two_lists_of_a_file_are_one_weighted_reward(lists):
    """TRL's reward_funcs and reward_weights, named together."""
    scores, parts = Reward([f"{lists}:REWARDS*REWARD_WEIGHTS"])(ROWS, TEXTS, IDS)
    assert parts["right"] == [1.0, 1.0, 0.0, 1.0] and parts["short"] == [1.0, 1.0, 0.5, 1.0]
    assert scores == [1.25, 1.25, 0.125, 1.25]
    specs = ("PRESET", "PRESET*2", "ONE", "ONE*0.5", "short*0.5")
    weighed = {spec: [weight for _, weight in load_rewards(f"{lists}:{spec}")] for spec in specs}
    assert weighed == {"PRESET": [1, 0.5], "PRESET*2": [2, 1], "ONE": [1], "ONE*0.5": [0.5], "short*0.5": [0.5]}


MISFITS = [
    ("REWARDS", "2 functions without weights; expected one for each; try {file}:REWARDS*REWARD_WEIGHTS"),
    ("REWARDS*2", "2 functions without weights; expected one for each"),
    ("REWARDS*REWARD_WEIGHT", "no list of numbers 'REWARD_WEIGHT'; expected one of REWARD_WEIGHTS, THREE; try REW"),
    ("REWARDS*THREE", "2 functions with 3 weights; expected one for each"),
    ("PRESET*REWARD_WEIGHTS", "a list with weights of its own, [1.0, 0.5]; expected no others"),
    ("short*REWARD_WEIGHTS", "'REWARD_WEIGHTS' is not a number; expected FILE.py:function[*weight], or"),
    ("short*inf", "weight inf; expected a finite number"),
    ("EMPTY", "has no function 'EMPTY'; expected one of right, short"),
]


@pytest.mark.parametrize(("spec", "told"), MISFITS)
def test_weights_that_do_not_fit_are_told(spec, told, lists):
    with pytest.raises(UserError) as caught:
        load_rewards(f"{lists}:{spec}")
    assert told.format(file=lists) in str(caught.value)


NO_NUMBERS = [torch.ones(2), np.ones(2), {"score": 1.0}, "1.0" * 10**5, 10**4000, math.nan, -math.inf, 10**400]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=type)
def test_what_is_no_number_is_told_briefly(value):
    told = r"reward f, d.csv:7, completion '2': got .*; expected a finite number"
    with pytest.raises(RewardError, match=told) as caught:
        checked_scores("f", [torch.tensor([0.5]), value], [{}, {"place": "d.csv:7"}], ["1", "2"])
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("edited", ["mine.py", "neighbour.py"])
def test_an_edited_reward_is_loaded_again(edited, tmp_path):
    """As by a notebook, whose kernel goes on."""
    (tmp_path / "neighbour.py").write_text("SCORE = 1\n")
    (tmp_path / "mine.py").write_text("from neighbour import SCORE\ndef mine(completions, **k):\n    return [SCORE]\n")
    ((before, _),) = load_rewards(f"{tmp_path / 'mine.py'}:mine")
    ((again, _),) = load_rewards(f"{tmp_path / 'mine.py'}:mine")
    text = (tmp_path / edited).read_text()
    (tmp_path / edited).write_text(text.replace("[SCORE]", "[SCORE + 10]").replace("= 1", "= 11"))
    ((after, _),) = load_rewards(f"{tmp_path / 'mine.py'}:mine")
    assert again is before and (before(["x"]), after(["x"])) == ([1], [11])
