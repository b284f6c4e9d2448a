#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["nbformat"]
# ///
"""Make assets/notebook_template.ipynb from the plain Python of tools/notebook_cells.py.

The notebook has no outputs, and its cell ids are the names of the cells, so the same source gives the same bytes.

Deliberately left out: running it (tests do, or `jupyter execute`), and reading a notebook back into Python.

    python tools/make_notebook.py             # rewrites the notebook
    python tools/make_notebook.py --check     # exit 1 where it is not what its source makes
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tools" / "notebook_cells.py"
TARGET = ROOT / "assets" / "notebook_template.ipynb"
CELL = re.compile(r"^# %% (?P<text>\[markdown\] )?(?P<name>[\w-]+)(?: \[(?P<tag>\w+)\])?\n", re.MULTILINE)


def make_notebook(source: str):
    """The notebook of a source text.

    Raises:
        ValueError: a name occurs twice, or a text cell has a line that is not a comment.
    """
    import nbformat

    cells, heads = [], list(CELL.finditer(source))
    for head, after in zip(heads, [*heads[1:], None], strict=True):
        body = source[head.end() : after.start() if after else None].strip("\n")
        if head["text"]:
            wrong = [line for line in body.split("\n") if not line.startswith("#")]
            if wrong:
                raise ValueError(f"cell {head['name']}: got {wrong[0]!r}; expected lines that begin with #")
            body = "\n".join(line[1:].removeprefix(" ") for line in body.split("\n"))
        make = nbformat.v4.new_markdown_cell if head["text"] else nbformat.v4.new_code_cell
        cells.append(make(body, id=head["name"], metadata={"tags": [head["tag"]]} if head["tag"] else {}))
    if len({cell.id for cell in cells}) < len(cells):
        raise ValueError(f"got the cells {[cell.id for cell in cells]}; expected each name once")
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    notebook.nbformat_minor = 5  # the first with cell ids
    nbformat.validate(notebook)
    return notebook


def notebook_text(source: str) -> str:
    """The notebook's file."""
    import nbformat

    return nbformat.writes(make_notebook(source)) + "\n"


def main() -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the notebook is another")
    args = parser.parse_args()
    text = notebook_text(SOURCE.read_text(encoding="utf-8"))
    if args.check:
        same = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
        print("the notebook is what its source makes" if same else "it differs; try python tools/make_notebook.py")
        return int(not same)
    TARGET.write_text(text, encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
