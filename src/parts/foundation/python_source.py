"""Parses Python source in a process with threads."""

import ast


def parse_python(source: str, name: str = "<unknown>", mode: str = "exec") -> ast.AST:
    """`ast.parse`, repeated on SystemError: CPython 3.11 counts the depth of all threads together, so that another
    thread can make it fail on valid source. A lock would hang in a process that is forked while it is held."""
    for _ in range(100):
        try:
            return ast.parse(source, name, mode)
        except SystemError:
            continue
    return ast.parse(source, name, mode)
