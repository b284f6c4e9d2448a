"""Find the program in a model's answer."""

import ast
import builtins
import contextlib
import re
import symtable
import textwrap
from dataclasses import dataclass

from parts.data.stated_answers import visible, without_end_tokens
from parts.foundation.python_source import parse_python
from parts.rewards.extracts import IMPORTS
from programs.sandbox.forms_of_tests import BROKEN, READS_STDIN, is_call, loaded_tests, parsed
from programs.sandbox.tests_in_python import FromProgram

FENCE = re.compile(r"([ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]*+)?+)(.*?)(?<![`~])(`{3,}+|~{3,}+)[ \t]*([^`~]*)")
PYTHON = re.compile(r"(?i)\{?\.?(?:i?python|py)[\d.]*\b(?!-)")
CODE_LINE = re.compile(r"(?m)^(?:@|def |async def |class |import |from [\w.]+ import |\w+ = )")
MARK = re.compile(r"(?m)^\[(?:(BEGIN|PYTHON)|DONE|/PYTHON)\][ \t]*$")  # fences of MBPP and Code Llama
FUTURE = re.compile(r"(?m)^from __future__ import .*$")
LEETCODE = """
from typing import Any, Callable, Dict, Iterable, Iterator, List, Literal, Optional, Sequence, Set, Tuple, Union
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from itertools import accumulate, chain, combinations, groupby, pairwise, permutations, product, zip_longest
from bisect import bisect, bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from math import ceil, comb, floor, gcd, inf, isqrt, lcm, log, log2, sqrt
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string
"""  # what its methods of Solution may use without an import


@dataclass
class Part:
    """A fenced block of an answer with its label, or, with the label None, the text between two.

    Attributes:
        defined, imported, needed: as source_names says.
    """

    label: str | None
    text: str
    closed: bool = False

    def __post_init__(self):
        self.is_python = bool(PYTHON.match(self.label or ""))
        self.is_fenced = self.is_python or self.label == ""
        if self.label is None and not is_valid(self.text):
            start = CODE_LINE.search(self.text)
            self.text = self.text[start.start() :] if start else ""
        if not self.closed:  # cut off, or followed by words
            self.text = valid_beginning(self.text)
        elif not is_valid(self.text) and is_valid(dedented := textwrap.dedent(self.text)) and CODE_LINE.match(dedented):
            self.text = dedented
        self.defined, self.imported, self.needed = source_names(self.text)


def is_valid(source: str) -> bool:
    try:
        return bool(parsed(source))
    except BROKEN:
        return False


def valid_beginning(source: str, least: int = 0) -> str:
    """The lines of a source before those that are no Python, but `least` lines at least; all of it if none are."""
    lines = source.split("\n")
    for _ in range(10):
        try:
            parsed("\n".join(lines))
            return "\n".join(lines)
        except SyntaxError as error:
            lines = lines[: max((error.lineno or 1) - 1, 0)]
        except BROKEN:
            break
        if not any(map(str.strip, lines[least:])):
            break
    return source


def source_names(source: str) -> tuple[set, set, set]:
    """The names that a source defines at its top level or as methods of Solution, imports there, and needs besides."""
    try:
        table = symtable.symtable(source if parsed(source) else "", "model_program.py", "exec")
    except BROKEN:
        return set(), set(), set()
    needed, tables, symbols = set(), [table], table.get_symbols()
    defined = {symbol.get_name() for symbol in symbols if symbol.is_assigned()}
    imported = {symbol.get_name() for symbol in symbols if symbol.is_imported()}
    while tables:
        inner = tables.pop()
        tables += inner.get_children()
        symbols = [symbol for symbol in inner.get_symbols() if symbol.is_referenced()]
        needed |= {symbol.get_name() for symbol in symbols if symbol.is_global() or inner is table}
        if inner.get_name() == "Solution":
            defined |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_assigned()}
    return defined, imported, needed - defined - imported - vars(builtins).keys()


def parts_of(text: str) -> list[Part]:
    """The fenced blocks of a text and what stands between them, in order.

    A bare fence may close a block as far as it is not indented further than the block, as one in a docstring is; a
    fence labelled as Python opens one wherever it stands.
    """
    parts, lines, label, mark, indent = [], [], None, "", 0
    for line in text.split("\n"):
        fence = FENCE.fullmatch(line.rstrip())
        margin, before, ticks, info = fence.groups() if fence else ("", "", "", "")
        near = fence and (label is None or before or len(margin) <= indent + 3)
        opens = near and (PYTHON.match(info) or (label is None and not before))
        closes = near and label is not None and not info and ticks.startswith(mark) and not set(before) & set("'\"#")
        if not (opens or closes):
            lines.append(re.sub(rf"^[ \t]{{0,{indent}}}", "", line))
            continue
        if before.strip():
            lines.append(margin[indent:] + before)
        parts.append(Part(label, "\n".join(lines), bool(closes)))
        lines, label, mark, indent = [], None, "", 0
        if opens:
            label, mark, indent = info.strip().lower(), ticks, len(margin)
    return [part for part in [*parts, Part(label, "\n".join(lines))] if part.text.strip()]


def tested_names(tests, entry_point: str | None) -> set[str]:
    """The names of the program that its tests use; none where they run it as a script."""
    if isinstance(tests, dict):
        return {tests["fn_name"]} if tests.get("fn_name") else set()
    tests = [tests] if isinstance(tests, str) else tests or []
    if any(isinstance(test, dict) for test in tests):
        return {
            name for test in tests if (name := test.get("function") or (is_call(test, entry_point) and entry_point))
        }
    if entry_point:
        return {entry_point.rpartition(".")[2]}
    if not all(isinstance(test, str) for test in tests):
        return set()
    try:
        source = ast.unparse(FromProgram().visit(parse_python("\n".join(tests))))
    except BROKEN:
        return set()
    return source_names(source)[2]


def definitions(source: str, needed: set, allowed: set | None = None) -> list[str]:
    """The statements of a source that define needed names, and what these need in turn; star imports in any case.

    `needed` loses the names defined here and gains what these need; statements but imports define `allowed` ones only.
    """
    try:
        statements = parsed(source).body
    except BROKEN:
        return []
    waiting, kept = [], {}
    for place, statement in enumerate(statements):
        if isinstance(statement, ast.Expr):
            continue
        imports, text = isinstance(statement, IMPORTS), ast.unparse(statement)
        if imports and (statement.names[0].name == "*" or getattr(statement, "module", "") == "__future__"):
            kept[place] = text
            continue
        defined, imported, more = source_names(text)
        waiting.append((place, text, imported | (defined if allowed is None else defined & allowed), more))
    while chosen := [item for item in waiting if item[2] & needed]:
        for place, text, _, more in chosen:
            kept[place] = text
            needed |= more
        for _, _, defined, _ in chosen:
            needed -= defined
        waiting = [item for item in waiting if item[0] not in kept]
    return [kept[place] for place in sorted(kept)]


def other_classes(source: str, tested: set) -> set[str]:
    """The classes of a source that are not under test: tests may pass objects of them to the program."""
    with contextlib.suppress(*BROKEN):
        classes = [part for part in parsed(source).body if isinstance(part, ast.ClassDef)]
        return {part.name for part in classes if not tested & source_names(ast.unparse(part))[0]}
    return set()


def stub_of(source: str, name: str) -> str:
    """A source up to the end of a function without body that it ends with; "" where there is none."""
    if not re.search(rf"(?m)^(?:async )?def {re.escape(name)}\b", source):
        return ""
    try:
        function = parsed(source).body[-1]
    except BROKEN:
        return "" if is_valid(source) else source  # `def f(x):` and nothing else
    if getattr(function, "name", "") != name:
        return ""
    body, lines = function.body, source.split("\n")
    last = body[-1]
    if last.lineno > function.lineno and (isinstance(last, ast.Pass | ast.Raise) or ast.unparse(last) == "..."):
        body, lines[last.lineno - 1 :] = body[:-1], [""]
    docstring = (isinstance(getattr(s, "value", None), ast.Constant) or isinstance(s, IMPORTS) for s in body)
    return "\n".join(lines) if all(docstring) else ""


def continued(stub: str, body: str) -> str:
    """Join a function's head and the answer that continues it; "" if the result is not Python."""
    for rest in (body, textwrap.indent(body, "    ")):
        indented = rest.lstrip("\n")[:1] in (" ", "\t") or not stub.endswith("\n")
        program = valid_beginning(stub + rest, least=stub.count("\n"))
        if indented and is_valid(program):
            return program
    return ""


def main_part(parts: list[Part], tested: set) -> Part | None:
    """The last part that defines what is tested, blocks first; of scripts, one that reads stdin, say."""
    for pool in ([part for part in parts if part.is_fenced], parts if tested else []):
        ranks = [len(part.defined & tested) for part in pool]
        if not tested:
            ranks = [(bool(READS_STDIN.search(p.text)), p.is_python, "print" in p.text) for p in pool]
        best = max(ranks, default=0)
        if best:
            return pool[len(pool) - 1 - ranks[::-1].index(best)]
    return None


def text_of_prompt(prompt) -> str:
    """The text of a prompt: a string, or the contents of chat messages."""
    messages = prompt if isinstance(prompt, list) else [{"content": prompt}]
    texts = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def program_of(text: str, tests=None, entry_point: str | None = None, setup: str = "", prompt="") -> str:
    """Return the program in an answer: the one rule of the rewards and the evaluation of this bundle.

    It is the last block that defines what the tests use, else the last block of Python, else the last without label,
    else the text. Definitions that it needs come from the other blocks; the imports and helpers of the prompt's code
    and of `setup` belong to it too. An answer that is only the body of the prompt's function goes on with that.
    Thinking is left out; a fence that is missing, stray or labelled otherwise costs nothing.

    Args:
        tests, entry_point: as in run_code.
        setup: imports and helpers that the prompt, text or messages, shows. Of other definitions only those whose names
            are in the prompt are taken, where that is known: a reference solution stays out of the program's reach.

    >>> program_of("```python\\ndef f(x):\\n    return x\\n```\\n```python\\nprint(f(2))\\n```", "assert f(1) == 1")
    'def f(x):\\n    return x'
    """
    text, shown = visible(without_end_tokens((text or "").replace("\r\n", "\n"))), text_of_prompt(prompt)
    text = MARK.sub(lambda mark: "```python" if mark[1] else "```", text)
    if not text.strip():
        return ""
    tested, parts = tested_names(loaded_tests(tests), entry_point), parts_of(text)
    best = main_part(parts, tested)
    sources = [setup or "", *(part.text + "\n" for part in parts_of(shown) if part.defined & tested)]
    if best is None or (tested and not best.defined & tested):
        fenced = [part.text for part in parts if part.is_fenced]
        stubs = filter(None, (stub_of(source, name) for source in [setup or "", shown, *sources] for name in tested))
        body = fenced[-1] if fenced else text
        if program := next(filter(None, (continued(stub, body) for stub in stubs)), ""):
            return program
    if best is None:
        named = [part for part in parts if part.is_python] or [part for part in parts if part.label == ""]
        if not named:
            return "" if any(part.label is not None for part in parts) else text
        best = named[-1]
    needed = (best.needed | tested | other_classes(setup or "", tested)) - best.defined - best.imported
    helpers = [piece for part in parts if part is not best for piece in definitions(part.text, needed)]
    needed -= tested
    sources += [LEETCODE] if "Solution" in best.defined else []
    allowed = {*re.findall(r"\w+", shown)} if shown else None
    pieces = [*(piece for source in sources for piece in definitions(source, needed, allowed)), *helpers]
    program = "\n\n".join([*pieces, best.text])
    future = dict.fromkeys(FUTURE.findall(program)) if pieces else {}
    return "\n".join([*future, FUTURE.sub("", program)]) if future else program
