"""Task encoders: how samples become what a model trains on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

from energize.errors import ConfigError
from energize.samples.structure import build, fields_of, is_record, is_record_type
from energize.task_encoder.batching import batch_as, generic_batch
from energize.task_encoder.decoding import SampleDecoder

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")

HOOKS = ("encode_sample", "batch", "encode_batch")
"""The hooks of an encoder, in the order in which data pass through them."""


class TaskEncoder(Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """What a task does to its data, hook by hook; override those that it needs.

    A sample, decoded by `decoder` (None leaves the bytes of its parts), goes through
    `encode_sample`; `batch_size` encoded samples through `batch`; the raw batch through
    `encode_batch`. A hook may raise `SkipSample` to leave out what it was given and `DataError` for
    bad data. The global random generators are seeded for every call by the position of the sample
    or batch, so what a hook draws is the same on any number of workers and after a resume. Hooks
    run in worker processes: what they change in `self` reaches no other process.

    >>> class Upper(TaskEncoder):
    ...     def encode_sample(self, sample):
    ...         return sample | {"text": sample["text"].upper()}
    >>> Upper().encode_sample({"text": "a"})
    {'text': 'A'}
    """

    decoder: SampleDecoder | None = SampleDecoder()

    def encode_sample(self, sample: T_sample) -> T_encoded_sample:
        """One sample as the task needs it; by default the sample itself."""
        return cast("T_encoded_sample", sample)

    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """Encoded samples as one batch; by default `generic_batch` of them."""
        return cast("T_raw_batch", generic_batch(samples))

    def encode_batch(self, batch: T_raw_batch) -> T_batch:
        """A whole batch as the model needs it; by default the batch itself."""
        return cast("T_batch", batch)


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder whose hooks fill given types, field by field, by name.

    `encoded_sample_type` is what `encode_sample` returns, `raw_batch_type` what `batch` returns and
    `batch_type` what `encode_batch` returns: each a dataclass, a named tuple or dict, or None to
    leave things as they are. Fields that a type does not have are left out, and not batched either.
    `raw_batch_type` is `batch_type` unless it is given, so an overridden `encode_batch` is handed a
    batch of that type.

    Raises `ConfigError` for a type without fields; the hooks raise it for a type with fields that
    have no default and that samples lack.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Texts:
    ...     text: list[str]
    >>> encoder = DefaultTaskEncoder(batch_type=Texts)
    >>> encoder.batch([{"text": "a", "n": 1}, {"text": "b", "n": 2}])
    Texts(text=['a', 'b'])
    """

    _encoded_sample_type: type[T_encoded_sample] | None = None
    _raw_batch_type: type[T_raw_batch] | None = None
    _batch_type: type[T_batch] | None = None

    def __init__(
        self,
        *,
        encoded_sample_type: type[T_encoded_sample] | None = None,
        raw_batch_type: type[T_raw_batch] | None = None,
        batch_type: type[T_batch] | type[T_raw_batch] | None = None,
    ) -> None:
        for name, kind in (
            ("encoded_sample_type", encoded_sample_type),
            ("raw_batch_type", raw_batch_type),
            ("batch_type", batch_type),
        ):
            if kind is not None and not (isinstance(kind, type) and is_record_type(kind)):
                raise ConfigError(
                    f"{type(self).__name__}: {name} is a dataclass, a NamedTuple or dict, got "
                    f"{kind!r}"
                )
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type or cast("type[T_raw_batch] | None", batch_type)
        self._batch_type = cast("type[T_batch] | None", batch_type)

    def encode_sample(self, sample: T_sample) -> T_encoded_sample:
        """The sample as an `encoded_sample_type`, or itself."""
        return _converted(sample, self._encoded_sample_type)

    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """The samples as a `raw_batch_type`, or as a batch of their own type."""
        if self._raw_batch_type is None:
            return super().batch(samples)
        return batch_as(samples, self._raw_batch_type)

    def encode_batch(self, batch: T_raw_batch) -> T_batch:
        """The batch as a `batch_type`, or itself."""
        return _converted(batch, self._batch_type)


def active_hooks(encoder: TaskEncoder[Any, Any, Any, Any]) -> frozenset[str]:
    """The names of the hooks that do something; `batch` always does.

    >>> sorted(active_hooks(DefaultTaskEncoder(encoded_sample_type=dict)))
    ['batch', 'encode_sample']
    """
    active = {name for name in HOOKS if _overrides(encoder, name)} | {"batch"}
    if isinstance(encoder, DefaultTaskEncoder):
        if encoder._encoded_sample_type is not None:
            active.add("encode_sample")
        if encoder._batch_type is not None:
            active.add("encode_batch")
    return frozenset(active)


@overload
def stateless(fn: F) -> F: ...


@overload
def stateless(
    fn: None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Callable[[F], F]: ...


def stateless(
    fn: F | None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> F | Callable[[F], F]:
    """Marks a hook as a function of its argument; accepted so that encoders of Energon run as is.

    It changes nothing. Every call is seeded by its position, as `restore_seeds` asks for, and
    failures are counted for the whole loader by its failure budget, not by `failure_tolerance`.

    >>> class Encoder(TaskEncoder):
    ...     @stateless(restore_seeds=True)
    ...     def encode_sample(self, sample):
    ...         return sample
    """
    return (lambda marked: marked) if fn is None else fn


def _overrides(encoder: object, name: str) -> bool:
    """Whether a hook is not the one that it has here."""
    own = {getattr(base, name) for base in (TaskEncoder, DefaultTaskEncoder)}
    return name in getattr(encoder, "__dict__", ()) or getattr(type(encoder), name) not in own


def _converted(value: Any, kind: type[T] | None) -> T:
    """`value` as a `kind`, filled by name; `value` itself where it is one, or none is given."""
    if kind is None or isinstance(value, kind):
        return cast("T", value)
    if not is_record(value):
        raise ConfigError(
            f"a {kind.__name__} is filled by name from a dataclass, a named tuple or a dict, got a "
            f"{type(value).__name__}"
        )
    return build(kind, fields_of(value), f"a {type(value).__name__}")
