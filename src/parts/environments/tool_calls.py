"""Parse tool calls in model output, by the tokenizer's response template or one of the named formats.

`read_answer` never raises for model output: it returns a malformed call as a problem, to be reported to the model.
"""

import ast
import contextlib
import copy
import json
import re

from parts.foundation.messages import UserError, need, say_once, suggest
from parts.foundation.python_source import parse_python


class BadCall(Exception):
    """A malformed tool call; the message is for the model."""


def tool_call(name, arguments, identity: str = "") -> dict:
    """A tool call in the form of chat templates and TRL; BadCall unless the arguments are an object."""
    if isinstance(arguments, str):  # as in OpenAI's API
        arguments = json.loads(arguments or "{}")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        raise BadCall('a call needs a name and arguments: {"name": "...", "arguments": {...}}')
    # what cannot be written to a log, such as a depth of thousands or half a surrogate pair, is no call either
    json.dumps([name, arguments, identity], ensure_ascii=False).encode()
    call = {"type": "function", "function": {"name": name, "arguments": arguments or {}}}
    return {"id": identity, **call} if isinstance(identity, str) and identity else call


def call_of_json(value) -> dict:
    """A tool call from {"name", "arguments" or "parameters", and perhaps "id"}."""
    if not isinstance(value, dict):
        raise BadCall('a call is an object: {"name": "...", "arguments": {...}}')
    return tool_call(value.get("name"), value.get("arguments", value.get("parameters")), value.get("id", ""))


def hermes_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3, SmolLM3."""
    before, *blocks = text.split("<tool_call>")
    return before, [call_of_json(json.loads(block.split("</tool_call>")[0])) for block in blocks]


PYTHON_WORDS = {"True": True, "False": False, "None": None}  # as templates write them that print values


def typed_argument(value: str, schema: dict):
    """Convert an argument from text: unchanged if the schema says string or it is not JSON, else parsed as JSON."""
    if schema.get("type") == "string" and not (schema.get("nullable") and value in ("None", "null")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return PYTHON_WORDS.get(value, value)


def qwen_xml_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5."""
    types = {s["function"]["name"]: s["function"]["parameters"]["properties"] for s in schemas}
    before, *blocks = text.split("<tool_call>")
    calls = []
    for block in blocks:
        match = re.match(r"\s*<function=([^>\n]+)>(.*?)</function>\s*</tool_call>", block, re.DOTALL)
        if not match:
            raise BadCall("a call has the form <tool_call><function=name>...</function></tool_call>")
        name, body = match[1].strip(), match[2]
        pairs = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", body, re.DOTALL)
        known = types.get(name, {})
        calls.append(tool_call(name, {key: typed_argument(value, known.get(key, {})) for key, value in pairs}))
    return before, calls


def llama3_json_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`{"name": …, "parameters": {…}}` as the whole answer, several separated by `;`: Llama 3.1 to 3.3."""
    rest = text.strip().removeprefix("<|python_tag|>").strip()
    if not (rest.startswith("{") and '"name"' in rest and re.search('"(parameters|arguments)"', rest)):
        return text, []
    calls = []
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        calls.append(call_of_json(value))
        rest = rest[end:].lstrip("; \n")
    return "", calls


def mistral_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`[TOOL_CALLS][{"name", "arguments", "id"}]`, or from version 11 on `[TOOL_CALLS]name[ARGS]{…}` per call."""
    before, *blocks = text.split("[TOOL_CALLS]")
    calls = []
    for block in map(str.strip, blocks):
        if block.startswith("["):
            calls += [call_of_json(value) for value in json.loads(block)]
            continue
        match = re.match(r"([\w.-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(\{.*)", block, re.DOTALL)
        if not match:
            raise BadCall("a call has the form [TOOL_CALLS]name[ARGS]{...}")
        calls.append(tool_call(match[1], json.loads(match[3]), match[2] or ""))
    return before, calls


def pythonic_calls(text: str, schemas: list[dict]) -> tuple[str, list]:
    """`[name(key=value), …]`, after `<|tool_call_start|>` or as the whole answer: LFM2, Llama 4."""
    before, marker, rest = text.partition("<|tool_call_start|>")
    rest = rest.split("<|tool_call_end|>")[0].strip() if marker else text.strip()
    if not marker and not re.match(r"\[\s*[A-Za-z_]\w*\(", rest):
        return text, []
    tree = parse_python(rest, mode="eval").body
    elements = tree.elts if isinstance(tree, ast.List) else []
    if not elements or not all(
        isinstance(c, ast.Call) and isinstance(c.func, ast.Name) and not c.args for c in elements
    ):
        raise BadCall("calls have the form [name(key=value)]")
    pairs = [(c.func.id, [(k.arg, ast.literal_eval(k.value)) for k in c.keywords]) for c in elements]
    if any(key is None for _, arguments in pairs for key, _ in arguments):
        raise BadCall("an argument has the form key=value")
    return before if marker else "", [tool_call(name, dict(arguments)) for name, arguments in pairs]


# name -> (parser, text in a chat template that shows that the model uses the format)
CALL_FORMATS = {
    "qwen_xml": (qwen_xml_calls, "<function="),
    "hermes": (hermes_calls, "<tool_call>"),
    "mistral": (mistral_calls, "[TOOL_CALLS]"),
    "pythonic": (pythonic_calls, "<|tool_call_start|>"),
    "llama3_json": (llama3_json_calls, '"parameters": '),
}


def call_format(tokenizer, choice: str = "") -> str | dict:
    """How a model writes tool calls: by `choice`, else the tokenizer's response template, else its chat template.

    Returns:
        A name in CALL_FORMATS, or a response template of transformers.
    """
    known = [*CALL_FORMATS, "template"]
    expected = f"expected {', '.join(known)}{suggest(choice, known)}"
    need(not choice or choice in known, f"got tool format {choice!r}; {expected}")
    response_template = getattr(tokenizer, "response_template", None)
    if response_template and choice in ("", "template"):
        return response_template
    need(choice != "template", "got tool format 'template', but the tokenizer has no response_template")
    if choice:
        return choice
    text = tokenizer.get_chat_template() if tokenizer.chat_template else ""
    if "<arg_key>" not in text:  # GLM's `<tool_call>` holds no JSON
        for name, (_, mark) in CALL_FORMATS.items():
            if mark in text:
                return name
    with contextlib.suppress(ImportError, ValueError):  # TRL may be missing, or have no response template for it
        from trl.chat_template_utils import add_response_schema

        if template := add_response_schema(copy.copy(tokenizer)).response_template:
            return template
    raise UserError(
        f"got a chat template that shows no known form of tool calls; expected one of {', '.join(CALL_FORMATS)}; "
        "try naming it, or a tokenizer with a response_template (transformers' response parsing)"
    )


def check_untagged_call(text: str, form: str, schemas: list[dict]) -> None:
    """Warn once if a text without calls has a call's JSON, bare or in a code fence, as Qwen2.5-Coder writes it."""
    names = {schema["function"]["name"] for schema in schemas}
    named = [name for name in re.findall(r'"name"\s*:\s*"([^"]+)"', text) if name in names]
    if named and re.search(r'"(arguments|parameters)"\s*:', text):
        bare = "" if form == "llama3_json" else "--tool_format llama3_json where the whole answer is JSON, "
        say_once(
            f"warning: got the JSON of a call of {named[0]} outside the form {form}; it stays text, as in vLLM and "
            f"TRL; try {bare}a warm start on calls in that form, or a model that was trained on it"
        )


def read_by_template(tokenizer, template: dict, prompt_ids: list[int], ids: list[int], schemas: list[dict]) -> dict:
    """The assistant's message, parsed by a response template of transformers."""
    message = tokenizer.parse_response(ids, template, prefix=prompt_ids, tools=schemas)
    message["content"] = (message.get("content") or "").removesuffix(tokenizer.eos_token or "")
    for i, call in enumerate(message.get("tool_calls") or []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise BadCall("a call needs a name and arguments")
        message["tool_calls"][i] = tool_call(function.get("name"), function.get("arguments"), call.get("id", ""))
    return message


def read_answer(
    tokenizer, form: str | dict, prompt_ids: list[int], ids: list[int], text: str, schemas: list[dict]
) -> tuple[dict, str]:
    """(the assistant's message, the problem with its tool calls or "").

    Args:
        form: what `call_format` returned.
        prompt_ids: token ids before the answer.
        ids: token ids of the answer.
        text: the answer without its end token; calls within `<think>` do not count.
    """
    try:
        if isinstance(form, dict):
            message = read_by_template(tokenizer, form, prompt_ids, ids, schemas)
            if not message.get("tool_calls"):
                check_untagged_call(message["content"], "the response template", schemas)
            return message, ""
        begun = bool(prompt_ids) and tokenizer.decode(prompt_ids[-8:]).rstrip().endswith("<think>")
        thinks = begun or text.lstrip().startswith("<think>")
        thought, closed, rest = text.partition("</think>") if thinks else ("", "", text)
        if thinks and not closed:
            return {"role": "assistant", "content": text}, ""
        content, calls = CALL_FORMATS[form][0](rest, schemas)
    except BadCall as error:
        return {"role": "assistant", "content": text}, str(error)
    except Exception as error:  # json, ast and transformers' parsers may raise anything on hostile text
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        return {"role": "assistant", "content": text}, f"the tool call cannot be read ({reason})"
    if not calls:
        check_untagged_call(rest, form, schemas)
        return {"role": "assistant", "content": text}, ""
    return {"role": "assistant", "content": (thought + closed + content).rstrip("\n"), "tool_calls": calls}, ""
