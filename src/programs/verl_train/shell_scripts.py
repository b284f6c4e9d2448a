"""The overrides in a shell script that starts verl's trainer."""

import ast
import itertools
import operator
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from parts.foundation.messages import UserError, say

STARTS = re.compile(r"\A#!|^[^#\n]*\bverl\.trainer\.main_ppo\b", re.MULTILINE)
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=([^(].*|)", re.DOTALL)
SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
UNRUN = "OUTPUT_OF_A_COMMAND"
VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?[-=]([^{}]*))?\})")
ARITHMETIC = re.compile(r"\$\(\(([\d\s()+*/%-]+)\)\)")
KEY = r"[\w@/-]+\.[\w.@/:-]+"
OVERRIDE = re.compile(rf"(?:\w+\+?=\()?((?:\+\+|\+)?(?:{KEY}|model_engine))=(.*)|(~{KEY})", re.DOTALL)
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def starts_verl(text: str) -> bool:
    """Whether a text is a shell script, not lines of KEY=VALUE."""
    return bool(STARTS.search(text))


def whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) of a script's commands: lines that `\\` or a quote continues as one, without heredocs."""
    number, held, begin, delimiter = 0, "", 1, None
    for number, line in enumerate(text.splitlines(), start=1):
        if delimiter is not None:
            delimiter = None if line.strip() == delimiter else delimiter
            continue
        begin = begin if held else number
        held += line.removesuffix("\\") if line.endswith("\\") else f"{line}\n"
        if line.endswith("\\") or unfinished(held):
            continue
        yield begin, held
        heredoc, held = HEREDOC.search(held), ""
        delimiter = heredoc[2] if heredoc else None
    if held:
        yield begin, held


def unfinished(line: str) -> bool:
    """Whether a quote is open at the end of a line."""
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


def computed(node: ast.AST) -> int:
    """The value of integer arithmetic, as a shell has it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -computed(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](computed(node.left), computed(node.right))
    raise ValueError("expected integers and + - * / %")


def expanded(line: str, known: dict[str, str], unknown: set[str], folder: str) -> str:
    """A line with the values of its variables and its arithmetic; names without a value stay, and go to `unknown`.

    Of commands in `$(…)` those that name the script's folder or a path are read, others stand as UNRUN.
    """

    def value(match: re.Match) -> str:
        name = match[1] or match[2]
        if name in known and (known[name] or match[3] is None):
            return known[name]
        if match[3] is not None:
            return match[3]
        unknown.add(name)
        return match[0]

    def number(match: re.Match) -> str:
        try:
            return str(computed(ast.parse(match[1].strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError):
            return match[0]

    def output(match: re.Match) -> str:
        command, *words = match[1].replace('"', "").split() or [""]
        if command == "dirname":
            return folder
        if command == "realpath" or (command == "cd" and words[1:] == ["&&", "pwd"]):
            return words[-1] if command == "realpath" else words[0]
        return UNRUN

    line = re.sub(r"\$\(\(.*?\)\)", lambda m: re.sub(r"(?<![\w${])([A-Za-z_]\w*)", r"$\1", m[0]), line)
    line = ARITHMETIC.sub(number, VARIABLE.sub(value, VARIABLE.sub(value, line)))
    for _ in range(line.count("$(")):  # from the inside
        line = SUBSTITUTION.sub(output, line)
    return line


def shell_overrides(text: str, file: str) -> list[tuple[str, str | None, str]]:
    """(key, value, place) of each override among the words of a script; it is read, never run.

    Variables have the values that the script or the environment gives them. `if` and loops are not followed.

    Raises:
        UserError: a quote has no end.
    """
    known, found, folder = {**os.environ, "PWD": os.getcwd()}, [], str(Path(file).absolute().parent)
    for number, line in whole_lines(text):
        unknown: set[str] = set()
        try:
            words = shlex.split(expanded(line, known, unknown, folder), comments=True)
        except ValueError as error:
            raise UserError(f"{file}, line {number}: got {error}; expected a shell script") from None
        setting = words[words[:1] in (["export"], ["readonly"], ["local"], ["declare"]) :]
        for match in itertools.takewhile(bool, map(ASSIGNMENT.fullmatch, setting)):
            known[match[1]] = match[2]
        for word in words:
            word = word.removesuffix(")") if word.count(")") > word.count("(") else word
            if match := OVERRIDE.fullmatch(word):
                found.append((match[1] or match[3], match[2], f"{file}, line {number}"))
                missing = [f"${name}" for name in sorted(unknown) if re.search(rf"\$\{{?{name}\b", word)]
                if missing or UNRUN in word:
                    got = missing[0] if missing else "a command's output"
                    say(f"note: {file}, line {number}: {got} is not known here; {word} is checked as it stands")
    return found
