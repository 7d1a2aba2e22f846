"""`energize lint`: reads every sample there is, and tells what is wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import typer

from energize.cli.console import (
    Console,
    OnProgress,
    counted_text,
    progress_bar,
    show_lines,
    show_note,
)
from energize.cli.mixes import (
    DataPath,
    DatasetConfig,
    SplitConfig,
    SplitParts,
    TrustCode,
    at_least,
    is_jsonl,
    leaf_name,
    leaves_at,
    split_names,
    stored_samples,
)
from energize.core.arrays import Int64Array, UInt64Array
from energize.core.dataset import IndexedDataset
from energize.core.lazy import torch
from energize.core.samples import METADATA, Sample, fields_of
from energize.core.trace import Failed, Reading, Trace, where
from energize.data.nv_meta import read_info, read_splits
from energize.errors import (
    DatasetNotFoundError,
    EmptyDatasetError,
    EnergizeError,
    PrepareError,
    SplitError,
)
from energize.metadataset.nodes import JoinedLeaf, Leaf
from energize.preparation.scan import key_hashes
from energize.preparation.verify import check_counts, check_folder, check_lines
from energize.preparation.workers import default_workers, map_in_order
from energize.task.load import SampleDecoder, contradiction

_SHOWN = 3

_ITS_OWN = re.compile(
    r"""b'(?:[^'\\]|\\.)*' | b"(?:[^"\\]|\\.)*"    # bytes
      | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*"      # names and texts
      | 0x[0-9a-f]+ | \d+(?:\.\d+)?                              # counts and sizes
    """,
    re.VERBOSE,
)


class Fault(NamedTuple):
    """What is wrong with one sample: where it is, the kind of error, and its words."""

    where: str
    kind: str
    text: str


@dataclass(slots=True)
class _Alike:
    first: Fault
    count: int = 0
    places: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FaultList:
    """Counts faults; of those that differ only in names and numbers a few places are kept."""

    count: int = 0
    _groups: dict[tuple[str, str], _Alike] = field(default_factory=dict)

    def add(self, faults: Iterable[Fault]) -> None:
        """Count more of them."""
        for fault in faults:
            self.count += 1
            key = fault.kind, _ITS_OWN.sub("_", without_place(fault))
            alike = self._groups.setdefault(key, _Alike(fault))
            alike.count += 1
            if len(alike.places) < _SHOWN:
                alike.places.append(fault.where)

    def lines(self, what: str = "sample") -> list[str]:
        """Each kind of fault once, the most frequent first, with its count and first places; `what`
        is what has them.

        >>> faults = FaultList()
        >>> faults.add(Fault(f"0.tar, sample {key!r}", "DataError", f"no {key!r}") for key in "ab")
        >>> print(*faults.lines(), sep=chr(10))
        2 samples: DataError: no 'a'
          0.tar, sample 'a'
          0.tar, sample 'b'
        """
        lines = []
        for alike in sorted(self._groups.values(), key=lambda each: -each.count):
            kind = f"{alike.first.kind}: " if alike.first.kind else ""
            count = counted_text(alike.count, what)
            lines.append(f"{count}: {kind}{without_place(alike.first)}")
            lines += [f"  {place}" for place in alike.places]
            if alike.count > len(alike.places):
                lines.append(f"  and {alike.count - len(alike.places):,} more")
        return lines


def without_place(fault: Fault) -> str:
    """The words of a fault without the place, where they begin with it."""
    text = fault.text.removeprefix(fault.where).lstrip(":, ")
    text = re.sub(r" at 0x[0-9a-f]+>", ">", text)
    return re.sub(r"^sample '(?:[^'\\]|\\.)*': ", "", text)


# Reading all samples of split parts in processes.

_AT_ONCE = 32
"""Samples that are read together; images of as many lie in memory."""


_WRONG_TYPE = re.compile(
    r"(the field '\w+' of \w+ is declared as .+?, and its value is .+?), from .+?\. Cor"
)


class Checked(NamedTuple):
    """What reading a stretch found; a hash of each key, 0 for a sample that has none."""

    part: int
    samples: int
    faults: list[Fault]
    hashes: UInt64Array


def check_all(
    parts: Mapping[str, IndexedDataset[Any]], workers: int, on_progress: OnProgress
) -> Iterator[Checked]:
    """Read every sample of all parts, given by name, in so many processes; what was found, in their
    order.

    Raises `PrepareError` naming the samples at which a process was killed.
    """
    # One thread each, and torch is imported once, for processes are forked from this one.
    torch.set_num_threads(1)
    checker = _Checker(tuple(parts), tuple(parts.values()))
    total, done = sum(part.size for part in parts.values()), 0
    on_progress(0, total)
    with closing(map_in_order(checker, range(checker.stretches), workers)) as results:
        for number in range(checker.stretches):
            try:
                checked = next(results)
            except PrepareError as reason:
                raise PrepareError(
                    f"the process that was reading {checker.named(number)} was killed: by the "
                    "system when memory is short, then try fewer --parallel; or by what decodes "
                    "one of these samples"
                ) from reason
            if isinstance(checked, Exception):
                raise checked
            done += checked.samples
            on_progress(done, total)
            yield checked


@dataclass(frozen=True)
class _Checker:
    """Reads a stretch of neighbouring samples, all stretches of all parts being numbered."""

    names: Sequence[str]
    parts: Sequence[IndexedDataset[Any]]

    @cached_property
    def _ends(self) -> Int64Array:
        """For each part, how many stretches come before its end."""
        return np.cumsum([-(-part.size // _AT_ONCE) for part in self.parts], dtype=np.int64)

    @property
    def stretches(self) -> int:
        """How many there are."""
        return int(self._ends[-1]) if self.parts else 0

    def named(self, number: int) -> str:
        """A stretch, for messages."""
        part, positions = self._stretch(number)
        return f"samples {positions[0]} to {positions[-1]} of {self.names[part]}"

    def __call__(self, number: int) -> Checked:
        part, positions = self._stretch(number)
        dataset = self.parts[part]
        found = [
            _checked(dataset, int(position), item)
            for position, item in zip(positions, _items(dataset, positions), strict=True)
        ]
        faults = [each for each in found if isinstance(each, Fault)]
        keys = ["" if isinstance(each, Fault) else _key(each) for each in found]
        hashes = np.where([bool(key) for key in keys], key_hashes(keys), np.uint64(0))
        return Checked(part, len(found), faults, hashes)

    def _stretch(self, number: int) -> tuple[int, Int64Array]:
        """The part it is of, and positions there."""
        part = int(np.searchsorted(self._ends, number, side="right"))
        start = (number - int(self._ends[part - 1] if part else 0)) * _AT_ONCE
        stop = min(start + _AT_ONCE, self.parts[part].size)
        return part, np.arange(start, stop, dtype=np.int64)


def _items(part: IndexedDataset[Any], positions: Int64Array) -> list[Any]:
    """The samples; where reading them together is not possible, one by one, with faults."""
    try:
        return Trace(part, positions).read(Reading())
    except EnergizeError as reason:
        if len(positions) == 1:
            return [_raised(where(part, int(positions[0])), reason)]
    return [_items(part, positions[i : i + 1])[0] for i in range(len(positions))]


def _raised(at: str, reason: EnergizeError) -> Fault:
    """The fault that an error tells of.

    What makes samples compares the types of the first few itself; they are told of as the others.
    """
    told = _WRONG_TYPE.search(str(reason))
    if told is not None:
        return Fault(at, "wrong type", told[1])
    return Fault(at, type(reason).__name__, str(reason))


def _checked(part: IndexedDataset[Any], position: int, item: Any) -> Any:
    """The sample, or what is wrong with it."""
    if isinstance(item, Failed):
        return Fault(item.where, type(item.reason).__name__, str(item.reason))
    if not isinstance(item, Sample):
        return item
    values = {name: each for name, each in fields_of(item).items() if name not in METADATA}
    found = contradiction(type(item), values)
    if found is None:
        return item
    text = f"the field {found[0]!r} of {type(item).__name__} {found[1]}"
    return Fault(where(part, position), "wrong type", text)


def _key(item: Any) -> str:
    key = item.get("__key__") if isinstance(item, dict) else getattr(item, "__key__", None)
    return key if isinstance(key, str) else ""


# The command.

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
    path: DataPath,
    *,
    split_parts: SplitParts = None,
    dataset_config: DatasetConfig = "dataset.yaml",
    split_config: SplitConfig = "split.yaml",
    trust_code: TrustCode = None,
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
