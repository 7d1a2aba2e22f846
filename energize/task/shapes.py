"""Functions of field maps: they make the value of a field from several parts.

    field_map:
      turns: "chat(user=json[instruction], user=json[input], assistant=json[output])"

To add a function, add it to `SHAPES`. It takes the arguments in order, each with its
label; texts in quotes come last.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from energize.core import limits
from energize.core.turns import IMAGE, VIDEO, Turn, turn_of
from energize.core.validation import parse_json
from energize.errors import DataError

Arguments = Sequence[tuple[str, Any]]
"""Label (or an empty text) and value of each argument; None for a missing part."""

_EXCHANGES = (
    ("user", "assistant"),
    ("q", "a"),
    ("question", "answer"),
    ("human", "gpt"),
    ("instruction", "output"),
    ("prompt", "response"),
    ("input", "output"),
)
"""Keys of an object that is a question and its answer."""


def chat(arguments: Arguments) -> list[Turn]:
    """Return the turns of a question and its answer.

    Placeholders of images and videos that no turn has come first.

    Args:
        arguments: Labels are `system`, `history` (exchanges), `user` (several are
            joined by line breaks), `assistant`, `images` and `videos`. Without
            `assistant`, the turns end with the question.
    """
    turns = [Turn("system", value) for value in _texts(arguments, "system")]
    for history in _values(arguments, "history"):
        turns += exchanges([("", history)])
    turns.append(Turn("user", "\n".join(_texts(arguments, "user"))))
    answers = [
        *chain.from_iterable(
            _listed(answer) for answer in _values(arguments, "assistant")
        )
    ]
    if "assistant" in dict(arguments):
        if not answers or not isinstance(answers[0], str):
            raise DataError(f"the answer is missing, got {answers[:1]!r:.80}")
        turns.append(Turn("assistant", answers[0]))
    return _with_placeholders(turns, arguments)


def exchanges(arguments: Arguments) -> list[Turn]:
    """Return the turns of a list of questions with their answers.

    An exchange is an object such as `{user, assistant}` or `{q, a}`, or a list of two
    texts. Other keys of an object belong to the answer. Two arguments without a label
    are a list of questions and a list of their answers.
    """
    turns: list[Turn] = []
    for exchange in _exchanges_in([value for label, value in arguments if not label]):
        pair = exchange_of(exchange)
        if pair is None:
            raise DataError(
                f"an exchange must be a question and an answer, got {exchange!r:.120}"
            )
        rest = exchange.items() if isinstance(exchange, Mapping) else ()
        answer = {name: value for name, value in rest if value not in pair}
        answer |= {"role": "assistant", "content": pair[1]}
        turns += [Turn("user", pair[0]), turn_of(answer, len(turns) + 1)]
    return _with_placeholders(turns, arguments[1:])


def _exchanges_in(values: list[Any]) -> list[Any]:
    """Return a list of exchanges, or questions with their answers."""
    columns = [_listed(value) for value in values]
    lengths = [len(column) for column in columns]
    if len({*lengths}) > 1:
        raise DataError(
            f"there are {lengths[0]} questions and {lengths[1]} answers. Write an "
            "answer for each question"
        )
    return [*zip(*columns, strict=True)] if len(columns) > 1 else columns[0]


def first(arguments: Arguments) -> Any:
    """Return the first value that is not null, or None."""
    return next((value for _, value in arguments if value is not None), None)


def exchange_of(value: Any) -> tuple[str, str] | None:
    """Return the question and the answer of a value, None for other values.

    >>> exchange_of({"q": "What?", "a": "That."}), exchange_of("a")
    (('What?', 'That.'), None)
    """
    pair: Sequence[Any] = ()
    if isinstance(value, list | tuple):
        pair = value
    elif isinstance(value, Mapping):
        keys = next((keys for keys in _EXCHANGES if value.keys() >= {*keys}), ())
        pair = [value[key] for key in keys]
    if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        return None
    return pair[0], pair[1]


def placed(arguments: Arguments) -> Any:
    """Return turns as they are, with placeholders before the first turn of the user.

    They are added to turns without any placeholder, one for each image and video. The
    label `system` is the text of a first turn, for turns without it. Labels such as
    `user_tag` have the keys and roles of turns that are not the usual ones.
    """
    tags = {label: tag for label, tag in arguments if label.endswith("_tag")}
    turns = _untagged(arguments[0][1], tags) if tags else arguments[0][1]
    if isinstance(turns, list) and not _is_system(turns[:1]):
        texts = _texts(arguments, "system")
        turns = [{"role": "system", "content": text} for text in texts] + turns
    if not isinstance(turns, list) or IMAGE in str(turns) or VIDEO in str(turns):
        return turns
    placeholders = _placeholders(arguments)
    if not placeholders:
        return turns
    for number, turn in enumerate(turns):
        key = _text_key(turn)
        if key is not None:
            changed = {**turn, key: placeholders + turn[key]}
            return [*turns[:number], changed, *turns[number + 1 :]]
    return list(turns)


_TAGGED_KEYS = {"role_tag": "role", "content_tag": "content"}
_TAGGED_ROLES = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "function_call",
    "system_tag": "system",
}


def _untagged(value: Any, tags: Mapping[str, str]) -> Any:
    """Return a turn, or turns, with the usual keys and roles in place of tags."""
    if isinstance(value, list):
        return [_untagged(turn, tags) for turn in value]
    if not isinstance(value, Mapping):
        return value
    turn = dict(value)
    for name, key in _TAGGED_KEYS.items():
        if tags.get(name) in turn:
            turn[key] = turn.pop(tags[name])
    roles = {tags[name]: role for name, role in _TAGGED_ROLES.items() if name in tags}
    for key in ("role", "from"):
        if key in turn:
            turn[key] = roles.get(str(turn[key]), turn[key])
    return turn


def _is_system(turns: list[Any]) -> bool:
    """Return whether turns are the turn of the system."""
    return any(turn_of(turn, 0).role == "system" for turn in turns)


def last_answer(arguments: Arguments) -> list[Turn]:
    """Return turns of which only the last answer is learned.

    Args:
        arguments: Turns, or labels as in `chat`, and further labels as in `placed`.
    """
    form = chat if arguments[0][0] else placed
    turns = [turn_of(turn, number) for number, turn in enumerate(form(arguments))]
    answers = [n for n, turn in enumerate(turns) if turn.role == "assistant"]
    for number in answers:
        turns[number] = replace(turns[number], learned=number == answers[-1])
    return turns


def _text_key(turn: Any) -> str | None:
    """Return the key of the text of a turn of the user, None for another turn."""
    if not isinstance(turn, dict):
        return None
    role = str(turn.get("role") or turn.get("from")).lower()
    key = next((name for name in ("content", "value") if name in turn), None)
    if role in ("user", "human") and key and isinstance(turn[key], str):
        return key
    return None


def interleaved(arguments: Arguments) -> list[Any]:
    """Return texts and images in turn: an image replaces each text that is null.

    A third argument has the number of the text that follows each image.
    """
    texts = _listed(arguments[0][1])
    images = _listed(arguments[1][1])
    if len(arguments) > 2:
        return _inserted(texts, images, _listed(arguments[2][1]))
    if sum(text is None for text in texts) != len(images):
        raise DataError(
            f"{sum(text is None for text in texts)} texts are null, the places of "
            f"images, but the sample has {len(images)} images"
        )
    rest = iter(images)
    return [next(rest) if text is None else text for text in texts]


def _inserted(texts: list[Any], images: list[Any], numbers: list[Any]) -> list[Any]:
    """Return texts and images, each image before the text of its number."""
    if len(numbers) != len(images):
        raise DataError(
            f"{len(images)} images have {len(numbers)} places among the texts"
        )
    result: list[Any] = []
    by_text: list[list[Any]] = [[] for _ in range(len(texts) + 1)]
    for image, number in zip(images, numbers, strict=True):
        by_text[min(max(int(number or 0), 0), len(texts))].append(image)
    for text, preceding in zip(texts, by_text, strict=False):
        result += [*preceding, text]
    return result + by_text[-1]


def items(arguments: Arguments) -> list[Any]:
    """Return the values that are not null as one list; a listing text is parsed."""
    values = [value for _, value in arguments if value is not None]
    if len(values) == 1:
        return listed_text(values[0]) or _listed(values[0])
    return values


def listed_text(value: Any) -> list[str] | None:
    """Return the texts of a text such as `['a', "b"]`, None for other values.

    >>> listed_text("['a', 'b']"), listed_text("a, b")
    (['a', 'b'], None)
    """
    if not isinstance(value, str) or value[:1] != "[" or len(value) > limits.LETTERS:
        return None
    try:
        listed = ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return (
        listed if isinstance(listed, list) and {*map(type, listed)} == {str} else None
    )


def choice(arguments: Arguments) -> int:
    """Return the index of the right one of several choices, from 0 on.

    The answer is a number, a letter, or the text of the choice itself.
    """
    answer = arguments[0][1]
    choices = items(arguments[1:2]) if len(arguments) > 1 else None
    number = _number_of(answer, choices or [])
    if number is None:
        raise DataError(
            f"the right choice must be a number, a letter or one of {choices or []}, "
            f"got {answer!r}"
        )
    if choices is not None and not 0 <= number < len(choices):
        raise DataError(
            f"the right choice must be one of {choices}, {len(choices)} in all, got "
            f"{answer!r}"
        )
    return number


def _number_of(answer: Any, choices: Sequence[Any]) -> int | None:
    """Return the index that an answer denotes, or None."""
    if isinstance(answer, str):
        word = answer.strip(" ().")
        if answer in choices:
            return choices.index(answer)
        if len(word) == 1 and word.isalpha():
            return ord(word.upper()) - ord("A")
        if word.isdigit():
            return int(word)
    is_number = isinstance(answer, int) and not isinstance(answer, bool)
    return answer if is_number else None


SHAPES: Mapping[str, Callable[[Arguments], Any]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            chat,
            exchanges,
            first,
            placed,
            last_answer,
            interleaved,
            items,
            choice,
        )
    }
)
"""The functions that a field map may use, by name."""


def _values(arguments: Arguments, label: str) -> list[Any]:
    return [value for name, value in arguments if name == label and value is not None]


def _texts(arguments: Arguments, label: str) -> list[str]:
    """Return the texts of a label that are not empty."""
    texts = _values(arguments, label)
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"{label} must be text, got {text!r:.80}")
    return [text for text in texts if text.strip()]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str) and value[:1] == "[":
        value = parse_json(value)
    return list(value) if isinstance(value, list | tuple) else [value]


def _placeholders(arguments: Arguments) -> str:
    images = sum(len(_listed(value)) for value in _values(arguments, "images"))
    videos = sum(len(_listed(value)) for value in _values(arguments, "videos"))
    return IMAGE * images + VIDEO * videos


def _with_placeholders(turns: list[Turn], arguments: Arguments) -> list[Turn]:
    """Add missing placeholders before the first turn of the user."""
    if any(IMAGE in turn.text or VIDEO in turn.text for turn in turns):
        return turns
    first = next((n for n, turn in enumerate(turns) if turn.role == "user"), 0)
    placeholders = _placeholders(arguments)
    added = Turn(
        turns[first].role,
        f"{placeholders}\n{turns[first].text}" if placeholders else turns[first].text,
    )
    return [*turns[:first], added, *turns[first + 1 :]]
