"""Equality of two answers."""

from parts.rewards.stated_answers import with_point
from programs.math_grader.equal_values import _same
from programs.math_grader.text_form import _cheap
from programs.math_grader.values import _as_number, _value
from programs.math_grader.worker import _WORKER


def math_equal(answer: str, gold: str) -> bool | None:
    """Whether two final answers are the same; None if the gold answer cannot be read.

    >>> [math_equal(a, g) for a, g in (("0.5", "1/2"), ("{2, 1}", "{1,2}"), ("(1,2]", "(1,2)"), ("1", "???"))]
    [True, True, False, None]
    """
    g, a = _value(gold), _value(answer)
    if g.kind == "bad" or g.src.lower() in ("nan", "null", "n/a"):
        return None
    if "letter" in (a.kind, g.kind):
        if a.kind == g.kind:
            return a.data == g.data or (a.data.upper() == g.data and g.data < "K")
        a, g = (_as_number(v.data)._replace(src=v.data) if v.kind == "letter" else v for v in (a, g))
    if g.kind == "num" and "," in answer:  # 3,5 for 3.5; the other way round 3,5 may be a list
        a = _value(with_point(answer))
    todo: list = []
    if g.kind == "raw" and not _cheap(g.src) and a.src != g.src:
        return None
    return _same(a, g, todo) and (_WORKER.ask(todo) if todo else True)
