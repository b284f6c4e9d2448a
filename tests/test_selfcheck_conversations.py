"""scripts/selfcheck.py on trainers with an environment: clean ones pass, and each fault of conversations is named."""

import functools
import json
import re
import shutil
import sys

import pytest
from conftest import ROOT, SECOND_ATTEMPT, TINY_LM, TRAIN_DATA, edited, load_module, load_script
from test_multi_turn_template import ADDER, CHANGES, changed
from test_selfcheck import forget

from programs.selfcheck.conversation_checks import TURN_CHECKS
from programs.selfcheck.input_checks import template_ends_at_generation
from programs.selfcheck.run import load_trainer

PAGE = ROOT / "templates" / "multi_turn.py"
NAMES = {check.__name__ for check in TURN_CHECKS}
# drops what was thought in all answers, put before a template's own text
FORGETFUL = (
    "{%- set kept = namespace(messages=[]) -%}{%- for m in messages -%}{%- if m.role == 'assistant' and m.content is "
    "string -%}{%- set kept.messages = kept.messages + [dict(m, content=m.content.split('</think>')[-1].lstrip())] -%}"
    "{%- else -%}{%- set kept.messages = kept.messages + [m] -%}{%- endif -%}{%- endfor -%}"
    "{%- set messages = kept.messages -%}"
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Flags of a run on the first rows of the embedded data."""
    path = tmp_path_factory.mktemp("data") / "few.jsonl"
    path.write_text("".join(TRAIN_DATA.read_text().splitlines(keepends=True)[:40]))
    return [str(x) for x in ("--model", TINY_LM, "--data", path, "--environment", SECOND_ATTEMPT)]


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    """A check is a process of its own otherwise: restore what it changes in this one."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    known = {*sys.modules}
    yield
    forget({*sys.modules} - known)


def page_copy(folder, pairs):
    """An edited copy of the page."""
    (folder / "mine.py").write_text(edited(PAGE.read_text(encoding="utf-8"), pairs))
    return folder / "mine.py"


@functools.cache
def page_models():
    """The embedded model as the page loads it, once for all copies: no check of conversations changes it."""
    page = load_module(PAGE, "multi_turn_of_the_bundle")
    return page.load_models(page.Config(model=str(TINY_LM), data="", environment=""))


def results(trainer, *flags) -> dict[str, tuple]:
    """What the checks of conversations say of a trainer, by name; one that raises fails."""
    found, trainer = {}, load_trainer(str(trainer))
    trainer.module.load_models = lambda config: page_models()
    assert not trainer.parse([*flags])
    trainer.load()
    for check in TURN_CHECKS:
        try:
            found[check.__name__] = check(trainer)
        except (Exception, SystemExit) as error:
            found[check.__name__] = False, f"{type(error).__name__}: {error}"
    return found


def failed(found: dict) -> dict[str, str]:
    """The checks that fail, and what they say."""
    return {name: text for name, (passed, text) in found.items() if passed is False}


# ------------------------------------------------------------------------------------------------ clean trainers


def test_the_page_passes_and_says_what_it_saw(inputs):
    found = results(PAGE, *inputs)
    assert all(passed for passed, _ in found.values()), found
    assert "9 answers of 4 conversations are as sampled; 9 of them differ if encoded again" in found["turn_ids"][1]


@pytest.mark.parametrize("start", CHANGES)
def test_a_listed_change_of_the_page_passes(inputs, tmp_path, start):
    found = results(page_copy(tmp_path, CHANGES[start]), *inputs)
    assert all(passed for passed, _ in found.values()), found


@pytest.mark.parametrize("name", ["page", "ppo_train"])
def test_tools_are_expected_in_a_prompt(inputs, tmp_path, name):
    """With the tools of the environment, the prompt begins with more than its messages."""
    (tmp_path / "adder.py").write_text(ADDER)
    path = changed("tools", tmp_path) if name == "page" else ROOT / "scripts" / "ppo_train.py"
    trainer = load_trainer(str(path))
    flags = ["--model", str(ROOT / "assets" / "tiny_tools_lm"), "--environment", f"{tmp_path}/adder.py:Adder"]
    assert not trainer.parse([*inputs, *flags, "--max_turns", "2"])
    trainer.load()
    assert template_ends_at_generation(trainer)[0] is True


def test_a_trainer_that_plays_one_conversation_after_another_passes(inputs, tmp_path):
    """One object may serve many conversations, as long as one has ended before the next one begins."""
    old = """    talks = play(config, models, make, rows, greedy)
    scores = [ask(config, talk, "get_reward") for talk in talks]
"""
    new = """    talks, scores, one = [], [], make()
    for row in rows:
        talks += play(config, models, lambda: one, [row], greedy)
        scores.append(ask(config, talks[-1], "get_reward"))
"""
    assert not failed(results(page_copy(tmp_path, [(old, new)]), *inputs))


# ------------------------------------------------------------------------------------------------ planted faults

ENCODED = """
            ids = models.tokenizer.encode(text, add_special_tokens=False) + ids[len(ids) - talk.ended :]
            logprobs = (logprobs + [0.0] * len(ids))[: len(ids)]
"""
RENDERED = """            talk.messages += [{"role": "assistant", "content": text}] + said * talk.goes_on
            if talk.goes_on:
                talk.tokens = [(i, 1, 0, 0.0) for i in render(models.tokenizer, talk.messages)]
"""
DECODED = "            text = models.tokenizer.decode(ids[: len(ids) - talk.ended])\n"
MADE = "    talks = [SimpleNamespace(row=row, environment=make(), messages=copy.deepcopy(row["  # and what follows
SCORED = '    scores = [ask(config, talk, "get_reward") for talk in talks]'
SOON = """            if turn == 1:
                talk.score = ask(config, talk, "get_reward")
            talk.turns, talk.ended = turn,"""

# (fault, checks that fail, what one of them says, [(old, new), ...])
FAULTS = {
    "leaked words of the environment": (
        {"turn_mask"},
        r"response_mask: conversation 1: 1 on \d+ tokens that were not sampled \('.*\[talk 1\] No, 1\.",
        [("[(i, 1, 0, 0.0) for i in added]", "[(i, 1, 1, 0.0) for i in added]")],
    ),
    "end token left out": (
        {"turn_mask"},
        r"conversation 0: 0 on 1 tokens that were sampled",
        [("(i, 1, 1, x) for i, x in", "(i, 1, int(i not in models.eos_ids), x) for i, x in")],
    ),
    "log-probs of the next token": (
        {"turn_mask"},
        r"conversation 0: right, but rollout_logprobs differ from the sampler's at \d+ of its tokens",
        [("zip(ids, logprobs, strict=True)]", "zip(ids, logprobs[1:] + logprobs[:1], strict=True)]")],
    ),
    "re-tokenized turn": (
        {"turn_ids"},
        r"the prompt of turn 2 departs from what was sampled, of turn 1|the batch departs from what was sampled, of tu",
        [(DECODED, DECODED + ENCODED[1:])],
    ),
    "conversation rendered anew": (
        {"turn_ids"},
        r"conversation 1: the prompt of turn 2 departs from what was sampled, of turn 1: \[.* is \[",
        [('            talk.messages += [{"role": "assistant", "content": text}] + said * talk.goes_on\n', RENDERED)],
    ),
    "rewards of the conversations in reverse": (
        {"turn_rewards"},
        r"of conversation 0: score 3 changes with its return",
        [(SCORED, SCORED.replace("in talks]", "in talks[::-1]]"))],
    ),
    "the reward asked for too soon": (
        {"turn_rewards"},
        r"conversation 0, 1, 2, 3: asked for the return before the environment heard its last answer",
        [
            ("            talk.turns, talk.ended = turn,", SOON),
            (SCORED, "    scores = [t.score for t in talks]"),
        ],
    ),
    "an environment for all": (
        {"turn_state", "turn_rewards"},
        r"one environment object serves conversations 0 and 1 at once",
        [(MADE, "    one = make()\n" + MADE.replace("make()", "one"))],
    ),
    "columns shared by a group": (
        {"turn_state"},
        r"reset of conversation 1 got columns that reset of 0 changed",
        [
            (
                'copy.deepcopy(talk.row["columns"] | {"prompt": talk.messages})',
                '(talk.row["columns"] | {"prompt": talk.messages})',
            )
        ],
    ),
    "messages shared by a group": (
        {"turn_state"},
        r"conversation 1 gets text of conversation 0",
        [("messages=copy.deepcopy(row[", "messages=(row[")],
    ),
    "answers heard by a neighbour": (
        {"turn_state"},
        r"the environment of conversation 0 heard answers of 1",
        [
            (
                '            reply = ask(config, talk, "reply", text)\n',
                '            reply = ask(config, talk, "reply", text)\n'
                '            reply = ask(config, now[row - 1], "reply", text) if row == 1 and turn == 1 else reply\n',
            )
        ],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_named(inputs, tmp_path, fault):
    checks, said, pairs = FAULTS[fault]
    found = failed(results(page_copy(tmp_path, pairs), *inputs))
    assert set(found) == checks, found
    assert re.search(said, "\n".join(found.values()), re.DOTALL | re.MULTILINE), found


# ------------------------------------------------------------------------------------------------ the command line


def test_the_command_line_has_them_with_advice(inputs, tmp_path, capsys):
    copy = page_copy(tmp_path, FAULTS["leaked words of the environment"][2])
    assert load_script("selfcheck").main([str(copy), *inputs, "--max_new_tokens", "12", "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows.keys() >= NAMES and {name for name, row in rows.items() if row["status"] == "FAIL"} == {"turn_mask"}
    assert "tools and environment" in rows["turn_mask"]["try"]


def test_a_template_that_the_page_refuses_is_bad_input(inputs, tmp_path, capsys):
    shutil.copytree(TINY_LM, tmp_path / "model")
    file = tmp_path / "model" / "chat_template.jinja"
    file.write_text(FORGETFUL + file.read_text(encoding="utf-8"))
    assert load_script("selfcheck").main([str(PAGE), *inputs, "--model", str(tmp_path / "model")]) == 2
    assert "error: chat template: it writes" in capsys.readouterr().err
