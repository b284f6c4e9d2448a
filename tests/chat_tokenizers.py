"""Tokenizers with the chat template of a model family: the embedded model's bytes, and the template's own tokens."""

import functools
import json
import re
from pathlib import Path

from conftest import TINY_LM

# What is written between angle or square brackets in the templates of TRL's package
MARKS = r"<\|[A-Za-z_]+\|?>|<[A-Za-z_]+\|>|<｜[^｜<>']+｜>|<(?:start|end)_of_\w+>|</?think>|</?tool_\w+>|\[/?[A-Z_]+\]"

# As Mistral's documents have it: the tools stand before the last user message, calls and results have ids of nine
MISTRAL = (
    "{{ bos_token }}{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% if tools and m == users[-1] %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('an id has nine characters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{{ ', ' if not loop.last }}{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
    '{% elif m.role == \'tool\' %}[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": '
    '"{{ m.tool_call_id }}"}[/TOOL_RESULTS]{% endif %}{% endfor %}'
)

# In the form of SmolLM3's, whose system message is longer and has the date: what was thought stays in earlier turns,
# told not to think it writes the same empty thought in all; of earlier answers it shows the content alone, without
# calls, and what a tool says as a user's words
SMOLLM3 = (
    "{% set empty = '<think>\n\n</think>\n' if enable_thinking is defined and not enable_thinking else '' %}"
    "{{ '<|im_start|>system\nReasoning Mode: ' + ('/no_think' if empty else '/think') + '\n\n### XML Tools\n\n' }}"
    "{% if tools %}<tools>\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}</tools>{% else %}None{% endif %}"
    "{{ '\n\n<|im_end|>\n' }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\n' + empty + m.content.lstrip('\n') + '<|im_end|>\n' }}"
    "{% elif m.role in ('user', 'tool') %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + empty }}{% endif %}"
)

# A template of the embedded model's tokens that shows tools and calls in Hermes' form
TOOLS = (
    "{% if tools %}<|system|>{% for t in tools %}{{ t.function.name }}{{ ' ' }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{{ '<|' + ('user' if m.role == 'tool' else m.role) + '|>' }}{{ m.content }}"
    '{% for c in m.tool_calls %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@functools.cache
def template_of(name: str) -> str:
    """The text of a family's chat template, by its name in TRL's package or in this file."""
    import trl

    own = {"mistral": MISTRAL, "smollm3": SMOLLM3, "tiny_tools": TOOLS}
    own["tiny"] = (TINY_LM / "chat_template.jinja").read_text()
    return own.get(name) or (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text("utf-8")


def chat_tokenizer(name: str, *ends: str):
    """A tokenizer with a family's template, whose tokens and ends are tokens; the first end is its eos."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY_LM)
    tokenizer.chat_template, tokenizer.model_max_length = template_of(name), 10**6
    new = {*re.findall(MARKS, tokenizer.chat_template), *ends, "<s>"} - {*tokenizer.get_vocab()}
    tokenizer.add_tokens(sorted(new), special_tokens=True)
    tokenizer.bos_token, tokenizer.eos_token = "<s>", ends[0]
    return tokenizer


def end_ids(tokenizer, *ends: str) -> list[int]:
    """The ids of end tokens."""
    return tokenizer.convert_tokens_to_ids([*ends])


def call(name: str, **arguments) -> str:
    """A tool call as Hermes and Qwen write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
