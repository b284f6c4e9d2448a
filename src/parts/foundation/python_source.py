"""Parses Python source in a process with threads."""

import ast


def parse_python(source: str, name: str = "<unknown>", mode: str = "exec") -> ast.AST:
    """`ast.parse`, again where another thread disturbs it: CPython 3.11 counts the depth of all threads in one place,
    and then raises a SystemError for a sound source. A lock would hang in a process forked while it is held."""
    for _ in range(100):
        try:
            return ast.parse(source, name, mode)
        except SystemError:
            continue
    return ast.parse(source, name, mode)
