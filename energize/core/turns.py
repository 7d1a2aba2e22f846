"""Turns of conversations: their usual forms, and what decides which of them are
learned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from energize.core.checks import real_number
from energize.core.validation import parse_json
from energize.errors import DataError

IMAGE = "<image>"
"""The placeholder of an image in a text."""
VIDEO = "<video>"
"""The placeholder of a video in a text."""

_PLACES = re.compile(f"{IMAGE}|{VIDEO}")
_MEDIA = {"image": IMAGE, "image_url": IMAGE, "video": VIDEO, "video_url": VIDEO}
_TEXT_PIECES = (None, "text", "input_text", "output_text")
"""Types of content pieces that are text."""
_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(
        ("gpt", "assistant", "chatgpt", "bing", "bot", "model"), "assistant"
    ),
    **dict.fromkeys(
        ("observation", "tool_response", "function_response", "function"), "tool"
    ),
    "tool": "tool",
    "system": "system",
}
"""The usual names of roles, in lower case."""
_CALLS = ("tool_calls", "tool_call", "function_call")
"""Keys of calls of tools. As roles they mean a turn of the assistant that is a call."""
_LEARNED = {
    "train": True,
    "loss": True,
    "weight": True,
    "loss_weight": True,
    "loss_scale": True,
    "loss_mask": True,
    "masked": False,
}
"""Keys that decide whether a turn is learned, and the value with which it is."""
_WEIGHTS = ("weight", "loss_weight", "loss_scale")
"""Keys that may have other numbers than 0 and 1: how much learned tokens count."""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Keys of the reasoning before an answer. The first one is the name in `Turn.extra`."""
TURN_KEYS = frozenset(
    {"tool_calls", "tool_call_id", "name", REASONING[0]}
    | {"id", "turn_id", "message_id", "timestamp", "created_at"}
    | {"lang", "language", "model", "source"}
)
"""Keys of `Turn.extra`: those for chat templates, and those that describe a turn."""

_FORMS = (
    "a turn must be {from, value} as in LLaVA and ShareGPT, or {role, content} as in "
    "OpenAI's API, with content as text or as a list of {type: text | image | video}"
)


@dataclass(frozen=True, slots=True, repr=False)
class Turn:
    """A turn of a conversation.

    Attributes:
        role: `user`, `assistant`, `system` or `tool` in most data.
        text: The content, with `<image>` or `<video>` in place of an image or a video.
        learned: Whether the turn is learned. If None, the data do not decide it, and
            the turns of the assistant are.
        extra: The other keys of the turn that have a value. Calls of tools are
            `tool_calls`, in the form of OpenAI's API with arguments as a dict;
            reasoning is `reasoning_content`.
        weight: How much a learned token counts in the loss; by default 1.

    Example:
        >>> Turn("user", "What is this?")
        Turn(role='user', text='What is this?')

    """

    role: str
    text: str
    learned: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    weight: float = 1.0

    def __rich_repr__(self) -> Iterator[tuple[Any, ...]]:
        yield "role", self.role
        yield "text", self.text
        yield "learned", self.learned, None
        yield "extra", self.extra, {}
        yield "weight", self.weight, 1.0

    def __repr__(self) -> str:
        fields = [f"role={self.role!r}", f"text={self.text!r}"]
        if self.learned is not None:
            fields.append(f"learned={self.learned!r}")
        if self.extra:
            fields.append(f"extra={self.extra!r}")
        if self.weight != 1:
            fields.append(f"weight={self.weight!r}")
        return f"Turn({', '.join(fields)})"


class MediaPlace(NamedTuple):
    """The position of an image or a video in a conversation.

    Attributes:
        turn: The number of its turn, from 0.
        start: The offset of its placeholder in the text of the turn.
        placeholder: `<image>` or `<video>`.
    """

    turn: int
    start: int
    placeholder: str


def places_of(turns: Sequence[Turn]) -> list[MediaPlace]:
    """Return the places of images and videos, in their order.

    >>> places_of([Turn("user", "Compare <image> and <image>.")])
    [MediaPlace(turn=0, start=8, placeholder='<image>'), MediaPlace(turn=0, start=20, \
placeholder='<image>')]
    """
    return [
        MediaPlace(number, match.start(), match[0])
        for number, turn in enumerate(turns)
        for match in _PLACES.finditer(turn.text)
    ]


def messages_of(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return turns as chat templates of transformers take them, with images and videos
    in place.

    >>> messages_of([Turn("user", "Name <image>")])[0]["content"]
    [{'type': 'text', 'text': 'Name '}, {'type': 'image'}]
    """
    messages = []
    for turn in turns:
        content: list[dict[str, str]] = []
        for piece in re.split(f"({_PLACES.pattern})", turn.text):
            if piece in (IMAGE, VIDEO):
                content.append({"type": piece[1:-1]})
            elif piece:
                content.append({"type": "text", "text": piece})
        message = {**turn.extra, "role": turn.role, "content": content}
        if REASONING[0] in message:  # templates look for it under different names
            message |= dict.fromkeys(REASONING, message[REASONING[0]])
        messages.append(message)
    return messages


def checked_turns(value: Any, images: int, videos: int) -> list[Turn]:
    """Return turns of any of the usual forms.

    Raises:
        DataError: If a turn is malformed, or placeholders and media differ in number.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DataError(
            f"a conversation must be a list of turns, got {value!r:.80}: {_FORMS}"
        )
    turns = [turn_of(turn, number) for number, turn in enumerate(value)]
    places = places_of(turns)
    for placeholder, count in ((IMAGE, images), (VIDEO, videos)):
        positions = [
            medium.turn for medium in places if medium.placeholder == placeholder
        ]
        if len(positions) != count:
            raise DataError(
                f"the sample has {count} {placeholder[1:-1]}s, but its turns have "
                f"{len(positions)} placeholders {placeholder}, in the turns "
                f"{positions}. Write one for each, at its place in the text"
            )
    return turns


def turn_of(form: Any, number: int) -> Turn:
    """Return turn `number` of a conversation, given in any of the usual forms.

    Raises:
        DataError: If it has no role or no content, or the value of a known key is
            malformed.

    """
    if isinstance(form, Turn):
        return form
    keys = dict(form) if isinstance(form, Mapping) else {}
    role = _pop_first(keys, "role", "from")
    content = _pop_first(keys, "content", "value")
    empty: tuple[Any, ...] = (None, "", [], {})
    keys = {name: value for name, value in keys.items() if value not in empty}
    try:
        reasoning = _reasoning(keys)
        calls = _calls(_only(keys, _CALLS, []))
        if isinstance(role, str) and role.strip().lower() in _CALLS:
            calls = _calls(content)
            role = "assistant"
            content = None
        if isinstance(content, list):
            content = _joined(content)
        if calls:
            keys["tool_calls"] = calls
            content = content or ""
        if not all(isinstance(text, str) for text in (role, content, reasoning)):
            raise DataError(_FORMS)
        role = _ROLES.get(role.strip().lower(), role)
        if reasoning:
            keys[REASONING[0]] = reasoning
        weight = _weight(keys)
        return Turn(role, content, _learned(keys, role), keys, weight)
    except DataError as error:
        raise DataError(f"turn {number} is {form!r:.120}: {error}") from error


def _pop_first(keys: dict[str, Any], *names: str) -> Any:
    """Remove the first of some keys that has a value, and return the value."""
    return next((keys.pop(name) for name in names if keys.get(name) is not None), None)


def _only(keys: dict[str, Any], names: Sequence[str], default: Any) -> Any:
    """Remove keys that mean the same, and return the value that all of them have."""
    present = {name: keys.pop(name) for name in names if name in keys}
    values = list(present.values())
    if any(value != values[0] for value in values):
        raise DataError(
            f"keys of the same meaning have different values: {present!r:.80}"
        )
    return values[0] if values else default


def _reasoning(keys: dict[str, Any]) -> str:
    """Remove the keys of the reasoning, and return the text; empty if it is only white
    space.
    """
    for name in REASONING:
        if str(keys.get(name, "")).isspace():
            del keys[name]
    return _only(keys, REASONING, "")  # type: ignore[no-any-return]


def _weight(keys: dict[str, Any]) -> float:
    """Replace a weight other than 0 and 1 by 1, and return it."""
    numbers = {name: real_number(keys.get(name)) for name in _WEIGHTS}
    stated = {
        name: float(number)
        for name, number in numbers.items()
        if number is not None and number > 0 and math.isfinite(number)
    }
    keys |= dict.fromkeys(stated, 1)
    return _only(stated, _WEIGHTS, 1.0)  # type: ignore[no-any-return]


def _learned(keys: dict[str, Any], role: str) -> bool | None:
    """Remove the keys that decide whether a turn is learned, and return what they
    decide.
    """
    decided = {name: keys.pop(name) for name in _LEARNED if name in keys}
    answers = {value == _LEARNED[name] for name, value in decided.items()}
    if len(answers) > 1 or not all(value in (0, 1) for value in decided.values()):
        raise DataError(
            f"the keys for learning the turn are unclear: {decided}. Set each to 0, 1, "
            "true or false, all alike; 'weight', 'loss_weight' and 'loss_scale' may "
            "be other numbers >= 0"
        )
    # A weight of 1 is often given to all turns, and means those of the assistant.
    return (
        next(iter(answers), None) if role == "assistant" or "train" in decided else None
    )


def _calls(value: Any) -> list[dict[str, Any]]:
    """Return calls of tools in one form, from a call, a list of calls, or either as
    JSON text.
    """
    calls = []
    for call in _functions(_parsed(value)):
        function = call["function"]
        arguments = function.get("arguments", function.get("parameters")) or {}
        called = {"name": function["name"], "arguments": _parsed(arguments)}
        calls.append({**call, "type": "function", "function": called})
    return calls


def tools_of(value: Any) -> list[dict[str, Any]]:
    """Return the schemas of tools in one form, from a list of them, of JSON texts, or
    JSON text.

    Raises:
        DataError: If it is not a list of schemas.

    """
    parsed = _parsed(value or [])
    tools = []
    for entry in parsed if isinstance(parsed, list) else [parsed]:
        tools += _functions(_parsed(entry))
    return tools


def _parsed(value: Any) -> Any:
    """Return the value of JSON text, and any other value as it is."""
    try:
        return parse_json(value) if isinstance(value, str) else value
    except ValueError as error:
        raise DataError(
            f"tools and their calls must be JSON, got {value!r:.80}: {error}"
        ) from error


def _functions(value: Any) -> list[dict[str, Any]]:
    """Return objects with a `function` that has a name, from objects or functions."""
    functions = []
    for entry in value if isinstance(value, list) else [value]:
        keys = entry if isinstance(entry, Mapping) else {}
        whole = (
            dict(keys)
            if "function" in keys
            else {"type": "function", "function": entry}
        )
        function = whole["function"]
        if not isinstance(function, Mapping) or not isinstance(
            function.get("name"), str
        ):
            raise DataError(
                f"a tool, or a call of one, must have a 'name', got {entry!r:.80}"
            )
        functions.append(whole)
    return functions


def _joined(content: list[Any]) -> str | None:
    """Return a list of texts, images and videos as one text; None if impossible."""
    pieces = []
    for piece in content:
        if not isinstance(piece, Mapping) or _LEARNED.keys() & piece.keys():
            return None
        piece_type = piece.get("type")
        pieces.append(
            piece.get("text", piece.get("value"))
            if piece_type in _TEXT_PIECES
            else _MEDIA.get(piece_type)
        )
    return "".join(map(str, pieces)) if None not in pieces else None
