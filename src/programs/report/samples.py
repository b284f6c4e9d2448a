"""Samples of all sources as rows, thinned and compressed: browsers unpack base64 of gzip by themselves."""

import base64
import json
import zlib
from collections.abc import Iterable

from parts.reading.logged_run import as_number, is_finite
from programs.report.sources import Source

LONGEST = 100_000  # characters of a text that the page holds
NAMED = ("step", "kind", "prompt", "completion", "score", "rewards", "finished")
OF_EVALUATIONS = ("task", "metrics")
OF_TOKENS = ("tokens", "token_lengths", "logprobs", "advantages")  # figures of single tokens in former logs
PROBED = 500  # rows that tell how well all of them compress
GZIP = 16 + zlib.MAX_WBITS


def cut_text(value):
    """A value whose long text is cut, with a word about it."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}… [{len(value) - LONGEST} more characters]"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= LONGEST else f"{text[:LONGEST]}… [{len(text) - LONGEST} more characters]"


def number_or_none(value):
    """A finite number with six digits, else None; a truth value is 0 or 1."""
    if type(value) is bool or (type(value) is int and abs(value) < 10**6):
        return int(value)
    return float(f"{float(value):.6g}") if is_finite(value) else None


def sample_row(run: int, row: dict) -> list:
    """[run, step, kind, score, finished, prompt, completion, rewards, others] of a line of samples.jsonl."""
    rewards = row.get("rewards", row.get("metrics"))
    rewards = {str(k): number_or_none(v) for k, v in rewards.items()} if isinstance(rewards, dict) else {}
    score = row["score"] if "score" in row else next(iter(rewards.values()), None)  # evaluation.py gives metrics only
    kind = row.get("kind", row.get("task", "train"))
    apart = (*NAMED, *OF_EVALUATIONS, *OF_TOKENS)
    others = {k: cut_text(v) for k, v in row.items() if k not in apart and v is not None}
    step, finished = as_number(row.get("step")), row.get("finished", row.get("finish") not in ("length", "limit"))
    text = row.get("completion")
    return [
        *(run, int(step) if is_finite(step) else None, str(kind), number_or_none(score), int(bool(finished))),
        *(cut_text(row.get("prompt", "")), "" if text is None else cut_text(text), rewards, others),
    ]


def places_of(rows: list[list]) -> list[float]:
    """Of each row a number from 0 to 1 that its group shares; 0 in a run's first and last held-out evaluation."""
    steps: dict[int, set] = {}
    for run, step, kind, *_ in rows:
        if kind != "train" and step is not None:
            steps.setdefault(run, set()).add(step)
    kept = {(run, step) for run in steps for step in (min(steps[run]), max(steps[run]))}
    is_kept = [row[2] != "train" and (row[0], row[1]) in kept for row in rows]
    groups = [json_text([*row[:3], row[5]]).encode() for row in rows]
    return [0.0 if kept else zlib.crc32(group) / 2**32 for kept, group in zip(is_kept, groups, strict=True)]


def packed(parts: Iterable[bytes]) -> bytes:
    """Base64 of the gzip of bytes that come in parts."""
    squeeze = zlib.compressobj(6, zlib.DEFLATED, GZIP)
    return base64.b64encode(b"".join([*map(squeeze.compress, parts), squeeze.flush()]))


def packed_json(value) -> bytes:
    """Base64 of the gzip of a value's JSON."""
    return packed([json_text(value).encode()])


def json_text(value) -> str:
    """A value as JSON that browsers read; numbers that are not finite, which JSON does not know, are text."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=str), separators=(",", ":"))


def json_of_samples(rows: Iterable[list]) -> Iterable[bytes]:
    """The JSON {"rows": …, "prompts": …} of rows, in parts; a prompt stands in it once."""
    prompts, before = {}, '{"rows":['
    for row in rows:
        number = prompts.setdefault(json_text(row[5]), len(prompts))
        yield (before + json_text([*row[:5], number, *row[6:]])).encode()
        before = ","
    yield f'{"" if prompts else before}],"prompts":[{",".join(prompts)}]}}'.encode()


def packed_samples(sources: list[Source], room: float) -> tuple[bytes, int]:
    """The samples, thinned evenly to `room` bytes, and how many they are.

    Whole groups go, and those of the first and the last held-out evaluation stay.
    """
    rows = [sample_row(run, row) for run, source in enumerate(sources) for row in source.samples]
    places, few = places_of(rows), rows[:: len(rows) // PROBED or 1]
    share = max(room, 1.0) * len(few) / max(len(rows), 1) / len(packed(json_of_samples(few)))
    share = 1.0 if share > 0.8 else share  # rows that lie side by side compress better than some of them
    for _ in range(5):
        chosen = [row for row, place in zip(rows, places, strict=True) if place < share]
        data = packed(json_of_samples(chosen))
        if len(data) <= room:
            break
        share *= min(0.9, 0.95 * max(room, 0.0) / len(data))
    return data, len(chosen)
