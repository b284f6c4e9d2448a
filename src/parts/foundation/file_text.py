"""Texts that are files beside their room, such as a page's style; a built script has them as literals."""

import sys
from pathlib import Path


def file_text(name: str) -> str:
    """Text of a file in the caller's folder; only as `NAME = file_text("page.html")` at the top of a room."""
    return (Path(sys._getframe(1).f_globals["__file__"]).parent / name).read_text(encoding="utf-8")
