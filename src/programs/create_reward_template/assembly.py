"""Assemble the written file: the statements that it needs from files/, below its own head."""

import ast
import builtins
import keyword
import pprint
import re
from pathlib import Path

from parts.foundation.file_text import file_text
from parts.foundation.messages import need
from parts.rewards.extracts import IMPORTS, bound_names, import_blocks, joined, needed, read_names, statements_of

CONTRACT = file_text("files/contract.py")
LOADING = file_text("files/loading.py")
ADAPTERS = file_text("files/adapters.py")
MAIN = 'if __name__ == "__main__":'
FILES = {"adapters", "contract", "final_answer", "loading", "mine", "short_answer", "waiting"}  # imported in files/
RESERVED = {"prompt", "prompts", "completion", "completions", "completion_ids", "columns", "self", "extra_info"}
VERL_NOTE = "verl: reward.custom_reward_function.path={file} reward.custom_reward_function.name=compute_score"


def named(text: str, columns: list[str], **words: str) -> str:
    """A text with other words, and with these columns in the place of `gold_column` in calls."""
    passed = "".join(f'"{name}": {name}, ' for name in columns)
    text = text.replace('"gold_column": gold_column, ', passed)
    for default in ("=None, ", ", "):
        text = text.replace(f"gold_column{default}", "".join(name + default for name in columns))
    for word, other in words.items():
        text = re.sub(rf"\b{word}\b", lambda match, other=other: other, text)
    return text


def assembled(head: str, texts: list[str], roots: list[str], constants: dict[str, str] | None = None) -> str:
    """The whole file: head, imports, and the statements that the roots need.

    Of two definitions of a name the earlier text's counts; `constants` are values of constants, as code.
    """
    pieces, imports, defined = [], {}, set()
    for text in texts:
        earlier = set(defined)
        for statement, lines in statements_of(text):
            names = bound_names(statement)
            if isinstance(statement, IMPORTS):
                imports[ast.unparse(statement)] = statement
            elif names and not names & earlier:
                defined |= names
                for name in names & {*(constants or {})}:
                    lines = f"{name} = {constants[name]}\n"
                pieces.append((ast.parse(lines).body[0], lines))
    kept = needed(pieces, roots)
    body = joined([piece for place, piece in enumerate(pieces) if place in kept])
    if "self_test" in roots:
        body += "\n\n" + ADAPTERS[ADAPTERS.index(MAIN) :]
    used = read_names(ast.parse(body))
    for node in imports.values():
        node.names = [x for x in node.names if (x.asname or x.name.partition(".")[0]) in {*used, "*"}]
    read = [node for node in imports.values() if node.names]
    gap = "\n\n\n" if re.match(r"def |async def |class ", body) else "\n\n"
    return head + import_blocks(read, FILES) + gap + body


def list_rows(rows: list) -> str:
    """Rows of a list as lines of code; long strings are broken where they have spaces."""
    text = ""
    for row in rows:
        shown = "    " + pprint.pformat(row, width=112, sort_dicts=False).replace("\n", "\n    ") + ","
        text += "".join(f"{marked_long(line)}\n" for line in shown.split("\n"))
    return text


def marked_long(line: str, most: int = 120) -> str:
    """A line of code, with a mark for linters if it is longer than `most`."""
    return f"{line}  # noqa: E501" if len(line) > most else line


def names_in(texts: list[str]) -> set[str]:
    """Names that a reward must not have: what the texts define or import, and Python's own."""
    return {*dir(builtins)} | {x for text in texts for node in ast.parse(text).body for x in bound_names(node)}


def contracts_of(args) -> tuple[list[str], list[str]]:
    """(names of the functions that the contracts asked for need, names of what tests them)."""
    trl, verl = {args.name: "by_trl"}, {"compute_score": "by_verl"}
    tests = {"trl": trl, "verl": verl}.get(args.target, trl | verl)
    return [*tests], [*tests.values()]


def head_of(args, about: str, gold: str, columns: str, needs: str = "", end: str = "") -> str:
    """Shebang, dependencies, and a docstring that says how each contract finds the reward, and what it reads."""
    file, notes = Path(args.output).name, [about, ""]
    if args.target != "verl":
        notes.append(f"TRL, and trainers with its contract: {file}:{args.name}")
        notes += ["    columns: " + "; ".join(filter(None, [gold, columns]))] if gold or columns else []
    if args.target != "trl":
        notes.append(VERL_NOTE.format(file=file))
        sources = {"ground_truth is": gold, "extra_info has": columns}
        read = [f"{source} {names}" for source, names in sources.items() if names]
        notes += ["    " + "; ".join(read)] if read else []
    dependencies = f"# dependencies = [{needs}]\n" if needs else ""
    header = f'#!/usr/bin/env python3\n# /// script\n# requires-python = ">=3.11"\n{dependencies}# ///\n'
    return f'{header}"""' + "\n".join(notes) + f'\n{end}"""\n\n'


def check_column(name: str, where: str) -> None:
    """Raise UserError unless a name can be a column, and an argument of a function."""
    fine = name.isidentifier() and not keyword.iskeyword(name) and name not in {*RESERVED, "score"}
    nested = f"; try data_loader.py FILE --map answer={name}, then the column answer" if "." in name else ""
    expected = "expected a Python name that neither trainers nor the file uses"
    need(fine, f"got {where} with the column {name!r}; {expected}{nested}")
