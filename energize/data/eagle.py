"""Rows of Eagle, in the form that other conversations have."""

from __future__ import annotations

import json
import re
from typing import Any

from energize.data.rows import Row

_FRAMES = "unified_frame_list"
_FRAME = re.compile(r"(?:<image \d+>)?<frame-\d+>")


def without_eagle(row: Row) -> Row:
    """Return a row of Eagle with `images` and `videos`; other rows as they are.

    Annotations list media as `data`. Rows that Eagle's `prepare.sh` wrote have JSON in
    columns, and the placeholders of frames; rows with frames of videos are not changed.

    Args:
        row: The row.

    Example:
        >>> data = [{"type": "image", "image_list": ["a.jpg"]}]
        >>> without_eagle({"conversations": [], "data": data})
        {'conversations': [], 'images': ['a.jpg']}
    """
    if isinstance(row.get(_FRAMES), str):
        return _of_prepared(row)
    data = row.get("data")
    if "conversations" not in row or not isinstance(data, list):
        return row
    media: dict[str, list[Any]] = {}
    for entry in data:
        name = entry.get("type") if isinstance(entry, dict) else None
        files = entry.get(f"{name}_list") if name in ("image", "video") else None
        if not isinstance(files, list):
            return row
        media.setdefault(f"{name}s", []).extend(files)
    return {key: value for key, value in row.items() if key != "data"} | media


def _of_prepared(row: Row) -> Row:
    """Return a row that `prepare.sh` wrote, with parsed turns and images."""
    try:
        frames = json.loads(row[_FRAMES])
        turns = json.loads(row["conversations"])
        if not all(isinstance(frame, str) for frame in frames):
            return row
        for turn in turns:
            turn["value"] = _FRAME.sub("<image>", turn["value"])
    except (LookupError, TypeError, ValueError):
        return row
    rest = {key: value for key, value in row.items() if not isinstance(value, str)}
    return rest | {"conversations": turns, "images": frames}
