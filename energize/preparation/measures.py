"""Measures of samples: functions that return one value for each.

A measure is written as `energize prepare --column NAME=HOW` takes it:

size:txt               bytes of a part, or of all parts of a pattern: size:*.jpg
len:txt                characters of a text; also len:json[caption], of one in JSON
json[meta][quality]    a number or a word in JSON
image:width            of the image header: width, height, pixels or count
image:tokens:NAME      tokens of all images, by the processor NAME of transformers
lengths.parquet:tokens value in a table, by the key of the sample

or is a function of a raw sample, or of a typed one if it is annotated.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np

from energize.core.checks import real_number, whole_number
from energize.core.description import described
from energize.core.lazy import optional_module
from energize.core.samples import CrudeSample, Sample, sample_type_named
from energize.data.media import kind_by_name
from energize.data.nv_meta import SampleConfig, read_dataset_yaml
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    PrepareError,
    nearest,
)
from energize.packing.image_tokens import ImageTokenRule, image_token_rule
from energize.preparation.lookups import Lookup
from energize.preparation.scan import StoredSample
from energize.task.decode import SampleDecoder
from energize.task.field_maps import PartAccess, parse_field
from energize.task.images import image_size
from energize.task.load import SampleLoader

Value = int | float | str
"""Value of a column for one sample."""
How = str | Callable[..., Any]
"""A measure: a text as in `--column NAME=HOW`, or a function of samples."""
Measure = Callable[[StoredSample], Any]
"""Returns the value of a sample; raises `DataError` if the sample has none."""
_OfParts = Callable[[StoredSample, PartAccess, list[str]], Any]

_EXPECTED = (
    "size:PART, len:PART, json[KEY], image:width (or height, pixels, count, "
    "tokens:PROCESSOR), TABLE.parquet:COLUMN, or MODULE:FUNCTION"
)
_SIDES = ("width", "height")
_OF_IMAGES = (*_SIDES, "pixels", "count")
_TOKENS = "tokens:"
_LONGEST_WORD = 200


@dataclass(frozen=True)
class SampleReading:
    """How functions and image measures read the samples of a dataset.

    Args:
        orient: Whether images are turned by their EXIF orientation.
        config: Type and fields of the samples; None if they have none.
        refusal: Why samples have no type, for messages.
    """

    orient: bool = False
    config: SampleConfig | None = None
    refusal: str = "the dataset has no sample type"

    @classmethod
    def of_config(cls, config: SampleConfig) -> SampleReading:
        """Return the reading of samples with a type, as in a `dataset.yaml`."""
        orient = bool(config.options.get("orient"))
        if config.code or config.factory is not None:
            return cls(orient, None, "the dataset makes its samples by its own code")
        return cls(orient, config)

    @classmethod
    def of_folder(cls, root: Path) -> SampleReading:
        """Return the reading of the samples of a prepared folder."""
        try:
            return cls.of_config(read_dataset_yaml(root, code=True))
        except DatasetError as reason:
            return cls(refusal=str(reason))

    def loader(self, wanted: type[Any], decoder: SampleDecoder) -> SampleLoader[Any]:
        """Return the function that makes samples of a type.

        Raises:
            ConfigError: If the samples have no type, or another one.
        """
        config = self.config
        name = wanted.__name__
        if config is None:
            raise ConfigError(
                f"the function takes a {name}, but {self.refusal}. Write a function "
                "of the raw sample, a dict of its parts as bytes"
            )
        sample_type: Any = CrudeSample
        if wanted is not CrudeSample:
            sample_type = sample_type_named(config.sample_module, config.sample_class)
        if not issubclass(sample_type, wanted):
            raise ConfigError(
                f"the function takes a {name}, but the samples are "
                f"{sample_type.__name__}. Annotate its parameter with that type"
            )
        return SampleLoader(
            sample_type=sample_type,
            field_map=None if sample_type is CrudeSample else config.field_map,
            decoder=decoder.with_options(config.options),
            subflavors=config.subflavors,
        )


def measure_of(how: object, reading: SampleReading | None = None) -> Measure:
    """Return the function of a measure; raise `ConfigError` for a wrong one."""
    reading = reading or SampleReading()
    if isinstance(how, ImageTokenRule):
        return partial(_image_tokens, how, reading.orient)
    if callable(how):
        return partial(_called, _in_process(how), _argument_of(how, reading))
    if not isinstance(how, str):
        raise ConfigError(f"expected {_EXPECTED}, got {how!r}")
    if (lookup := Lookup.of(how)) is not None:
        return lookup
    measure, _, rest = how.partition(":") if ":" in how else ("", "", how)
    if measure == "image" and rest in _OF_IMAGES:
        return partial(_image, rest, reading.orient)
    if measure == "image" and rest.startswith(_TOKENS):
        rule = image_token_rule(_processor(rest.removeprefix(_TOKENS)))
        return partial(_image_tokens, rule, reading.orient)
    options = parse_field(rest) if measure in _OF_PARTS else ()
    if not options or not _keys_fit(measure, options):
        hint = _measure_hint(how, measure, rest, options)
        raise ConfigError(f"expected {_EXPECTED}, got {how!r}{hint}")
    return partial(_of_parts, _OF_PARTS[measure], options)


def _processor(name: str) -> Any:
    """Return a processor of transformers by its folder or name."""
    transformers = optional_module(
        "transformers", "transformers", f"image:tokens:{name}"
    )
    try:
        return transformers.AutoProcessor.from_pretrained(name)
    except Exception as reason:  # of many types
        raise ConfigError(
            f"image:tokens:{name}: transformers cannot load this processor "
            f"({type(reason).__name__}: {str(reason)[:200]}). Give a folder with a "
            "preprocessor_config.json, or a name on the Hub"
        ) from reason


def _keys_fit(measure: str, options: Sequence[PartAccess]) -> bool:
    """Return whether a measure of this kind takes the JSON keys of its parts."""
    return measure == "len" or {bool(access.keys) for access in options} == {
        not measure
    }


def _measure_hint(
    how: str, measure: str, rest: str, options: Sequence[PartAccess]
) -> str:
    if measure and options:
        return "; keys of JSON are for len and alone"
    return (
        nearest(rest, (*_OF_IMAGES, "tokens"))
        if measure == "image"
        else suggest_measure(how)
    )


def is_written(how: str) -> bool:
    """Return whether a text is a measure, and not the name of a function.

    >>> (
    ...     is_written("size:txt"),
    ...     is_written("json[quality]"),
    ...     is_written("lengths.parquet:tokens"),
    ...     is_written("tools.py:count"),
    ... )
    (True, True, True, False)
    """
    if ":" not in how or Lookup.of(how) is not None:
        return True
    return how.partition(":")[0] in (*_OF_PARTS, "image")


def is_of_content(how: str) -> bool:
    """Return whether a measure follows from the samples alone.

    >>> is_of_content("size:txt"), is_of_content("lengths.parquet:tokens")
    (True, False)
    """
    is_of_tokens = how.startswith(f"image:{_TOKENS}")
    return is_written(how) and Lookup.of(how) is None and not is_of_tokens


def suggest_measure(how: str) -> str:
    """Return a hint at the measure that a text resembles.

    >>> suggest_measure("siz:txt")
    "; did you mean 'size'?"
    """
    return nearest(how.partition(":")[0], [*_OF_PARTS, "image"])


def how_text(how: Any) -> str:
    """Return a measure as text for `columns.json`; a function as MODULE:NAME."""
    if isinstance(how, str):
        return how
    if isinstance(how, ImageTokenRule):
        return f"{ImageTokenRule.__module__}:{how.name}"
    module, name = (
        getattr(how, attribute, None) for attribute in ("__module__", "__qualname__")
    )
    return f"{module}:{name}" if module and name else str(described(how))


def source_of(how: Any) -> str | None:
    """Return a text that changes with a measure; None if its own text does.

    Tasks with another source are done again.
    """
    if isinstance(how, str):
        lookup = Lookup.of(how)
        return None if lookup is None else lookup.version
    if isinstance(how, ImageTokenRule):
        return str([described(how.one), described(how.several)])
    with suppress(OSError, TypeError):
        return inspect.getsource(how)
    return ""


def checked_value(value: Any) -> Value:
    """Return a value as stored in a column; raise `PrepareError` if none fits."""
    if value is None:
        raise DataError("it is None")
    if isinstance(value, bool | np.bool_):
        return int(value)
    if _is_word(value):
        return sys.intern(str(value))  # so that workers send each word once
    whole = whole_number(value)
    if whole is not None and -(2**63) <= whole < 2**63:
        return whole
    number = real_number(value)
    if whole is None and number is not None and math.isfinite(number):
        return float(number)
    raise PrepareError(
        "a column must have finite numbers of at most 64 bits, or words of at most "
        f"{_LONGEST_WORD} letters, got {type(value).__name__} {str(value)[:80]!r}"
    )


def _is_word(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return len(value) <= _LONGEST_WORD and not value.endswith("\0")


# Functions of users.


def _in_process(how: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function, or one that builds an object of a class in each process."""
    if not isinstance(how, type):
        return how
    if not any("__call__" in vars(base) for base in how.__mro__):
        raise ConfigError(
            f"the class {how.__name__} has no __call__(self, sample). Add it, or pass "
            "a function"
        )
    return _BuiltOnce(how)


class _BuiltOnce:
    """Calls an object of a class that is built once in each process."""

    def __init__(self, cls: type[Any]) -> None:
        self._class = cls
        self._built: tuple[int, Any] = (-1, None)

    def __call__(self, sample: Any) -> Any:
        process, built = self._built
        if process != os.getpid():
            built = self._class()
            self._built = os.getpid(), built
        return built(sample)


def _argument_of(
    how: Callable[..., Any], reading: SampleReading
) -> Callable[[StoredSample], Any]:
    """Return the function that makes the argument of a function of a sample."""
    wanted = _annotated_type(how)
    if wanted is None:
        return _raw
    decoder = getattr(how, "decoder", None)
    if not isinstance(decoder, SampleDecoder):
        decoder = SampleDecoder()
    return partial(_typed, reading.loader(wanted, decoder))


def _annotated_type(how: Callable[..., Any]) -> type[Any] | None:
    """Return the sample type that annotates the first parameter of a function."""
    is_object = isinstance(how, type) or not inspect.isroutine(how)
    try:
        function: Any = how
        if is_object:
            function = cast("Any", how).__call__
        hints = get_type_hints(function)
        names = [*inspect.signature(function).parameters]
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # built-in functions and partial objects
        return None
    except NameError as reason:
        raise ConfigError(
            f"the annotations of {how_text(how)} cannot be resolved: {reason}. Import "
            "the names that they use"
        ) from reason
    names = names[1:] if isinstance(how, type) else names
    wanted = hints.get(names[0]) if names else None
    is_sample = isinstance(wanted, type) and issubclass(wanted, Sample | CrudeSample)
    return wanted if is_sample else None


def _raw(sample: StoredSample) -> Any:
    return sample.raw()


def _typed(load: SampleLoader[Any], sample: StoredSample) -> Any:
    return load(sample.raw())


def _called(
    function: Callable[[Any], Any],
    argument: Callable[[StoredSample], Any],
    sample: StoredSample,
) -> Any:
    value = argument(sample)
    try:
        return function(value)
    except DataError:
        raise
    except Exception as reason:  # whatever the function of a user raises
        at = traceback.extract_tb(reason.__traceback__)[-1]
        raise PrepareError(
            f"it raised {type(reason).__name__}: {reason} ({at.filename}:{at.lineno})"
        ) from reason


# Parts of samples.


def _of_parts(
    measure: _OfParts, options: Sequence[PartAccess], sample: StoredSample
) -> Any:
    """Measure the first of some parts that a sample has, with keys for JSON."""
    why: DataError | None = None
    for access in options:
        if names := access.among(sample.sizes):
            try:
                return measure(sample, access, names)
            except DataError as reason:
                why = reason
    wanted = ", ".join(dict.fromkeys(access.part for access in options))
    raise why or DataError(f"it has no part {wanted}, but {', '.join(sample.sizes)}")


def _size(sample: StoredSample, access: PartAccess, names: list[str]) -> int:
    return sum(sample.sizes[name] for name in names)


def _length(sample: StoredSample, access: PartAccess, names: list[str]) -> int:
    texts = (
        [_in_json(sample, access, names)] if access.keys else [*map(sample.text, names)]
    )
    if not all(isinstance(text, str) for text in texts):
        raise PrepareError(f"{access} must be text, got {type(texts[0]).__name__}")
    return sum(map(len, texts))


def _in_json(sample: StoredSample, access: PartAccess, names: list[str]) -> Any:
    value = sample.json(PartAccess(names[0], access.keys))
    if value is None:
        raise DataError(f"{access} is null")
    if isinstance(value, dict | list):
        raise PrepareError(
            f"{access} is neither a number nor a word, but a {type(value).__name__}"
        )
    return value


_OF_PARTS: Mapping[str, _OfParts] = {"": _in_json, "size": _size, "len": _length}
"""How a part is measured, by kind."""


# Images of samples.


def _image_sizes(sample: StoredSample, *, orient: bool) -> list[tuple[int, int]]:
    """Return width and height of all images of a sample, from their headers."""
    names = [name for name in sample.sizes if kind_by_name(f"a.{name}") == "image"]
    return [image_size(sample.part(name), orient=orient) for name in names]


def _image(measure: str, orient: bool, sample: StoredSample) -> int:
    """Measure images: count, sum of pixels, or the largest width or height."""
    sizes = _image_sizes(sample, orient=orient)
    if measure == "count":
        return len(sizes)
    if not sizes:
        raise DataError(f"it has no image, only {', '.join(sample.sizes)}")
    if measure == "pixels":
        return sum(width * height for width, height in sizes)
    return max(size[_SIDES.index(measure)] for size in sizes)


def _image_tokens(rule: ImageTokenRule, orient: bool, sample: StoredSample) -> int:
    """Return the tokens of all images of a sample; 0 without images."""
    return rule.of_sample(_image_sizes(sample, orient=orient))
