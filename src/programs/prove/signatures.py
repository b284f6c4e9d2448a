"""Callables of a file as functions of named inputs: of methods, compiled code, settings and batches."""

import ast
import dataclasses
import functools
import inspect
import textwrap

from parts.foundation.processes import torch
from programs.prove.recognition import role_of

EMPTY, KEYWORD = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY


class Fields(dict):
    """A dictionary whose entries are also attributes."""

    __getattr__ = dict.get


def fields_read(code, name: str) -> dict:
    """{key or attribute that a function reads of its parameter `name`: the default that it gives, or EMPTY}."""
    fields = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))):
        match node:
            case ast.Call(ast.Attribute(ast.Name(owner), "get"), [ast.Constant(str(key)), *rest]) if owner == name:
                fields[key] = rest[0].value if rest and isinstance(rest[0], ast.Constant) else None
            case ast.Subscript(ast.Name(owner), ast.Constant(str(key))) if owner == name:
                fields[key] = EMPTY
            case ast.Attribute(ast.Name(owner), key) if owner == name and key != "get":
                fields.setdefault(key, EMPTY)
    return fields if any(map(role_of, fields)) else {}


def parts_of(p: inspect.Parameter, code) -> tuple:
    """(What makes a parameter of several inputs, {their names: defaults}); ({} if it is an input itself)."""
    is_made = dataclasses.is_dataclass(type(p.default))
    kind = type(p.default) if is_made else getattr(code, "__globals__", {}).get(p.annotation, p.annotation)
    if not dataclasses.is_dataclass(kind):
        return Fields, {} if role_of(p.name) or p.default is not EMPTY else fields_read(code, p.name)
    read, parts = fields_read(code, p.name), {x: y.default for x, y in inspect.signature(kind).parameters.items()}
    parts = {name: x for name, x in parts.items() if name in read or x is EMPTY or not read}
    if not is_made:
        return kind, parts
    return functools.partial(dataclasses.replace, p.default), {name: getattr(p.default, name) for name in parts}


def scripted_parameters(function) -> list[inspect.Parameter]:
    """The parameters of a function of torch.jit.script, which has no signature."""
    defaults = {x.name: x.default_value if x.has_default_value() else EMPTY for x in function.schema.arguments}
    return [inspect.Parameter(name, KEYWORD, default=value) for name, value in defaults.items()]


def unfolded(function, code=None):
    """A function that takes the fields of its settings and batches as parameters; `code`: where it reads them."""
    code = inspect.unwrap(code or function)
    try:
        scripted = isinstance(function, torch.jit.ScriptFunction)
        taken = scripted_parameters(function) if scripted else inspect.signature(function).parameters.values()
        taken = [p for p in taken if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        held = {p.name: parts_of(p, code) for p in taken}
    except (OSError, TypeError, ValueError, SyntaxError):  # no signature or no source
        return function

    def called(**given):
        for name, (make, fields) in held.items():
            if fields:
                given[name] = make(**{x: given.pop(x) for x in fields if x in given})
        return function(**given)

    defaults = {p.name: p.default for p in taken if not held[p.name][1]}
    defaults |= {name: value for _, fields in held.values() for name, value in fields.items()}
    called.__signature__ = inspect.Signature([inspect.Parameter(n, KEYWORD, default=x) for n, x in defaults.items()])
    return called


def callable_of(module, name: str):
    """A module's function, or a method as a function that also takes its class's parameters; None if not callable."""
    owner, _, method = name.partition(".")
    thing = getattr(module, owner, None)
    function = getattr(thing, method, None) if method else thing
    if not method or not inspect.isfunction(function) or isinstance(vars(thing).get(method), staticmethod):
        return unfolded(function) if callable(function) else None
    make, of_method = unfolded(thing, thing.__init__), unfolded(functools.partial(function, None), function)
    try:
        of_init, own = (inspect.signature(x).parameters for x in (make, of_method))
    except (TypeError, ValueError):
        return function

    def called(**given):
        instance = make(**{x: given.pop(x) for x in of_init.keys() - own.keys() & {*given}})
        return unfolded(functools.partial(function, instance), function)(**given)

    called.__signature__ = inspect.Signature([*{**of_init, **own}.values()])
    return called
