"""Data compressed for the page: base64 of gzip, which browsers unpack by themselves."""

import base64
import json
import math
import zlib
from collections.abc import Iterable

from programs.report.sample_rows import all_rows, groups_of
from programs.report.sources import Source

PROBED, PROBED_BYTES = 2000, 4e6  # rows that tell how well all of them compress, fewer where they are long
GZIP = 16 + zlib.MAX_WBITS


def packed(parts: Iterable[bytes]) -> bytes:
    """Base64 of the gzip of bytes that come in parts."""
    squeeze = zlib.compressobj(6, zlib.DEFLATED, GZIP)
    return base64.b64encode(b"".join([*map(squeeze.compress, parts), squeeze.flush()]))


def packed_json(value) -> bytes:
    """Base64 of the gzip of a value's JSON."""
    return packed([json_text(value).encode()])


def without_nan(value):
    """A value whose numbers that are not finite, which JSON does not know, are text."""
    if isinstance(value, dict):
        return {key: without_nan(x) for key, x in value.items()}
    if isinstance(value, list):
        return [without_nan(x) for x in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def json_text(value) -> str:
    """A value as JSON that browsers read."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(without_nan(value), separators=(",", ":"))


def json_of_samples(rows: Iterable[list]) -> Iterable[bytes]:
    """The JSON {"rows": …, "prompts": …} of rows, in parts; a prompt stands in it once."""
    prompts, before = {}, b'{"rows":['
    for row in rows:
        prompt = row[5] if isinstance(row[5], str) else json_text(row[5])
        number = prompts.setdefault((type(row[5]), prompt), len(prompts))
        yield before + json_text([*row[:5], number, *row[6:]]).encode()
        before = b","
    texts = (json.dumps(prompt) if kind is str else prompt for kind, prompt in prompts)
    yield (b"" if before == b"," else before) + f'],"prompts":[{",".join(texts)}]}}'.encode()


def share_that_fits(rows: list[list], room: float) -> float:
    """The share of the rows that fills the room, from what every so many of them take."""
    few = rows[:: math.ceil(len(rows) / 50)]
    mean = sum(map(len, json_of_samples(few))) / len(few)
    some = rows[:: math.ceil(len(rows) / min(PROBED, max(50, PROBED_BYTES / mean)))]
    return min(1.0, room * len(some) / len(rows) / len(packed(json_of_samples(some))))


def packed_samples(sources: list[Source], room: float) -> tuple[bytes, int]:
    """The samples, thinned evenly to `room` bytes, and how many they are.

    Whole groups go, and those of the first and the last held-out evaluation stay.
    """
    rows = all_rows(sources)
    share = share_that_fits(rows, max(room, 1.0)) if rows else 1.0
    share = 1.0 if share > 0.8 else share  # rows that lie side by side compress better than some of them
    numbers, stay = groups_of(rows) if rows else ([], set())
    for _ in range(5):
        chosen = [r for r, n in zip(rows, numbers, strict=True) if n in stay or int((n + 1) * share) > int(n * share)]
        data = packed(json_of_samples(chosen))
        if len(data) <= room:
            break
        share *= min(0.9, 0.95 * max(room, 0.0) / len(data))
    return data, len(chosen)
