"""`energize lint`: reads every sample there is, and tells what is wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer

import energize.cli.contents as opt
from energize.cli.console import Console
from energize.cli.contents import is_jsonl, leaf_name, leaves_at, split_names, stored_samples
from energize.cli.faults import FaultList, without_place
from energize.cli.linting import check_all
from energize.cli.mix_options import at_least, counted_text
from energize.cli.progress import progress_bar
from energize.cli.showing import show_lines, show_note
from energize.core.arrays import UInt64Array
from energize.core.dataset import IndexedDataset
from energize.core.trace import where
from energize.data.nv_meta import read_info, read_splits
from energize.errors import DatasetNotFoundError, EmptyDatasetError, EnergizeError, SplitError
from energize.metadataset.nodes import JoinedLeaf, Leaf
from energize.preparation.verify import check_counts, check_folder, check_lines
from energize.preparation.workers import default_workers
from energize.task.decode import SampleDecoder

_DECODER = SampleDecoder(image_decode="torchrgb8")
_KEYS_SHOWN = 5

Parallel = Annotated[
    int | None,
    typer.Option(
        callback=at_least(1), help="How many processes read samples; by default the cores."
    ),
]
All = Annotated[
    bool,
    typer.Option("--all", help="Tell of every sample that fails, not of a few that are alike."),
]


@dataclass(slots=True)
class _Findings:
    """What is wrong, beside samples, and what was read."""

    console: Console
    faults: FaultList = field(default_factory=FaultList)
    told: set[str] = field(default_factory=set)
    samples: int = 0

    def tell(self, text: str) -> None:
        """Something that is wrong with more than a sample; the same of several splits once."""
        if text in self.told:
            return
        self.told.add(text)
        self.console.print("Fault:", style="bold red", end=" ")
        self.console.print(text, markup=False)


def lint(
    path: opt.DataPath,
    *,
    split_parts: opt.SplitParts = None,
    dataset_config: opt.DatasetConfig = "dataset.yaml",
    split_config: opt.SplitConfig = "split.yaml",
    trust_code: opt.TrustCode = None,
    parallel: Parallel = None,
    show_all: All = False,
    progress: Annotated[bool, typer.Option("--progress/--no-progress")] = True,
) -> None:
    """Read, decode and type every sample of every split; exit with 1 if anything is wrong.

    Cookers and task encoders are not needed: samples are checked as they are stored.
    """
    if not path.exists():
        raise DatasetNotFoundError(f"{path} does not exist")
    console = Console(soft_wrap=True)
    found = _Findings(console)
    leaves = _leaves(path, split_parts, (dataset_config, split_config), found)
    parts = _parts(leaves, trust_code, found)
    _note_shards(console, parts)
    hashes: defaultdict[int, list[UInt64Array]] = defaultdict(list)
    samples, faults = [0] * len(parts), [0] * len(parts)
    datasets = {name: dataset for name, (_, dataset) in parts.items()}
    with progress_bar(console, "Reading samples", shown=progress) as advance:
        for checked in check_all(datasets, parallel or default_workers(), advance):
            samples[checked.part] += checked.samples
            faults[checked.part] += len(checked.faults)
            hashes[checked.part].append(checked.hashes)
            found.faults.add(checked.faults)
            for fault in checked.faults if show_all else ():
                console.print(f"{fault.where}: {fault.kind}: {without_place(fault)}", markup=False)
    for number, (name, (leaf, dataset)) in enumerate(parts.items()):
        told = counted_text(faults[number], "fault") if faults[number] else "no faults"
        console.print(f"{name}: {counted_text(samples[number], 'sample')}, {told}", markup=False)
        if not is_jsonl(leaf.path):
            _tell_repeated(found, name, dataset, np.concatenate(hashes[number]))
    _tell_shards(found, parts, parallel or default_workers(), progress=progress)
    found.samples = sum(samples)
    _conclude(found, show_all=show_all)


def _parts(
    leaves: Iterable[Leaf], trusted: Sequence[Path] | None, found: _Findings
) -> dict[str, tuple[Leaf, IndexedDataset[Any]]]:
    """What can be read, by name; what is wrong with the rest is told."""
    parts: dict[str, tuple[Leaf, IndexedDataset[Any]]] = {}
    seen: set[str] = set()
    for leaf in leaves:
        same = repr(replace(leaf, place="", subflavors={}, shuffle_over_epochs_multiplier=1))
        if same in seen:
            continue
        seen.add(same)
        name = leaf_name(leaf)
        while name in parts:
            name += "'"
        try:
            for folder in filter(Path.is_dir, _paths(leaf)):
                check_counts(folder)
            dataset = cast("IndexedDataset[Any]", stored_samples(leaf, _DECODER, trusted))
            parts[name] = leaf, dataset
        except EmptyDatasetError as reason:
            show_note(found.console, str(reason))
        except EnergizeError as reason:
            found.tell(str(reason))
    return parts


def _leaves(
    path: Path, split_parts: str | None, configs: tuple[str, str], found: _Findings
) -> Iterator[Leaf]:
    for split in split_names(path, split_parts, configs[1]):
        try:
            yield from leaves_at(path, split, *configs)
        except (DatasetNotFoundError, SplitError) as reason:
            found.tell(str(reason))


def _note_shards(console: Console, parts: dict[str, tuple[Leaf, IndexedDataset[Any]]]) -> None:
    """Shards that splits share, or that no split has."""
    leaves = [leaf for leaf, _ in parts.values() if leaf.path.is_dir()]
    for path, config in {(leaf.path, leaf.split_config or "split.yaml"): None for leaf in leaves}:
        splits = read_splits(path, config)
        used: defaultdict[str, list[str]] = defaultdict(list)
        for name, shards in splits.parts.items():
            for shard in shards:
                used[shard].append(name)
        shared = [shard for shard, names in used.items() if len(names) > 1]
        unused = [s for s in read_info(path).shard_counts if s not in {*used, *splits.exclude}]
        for told, what in ((shared, "in several splits"), (unused, "in no split")):
            if told:
                count = counted_text(len(told), "shard")
                show_note(console, f"{path}: {count} {what} of {config}, {told[0]} for example")


def _tell_repeated(
    found: _Findings, name: str, dataset: IndexedDataset[Any], hashes: UInt64Array
) -> None:
    """Samples of one part that have the same key."""
    known = np.flatnonzero(hashes)
    order = known[np.argsort(hashes[known], kind="stable")]
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if not len(same):
        return
    places = [
        f"{where(dataset, int(order[i]))} and {where(dataset, int(order[i + 1]))}"
        for i in same[:_KEYS_SHOWN]
    ]
    more = [f"and {len(same) - _KEYS_SHOWN} more"] if len(same) > _KEYS_SHOWN else []
    told = f"{name}: {counted_text(len(same), 'sample')} with the key of another one"
    found.tell("\n  ".join([told, *places, *more]))


def _tell_shards(
    found: _Findings,
    parts: dict[str, tuple[Leaf, IndexedDataset[Any]]],
    workers: int,
    *,
    progress: bool,
) -> None:
    """Shards that are not those that were prepared, samples that changed since, and columns that do
    not say what samples are.
    """
    for path in dict.fromkeys(path for leaf, _ in parts.values() for path in _paths(leaf)):
        if is_jsonl(path):
            for fault in check_lines(path):
                found.tell(fault)
            continue
        with progress_bar(found.console, "Checking shards", shown=progress) as advance:
            checked = check_folder(path, workers, advance)
        for fault in checked.faults:
            found.tell(fault)
        if checked.unrecorded:
            show_note(
                found.console,
                f"{path}: {checked.unrecorded} of {checked.shards} shards have no record of what "
                "was prepared, so that one that is replaced is not always seen; write it with: "
                f"energize prepare --tar-index-only {path}",
            )
        elif checked.without_checksums < checked.shards:
            show_note(
                found.console,
                f"{path}: checksums of {checked.shards - checked.without_checksums} of "
                f"{checked.shards} shards were compared with their samples",
            )
        if checked.unchecked:
            show_note(
                found.console,
                f"{path}: functions measured the columns {', '.join(checked.unchecked)}; their "
                "values are there, and were not compared with samples",
            )


def _paths(leaf: Leaf) -> list[Path]:
    """The folders that a leaf is read from."""
    return [e.leaf.path for e in leaf.parts] if isinstance(leaf, JoinedLeaf) else [leaf.path]


def _conclude(found: _Findings, *, show_all: bool) -> None:
    console = found.console
    if found.faults.count and not show_all:
        console.print()
        show_lines(console, found.faults.lines())
    read = counted_text(found.samples, "sample")
    if not (found.faults.count or len(found.told)):
        console.print(f"No faults in {read}")
        return
    faults = counted_text(found.faults.count + len(found.told), "fault")
    console.print(f"{faults} in {read}", style="bold red")
    raise typer.Exit(1)
