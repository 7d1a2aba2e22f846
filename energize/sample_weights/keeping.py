"""Weights taken over by what users' functions make of samples and of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from energize.errors import ReturnError
from energize.late import torch
from energize.sample_weights.batches import batch_weights, joined_weights
from energize.sample_weights.places import (
    OWN,
    WEIGHT,
    WEIGHTS,
    described,
    field_of,
    keys_of,
    listed_keys,
    placed,
    remedy,
    tells,
)
from energize.sample_weights.samples import is_weighed, own_weight

T = TypeVar("T")

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
