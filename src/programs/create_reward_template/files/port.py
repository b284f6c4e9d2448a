"""Rewards of TRL's contract, or of one sample, by verl's contract and as one reward of TRL's."""

import asyncio
import inspect
import json
import math
import warnings

from contract import GOLD, completion_text, finished, rows_of, verl_row
from loading import HERE, load_file

SOURCE = HERE / "mine.py"  # keep it there
CHAT = True  # completions as chat messages, or text
WEIGHT = 1.0
WEIGHTS = [1.0]
SILENT = {"trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None}


def ported_file():
    """The module of SOURCE."""
    if not SOURCE.is_file():
        raise FileNotFoundError(f"got no {SOURCE}; expected the file that is ported here; try copying it there")
    return load_file(SOURCE)


MODULE = ported_file()  # here, so that a missing file stops the trainer at its start


def source(name: str = "source_name"):
    """What is ported here, or another member of its file."""
    return getattr(MODULE, name)


def parts() -> dict:
    """{name: (function, weight)}: one function, or those of a list."""
    named = {}
    functions = [source()] if callable(source()) else source()
    for function, weight in zip(functions, WEIGHTS, strict=True):
        name = getattr(function, "__name__", type(function).__name__)
        while name in named:
            name += "_2"
        named[name] = function, WEIGHT * weight
    return named


def takes_one(function) -> bool:
    """Whether a function takes one sample, `(prompt, completion, …) -> score`, told by its parameters' names."""
    return bool({"prompt", "completion"} & {*inspect.signature(function).parameters})


def taken(function, given: dict) -> dict:
    """Those of the arguments that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    fixed = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [p.name for p in fixed if p.default is p.empty and p.name not in given]
    if missing:
        columns = ", ".join(sorted({*given} - {*SILENT, "prompt", "prompts", "completion", "completions"})) or "none"
        raise TypeError(f"got the columns {columns}; expected {', '.join(missing)} too; try extra_info or GOLD")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return given
    return {p.name: given[p.name] for p in fixed if p.name in given}


def arguments_of(function, text: str, row: dict, extras: dict = SILENT) -> dict:
    """One sample, or a batch of one in TRL's shapes, as far as the function takes it."""
    completion = [{"role": "assistant", "content": text}] if CHAT else text
    given = {name: [value] for name, value in row.items() if name != "prompt"}
    given |= {"prompts": [row.get("prompt")], "completions": [completion]}
    if takes_one(function):
        given = row | {"prompt": row.get("prompt"), "completion": text}
    return taken(function, given | extras)


def number(value) -> float | None:
    """A score as a float, or None."""
    if value is not None and not math.isfinite(value):
        raise ValueError(f"got the score {value}; expected a finite number or None")
    return None if value is None else float(value)


def only(function, values) -> float | None:
    """The one score of a sample or a batch of one."""
    values = values.tolist() if hasattr(values, "tolist") else values
    (value,) = [values] if takes_one(function) else values
    return number(value)


def summed(scores: dict) -> float | None:
    """The weighted sum of the parts that apply; None if none does."""
    weights = {name: weight for name, (_, weight) in parts().items()}
    known = [weights[name] * value for name, value in scores.items() if value is not None]
    return sum(known) if known else None


async def waited(value):
    """A value, or what awaiting it gives."""
    return await value if inspect.isawaitable(value) else value


async def called(function, arguments: dict):
    """What a function returns; in a thread, as it may block."""
    return await waited(await asyncio.to_thread(function, **arguments))


async def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict:
    """The reward by verl's contract, which knows no None: the score is 0, and `applies` too."""
    row, scores, raised = verl_row(ground_truth, extra_info), {}, 0.0
    for name, (function, _) in parts().items():
        arguments, scores[name] = arguments_of(function, solution_str, row), None
        try:
            scores[name] = only(function, await called(function, arguments))
        except Exception as error:  # verl would drop the row, and go on with what is left of its group
            raised = 1.0
            warnings.warn(f"{name} raised {error!r} for {solution_str[:200]!r}; the score is 0", stacklevel=2)
    value = None if raised else summed(scores)
    named = {f"reward/{name}": score or 0.0 for name, score in scores.items() if len(scores) > 1}
    return {"score": value or 0.0, "applies": float(value is not None), "raised": raised, **named}


def results_of(function, completions, rows: list[dict], given: dict) -> list:
    """What a function returns: one result for each sample if it takes one, else one for the batch."""
    if not takes_one(function):
        return [function(**taken(function, given))]
    extras = {name: given[name] for name in SILENT if name in given}
    pairs = zip(map(completion_text, completions), rows, strict=True)
    return [function(**arguments_of(function, text, row, SILENT | extras)) for text, row in pairs]


async def gathered(results: dict) -> dict:
    """{name: results} with none left to await, all at once."""
    waits = [asyncio.gather(*map(waited, values)) for values in results.values()]
    return dict(zip(results, await asyncio.gather(*waits), strict=True))


def values_of(function, results: list, count: int) -> list[float | None]:
    """The scores of a batch."""
    values = results if takes_one(function) else results[0]
    values = [number(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]
    if len(values) != count:
        raise ValueError(f"got {len(values)} scores; expected {count}, one a completion")
    return values


async def reward_name(prompts, completions, gold_column, **columns) -> list[float | None]:
    """The weighted sum of source_name by TRL's contract: of the parts that apply, None where none does."""
    columns, count = {"gold_column": gold_column, **columns}, len(completions)
    rows = rows_of(prompts, count, columns)
    given = SILENT | columns | {"prompts": prompts, "completions": completions}
    results = {name: results_of(function, completions, rows, given) for name, (function, _) in parts().items()}
    results = await gathered(results)
    scores = {name: values_of(function, results[name], count) for name, (function, _) in parts().items()}
    for name, values in scores.items():
        known = [value for value in values if value is not None]
        if known:
            given["log_metric"](f"reward/{name}", sum(known) / len(known))
    return [summed({name: values[i] for name, values in scores.items()}) for i in range(count)]


CASES = [("42", {"gold_column": "42"}, "the original's")]  # (completion, columns of the row, score)


def original_score(text: str, row: dict):
    """What the original says of a row, or what it raises."""
    scores = {}
    for name, (function, _) in parts().items():
        try:
            scores[name] = only(function, finished(function(**arguments_of(function, text, row))))
        except Exception as error:
            return f"a score, where the original raises {error!r}"
    return summed(scores)


def port_results(contract: str, scored) -> list[tuple]:
    """(contract, case, score, expected score) of every case."""
    results = []
    for case in CASES:
        text, row, expected = case
        got = scored(text, row)
        results.append((contract, case, got, original_score(text, row) if expected == "the original's" else expected))
    return results


def trl_results() -> list[tuple]:
    """The cases by TRL's contract, one a batch."""

    def scored(text: str, row: dict):
        columns = {name: [value] for name, value in row.items() if name != "prompt"}
        completion = [{"role": "assistant", "content": text}] if CHAT else text
        return finished(reward_name([row.get("prompt")], [completion], **columns))[0]

    return port_results("TRL", scored)


def verl_results() -> list[tuple]:
    """The cases by verl's contract."""

    def scored(text: str, row: dict):
        extra = {name: value for name, value in row.items() if name != GOLD} | {"ground_truth_field": f"{GOLD}:json"}
        got = finished(compute_score("self-test", text, json.dumps(row.get(GOLD)), extra))
        return got["score"] if got["applies"] else "raised" if got["raised"] else None

    return port_results("verl", scored)
