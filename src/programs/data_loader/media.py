"""Columns that hold images, video or audio."""

import re

from parts.data.question_parts import MEDIA, is_media, words_in
from programs.data_loader.bad_rows import BadRow, shown

ENDINGS = "png|jpe?g|gif|webp|bmp|tiff?|svg|mp[34]|wav|flac|ogg|webm|mov|avi|mkv"
PLACES = re.compile(rf"data:|https?://|[^\n]+\.({ENDINGS})\Z|[\w+/=]{{60}}", re.IGNORECASE)  # the last is base64
PLACE = r"(<(image|video|audio)([_ ]?\d+)?>|<\|(image|video|audio)_pad\|>|<\|vision_start\|>)"
MARKS = re.compile(PLACE)
PLACED = re.compile(rf"^\s*{PLACE}|{PLACE}\s*$", re.MULTILINE)  # at an end of a line: not a word of the text
PICTURE = re.compile(r"!\[[^\]]*\]\([^)\s]+\)")  # Markdown's


def is_media_name(name: str) -> bool:
    """Whether a column's name is that of images, video or audio, not of another thing's picture."""
    begins = words_in(name)[:1]
    plain = begins and begins[0].removesuffix("s") in MEDIA | {"decoded"} and is_media(name)
    return plain or name in ("multi_modal_data", "pixel_values")


def check_media(row: dict, prompt: list[dict]) -> bool:
    """Raise BadRow for media beside a prompt or a place for some in it; returns whether it has a Markdown image."""
    text = "\n".join(message["content"] for message in prompt)
    expected = "text only: images, video and audio are not read"
    if name := media_column(row, text):
        advice = f"leaving out the row, or --drop {name} where the text stands alone"
        raise BadRow(name, shown(row[name]), expected, advice)
    if place := PLACED.search(text):
        raise BadRow("prompt", f"the place of an image, {shown(place[0].strip())}", expected, "--on_bad skip")
    return PICTURE.search(text) is not None


def media_column(row: dict, text: str = "") -> str | None:
    """The first column with an image, video or audio: an object, a path, a URL, base64, or a list of such.

    Where the text has a place for one, such as `<image>`, whatever stands in a column of such a name is one.
    """
    for name, value in row.items():
        if value and is_media_name(name):
            placed = MARKS.search(text) is not None
            items = value if isinstance(value, list) else [value]
            held = [item for item in items if item not in (None, "", [], {})]
            if any(placed or isinstance(item, dict | list) or PLACES.match(str(item)) for item in held):
                return name
    return None
