"""Tool calls read from text: each format, equal to what TRL reads, and hostile text that is answered, never raised."""

import pytest
from chat_tokenizers import chat_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from parts.environments.tool_calls import CALL_FORMATS, call_format, read_answer
from parts.foundation.messages import UserError, say_once

TYPES = {"word": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "object"}}
PARAMETERS = {"type": "object", "properties": TYPES}
SCHEMAS = [{"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS}}]
WANTED = [("look_up", {"word": "75", "count": 2}), ("look_up", {"word": "b"})]
WRITTEN = {
    "hermes": 'Let me see.\n<tool_call>\n{"name": "look_up", "arguments": {"word": "75", "count": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look_up", "arguments": {"word": "b"}}\n</tool_call>',
    "qwen_xml": "Let me see.\n<tool_call>\n<function=look_up>\n<parameter=word>\n75\n</parameter>\n"
    "<parameter=count>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=look_up>\n<parameter=word>\nb\n</parameter>\n"
    "</function>\n</tool_call>",
    "llama3_json": '{"name": "look_up", "parameters": {"word": "75", "count": 2}}; '
    '{"name": "look_up", "parameters": {"word": "b"}}',
    "mistral": 'Let me see.[TOOL_CALLS] [{"name": "look_up", "arguments": {"word": "75", "count": 2}, '
    '"id": "abcdefghi"}, {"name": "look_up", "arguments": {"word": "b"}}]',
    "pythonic": "Let me see.<|tool_call_start|>[look_up(word='75', count=2), look_up(word=\"b\")]<|tool_call_end|>",
}


def read(form: str, text: str) -> tuple[dict, str]:
    """An answer read by a named format."""
    return read_answer(None, form, [], [], text, SCHEMAS)


def pairs(message: dict) -> list[tuple]:
    """Names and arguments of the calls."""
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]


@pytest.mark.parametrize("form", CALL_FORMATS)
def test_each_format_gives_its_calls_and_the_text_before_them(form):
    message, problem = read(form, WRITTEN[form])
    assert problem == "" and pairs(message) == WANTED
    assert message["content"] == ("" if form == "llama3_json" else "Let me see.")
    assert all(call["type"] == "function" for call in message["tool_calls"])


@pytest.mark.parametrize("form", CALL_FORMATS)
def test_text_without_calls_is_text(form):
    for text in ("4", "", "I say {x} and [y].", '{"answer": 4}', '{"name": "Ada"}', "[1, 2]", "[TOOL", "<tool"):
        assert read(form, text) == ({"role": "assistant", "content": text}, "")


def test_ids_of_calls_are_kept():
    message, _ = read("mistral", WRITTEN["mistral"])
    assert [call.get("id") for call in message["tool_calls"]] == ["abcdefghi", None]
    message, _ = read("mistral", '[TOOL_CALLS]look_up[CALL_ID]123456789[ARGS]{"word": "a"}')
    assert message["tool_calls"][0]["id"] == "123456789" and pairs(message) == [("look_up", {"word": "a"})]


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        ("llama3_json", '{"name": "f", "arguments": {"a": 1}}', {"a": 1}),
        ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', {}),
        ("hermes", '<tool_call>{"name": "f", "parameters": {"a": 1}}', {"a": 1}),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', {"a": 1}),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', {}),
        ("pythonic", "[f(a=[1, {'b': None}])]", {"a": [1, {"b": None}]}),
    ],
)
def test_other_ways_to_write_a_call(form, text, arguments):
    assert pairs(read(form, text)[0]) == [("f", arguments)]


def test_what_is_thought_is_no_call():
    text = '<think>\n<tool_call>{"name": "f"}</tool_call>\n</think>\n\n'
    assert pairs(read("hermes", text + '<tool_call>{"name": "g"}</tool_call>')[0]) == [("g", {})]
    assert read("hermes", text + "4") == ({"role": "assistant", "content": text + "4"}, "")
    assert read("hermes", '<think>\n<tool_call>{"name": "f"}')[1] == ""  # cut off within the thought
    for said in (text, ""):  # a thought ends once
        message, _ = read("hermes", said + '<tool_call>{"name": "g", "arguments": {"word": "</think>"}}</tool_call>')
        assert pairs(message) == [("g", {"word": "</think>"})]


@pytest.mark.parametrize(
    "kind, written, value",
    [
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "true", True),
        ({"type": "integer", "nullable": True}, "None", None),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": "string"}, "None", "None"),
        ({"type": ["integer", "string"]}, "five", "five"),
        ({"type": "array"}, '[{"a": null}]', [{"a": None}]),
    ],
)
def test_arguments_written_as_text_have_the_type_of_the_parameter(kind, written, value):
    """Qwen3-Coder's template prints booleans as Python does, and so do the models: the text "False" would be true."""
    schema = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": kind}}}}
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{written}\n</parameter>\n</function>\n</tool_call>"
    assert pairs(read_answer(None, "qwen_xml", [], [], text, [schema])[0]) == [("f", {"x": value})]


CALL = '{"name": "look_up", "arguments": {"word": "b"}}'


@pytest.mark.parametrize(
    "text, warned",
    [
        (CALL, True),
        (f"```json\n{CALL}\n```", True),
        ('I look it up.\n{"parameters": {}, "name": "look_up"}', True),
        (f"<tools>\n{CALL}\n</tools>", True),
        (CALL.replace("look_up", "other"), False),
        ('{"name": "look_up"}', False),
        (f"<think>{CALL}</think>4", False),
        (f"<tool_call>{CALL}</tool_call>", False),
    ],
)
def test_a_call_outside_the_form_stays_text_and_warns_once(text, warned, capsys):
    say_once.cache_clear()
    for _ in range(2):
        message, problem = read("hermes", text)
        assert problem == "" and ("tool_calls" in message) == ("<tool_call>" in text)
    warnings = capsys.readouterr().err
    assert warnings.count("got the JSON of a call of look_up outside the form hermes") == warned


DEEP = "[" * 50_000
BROKEN = {
    "hermes": [
        *("<tool_call>", "<tool_call>{", '<tool_call>{"name": 1}', "<tool_call>[]"),
        *(f'<tool_call>{{"name": "f", "arguments": {x}' for x in ("3}", f'{{"a": {DEEP}', f'{{"a": {"9" * 5000}}}}}')),
    ],
    "qwen_xml": ["<tool_call>", '<tool_call>{"name": "f"}</tool_call>', "<tool_call><function=f>"],
    "llama3_json": [
        *('{"name": "f", "parameters": {', '{"name": "f", "parameters": {}} and more'),
        *('{"name": [], "parameters": {}}', '{"name": "f", "parameters": []}'),
    ],
    "mistral": [f"[TOOL_CALLS]{rest}" for rest in ("", "[", " f(x)", "[3]", "f{", DEEP)],
    "pythonic": [
        *("[f(1)]", "[f(a=g())]", "[f(**{'a': 1})]", "[f(a=1", f"[f(a={'-' * 50_000}1)]"),
        *("[f(a={1, 2})]", "[f(a=b'x')]"),
    ],
}


@pytest.mark.parametrize("form, text", [(form, text) for form, texts in BROKEN.items() for text in texts])
def test_a_call_that_cannot_be_read_is_a_problem_in_words(form, text):
    message, problem = read(form, text)
    assert message == {"role": "assistant", "content": text}
    assert problem and len(problem) < 500


PIECES = [*'{}[]()=",:;\n', "name", "arguments", "1", "a", "f", *(mark for _, mark in CALL_FORMATS.values())]
PIECES += "</tool_call> </function> <parameter=a> </parameter> <think> </think> [ARGS] \ud800 \0".split(" ")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(PIECES)))
def test_no_text_raises(parts):
    for form in CALL_FORMATS:
        message, problem = read(form, "".join(parts))
        assert message["role"] == "assistant" and isinstance(problem, str)
        assert not (problem and "tool_calls" in message)


TEMPLATES = {"qwen2_5": "hermes", "qwen3_5_think": "qwen_xml", "llama3_1": "llama3_json", "lfm2_2_5": "pythonic"}


def test_the_template_shows_the_format():
    for name, expected in (TEMPLATES | {"mistral": "mistral"}).items():
        assert call_format(chat_tokenizer(name, "<|end|>")) == expected


@pytest.mark.parametrize("name", ["gptoss", "glm4moe", "gemma4_v5"])
def test_formats_that_trl_knows_are_its_response_templates(name):
    tokenizer = chat_tokenizer(name, "<|end|>")
    assert call_format(tokenizer)["fields"]["tool_calls"]
    assert not getattr(tokenizer, "response_template", None)  # the tokenizer is saved as it was loaded


def test_an_unknown_format_is_refused():
    with pytest.raises(UserError, match=r"shows no known form of tool calls; expected one of qwen_xml, hermes"):
        call_format(chat_tokenizer("tiny", "<|end|>"))
    with pytest.raises(UserError, match=r"got tool format 'herms'.*try hermes"):
        call_format(chat_tokenizer("tiny", "<|end|>"), "herms")
    with pytest.raises(UserError, match="has no response_template"):
        call_format(chat_tokenizer("qwen2_5", "<|end|>"), "template")
    assert call_format(chat_tokenizer("tiny", "<|end|>"), "hermes") == "hermes"


@pytest.mark.parametrize("name", TEMPLATES)
def test_formats_read_what_trl_reads(name):
    from trl.chat_template_utils import add_response_schema, parse_response

    end = "<|eot_id|>" if name == "llama3_1" else "<|im_end|>"
    tokenizer = add_response_schema(chat_tokenizer(name, end))
    written = WRITTEN[TEMPLATES[name]].split("; ")[0].removeprefix("Let me see.") + end
    written = "Hm.\n</think>\n\n" + written if name == "qwen3_5_think" else written  # its prompt begins a thought
    ids = tokenizer(written, add_special_tokens=False).input_ids
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=True)["input_ids"]
    expected = parse_response(tokenizer, ids, prefix=prompt, tools=SCHEMAS)
    own, _ = read_answer(tokenizer, TEMPLATES[name], prompt, ids, written.removesuffix(end), SCHEMAS)
    theirs, problem = read_answer(tokenizer, call_format(tokenizer), prompt, ids, written, SCHEMAS)
    assert pairs(own) == pairs(theirs) == pairs(expected) != [] and problem == ""
    if name == "qwen3_5_think":  # a thought that the prompt begins has no calls
        text = WRITTEN["qwen_xml"]
        assert read_answer(tokenizer, "qwen_xml", prompt, [], text, SCHEMAS)[0]["content"] == text


def test_what_a_response_template_cannot_read_is_a_problem():
    from trl.chat_template_utils import add_response_schema

    tokenizer = add_response_schema(chat_tokenizer("qwen3", "<|im_end|>"))
    for text in BROKEN["hermes"]:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        message, problem = read_answer(tokenizer, tokenizer.response_template, [5], ids, text, SCHEMAS)
        assert message == {"role": "assistant", "content": text} and problem, text
