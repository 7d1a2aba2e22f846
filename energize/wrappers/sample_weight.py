"""How much samples count in the loss, for Python trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from energize.dataset import Dataset
from energize.describing import described
from energize.sample_weights import checked_factor, weighed
from energize.topology import WorkerConfig
from energize.wrappers.calling import Seeding
from energize.wrappers.map import MapDataset

T = TypeVar("T")

_BATCHES = "gives_batches"
"""The attribute of classes that make batches (True), or other things (False), of what they read."""


class SampleWeightDataset(MapDataset[T]):
    """Items that count `weight` times as much in the loss; nothing else of them changes.

    `weight` is a number, 0 or more, or a function of an item. It multiplies with what is said below
    and above, in other datasets of this kind, in a metadataset, and by the encoder, and arrives in
    a batch as `sample_weights`, float32 of shape (batch,). Over batches, or packs, it is that of
    each of their samples. It decides no order: which samples come, and the random numbers that
    functions draw, are the same without it, and a resumed run may have other weights.

    Raises `WeightError` for a weight that is negative or not finite, at once or, of a function,
    naming the item; and when it is read, for items of a type without a place for a weight.

    >>> from energize import ListSource
    >>> texts = ListSource([{"text": "a"}, {"text": "b"}])
    >>> SampleWeightDataset(texts, 0.5)[1]
    {'text': 'b', '__sample_weight__': 0.5}
    >>> long = SampleWeightDataset(texts, lambda sample: float(len(sample["text"])))
    """

    draws = False

    def __init__(
        self,
        dataset: Dataset[T],
        weight: float | Callable[[T], float],
        *,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        given = weight
        if not callable(weight):
            given = checked_factor(weight, "SampleWeightDataset: weight")
        weighing = Weighing(given, isinstance(dataset, Dataset) and gives_batches(dataset))
        super().__init__(dataset, weighing, seeded=False, worker_config=worker_config)

    @property
    def weight(self) -> float | Callable[[Any], float]:
        """The weight, or the function that says it."""
        weight: float | Callable[[Any], float] = self.map_fn.weight  # type: ignore[attr-defined]
        return weight

    @cached_property
    def seeding(self) -> Seeding:
        return Seeding.NONE


def without_weights(dataset: Dataset[T]) -> tuple[Dataset[T], Callable[[Dataset[T]], Dataset[T]]]:
    """What is weighed, below all datasets of this kind, and what weighs another dataset so."""
    weights: list[Any] = []
    while isinstance(dataset, SampleWeightDataset):
        weights.append(dataset.weight)
        dataset = dataset.inputs[0]

    def weighed_so(other: Dataset[T]) -> Dataset[T]:
        for weight in reversed(weights):
            other = SampleWeightDataset(other, weight)
        return other

    return dataset, weighed_so


@dataclass(frozen=True)
class Weighing:
    """Gives an item its weight; `batched` says that items are batches."""

    weight: float | Callable[[Any], float]
    batched: bool = False

    def __call__(self, item: Any) -> Any:
        weight = self.weight
        if callable(weight):
            key = getattr(item, "__key__", None) or (isinstance(item, dict) and item.get("__key__"))
            of = f" of sample {key!r}" if isinstance(key, str) else ""
            weight = checked_factor(weight(item), f"the weight{of} by SampleWeightDataset")
        return weighed(item, weight, batched=self.batched)

    def describe(self) -> str:
        """The weight, as a description has it."""
        return f"sample_weight={described(self.weight)}"


def gives_batches(dataset: Dataset[Any]) -> bool:
    """Whether items are batches, as far as the tree says."""
    own = getattr(type(dataset), _BATCHES, None)
    if own is not None:
        return bool(own)
    return bool(dataset.inputs) and all(gives_batches(each) for each in dataset.inputs)
