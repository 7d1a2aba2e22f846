"""Conversations: turns of the usual forms made one, and compared with the images they speak of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from energize.errors import DataError

IMAGE, VIDEO = "<image>", "<video>"
"""What stands in a text where an image or a video is."""

_PLACES = re.compile(f"{IMAGE}|{VIDEO}")
_MEDIA = {"image": IMAGE, "image_url": IMAGE, "video": VIDEO}
_ROLES = {"human": "user", "gpt": "assistant"}
_FORMS = (
    "a turn is {from, value} as in LLaVA and ShareGPT, or {role, content}, whose content is text, "
    "or a list of {type: text | image | video}"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """Who speaks, `user`, `assistant` or `system` in most data, and what; where an image or a video
    is, the text has `<image>` or `<video>`.
    """

    role: str
    text: str


class Place(NamedTuple):
    """Where an image or a video is: which turn, counted from 0, and from which letter of it on."""

    turn: int
    start: int
    what: str


def places_of(turns: Sequence[Turn]) -> list[Place]:
    """Return where images and videos are, in their order.

    >>> places_of([Turn("user", "Compare <image> and <image>.")])
    [Place(turn=0, start=8, what='<image>'), Place(turn=0, start=20, what='<image>')]
    """
    return [
        Place(number, found.start(), found[0])
        for number, turn in enumerate(turns)
        for found in _PLACES.finditer(turn.text)
    ]


def messages_of(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return turns as chat templates of transformers take them, with images and videos in place.

    >>> messages_of([Turn("user", "What is <image>?")])[0]["content"]
    [{'type': 'text', 'text': 'What is '}, {'type': 'image'}, {'type': 'text', 'text': '?'}]
    """
    messages = []
    for turn in turns:
        content: list[dict[str, str]] = []
        for piece in re.split(f"({_PLACES.pattern})", turn.text):
            if piece in (IMAGE, VIDEO):
                content.append({"type": piece[1:-1]})
            elif piece:
                content.append({"type": "text", "text": piece})
        messages.append({"role": turn.role, "content": content})
    return messages


def checked_turns(given: Any, images: int, videos: int) -> list[Turn]:
    """Return turns of any of the usual forms; raise `DataError` for another one, and unless there
    is a placeholder for each image and video, and one of these for each placeholder.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise DataError(f"a conversation is a list of turns, got {given!r:.80}; {_FORMS}")
    turns = [_turn(each, number) for number, each in enumerate(given)]
    places = places_of(turns)
    for what, count in ((IMAGE, images), (VIDEO, videos)):
        found = [place.turn for place in places if place.what == what]
        if len(found) != count:
            raise DataError(
                f"the sample has {count} {what[1:-1]}s, and its turns have {len(found)} "
                f"placeholders {what}, in the turns {found}: there has to be one for each, where "
                "it is meant"
            )
    return turns


def _turn(given: Any, number: int) -> Turn:
    if isinstance(given, Turn):
        return given
    if isinstance(given, Mapping):
        role, content = (
            given[first] if given.get(first) is not None else given.get(second)
            for first, second in (("role", "from"), ("content", "value"))
        )
        if isinstance(content, list):
            content = _joined(content)
        if isinstance(role, str) and isinstance(content, str):
            return Turn(_ROLES.get(role, role), content)
    raise DataError(f"turn {number} is {given!r:.120}; {_FORMS}")


def _joined(content: list[Any]) -> str | None:
    """Return a list of texts, images and videos as one text; None for anything else."""
    pieces = [
        _MEDIA.get(str(each.get("type")), each.get("text")) if isinstance(each, Mapping) else None
        for each in content
    ]
    return "".join(map(str, pieces)) if None not in pieces else None
