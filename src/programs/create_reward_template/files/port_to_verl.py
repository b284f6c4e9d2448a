"""Rewards of TRL's contract, or of one sample, by verl's contract."""

import inspect
import math
import warnings

from contract import verl_row
from loading import HERE, load_file

SOURCE = load_file(HERE / "mine.py")  # keep it there
PARTS = {"source_name": (SOURCE.source_name, 1.0)}  # name: (function, weight)
CHAT = True  # completions as chat messages, or text
SILENT = {"trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None}


def arguments_of(function, text: str, row: dict) -> dict:
    """One sample, or a batch of one in TRL's shapes, as far as the function takes it; TypeError where columns lack."""
    signature = inspect.signature(function)
    if {"prompt", "completion"} & {*signature.parameters}:
        given = row | {"prompt": row.get("prompt"), "completion": text}
    else:
        completion = [{"role": "assistant", "content": text}] if CHAT else text
        given = {name: [value] for name, value in row.items() if name != "prompt"}
        given |= {"prompts": [row.get("prompt")], "completions": [completion]}
    given |= SILENT
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        given = {name: value for name, value in given.items() if name in signature.parameters}
    signature.bind(**given)
    return given


async def waited(value):
    """A value, or what awaiting it gives."""
    return await value if inspect.isawaitable(value) else value


def number(result) -> float | None:
    """The score of one sample, or that of a batch of one; ValueError for one that is not finite."""
    result = result.tolist() if hasattr(result, "tolist") else result
    (value,) = result if isinstance(result, list | tuple) else [result]
    if value is not None and not math.isfinite(value):
        raise ValueError(f"got the score {value}; expected a finite number or None")
    return None if value is None else float(value)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict:
    """The weighted sum of the parts that apply; verl knows no None: the score is 0, and `applies` too."""
    row, scores, raised = verl_row(ground_truth, extra_info), {}, 0.0
    for name, (function, _) in PARTS.items():
        arguments, scores[name] = arguments_of(function, solution_str, row), None
        try:
            scores[name] = number(function(**arguments))
        except Exception as error:  # verl would drop the row, and go on with what is left of its group
            raised = 1.0
            warnings.warn(f"{name} raised {error!r} for {solution_str[:200]!r}; the score is 0", stacklevel=2)
    known = [] if raised else [PARTS[name][1] * value for name, value in scores.items() if value is not None]
    named = {f"reward/{name}": value or 0.0 for name, value in scores.items() if len(scores) > 1}
    return {"score": sum(known, 0.0), "applies": float(bool(known)), "raised": raised, **named}
