"""Load texts from files beside their room, such as a page's style; a built script has them as literals."""

import re
import sys
from pathlib import Path


def file_text(name: str) -> str:
    """The text of a file in the caller's folder. Use only as `NAME = file_text("page.html")` at the top of a room."""
    return (Path(sys._getframe(1).f_globals["__file__"]).parent / name).read_text(encoding="utf-8")


def with_values(text: str, **values) -> str:
    """Replace `{name}` in a text by its value; `"{name}"` loses its quotes, which keep a Python template valid."""
    return re.sub(r'("?)\{(\w+)\}\1', lambda match: str(values.get(match[2], match[0])), text)
