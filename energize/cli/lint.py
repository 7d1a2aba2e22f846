"""`energize lint`: reads every sample there is, and tells what is wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from energize.cli.console import Console, counted, progress_bar
from energize.cli.mixes import (
    DataPath,
    DatasetConfig,
    SplitConfig,
    SplitParts,
    TrustCode,
    is_jsonl,
    leaf_name,
    leaves_at,
    split_names,
    stored_samples,
)
from energize.core.arrays import UInt64Array
from energize.core.dataset import IndexedDataset
from energize.core.lazy import torch
from energize.core.trace import Failed, Reading, Trace, where
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
from energize.task.load import SampleDecoder

_AT_ONCE = 32
"""Samples that are read together; images of as many lie in memory."""

_SHOWN = 3

_ITS_OWN = re.compile(
    r"""b'(?:[^'\\]|\\.)*' | b"(?:[^"\\]|\\.)*"    # bytes
      | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*"      # names and texts
      | 0x[0-9a-f]+ | \d+(?:\.\d+)?                              # counts and sizes
    """,
    re.VERBOSE,
)
_WRONG_TYPE = re.compile(
    r"(the field '\w+' of \w+ is declared as .+?, and its value is .+?), from .+?\. Cor"
)


class Fault(NamedTuple):
    """What is wrong with one sample: where it is, and words, the same for the same fault of others
    but for names and numbers.
    """

    where: str
    text: str

    @classmethod
    def of(cls, where: str, reason: Exception) -> Fault:
        """What an error tells of, without the place, where it begins with it."""
        told = _WRONG_TYPE.search(str(reason))
        if told is not None:
            return cls(where, f"wrong type: {told[1]}")
        text = str(reason).removeprefix(where).lstrip(":, ")
        text = re.sub(r"^sample '(?:[^'\\]|\\.)*': ", "", text)
        return cls(where, f"{type(reason).__name__}: {text}")


@dataclass(slots=True)
class Findings:
    """What is wrong: faults of samples, told together at the end, and of more than a sample."""

    console: Console
    count: int = 0
    samples: int = 0
    told: set[str] = field(default_factory=set)
    alike: defaultdict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, faults: Iterable[Fault]) -> None:
        """Count faults of samples; of those that are alike a few are kept."""
        for fault in faults:
            self.count += 1
            kind = _ITS_OWN.sub("_", fault.text)
            self.counts[kind] += 1
            if len(self.alike[kind]) < _SHOWN:
                self.alike[kind].append(fault)

    def tell(self, text: str) -> None:
        """Tell of a fault of more than a sample, once."""
        if text not in self.told:
            self.told.add(text)
            self.count += 1
            self.console.note(text, "Fault", "bold red")

    def conclude(self) -> None:
        """Tell of each kind of fault of samples, the most frequent first, and how many there are;
        end with 1 if there are any.
        """
        for kind, count in sorted(self.counts.items(), key=lambda each: -each[1]):
            faults = self.alike[kind]
            self.console.say(f"\n{counted(count, 'sample')}: {faults[0].text}")
            for fault in faults:
                self.console.say(f"  {fault.where}")
            if count > len(faults):
                self.console.say(f"  and {count - len(faults):,} more")
        read = counted(self.samples, "sample")
        if not self.count:
            self.console.say(f"No faults in {read}")
            return
        self.console.say(f"{counted(self.count, 'fault')} in {read}", "bold red")
        raise typer.Exit(1)


def lint(
    path: DataPath,
    *,
    split_parts: SplitParts = None,
    dataset_config: DatasetConfig = "dataset.yaml",
    split_config: SplitConfig = "split.yaml",
    trust_code: TrustCode = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="How many processes read.")] = None,
    progress: Annotated[bool, typer.Option("--progress/--no-progress")] = True,
) -> None:
    """Read, decode and type every sample of every split; exit with 1 if anything is wrong.

    Cookers and task encoders are not needed: samples are checked as they are stored.
    """
    console, workers = Console(), default_workers(parallel)
    found = Findings(console)
    leaves: dict[str, Leaf] = {}
    for split in split_names(path, split_parts, split_config):
        try:
            for leaf in leaves_at(path, split, dataset_config, split_config):
                plain = replace(leaf, place="", subflavors={}, shuffle_over_epochs_multiplier=1)
                leaves.setdefault(repr(plain), leaf)
        except (DatasetNotFoundError, SplitError) as reason:
            found.tell(str(reason))
    parts: list[tuple[Leaf, IndexedDataset[Any]]] = []
    for leaf in leaves.values():
        try:
            for folder in filter(Path.is_dir, _paths(leaf)):
                check_counts(folder)
            decoder = SampleDecoder(image_decode="torchrgb8")
            parts.append((leaf, stored_samples(leaf, decoder, trust_code)))
        except EmptyDatasetError as reason:
            console.note(str(reason))
        except EnergizeError as reason:
            found.tell(str(reason))
    for leaf, part in parts:
        _lint_part(found, leaf, part, workers, progress=progress)
    for each in dict.fromkeys(path for leaf, _ in parts for path in _paths(leaf)):
        if not is_jsonl(each):
            _lint_shards(found, each, workers, progress=progress)
            continue
        for fault in check_lines(each):
            found.tell(fault)
    found.conclude()


def _paths(leaf: Leaf) -> list[Path]:
    """The folders that a leaf is read from."""
    return [e.leaf.path for e in leaf.parts] if isinstance(leaf, JoinedLeaf) else [leaf.path]


def _lint_part(
    found: Findings, leaf: Leaf, part: IndexedDataset[Any], workers: int, *, progress: bool
) -> None:
    """Read all samples of a part in processes; and look for keys that stand twice."""
    torch.set_num_threads(1)  # in processes that are forked from this one
    name = leaf_name(leaf)
    starts = range(0, part.size, _AT_ONCE)
    faults, hashes = 0, [np.zeros(0, dtype=np.uint64)]
    with (
        progress_bar(found.console, "Reading samples", shown=progress) as advance,
        closing(map_in_order(_Reader(part), starts, workers)) as results,
    ):
        for start in starts:
            stop = min(start + _AT_ONCE, part.size)
            try:
                checked = next(results)
            except PrepareError as reason:
                raise PrepareError(
                    f"the process that was reading samples {start} to {stop - 1} of {name} was "
                    "killed: by the system when memory is short, then try fewer --parallel; or by "
                    "what decodes one of these samples"
                ) from reason
            if isinstance(checked, Exception):
                raise checked
            found.add(checked[0])
            faults += len(checked[0])
            hashes.append(checked[1])
            advance(stop, part.size)
    found.samples += part.size
    told = counted(faults, "fault") if faults else "no faults"
    found.console.say(f"{name}: {counted(part.size, 'sample')}, {told}")
    if not is_jsonl(leaf.path):
        _tell_repeated(found, name, part, np.concatenate(hashes))


@dataclass(frozen=True)
class _Reader:
    """Reads neighbouring samples: what is wrong, and a hash of each key, 0 where it has none."""

    part: IndexedDataset[Any]

    def __call__(self, start: int) -> tuple[list[Fault], UInt64Array]:
        positions = range(start, min(start + _AT_ONCE, self.part.size))
        found = [
            self._checked(*each) for each in zip(positions, self._items(positions), strict=True)
        ]
        keys = [each if isinstance(each, str) else "" for each in found]
        hashes = np.where([bool(key) for key in keys], key_hashes(keys), np.uint64(0))
        return [each for each in found if isinstance(each, Fault)], hashes

    def _items(self, positions: Sequence[int]) -> list[Any]:
        """The samples, or errors; where reading them together is not possible, one by one."""
        try:
            return Trace(self.part, np.array(positions, dtype=np.int64)).read(Reading())
        except EnergizeError as reason:
            if len(positions) == 1:
                return [reason]
        return [self._items([position])[0] for position in positions]

    def _checked(self, position: int, item: Any) -> Fault | str:
        """The key of a sample, or what is wrong with it."""
        if isinstance(item, Failed):
            return Fault.of(item.where, item.reason)
        if isinstance(item, EnergizeError):
            return Fault.of(where(self.part, position), item)
        key = item.get("__key__") if isinstance(item, dict) else getattr(item, "__key__", None)
        return key if isinstance(key, str) else ""


def _tell_repeated(
    found: Findings, name: str, part: IndexedDataset[Any], hashes: UInt64Array
) -> None:
    known = np.flatnonzero(hashes)
    order = known[np.argsort(hashes[known], kind="stable")]
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if len(same):
        pairs = [(int(order[i]), int(order[i + 1])) for i in same[:_SHOWN]]
        places = [f"\n  {where(part, one)} and {where(part, other)}" for one, other in pairs]
        found.tell(
            f"{name}: {counted(len(same), 'sample')} with the key of another one{''.join(places)}"
        )


def _lint_shards(found: Findings, path: Path, workers: int, *, progress: bool) -> None:
    """Shards that are not those that were prepared, samples that changed since, and columns that do
    not say what samples are.
    """
    with progress_bar(found.console, "Checking shards", shown=progress) as advance:
        checked = check_folder(path, workers, advance)
    for fault in checked.faults:
        found.tell(fault)
    if checked.unrecorded:
        found.console.note(
            f"{path}: {checked.unrecorded} of {checked.shards} shards have no record of what was "
            "prepared, so that one that is replaced is not always seen; write it with: energize "
            f"prepare --tar-index-only {path}"
        )
