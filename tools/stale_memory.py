#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
"""Write the table of silent changes into references/grpo_trl.md, from the tables of scripts/migrate.py.

python tools/stale_memory.py            # --check compares
"""

import json
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "src" / "programs" / "migrate"
PAGE = ROOT / "references" / "grpo_trl.md"
BEGIN, END = "<!-- written by tools/stale_memory.py -->\n", "<!-- until here -->"


def rows() -> list[tuple[str, str, str, str]]:
    """(Version, what, before, since then) of GRPOConfig's changed defaults and of changes that no signature shows."""
    changes = json.loads((TABLES / "trl_changes.json").read_text(encoding="utf-8"))
    result = []
    for name, history in changes["configs"]["GRPOConfig"].items():
        for (_, before), (since, after) in pairwise(history.items()):
            if before is None or after is None:
                continue  # an unused option, or a deprecation
            if isinstance(after, dict) and "gone" in after:
                result.append((f"TRL {since}", f"`{name}`", f"`{before}`", "gone"))
            else:
                result.append((f"TRL {since}", f"`{name}`", f"`{before}`", f"`{after}`"))
    for name, package in (("by_hand.json", "TRL "), ("by_hand_verl.json", "verl ")):
        rules = json.loads((TABLES / name).read_text(encoding="utf-8"))
        for entry in [entry for entry in rules.values() if "what" in entry]:
            since = entry.get("since") or entry["before"]
            setting = entry.get("as_before") or ", ".join(f"{k}={v}" for k, v in entry.get("set", {}).items())
            now = entry["otherwise"] + (f"; as before: `{setting}`" if setting else "; no setting")
            result.append((since if " " in since else package + since, entry["what"], entry["why"], now))
    return sorted(result, key=lambda row: (row[0].split()[0] != "TRL", row[0].split()[0], version(row[0])))


def version(text: str) -> list[int]:
    return [int(part) for part in text.split()[1].split(".")]


def main(argv: list[str]) -> int:
    """Write the table, or compare it."""
    table = "| Since | What | Before | Since then |\n|---|---|---|---|\n"
    table += "".join(f"| {' | '.join(row)} |\n" for row in rows())
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    text = head + BEGIN + table + END + rest.split(END, 1)[1]
    if argv == ["--check"]:
        return int(text != page)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
