"""A metadataset, or a prepared folder, as a dataset beside what it asks for."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, cast

from energize.compat.data_stages.building import stage_node
from energize.compat.data_stages.reading import is_stage_file, read_stages
from energize.dataset import IndexedDataset
from energize.errors import ConfigError
from energize.metadataset import Blend, Leaf, Node, Staged, resolve
from energize.metadataset.building import get_train_dataset
from energize.metadataset.nodes import JoinedLeaf
from energize.metadataset.shares import asked_shares, leaves_of
from energize.order.schedule import Schedule
from energize.sources.base import Source
from energize.sources.joined import JoinedSource
from energize.topology import WorkerConfig
from energize.wrappers.staged import StagedDataset


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
class AskedMix:
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
    unbatched: bool = False,
    reads: bool = False,
    **options: Any,
) -> AskedMix:
    """What `get_train_dataset` with one task encoder makes of `path`; see there for `options`.

    A `batch_size` of None is a whole global batch where the mix is composed of such, else 1;
    `unbatched`, items are encoded samples. A file of stages is what `get_staged_train_dataset`
    makes of it. What only making samples needs, code of folders and stores of cookers, is left out
    unless it `reads`. Raises what they raise.
    """
    config = WorkerConfig(seed_offset=seed)
    node: Node | Staged
    if is_stage_file(path):
        node = Staged(read_stages(path, split_part).with_datasets(stage_node), str(path))
    else:
        node = resolve(path, split_part)
    if not reads:
        options |= _stand_ins(node)
    if "task_encoder" not in options:
        if isinstance(node, Staged):
            plan = node.plan.with_datasets(lambda stage: _without_stores(stage.dataset))
            node = replace(node, plan=plan)
        else:
            node = _without_stores(node)
    size: int | None = _global_batch_size(node) if batch_size is None else batch_size
    size = None if unbatched else size
    dataset = get_train_dataset(node, batch_size=size, worker_config=config, **options)
    if isinstance(node, Staged):
        staged = cast("StagedDataset[Any]", dataset)
        return AskedMix(staged, _asked_at_start(node, staged), changes=True)
    mixed = cast("IndexedDataset[Any]", dataset)
    return AskedMix(mixed, _asked(node, mixed.sources), _changes(node))


def _stand_ins(node: Node | Staged) -> dict[str, Any]:
    """Functions in place of those that folders bring along, which are never called."""
    nodes = [stage.dataset for stage in node.plan.stages] if isinstance(node, Staged) else [node]
    leaves = [leaf for each in nodes for leaf in leaves_of(each)]
    parts = [part.leaf for leaf in leaves if isinstance(leaf, JoinedLeaf) for part in leaf.parts]
    coded = [leaf for leaf in (*leaves, *parts) if leaf.config.code]
    return {
        name: {leaf.path: stand_in for leaf in coded if name in leaf.config.code}
        for name, stand_in in (("sample_loader", dict), ("part_filter", bool))
    }


def _without_stores(node: Node) -> Node:
    """The node without what only cookers read, which decides no order."""
    if isinstance(node, Leaf):
        return replace(node, aux={}) if node.aux else node
    children = tuple((_without_stores(child), weight) for child, weight in node.children)
    return replace(node, children=children)


def _global_batch_size(node: Node | Staged) -> int:
    composition = node.composition if isinstance(node, Blend) else None
    return (composition.global_batch_size if composition else None) or 1


def _asked_at_start(node: Staged, dataset: StagedDataset[Any]) -> tuple[Asked | None, ...]:
    """What the first stage asks for; of sources that only later ones read, no sample yet."""
    sources = dataset.sources
    asked: dict[int, Asked | None] = {}
    for number, stage in enumerate(node.plan.stages):
        rows = dataset.numbers_of(number).tolist()
        found = _asked(stage.dataset, [sources[row] for row in rows])
        for row, each in zip(rows, found, strict=True):
            later = replace(each or Asked(None, None, 0.0), share=0.0)
            asked.setdefault(row, later if number else each)
    return tuple(asked[row] for row in range(len(sources)))


def _asked(node: Node, sources: Sequence[Source[Any]]) -> tuple[Asked | None, ...]:
    """What is asked for each source: by its folder, and of one folder by their order.

    Several leaves may be read as one source, when what their settings say is equal; and a leaf that
    stands in several mixes as several sources, so that their order says nothing.
    """
    leaves: defaultdict[Leaf, list[_Entry]] = defaultdict(list)
    try:
        for entry in _entries(node):
            leaves[replace(entry.leaf, path=entry.leaf.path.resolve())].append(entry)
    except ConfigError:  # the dataset could be built, but not all mixes have shares
        return (None,) * len(sources)
    leaves_of: defaultdict[object, list[list[_Entry]]] = defaultdict(list)
    for leaf, entries in leaves.items():
        leaves_of[_folder(leaf)].append(entries)
    sources_of: defaultdict[object, list[Asked | None]] = defaultdict(list)
    folders = [_folder(source) for source in sources]
    for folder, count in Counter(folders).items():
        found = leaves_of[folder]
        in_order = all(len({entry.mix for entry in entries}) == 1 for entries in found)
        if count == 1:
            sources_of[folder] = [_summed([entry for entries in found for entry in entries])]
        elif in_order and count == len(found):
            sources_of[folder] = [_summed(entries) for entries in found]
        else:
            sources_of[folder] = [None] * count
    return tuple(sources_of[folder].pop(0) for folder in folders)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A leaf where it is written, its share, its weight with those around it, and what tells apart
    the mixes in which leaves stand: plain blends in a plain one are one mix.
    """

    leaf: Leaf
    share: Fraction
    weight: str
    mix: int


def _entries(
    node: Node, share: Fraction = Fraction(1), above: tuple[str, ...] = (), mix: Blend | None = None
) -> Iterator[_Entry]:
    if isinstance(node, Leaf):
        yield _Entry(node, share, " x ".join(above) or "1", id(mix))
        return
    if mix is None or not (mix.plain and node.plain):
        mix = node
    for number, part in enumerate(asked_shares(node)):
        weights = (*above, _weight_text(node, number))
        yield from _entries(node.children[number][0], share * part, weights, mix)


def _summed(entries: Sequence[_Entry]) -> Asked:
    return Asked(
        " and ".join(entry.leaf.place for entry in entries),
        " + ".join(entry.weight for entry in entries),
        float(sum(entry.share for entry in entries)),
    )


def _folder(read: Any) -> object:
    """What a leaf, or a source, reads: a folder, a file, which has no split parts, or a join."""
    if isinstance(read, JoinedLeaf):
        return tuple(_folder(part.leaf) for part in read.parts)
    if isinstance(read, JoinedSource):
        return tuple(_folder(part) for part in read.parts)
    path = read.path.resolve()
    if path.is_file():
        return path
    return path, read.split_part, read.split_file if isinstance(read, Leaf) else read.split_config


def _weight_text(node: Blend, number: int) -> str:
    if node.quotas is not None:
        quota = asdict(node.quotas[number]).items()
        return " ".join(f"{name} {value:g}" for name, value in quota if value is not None) or "all"
    weight = node.children[number][1]
    if isinstance(weight, Schedule):
        return f"{weight.points[0][1]:g}->{weight.points[-1][1]:g}"
    return f"{weight:.12g}"


def _changes(node: Node) -> bool:
    if isinstance(node, Leaf):
        return False
    return any(isinstance(weight, Schedule) or _changes(child) for child, weight in node.children)
