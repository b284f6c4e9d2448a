#!/usr/bin/env python3
"""Run diagnose.py on figures that people posted and whose cause was found later.

    python benchmarks/posted_logs.py

benchmarks/posted/ has the figures of each post in their original form, as far as a stored copy shows them. posts.json
has the cause that the post's thread, answer or code names. Only the log is read.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from planted.score import causes, said_of

POSTED = Path(__file__).resolve().parent / "posted"


def table() -> list[str]:
    """A line for every post: its known cause, diagnose.py's answer, and whether that is right."""
    lines = [
        "| post | steps | what the thread found | its cause | `diagnose.py` says | result |",
        "|---|---|---|---|---|---|",
    ]
    for post in json.loads((POSTED / "posts.json").read_text(encoding="utf-8")):
        columns = ["--columns", *post["columns"]] if "columns" in post else []
        said = said_of([post["log"], *columns], POSTED)
        steps = said.get("steps", [0, 0])
        named = ", ".join(causes(said)) or "–"
        wanted = [] if post["found"] == "healthy" else [post["found"]]
        hit = causes(said)[:1] == wanted and said["verdict"] != "unreadable"
        verdict = f"{said['verdict']}; {named}"
        words = (post["post"], f"{steps[0]}–{steps[1]}", post["what"], post["found"], verdict, "hit" if hit else "miss")
        lines.append(f"| {' | '.join(words)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
