#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["jinja2>=3.1"]
# ///
"""Check the syntax of the texts in src/ other than Python: .css, .html with Jinja, shell by bash, .js by node.

python tools/check_texts.py        # exit 1 where one is wrong
"""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import jinja2

ROOT = Path(__file__).resolve().parent.parent
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Tags(HTMLParser):
    """Finds the first tag that is not closed, or closed without being open."""

    def __init__(self):
        super().__init__()
        self.open, self.flaw = [], ""

    def handle_starttag(self, tag, attrs):
        """Open an element."""
        if tag not in VOID:
            self.open.append((tag, self.getpos()[0]))

    def handle_endtag(self, tag):
        """Close the innermost element."""
        name, line = self.open.pop() if self.open else ("nothing", 0)
        if name != tag and not self.flaw:
            self.flaw = f"line {self.getpos()[0]}: got </{tag}>; expected </{name}> of line {line}"


def html_flaw(path: Path) -> str:
    """The first fault in a Jinja template, or in the HTML tags of the text without its Jinja parts; "" if none."""
    text = path.read_text(encoding="utf-8")
    try:
        jinja2.Environment().parse(text)
    except jinja2.TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    tags = Tags()
    tags.feed(re.sub(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL))
    left = [f"line {line}: <{tag}> is not closed" for tag, line in tags.open]
    return tags.flaw or next(iter(left), "")


def css_flaw(path: Path) -> str:
    """The first fault in CSS: unbalanced braces, or a declaration without a colon; "" if none."""
    depth = 0
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for match in re.finditer(r"([^{};]*)([{};])", text):
        line = text.count("\n", 0, match.end()) + 1
        head, mark = match[1].strip(), match[2]
        if mark != "{" and head and ":" not in head:
            return f"line {line}: got {head!r}; expected property: value"
        depth += (mark == "{") - (mark == "}")
        if depth < 0:
            return f"line {line}: a }} too many"
    return "a { is not closed" if depth else ""


def js_flaw(path: Path) -> str:
    """node's message about a script's syntax; "" without node."""
    if not shutil.which("node"):
        return ""
    done = subprocess.run(["node", "--check", path], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def shell_flaw(path: Path) -> str:
    """bash's message about a script's syntax."""
    return subprocess.run(["bash", "-n", path], capture_output=True, text=True).stderr.strip()


CHECKS = {".html": html_flaw, ".css": css_flaw, ".js": js_flaw, ".sh": shell_flaw, ".sbatch": shell_flaw}


def main(folder: Path = ROOT / "src") -> int:
    """Command line entry; returns the exit code."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in CHECKS)
    flaws = [f"{path.relative_to(folder.parent)}: {flaw}" for path in paths if (flaw := CHECKS[path.suffix](path))]
    without = "" if shutil.which("node") else "; .js not checked: node is not installed"
    print("\n".join(flaws) or f"{len(paths)} texts of src/ have no fault in their syntax{without}")
    return int(bool(flaws))


if __name__ == "__main__":
    sys.exit(main())
