"""`energize lint`: read every sample, and report faults."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
import typer

from energize.cli import mixes
from energize.cli.clusters import Readers, Tasks
from energize.cli.console import Console
from energize.cli.look import values_text
from energize.core.dataset import IndexedDataset
from energize.core.failures import Failed
from energize.core.lazy import torch
from energize.core.progress import counted
from energize.core.trace import ReadContext, Trace, location_of
from energize.data.files import exists, read_file
from energize.data.loose_columns import loose_column_names
from energize.data.nv_meta import META_FOLDER, RECORDS_NAME
from energize.data.writing import write_new, writing
from energize.errors import (
    DatasetNotFoundError,
    EmptyDatasetError,
    EnergizeError,
    PrepareError,
    SplitError,
)
from energize.inference.engine import is_loose
from energize.metadataset.nodes import Join, Leaf
from energize.preparation.tasks import TASKS_FOLDER, check_ended, share
from energize.preparation.verify import check_counts, check_folder, check_lines
from energize.preparation.workers import map_in_order
from energize.task.decode import SampleDecoder
from energize.task.types import type_faults

_AT_ONCE = 32

# Readings that processes may have begun, two for each.
_IN_PROCESSES = 32
"""Samples that a process reads together."""

_SHOWN = 3

_SPECIFIC = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|0x[0-9a-f]+|\d+(?:\.\d+)?"""
)
"""Names, texts, counts and sizes, which differ between faults of one kind."""

Fault = tuple[str, str]
"""Location and fault of a sample."""


@dataclass(slots=True)
class Findings:
    """Faults of samples, reported together at the end, and faults of files."""

    console: Console
    by: Tasks
    count: int = 0
    samples: int = 0
    reported: set[str] = field(default_factory=set)
    examples: defaultdict[str, list[Fault]] = field(
        default_factory=lambda: defaultdict(list)
    )
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, faults: Sequence[Fault]) -> None:
        """Count faults of samples, and keep a few examples of each kind."""
        for fault in faults:
            pattern = _SPECIFIC.sub("_", fault[1])
            self.counts[pattern] += 1
            if len(self.examples[pattern]) < _SHOWN:
                self.examples[pattern].append(fault)
        self.count += len(faults)

    def report(self, text: str) -> None:
        """Print a fault that concerns more than one sample, once."""
        if text not in self.reported:
            self.reported.add(text)
            self.count += 1
            self.console.note(text, "Fault", "bold red")

    def conclude(self) -> None:
        """Print the faults of samples by frequency; exit with 1 if there are faults."""
        for pattern, count in self.counts.most_common():
            faults = self.examples[pattern]
            self.console.write_line(f"\n{counted(count, 'sample')}: {faults[0][1]}")
            for location, _ in faults:
                self.console.write_line(f"  {location}")
            if count > len(faults):
                self.console.write_line(f"  and {count - len(faults):,} more")
        read = counted(self.samples, "sample")
        if not self.count:
            self.console.write_line(f"No faults in {read}")
            return
        self.console.write_line(f"{counted(self.count, 'fault')} in {read}", "bold red")
        raise typer.Exit(1)


@mixes.takes("stored", mixes.Stored)
@mixes.takes("by", Readers)
def lint(path: mixes.DataPath, stored: mixes.Stored, by: Readers) -> None:
    """Read, decode and type every sample of every split; exit with 1 for any fault.

    Cookers and task encoders are not needed: samples are checked as they are stored.
    Several machines can share the work: see --tasks.
    """
    console = Console()
    findings = Findings(console, by)
    leaves = _leaves(findings, path, stored)
    findings.by = by.run(console)
    markers = _markers(path, by.tasks or 0)
    records = [
        file / META_FOLDER / RECORDS_NAME for leaf in leaves for file in _paths(leaf)
    ]
    fingerprint = (
        f"{stored} {[crc32(read_file(file)) for file in records if exists(file)]}"
    )
    if findings.by.merge:
        _add_results(findings, path, markers, fingerprint)
        findings.conclude()
        return
    if by.task is not None:
        markers[by.task].unlink(missing_ok=True)
    paths = _lint_samples(findings, leaves, stored)
    _lint_files(findings, paths, lines=not by.task)
    if by.task is not None:
        _write_results(findings, markers[by.task], fingerprint)
    findings.conclude()


def _add_results(
    findings: Findings, path: Path, markers: Iterable[Path], fingerprint: str
) -> None:
    """Add up the results of tasks; raise `PrepareError` if one has not ended."""
    results = [
        json.loads(read_file(marker)) if exists(marker) else {} for marker in markers
    ]
    check_ended(path, [result.get("made_of") == fingerprint for result in results])
    findings.samples = sum(result["samples"] for result in results)
    findings.count = sum(result["faults"] for result in results)


def _write_results(findings: Findings, marker: Path, fingerprint: str) -> None:
    counts = {"samples": findings.samples, "faults": findings.count}
    with writing(marker, PrepareError):
        marker.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(counts | {"made_of": fingerprint})
    write_new(marker, text.encode(), PrepareError)


def _lint_samples(
    findings: Findings, leaves: Iterable[Leaf], stored: mixes.Stored
) -> list[Path]:
    """Check the samples of all leaves; return the paths that could be read."""
    paths: dict[Path, None] = {}
    for leaf in leaves:
        try:
            for folder in filter(_is_prepared, _paths(leaf)):
                check_counts(folder)
            part = stored.samples(leaf, SampleDecoder(image_decode="torchrgb8"))
        except EmptyDatasetError as reason:
            findings.console.note(str(reason))
        except EnergizeError as reason:
            findings.report(str(reason))
        else:
            _lint_part(findings, mixes.leaf_name(leaf), part)
            _lint_columns(findings, leaf)
            paths |= dict.fromkeys(_paths(leaf))
    return [*paths]


def _lint_columns(findings: Findings, leaf: Leaf) -> None:
    """Report measured columns of loose data that do not belong to their rows."""
    names = () if isinstance(leaf, Join) else loose_column_names(leaf.path)
    source = leaf.source() if names else None
    for name in names:
        try:
            text = values_text(cast("Any", source).column(name))
        except EnergizeError as reason:
            findings.report(str(reason))
        else:
            label = f"{mixes.leaf_name(leaf)}: column {name!r}"
            findings.console.write_line(f"{label}: {text}")


def _lint_files(findings: Findings, paths: Iterable[Path], *, lines: bool) -> None:
    """Compare shards with their indices, and with `lines` the lines of JSON files."""
    for path in paths:
        if _is_prepared(path):
            _lint_shards(findings, path)
        elif lines and mixes.is_jsonl(path):
            for fault in check_lines(path):
                findings.report(fault)


def _paths(leaf: Leaf) -> list[Path]:
    parts = leaf.parts if isinstance(leaf, Join) else [leaf]
    return [part.path for part in parts]


def _leaves(findings: Findings, path: Path, stored: mixes.Stored) -> Iterable[Leaf]:
    """Return the leaves to read, without duplicates."""
    leaves: dict[Hashable, Leaf] = {}
    for split in stored.splits(path):
        try:
            for leaf in stored.leaves(path, split):
                plain = leaf.model_copy(
                    update={"subflavors": {}, "shuffle_over_epochs_multiplier": 1}
                )
                leaves.setdefault(plain.identity, leaf)
        except (DatasetNotFoundError, SplitError) as reason:
            findings.report(str(reason))
    return leaves.values()


def _is_prepared(path: Path) -> bool:
    """Return whether a path is a folder with comparable shards."""
    return path.is_dir() and not is_loose(path)


def _markers(path: Path, tasks: int) -> list[Path]:
    """Return the files of the results of tasks."""
    folder = (
        path / TASKS_FOLDER
        if _is_prepared(path)
        else path.absolute().with_name(f".{path.absolute().name}.tasks")
    )
    return [folder / f"lint-{tasks}" / f"{task:05d}.json" for task in range(tasks)]


def _lint_part(findings: Findings, name: str, part: IndexedDataset[Any]) -> None:
    """Read all samples of a part in processes, or those of a task."""
    torch.set_num_threads(1)  # in processes that are forked from this one
    starts = range(0, part.size, _AT_ONCE)
    starts = starts[share(len(starts), findings.by.tasks, findings.by.task)]
    count = size = 0
    advance = findings.by.reporter("Reading samples")
    with closing(
        map_in_order(partial(_faults, part), starts, findings.by.num_workers)
    ) as results:
        for start in starts:
            try:
                faults = next(results)
            except PrepareError as reason:
                raise _killed(part, name, starts, start) from reason
            if isinstance(faults, Exception):
                raise faults
            findings.add(faults)
            count += len(faults)
            size += min(_AT_ONCE, part.size - start)
            advance(size, min(part.size, len(starts) * _AT_ONCE))
    findings.samples += size
    result = counted(count, "fault") if count else "no faults"
    findings.console.write_line(f"{name}: {counted(size, 'sample')}, {result}")


def _killed(
    part: IndexedDataset[Any], name: str, starts: range, first: int
) -> PrepareError:
    """Return the error of a process that was killed, with the samples that kill it.

    The samples that may have been read are read again, each few in a process of their
    own: a decoder that crashes does so again.
    """
    pending = starts[starts.index(first) :][:_IN_PROCESSES]
    for start in pending:
        process = ForkProcess(target=_faults, args=(part, start), daemon=True)
        process.start()
        process.join()
        if process.exitcode:
            stop = min(start + _AT_ONCE, part.size)
            return PrepareError(
                f"the process that was reading samples {start} to {stop - 1} of {name} "
                "was killed, and again when they were read alone. Correct or leave out "
                "the sample whose decoder crashes"
            )
    return PrepareError(
        f"a process that was reading {name} from sample {first} on was killed, perhaps "
        "because memory is short. Lower --parallel"
    )


def _faults(part: IndexedDataset[Any], start: int) -> list[Fault]:
    """Read consecutive samples, and return their faults."""
    faults = []
    for position in range(start, min(start + _AT_ONCE, part.size)):
        try:
            failed: Any = Trace(part, np.array([position])).read(ReadContext())[0]
        except EnergizeError as error:
            reason: Any = error
            failed = Failed(reason, location_of(part, position))
        if not isinstance(failed, Failed):
            wrong = type_faults(failed)
            text = "; ".join(
                f"field {name!r}: {fault}" for name, fault in wrong.items()
            )
            faults += (
                [(location_of(part, position), f"DataError: {text}")] if wrong else []
            )
        else:
            text = str(failed.reason).removeprefix(failed.where).lstrip(":, ")
            text = re.sub(r"^sample '(?:[^'\\]|\\.)*': ", "", text)
            faults.append((failed.where, f"{type(failed.reason).__name__}: {text}"))
    return faults


def _lint_shards(findings: Findings, path: Path) -> None:
    """Report changed shards and samples, repeated keys and wrong columns."""
    by = findings.by
    advance = by.reporter("Checking shards")
    checked = check_folder(path, by.num_workers, advance, by.tasks, by.task)
    for fault in checked.faults:
        findings.report(fault)
    if checked.unrecorded:
        findings.console.note(
            f"{path}: {checked.unrecorded} of {checked.shards} shards have no record "
            "of what was prepared, so that one that is replaced is not always seen; "
            f"write it with: energize prepare --tar-index-only {path}"
        )
