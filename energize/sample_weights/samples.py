"""The weight of one item, and items that count more or less."""

from __future__ import annotations

import math
import numbers
from typing import Any, TypeVar, cast

from energize.errors import WeightError
from energize.late import torch
from energize.sample_weights.places import (
    OWN,
    WEIGHT,
    WEIGHTS,
    counted,
    described,
    field_of,
    listed_keys,
    placed,
    remedy,
    tells,
)

T = TypeVar("T")


def checked_factor(value: Any, what: str) -> float:
    """A weight as a float; `WeightError` for anything but a finite number, 0 or more.

    >>> checked_factor(2, "sample_weight")
    2.0
    """
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise WeightError(
            f"{what} is a number by which a loss is multiplied; got {str(value)[:80]!r}"
        )
    if not math.isfinite(value) or value < 0:
        raise WeightError(f"{what} is {value}; weights in the loss are finite numbers, 0 or more")
    return float(value)


def own_weight(sample: Any) -> float | None:
    """What its encoder says of one sample: no column of a batch.

    Raises `WeightError` naming the sample for what is no finite number, 0 or more.
    """
    own = field_of(sample, OWN)
    if own is None or isinstance(own, list | tuple) or getattr(own, "ndim", 0) > 0:
        return None
    key = field_of(sample, "__key__")
    return checked_factor(own, OWN if key is None else f"{OWN} of sample {key!r}")


def weight_of(sample: Any) -> float | None:
    """How much one sample counts; None where nobody says. Raises what `own_weight` raises.

    >>> weight_of({"__sample_weight__": 0.5, "sample_weight": 3})
    1.5
    """
    source, own = field_of(sample, WEIGHT), own_weight(sample)
    if source is None:
        return own
    return float(source if own is None else source * own)


def is_weighed(item: Any) -> bool:
    """Whether somebody says how much a sample, or each one of a batch, counts."""
    return field_of(item, WEIGHTS) is not None or weight_of(item) is not None


def weighed(item: T, factor: float, *, batched: bool = False) -> T:
    """A shallow copy that counts `factor` times as much: of a batch, or a pack, each sample.

    Of a list, it is one of such items. `batched` says that it is a batch, though it may have no
    list of keys. Raises `WeightError` for
    a type without a place for weights, and a batch that does not tell how many samples it has.

    >>> weighed({"__key__": "a", "sample_weight": 2.0}, 0.25)
    {'__key__': 'a', 'sample_weight': 2.0, '__sample_weight__': 0.25}
    """
    if isinstance(item, list):
        return cast("T", [weighed(each, factor) for each in item])
    weights, before = field_of(item, WEIGHTS), field_of(item, WEIGHT)
    if weights is None and (batched or listed_keys(item) is not None):
        weights = torch.ones(counted(item), dtype=torch.float32)
    value: Any = factor if before is None else before * factor
    name = WEIGHT
    if weights is not None:
        name, value = WEIGHTS, torch.as_tensor(weights) * factor
    other = placed(item, name, value)
    if other is None:
        raise WeightError(f"{described(item)} cannot be weighed: {remedy(item, name)}")
    return cast("T", other)


def zeroed(item: T) -> T:
    """A shallow copy whose samples count nothing; as it is where it has no place to say so.

    >>> zeroed({"__key__": ["a", "b"]})
    {'__key__': ['a', 'b'], 'sample_weights': tensor([0., 0.])}
    """
    weights, keys = field_of(item, WEIGHTS), listed_keys(item)
    if weights is not None:
        other = placed(item, WEIGHTS, torch.zeros_like(torch.as_tensor(weights)))
    elif keys is not None:
        other = placed(item, WEIGHTS, torch.zeros(len(keys)))
    elif isinstance(item, dict) and not tells(item):
        other = None  # a dict that nobody asked to have weights
    else:
        other = placed(item, WEIGHT, 0.0)
    return item if other is None else cast("T", other)
