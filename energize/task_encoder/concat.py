"""Joining batches into one: tensors along their first dimension, lists end to end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, TypeVar

from energize.errors import ConfigError
from energize.late import torch
from energize.task_encoder.joining import Joining, checked_alike

T = TypeVar("T")


def concat_pad(
    batch: Sequence[torch.Tensor],
    *,
    pad_value: float = 0,
    side: Literal["left", "right"] = "right",
) -> torch.Tensor:
    """Tensors of one rank joined along dimension 0, every other dimension padded to the largest.

    `pad_value` fills the rest of each padded dimension, after the values or, with `side="left"`,
    before them. Dtype and device are those of the tensors.

    Raises `ConfigError` for an empty list, tensors without a dimension, and for different ranks,
    dtypes or devices.

    >>> concat_pad([torch.ones(1, 2), torch.ones(1, 3)], pad_value=-1, side="left")
    tensor([[-1.,  1.,  1.],
            [ 1.,  1.,  1.]])
    """
    checked_alike(batch, "concat_pad")
    if batch[0].ndim == 0:
        raise ConfigError(
            "concat_pad: tensors of shape () have no dimension to be joined along; use "
            "batch_stack, or make them one-dimensional"
        )
    if side not in ("left", "right"):
        raise ConfigError(f"concat_pad: side is 'left' or 'right', got {side!r}")
    sizes = [max(dims) for dims in zip(*(each.shape[1:] for each in batch), strict=True)]
    if all(list(each.shape[1:]) == sizes for each in batch):
        return torch.cat(list(batch))
    joined = batch[0].new_full((sum(len(each) for each in batch), *sizes), pad_value)
    row = 0
    for each in batch:
        inner = [
            slice(size - own, size) if side == "left" else slice(own)
            for own, size in zip(each.shape[1:], sizes, strict=True)
        ]
        joined[(slice(row, row + len(each)), *inner)] = each
        row += len(each)
    return joined


def generic_concat(batch: Sequence[Any]) -> Any:
    """Batches of one structure joined into one, field by field at any depth.

    Tensors are joined by `concat_pad`, lists end to end; records (dataclasses, named tuples, dicts)
    field by field, into a record of the type of the first. A number `weight`, as of all samples of
    a batch, becomes a float32 tensor with an entry for each sample; `sample_weights` are joined,
    with 1 for samples of batches without. Of anything else a list is made.

    Raises `ConfigError` naming the field where types or fields differ, and `WeightError` for a
    batch whose weight cannot be given to its samples, as nothing tells how many there are.

    >>> generic_concat([{"__key__": ["a"], "weight": 0.5}, {"__key__": ["b"], "weight": 1.0}])
    {'__key__': ['a', 'b'], 'weight': tensor([0.5000, 1.0000])}
    """
    return _CONCATENATION.join(list(batch))


def homogeneous_concat_mix(samples: Sequence[T]) -> T:
    """`generic_concat` of batches that are all of one type: a `batch_mix_fn` for `MixBatchDataset`.

    Raises `ConfigError` naming the types when there are several.
    """
    types = sorted({f"{type(each).__module__}.{type(each).__qualname__}" for each in samples})
    if len(types) != 1:
        raise ConfigError(
            f"homogeneous_concat_mix joins batches of one type, got {', '.join(types) or 'none'}; "
            "write a batch_mix_fn of your own that makes one batch of them"
        )
    return generic_concat(samples)  # type: ignore[no-any-return]  # of the type of its parts


_CONCATENATION = Joining(tensors=concat_pad, lists=lambda lists: list(chain.from_iterable(lists)))
