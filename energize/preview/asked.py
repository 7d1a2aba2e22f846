"""A metadataset, or a prepared folder, as a dataset beside what it asks for."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from energize.compat.stage_files import is_stage_file, read_stages, stage_node
from energize.core.dataset import IndexedDataset
from energize.core.lanes import WorkerConfig
from energize.data.join import JoinedSource
from energize.data.selection import PropertySource
from energize.data.source import Source
from energize.datasets.stages import StagedDataset
from energize.metadataset.build import get_train_dataset, get_val_dataset
from energize.metadataset.nodes import Blend, JoinedLeaf, Leaf, Node, Staged, leaves_of
from energize.metadataset.resolution import resolve
from energize.order.schedule import Schedule
from energize.task.encoder import DefaultTaskEncoder


@dataclass(frozen=True, slots=True)
class Asked:
    """Where a file asks for a source.

    `place`: where it was written; all places, for several that are read as one. `weight`: as
    written, with those of the blends around it ("0.4 x 3"). Of several stages both are those of the
    first that reads the source, and None where they cannot be told.
    """

    place: str | None
    weight: str | None


@dataclass(frozen=True, slots=True)
class AskedMix:
    """What is read of a mix, and what was asked for each of `dataset.sources`.

    None stands where that cannot be told apart from what was asked for other sources of the folder,
    or where the file gives no shares. `validates`: every sample is read once, in stored order, and
    weights count nothing. `types`: the names of the types of its samples.
    """

    dataset: IndexedDataset[Any]
    asked: tuple[Asked | None, ...]
    validates: bool
    types: tuple[str, ...]


def read_mix(
    path: str | os.PathLike[str],
    *,
    split_part: str,
    batch_size: int | None,
    seed: int,
    validates: bool = False,
    unbatched: bool = False,
    reads: bool = False,
    encoder_per_type: bool = False,
    **options: Any,
) -> AskedMix:
    """What `get_train_dataset` with one task encoder makes of `path`; see there for `options`.

    If it `validates`, what `get_val_dataset` makes of it. With an `encoder_per_type`, each type of
    samples has a task encoder of its own, so that whole batches are blended.
    A `batch_size` of None is a whole global batch where the mix is composed of such, else 1;
    `unbatched`, items are encoded samples. A file of stages is what `get_staged_train_dataset`
    makes of it. What only making samples needs, code of folders and stores of cookers, is left out
    unless it `reads`. Raises what they raise.
    """
    node = _node(path, split_part)
    leaves = _leaves(node)
    if not reads:
        options |= _stand_ins(leaves)
    if "task_encoder" not in options:
        if isinstance(node, Staged):
            plan = node.plan.with_datasets(lambda stage: _without_stores(stage.dataset))
            node = replace(node, plan=plan)
        else:
            node = _without_stores(node)
    kinds = dict.fromkeys(leaf.sample_type for leaf in leaves)
    if encoder_per_type:
        options["task_encoder"] = {kind: DefaultTaskEncoder() for kind in kinds}
    size: int | None = _global_batch_size(node) if batch_size is None else batch_size
    options["batch_size"] = None if unbatched else size
    options["worker_config"] = WorkerConfig(seed_offset=seed)
    make: Callable[..., Any] = get_val_dataset if validates else get_train_dataset
    dataset: IndexedDataset[Any] = make(node, **options)
    if validates:
        asked: tuple[Asked | None, ...] = (None,) * len(dataset.sources)
    elif isinstance(node, Staged):
        asked = _asked_by_stages(node, cast("StagedDataset[Any]", dataset))
    else:
        asked = _asked(node, dataset.sources)
    return AskedMix(dataset, asked, validates, tuple(kind.__name__ for kind in kinds))


def _node(path: str | os.PathLike[str], split_part: str) -> Node | Staged:
    if is_stage_file(path):
        return Staged(read_stages(path, split_part).with_datasets(stage_node), str(path))
    return resolve(path, split_part)


def _leaves(node: Node | Staged) -> list[Leaf]:
    nodes = [stage.dataset for stage in node.plan.stages] if isinstance(node, Staged) else [node]
    return [leaf for each in nodes for leaf in leaves_of(each)]


def _stand_ins(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Functions in place of those that folders bring along, which are never called."""
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


def _asked_by_stages(node: Staged, dataset: StagedDataset[Any]) -> tuple[Asked | None, ...]:
    """What the first stage that reads a source asks for it."""
    sources = dataset.sources
    asked: dict[int, Asked | None] = {}
    for number, stage in enumerate(node.plan.stages):
        rows = dataset.numbers_of(number).tolist()
        found = _asked(stage.dataset, [sources[row] for row in rows])
        for row, each in zip(rows, found, strict=True):
            asked.setdefault(row, each)
    return tuple(asked[row] for row in range(len(sources)))


def _asked(node: Node, sources: Sequence[Source[Any]]) -> tuple[Asked | None, ...]:
    """What is asked for each source: by its folder, and of one folder by their order.

    Several leaves may be read as one source, when what their settings say is equal; and a leaf that
    stands in several mixes as several sources, so that their order says nothing.
    """
    leaves: defaultdict[Leaf, list[_Entry]] = defaultdict(list)
    for entry in _entries(node):
        leaves[replace(entry.leaf, path=entry.leaf.path.resolve())].append(entry)
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
    """A leaf where it is written, its weight with those around it, and what tells apart the mixes
    in which leaves stand: plain blends in a plain one are one mix.
    """

    leaf: Leaf
    weight: str
    mix: int


def _entries(node: Node, above: tuple[str, ...] = (), mix: Blend | None = None) -> Iterator[_Entry]:
    if isinstance(node, Leaf):
        yield _Entry(node, " x ".join(above) or "1", id(mix))
        return
    if mix is None or not (mix.plain and node.plain):
        mix = node
    for number, (child, _) in enumerate(node.children):
        yield from _entries(child, (*above, _weight_text(node, number)), mix)


def _summed(entries: Sequence[_Entry]) -> Asked:
    return Asked(
        " and ".join(entry.leaf.place for entry in entries),
        " + ".join(entry.weight for entry in entries),
    )


def _folder(read: Any) -> object:
    """What a leaf, or a source, reads: a folder, a file, which has no split parts, or a join."""
    if isinstance(read, JoinedLeaf):
        return tuple(_folder(part.leaf) for part in read.parts)
    if isinstance(read, PropertySource):
        return _folder(read.source)
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
