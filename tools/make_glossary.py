#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Write the report's glossary, src/programs/report/glossary.txt, from the tables of references/metrics.md.

A standalone script cannot read another file of the bundle, so what a metric means stands in it as text.

    python tools/make_glossary.py                # then make build
    python tools/make_glossary.py --check        # exit 1 if the file is not what references/metrics.md gives
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TARGET = ROOT / "references" / "metrics.md", ROOT / "src" / "programs" / "report" / "glossary.txt"
MARKS = ("{key}: ", "  + ", "  ! ")  # before meaning, healthy, warning


def entries(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """(group, metric, [meaning, healthy, warning]) of each line of the page's tables."""
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        for key, cells in re.findall(r"^\| `([^`]+)` \| (.*) \|$", part, re.MULTILINE):
            yield part.split("\n")[0], key, [re.sub(r"[`*]", "", cell) for cell in cells.split(" | ")[:3]]


def glossary(text: str) -> str:
    """Group, then each metric: its meaning, + what is healthy, ! what is a warning."""
    lines, group = [], ""
    for title, key, cells in entries(text):
        lines += [f"# {title}"] if title != group else []
        group = title
        for mark, cell in zip(MARKS, cells, strict=True):
            if cell != "–" or mark is MARKS[0]:
                indents = {"initial_indent": mark.format(key=key), "subsequent_indent": "    "}
                lines += textwrap.wrap(cell, 118, **indents, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the file differs")
    args = parser.parse_args()
    text, name = glossary(SOURCE.read_text(encoding="utf-8")), TARGET.relative_to(ROOT)
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
        print(f"{name} is what {SOURCE.relative_to(ROOT)} gives")
    elif args.check:
        print(f"{name}: got another text; expected what {SOURCE.relative_to(ROOT)} gives; try make build")
        return 1
    else:
        TARGET.write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
