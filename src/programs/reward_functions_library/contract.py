"""The contract of every reward function: inputs, options, and valid values."""

import functools
import inspect
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor

from parts.data.stated_answers import without_end_tokens
from parts.foundation.bundle import sibling
from parts.rewards.schema_examples import checker_of


def _number_between(low=-math.inf, high=math.inf, *, above=False, below=False, whole=False):
    """A check whether a value is a finite number in a range; `above` and `below` exclude its ends."""

    def check(value) -> bool:
        kinds = (int,) if whole else (int, float)
        value = value.item() if hasattr(value, "item") and not isinstance(value, str) else value  # numpy
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return False
        return low <= value <= high and not (above and value == low) and not (below and value == high)

    return check


def _is_pair(value) -> bool:
    """Whether a value is (low, high), low ≤ high."""
    numbers = isinstance(value, list | tuple) and len(value) == 2 and all(map(_number_between(), value))
    return numbers and value[0] <= value[1]


def _are_tags(value) -> bool:
    """Whether a value is a list of distinct tag names."""
    names = isinstance(value, list | tuple) and value and all(isinstance(tag, str) for tag in value)
    return bool(names) and len({*value}) == len(value) and all(re.fullmatch(r"[^\s<>/]+", tag) for tag in value)


_OPTIONS = {  # {option, or function.option: (what is accepted, the check)}
    **dict.fromkeys(("ideal", "maximum", "max_length"), ("a number above 0", _number_between(0, above=True))),
    **dict.fromkeys(("max_characters", "ngram_size"), ("a whole number from 1", _number_between(1, whole=True))),
    **dict.fromkeys(("ignore_case", "prefilled"), ("True or False", lambda value: isinstance(value, bool))),
    **dict.fromkeys(("correct", "wrong"), ("(low, high), low not above high", _is_pair)),
    "unit": ("words, characters or tokens", lambda value: value in ("words", "characters", "tokens")),
    "fuzzy_match.unit": ("word or character", lambda value: value in ("word", "character")),
    "rel_tol": ("a number from 0 to below 1", _number_between(0, 1, below=True)),
    "abs_tol": ("a number from 0", _number_between(0)),
    "mode": ("all or fraction", lambda value: value in ("all", "fraction")),
    "tags": ("a list of different names without < and >", _are_tags),
    "code_block_format.language": ("a word", lambda value: isinstance(value, str) and not re.search(r"[\s`]", value)),
    "cache": ("a number from 0 to max_length", _number_between(0)),
    "exceeded": ("None or a number", lambda value: value is None or _number_between()(value)),
    "max_penalty": ("a number of 0 or below", _number_between(high=0)),
    "threshold": ("a number above 0, up to 1", _number_between(0, 1, above=True)),
    "json_schema.schema": ("a JSON Schema, as a dict or as text", lambda value: _is_schema(value)),
}
_TOGETHER = (  # options of one function that limit each other: (lower, upper, how they are compared)
    ("cache", "max_length", lambda low, high: low <= high),
    ("wrong", "correct", lambda low, high: low[1] <= high[0]),
    ("exceeded", "correct", lambda low, high: low is None or low <= high[0]),
)


def _check_options(function, options: dict) -> None:
    """Raise ValueError for an unusable option value; it says what is accepted."""
    name = function.__name__
    defaults = {p.name: p.default for p in inspect.signature(function.core).parameters.values()}
    for option, value in options.items():
        expected, fits = _OPTIONS.get(f"{name}.{option}") or _OPTIONS.get(option) or ("", None)
        if fits is not None and not fits(value):
            default = defaults[option]
            tried = "" if default in (None, inspect.Parameter.empty) else f"; try {option}={default!r}"
            raise ValueError(f"{name}: got {option}={value!r}; expected {expected}{tried}")
    for lower, upper, fits in _TOGETHER if options else ():
        if {lower, upper} & options.keys() and {lower, upper} <= defaults.keys():
            low, high = (options.get(option, defaults[option]) for option in (lower, upper))
            if not fits(low, high):
                got, given = f"{lower}={low!r} with {upper}={high!r}", upper if upper in options else lower
                other = lower if given == upper else upper
                raise ValueError(f"{name}: got {got}; expected {lower} to be at most {upper}; try setting {other} too")


@functools.lru_cache(256)
def _validator(schema: str):
    """The cached validator of a JSON Schema, given as text."""
    return checker_of(json.loads(schema))


def _is_schema(schema) -> bool:
    """Whether a value is a valid JSON Schema; True without jsonschema, which then fails on the first text."""
    try:
        _validator(schema if isinstance(schema, str) else json.dumps(schema))
    except Exception as error:  # whatever a library makes of any schema
        return isinstance(error, ImportError)
    return True


def completion_text(completion, left_out=("tool", "user", "system")) -> str:
    """Return the text of a string or of chat messages (contents of other roles), without its end tokens."""
    text = completion or ""
    if not isinstance(text, str):
        messages = [text] if isinstance(text, dict) else text
        contents = [message.get("content") or "" for message in messages if message.get("role") not in left_out]
        text = "".join(c if isinstance(c, str) else "".join(part.get("text") or "" for part in c) for c in contents)
    return without_end_tokens(text)


def _evaluate(function, options: dict, prompts, completions, positional, given) -> list[float | None]:
    """Score a batch by the per-sample core; options given in a call apply, but lists among them are columns."""
    if function.grades and completions:
        sibling("math_grader").start_worker()  # in parallel with what follows
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
        return [None if score is None else float(score) for score in scores]


def _signature(columns: dict) -> inspect.Signature:
    """(prompts, completions, columns, **kwargs), for trainers that inspect it; columns: {name: is it required}."""
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
        self.__signature__ = _signature({c: r for c, r in function.columns.items() if c not in options})

    def __call__(self, prompts, completions, *positional, **given) -> list[float | None]:
        return _evaluate(self.function, self.options, prompts, completions, positional, given)


def reward(core=None, *, one_of=(), threads=1, grades=False):
    """Turn `core(text, column, ..., *, option=...) -> float | None` into a reward function over a batch.

    Columns without a default are required, and one of `one_of`; the column `prompt` is the row's prompt. `grades`: the
    core uses math_grader.py.
    """
    if core is None:
        return functools.partial(reward, one_of=one_of, threads=threads, grades=grades)

    @functools.wraps(core)
    def function(prompts, completions, *positional, **given):
        return _evaluate(function, {}, prompts, completions, positional, given)

    parameters = list(inspect.signature(core).parameters.values())[1:]
    function.core, function.one_of, function.threads = core, one_of, threads
    function.grades = grades
    function.columns = {p.name: p.default is p.empty for p in parameters if p.kind is not p.KEYWORD_ONLY}
    function.options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    function.__signature__, function.configure = _signature(function.columns), functools.partial(Configured, function)
    return function
