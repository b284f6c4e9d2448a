"""What every reward function is and takes."""

import functools
import inspect
from concurrent.futures import ThreadPoolExecutor

from programs.reward_functions_library.neighbour_files import _load
from programs.reward_functions_library.options import _check_options


def completion_text(completion, left_out=("tool", "user", "system")) -> str:
    """Return the text of a completion: a string, chat messages (contents joined, without those roles), or None."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    messages = [completion] if isinstance(completion, dict) else completion
    contents = [message.get("content") or "" for message in messages if message.get("role") not in left_out]
    return "".join(c if isinstance(c, str) else "".join(part.get("text") or "" for part in c) for c in contents)


def _evaluate(function, options: dict, prompts, completions, positional, given) -> list[float | None]:
    """Score a batch by the per-sample core; options in a call count unless they are lists: those are columns."""
    if function.grades and completions:
        _load("math_grader").start_worker()  # beside what follows
    names = [column for column in function.columns if column != "prompt"][: len(positional)]
    given = {**dict(zip(names, positional, strict=True)), **given, "prompt": prompts}
    options = {k: v for k, v in given.items() if k in function.options and not isinstance(v, list)} | options
    _check_options(function, options)
    name, have, need = function.__name__, {*given, *options}, {c for c in function.columns if function.columns[c]}
    if need - have or (function.one_of and not have & {*function.one_of}):
        got, expected = ", ".join(sorted(have - {"prompt"})), ", ".join(need) or " or ".join(function.one_of)
        raise TypeError(f"{name}: got the columns {got or 'none'}; expected {expected} too; try renaming a column")
    rows = [{"text": completion_text(completion), **options} for completion in completions]
    for column in (c for c in function.columns if c not in options):
        values = [None] * len(rows) if given.get(column) is None else given[column]
        values = values.tolist() if hasattr(values, "tolist") else values
        if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != len(rows):
            got = f"{name}: got {column} = {type(values).__name__} {str(values)[:60]!r}"
            raise ValueError(f"{got}; expected a list of {len(rows)}; try {name}.configure(...) for one value")
        for row, value in zip(rows, values, strict=True):
            row[column] = value.tolist() if hasattr(value, "tolist") else value  # numpy, from data frames
    with ThreadPoolExecutor(function.threads) as pool:  # starts no thread before its first job
        scores = (pool.map if function.threads > 1 else map)(lambda row: function.core(**row), rows)
        scores = function.across(list(scores), prompts) if function.across else scores
        return [None if score is None else float(score) for score in scores]


def _signature(columns: dict) -> inspect.Signature:
    """(prompts, completions, columns, **kwargs), for trainers that look; columns are {name: is it required}."""
    named = {"prompts": True, "completions": True} | {c: r for c, r in columns.items() if c != "prompt"}
    parameters = [inspect.Parameter(c, 1, default=inspect.Parameter.empty if r else None) for c, r in named.items()]
    return inspect.Signature([*sorted(parameters, key=lambda p: p.default is None), inspect.Parameter("kwargs", 4)])


class Configured:
    """A reward function with some options set: same contract, picklable, with a stable `__name__`."""

    def __init__(self, function, name=None, **options):
        if unknown := {*options} - {*function.options, *function.columns}:
            raise TypeError(f"{function.__name__}: got {unknown}; expected {[*function.options, *function.columns]}")
        _check_options(function, options)
        self.function, self.options, self.__name__ = function, options, name or function.__name__
        self.needs_group = function.needs_group
        self.__signature__ = _signature({c: r for c, r in function.columns.items() if c not in options})

    def __call__(self, prompts, completions, *positional, **given) -> list[float | None]:
        return _evaluate(self.function, self.options, prompts, completions, positional, given)


def reward(core=None, *, one_of=(), threads=1, grades=False, across=None):
    """Turn `core(text, column, ..., *, option=...) -> float | None` into a reward function over a batch.

    Columns without a default are required; of `one_of`, one is; the column `prompt` is that row's prompt. `grades`: it
    uses math_grader.py. `across(values, prompts)` makes the scores of what the core returns, where they depend on the
    other completions of a prompt; such a function has `needs_group` true, and all of a group must be in one call.
    """
    if core is None:
        return functools.partial(reward, one_of=one_of, threads=threads, grades=grades, across=across)

    @functools.wraps(core)
    def function(prompts, completions, *positional, **given):
        return _evaluate(function, {}, prompts, completions, positional, given)

    parameters = list(inspect.signature(core).parameters.values())[1:]
    function.core, function.one_of, function.threads = core, one_of, threads
    function.grades, function.across, function.needs_group = grades, across, across is not None
    function.columns = {p.name: p.default is p.empty for p in parameters if p.kind is not p.KEYWORD_ONLY}
    function.options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    function.__signature__, function.configure = _signature(function.columns), functools.partial(Configured, function)
    return function
