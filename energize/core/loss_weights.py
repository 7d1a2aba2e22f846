"""Weights of samples in the loss: their fields, and how functions preserve them.

A sample has up to two weights, which multiply: `__sample_weight__`, the product of the
weights of its sources, and `sample_weight`, set by its encoder. A batch or a pack has
the weights of its samples in `sample_weights`. A missing weight counts as 1.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import UserDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from energize.core.arrays import as_tensor
from energize.core.checks import real_number
from energize.core.lazy import torch
from energize.errors import ReturnError, WeightError

T = TypeVar("T")

WEIGHT = "__sample_weight__"
"""The field of a sample with the product of the weights of its sources."""

OWN = "sample_weight"
"""The field of a sample with the weight that its encoder sets."""

WEIGHTS = "sample_weights"
"""The field of a batch or pack with the weights of its samples."""

LOSS_WEIGHTS = "loss_weights"
"""The field of a batch with the weights of its tokens, of the shape of its labels."""

OFFSETS = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k")
"""Names of the offsets of the samples of a pack; the first one is that of packs."""

_KEYED = (dict, UserDict)
"""Types of items with keys; other types have attributes."""

_MAKES = "which energize.batch_weights makes of a list of samples"

_DECLARED = {WEIGHT: "float | None", WEIGHTS: "torch.Tensor | None"}


def may_have_weights(item: Any) -> bool:
    """Return whether an item, or one of a list of items, may have a weight."""
    if type(item) is dict:
        return WEIGHT in item or OWN in item or WEIGHTS in item
    return (
        getattr(item, WEIGHT, None) is not None
        or getattr(item, OWN, None) is not None
        or getattr(item, WEIGHTS, None) is not None
        or hasattr(item, "keys")  # much like a dict
        or isinstance(item, list)
    )


def field_of(item: Any, name: str) -> Any:
    """Return a value of a dict, or an attribute; None if it is missing."""
    if isinstance(item, _KEYED):
        return item.get(name)
    return getattr(item, name, None)


def placed(item: T, name: str, value: Any) -> T | None:
    """Return a shallow copy with a value in a field; None if it has no such field.

    A dataclass must declare the field: other attributes are lost when trainers move the
    tensors of a batch.
    """
    if type(item) is dict:  # as most samples are
        return cast("T", {**cast("dict[str, Any]", item), name: value})
    if isinstance(item, tuple) and name in getattr(item, "_fields", ()):
        return cast("T", item._replace(**{name: value}))  # type: ignore[attr-defined]
    if isinstance(item, torch.Tensor | tuple | type) or callable(item):
        return None
    declared = getattr(type(item), "__dataclass_fields__", None)
    if name == WEIGHTS and declared is not None and name not in declared:
        return None
    other: Any = copy.copy(item)
    try:
        if isinstance(item, _KEYED):
            other[name] = value
        else:
            object.__setattr__(other, name, value)
    except (
        AttributeError,
        TypeError,
    ):  # it has neither a __dict__ nor a slot of that name
        return None
    return cast("T", other)


def _named(item: Any) -> str:
    key = field_of(item, "__key__")
    return f"a {type(item).__name__}" + (
        "" if key is None else f" (key {str(key)[:80]!r})"
    )


def _no_place(item: Any, name: str) -> str:
    """Return the remedy for an item without a field for its weights."""
    subject, base = (
        ("weights of its samples", "Batch") if name == WEIGHTS else ("weight", "Sample")
    )
    field = f"the field `{name}: {_DECLARED[name]} = None`"
    remedy = f"Use a dict, or a dataclass with {field}"
    if dataclasses.is_dataclass(item):
        remedy = (
            f"Add {field} to {type(item).__name__}, or let it extend energize.{base}"
        )
    return f"it has no place for the {subject}. {remedy}"


def default_get_batch_keys(batch: Any) -> list[str] | None:
    """Return the keys of the samples of a batch: its `__key__`, `__keys__` or `keys`.

    None if it is not a list of texts. For a list of batches, the keys of the first.

    Example:
        >>> default_get_batch_keys({"__key__": ["a", "b"]})
        ['a', 'b']
    """
    if isinstance(batch, list):
        batch = batch[0] if batch else None
    for name in ("__key__", "__keys__", *(["keys"] if isinstance(batch, dict) else [])):
        keys = field_of(batch, name)
        if isinstance(keys, list) and all(isinstance(key, str) for key in keys):
            return keys
    return None


def listed_keys(item: Any) -> list[str] | None:
    """Return the keys of the samples of a batch; None where it lists none, and for a
    sample.
    """
    return None if isinstance(item, list) else default_get_batch_keys(item)


def keys_of(item: Any) -> list[str]:
    """Return the keys of a batch or sample as a list; empty if it has none."""
    key = field_of(item, "__key__")
    return listed_keys(item) or ([key] if isinstance(key, str) else [])


def counted(batch: Any) -> int:
    """Count the samples of a batch.

    The count is the number of its keys; without keys, the common length of its tensors
    and lists.

    Args:
        batch: A batch of any type.

    Raises:
        WeightError: If there are no keys, and lengths differ.
    """
    keys = listed_keys(batch)
    if keys is not None:
        return len(keys)
    values = _values_of(batch)
    lengths = {len(value) for value in values if isinstance(value, list)}
    lengths |= {len(t) for t in values if isinstance(t, torch.Tensor) and t.ndim}
    if len(lengths) != 1:
        raise WeightError(
            f"{_named(batch)} has an unknown number of samples: its columns have the "
            f"lengths {sorted(lengths)}. Add a list of their keys as '__key__', or "
            "weigh samples before batching"
        )
    return lengths.pop()


def _values_of(batch: Any) -> list[Any]:
    if isinstance(batch, _KEYED):
        return list(batch.values())
    if dataclasses.is_dataclass(batch):
        return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return [batch, *getattr(batch, "__dict__", {}).values()]


# The weight of one item, and items that count more or less.


def checked_factor(value: Any, label: str) -> float:
    """Return a weight as a float; `WeightError` for anything but a finite number, 0 or
    more.

    >>> checked_factor(2, "sample_weight")
    2.0
    """
    number = real_number(value)
    if number is None or not math.isfinite(number) or number < 0:
        raise WeightError(
            f"{label} must be a finite number >= 0, as a weight in the loss, got "
            f"{str(value)[:80]!r}"
        )
    return float(number)


def encoder_weight(sample: Any) -> float | None:
    """Return the weight that an encoder set for a sample.

    Returns:
        The weight; None if it is missing, or a column of a batch.

    Raises:
        WeightError: If it is negative or not finite; the message has the key.
    """
    weight = field_of(sample, OWN)
    if weight is None or _is_column(weight):
        return None
    key = field_of(sample, "__key__")
    return checked_factor(weight, OWN if key is None else f"{OWN} of sample {key!r}")


def _is_column(weight: Any) -> bool:
    return isinstance(weight, list | tuple) or getattr(weight, "ndim", 0) > 0


def weight_of(sample: Any) -> float | None:
    """Return the weight of one sample; None if it has none.

    Raises:
        WeightError: If a weight is invalid.

    Example:
        >>> weight_of({"__sample_weight__": 0.5, "sample_weight": 3})
        1.5
    """
    source = field_of(sample, WEIGHT)
    factor = encoder_weight(sample)
    if source is None:
        return factor
    return float(source if factor is None else source * factor)


def is_weighed(item: Any) -> bool:
    """Return whether a sample, or the samples of a batch, have weights."""
    return field_of(item, WEIGHTS) is not None or weight_of(item) is not None


def weighed(item: T, factor: float, *, batched: bool = False) -> T:
    """Return a shallow copy with its weights multiplied by a factor.

    Args:
        item: A sample; a batch or a pack, for all its samples; or a list of items.
        factor: The factor.
        batched: The item is a batch, even if it lists no keys.

    Raises:
        WeightError: If the type has no field for weights, or the number of samples of a
            batch is unknown.

    Example:
        >>> weighed({"__key__": "a", "sample_weight": 2.0}, 0.25)
        {'__key__': 'a', 'sample_weight': 2.0, '__sample_weight__': 0.25}
    """
    if isinstance(item, list):
        return cast("T", [weighed(entry, factor) for entry in item])
    weights = field_of(item, WEIGHTS)
    previous = field_of(item, WEIGHT)
    is_batch = batched or listed_keys(item) is not None
    is_pack = previous is None and field_of(item, OFFSETS[0]) is not None
    if weights is None and (is_batch or is_pack):
        size = counted(item) if is_batch else _pieces(item)
        weights = torch.ones(size, dtype=torch.float32, device="cpu")
    name = WEIGHT
    value = factor if previous is None else previous * factor
    if weights is not None:
        name = WEIGHTS
        value = as_tensor(weights) * factor
    other = placed(item, name, value)
    if other is None:
        raise WeightError(f"{_named(item)} cannot be weighed: {_no_place(item, name)}")
    return other


def zeroed(item: T) -> T:
    """Return a shallow copy with weight 0; the item itself if it has no field for it.

    Example:
        >>> zeroed({"__key__": ["a", "b"]})
        {'__key__': ['a', 'b'], 'sample_weights': tensor([0., 0.])}
    """
    unmarked = (
        isinstance(item, dict)
        and not may_have_weights(item)
        and listed_keys(item) is None
    )
    if unmarked or isinstance(item, list):  # it need not have weights
        return item
    try:
        return weighed(item, 0.0)
    except WeightError:
        return item


# The weights of several items as those of a batch.


def batch_weights(samples: Sequence[Any]) -> torch.Tensor | None:
    """Return the `sample_weights` for a batch of samples.

    Batches get them automatically, unless the batching function leaves samples out,
    sorts them, or makes several batches, and lists no keys.

    Args:
        samples: Samples, packs, or batches.

    Returns:
        float32 of shape (samples,), with 1 for samples without a weight; None if all
        lack one. For packs of shape (packs, pieces), padded with 0. For batches that
        list their keys, their weights concatenated.

    Raises:
        WeightError: If a weight is negative, not finite or not a number; the message
            has the key of the sample.

    Example:
        >>> batch_weights([{"sample_weight": 0.5}, {"__key__": "b"}])
        tensor([0.5000, 1.0000])
    """
    return _weights(samples, packs=True)


def joined_weights(batches: Sequence[Any]) -> torch.Tensor | None:
    """Return the concatenated weights of batches, even if they list no keys."""
    return _weights(batches, packs=False)


def _weights(items: Sequence[Any], *, packs: bool) -> torch.Tensor | None:
    """Return the weights of a batch of items, or None if no item has one.

    Args:
        items: Samples, packs or batches.
        packs: Items that have several weights and list no keys are packs, a row of a
            batch for each; otherwise they are batches.
    """
    if not any(map(may_have_weights, items)):  # the usual case, and cheap to check
        return None
    batches = any(listed_keys(item) is not None for item in items)
    if packs and not batches:
        for item in items:
            _check_single(item)
    rows = [_row(item) for item in items]
    if all(row is None for row in rows):
        return None
    if batches or any(isinstance(row, torch.Tensor) for row in rows):
        return _several_weights(items, rows, batches=batches or not packs)
    return as_tensor([1.0 if row is None else row for row in rows], torch.float32)


def _several_weights(
    items: Sequence[Any], rows: Sequence[Any], *, batches: bool
) -> torch.Tensor:
    """Return the weights of batches, concatenated, or of packs, a row for each."""
    size = counted if batches else _pieces
    expanded = []
    for item, row in zip(items, rows, strict=True):
        weights = row
        if not isinstance(row, torch.Tensor):
            weights = as_tensor(1.0 if row is None else row).expand(size(item))
        expanded.append(weights)
    if batches:
        return torch.cat(expanded)
    return torch.nn.utils.rnn.pad_sequence(expanded, batch_first=True)


def _row(item: Any) -> torch.Tensor | float | None:
    """Return the weight of an item, or the weights of its samples."""
    weights = field_of(item, WEIGHTS)
    return weight_of(item) if weights is None else as_tensor(weights, torch.float32)


def _check_single(sample: Any) -> None:
    weight = field_of(sample, OWN)
    if _is_column(weight) and field_of(sample, WEIGHTS) is None:
        raise WeightError(
            f"{OWN} of {_named(sample)} must be one number, got {str(weight)[:80]}. "
            f"Set weights of the parts of a sample as its {WEIGHTS!r}"
        )


def _pieces(pack: Any) -> int:
    bounds = field_of(pack, OFFSETS[0])
    if bounds is None:
        raise WeightError(
            f"{_named(pack)} has no {WEIGHTS!r} of its pieces, but others in its batch "
            f"have. Set one for each piece, or set a {OWN} for every source"
        )
    return len(bounds) - 1


# Weights of the results of users' functions.

Keep: TypeAlias = Callable[[Any, Any], Any]
"""Adds the weights of an argument to the result of a function.

It is called with argument and result. Raises `LostWeightError`, to be prefixed with the
name of the function, if the result has no field for weights.
"""


class LostWeightError(ReturnError):
    """The result of a function has no field for weights, or no keys to match them."""


def carried(
    source: Any, result: T, *, several: bool = False, together: bool = False
) -> T:
    """Return the result of a function, with the weights of its input if it sets none.

    Weights are matched to samples by the keys that a batch lists; without such a list,
    by their order.

    Args:
        source: The item, or the list of samples, that was passed to the function.
        result: The result of the function.
        several: `result` is one of several results.
        together: The weights of the batches in a list `source` are concatenated.
    """
    if result is source:
        return result
    if not (
        _has_encoder_weight(result) or _any_has_weights(source)
    ):  # usual, and cheap to check
        return result
    if type(source) is list:
        weights = (joined_weights if together else batch_weights)(source)
        return (
            result
            if weights is None
            else _gathered(source, result, weights, several=several)
        )
    return _carried_by_one(source, result, several=several)


def _carried_by_one(source: Any, result: T, *, several: bool) -> T:
    """Return the result of a function of one item, with the weights of the item."""
    if result is source or field_of(result, WEIGHTS) is not None:
        return result
    weights = field_of(source, WEIGHTS)
    if weights is None:
        return _with_weight(source, result)
    previous = listed_keys(source)
    keys = listed_keys(result)
    if previous is not None and keys is not None:
        weights = _by_key(previous, keys, weights)
    elif several:
        return _itself(result)
    return _with(result, WEIGHTS, weights)


def _has_encoder_weight(item: Any) -> bool:
    if isinstance(item, dict):
        return OWN in item
    return getattr(item, OWN, None) is not None


def _any_has_weights(source: Any) -> bool:
    return (
        any(map(may_have_weights, source))
        if type(source) is list
        else may_have_weights(source)
    )


carried_one_by_one: Keep = partial(carried, several=True)
"""As `carried`, for one of several results of a function."""

joined: Keep = partial(carried, together=True)
"""The same for a list of batches."""


class Passed:
    """Counts the samples that a function of a whole stream has read.

    Only the function knows which samples a result is made of. So if all samples have
    weights, the result must set its weight itself.
    """

    __slots__ = ("_taken", "_weighed")

    def __init__(self) -> None:
        self._taken = self._weighed = 0

    def take(self, item: Any) -> None:
        """Note an item that the function takes."""
        self._taken += 1
        self._weighed += may_have_weights(item) and (
            isinstance(item, list) or is_weighed(item)
        )

    def carry(self, _: Any, result: T) -> T:
        """Return the result; raise `LostWeightError` if weights are lost."""
        weighed = 0 < self._taken == self._weighed
        self._taken = self._weighed = 0
        return _itself(result) if weighed and not isinstance(result, list) else result


def _with_weight(sample: Any, result: T) -> T:
    """Return the result for one sample, with its weight."""
    source = field_of(sample, WEIGHT)
    present = field_of(result, WEIGHT)
    factor = encoder_weight(sample)
    if encoder_weight(result) is not None:
        factor = None
    if present is not None and present != source:
        return result  # the function has set it
    if factor is None:
        weight = source
    elif source is None:
        weight = factor
    else:
        weight = source * factor
    return result if weight == present else _with(result, WEIGHT, weight)


def _gathered(
    items: Sequence[Any], result: T, weights: torch.Tensor, *, several: bool
) -> T:
    if result is items:
        return result
    if _sets_weights(result):
        return _without_weight(result)
    if type(result) in (list, tuple) and any(map(is_weighed, cast("Any", result))):
        return result  # a list of the samples, which carry their weights
    sample_keys = [key for item in items for key in keys_of(item)]
    keys = listed_keys(result)
    if keys is not None and len(sample_keys) == len(weights):
        weights = _by_key(sample_keys, keys, weights)
    elif several:
        return _itself(result)
    factor = encoder_weight(result)
    weighed_result = placed(
        result, WEIGHTS, weights if factor is None else weights * factor
    )
    if weighed_result is not None:
        return _without_weight(weighed_result)
    if field_of(result, OWN) is not None and all(
        field_of(sample, WEIGHT) is None for sample in items
    ):
        return result  # it has the weights that the encoder set
    raise LostWeightError(f"returned {_named(result)}: {_no_place(result, WEIGHTS)}")


def _sets_weights(result: Any) -> bool:
    """Whether a function has set weights itself.

    A function that copies all keys has a list of the weights of its batches, or packs,
    which it has not set.
    """
    weights = field_of(result, WEIGHTS)
    if weights is None:
        return False
    is_copied = isinstance(weights, list) and any(
        getattr(w, "ndim", 0) for w in weights
    )
    return not is_copied


def _without_weight(batch: T) -> T:
    """Return a batch without the `__sample_weight__` that a function copied from its
    samples.
    """
    if isinstance(batch, _KEYED) and WEIGHT in batch:
        other: Any = copy.copy(batch)
        del other[WEIGHT]
        return cast("T", other)
    return batch if field_of(batch, WEIGHT) is None else _with(batch, WEIGHT, None)


def _itself(result: T) -> T:
    """Return a result that sets its weights; otherwise raise `LostWeightError`."""
    if not is_weighed(result):
        raise LostWeightError(
            "returned several items for samples with weights, without their own "
            f"weights. Set {OWN!r} of a sample, and {WEIGHTS!r} of a batch or a pack, "
            f"{_MAKES}"
        )
    return result


def _with(result: T, name: str, value: Any) -> T:
    other = placed(result, name, value)
    if other is None:
        raise LostWeightError(f"returned {_named(result)}: {_no_place(result, name)}")
    return other


def _by_key(
    previous: list[str], keys: list[str], weights: torch.Tensor
) -> torch.Tensor:
    """Return weights of samples in the order in which a batch lists their keys."""
    if previous == keys:
        return weights
    at: dict[str, int] = {}
    remedy = f"Set its {WEIGHTS!r} there, {_MAKES}"
    for number, key in enumerate(previous):
        if not torch.equal(weights[at.setdefault(key, number)], weights[number]):
            raise LostWeightError(
                "returned a batch with keys in another order than its samples, and "
                f"two samples called {key!r} have different weights. {remedy}"
            )
    unknown = next((key for key in keys if key not in at), None)
    if unknown is not None:
        raise LostWeightError(
            f"returned a batch with the key {unknown!r}, which none of its samples "
            f"has; {remedy}"
        )
    return weights[[at[key] for key in keys]]
