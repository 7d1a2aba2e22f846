"""Every exception energize raises on purpose.

    EnergizeError
    ├── ConfigError                a parameter is wrong (ValueError)
    │   ├── WeightError            weights are missing, negative, NaN, all zero
    │   ├── MetadatasetError       a YAML metadataset, with file, line and path
    │   ├── ReturnError            a function returned what it may not
    │   ├── ColumnError            what is not known of samples without reading them
    │   └── NotIndexedError        random access to a stream (TypeError)
    ├── DatasetError               something on disk is not a usable dataset
    │   ├── DatasetNotFoundError   no such path (FileNotFoundError, RuntimeError)
    │   ├── NotPreparedError       the folder has no .nv-meta
    │   ├── SplitError             the split is unknown
    │   ├── EmptyDatasetError      there is no sample to read (RuntimeError)
    │   ├── ShardError             a shard is damaged, or disagrees with its index
    │   ├── UntrustedCodeError     code of a data folder that is not trusted
    │   └── PrepareError           a folder cannot be prepared
    ├── SampleError                one sample: source, shard and key are in the message
    │   ├── DataError              the bytes of a sample are bad; counted, substituted
    │   │   └── DecodeError        a part cannot be decoded
    │   ├── EncoderError           the user's function raised
    │   ├── FatalSampleError       a failure that no handler may pass over
    │   └── SubstitutionError      no substitute could be found for an item
    ├── NotRepeatableError         a function or a source is another at a second reading
    ├── FailureBudgetError         more samples failed than were allowed
    ├── StateError                 a saved state cannot be used (ValueError)
    │   ├── StateMismatchError     it belongs to another dataset
    │   └── RestoreKeyError        a restore key names no item of this dataset
    └── LoaderError                delivery broke (RuntimeError)
        └── WorkerDiedError        a worker process was killed

`SkipSample` is not an error: a user's function raises it to leave a sample out.

Every class can be rebuilt from its message alone, so that it survives the way from a
worker process to the trainer.
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
"""Letters that steer terminals or hide and turn text around, and halves of letters."""

_SPACES = re.compile(r"(\s+)")
_MOST_LETTERS = 30_000
_LONGEST_WORD = 1000
_TOLD = 20
_COMPARED = 1000
_LONGEST = 200
"""How many known words are looked at for one like a wrong one, and of how many letters
each."""


class EnergizeError(Exception):
    r"""Base of all errors that energize raises on purpose.

    What is quoted from files cannot act on a terminal or flood a log: control
    characters in the message are written out, and what is very long in it is left out.

    >>> print(EnergizeError("unknown key \x1b[31ma"))
    unknown key \x1b[31ma
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(
            *(legible(each) if isinstance(each, str) else each for each in args)
        )


class ConfigError(EnergizeError, ValueError):
    """A parameter has a value that cannot be used."""


class ReturnError(ConfigError):
    """A function returned what it may not: None, or a generator. That is no fault of a
    sample, so nobody may leave it out.
    """


class WeightError(ConfigError):
    """Weights are missing, negative, not finite, all zero, or not one per dataset."""


class MetadatasetError(ConfigError):
    """A YAML metadataset is wrong; the message names the file, the line and the path in
    it.
    """


class ColumnError(ConfigError):
    """What is asked of samples is not indexed, or is no value that could be used."""


class NotIndexedError(ConfigError, TypeError):
    """Random access or a length was asked of a dataset that can only be read as a
    stream.
    """


class DatasetError(EnergizeError):
    """Something on disk is not a dataset that can be read."""


class DatasetNotFoundError(DatasetError, FileNotFoundError, RuntimeError):
    """The path of a dataset does not exist."""


class NotPreparedError(DatasetError):
    """The folder exists, but has no index; `energize prepare` makes one."""


class SplitError(DatasetError):
    """The asked split part is not among those of the dataset."""


class EmptyDatasetError(DatasetError, RuntimeError):
    """There is no sample to read."""


class ShardError(DatasetError):
    """A shard is truncated, compressed, or disagrees with its index."""


class UntrustedCodeError(DatasetError, ValueError):
    """A data folder names code to run that the user did not trust by name."""


class PrepareError(DatasetError):
    """A folder of shards cannot be prepared."""


class SampleError(EnergizeError):
    """Something is wrong with one sample."""


class DataError(SampleError):
    """The bytes of a sample are bad.

    It is counted against the failure budget, and a substitute takes the sample's place,
    or padding in validation. Raise it in an encoder to have a sample of yours treated
    the same way.
    """


class DecodeError(DataError):
    """A part of a sample cannot be decoded."""


class EncoderError(SampleError):
    """A function of the user raised; `__cause__` is what it raised.

    `sample` is what it was called with, in the process where it was called.
    """

    sample: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what travels to other processes; samples stay where they are."""
        kept = {
            name: value for name, value in self.__dict__.items() if name != "sample"
        }
        return type(self), self.args, kept


class FatalSampleError(SampleError):
    """A failure that ends the run, whatever `on_error` or a handler says of others.

    A handler may raise it. What is wrong with the program, and not with one sample (a
    name or a module that is not there, memory that is full), becomes one by itself
    under a handler.
    """


class SubstitutionError(SampleError):
    """An item and all its substitutes were skipped or failed."""


class NotRepeatableError(EnergizeError):
    """A function returned, or a source gave, another value when it was read a second
    time.
    """


class FailureBudgetError(EnergizeError):
    """More samples failed than the failure budget allows."""


class StateError(EnergizeError, ValueError):
    """A saved state cannot be used."""


class StateMismatchError(StateError):
    """A saved state belongs to another dataset; the message lists the differences by
    name.
    """


class RestoreKeyError(StateError):
    """A restore key is none, or names no item of this dataset."""


class LoaderError(EnergizeError, RuntimeError):
    """Delivery of batches broke."""


class WorkerDiedError(LoaderError):
    """A worker process ended without saying why, killed by the system for example."""


class SkipSample(Exception):  # noqa: N818 - not an error, and the name users know
    """Raised by a user's function to leave a sample out.

    In an indexed dataset a substitute from the same source takes its place, so that
    batches stay full; in validation its row is padding (`padding_rows`). A streaming
    dataset goes on with the next sample.

    >>> def encode_sample(sample):
    ...     if not sample.caption:
    ...         raise SkipSample
    ...     return sample
    """


def legible(text: str) -> str:
    r"""Return a text of any origin as it may stand in a message or on a terminal.

    >>> (
    ...     legible("a\x1b[2Jb"),
    ...     len(legible("a" * 10**6)) < 200,
    ...     len(legible("a " * 10**6)) <= 30_000,
    ... )
    ('a\\x1b[2Jb', True, True)
    """
    if len(text) > _LONGEST_WORD:
        words = _SPACES.split(_shortened(text, 10 * _MOST_LETTERS))
        text = "".join(
            _shortened(each, 80) if len(each) > _LONGEST_WORD else each
            for each in words
        )
    return _shortened(visible(text), _MOST_LETTERS)


def visible(text: str) -> str:
    r"""Return a text of which all letters can be seen; line ends and tabs stay.

    >>> visible("a\x1b[2Jb\nc")
    'a\\x1b[2Jb\nc'
    """
    return _UNSEEN.sub(lambda found: ascii(found.group())[1:-1], text)


def _shortened(text: str, most: int) -> str:
    """Return the beginning and the end of a text of more letters."""
    if len(text) <= most:
        return text
    kept = (most - 25) // 2
    return f"{text[:kept]}...({len(text) - 2 * kept} letters)...{text[-kept:]}"


def some(names: Iterable[object]) -> str:
    """Return the first of any number of names, for messages.

    >>> some(["a", "b"]), some(range(100))[-22:]
    ("'a', 'b'", '17, 18, 19 and 80 more')
    """
    listed = list(names)
    more = f" and {len(listed) - _TOLD} more" if len(listed) > _TOLD else ""
    return ", ".join(_shortened(repr(each), 80) for each in listed[:_TOLD]) + more


def in_place_of(shards: Path) -> str:
    """Return what to give in place of the path of a shard, or of several by a pattern.

    >>> in_place_of(Path("a/{0..9}.tar")), in_place_of(Path("a"))
    ('; shards are read by their folder: energize prepare a, and then give a', '')
    """
    folder = shards.parent
    told = (
        f"; shards are read by their folder: energize prepare {folder}, and then "
        f"give {folder}"
    )
    return told if shards.suffix == ".tar" else ""


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a hint `; did you mean 'x'?` naming the known word most like `word`, or
    nothing.
    """
    if len(word) > _LONGEST:
        return ""
    listed = (other for other in islice(known, _COMPARED) if len(other) <= _LONGEST)
    by_lower = {other.lower(): other for other in listed}
    found = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""


def log_exception(
    e: Exception, sample: Any, sources: Sequence[Any] | None = None
) -> None:
    """Log an exception with its traceback and the files of the sample, which is left
    out as a failed one: a `global_error_handler` of `energize.energon.WorkerConfig`.

    >>> log_exception(ValueError("no image"), {"__key__": "a"})
    """
    found = (
        sample.get("__key__")
        if isinstance(sample, dict)
        else getattr(sample, "__key__", None)
    )
    places = [
        f"\n  from {each.dataset_path}, {each.shard_name}, index {each.index}"
        for each in sources or ()
    ]
    text = "%s: %s; sample %r is left out%s"
    _log.error(text, type(e).__name__, e, found, "".join(places), exc_info=e)


def reraise_exception(
    e: Exception, sample: Any, sources: Sequence[Any] | None = None
) -> None:
    """Raise an exception again: a `global_error_handler` of
    `energize.energon.WorkerConfig`.

    >>> reraise_exception(ValueError("no image"), {"__key__": "a"})
    Traceback (most recent call last):
        ...
    ValueError: no image
    """
    raise e
