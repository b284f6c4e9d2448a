"""The five environments of examples/environments.py: what they pay, hostile input, the same talk in TRL."""

import sys

import pytest
from chat_tokenizers import TOOLS, call, chat_tokenizer
from conftest import ROOT, load_module, save_random_model

from parts.environments.conversations import PlayLimits, PlaySetup
from parts.environments.environments import load_environments
from parts.environments.play import play
from parts.environments.tool_calls import call_format
from parts.environments.turn_bridge import turn_bridge

FILE = ROOT / "examples" / "environments.py"
examples = load_module(FILE, "example_environments")
NAMES = ["SecondAttempt", "Calculator", "PythonInterpreter", "GuessTheNumber", "Search"]


def begun(name: str, **row):
    """An environment after its reset."""
    environment = getattr(examples, name)()
    environment.reset(prompt="?", **row)
    return environment


@pytest.mark.parametrize(
    ("given", "right", "same"),
    [
        ("1200", "1,200", True),
        ("$1,200,000.50", "1200000.5", True),
        ("1,2", "12", False),
        ("1,2000", "12000", False),
        ("Paris ", "paris", True),
        ("-5", "5", False),
    ],
)
def test_a_number_is_the_same_in_every_form(given, right, same):
    assert examples.same_answer(given, right) is same


@pytest.mark.parametrize("name", [*NAMES, "MIXED"])
def test_each_keeps_the_contract(name):
    kinds = load_environments(f"{FILE}:{name}").kinds
    assert all(kind.scores for kind in kinds.values())
    assert all(kind.talks != bool(kind.tools) for kind in kinds.values())


@pytest.mark.parametrize("name", NAMES)
def test_trl_takes_each_as_it_is(name):
    from transformers.utils import get_json_schema

    tools = [n for n in vars(getattr(examples, name)) if not n.startswith("_") and n not in ("reset", "get_reward")]
    for tool in tools:  # `reply` too, which TRL offers as a tool
        assert get_json_schema(getattr(getattr(examples, name)(), tool))["function"]["parameters"]["required"]


@pytest.mark.parametrize("name", NAMES)
def test_reset_sets_all_there_is(name):
    environment = begun(name, answer="4", number=4)
    before = {**vars(environment)}
    for text in ("3", "4"):
        environment.reply(text) if hasattr(environment, "reply") else environment.submit(text)
    assert vars(environment) != before
    environment.reset(answer="4", number=4)
    assert vars(environment) == before


# ------------------------------------------------------------------------------------------------ what they pay


@pytest.mark.parametrize(
    "said, replies, reward",
    [
        (["<answer>4</answer>"], [None], 1.0),
        (["<answer>5</answer>", "<answer>4.0</answer>"], ["Wrong. Try again.", None], 0.5),
        (["4", "5"], ["Wrong. Try again.", None], 0.0),  # without tags
        (
            ["<answer>4</answer><answer>5</answer>", "<answer>3</answer> <answer>4</answer>"],
            ["Wrong. Try again.", None],
            0.5,
        ),
        (["<answer>" * 100_000 + "4", "<answer>\ud800\0</answer>"], ["Wrong. Try again.", None], 0.0),
        (["<answer>nan</answer>", "<answer>" + "9" * 5000 + "</answer>"], ["Wrong. Try again.", None], 0.0),
    ],
)
def test_second_attempt(said, replies, reward):
    environment = begun("SecondAttempt", answer="4")
    assert [environment.reply(text) for text in said] == replies and environment.get_reward() == reward


@pytest.mark.parametrize(
    "expression, value",
    [
        ("(12 + 30) * 2", "84"),
        ("2**10", "1024"),
        ("7 // 2", "3"),
        ("-3 % 5", "2"),
        (" 1/4 ", "0.25"),
        ("2**0.5", str(2**0.5)),
    ],
)
def test_calculator_computes(expression, value):
    assert begun("Calculator", answer="1").calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *["9**9**9**9", "10**29 * 10**29", "1e308 * 10", "2**-1e9**9", "(-8)**0.5", "1/0", "5 % 0", "0**-1"],
        *["__import__('os').system('id')", "().__class__", "x", "'a' * 9**9", "[1] * 9", "True + 1", "1 if 1 else 2"],
        *["lambda: 1", "f'{1}'", "1j", "", "(" * 150, "-" * 199, "1" * 201, "1 < 2", "1; 2", "\0", "1 << 99999"],
    ],
)
def test_calculator_refuses(expression):
    with pytest.raises((ValueError, ArithmeticError, SyntaxError)):
        begun("Calculator", answer="1").calculate(expression)


def test_the_first_answer_that_is_submitted_counts():
    for name in ("Calculator", "PythonInterpreter", "Search"):
        environment = begun(name, answer="Alexander Fleming")
        assert environment.get_reward() == 0.0
        environment.submit(" alexander fleming")
        environment.submit("no one")
        assert environment.get_reward() == 1.0
    environment = begun("Calculator", answer=84)  # columns may be numbers, and so may what a model gives
    environment.submit(84.0)
    assert environment.get_reward() == 1.0


@pytest.mark.parametrize(
    "code, seen",
    [
        ("print(sum(range(10)))", "45"),
        ("print('a')\n1 / 0", "a\n\nZeroDivisionError: division by zero"),
        ("x = 1", "(nothing was printed)"),
        ("", "(nothing was printed)"),
        ("def f(", "SyntaxError"),
        ("while True: pass", "timeout: more than 3.0 s"),
        ("print('x' * 10**7)", "output limit"),
        ("x = ' ' * 10**10", "MemoryError"),
        ("import socket; socket.socket()", "Error"),
        ("open('/etc/passwd').read()", "Error"),
        ("import sys; print(sys.stdin.read() + 'end'); sys.exit(3)", "end\n\nthe process ended with status 3"),
        ("import os; os.kill(os.getppid(), 9)", "Error"),
    ],
)
def test_python_runs_in_the_sandbox(code, seen):
    said = begun("PythonInterpreter", answer="1").python(code)
    assert seen in said and len(said) < 3000


def test_python_is_not_this_process():
    environment = begun("PythonInterpreter", answer="1")
    assert environment.python("import sys; print('pytest' in sys.modules, 'torch' in sys.modules)") == "False False"
    environment.python("import builtins; builtins.print = None")
    assert environment.python("print(1)") == "1" and "pytest" in sys.modules


def test_guess_the_number():
    environment = examples.GuessTheNumber()
    assert environment.reset(prompt="Play.", number=30) == " I think of a number from 1 to 100. Guess it."
    rewards = []
    said = ["I say 50", "60?", "20", "20", "nothing", "x" * 10**6 + "9" * 10**5, "10 or 30"]
    replies = []
    for text in said:
        replies.append(environment.reply(text))
        rewards.append(round(environment.turn_reward, 10))
        environment.turn_reward = 0.0
    assert replies == ["Lower.", "Lower.", "Higher.", "Higher.", "Say a number.", "Lower.", None]
    assert rewards == [0.1, 0, 0.1, 0, 0, 0, 1.1]  # what was said before can no longer be right
    assert environment.get_reward() == pytest.approx(1.3, abs=1e-12)


def test_search():
    environment = begun("Search", answer="Alexander Fleming")
    assert "Alexander Fleming" in environment.search("who found penicillin").splitlines()[0]
    assert environment.search("mountain of Africa").startswith("Kilimanjaro")
    for query in ("", "zzz", "the", "\0\ud800", "a " * 10**6, "<|end|>", "(.*)+$"):
        assert isinstance(environment.search(query), str)
    assert environment.search("zzz") == "No passage has these words."
    assert examples.passage_index() is examples.passage_index()


# ------------------------------------------------------------------------------------------------ here and in TRL


PLAYS = {
    "Calculator": [
        [call("calculate", expression="(12+30)*2"), call("submit", answer="84"), "It is 84."],
        [
            call("calculate", expression="1/0") + call("none"),
            call("calculate", wrong=1),
            call("submit", answer="85"),
            "85",
        ],
        [call("submit", answer="84") + call("submit", answer="1"), "Done."],
        ["84"],
    ],
    "PythonInterpreter": [
        [call("python", code="print(6*14)"), call("submit", answer="84"), "It is 84."],
        [call("python", code="import os\nos._exit(3)"), call("submit", answer="0"), "0"],
        ["84"],
        [call("python", code="print('<|end|>')"), "Hm."],
    ],
    "Search": [
        [call("search", query="penicillin"), call("submit", answer="84"), "Yes."],
        [call("search", query="zzz"), "No."],
        ["84"],
        [call("search"), call("submit", answer="84"), "84"],
    ],
}


class Scripted:
    """The tokens of conversations that were written beforehand, by how many turns there were."""

    def __init__(self, tokenizer, answers: list[list[str]]):
        self.tokenizer, self.answers = tokenizer, answers

    def ids(self, number: int, turn: int) -> list[int]:
        return self.tokenizer(self.answers[number][turn] + "<|end|>", add_special_tokens=False).input_ids


def played_by_trl(name: str, tokenizer, scripted: Scripted, folder, prompt: list[dict], answer: str):
    """(completion ids, mask, rewards) of one step of TRL's GRPOTrainer, whose model says what is written."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    seen = {}

    class Trainer(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            turn = self.turn = getattr(self, "turn", -1) + 1
            rows = [i for i, own in enumerate(scripted.answers) if turn < len(own)]
            assert len(rows) == len(prompt_ids)
            ids = [scripted.ids(i, turn) for i in rows]
            return ids, [[-0.5] * len(own) for own in ids]

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen.update(output, environments=self.environments)
            return output

    arguments = GRPOConfig(
        output_dir=str(folder / "run"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=4000,
        max_steps=1,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(save_random_model("llama", folder / "model"))
    model.resize_token_embeddings(len(tokenizer))
    model.config.max_position_embeddings = 4096
    trainer = Trainer(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        environment_factory=getattr(examples, name),
        train_dataset=Dataset.from_list([{"prompt": prompt, "answer": answer}] * 4),
    )
    trainer.train()
    mask = seen["completion_mask"].bool()
    ids = [row[m].tolist() for row, m in zip(seen["completion_ids"], mask, strict=True)]
    tools = [row[m].tolist() for row, m in zip(seen["tool_mask"], mask, strict=True)]
    assert torch.isfinite(torch.tensor(trainer.state.log_history[0]["loss"]))
    return ids, tools, [environment.get_reward() for environment in seen["environments"]], trainer.state.log_history[0]


@pytest.mark.parametrize("name", PLAYS)
def test_trl_plays_the_same_conversations(name, tmp_path, monkeypatch):
    """The same class, unchanged, in GRPOTrainer(environment_factory=…): same ids, mask and rewards as in `play`."""
    from trl.chat_template_utils import qwen3_template

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = chat_tokenizer("tiny_tools", "<|end|>")
    assert tokenizer.chat_template == TOOLS
    tokenizer.response_template = {
        **qwen3_template,
        "start_anchor": "<|assistant|>",
        "fields": {**qwen3_template["fields"], "content": {"close_pattern": r"<\|end\|>\s*", "content": "text"}},
    }
    scripted, prompt = Scripted(tokenizer, PLAYS[name]), [{"role": "user", "content": "Solve it."}]
    environments = load_environments(f"{FILE}:{name}")
    bridge = turn_bridge(tokenizer, [tokenizer.eos_token_id], environments)

    def sample(prompts, numbers, turn):
        ids = [scripted.ids(i, turn) for i in numbers]
        return [(own, [-0.5] * len(own)) for own in ids]

    rows = [{"prompt": prompt, "columns": {"answer": "84"}}] * 4
    limits = PlayLimits(tokens=6000, answer_tokens=300, seconds=60)
    talks = play(rows, PlaySetup(environments, bridge, call_format(tokenizer), limits), sample)
    ids, mask, rewards, log = played_by_trl(name, tokenizer, scripted, tmp_path, prompt, "84")
    told = [[m["content"] for m in talk.messages if m["role"] == "tool"] for talk in talks]
    if name == "PythonInterpreter":  # TRL lets the text of a tool become the end of a turn, here it stays text
        assert told[3] == ["<|end|>"] and ids[3] != talks[3].response_ids
        ids[3], mask[3] = talks[3].response_ids, talks[3].response_mask
    assert [talk.response_ids for talk in talks] == ids
    assert [talk.response_mask for talk in talks] == mask
    assert [talk.score for talk in talks] == rewards
    assert log["tools/call_frequency"] == sum(talk.calls for talk in talks) / 4
    calls = sum(talk.calls for talk in talks)
    assert log["tools/failure_frequency"] == pytest.approx(sum(talk.failures for talk in talks) / calls, abs=1e-6)
    assert log[f"rewards/{name}/mean"] == pytest.approx(sum(rewards) / 4, abs=1e-6)
