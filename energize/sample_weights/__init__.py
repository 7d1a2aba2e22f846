"""How much samples count in the loss: carried from sources to batches, and to the loss.

A sample carries the product of what its sources say in `__sample_weight__`, and what its encoder
says in `sample_weight`; its weight is the product of both. A batch has the weights of its samples
in `sample_weights`. All three are fields, keys of a dict, or attributes; None and missing are the
same, and where nobody gives a weight none of them is ever set.

Functions of users need not know of any of this. What one makes of a sample, or of several, takes
the weights over where it says nothing itself; what has no place for them is an error, and no weight
is lost.
"""

from energize.sample_weights.batches import batch_weights
from energize.sample_weights.keeping import (
    Keep,
    LostWeightError,
    Passed,
    carried,
    carried_one_by_one,
    gathered,
    gathered_one_by_one,
    joined,
)
from energize.sample_weights.loss import effective_sample_size, total_weight, weighted_mean
from energize.sample_weights.places import OWN, WEIGHT, WEIGHTS, field_of
from energize.sample_weights.samples import (
    checked_factor,
    is_weighed,
    weighed,
    weight_of,
    zeroed,
)

__all__ = [
    "OWN",
    "WEIGHT",
    "WEIGHTS",
    "Keep",
    "LostWeightError",
    "Passed",
    "batch_weights",
    "carried",
    "carried_one_by_one",
    "checked_factor",
    "effective_sample_size",
    "field_of",
    "gathered",
    "gathered_one_by_one",
    "is_weighed",
    "joined",
    "total_weight",
    "weighed",
    "weight_of",
    "weighted_mean",
    "zeroed",
]
