"""A mix as far as a saved state describes it: the same weights and sizes, without any samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from energize.core.arrays import Int64Array
from energize.core.dataset import IndexedDataset
from energize.core.description import Tree
from energize.core.trace import Failed
from energize.data.source import Source
from energize.datasets.batch import BatchDataset
from energize.datasets.blend import BlendDataset
from energize.datasets.order import ConcatDataset, LimitDataset, RepeatDataset, ShuffleDataset
from energize.datasets.stages import StagedDataset
from energize.errors import EnergizeError, StateError
from energize.order.stages import Stage, StagePlan
from energize.order.weights import weight_as_described


class OutlinedSource(Source[None]):
    """A source of which no more is known than what a state says: it has a count, and no samples."""

    outlined: tuple[str, int, str]

    def __init__(self, name: str, count: int, identity: str, seed: int, occurrence: int) -> None:
        self._freeze(outlined=(name, count, identity), seed=seed, occurrence=occurrence)

    @property
    def name(self) -> str:
        return self.outlined[0]

    @property
    def count(self) -> int:
        return self.outlined[1]

    @property
    def identity(self) -> str:
        return self.outlined[2]

    def read(self, indices: Int64Array) -> list[Failed | None]:
        raise StateError(f"{self.name}: a state has no samples; give the mix")


def mix_of_outline(tree: Tree) -> IndexedDataset[Any]:
    """A dataset with the sources, weights, batches and stages of the outline in a saved state.

    Shares and epochs are those of the run within a few samples of each source: orders are drawn
    from what a state keeps in part only. Nothing can be read from it.

    Raises `StateError` for an outline that says too little, as those of wide mixes do, of streams,
    and of blends by what samples cost.
    """
    try:
        return _made(tree)
    except (EnergizeError, KeyError, TypeError, ValueError, AttributeError) as reason:
        raise StateError(
            f"the state alone does not say what was delivered ({reason}); give the mix too"
        ) from reason


def _made(tree: Tree) -> IndexedDataset[Any]:
    kind, inputs = tree["kind"], tree.get("inputs")
    if not inputs and "count" in tree:
        numbers = (int(tree[name]) for name in ("seed", "occurrence"))
        return OutlinedSource(
            str(tree["name"]), int(tree["count"]), str(tree.get("identity", "")), *numbers
        )
    if kind not in _MAKERS or not isinstance(inputs, list):
        raise ValueError(f"what it keeps of a {kind} is not enough")
    return _MAKERS[kind](tree, [_made(each) for each in inputs])


def _blend(tree: Tree, inputs: list[IndexedDataset[Any]]) -> IndexedDataset[Any]:
    if "unit" in tree:
        raise ValueError("its shares are those of what samples cost")
    weights = [weight_as_described(each) for each in tree["weights"]]
    blend = BlendDataset(
        list(zip(inputs, weights, strict=True)),
        scheme=tree["scheme"],
        stop=tree["stop"],
        max_epochs=tree["max_epochs"],
        **tree["options"],
    )
    for slot, later in tree["changes"]:
        blend = blend.with_weights_from(slot, [weight_as_described(each) for each in later])
    return blend


def _staged(tree: Tree, inputs: list[IndexedDataset[Any]]) -> IndexedDataset[Any]:
    stages: list[Stage[Any]] = [
        Stage(**settings, dataset=each)
        for settings, each in zip(tree["plan"]["stages"], inputs, strict=True)
    ]
    plan = StagePlan(stages, tree["plan"]["total_steps"])
    return StagedDataset(plan, carry_over=tree["carry_over"])


def _batches(tree: Tree, inputs: list[IndexedDataset[Any]]) -> IndexedDataset[Any]:
    return BatchDataset(inputs[0], tree["batch_size"], list, drop_last=tree["drop_last"])


def _shuffled(tree: Tree, inputs: list[IndexedDataset[Any]]) -> IndexedDataset[Any]:
    names = ("shuffle_buffer_size", "max_samples_per_sequence", "over_epochs")
    return ShuffleDataset(inputs[0], **{name: tree[name] for name in names})


_MAKERS: Mapping[str, Callable[[Tree, list[IndexedDataset[Any]]], IndexedDataset[Any]]] = {
    "BatchDataset": _batches,
    "BlendDataset": _blend,
    "ConcatDataset": lambda _, inputs: ConcatDataset(*inputs),
    "LimitDataset": lambda tree, inputs: LimitDataset(inputs[0], tree["length"]),
    "RepeatDataset": lambda tree, inputs: RepeatDataset(inputs[0], tree["repeats"]),
    "ShuffleDataset": _shuffled,
    "StagedDataset": _staged,
}
