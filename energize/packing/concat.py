"""Concatenate several samples into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar, overload

from energize.core.arrays import as_tensor
from energize.core.costs import named
from energize.core.lazy import torch
from energize.core.loss_weights import OWN, WEIGHT, WEIGHTS, joined_weights
from energize.core.records import build, columns_of, fields_of, is_record
from energize.errors import ConfigError, nearest

T = TypeVar("T")

MADE = ("cu_seqlens", "max_seqlen", "position_ids")
"""The fields that `concat_pack` adds."""


@overload
def concat_pack(
    samples: Sequence[Any], fields: Sequence[str], *, flatten: Sequence[str] = ()
) -> dict[str, Any]: ...
@overload
def concat_pack(
    samples: Sequence[Any],
    fields: Sequence[str],
    *,
    flatten: Sequence[str] = (),
    into: type[T],
) -> T: ...
def concat_pack(
    samples: Sequence[Any],
    fields: Sequence[str],
    *,
    flatten: Sequence[str] = (),
    into: type[Any] = dict,
) -> Any:
    """Concatenate samples (dataclasses, named tuples or dicts) into a pack.

    The pack has the fields of the samples, and these:

    - `cu_seqlens`: the start of each sample and the end of the last, int32, shape
      (num_samples + 1,), as attention with variable lengths takes it.
    - `max_seqlen`: the length of the longest sample.
    - `position_ids`: the position of each token in its sample, int64, shape
      (num_tokens,), unless it is one of `fields`.
    - `sample_weights`: loss weights, float32, shape (num_samples,), if any sample has
      one.

    Of the metadata, `__key__`s are joined by commas, `__sources__` are concatenated,
    and `__subflavors__` keep the entries that all samples share.

    Args:
        samples: The samples of the pack.
        fields: Fields with one entry for each token, such as ids and labels: tensors,
            arrays or lists of numbers. They are concatenated along the first dimension.
        flatten: Fields with lists, such as images, which are concatenated. A single
            value counts as a list of one; None and missing fields as empty lists.
        into: The type of the pack: dict or a record type.

    Returns:
        The pack. All other fields are lists with the value of each sample.

    Raises:
        ConfigError: If there are no samples, fields are missing or differ in length,
            dtype or later dimensions, or a sample has a field that is added.

    Example:
        >>> samples = [{"ids": [5, 6, 7], "image": "A"}, {"ids": [8, 9], "image": "B"}]
        >>> pack = concat_pack(samples, ["ids"])
        >>> pack["ids"], pack["image"]
        (tensor([5, 6, 7, 8, 9]), ['A', 'B'])
        >>> pack["cu_seqlens"].tolist(), pack["position_ids"].tolist()
        ([0, 3, 5], [0, 1, 2, 0, 1])
    """
    _check_arguments(samples, fields, flatten)
    names = [
        named(sample, f"sample {i} of the pack") for i, sample in enumerate(samples)
    ]
    columns = _columns(names, samples, fields, flatten)
    tensors = {name: _tensors(name, columns[name], names) for name in fields}
    lengths = _sample_lengths(tensors, names, fields[0])
    pack: dict[str, Any] = {
        "cu_seqlens": as_tensor(list(accumulate(lengths, initial=0)), torch.int32),
        "max_seqlen": max(lengths),
        "position_ids": torch.cat(
            [torch.arange(length, device="cpu") for length in lengths]
        ),
    }
    for name, values in columns.items():
        if name in tensors:
            pack[name] = torch.cat(tensors[name])
        elif name in flatten:
            pack[name] = list(chain.from_iterable(map(_listed, values)))
        else:
            pack[name] = _METADATA[name](values) if name in _METADATA else values
    weights = joined_weights(samples)
    if weights is not None:
        pack[WEIGHTS] = weights
    return build(into, pack, "a pack")


def _check_arguments(
    samples: Sequence[Any], fields: Sequence[str], flatten: Sequence[str]
) -> None:
    if isinstance(fields, str) or isinstance(flatten, str) or not fields:
        expected = "fields and flatten must be names, of at least one field"
        raise ConfigError(f"concat_pack: {expected}, got {fields!r} and {flatten!r}")
    if not samples:
        raise ConfigError("concat_pack: the pack has no samples. Skip empty packs")


def _sample_lengths(
    tensors: dict[str, list[torch.Tensor]], names: Sequence[str], first: str
) -> list[int]:
    """Return the lengths of samples; all fields must agree."""
    lengths = [len(tensor) for tensor in tensors[first]]
    for field, column in tensors.items():
        for name, tensor, length in zip(names, column, lengths, strict=True):
            if len(tensor) != length:
                raise ConfigError(
                    f"concat_pack: {name} has {len(tensor)} entries in {field!r} and "
                    f"{length} in {first!r}. Pass one for each token"
                )
    return lengths


def _columns(
    names: Sequence[str],
    samples: Sequence[Any],
    fields: Sequence[str],
    flatten: Sequence[str],
) -> dict[str, list[Any]]:
    """Return the fields of all samples without weights; None for missing lists."""
    rows = [
        dict.fromkeys(flatten) | _row(name, sample, fields)
        for name, sample in zip(names, samples, strict=True)
    ]
    message = (
        "concat_pack: samples differ (list fields that some samples lack, such as "
        "images, in flatten)"
    )
    return columns_of(rows, message, [OWN])


def _row(name: str, sample: Any, fields: Sequence[str]) -> dict[str, Any]:
    """Return the checked fields of a sample, without its weights."""
    if not is_record(sample):
        raise ConfigError(
            f"concat_pack: {name} is not a record: {type(sample).__name__}"
        )
    row = {
        field: value
        for field, value in fields_of(sample).items()
        if field not in (WEIGHT, WEIGHTS)
    }
    for field in fields:
        if row.get(field) is None:
            raise ConfigError(
                f"concat_pack: {name} has no {field!r}. Its fields: "
                f"{', '.join(map(repr, row))}{nearest(field, list(row))}"
            )
    for field in MADE:
        if field in row and not (field == "position_ids" and field in fields):
            raise ConfigError(
                f"concat_pack: {name} has a field {field!r}, which packs get from "
                "lengths. Rename it, or list position_ids in fields"
            )
    return row


def _tensors(
    name: str, values: Sequence[Any], names: Sequence[str]
) -> list[torch.Tensor]:
    """Return a field of all samples as tensors that can be concatenated."""
    tensors: list[torch.Tensor] = []
    for called, value in zip(names, values, strict=True):
        try:
            tensor = as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"concat_pack: {name!r} of {called} is not a tensor, array or list of "
                f"numbers: {error}"
            ) from error
        tensors.append(tensor)
        kinds = [
            (part.dtype, part.device, part.shape[1:]) for part in (tensors[0], tensor)
        ]
        if not tensor.ndim or kinds[0] != kinds[1]:
            raise ConfigError(
                f"concat_pack: {name!r} of {called} has dtype {tensor.dtype} and "
                f"shape {tuple(tensor.shape)}, but {names[0]} has {tensors[0].dtype} "
                f"and {tuple(tensors[0].shape)}. Make all alike except the first "
                "dimension"
            )
    return tensors


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _agreed(subflavors: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return the entries that are equal in all samples; None if no sample has any."""
    if not any(entries is not None for entries in subflavors):
        return None
    first, *rest = [entries or {} for entries in subflavors]
    return {
        name: value
        for name, value in first.items()
        if all(name in entries and entries[name] == value for entries in rest)
    }


_METADATA: dict[str, Callable[[list[Any]], Any]] = {
    "__key__": lambda keys: ",".join(map(str, keys)),
    "__restore_key__": lambda keys: (),
    "__subflavors__": _agreed,
    "__sources__": lambda sources: (
        tuple(chain.from_iterable(s or () for s in sources)) or None
    ),
}
