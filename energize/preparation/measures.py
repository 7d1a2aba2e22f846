"""What a column says of a sample, and how `energize prepare --column NAME=HOW` writes it.

size:txt               bytes of a part, or of all that a pattern names: size:*.jpg
len:txt                characters of a text; also len:json[caption], of one in JSON
text:lang              what a part says, as a word
number:score           what a part says, as a number
json[meta][quality]    a number or a word in JSON
image:width            of the image, as its header says: width, height or pixels
"""

from __future__ import annotations

import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import PIL.Image

from energize.core.checks import real_number, whole_number
from energize.core.description import described
from energize.data.files import LocalFile
from energize.data.tar import ScannedSample
from energize.errors import ConfigError, DataError, PrepareError, nearest
from energize.task.fields import PartAccess, parse_field

Value = int | float | str
"""What a column says of one sample."""

_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm")
_IMAGE_SIZES: Mapping[str, Callable[[tuple[int, int]], int]] = {
    "width": lambda size: size[0],
    "height": lambda size: size[1],
    "pixels": lambda size: size[0] * size[1],
}
_KINDS = ("size", "len", "text", "number", "image")
_EXPECTED = (
    "size:PART, len:PART, text:PART, number:PART, json[KEY], image:width (or height, pixels), or "
    "MODULE:FUNCTION"
)
_MOST = 2**63
_LONGEST_WORD = 200
_USUAL_HEADER = 2**16


@dataclass(frozen=True, slots=True)
class Absent:
    """That a sample has no value, and why."""

    why: str


class RawSample:
    """A sample of a shard whose parts are read when they are asked for."""

    def __init__(
        self, dataset: str, shard: str, number: int, scanned: ScannedSample, file: LocalFile
    ) -> None:
        self._dataset, self._shard, self._number = dataset, shard, number
        self._scanned, self._file = scanned, file

    @property
    def where(self) -> str:
        """Shard and key, for messages."""
        return f"{self._dataset}/{self._shard}, sample {self._scanned.key!r}"

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes of each part, by name."""
        return {part.name: part.size for part in self._scanned.parts}

    def part(self, name: str, limit: int | None = None) -> bytes:
        """The bytes of a part, or the first of them."""
        part = next(each for each in self._scanned.parts if each.name == name)
        return self._file.read(part.offset, part.size if limit is None else min(limit, part.size))

    def raw(self) -> dict[str, Any]:
        """As `WebdatasetSource` gives it: a new dict of its parts, after where it is from."""
        return {
            "__key__": self._scanned.key,
            "__dataset__": self._dataset,
            "__shard__": self._shard,
            "__index__": self._number,
            **{name: self.part(name) for name in self.sizes},
        }


class Measure(ABC):
    """A function of stored samples: a number, a word, or `Absent`."""

    @abstractmethod
    def __call__(self, sample: RawSample) -> Value | Absent:
        """What the column says of a sample; `PrepareError` for what no column could say."""


@dataclass(frozen=True)
class _OfParts(Measure):
    """Of the first that a sample has of some parts, each with keys where it is JSON."""

    options: tuple[PartAccess, ...]

    def __call__(self, sample: RawSample) -> Value | Absent:
        why = ""
        for access in self.options:
            names = access.among(sample.sizes)
            found = self.measured(sample, access, names) if names else None
            if found is not None and not isinstance(found, Absent):
                return found
            why = found.why if found else why
        parts = ", ".join(sample.sizes)
        wanted = ", ".join(dict.fromkeys(access.part for access in self.options))
        return Absent(why or f"it has no part {wanted}, but {parts}")

    @abstractmethod
    def measured(
        self, sample: RawSample, access: PartAccess, names: list[str]
    ) -> Value | Absent | None:
        """That of these parts of a sample, one or more."""


class _Size(_OfParts):
    """Bytes, of several parts together."""

    def measured(self, sample: RawSample, access: PartAccess, names: list[str]) -> Value:
        return sum(sample.sizes[name] for name in names)


class _Length(_OfParts):
    """Characters, of several texts together."""

    def measured(self, sample: RawSample, access: PartAccess, names: list[str]) -> Value | Absent:
        if not access.keys:
            return sum(len(_decoded(sample, name)) for name in names)
        value = _in_json(sample, access, names[0])
        if value is None or isinstance(value, Absent):
            return value or Absent(f"{access} is null")
        if not isinstance(value, str):
            raise _unfit(sample, value, f"{access} is no text")
        return len(value)


class _Word(_OfParts):
    """What a part says."""

    def measured(self, sample: RawSample, access: PartAccess, names: list[str]) -> Value | Absent:
        if sample.sizes[names[0]] > 4 * _LONGEST_WORD:
            raise _no_word(sample, f"{names[0]} has {sample.sizes[names[0]]} bytes")
        return _decoded(sample, names[0]).strip() or Absent(f"{names[0]} is empty")


class _Number(_Word):
    """The number that a part says."""

    def measured(self, sample: RawSample, access: PartAccess, names: list[str]) -> Value | Absent:
        word = super().measured(sample, access, names)
        if isinstance(word, Absent):
            return word
        for kind in (int, float):
            try:
                return kind(word)
            except ValueError:
                continue
        raise _unfit(sample, word, f"{names[0]} is no number")


class _InJson(_OfParts):
    """A number or a word in JSON."""

    def measured(
        self, sample: RawSample, access: PartAccess, names: list[str]
    ) -> Value | Absent | None:
        value = _in_json(sample, access, names[0])
        if value is None:
            return Absent(f"{access} is null")
        if isinstance(value, dict | list):
            raise _unfit(sample, value, f"{access} is neither a number nor a word")
        found: Value | Absent = value
        return found


@dataclass(frozen=True)
class _Image(Measure):
    """The size of the image, of several the sum of pixels and the largest width or height."""

    what: str

    def __call__(self, sample: RawSample) -> Value | Absent:
        names = [name for name in sample.sizes if name.rpartition(".")[2].lower() in _IMAGES]
        if not names:
            return Absent(f"it has no image, but {', '.join(sample.sizes)}")
        sizes = [_IMAGE_SIZES[self.what](_image_size(sample, name)) for name in names]
        return sum(sizes) if self.what == "pixels" else max(sizes)


@dataclass(frozen=True)
class _Called(Measure):
    """What a function of the user returns for the raw sample."""

    function: Callable[[dict[str, Any]], Any]

    def __call__(self, sample: RawSample) -> Value | Absent:
        raw = sample.raw()
        try:
            value = self.function(raw)
        except Exception as reason:  # whatever the function of a user raises
            raise PrepareError(
                f"{sample.where}: {described(self.function)} raised "
                f"{type(reason).__name__}: {reason}{_line_of(reason)}"
            ) from reason
        return Absent(f"{described(self.function)} returned None") if value is None else value


def measure_of(how: object) -> Measure:
    """A measure as it is written, see above; or a function of raw samples.

    Raises `ConfigError`, which says what was expected.

    >>> measure_of("size:txt")
    _Size(options=(PartAccess(part='txt', keys=()),))
    """
    if callable(how):
        return _Called(how)
    if not isinstance(how, str):
        raise ConfigError(f"expected {_EXPECTED}; got {how!r}")
    kind, colon, rest = how.partition(":")
    if not colon:
        options = parse_field(how)
        if not all(access.keys for access in options):
            hint = nearest(how, _KINDS)
            raise ConfigError(f"expected {_EXPECTED}; got {how!r}{hint}")
        return _InJson(options)
    if kind == "image":
        if rest not in _IMAGE_SIZES:
            known = list(_IMAGE_SIZES)
            raise ConfigError(
                f"of images there are {', '.join(known)}; got {how!r}{nearest(rest, known)}"
            )
        return _Image(rest)
    kinds: Mapping[str, type[_OfParts]] = {
        "size": _Size,
        "len": _Length,
        "text": _Word,
        "number": _Number,
    }
    if kind not in kinds:
        raise ConfigError(f"expected {_EXPECTED}; got {how!r}{nearest(kind, _KINDS)}")
    options = parse_field(rest)
    if kind != "len" and any(access.keys for access in options):
        raise ConfigError(f"{how!r}: {kind} is of parts; of what is in JSON take {rest} alone")
    return kinds[kind](options)


def written(how: str) -> bool:
    """Whether a text is a measure as it is written, rather than a function's name.

    >>> written("size:txt"), written("json[quality]"), written("tools.py:count")
    (True, True, False)
    """
    return ":" not in how or how.partition(":")[0] in _KINDS


def kind_meant(how: str) -> str:
    """What else than a function may have been meant, for messages.

    >>> kind_meant("siz:txt")
    "; did you mean 'size'?"
    """
    return nearest(how.partition(":")[0], _KINDS)


def how_text(how: Any) -> str:
    """How a column was measured, for `columns.json` and messages; a function as MODULE:NAME."""
    if isinstance(how, str):
        return how
    module, name = (getattr(how, each, None) for each in ("__module__", "__qualname__"))
    return f"{module}:{name}" if module and name else str(described(how))


def checked_value(sample: RawSample, value: Any) -> Value | Absent:
    """A measured value as what a column holds; `PrepareError` for one that none could."""
    if isinstance(value, Absent):
        return value
    if isinstance(value, str):
        if len(value) > _LONGEST_WORD:
            raise _no_word(sample, f"{value[:40]!r}... has {len(value)} characters")
        return value
    if isinstance(value, bool | np.bool_):
        return int(value)
    whole, number = whole_number(value), real_number(value)
    if whole is not None:
        if not -_MOST <= whole < _MOST:
            raise _unfit(sample, value, "whole numbers of a column have 64 bits")
        return whole
    if number is None:
        raise _unfit(sample, value, "a column has numbers or words")
    if not math.isfinite(number):
        raise _unfit(sample, value, "the numbers of a column are finite")
    return float(number)


def _in_json(sample: RawSample, access: PartAccess, name: str) -> Any:
    """What the keys lead to, `Absent` when nowhere."""
    try:
        content = json.loads(sample.part(name))
    except (ValueError, RecursionError) as reason:
        raise PrepareError(f"{sample.where}: {name} is not JSON: {reason}") from reason
    try:
        return PartAccess(name, access.keys).within(content)
    except DataError as reason:
        return Absent(str(reason))


def _decoded(sample: RawSample, name: str) -> str:
    try:
        return sample.part(name).decode("utf-8")
    except UnicodeDecodeError as reason:
        raise PrepareError(f"{sample.where}: {name} is no UTF-8: {reason}") from reason


def _image_size(sample: RawSample, name: str, limit: int | None = _USUAL_HEADER) -> tuple[int, int]:
    """Width and height as the header says; where it is longer than usual, all is read."""
    try:
        with PIL.Image.open(io.BytesIO(sample.part(name, limit))) as image:
            return image.size
    except Exception as reason:  # Pillow raises anything for bytes that are no image
        if limit is not None:
            return _image_size(sample, name, None)
        raise PrepareError(
            f"{sample.where}: {name} is no image that Pillow can read: {reason}"
        ) from reason


def _line_of(reason: BaseException) -> str:
    """Where in the code of the user an exception comes from."""
    trace = reason.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = None if trace is None else trace.tb_frame.f_code
    return "" if code is None or trace is None else f" ({code.co_filename}:{trace.tb_lineno})"


def _no_word(sample: RawSample, what: str) -> PrepareError:
    return PrepareError(
        f"{sample.where}: {what}, and a word of a column has {_LONGEST_WORD} at most; of a text "
        "measure the length, len:PART or len:json[KEY]"
    )


def _unfit(sample: RawSample, value: Any, expected: str) -> PrepareError:
    return PrepareError(
        f"{sample.where}: {expected}; got {type(value).__name__} {str(value)[:80]!r}"
    )


def named(columns: Mapping[str, object]) -> Iterator[tuple[str, Measure]]:
    """Columns with their measures; `ConfigError` that names the column for a wrong one."""
    for name, how in columns.items():
        try:
            yield name, measure_of(how)
        except ConfigError as fault:
            raise ConfigError(f"column {name!r}: {fault}") from None
