"""Columns that hold images, video or audio."""

import functools
import re

NAMES = re.compile(
    r"(decoded_)?(image|img|picture|photo|figure|screenshot|video|audio|frame)s?(_?\d+|_(paths?|urls?|files?|bytes))?"
    r"|multi_modal_data|pixel_values",
    re.IGNORECASE,
)
ENDINGS = "png|jpe?g|gif|webp|bmp|tiff?|svg|mp[34]|wav|flac|ogg|webm|mov|avi|mkv"
PLACES = re.compile(rf"data:|https?://|[^\n]+\.({ENDINGS})\Z|[\w+/=]{{60}}", re.IGNORECASE)  # the last is base64
MARKS = re.compile(r"<(image|video|audio)([_ ]?\d+)?>|<\|(image|video|audio)_pad\|>|<\|vision_start\|>")


@functools.lru_cache(4096)
def is_media_name(name: str) -> bool:
    """Whether a column's name is that of images, video or audio."""
    return NAMES.fullmatch(name) is not None


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
