"""A metadataset, or a prepared folder, as a dataset beside what it asks for."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from energize.dataset import IndexedDataset
from energize.errors import ConfigError
from energize.metadataset import Blend, Leaf, Node, Staged, leaves_with_weights, resolve
from energize.metadataset.building import get_train_dataset
from energize.metadataset.stages import stage_node
from energize.metadataset.stages_reading import is_stage_file, read_stages
from energize.order.schedules.schedule import Schedule
from energize.sources.webdataset import WebdatasetSource
from energize.topology import WorkerConfig
from energize.wrappers.staged import StagedDataset

__all__ = ["Asked", "Mix", "read_mix"]

_Parts = Sequence[tuple[Leaf, Fraction]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a file asks for a source.

    `place`: where it was written; all places, for several that are read as one. `weight`: as
    written, with those of the blends around it ("0.4 x 3"). Of several stages both are those of the
    first that reads the source, and None where they cannot be told. `share`: of all samples, 0 to
    1; at the first step, where weights or stages change.
    """

    place: str | None
    weight: str | None
    share: float


@dataclass(frozen=True, slots=True)
class Mix:
    """The training dataset of a mix, and what was asked for each of `dataset.sources`.

    None stands where that cannot be told apart from what was asked for other sources of the folder,
    or where the file gives no shares. `changes`: whether weights or stages change during the run.
    """

    dataset: IndexedDataset[Any]
    asked: tuple[Asked | None, ...]
    changes: bool


def read_mix(
    path: str | os.PathLike[str],
    *,
    split_part: str,
    batch_size: int | None,
    seed: int,
    **options: Any,
) -> Mix:
    """What `get_train_dataset` with one task encoder makes of `path`; see there for `options`.

    A `batch_size` of None is a whole global batch where the mix is composed of such, else 1. A file
    of stages is what `get_staged_train_dataset` makes of it. Raises what they raise.
    """
    config = WorkerConfig(seed_offset=seed)
    node: Node | Staged
    if is_stage_file(path):
        node = Staged(read_stages(path, split_part).with_datasets(stage_node), str(path))
    else:
        node = resolve(path, split_part)
    size = _global_batch_size(node) if batch_size is None else batch_size
    dataset = get_train_dataset(node, batch_size=size, worker_config=config, **options)
    if isinstance(node, Staged):
        staged = cast("StagedDataset[Any]", dataset)
        return Mix(staged, _asked_at_start(node, staged), changes=True)
    mixed = cast("IndexedDataset[Any]", dataset)
    sources = cast("tuple[WebdatasetSource, ...]", mixed.sources)
    return Mix(mixed, _asked(node, sources), _changes(node))


def _global_batch_size(node: Node | Staged) -> int:
    composition = node.mixing.composition if isinstance(node, Blend) else None
    return (composition.global_batch_size if composition else None) or 1


def _asked_at_start(node: Staged, dataset: StagedDataset[Any]) -> tuple[Asked | None, ...]:
    """What the first stage asks for; of sources that only later ones read, no sample yet."""
    sources = cast("tuple[WebdatasetSource, ...]", dataset.sources)
    asked: dict[int, Asked | None] = {}
    for number, stage in enumerate(node.plan.stages):
        rows = dataset.numbers_of(number).tolist()
        found = _asked(stage.dataset, [sources[row] for row in rows])
        for row, each in zip(rows, found, strict=True):
            later = replace(each or Asked(None, None, 0.0), share=0.0)
            asked.setdefault(row, later if number else each)
    return tuple(asked[row] for row in range(len(sources)))


def _asked(node: Node, sources: Sequence[WebdatasetSource]) -> tuple[Asked | None, ...]:
    try:
        leaves = leaves_with_weights(node)
    except ConfigError:  # the dataset could be built, but not all mixes have shares
        return (None,) * len(sources)
    written: defaultdict[Leaf, list[str]] = defaultdict(list)
    mixes: defaultdict[Leaf, set[int]] = defaultdict(set)
    for leaf, weight, mix in _weights(node):
        written[_normal(leaf)].append(weight)
        mixes[_normal(leaf)].add(mix)
    several = {leaf for leaf, found in mixes.items() if len(found) > 1}
    asked: dict[int, Asked] = {}
    for number, parts in _matched(leaves, sources, several):
        weights = [weight for leaf, _ in parts for weight in written[_normal(leaf)]]
        place = " and ".join(leaf.place for leaf, _ in parts)
        share = float(sum(share for _, share in parts))
        asked[number] = Asked(place, " + ".join(weights), share)
    return tuple(asked.get(number) for number in range(len(sources)))


def _matched(
    leaves: _Parts, sources: Sequence[WebdatasetSource], several: Set[Leaf]
) -> Iterator[tuple[int, _Parts]]:
    """The sources whose leaves are known, with them: by the folder, and then by their order.

    Several leaves may be read as one source, when what their settings say is equal; and those that
    stand in `several` mixes as several sources, so that their order says nothing.
    """
    leaves_of: defaultdict[tuple[Path, str, str | None], list[tuple[Leaf, Fraction]]]
    leaves_of, sources_of = defaultdict(list), defaultdict(list)
    for leaf, share in leaves:
        leaves_of[leaf.path.resolve(), leaf.split_part, leaf.split_config].append((leaf, share))
    for number, source in enumerate(sources):
        key = (source.path.resolve(), source.split_part, source.split_config)
        sources_of[key].append(number)
    for key, numbers in sources_of.items():
        if len(numbers) == 1:
            yield numbers[0], leaves_of[key]
        elif several.isdisjoint(_normal(leaf) for leaf, _ in leaves_of[key]) and (
            len(numbers) == len(leaves_of[key])
        ):
            for number, part in zip(numbers, leaves_of[key], strict=True):
                yield number, [part]


def _weights(
    node: Node, above: tuple[str, ...] = (), mix: Blend | None = None
) -> Iterator[tuple[Leaf, str, int]]:
    """All leaves with the weights on the way to each, as they are written, and what tells apart the
    mixes in which they stand: plain blends in a plain one are one mix.
    """
    if isinstance(node, Leaf):
        yield node, " x ".join(above) or "1", id(mix)
        return
    if mix is None or not (mix.plain and node.plain):
        mix = node
    for number, (child, _) in enumerate(node.children):
        yield from _weights(child, (*above, _weight_text(node, number)), mix)


def _weight_text(node: Blend, number: int) -> str:
    if node.mixing.quotas is not None:
        quota = asdict(node.mixing.quotas[number]).items()
        return " ".join(f"{name} {value:g}" for name, value in quota if value is not None) or "all"
    weight = node.children[number][1]
    if isinstance(weight, Schedule):
        return f"{weight.points[0][1]:g}->{weight.points[-1][1]:g}"
    return f"{weight:.12g}"


def _changes(node: Node) -> bool:
    if isinstance(node, Leaf):
        return False
    return any(isinstance(weight, Schedule) or _changes(child) for child, weight in node.children)


def _normal(leaf: Leaf) -> Leaf:
    """Equal for leaves that are merged."""
    return replace(leaf, path=leaf.path.resolve())
