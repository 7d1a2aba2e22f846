"""Making one batch of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np

from energize.errors import ConfigError
from energize.late import torch
from energize.sample_weights.places import WEIGHTS
from energize.samples.field_types import declared_types
from energize.samples.structure import build, is_record, type_fields
from energize.task_encoder.concat import concat_pad
from energize.task_encoder.joining import Joining, checked_alike

T = TypeVar("T")


def batch_stack(batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors of one shape as one tensor with a new first dimension.

    Raises `ConfigError` naming the shapes when they differ.
    """
    checked_alike(batch, "batch_stack")
    shapes = sorted({tuple(each.shape) for each in batch})
    if len(shapes) > 1:
        raise ConfigError(
            f"batch_stack: tensors of the shapes {', '.join(map(str, shapes[:8]))} cannot be "
            "stacked; resize them in encode_sample, or use batch_pad_stack"
        )
    return torch.stack(list(batch))


def batch_pad_stack(batch: Sequence[torch.Tensor], *, pad_value: float = 0) -> torch.Tensor:
    """Tensors of one rank as one tensor with a new first dimension, padded at the end of the
    others to the largest.

    Raises `ConfigError` for an empty list and for different ranks, dtypes or devices.

    >>> batch_pad_stack([torch.tensor([1, 2]), torch.tensor([3])], pad_value=-1)
    tensor([[ 1,  2],
            [ 3, -1]])
    """
    checked_alike(batch, "batch_pad_stack")
    return concat_pad([each.unsqueeze(0) for each in batch], pad_value=pad_value)


def batch_list(batch: Sequence[T]) -> list[T]:
    """The values as a list."""
    return list(batch)


_BATCHING = Joining(tensors=batch_pad_stack, from_samples=True)


def generic_batch(batch: Sequence[Any]) -> Any:
    """Samples of one structure as one batch of that structure, field by field at any depth.

    Tensors are padded and stacked by `batch_pad_stack`; records (dataclasses, named tuples, dicts)
    become a record of the same type, whose metadata are lists; a type with a `from_samples` method
    is batched by it. Of anything else, numpy arrays included, a list is made.

    Raises `ConfigError` naming the field where types, ranks or fields differ.

    >>> samples = [{"ids": torch.tensor([1])}, {"ids": torch.tensor([2, 3])}]
    >>> generic_batch(samples)["ids"]
    tensor([[1, 0],
            [2, 3]])
    """
    return _BATCHING.join(list(batch))


def batch_as(samples: Sequence[Any], kind: type[T]) -> T:
    """Samples as one batch of type `kind`, as its `from_samples` makes it or else `filled_from`."""
    from_samples = getattr(kind, "from_samples", None)
    if from_samples is not None:
        return cast("T", from_samples(samples))
    return filled_from(samples, kind, {})


def filled_from(samples: Sequence[Any], kind: type[T], given: dict[str, Any]) -> T:
    """A batch of type `kind` whose fields are `given`, or else those of the samples, by name.

    Only the fields that `kind` has are batched, each by `generic_batch`, metadata as lists; numbers
    become a tensor of shape (samples,) where the field is declared as one. Raises
    `ConfigError` naming the fields that neither the samples nor `kind` itself have values for.
    """
    if not samples or not all(map(is_record, samples)):
        found = ", ".join(sorted({type(each).__name__ for each in samples})) or "no samples"
        raise ConfigError(
            f"a {kind.__name__} is made of samples with fields (dataclasses, named tuples or "
            f"dicts), got {found}"
        )
    columns = _BATCHING.columns(samples)
    wanted = columns if issubclass(kind, dict) else type_fields(kind)
    values = {
        name: _BATCHING.column(name, columns[name])
        for name in wanted
        if name in columns and name not in given
    }
    declared = declared_types(cast("Any", kind))
    for name, value in values.items():
        if declared.get(name) is torch.Tensor and _numbers(value):
            values[name] = torch.tensor(value)
    weights = None if WEIGHTS in given else _BATCHING.weights(samples)
    if weights is not None:
        values[WEIGHTS] = weights
    return build(kind, values | given, f"a batch of {type(samples[0]).__name__}")


def _numbers(value: Any) -> bool:
    """Whether a column is numbers, which a field for a tensor holds as one."""
    return isinstance(value, list) and all(
        isinstance(each, int | float | np.integer | np.floating) for each in value
    )
