#!/usr/bin/env python3
"""Check Markdown (line length, banned phrases, abbreviations that README.md does not expand) and messages in src/.

python tools/check_prose.py          # exit 1 and FILE:LINE for each finding
python tools/check_prose.py --fix    # wraps the paragraphs and list items that have a long line
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 120
SKIPPED = {"evals/README.md"}
# Banned wordings; "Style" in CONTRIBUTING.md shows what to write instead.
BANNED = re.compile(
    r"\b(what came of|bears? no|(is|are) no \w+ that|of which \w+ one|helps nobody|see to it|before all that|put behind"
    r"|trains? nothing|so are no|left to prove|no need to read|without a word|goes on as if|as it came|what is said of"
    r"|anew|where it lies|rules of the house|runs of your own|speaks? TRL's|by the way of)\b",
    re.IGNORECASE,
)
# Messages say what to try by a noun, a command or a gerund: "; try leaving --x out", not "; try to leave it out".
MESSAGE = re.compile(r"\btry to [a-z]+|; try (it|without)\b(?= *[\"'])")
# Names, and abbreviations that every reader of README.md knows; any other stands beside its expansion once.
KNOWN = set(
    "AGENTS CLAUDE README SKILL CONTRIBUTING CHANGELOG CPU GPU CUDA NCCL RL PPO GRPO DAPO RLOO REINFORCE GSPO CISPO "
    "SAPO GMPO DPPO GLM TRL JSON JSONL CSV YAML HTML PEP GB SIGTERM WSL LFM RWKV GSM".split()
)
NOT_PROSE = re.compile(r"\s*(```|~~~|\||#|!\[|<|---|$)|    ")  # fences, tables, headings, pictures, HTML, blank, code
MARK = re.compile(r"(\s*([-*]|\d+\.) +|> ?| *)")


def blocks(text: str) -> list[tuple[int, list[str], bool]]:
    """The text as (number of the first line, lines, prose?); prose is one paragraph or one list item."""
    result, fenced, previous = [], False, False
    for number, line in enumerate(text.split("\n"), 1):
        fence = line.lstrip().startswith(("```", "~~~"))
        continues = previous and line.startswith("    ") and line.strip()
        prose = not fenced and not fence and (continues or not NOT_PROSE.match(line))
        if prose and previous and not MARK.match(line)[1].strip():
            result[-1][1].append(line)
        else:
            result.append((number, [line], prose))
        fenced, previous = fenced ^ fence, prose
    return result


def wrapped(lines: list[str]) -> list[str]:
    """The lines of a paragraph or list item, wrapped at the width."""
    if max(map(len, lines)) <= WIDTH:
        return lines
    mark = MARK.match(lines[0])[1]
    words = " ".join(line.strip() for line in lines).removeprefix(mark.strip()).strip()
    rest = mark if mark.startswith(">") else " " * len(mark)
    return textwrap.TextWrapper(WIDTH, mark, rest, break_long_words=False, break_on_hyphens=False).wrap(words)


def findings(name: str, text: str) -> list[str]:
    """Violations of the rules, as FILE:LINE: got; expected."""
    result = []
    header = text.partition("\n---\n")[0].count("\n") + 1 if text.startswith("---\n") else 0  # YAML: one line a key
    for first, lines, _ in (block for block in blocks(text) if block[2] and block[0] > header):
        long = [number for number, line in enumerate(lines, first) if len(line) > WIDTH]
        result += [f"{name}:{number}: got a line over {WIDTH} characters; try --fix" for number in long]
        for match in BANNED.finditer(re.sub(r"`[^`]*`", "``", " ".join(line.strip() for line in lines))):
            result.append(f"{name}:{first}: got {match[0]!r}; expected plain words (Style in CONTRIBUTING.md)")
    if name == "README.md":
        words = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)
        for short in sorted(set(re.findall(r"\b[A-Z]{2,}(?=s?\b)", words)) - KNOWN):
            if not re.search(rf"\({short}s?\)|\b{short}s? \(", words):
                result.append(f"{name}: got {short} alone; expected its expansion beside it, in brackets")
    return result


def main() -> int:
    """Command line entry; returns the exit code."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    problems = []
    for name in sorted(set(listed.stdout.split()) - SKIPPED):
        text = (ROOT / name).read_text(encoding="utf-8")
        if "--fix" in sys.argv:
            header, marker, body = text.rpartition("\n---\n") if text.startswith("---\n") else ("", "", text)
            lines = [line for _, lines, prose in blocks(body) for line in (wrapped(lines) if prose else lines)]
            text = header + marker + "\n".join(lines)
            (ROOT / name).write_text(text, encoding="utf-8")
        problems += findings(name, text)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := MESSAGE.search(line):
                problems.append(
                    f"{path.relative_to(ROOT)}:{number}: got {match[0]!r}; expected what to try in plain words"
                )
    print("\n".join(problems) or "the Markdown files and messages keep to the style")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
