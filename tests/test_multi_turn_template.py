"""templates/multi_turn.py: tokens as they were sampled, refusals, changes."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from chat_tokenizers import chat_tokenizer, end_ids
from conftest import ROOT, TINY_LM, edited, load_module, load_script

PAGE = ROOT / "templates" / "multi_turn.py"
page = load_module(PAGE, "template_multi_turn")


class Talk:
    """Says `Not …` up to three times; 1 / the number of answers."""

    def reset(self, answer=None, hint=None, **row):
        self.heard, self.answer = [], answer
        return hint

    def reply(self, text):
        self.heard.append(text)
        return None if text == self.answer or len(self.heard) > 3 else f"Not {text[:9]}<|end|> {len(self.heard)}."

    def get_reward(self):
        return 1.0 / len(self.heard)


def settings(**changes):
    """Settings of a few short answers."""
    given = {"model": str(TINY_LM), "data": "", "environment": "my.py:Talk", "max_new_tokens": 8, "max_tokens": 300}
    return page.Config(**given | changes)


def rows_of(*prompts, **columns) -> list[dict]:
    """Rows as `load_rows` gives them."""
    turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return [{"messages": m, "columns": {"prompt": m} | columns, "where": f"d.jsonl:{i}"} for i, m in enumerate(turns)]


@pytest.fixture
def models():
    """The policy, moved off its start."""
    found = page.load_models(settings())
    torch.manual_seed(0)
    with torch.no_grad():
        for p in found.policy.parameters():
            p.add_(torch.randn_like(p), alpha=0.02)
    return found


def script_answers(monkeypatch, turns, module=page) -> None:
    """Let `generate` give these ids: a list for each turn, with a list for each conversation that goes on."""
    left = iter(turns)

    def generate(config, models, prompts, greedy=False):
        answers, width = next(left), max(map(len, prompts))
        longest = max(map(len, answers))
        pads = [(width - len(p), longest - len(a)) for p, a in zip(prompts, answers, strict=True)]
        whole = [[0] * b + p + a + [0] * e for p, a, (b, e) in zip(prompts, answers, pads, strict=True)]
        own = [[0] * width + [1] * len(a) + [0] * e for a, (_, e) in zip(answers, pads, strict=True)]
        own = torch.tensor(own)
        return {"input_ids": torch.tensor(whole), "response_mask": own, "rollout_logprobs": own * -0.5}

    monkeypatch.setattr(module, "generate", generate)


def columns_of(talk) -> list[list]:
    """Ids, whether sampled, log-probs of a conversation's tokens."""
    return [list(x) for i, x in enumerate(zip(*talk.tokens, strict=True)) if i != 1]


ENDS = {"tiny": "<|end|>", "llama3": "<|eot_id|>", "gemma3": "<end_of_turn>", "phi3_5": "<|end|>", "mistral": "</s>"}
ENDS |= {"deepseek_r1_distill": "<｜end▁of▁sentence｜>", "gptoss": "<|return|>", "smolvlm": "<end_of_utterance>"}
ENDS["llama3_1"] = ENDS["llama3"]


def models_of(family: str):
    """The tokenizer and end tokens of a family; most write <|im_end|>."""
    end = ENDS.get(family, "<|im_end|>")
    tokenizer = chat_tokenizer(family, end)
    return SimpleNamespace(tokenizer=tokenizer, eos_ids=end_ids(tokenizer, end), pad_id=0)


@pytest.mark.parametrize("family", ["tiny", "qwen2_5", "llama3", "llama3_1", "gemma3", "phi3_5", "mistral"])
def test_a_conversation_is_what_the_template_writes_for_its_messages(monkeypatch, family):
    models = models_of(family)
    tokenizer = models.tokenizer
    page.check_template(models)
    answers = [[tokenizer.encode(text, add_special_tokens=False) + models.eos_ids] for text in ("five", "3 + 1", "Oh")]
    script_answers(monkeypatch, answers)
    (talk,) = page.play(settings(max_turns=3), models, Talk, rows_of("What is 2 + 2?", hint=" Think."))
    contents = [message["content"] for message in talk.messages]
    assert contents[0] == "What is 2 + 2? Think." and contents[1::2] == ["five", "3 + 1", "Oh"]
    plain = [m | {"content": m["content"].replace("<|end|>", "(end)")} for m in talk.messages]
    ids, own, _ = columns_of(talk)
    expected = tokenizer.apply_chat_template(talk.messages, sanitize_control_tokens=True)["input_ids"]
    assert ids == expected[: len(ids)]  # some write a line break after the last end
    assert len(tokenizer.apply_chat_template(plain)["input_ids"]) > sum(own) > 0
    assert [t for t, x in zip(ids, own, strict=True) if x] == [i for (answer,) in answers for i in answer]
    if family == "tiny":  # what an environment says cannot end its turn
        assert ids.count(models.eos_ids[0]) == 6 and tokenizer.decode(ids).count("<|end|>") == 8


@pytest.mark.parametrize("family", ["tiny", "gemma3"])
def test_an_answer_that_was_cut_off_gets_the_end_of_its_turn(monkeypatch, family):
    models = models_of(family)
    text = models.tokenizer.encode("fiv", add_special_tokens=False)
    found = []
    for first in (text + models.eos_ids, text):
        script_answers(monkeypatch, [[first], [models.eos_ids]])
        found += page.play(settings(max_turns=2), models, Talk, rows_of("What is 2 + 2?"))
    (ended, own, _), (cut, own_cut, _) = map(columns_of, found)
    assert ended == cut and sum(own) == sum(own_cut) + 1
    (place,) = [i for i, (a, b) in enumerate(zip(own, own_cut, strict=True)) if a != b]
    assert cut[place] == models.eos_ids[0] and own_cut[place] == 0
    assert found[0].messages == found[1].messages


def test_a_conversation_ends_where_another_answer_may_not_fit(models, monkeypatch):
    config = settings(max_tokens=70, max_turns=9)
    monkeypatch.setattr(Talk, "reply", lambda self, text: self.heard.append(text) or "No.")
    torch.manual_seed(0)
    talks = page.play(config, models, Talk, rows_of("1+1=", "a much longer prompt than the other"))
    for talk in talks:
        assert len(talk.tokens) <= 70 and talk.messages[-1]["role"] == "assistant" and talk.tokens[-1][2] == 1
        assert len(talk.tokens) + 8 + 9 > 70  # an end, a reply and another answer take more


# qwen3 drops what was thought before, gptoss ends a turn otherwise once others follow, smolvlm takes no strings
REFUSED = ("qwen3", "deepseek_r1_distill", "gptoss", "smolvlm")


@pytest.mark.parametrize("family", REFUSED)
def test_a_template_that_writes_earlier_turns_anew_is_refused(family):
    with pytest.raises(SystemExit, match=r"^error: chat template: it .*expected one that only appends"):
        page.check_template(models_of(family))


def test_a_template_that_raises_or_is_not_there_is_refused(models):
    bare = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for template in ("{{ raise_exception('no system role') }}", bare, None):
        models.tokenizer.chat_template = template
        with pytest.raises(SystemExit, match=r"^error: chat template: "):
            page.check_template(models)


HOOKS = {
    "reset": "    def reset(self, answer):\n        self.n = 0\n",
    "reply": "    def reply(self, text):\n        self.n += 1\n        return 'No.' if self.n < 2 else None\n",
    "get_reward": "    def get_reward(self):\n        return 1.0\n",
}


def environment(folder, **changes) -> str:
    """my.py:Mine in a folder, with other methods; an empty one is left out."""
    text = "class Mine:\n" + "".join((HOOKS | changes).values())
    (folder / "my.py").write_text(text)
    return f"{folder}/my.py:Mine"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reset": ""}, r"got methods \['get_reward', 'reply'\]; expected get_reward, reply and reset"),
        ({"add": "    def add(self, x: int) -> int:\n        return x\n"}, "expected .* --change tools"),
    ],
)
def test_a_class_that_is_no_environment_is_refused(tmp_path, monkeypatch, changes, said):
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = environment(tmp_path, **changes)
    with pytest.raises(SystemExit, match=f"(?s)^error: got environment .*my.py:Mine.*{said}.*expected FILE.py:Class"):
        page.load_environment(spec)
    for spec in (f"{tmp_path}/my.py:Other", f"{tmp_path}/none.py:Mine"):
        with pytest.raises(SystemExit, match=r"expected FILE.py:Class"):
            page.load_environment(spec)


@pytest.mark.parametrize(
    ("method", "value", "said"),
    [
        ("reset(self, **row)", "row['none']", "Mine, line 3, on d.jsonl:0: KeyError"),
        ("reset(self, **row)", "3", "Mine, on d.jsonl:0: .*reset returned 3; expected"),
        ("reply(self, text)", "b'No'", ".*reply returned b'No'; expected a string or None"),
    ],
)
def test_a_broken_environment_is_named_by_file_and_line(tmp_path, models, monkeypatch, method, value, said):
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = environment(tmp_path, **{method.partition("(")[0]: f"    def {method}:\n        return {value}\n"})
    with pytest.raises(SystemExit, match=f"^error: {re.escape(str(tmp_path))}/my.py:{said}"):
        page.rollout(settings(environment=spec), models, page.load_environment(spec), rows_of("1+1=", answer="2"))


CHANGES = {name: known["edits"] for name, known in load_script("new_trainer").changes_of("multi_turn").items()}


def changed(name: str, folder) -> Path:
    """A copy of the page with a change of the reference."""
    (folder / "changed.py").write_text(edited(PAGE.read_text(encoding="utf-8"), CHANGES[name]))
    return folder / "changed.py"


def test_the_baseline_for_each_turn_is_that_of_who_came_to_it(tmp_path, models):
    mine = load_module(changed("turn_baseline", tmp_path), "template_changed")
    mask = torch.tensor([[0, 1, 1, 0, 1], [0, 1, 0, 0, 0], [0, 1, 0, 1, 1], [0, 1, 1, 0, 0]])
    attention = mask * 0 + 1
    batch = {"input_ids": attention * 9, "attention_mask": attention, "response_mask": mask}
    batch["rollout_logprobs"] = mine.token_logprobs(settings(), models.policy, batch)[0].detach()
    batch["scores"] = torch.tensor([0.5, 1.0, 0.0, 1.0])
    got = mine.make_experience(mine.Config(**vars(settings(group_size=4))), models, batch)["advantages"]
    # first answers: mean of all, 0.625; second ones: of rows 0 and 2, 0.25
    expected = [[0, -0.125, -0.125, 0, 0.25], [0, 0.375, 0, 0, 0]]
    expected += [[0, -0.625, 0, -0.25, -0.25], [0, 0.375, 0.375, 0, 0]]
    torch.testing.assert_close(got, torch.tensor(expected))
    config = mine.Config(**vars(settings(group_size=4)), turn_baseline="conversation")
    got = mine.make_experience(config, models, batch)["advantages"]
    torch.testing.assert_close(got, (batch["scores"] - 0.625)[:, None] * mask)


ADDER = '''class Adder:
    def reset(self, **row):
        self.total = 0

    def add(self, x: int) -> int:
        """Add a number.

        Args:
            x: The number.
        """
        self.total += x
        return self.total

    def get_reward(self) -> float:
        return float(self.total)
'''
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


def test_tools_are_shown_called_and_their_faults_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tools.py").write_text(ADDER)
    mine = load_module(changed("tools", tmp_path), "template_changed")
    make = mine.load_environment(f"{tmp_path}/tools.py:Adder")
    models = models_of("qwen2_5")
    tokenizer = models.tokenizer
    mine.check_template(models)
    said = [CALL.format("add", '{"x": 2}') + CALL.format("add", '{"x": 5}'), CALL.format("reset", "{}"), "<tool_call>{"]
    said += [CALL.format("add", '{"y": 1}'), "7", CALL.format("add", '{"x": 1}')]
    encoded = [tokenizer.encode(text, add_special_tokens=False) + models.eos_ids for text in said]
    script_answers(monkeypatch, [[ids] for ids in encoded], mine)
    (talk,) = mine.play(settings(max_turns=8, max_tokens=10**4), models, make, rows_of("Add."))
    assert [m["content"] for m in talk.messages if m["role"] == "tool"][:2] == ["2", "7"]
    faults = [m["content"] for m in talk.messages if m["role"] == "tool"][2:]
    assert [re.search(r"(\w+): ", fault)[1] for fault in faults] == ["ValueError", "JSONDecodeError", "TypeError"]
    assert talk.turns == 5 and talk.messages[-1] == {"role": "assistant", "content": "7"}  # no reply: it ends
    ids, own, _ = columns_of(talk)
    rendered = tokenizer.apply_chat_template(talk.messages, tools=[make.add])["input_ids"]
    assert ids == rendered[: len(ids)] and '"name": "add"' in tokenizer.decode(ids[: talk.start])
    assert [i for i, x in zip(ids, own, strict=True) if x] == [i for answer in encoded[:5] for i in answer]
    script_answers(monkeypatch, [[encoded[5]]], mine)
    (talk,) = mine.play(settings(max_turns=1, max_tokens=10**4), models, make, rows_of("Add."))
    assert talk.environment.total == 0 and len(talk.messages) == 2  # after the last answer no tool is called
