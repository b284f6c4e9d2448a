"""Putting texts together."""

import pprint
import re
from pathlib import Path

from programs.create_reward_template.recipes import IMPORTS, INSTALLED


def put_in(text: str, **words) -> str:
    """Put words in the places @WORD@ of a text."""
    for name, value in words.items():
        text = text.replace(f"@{name.upper()}@", value)
    return text


class Words(str):
    """A text of n words that is shown as an expression."""

    def __repr__(self) -> str:
        return f"'a ' * {len(self) // 2}"


def quoted(text: str) -> str:
    """A string literal, in double quotes where that is plain."""
    return f'"{repr(text)[1:-1]}"' if not {*text} & {"'", '"'} else repr(text)


def listing(name: str, about: str, rows: list) -> str:
    """`NAME = [...]` with a row a line; long strings are broken where they have spaces."""
    lines = []
    for row in rows:
        text = "    " + pprint.pformat(row, width=112, sort_dicts=False).replace("\n", "\n    ") + ","
        lines += [line + "  # noqa: E501" * (len(line) > 120) for line in text.split("\n")]
    return f"\n\n{name} = [  # {about}\n" + "\n".join(lines) + "\n]\n"


def with_imports(head: str, body: str) -> str:
    """The whole file: head, the imports that the body needs, body."""
    needed = [line for sign, line in IMPORTS if re.search(sign, body)]
    installed = [line for sign, line in INSTALLED if re.search(sign, body)]
    plain = sorted(line for line in needed if line.startswith("import"))
    from_lines = [line for line in needed if line.startswith("from")]
    return re.sub(
        r"\n{4,}",
        "\n\n\n",
        head + "\n".join([*plain, *from_lines, *[""][: len(installed)], *installed]) + "\n" + body.rstrip("\n") + "\n",
    )


def head_of(about: str, notes: list[str], needs: str = "") -> str:
    """Shebang, dependencies and docstring."""
    dependencies = f"# dependencies = [{needs}]\n" * bool(needs)
    header = f'#!/usr/bin/env python3\n# /// script\n# requires-python = ">=3.11"\n{dependencies}# ///\n'
    return f'{header}"""{about}\n\n' + "\n".join(notes) + '\n"""\n\n'


def usage_notes(args, trl_name: str, gold: str, columns: str) -> list[str]:
    """How each contract finds the reward, and what it reads."""
    file, notes = Path(args.output or "my_reward.py").name, []
    if args.target != "verl":
        notes += [f"TRL, and trainers with its contract: {file}:{trl_name}"]
        notes += ["    columns: " + "; ".join(filter(None, [gold, columns]))] * bool(gold or columns)
    if args.target != "trl":
        notes += [f"verl: reward.custom_reward_function.path={file} reward.custom_reward_function.name=compute_score"]
        read = [f"ground_truth is {gold}"] * bool(gold) + [f"extra_info has {columns}"] * bool(columns)
        notes += ["    " + "; ".join(read)] * bool(read)
    return [*notes, "", f"    python {file} --test"]
