"""Hooks of task encoders: their names, marks, calls and default batching."""

from __future__ import annotations

import logging
import math
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property, lru_cache
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, cast, overload

import numpy as np

from energize.core import limits
from energize.core.arrays import POOLED, as_tensor, batch_memory, empty, is_plain
from energize.core.call_context import call_context
from energize.core.description import described, function_name, generates
from energize.core.ignored import log_once
from energize.core.lazy import torch
from energize.core.loss_weights import (
    OFFSETS,
    OWN,
    WEIGHT,
    WEIGHTS,
    batch_weights,
    counted,
    joined_weights,
)
from energize.core.records import (
    MAKE_ALIKE,
    build,
    columns_of,
    fields_of,
    is_record,
    is_record_type,
    rebuilt,
    type_fields,
)
from energize.core.samples import (
    METADATA,
    CrudeSample,
    Items,
    RestoreKey,
    Sample,
    SourceInfo,
    call_on_leaves,
    metadata_of,
    pin_memory,
)
from energize.core.stores import FileStore, PrimaryFileStore
from energize.errors import ConfigError, ReturnError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

HOOKS = {
    "cook_crude_sample": "sample",
    "preencode_sample": "sample",
    "encode_sample": "sample",
    "select_samples_to_pack": "samples",
    "postencode_sample": "sample",
    "pack_selected_samples": "samples",
    "batch": "batch",
    "batch_group_criterion": "sample",
    "encode_batch": "batch",
}
"""Hooks in the order in which data pass through them, with the argument."""

_RETURN = ("select_samples_to_pack", "batch_group_criterion")
"""Hooks that must not yield."""

BUILDERS = ("build_train_datasets", "build_val_datasets")
"""Methods that may be overridden to build a whole dataset."""

_SIMILARITY = 0.88
"""Similarity from which a method name counts as a misspelt hook."""

_training: ContextVar[bool] = ContextVar("training", default=True)


@contextmanager
def validating() -> Iterator[None]:
    """Mark hooks of datasets that are created in the block as validation."""
    token = _training.set(False)
    try:
        yield
    finally:
        _training.reset(token)


class Training:
    """The attribute `training` of encoders; a value that an encoder sets wins."""

    def __get__(self, encoder: Any, owner: Any = None) -> bool:
        hook = call_context.get().hook
        return True if hook is None else hook.training


@overload
def stateless(fn: F) -> F: ...


@overload
def stateless(
    fn: None = None,
    *,
    restore_seeds: bool = False,
    failure_tolerance: int | None = None,
) -> Callable[[F], F]: ...


def stateless(
    fn: F | None = None,
    *,
    restore_seeds: bool = False,
    failure_tolerance: int | None = None,
) -> F | Callable[[F], F]:
    """Mark a hook as a function of its argument, for encoders of Energon.

    Args:
        fn: The hook; None returns a decorator.
        restore_seeds: Has no effect: every call is seeded by its position, so every
            sample can be restored.
        failure_tolerance: If failed samples are skipped, this many failures in a row
            end the run with a `FatalSampleError`; 0 for any number.

    Example:
        >>> from energize import TaskEncoder
        >>> class Encoder(TaskEncoder):
        ...     @stateless(restore_seeds=True)
        ...     def encode_sample(self, sample):
        ...         return sample
    """
    options = (
        {} if failure_tolerance is None else {"failure_tolerance": failure_tolerance}
    )
    return marked(**options) if fn is None else marked(**options)(fn)


def marked(**attributes: Any) -> Callable[[F], F]:
    """Return a decorator that sets attributes of a function."""

    def mark(function: F) -> F:
        vars(function).update(attributes)
        return function

    return mark


def get_stateless(fn: Callable[..., Any]) -> bool:
    """Return whether the result of `fn` for a sample can be restored: always.

    Args:
        fn: A hook, marked or not.
    """
    return True


def get_failure_tolerance(
    fn: Callable[..., Any], default_failure_tolerance: int | None = None
) -> int | None:
    """Return the number of failures in a row after which a hook ends the run.

    Args:
        fn: A hook, marked by `stateless` or not.
        default_failure_tolerance: The result for a hook without a mark.
    """
    return getattr(fn, "failure_tolerance", default_failure_tolerance)


default = marked(is_default=True)
"""Marks the default methods of encoders."""


def overrides(encoder: Any, name: str) -> bool:
    """Return whether an encoder overrides a method of the package."""
    return not getattr(getattr(encoder, name), "is_default", False)


def builds(encoder: Any, name: str) -> bool:
    """Return whether an encoder overrides a method that builds a dataset."""
    return (
        hasattr(encoder, name)
        and not isinstance(encoder, type)
        and overrides(encoder, name)
    )


def active_hooks(encoder: Any) -> frozenset[str]:
    """Return the names of hooks that have an effect; `batch` always has."""
    overridden = [
        name
        for name in HOOKS
        if not getattr(getattr(encoder, name), "is_default", False)
    ]
    return frozenset(["batch", *encoder.default_hooks, *overridden])


@dataclass(frozen=True)
class Hook:
    """A hook of an encoder, as datasets call it.

    A result of None, from a forgotten `return`, is an error.

    Attributes:
        reads_context: Whether calls set the `CallContext`.
    """

    reads_context: ClassVar[bool] = True

    encoder: Any
    name: str
    training: bool = field(default_factory=_training.get, kw_only=True)

    @cached_property
    def method(self) -> Callable[..., Any]:
        """The encoder's own method."""
        return getattr(self.encoder, self.name)  # type: ignore[no-any-return]

    @cached_property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.method

    @cached_property
    def _yields(self) -> bool:
        return generates(self.method)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without cached values."""
        return {field_.name: getattr(self, field_.name) for field_ in fields(self)}

    def describe(self) -> Any:
        """Return the name of the method."""
        return described(self.method)

    def __call__(self, argument: Any, **extra: Any) -> Any:
        if self._yields:
            return self._items(self._called(argument, extra))
        return self._checked(self._called(argument, extra))

    def _called(self, argument: Any, extra: dict[str, Any]) -> Any:
        """Call the method; `extra` has its random generator, if it takes one."""
        return self.method(argument, **extra)

    def _items(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            yield self._checked(item)

    def _checked(self, result: T) -> T:
        if result is None:
            noun = "batch" if "batch" in self.name else "sample"
            raise ReturnError(
                f"{function_name(self.method)} returned None, which is not a {noun}. "
                "Add a `return`, or raise SkipSample to skip the sample"
            )
        return result


def hook_index(takes: str, name: str) -> int:
    """Return the number of the sample or batch that the running hook is called for.

    Raises `ConfigError` outside hooks, and where there is no such number.
    """
    context = call_context.get()
    hook = context.hook
    if hook is None:
        raise ConfigError(
            f"{name} is only available while a dataset calls a hook of the encoder"
        )
    index = context.number
    ranks = 1 if context.config is None else context.config.world_size
    if HOOKS[hook.name] == takes:
        return index // ranks if takes == "batch" else index
    batches = context.gathering
    if batches is not None and getattr(batches.inputs[0], "map_fn", None) == hook:
        batch_index: int = cast("Any", batches).batch_of(index)
        return batch_index // ranks
    if takes == "batch":
        batch = index if context.batch is None else context.batch
        return batch // ranks
    raise ConfigError(
        f"{name} is not available in {hook.name}, which receives several samples"
    )


# What is wrong with an encoder is said when a dataset is made.


def check_encoder(encoder: Any) -> None:
    """Raise `ConfigError` for an encoder that no dataset could be made with."""
    encoder_class = type(encoder)
    for name in dir(encoder_class):
        if (
            name.startswith("_")
            or name in HOOKS
            or not callable(getattr(encoder_class, name, None))
        ):
            continue
        for near in get_close_matches(name, HOOKS, 1, _SIMILARITY):
            warnings.warn(
                f"no dataset calls the method {name!r} of {encoder_class.__name__}; "
                f"the hook is {near!r}",
                stacklevel=2,
            )
    for name in _RETURN:
        if generates(getattr(encoder, name)):
            raise ConfigError(
                f"{encoder_class.__name__}.{name} is a generator function, but must "
                "return its result"
            )
    if {"preencode_sample", "encode_sample"} <= active_hooks(encoder):
        raise ConfigError(
            f"{encoder_class.__name__} has both preencode_sample and encode_sample. "
            "Define preencode_sample, with postencode_sample after packing, or "
            "encode_sample alone"
        )


@dataclass(frozen=True)
class Cooker:
    """A function that makes typed samples of crude ones.

    An encoder uses the first of its `cookers` that fits a dataset.

    Args:
        cook: Function of a `CrudeSample`, and by name of the auxiliary stores (`aux`)
            of its dataset. `@cooker` requests further arguments.
        has_subflavors: Labels that a dataset must have; None fits any dataset.

    Raises:
        ConfigError: If `cook` is not a function, or `has_subflavors` not a dict.

    Example:
        >>> def cook_text(sample):
        ...     return TextSample(**basic_sample_keys(sample), text=sample["txt"])
        >>> from energize import TextSample
        >>> Cooker(cook=cook_text, has_subflavors={"kind": "text"}).fits(
        ...     {"kind": "text", "lang": "en"}
        ... )
        True
    """

    cook: Callable[..., Any]
    has_subflavors: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.cook):
            raise ConfigError(
                f"Cooker: cook must be a function of a crude sample, got {self.cook!r}"
            )
        if not isinstance(self.has_subflavors, Mapping | None):
            raise ConfigError(
                "Cooker: has_subflavors must be a dict of labels, or None, got "
                f"{self.has_subflavors!r}"
            )

    def fits(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Return whether a dataset with these labels fits this cooker."""
        wanted = self.has_subflavors or {}
        labels = subflavors or {}
        return all(
            name in labels and labels[name] == value for name, value in wanted.items()
        )


@overload
def cooker(fn: F) -> F: ...


@overload
def cooker(
    fn: None = None, *, need_cache: bool = False, need_primary: bool = False
) -> Callable[[F], F]: ...


def cooker(
    fn: F | None = None, *, need_cache: bool = False, need_primary: bool = False
) -> F | Callable[[F], F]:
    """Request further arguments of a cook function.

    Args:
        fn: The cook function; None returns a decorator.
        need_cache: Whether it takes `cache`, the cache pool of the loader.
        need_primary: Whether it takes `primary`, the store of all files of its dataset,
            in which a name that begins with "." is a part of the current sample.

    Example:
        >>> @cooker(need_cache=True)
        ... def cook(sample, cache):
        ...     return sample
    """
    needs = marked(needs=("cache",) * need_cache + ("primary",) * need_primary)
    return needs if fn is None else needs(fn)


def needs_of(cook: Callable[..., Any]) -> tuple[str, ...]:
    """Return the arguments that a cook function requests by `@cooker`."""
    return getattr(getattr(cook, "__func__", cook), "needs", ())


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: Sequence[SourceInfo] = ()
) -> dict[str, Any]:
    """Return the metadata of a crude sample, for the typed sample.

    Args:
        crude_sample: The crude sample.
        additional_source_info: Further sources of the typed sample.

    Example:
        >>> basic_sample_keys({"__key__": "7", "__subflavors__": {}, "txt": "hello"})
        {'__key__': '7', '__subflavors__': {}}
    """
    metadata = {
        name: crude_sample[name] for name in sorted(METADATA) if name in crude_sample
    }
    if additional_source_info:
        metadata["__sources__"] = (
            *(metadata.get("__sources__") or ()),
            *additional_source_info,
        )
    return metadata


def cooker_for(
    cookers: Sequence[Cooker], subflavors: Mapping[str, Any] | None, location: str
) -> Cooker:
    """Return the first cooker that fits; raise `ConfigError` if none does."""
    for cooker in cookers:
        if not isinstance(cooker, Cooker):
            raise ConfigError(f"cookers must be a list of Cooker, got {cooker!r}")
        if cooker.fits(subflavors):
            return cooker
    wanted = ", ".join(str(dict(cooker.has_subflavors or {})) for cooker in cookers)
    raise ConfigError(
        f"{location}: no cooker fits its subflavors {dict(subflavors or {})}. The "
        "cookers of the encoder are for "
        f"{wanted}. Give it matching subflavors, or add a Cooker "
        "without has_subflavors"
    )


@dataclass(frozen=True)
class Cook(Hook):
    """Cooks the samples of a dataset with an encoder; mapped over the dataset.

    `primary` is the store of the files of the dataset, if the cooker requests it.
    """

    cooker: Cooker
    aux: Mapping[str, FileStore[Any]]
    primary: FileStore[Any] | None = None

    @cached_property
    def method(self) -> Callable[..., Any]:
        """The overridden hook or the cook function; its signature decides."""
        return (
            super().method if overrides(self.encoder, self.name) else self.cooker.cook
        )

    def describe(self) -> str:
        """Return the name of the cook function, with its auxiliary stores."""
        cook = self.cooker.cook
        name: str = getattr(cook, "__qualname__", type(cook).__qualname__)
        stores = [
            f"{key}={Path(store.get_path()).name}" for key, store in self.aux.items()
        ]
        return f"{name}({', '.join(stores)})" if stores else name

    def _called(self, argument: CrudeSample, extra: dict[str, Any]) -> Any:
        aux = dict(self.aux)
        if self.primary is not None:
            aux["primary"] = PrimaryFileStore(self.primary, argument["__key__"])
        if (
            self.method is self.cooker.cook
        ):  # the encoder's hook hands on what the cooker asks for
            return self.encoder.cook_crude_sample(argument, self.cooker, aux | extra)
        return self.encoder.cook_crude_sample(argument, self.cooker, aux, **extra)


_NUMBERS = (int, float, np.integer, np.floating)
_OF_WEIGHTS = (WEIGHT, WEIGHTS)


@dataclass(frozen=True, slots=True)
class Joining:
    """How values are joined: tensors, and lists. Records are joined field by field.

    Other values and metadata of samples become lists. Without `lists`, samples are
    joined instead of batches: lists are not joined, and a record type with a method
    `from_samples` joins its records itself. Metadata that no batch has stay None.
    Weights of samples become `sample_weights`.
    """

    tensors: Callable[[list[torch.Tensor]], torch.Tensor]
    lists: Callable[[list[list[Any]]], list[Any]] | None = None

    def join(self, values: list[Any], path: str = "") -> Any:
        """Return values as one; raise `ConfigError` with the field if they differ."""
        if all(map(isinstance, values, repeat(torch.Tensor))):
            return self._join_tensors(values, path)
        if self.lists is not None and all(map(isinstance, values, repeat(list))):
            return self.lists(values)
        types = set(map(type, values))
        if len(types) > 1:
            self._check_may_differ(types, path)
            return values
        if any(map(is_record_type, types)):
            return self._records(values, path)
        return values

    def _join_tensors(self, tensors: list[torch.Tensor], path: str) -> torch.Tensor:
        try:
            return self.tensors(tensors)
        except ConfigError as error:
            message = f"field {path}: {error}" if path else str(error)
            raise ConfigError(message) from None

    def _check_may_differ(self, types: set[type], path: str) -> None:
        """Raise `ConfigError` if values of one of these types have to be joined."""
        joined = torch.Tensor if self.lists is None else (torch.Tensor, list)
        if any(
            is_record_type(value_type) or issubclass(value_type, joined)
            for value_type in types
        ):
            names = ", ".join(sorted(value_type.__name__ for value_type in types))
            subject = f"field {path}" if path else "values"
            raise ConfigError(
                f"{subject} of different types cannot be joined: {names}. {MAKE_ALIKE}"
            )

    def columns(self, records: Sequence[Any], path: str = "") -> dict[str, list[Any]]:
        """Return the values of each field but weights; fields must be equal."""
        declared = getattr(type(records[0]), "__dataclass_fields__", None)
        if declared is not None:
            names = [name for name in declared if path or name not in _OF_WEIGHTS]
            return {name: list(map(attrgetter(name), records)) for name in names}
        rows = [fields_of(record) for record in records]
        if path:
            return columns_of(rows, f"field {path}")
        for row in rows:
            row.pop(WEIGHT, None)
            row.pop(WEIGHTS, None)
        return columns_of(rows, "records", [OWN] if self.lists is None else ())

    def column(self, name: str, values: list[Any], path: str = "") -> Any:
        """Return the values of one field as one."""
        if name in OFFSETS:
            return self._offsets(values, f"{path}.{name}" if path else name)
        batched = self.lists is not None and any(
            isinstance(value, list) for value in values
        )
        if name not in METADATA or batched:
            return self.join(values, f"{path}.{name}" if path else name)
        if self.lists is not None and all(value is None for value in values):
            return None
        return values

    def _offsets(self, values: list[Any], path: str) -> Any:
        """Return offsets of packs; missing samples are empty, at the end of a pack.

        Padding with 0 would make offsets that descend, which attention reads beyond.
        """
        is_row = [getattr(value, "ndim", 2) < 2 for value in values]
        if self.lists is not None and any(is_row):
            raise ConfigError(
                f"field {path} of batches that are one packed row each cannot be "
                "joined. Join their samples before packing, or write a batch_mix_fn"
            )
        joined = self.join(values, path)
        if not isinstance(joined, torch.Tensor):
            return joined
        return joined.cummax(-1).values

    def weights(self, records: Sequence[Any]) -> torch.Tensor | None:
        """Return the weights of samples or batches, or None."""
        return batch_weights(records) if self.lists is None else joined_weights(records)

    def _records(self, records: list[Any], path: str) -> Any:
        first = records[0]
        if self.lists is None and hasattr(first, "from_samples"):
            return type(first).from_samples(records)
        columns = self.columns(records, path)
        if not path and self.lists is not None:
            _spread(columns, records)
        as_are = METADATA if self.lists is None else ()
        joined = {
            name: values if name in as_are else self.column(name, values, path)
            for name, values in columns.items()
        }
        if path:
            return rebuilt(first, joined)
        return _with_weights(first, joined, self.weights(records))


def _with_weights(
    first: Any, columns: dict[str, Any], weights: torch.Tensor | None
) -> Any:
    """Return a record of the type of `first`, with weights of its samples."""
    if isinstance(first, dict):
        if weights is not None:
            columns[WEIGHTS] = weights
        record = rebuilt(first, columns)
        record.pop(WEIGHT, None)
        return record
    columns |= {WEIGHT: None, WEIGHTS: weights}
    names = getattr(type(first), "__dataclass_fields__", None) or fields_of(first)
    return rebuilt(first, {name: columns[name] for name in names})


def _spread(columns: dict[str, list[Any]], batches: Sequence[Any]) -> None:
    """Expand the number `weight` of each batch to a float32 tensor per sample."""
    weights = columns.get("weight", [])
    if all(
        isinstance(weight_value, (*_NUMBERS, torch.Tensor)) for weight_value in weights
    ) and any(not getattr(weight_value, "ndim", 0) for weight_value in weights):
        columns["weight"] = [
            as_tensor(weight, torch.float32).expand(counted(batch))
            for weight, batch in zip(weights, batches, strict=True)
        ]


def check_joinable(tensors: Sequence[torch.Tensor], owner: str) -> None:
    """Raise `ConfigError` unless tensors have one rank, dtype and device."""
    if not tensors:
        raise ConfigError(f"{owner}: no tensors to join")
    for number, entry in enumerate(tensors):
        if not isinstance(entry, torch.Tensor):
            raise ConfigError(
                f"{owner}: entry {number} is a {type(entry).__name__}, not a tensor"
            )
    if len(set(map(attrgetter("ndim", "dtype", "device"), tensors))) == 1:
        return
    for attribute, (plural, remedy) in _JOINED_BY.items():
        values = set(map(attrgetter(attribute), tensors))
        if len(values) > 1:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors[:8])
            raise ConfigError(
                f"{owner}: tensors of different {plural} cannot be joined: "
                f"{', '.join(sorted(map(str, values)))}, of shapes {shapes}; {remedy}"
            )


_JOINED_BY = {
    "ndim": ("ranks", "reshape them to one rank"),
    "dtype": ("dtypes", "convert them to one, or values are cut off"),
    "device": ("devices", "move them to one"),
}
"""Attributes that joined tensors share, with their plural and the remedy."""


# Joining batches into one: tensors along their first dimension, lists end to end.


def concat_pad(
    batch: Sequence[torch.Tensor],
    *,
    pad_value: float = 0,
    side: Literal["left", "right"] = "right",
) -> torch.Tensor:
    """Join tensors along dimension 0, with the other dimensions padded to the largest.

    Args:
        batch: Tensors of one rank (at least 1), dtype and device.
        pad_value: Value of the padding.
        side: "right" pads after the values, "left" before them.

    Returns:
        A tensor of that rank, dtype and device.

    Raises:
        ConfigError: For an empty list, tensors of rank 0, and different ranks, dtypes
            or devices.

    Example:
        >>> concat_pad([torch.ones(1, 2), torch.ones(1, 3)], pad_value=-1, side="left")
        tensor([[-1.,  1.,  1.],
                [ 1.,  1.,  1.]])
    """
    check_joinable(batch, "concat_pad")
    if batch[0].ndim == 0:
        raise ConfigError(
            "concat_pad: tensors of shape () have no dimension to join. Use batch_stack"
        )
    if side not in ("left", "right"):
        raise ConfigError(f"concat_pad: side must be 'left' or 'right', got {side!r}")
    if len({tensor.shape[1:] for tensor in batch}) == 1:
        limits.batching.spend(sum(tensor.nbytes for tensor in batch))
        shape = (sum(map(len, batch)), *batch[0].shape[1:])
        return torch.cat(list(batch), out=_batch_memory(batch, shape))
    return _padded(batch, pad_value, side)


def _padded(
    batch: Sequence[torch.Tensor], pad_value: float, side: Literal["left", "right"]
) -> torch.Tensor:
    sizes = [
        max(dims) for dims in zip(*(tensor.shape[1:] for tensor in batch), strict=True)
    ]
    rows = sum(map(len, batch))
    limits.batching.spend(batch[0].element_size() * rows * math.prod(sizes))
    memory = _batch_memory(batch, (rows, *sizes))
    joined = batch[0].new_empty((rows, *sizes)) if memory is None else memory
    joined.fill_(pad_value)
    row = 0
    for tensor in batch:
        inner = [
            slice(size - length, size) if side == "left" else slice(length)
            for length, size in zip(tensor.shape[1:], sizes, strict=True)
        ]
        joined[(slice(row, row + len(tensor)), *inner)] = tensor
        row += len(tensor)
    return joined


@limits.batching
def generic_concat(batch: Sequence[Any]) -> Any:
    """Join batches of one structure into one batch, field by field at any depth.

    Tensors are joined by `concat_pad`, lists end to end, and records (dataclasses,
    named tuples, dicts) field by field into the type of the first one. A number
    `weight` becomes a float32 tensor with an entry for each sample. `sample_weights`
    are joined, with 1 for samples of batches without weights. Other values become
    lists.

    Args:
        batch: The batches.

    Raises:
        ConfigError: Naming the field, if types or fields differ.
        WeightError: For a batch with a weight and an unknown number of samples.

    Example:
        >>> generic_concat(
        ...     [{"__key__": ["a"], "weight": 0.5}, {"__key__": ["b"], "weight": 1.0}]
        ... )
        {'__key__': ['a', 'b'], 'weight': tensor([0.5000, 1.0000])}
    """
    return _CONCATENATION.join(list(batch))


def homogeneous_concat_mix(samples: Sequence[T]) -> T:
    """Join batches of one type by `generic_concat`: a function for `MixBatchDataset`.

    Args:
        samples: The batches.

    Raises:
        ConfigError: If they have several types.
    """
    types = sorted({str(type(sample)) for sample in samples})
    if len(types) != 1:
        raise ConfigError(
            "homogeneous_concat_mix joins batches of one type, got "
            f"{', '.join(types) or 'none'}. Write a batch_mix_fn that makes one batch "
            "of them"
        )
    return generic_concat(samples)  # type: ignore[no-any-return]


_CONCATENATION = Joining(
    tensors=concat_pad, lists=lambda lists: list(chain.from_iterable(lists))
)


# Making one batch of samples.


def batch_stack(batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape along a new first dimension.

    Args:
        batch: The tensors.

    Raises:
        ConfigError: If shapes, dtypes or devices differ.
    """
    check_joinable(batch, "batch_stack")
    shapes = sorted({tuple(tensor.shape) for tensor in batch})
    if len(shapes) > 1:
        raise ConfigError(
            f"batch_stack: tensors of the shapes {', '.join(map(str, shapes[:8]))} "
            "cannot be stacked. Resize them in encode_sample, or use batch_pad_stack"
        )
    return _stacked(batch)


def _stacked(batch: Sequence[torch.Tensor]) -> torch.Tensor:
    limits.batching.spend(len(batch) * batch[0].nbytes)
    shape = (len(batch), *batch[0].shape)
    return torch.stack(list(batch), out=_batch_memory(batch, shape))


def _batch_memory(
    members: Sequence[torch.Tensor], shape: tuple[int, ...]
) -> torch.Tensor | None:
    """Return a tensor for the values of its members; None if torch has to make it."""
    size = math.prod(shape) * members[0].element_size()
    if size < POOLED or not all(map(is_plain, members)):
        return None
    memory = empty((size,), np.uint8, batch_memory.lend)
    return torch.from_numpy(memory).view(members[0].dtype).view(shape)


def batch_pad_stack(
    batch: Sequence[torch.Tensor], *, pad_value: float = 0
) -> torch.Tensor:
    """Stack tensors along a new first dimension, padded at the end to the largest.

    Padded images are logged once as a warning.

    Args:
        batch: Tensors of one rank, dtype and device.
        pad_value: Value of the padding.

    Raises:
        ConfigError: For an empty list, and different ranks, dtypes or devices.

    Example:
        >>> batch_pad_stack([torch.tensor([1, 2]), torch.tensor([3])], pad_value=-1)
        tensor([[ 1,  2],
                [ 3, -1]])
    """
    check_joinable(batch, "batch_pad_stack")
    if len(set(map(attrgetter("shape"), batch))) == 1:
        return _stacked(batch)
    if batch[0].ndim > 2:
        text = (
            f"tensors of shapes like {[tuple(tensor.shape) for tensor in batch[:2]]} "
            f"{_UNEQUAL}"
        )
        log_once("batch_pad_stack", "images", text, logging.WARNING)
    return _padded([tensor.unsqueeze(0) for tensor in batch], pad_value, "right")


def batch_list(batch: Sequence[T]) -> list[T]:
    """Return the values as a list.

    Args:
        batch: The values.
    """
    return list(batch)


_UNEQUAL = (
    "are padded with zeros; resize them, or let a field NAME_mask of the batch say "
    "where"
)


def padding_mask(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mask of padded, stacked tensors: True for values, False for padding.

    Args:
        tensors: Tensors of one rank. The mask of images (C, H, W), and of all tensors
            of three or more dimensions, lacks their first dimension.

    Returns:
        A bool tensor of shape (tensors, ...).

    Example:
        >>> padding_mask([torch.ones(3, 1, 2), torch.ones(3, 1, 1)])
        tensor([[[ True,  True]],
        <BLANKLINE>
                [[ True, False]]])
    """
    flat = [tensor[0] if tensor.ndim > 2 else tensor for tensor in tensors]
    return batch_pad_stack(
        [torch.ones_like(tensor, dtype=torch.bool) for tensor in flat]
    )


_BATCHING = Joining(tensors=batch_pad_stack)


@limits.batching
def generic_batch(batch: Sequence[Any]) -> Any:
    """Batch samples of one structure, field by field at any depth.

    Tensors are padded and stacked by `batch_pad_stack`. Records (dataclasses, named
    tuples, dicts) become a record of the same type, with lists of metadata. A type with
    a `from_samples` method is batched by it. Other values, including numpy arrays,
    become lists.

    Args:
        batch: The samples.

    Raises:
        ConfigError: Naming the field, if types, ranks or fields differ.

    Example:
        >>> samples = [{"ids": torch.tensor([1])}, {"ids": torch.tensor([2, 3])}]
        >>> generic_batch(samples)["ids"]
        tensor([[1, 0],
                [2, 3]])
    """
    return _BATCHING.join(list(batch))


@lru_cache(maxsize=256)
def declared_types(record_type: type[Any]) -> dict[str, Any]:
    """Return the field types of a dataclass; Any for unresolvable names."""
    unknown: dict[str, Any] = {}
    while True:
        try:
            return typing.get_type_hints(record_type, localns=unknown)
        except NameError as error:
            unknown[str(error.name)] = Any
        except (TypeError, AttributeError, SyntaxError):
            return {}


def batch_as(
    samples: Sequence[Any], batch_type: type[T], fixed: Mapping[str, Any] | None = None
) -> T:
    """Return samples as one batch of a type, by its `from_samples` if it has one.

    Otherwise, fields are those of the samples by name, batched as by `generic_batch`.
    Numbers become a tensor of shape (samples,) if the field is declared as one. A field
    `NAME_mask` that samples lack is the `padding_mask` of their field NAME.

    Args:
        samples: The samples: records.
        batch_type: The type of the batch.
        fixed: Values of fields of the batch; not None skips `from_samples`.

    Raises:
        ConfigError: Naming required fields that the samples lack.
    """
    from_samples = getattr(batch_type, "from_samples", None)
    if fixed is None and from_samples is not None:
        return cast("T", from_samples(samples))
    fixed = dict(fixed or {})
    _check_records(samples, batch_type)
    columns = _BATCHING.columns(samples)
    wanted = columns if issubclass(batch_type, dict) else type_fields(batch_type)
    declared = declared_types(cast("Any", batch_type))
    values: dict[str, Any] = {}
    for name in wanted:
        masked = name.removesuffix("_mask")
        if name in columns and name not in fixed:
            column = _BATCHING.column(name, columns[name])
            values[name] = _as_declared(column, declared.get(name))
        elif masked != name and masked in columns:
            values[name] = padding_mask(columns[masked])
    weights = None if WEIGHTS in fixed else _BATCHING.weights(samples)
    if weights is not None:
        values[WEIGHTS] = weights
    return build(batch_type, values | fixed, f"a batch of {type(samples[0]).__name__}")


def _check_records(samples: Sequence[Any], batch_type: type[Any]) -> None:
    if samples and all(map(is_record, samples)):
        return
    types = sorted({type(sample).__name__ for sample in samples})
    raise ConfigError(
        f"a {batch_type.__name__} must be made of records, filled by name, got "
        f"{', '.join(types) or 'no samples'}"
    )


def _as_declared(value: Any, declared: Any) -> Any:
    """Return numbers as a tensor where the field is declared as one."""
    if declared is not torch.Tensor or not isinstance(value, list):
        return value
    are_numbers = all(isinstance(number, _NUMBERS) for number in value)
    return as_tensor(value) if are_numbers else value


# The base of batch types.


@dataclass(kw_only=True, slots=True)
class Batch(Items):
    """Base class of batches: a dataclass with lists of the metadata of its samples.

    `__restore_key__`, `__subflavors__` and `__sources__` are None in a batch that was
    made without them; an entry is None for a sample without a value. In a batch of a
    loader, `__restore_key__` is the key of the batch for `Loader.restore_sample`, and
    `__stored_key__` the list of the keys of its samples.

    `sample_weights` are the loss weights of its samples: float32 of shape (samples,),
    of packs (packs, pieces) with 0 for missing pieces. None means equal weights.
    Datasets set weights unless the batch already has some.

    The batch is also a mapping of its other fields, for `model(**batch)`. A batch that
    is made of such items, `TextBatch({name: value, ...})`, keeps its metadata, and its
    mark if it is padding.

    Example:
        >>> from energize import TextSample
        >>> @dataclass
        ... class TextBatch(Batch):
        ...     text: list[str]
        >>> samples = [
        ...     TextSample(__key__="0", text="zero"),
        ...     TextSample(__key__="1", text="one"),
        ... ]
        >>> batch = TextBatch.from_samples(samples)
        >>> batch.__key__, batch.text
        (['0', '1'], ['zero', 'one'])
        >>> dict(batch)
        {'text': ['zero', 'one']}
        >>> TextBatch({name: value[:1] for name, value in batch.items()}).text
        ['zero']
    """

    __key__: list[str]
    __restore_key__: RestoreKey | list[RestoreKey] | None = None
    __subflavors__: list[dict[str, Any] | None] | None = None
    __sources__: list[tuple[SourceInfo, ...] | None] | None = None
    sample_weights: torch.Tensor | None = field(default=None, repr=False)

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **values: Any) -> Self:
        """Return a batch of samples, filled by field name.

        Tensors are padded and stacked, records batched field by field, other values
        listed.

        Args:
            samples: The samples.
            **values: Values of fields, instead of those of the samples.

        Raises:
            ConfigError: Naming required fields that the samples lack.
        """
        return batch_as(samples, cls, values)

    @classmethod
    def extend(cls, src: Batch, **values: Any) -> Self:
        """Return a batch of this type with the fields of another batch.

        Args:
            src: The other batch.
            **values: Values of further or replaced fields.
        """
        return cls(
            **{field_.name: getattr(src, field_.name) for field_ in fields(type(src))}
            | values
        )

    @classmethod
    def derive_from(cls, base_batch: Batch, **values: Any) -> Self:
        """Return a batch of this type with the metadata of another batch.

        Args:
            base_batch: The other batch, or a dict with metadata.
            **values: Values of the fields.

        Raises:
            ConfigError: For samples instead of a batch.
        """
        if isinstance(base_batch, Sample | list | tuple):
            message = (
                f"{cls.__name__}.derive_from takes a batch, got a "
                f"{type(base_batch).__name__}"
            )
            raise ConfigError(
                f"{message}. For samples, use {cls.__name__}.from_samples([...])"
            )
        metadata = metadata_of(base_batch)
        return cls(
            **{name: metadata[name] for name in type_fields(cls) if name in metadata}
            | values
        )

    def pin_memory(self) -> Self:
        """Return a copy with tensors in page-locked memory; itself without a GPU."""
        return pin_memory(self)

    def to(self, device: Any, non_blocking: bool = False) -> Self:
        """Return a copy with all tensors, and other movable values, on a device.

        Args:
            device: The device.
            non_blocking: Whether copies may overlap with other work.
        """
        return call_on_leaves(self, "to", device, non_blocking=non_blocking)
