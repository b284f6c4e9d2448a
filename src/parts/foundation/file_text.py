"""Texts that are files beside their room, such as a page's style; a built script has them as literals."""

import re
import sys
from pathlib import Path


def file_text(name: str) -> str:
    """Text of a file in the caller's folder; only as `NAME = file_text("page.html")` at the top of a room."""
    return (Path(sys._getframe(1).f_globals["__file__"]).parent / name).read_text(encoding="utf-8")


def with_values(text: str, **values) -> str:
    """Text with the values in the places of `{name}`, and of `"{name}"` with its quotes, which keeps Python valid."""
    return re.sub(r'("?)\{(\w+)\}\1', lambda match: str(values.get(match[2], match[0])), text)
