"""Where items of any type have their weights, and copies that have others."""

from __future__ import annotations

import copy
import dataclasses
import math
import numbers
from collections import UserDict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energize.core.lazy import torch
from energize.core.show import default_get_batch_keys
from energize.errors import ConfigError, ReturnError, WeightError

WEIGHT = "__sample_weight__"
"""Where a sample has the product of what its sources say."""

OWN = "sample_weight"
"""Where a sample has what its encoder says."""

WEIGHTS = "sample_weights"
"""Where a batch has the weights of its samples, and a pack those of its pieces."""

_ROOM = {
    WEIGHT: f"{WEIGHT}: float | None = None",
    WEIGHTS: f"{WEIGHTS}: torch.Tensor | None = None",
}


def field_of(item: Any, name: str) -> Any:
    """A value of a dict, or an attribute; None where there is none."""
    kind: Any = type(item)
    if kind is dict or has_keys(kind):
        return item.get(name)
    return getattr(item, name, None)


def tells(item: Any) -> bool:
    """Whether an item may say how much it counts, or how much those of a list do."""
    kind = type(item)
    if kind is dict:
        return WEIGHT in item or OWN in item or WEIGHTS in item
    return (
        getattr(item, WEIGHT, None) is not None
        or getattr(item, OWN, None) is not None
        or getattr(item, WEIGHTS, None) is not None
        or kind is list
        or hasattr(item, "keys")  # much like a dict
    )


@lru_cache(maxsize=256)
def has_keys(kind: type[Any]) -> bool:
    """Whether instances of a type have their values by key: dicts, and what is used as one."""
    return issubclass(kind, dict | UserDict)


def placed(item: Any, name: str, value: Any) -> Any | None:
    """A shallow copy with `value` in its place; None where there is none.

    Batches that are dataclasses have to have a field, as what is no field is lost where tensors are
    moved to another device.
    """
    kind: Any = type(item)
    if has_keys(kind):
        other: Any = copy.copy(item)
        other[name] = value
        return other
    if isinstance(item, tuple) and name in getattr(item, "_fields", ()):
        return item._replace(**{name: value})  # type: ignore[attr-defined]  # a named tuple
    if _is_plain(item) or (name == WEIGHTS and not _has_field(item, name)):
        return None
    other = copy.copy(item)
    try:
        object.__setattr__(other, name, value)
    except (AttributeError, TypeError):  # it has neither a __dict__ nor a slot of that name
        return None
    return other


def _is_plain(item: Any) -> bool:
    """Whether it is a value, to which nothing should be tied."""
    return isinstance(item, torch.Tensor | tuple | type) or callable(item)


def _has_field(item: Any, name: str) -> bool:
    if not dataclasses.is_dataclass(item):
        return True
    return name in {each.name for each in dataclasses.fields(item)}


def described(item: Any) -> str:
    """What an item is, for messages."""
    key = field_of(item, "__key__")
    return f"a {type(item).__name__}" + ("" if key is None else f" (key {str(key)[:80]!r})")


def remedy(item: Any, name: str) -> str:
    """What to do about an item without a place for its weight, or its weights."""
    kind = type(item).__name__
    base = "Batch" if name == WEIGHTS else "Sample"
    what = "the weights of its samples" if name == WEIGHTS else "the weight that its source gives"
    if dataclasses.is_dataclass(item):
        return (
            f"it has no place for {what}. Add the field `{_ROOM[name]}` to {kind}, or let it "
            f"extend energize.{base}"
        )
    return f"it has no place for {what}. Use a dict, or a dataclass with the field `{_ROOM[name]}`"


def listed_keys(item: Any) -> list[str] | None:
    """The keys of the samples of a batch; None where it lists none, and for a sample."""
    return None if isinstance(item, list) else default_get_batch_keys(item)


def keys_of(item: Any) -> list[str]:
    """The keys of a batch, or that of a sample; nothing where there is none."""
    keys = listed_keys(item)
    if keys is not None:
        return keys
    key = field_of(item, "__key__")
    return [key] if isinstance(key, str) else []


def counted(batch: Any) -> int:
    """How many samples a batch has, by its keys, or its tensors and lists if they agree.

    Raises `WeightError` where neither tells.
    """
    keys = listed_keys(batch)
    if keys is not None:
        return len(keys)
    found = sorted({len(each) for each in _columns(batch)})
    if len(found) != 1:
        raise WeightError(
            f"{described(batch)} does not tell how many samples it has: its tensors and lists have "
            f"the lengths {', '.join(map(str, found)) or 'none'}. Give it a list of their keys as "
            "'__key__', or weigh the samples before they are batched"
        )
    return found[0]


def _columns(batch: Any) -> list[Any]:
    """The tensors and lists of a batch."""
    kind: Any = type(batch)
    if has_keys(kind):
        values = list(batch.values())
    elif dataclasses.is_dataclass(batch):
        values = [getattr(batch, each.name) for each in dataclasses.fields(batch)]
    else:
        values = [batch, *getattr(batch, "__dict__", {}).values()]
    return [
        each
        for each in values
        if isinstance(each, list) or (isinstance(each, torch.Tensor) and each.ndim)
    ]


# The weight of one item, and items that count more or less.

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


# The weights of several items as those of a batch.

Row: TypeAlias = "torch.Tensor | float | None"
"""The weight of an item, or those of what it is made of."""


def batch_weights(samples: Sequence[Any]) -> torch.Tensor | None:
    """What `sample_weights` of a batch of these is: float32 of shape (samples,).

    None where none of them has a weight, else those without count 1. Of packs it has the shape
    (packs, pieces), those with fewer pieces filled up with 0; of batches that list their keys, all
    their weights one after the other. A function that makes a batch need not ask: its batch gets
    them, unless it leaves samples out, sorts them, or makes several batches, and tells no keys.

    Raises `WeightError` naming the sample for a weight that is negative, not finite or no number.

    >>> batch_weights([{"sample_weight": 0.5}, {"__key__": "b"}])
    tensor([0.5000, 1.0000])
    """
    if not any(map(tells, samples)):  # mostly so, and cheap to see
        return None
    if not any(listed_keys(each) is not None for each in samples):
        for sample in samples:
            _check_single(sample)
    return _combined(samples, [_row(each) for each in samples])


def joined_weights(batches: Sequence[Any]) -> torch.Tensor | None:
    """The weights of batches one after the other, also of those that list no keys; of samples, as
    `batch_weights` has them.
    """
    if not any(map(tells, batches)):
        return None
    rows = [_row(each) for each in batches]
    if any(isinstance(row, torch.Tensor) for row in rows):
        return _end_to_end(batches, rows)
    return _combined(batches, rows)


def pieces_of(pack: Any) -> int:
    """How many samples a pack is made of, by its `cu_seqlens`; `WeightError` without these."""
    bounds = field_of(pack, "cu_seqlens")
    if bounds is None:
        raise WeightError(
            f"{described(pack)} has no {WEIGHTS!r} of its pieces, and others in its batch have; "
            f"give it one weight for each piece, or give every source a {OWN}"
        )
    return len(bounds) - 1


def _combined(items: Sequence[Any], rows: Sequence[Row]) -> torch.Tensor | None:
    if all(row is None for row in rows):
        return None
    if any(listed_keys(each) is not None for each in items):
        return _end_to_end(items, rows)
    if not any(isinstance(row, torch.Tensor) for row in rows):
        return torch.tensor([1.0 if row is None else row for row in rows], dtype=torch.float32)
    packs = [
        row if isinstance(row, torch.Tensor) else torch.full((pieces_of(each),), _number(row))
        for each, row in zip(items, rows, strict=True)
    ]
    return torch.nn.utils.rnn.pad_sequence(packs, batch_first=True)


def _row(item: Any) -> Row:
    weights = field_of(item, WEIGHTS)
    if weights is not None:
        return torch.as_tensor(weights).to(torch.float32)
    return weight_of(item)


def _check_single(sample: Any) -> None:
    """Refuse several weights where a sample has one."""
    own = field_of(sample, OWN)
    several = isinstance(own, list | tuple) or getattr(own, "ndim", 0) > 0
    if several and field_of(sample, WEIGHTS) is None:
        raise WeightError(
            f"{OWN} of {described(sample)} is one number, as a sample has one weight; got "
            f"{str(own)[:80]}. Weights of what it is made of are its {WEIGHTS!r}"
        )


def _end_to_end(items: Sequence[Any], rows: Sequence[Row]) -> torch.Tensor:
    """The weights of batches one after the other."""
    return torch.cat(
        [
            row if isinstance(row, torch.Tensor) else torch.full((counted(each),), _number(row))
            for each, row in zip(items, rows, strict=True)
        ]
    )


def _number(row: float | None) -> float:
    return 1.0 if row is None else row


# Weights taken over by what users' functions make of samples and of batches.

Keep: TypeAlias = Callable[[Any, Any], Any]
"""Gives what a function made, its second argument, the weights of what the function was given.

Raises `LostWeightError`, to go on after the name of the function, for what has no place for them.
"""


class LostWeightError(ReturnError):
    """What a function returned has no place for weights, or does not say which are whose."""


_SEVERAL = (
    "gives several things of samples that have weights, and which one has which is for it to say: "
    f"of a sample in {OWN!r}, of a batch or a pack in {WEIGHTS!r}, which energize.batch_weights "
    "makes of a list of samples"
)


def carried(before: Any, made: T) -> T:
    """What a function made of one item, with its weight where it says none itself."""
    if made is before or not (tells(before) or _told(made)):  # mostly so, and cheap to see
        return made
    return _carried(before, made, several=False)


def carried_one_by_one(before: Any, made: T) -> T:
    """The same for one of several things that a function made of one item."""
    if made is before or not (tells(before) or _told(made)):
        return made
    return _carried(before, made, several=True)


def gathered(samples: Sequence[Any], made: T) -> T:
    """What a function made of a list of samples, with their weights where it says none itself.

    Weights find their samples by the keys that it lists; without such a list, in their order.
    """
    return _gathered(samples, made, batch_weights)


def joined(batches: Sequence[Any], made: T) -> T:
    """The same for a list of batches, whose weights come one after the other."""
    return _gathered(batches, made, joined_weights)


def gathered_one_by_one(samples: Sequence[Any], made: T) -> T:
    """The same for one of several things that a function made of a list."""
    return _gathered(samples, made, batch_weights, several=True)


class Passed:
    """What a function of a whole stream has taken since it gave something.

    Only the function knows which samples it made something of. So what comes of samples all of
    which have weights has to have some itself.
    """

    __slots__ = ("_taken", "_weighed")

    def __init__(self) -> None:
        self._taken = self._weighed = 0

    def take(self, item: Any) -> None:
        """Note an item that the function takes."""
        self._taken += 1
        self._weighed += tells(item) and (isinstance(item, list) or is_weighed(item))

    def give(self, _: Any, made: T) -> T:
        """What it gave; `ReturnError` where weights are lost."""
        weighed = 0 < self._taken == self._weighed
        self._taken = self._weighed = 0
        return _itself(made) if weighed and not isinstance(made, list) else made


def _told(made: Any) -> bool:
    """Whether an encoder said how much it counts."""
    return OWN in made if type(made) is dict else getattr(made, OWN, None) is not None


def _carried(before: Any, made: T, *, several: bool) -> T:
    source, own, weights = (field_of(before, name) for name in (WEIGHT, OWN, WEIGHTS))
    if weights is not None:
        return _handed_on(before, made, weights, several=several)
    made_own = own_weight(made)
    if source is None and own is None:
        if type(before) is list:
            return _gathered(before, made, batch_weights, several=several)
        return made
    said = field_of(made, WEIGHT)
    if field_of(made, WEIGHTS) is not None or (said is not None and said != source):
        return made  # it says so itself
    weight, given = source, own_weight(before)
    if given is not None and made_own is None:
        weight = given if source is None else source * given
    return made if weight == said else _with(made, WEIGHT, weight)


def _handed_on(before: Any, made: T, weights: torch.Tensor, *, several: bool) -> T:
    """What was made of a batch, or of a pack, with its weights."""
    if field_of(made, WEIGHTS) is not None:
        return made
    given, keys = listed_keys(before), listed_keys(made)
    if given is not None and keys is not None:
        return _with(made, WEIGHTS, _by_key(given, keys, weights))
    if several:
        return _itself(made)
    return _with(made, WEIGHTS, weights)


def _gathered(
    samples: Sequence[Any],
    made: T,
    weights_of: Callable[[Sequence[Any]], torch.Tensor | None],
    *,
    several: bool = False,
) -> T:
    if made is samples or field_of(made, WEIGHTS) is not None:
        return made
    weights = weights_of(samples)
    if weights is None:
        return made
    if type(made) in (list, tuple) and any(map(is_weighed, cast("Any", made))):
        return made  # a list of the samples, which carry their weights
    given, keys = [key for each in samples for key in keys_of(each)], listed_keys(made)
    if keys is not None and len(given) == len(weights):
        weights = _by_key(given, keys, weights)
    elif several:
        return _itself(made)
    return _taking(made, weights, samples)


def _taking(made: T, weights: torch.Tensor, samples: Sequence[Any]) -> T:
    """What was made of samples, with these weights."""
    own = own_weight(made)
    found = placed(made, WEIGHTS, weights if own is None else weights * own)
    if found is None:
        if field_of(made, OWN) is not None and all(field_of(s, WEIGHT) is None for s in samples):
            return made  # it has what the encoder said of each sample
        raise LostWeightError(f"returned {described(made)}: {remedy(made, WEIGHTS)}")
    if field_of(found, WEIGHT) is not None:  # taken over from one of the samples
        found = _with(found, WEIGHT, None)
    return cast("T", found)


def _itself(made: T) -> T:
    """One of several things, which says itself what it weighs; a `ReturnError` else."""
    if not is_weighed(made):
        raise LostWeightError(_SEVERAL)
    return made


def _with(made: T, name: str, value: Any) -> T:
    other = placed(made, name, value)
    if other is None:
        raise LostWeightError(f"returned {described(made)}: {remedy(made, name)}")
    return cast("T", other)


def _by_key(given: list[str], keys: list[str], weights: torch.Tensor) -> torch.Tensor:
    """The weights of the samples `given` in the order in which a batch lists their keys."""
    if given == keys:
        return weights
    at: dict[str, int] = {}
    for number, key in enumerate(given):
        if not torch.equal(weights[at.setdefault(key, number)], weights[number]):
            raise LostWeightError(
                "returned a batch with other keys than those of its samples in their order, and "
                f"two samples called {key!r} have different weights; set its {WEIGHTS!r} there, "
                "which energize.batch_weights makes of a list of samples"
            )
    unknown = [key for key in keys if key not in at]
    if unknown:
        raise LostWeightError(
            f"returned a batch with the key {unknown[0]!r}, which none of its samples has, so it "
            f"is not known how much that counts; set its {WEIGHTS!r} there, which "
            "energize.batch_weights makes of a list of samples"
        )
    return weights[[at[key] for key in keys]]


# The mean of weighted losses over a whole global batch, however it is divided.

Weights: TypeAlias = Any
"""A tensor of weights, or a batch with its `sample_weights`; without them each sample counts 1."""

_PADDING = "__padding__"
"""What `energize.padding`, which is built on this, marks padding by."""


def weighted_mean(
    loss: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    total: torch.Tensor | float | None = None,
    group: Any = None,
) -> torch.Tensor:
    """The mean of `loss`, weighted, over the global batch: a scalar to call `backward()` on.

    `loss` and `weights` have one shape, such as (batch,) with a loss for each sample, or (tokens,)
    with one for each token; without weights each entry counts 1. The result is sum(weights * loss)
    of this rank, divided by the weights of the whole global batch, times the number of ranks. So
    when DistributedDataParallel or FSDP have averaged gradients over the ranks, the gradient is
    that of sum(w * l) / sum(w) over all samples of the global batch, on any number of ranks with
    any numbers of samples; and that is also the mean of the results of the ranks.

    `total` are the weights of the global batch: over all ranks and, where gradients are
    accumulated, over all its micro batches, from `total_weight`. Without it, this batch is all of
    it on this rank, and the ranks tell each other what theirs are: a collective of one number, for
    which all call this. `group` is the process group of those that average their gradients, by
    default all; without torch.distributed there is one rank.

    Where all weights are 0 the result is 0, and so is its gradient. An entry that counts 0 adds 0,
    also if its loss is not finite.

    Raises `ConfigError` for tensors of different shapes.

    >>> weighted_mean(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0]))
    tensor(1.2500)
    """
    if not isinstance(loss, torch.Tensor) or not isinstance(weights, torch.Tensor | None):
        raise ConfigError(
            f"weighted_mean takes tensors, a loss and its weights; got a {type(loss).__name__} and "
            f"a {type(weights).__name__}"
        )
    weights = torch.ones_like(loss) if weights is None else weights.to(loss.device)
    if loss.shape != weights.shape:
        raise ConfigError(
            f"weighted_mean: the loss has the shape {tuple(loss.shape)} and the weights have "
            f"{tuple(weights.shape)}; give one loss for each sample (reduction='none', then the "
            "mean over what a sample has), or each token the weight of its sample, by "
            "torch.repeat_interleave(weights, lengths)"
        )
    if total is None:
        total = total_weight(weights, group=group)
    over = torch.as_tensor(total, dtype=_precise(loss.device)).to(loss.device)
    scale = torch.where(over > 0, _ranks(group) / over, torch.zeros_like(over))
    counting = torch.where(weights > 0, loss * weights, torch.zeros_like(loss * weights))
    summed = counting.sum()
    return summed * scale.to(summed.dtype)


def total_weight(weights: Weights | Iterable[Weights], *, group: Any = None) -> torch.Tensor:
    """The sum of all weights, over all ranks: a float64 scalar, for `weighted_mean(total=...)`.

    `weights` is a tensor of weights or a batch, or several of them: the micro batches that
    gradients are accumulated over. A batch without `sample_weights` counts its samples, padding
    nothing. All ranks of `group` (by default all that there are) call this at the same point; the
    collective is of one number.

    Raises `ConfigError` for anything else, `WeightError` for a batch without weights that does not
    tell how many samples it has.

    >>> total_weight([torch.tensor([0.5, 1.0]), {"sample_weights": torch.tensor([2.0])}])
    tensor(3.5000, dtype=torch.float64)
    """
    several = isinstance(weights, list | tuple) and not hasattr(weights, "_fields")
    sums = [_summed(each) for each in (weights if several else [weights])]
    if not sums:
        raise ConfigError("total_weight: there are no weights; give those of all micro batches")
    total = torch.stack([each.to(sums[0].device) for each in sums]).sum()
    if _ranks(group) > 1:
        backend = torch.distributed.get_backend(group)
        if total.device.type == "cpu" and "gloo" not in backend and torch.cuda.is_available():
            total = total.to("cuda")
        torch.distributed.all_reduce(total, group=group)
    return total


def effective_sample_size(weights: npt.ArrayLike | torch.Tensor) -> float:
    """How many samples of equal weight tell as much as these: (sum of w)² / sum of w².

    From Kish, Survey Sampling (1965). It is as many as there are where all weights are equal, less
    the more they differ, and 0 where all are 0. Divided by the number of samples it says what part
    of them a weighting leaves.

    >>> effective_sample_size([1.0, 1.0, 1.0, 1.0]), effective_sample_size([2.0, 1.0, 0.0, 0.0])
    (4.0, 1.8)
    """
    on_host = weights.detach().cpu() if isinstance(weights, torch.Tensor) else weights
    values = np.asarray(on_host, dtype=np.float64)
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / squares if squares else 0.0


def _summed(weights: Weights) -> torch.Tensor:
    found = weights if isinstance(weights, torch.Tensor) else field_of(weights, WEIGHTS)
    if found is None:
        if weights is None or isinstance(weights, int | float | str):
            raise ConfigError(
                f"total_weight takes tensors of weights or batches; got {weights!r}. Where some "
                "batches have no sample_weights, give the batches themselves"
            )
        number = 0 if field_of(weights, _PADDING) is True else counted(weights)
        return torch.tensor(number, dtype=torch.float64)
    return found.sum(dtype=_precise(found.device))


def _precise(device: torch.device) -> torch.dtype:
    """What sums are made in: float64, where a device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _ranks(group: Any) -> int:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return distributed.get_world_size(group)
