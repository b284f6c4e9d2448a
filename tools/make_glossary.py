#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Write the report's glossary, src/programs/report/glossary.json, from the tables of references/metrics.md.

A standalone script cannot read other files of the bundle, so it contains the meanings of the metrics as text.

    python tools/make_glossary.py                # then make build
    python tools/make_glossary.py --check        # exit 1 if the file is not what references/metrics.md gives
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TARGET = ROOT / "references" / "metrics.md", ROOT / "src" / "programs" / "report" / "glossary.json"


def glossary(text: str) -> str:
    """The page's tables as JSON: {metric: {group, meaning, healthy, warning}}."""
    entries = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        group = part.partition("\n")[0]
        for key, cells in re.findall(r"^\| `([^`]+)` \| (.*) \|$", part, re.MULTILINE):
            meaning, healthy, warning = (re.sub(r"[`*]", "", cell).removesuffix("–") for cell in cells.split(" | ")[:3])
            entries[key] = {"group": group, "meaning": meaning, "healthy": healthy, "warning": warning}
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


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
