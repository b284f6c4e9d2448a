"""Options of rewards, and which values make sense."""

import functools
import inspect
import json
import math
import re

from parts.rewards.schema_examples import checker_of


def _number_between(low=-math.inf, high=math.inf, *, above=False, below=False, whole=False):
    """A check that says whether a value is a finite number in a range; `above` and `below` leave out its ends."""

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
    """Whether a value is a list of different names of tags."""
    names = isinstance(value, list | tuple) and value and all(isinstance(tag, str) for tag in value)
    return bool(names) and len({*value}) == len(value) and all(re.fullmatch(r"[^\s<>/]+", tag) for tag in value)


_SETTINGS = {  # of run_code in scripts/sandbox.py
    **dict.fromkeys(("timeout_s", "total_timeout_s"), ("a number above 0", _number_between(0, above=True))),
    "memory_mb": ("a whole number from 1", _number_between(1, whole=True)),
    "strict": ("True or False", lambda value: isinstance(value, bool)),
    "sandbox": ("a Sandbox", lambda value: hasattr(value, "spawn")),
}


def _are_settings(value) -> bool:
    """Whether a value is a dict of settings for run_code; None in it stands for a default."""
    return value is None or (
        isinstance(value, dict)
        and value.keys() <= _SETTINGS.keys()
        and all(setting is None or _SETTINGS[name][1](setting) for name, setting in value.items())
    )


_POSITIVE = "a number above 0", _number_between(0, above=True)
_COUNT = "a whole number from 1", _number_between(1, whole=True)
_FLAG = "True or False", lambda value: isinstance(value, bool)
_PAIR = "(low, high), low not above high", _is_pair
_LENGTH_UNITS = "words, characters or tokens", lambda value: value in ("words", "characters", "tokens")
_OPTIONS = {  # option, or function.option: what is accepted, and how that is told
    **dict.fromkeys(("ideal", "minimum", "maximum", "max_length"), _POSITIVE),
    **dict.fromkeys(("max_characters", "ngram_size", "target"), _COUNT),
    **dict.fromkeys(("ignore_case", "prefilled", "soft"), _FLAG),
    **dict.fromkeys(("correct", "wrong"), _PAIR),
    "unit": _LENGTH_UNITS,
    "fuzzy_match.unit": ("word or character", lambda value: value in ("word", "character")),
    "rel_tol": ("a number from 0 to below 1", _number_between(0, 1, below=True)),
    "abs_tol": ("a number from 0", _number_between(0)),
    "mode": ("all or fraction", lambda value: value in ("all", "fraction")),
    "settings": (f"None, or a dict of settings of run_code: {', '.join(_SETTINGS)}", _are_settings),
    "tags": ("a list of different names without < and >", _are_tags),
    "code_block_format.language": ("a word", lambda value: isinstance(value, str) and not re.search(r"[\s`]", value)),
    "cache": ("a number from 0 to max_length", _number_between(0)),
    "exceeded": ("a number", _number_between()),
    "max_penalty": ("a number of 0 or below", _number_between(high=0)),
    "threshold": ("a number above 0, up to 1", _number_between(0, 1, above=True)),
    "language_consistency.language": (
        "a language code such as en or zh, one of those in _SCRIPTS",
        lambda value: value is None or any(value in codes.split() for codes in _SCRIPTS.values()),
    ),
    "json_schema.schema": ("a JSON Schema, as a dict or as text", lambda value: _is_schema(value)),
}
_TOGETHER = (  # options of one function that limit each other: (lower, upper, how they are compared)
    ("cache", "max_length", lambda low, high: low <= high),
    ("minimum", "maximum", lambda low, high: low <= high),
    ("wrong", "correct", lambda low, high: low[1] <= high[0]),
    ("exceeded", "correct", lambda low, high: low <= high[0]),
)


def _check_options(function, options: dict) -> None:
    """Raise ValueError for an option value that makes no sense, with the values that do."""
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
                raise ValueError(f"{name}: got {got}; expected {lower} not above {upper}; try setting {other} too")


@functools.lru_cache(256)
def _validator(schema: str):
    """The checker of a JSON Schema as text."""
    return checker_of(json.loads(schema))


def _is_schema(schema) -> bool:
    """Whether a value is a valid JSON Schema; without jsonschema the first text tells."""
    try:
        _validator(schema if isinstance(schema, str) else json.dumps(schema))
    except ImportError:
        return True
    except Exception:  # whatever a library makes of any schema
        return False
    return True


_SCRIPTS = {
    "LATIN": "en de fr es it pt nl sv da no fi pl cs hu ro tr vi id",
    "CYRILLIC": "ru uk bg sr",
    "HANGUL": "ko",
    "CJK": "zh ja",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "ARABIC": "ar fa ur",
    "GREEK": "el",
    "HEBREW": "he",
    "DEVANAGARI": "hi mr ne",
    "BENGALI": "bn",
    "TAMIL": "ta",
    "THAI": "th",
}
