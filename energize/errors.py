"""All exceptions that energize raises deliberately.

    EnergizeError
    ├── ConfigError                a parameter is invalid (ValueError)
    │   ├── WeightError            weights are missing, negative, NaN, all zero
    │   ├── MetadatasetError       a YAML metadataset, with file, line and path
    │   ├── ReturnError            a function returned an invalid value
    │   ├── ColumnError            a column is not indexed, or invalid
    │   └── NotIndexedError        random access to a stream (TypeError)
    ├── DatasetError               a path is not a usable dataset
    │   ├── DatasetNotFoundError   no such path (FileNotFoundError, RuntimeError)
    │   ├── NotPreparedError       the folder has no .nv-meta
    │   ├── SplitError             the split is unknown
    │   ├── EmptyDatasetError      there are no samples (RuntimeError)
    │   ├── ShardError             a shard is damaged, or disagrees with its index
    │   ├── UntrustedCodeError     code of a data folder is not trusted
    │   └── PrepareError           a folder cannot be prepared
    ├── SampleError                one sample; the message has source, shard and key
    │   ├── DataError              damaged bytes; counted, substituted
    │   │   └── DecodeError        a part cannot be decoded
    │   ├── EncoderError           a user's function raised
    │   ├── FatalSampleError       a failure that no handler can skip
    │   └── SubstitutionError      no substitute could be found for an item
    ├── NotRepeatableError         a second call or reading gave another value
    ├── FailureBudgetError         more samples failed than allowed
    ├── StateError                 a saved state cannot be used (ValueError)
    │   ├── StateMismatchError     it belongs to another dataset
    │   └── RestoreKeyError        a restore key names no item of this dataset
    └── LoaderError                delivery failed (RuntimeError)
        └── WorkerDiedError        a worker process was killed

`SkipSample` is not an error: a user's function raises it to leave a sample out.

Every class can be rebuilt from its message, so it can be pickled by a worker process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = [
    "ColumnError",
    "ConfigError",
    "DataError",
    "DatasetError",
    "DatasetNotFoundError",
    "DecodeError",
    "EmptyDatasetError",
    "EncoderError",
    "EnergizeError",
    "FailureBudgetError",
    "FatalSampleError",
    "LoaderError",
    "MetadatasetError",
    "NotIndexedError",
    "NotPreparedError",
    "NotRepeatableError",
    "PrepareError",
    "RestoreKeyError",
    "ReturnError",
    "SampleError",
    "ShardError",
    "SkipSample",
    "SplitError",
    "StateError",
    "StateMismatchError",
    "SubstitutionError",
    "UntrustedCodeError",
    "WeightError",
    "WorkerDiedError",
    "log_exception",
    "reraise_exception",
]

_log = logging.getLogger("energize")

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufeff]"
)
"""Characters that control terminals or reorder text, and lone surrogates."""

_SPACES = re.compile(r"(\s+)")
_MOST_CHARACTERS = 30_000
_LONGEST_WORD = 1000
_NAMES_SHOWN = 20
_COMPARED = 1000
_LONGEST = 200
"""Limits of `nearest`: known words that are compared, and characters of each."""


class EnergizeError(Exception):
    r"""Base class of all errors that energize raises deliberately.

    Messages are safe to print: control characters in quoted data are escaped, and very
    long messages are shortened.

    Example:
        >>> print(EnergizeError("unknown key \x1b[31ma"))
        unknown key \x1b[31ma
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(
            *(legible(arg) if isinstance(arg, str) else arg for arg in args)
        )


class ConfigError(EnergizeError, ValueError):
    """A parameter has an invalid value."""


class ReturnError(ConfigError):
    """A function returned an invalid value, such as None or a generator.

    This is a fault of the function, not of a sample, so `on_error="skip"` does not
    apply.
    """


class WeightError(ConfigError):
    """Weights are missing, negative, not finite, all zero, or not one per dataset."""


class MetadatasetError(ConfigError):
    """A YAML metadataset is invalid; the message has file, line and path."""


class ColumnError(ConfigError):
    """A column is not indexed, or contains an invalid value."""


class NotIndexedError(ConfigError, TypeError):
    """Random access or a length was requested of a stream."""


class DatasetError(EnergizeError):
    """A path is not a readable dataset."""


class DatasetNotFoundError(DatasetError, FileNotFoundError, RuntimeError):
    """The path of a dataset does not exist."""


class NotPreparedError(DatasetError):
    """The folder has no index; run `energize prepare`."""


class SplitError(DatasetError):
    """The dataset does not have the requested split part."""


class EmptyDatasetError(DatasetError, RuntimeError):
    """There are no samples to read."""


class ShardError(DatasetError):
    """A shard is truncated, compressed, or disagrees with its index."""


class UntrustedCodeError(DatasetError, ValueError):
    """A data folder names code that the user does not trust."""


class PrepareError(DatasetError):
    """A folder of shards cannot be prepared."""


class SampleError(EnergizeError):
    """A sample is invalid."""


class DataError(SampleError):
    """The bytes of a sample are damaged.

    It counts against the failure budget, and a substitute replaces the sample (padding
    in validation). Raise it in an encoder to treat a sample in the same way.
    """


class DecodeError(DataError):
    """A part of a sample cannot be decoded."""


class EncoderError(SampleError):
    """A user's function raised an exception, which is `__cause__`.

    Attributes:
        sample: The argument of the function; only in the process that called it.
    """

    sample: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error without the sample."""
        attributes = {
            name: value for name, value in self.__dict__.items() if name != "sample"
        }
        return type(self), self.args, attributes


class FatalSampleError(SampleError):
    """A failure that ends the run, whatever `on_error` or an error handler decides.

    Error handlers can raise it. If a handler is set, faults of the program or machine,
    such as unknown names, missing modules and full memory, become this error.
    """


class SubstitutionError(SampleError):
    """An item and all its substitutes were skipped or failed."""


class NotRepeatableError(EnergizeError):
    """A function or a source returned another value when called again."""


class FailureBudgetError(EnergizeError):
    """More samples failed than the failure budget allows."""


class StateError(EnergizeError, ValueError):
    """A saved state cannot be used."""


class StateMismatchError(StateError):
    """A saved state belongs to another dataset; the message lists differences."""


class RestoreKeyError(StateError):
    """A restore key is invalid, or names no item of this dataset."""


class LoaderError(EnergizeError, RuntimeError):
    """The delivery of batches failed."""


class WorkerDiedError(LoaderError):
    """A worker process ended without an exception, for example by a signal."""


class SkipSample(Exception):  # noqa: N818 - not an error, and the name users know
    """Raised by a user's function to leave a sample out.

    In an indexed dataset, a substitute from the same source replaces the sample, so
    batches stay full; in validation its row is padding (`padding_rows`). A stream
    continues with the next sample.

    Example:
        >>> def encode_sample(sample):
        ...     if not sample.caption:
        ...         raise SkipSample
        ...     return sample
    """


def legible(text: str) -> str:
    r"""Return text that is safe and short enough for messages and terminals.

    Args:
        text: Text of any origin.

    Example:
        >>> legible("a\x1b[2Jb")
        'a\\x1b[2Jb'
        >>> len(legible("a" * 10**6)) < 200, len(legible("a " * 10**6)) <= 30_000
        (True, True)
    """
    if len(text) > _LONGEST_WORD:
        words = _SPACES.split(_shortened(text, 10 * _MOST_CHARACTERS))
        text = "".join(
            _shortened(word, 80) if len(word) > _LONGEST_WORD else word
            for word in words
        )
    return _shortened(visible(text), _MOST_CHARACTERS)


def visible(text: str) -> str:
    r"""Escape control characters of a text, except line ends and tabs.

    Args:
        text: Text of any origin.

    Example:
        >>> visible("a\x1b[2Jb\nc")
        'a\\x1b[2Jb\nc'
    """
    return _UNSEEN.sub(lambda match: ascii(match.group())[1:-1], text)


def _shortened(text: str, most: int) -> str:
    """Return the beginning and the end of a text that is too long."""
    if len(text) <= most:
        return text
    half = (most - 25) // 2
    return f"{text[:half]}...({len(text) - 2 * half} letters)...{text[-half:]}"


def some(names: Iterable[object]) -> str:
    """Return the first of any number of names, for messages.

    Args:
        names: The names.

    Example:
        >>> some(["a", "b"]), some(range(100))[-22:]
        ("'a', 'b'", '17, 18, 19 and 80 more')
    """
    listed = list(names)
    more = (
        f" and {len(listed) - _NAMES_SHOWN} more" if len(listed) > _NAMES_SHOWN else ""
    )
    return (
        ", ".join(_shortened(repr(name), 80) for name in listed[:_NAMES_SHOWN]) + more
    )


def in_place_of(shards: Path) -> str:
    """Return a hint to use the folder of a shard instead of its path.

    Args:
        shards: The path of a shard, or a pattern of several.

    Returns:
        The hint; "" for other paths.

    Example:
        >>> in_place_of(Path("a/{0..9}.tar")), in_place_of(Path("a"))
        ('. Run `energize prepare a`, then pass a', '')
    """
    folder = shards.parent
    hint = f". Run `energize prepare {folder}`, then pass {folder}"
    return hint if shards.suffix == ".tar" else ""


def nearest(word: str, words: Sequence[str]) -> str:
    """Return the hint `; did you mean 'x'?` for a misspelt word, or "".

    Args:
        word: The misspelt word.
        words: The valid words.
    """
    if len(word) > _LONGEST:
        return ""
    listed = (other for other in islice(words, _COMPARED) if len(other) <= _LONGEST)
    by_lower = {other.lower(): other for other in listed}
    matches = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[matches[0]]!r}?" if matches else ""


def keys_text(sample: Any) -> str:
    """Return the keys of a sample, or of the samples of a list, for messages.

    Args:
        sample: The sample or the list.

    Example:
        >>> keys_text([{"__key__": "a"}, {"__key__": "b"}, 3])
        "'a', 'b'"
    """
    keys = []
    for member in sample if isinstance(sample, list) else [sample]:
        is_dict = isinstance(member, dict)
        fields = member if is_dict else {"__key__": getattr(member, "__key__", None)}
        keys.append(fields.get("__key__"))
    return some(key for key in keys if key is not None)


def log_exception(
    e: Exception, sample: Any, sources: Sequence[Any] | None = None
) -> None:
    """Log an exception with its traceback and the files of the sample.

    For `global_error_handler` of `energize.energon.WorkerConfig`. The sample is left
    out.

    Args:
        e: The exception.
        sample: The sample.
        sources: The `SourceInfo`s of the sample.

    Example:
        >>> log_exception(ValueError("no image"), {"__key__": "a"})
    """
    keys = keys_text(sample) or "None"
    locations = [
        f"\n  from {source.dataset_path}, {source.shard_name}, index {source.index}"
        for source in sources or ()
    ]
    text = "%s: %s; sample %s is left out%s"
    if isinstance(sample, list):
        text = "%s: %s; the batch of samples %s is left out%s"
    _log.error(text, type(e).__name__, e, keys, "".join(locations), exc_info=e)


def reraise_exception(
    e: Exception, sample: Any, sources: Sequence[Any] | None = None
) -> None:
    """Raise an exception again.

    For `global_error_handler` of `energize.energon.WorkerConfig`.

    Args:
        e: The exception.
        sample: The sample.
        sources: The `SourceInfo`s of the sample.

    Example:
        >>> reraise_exception(ValueError("no image"), {"__key__": "a"})
        Traceback (most recent call last):
            ...
        ValueError: no image
    """
    raise e
