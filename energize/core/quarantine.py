"""Samples that failed, kept in a file, so that later runs leave them out.

A file has a JSON object in each line: `dataset`, `shard`, `index` and `key` of a
sample, the `source` that it belongs to, `function` where it is found by what a function
is called with, and the `reason` it failed for. A sample that is listed counts as
skipped at once, without being read, so the same substitute takes its place as in the
run in which it failed; no order moves, and states stay good. (Where a mix reads one
folder both by positions and as a stream, a sample that has failed in one of them is
left out of both, and other samples come in the stream.)
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from energize.core.arrays import Int64Array
from energize.core.failures import Failed, SamplePlace
from energize.core.node import LAST_START, SourceNode
from energize.core.validation import Model, parse_json, validated
from energize.errors import ConfigError, SkipSample

LINE_START = '{"dataset": '
_log = logging.getLogger("energize")

RANK = "{rank}"
"""Placeholder for the rank in the path of a list."""


class _Line(Model):
    dataset: str
    shard: str | None = None
    index: Annotated[int, Field(ge=0, lt=LAST_START)]
    key: str | None = None
    source: str | None = None
    function: str | None = None
    reason: str


_LINE = TypeAdapter(_Line)


@dataclass(frozen=True)
class Entry:
    """A line of a list: which sample, and why it failed."""

    place: SamplePlace
    reason: str

    @property
    def line(self) -> str:
        """As it is written, with its end."""
        return json.dumps({**asdict(self.place), "reason": self.reason}) + "\n"

    @classmethod
    def parsed(cls, line: str, location: str) -> Entry:
        """Parse an entry of a line, or raise `ConfigError`."""
        try:
            values = validated(_LINE, parse_json(line), ConfigError, "the line")
        except ValueError as error:
            raise ConfigError(
                f"{location}: the line is not an entry of a quarantine (a list of "
                f"failed samples): {error} ({line.strip()[:80]!r}). "
                "Remove or repair it"
            ) from error
        fields = dict(values)
        reason = fields.pop("reason")
        return cls(SamplePlace(**fields), reason)


def path_for_rank(path: str, rank: int, world_size: int) -> Path:
    """Return the file of one rank: `{rank}` filled in, or with several ranks set before
    the suffix.
    """
    if RANK in path:
        return Path(path.replace(RANK, str(rank)))
    if world_size == 1:
        return Path(path)
    whole = Path(path)
    return whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix}")


@dataclass(frozen=True)
class Listed:
    """The samples to leave out, by the sources of a run: plain data, which travels to
    workers.
    """

    name: str
    by_source: dict[str, frozenset[int]] = field(default_factory=dict)
    by_function: frozenset[tuple[str, str, str | None, int]] = frozenset()

    @property
    def count(self) -> int:
        """How many samples are left out."""
        return sum(map(len, self.by_source.values())) + len(self.by_function)

    def left_out(
        self, source: SourceNode[Any], indices: Int64Array
    ) -> dict[int, Failed]:
        """Return the listed samples among `indices` of a source, by their row."""
        mine = self.by_source.get(_unique_name(source)) if self.by_source else None
        if mine is None:
            return {}
        return {
            at: self.failed(f"{source.name}, sample {index}")
            for at, index in enumerate(indices.tolist())
            if index in mine
        }

    def holds(self, function: str, argument: Any) -> bool:
        """Return whether a function is not to be called with this argument."""
        if not self.by_function:
            return False
        location = place_of(argument, function)
        return location is not None and _function_entry(location) in self.by_function

    def failed(self, location: str) -> Failed:
        """Return what takes the place of a sample that is left out."""
        return Failed(SkipSample(f"listed in {self.name}"), location)


def listed_for(
    sources: Iterable[SourceNode[Any]], entries: Sequence[Entry], name: str
) -> tuple[Listed, list[Entry]]:
    """Match entries to the sources of a run.

    An entry belongs to the source at its path. If there is none, it belongs to sources
    with the same identity, which are the same samples at another path.

    Args:
        sources: The sources of the run.
        entries: Entries of a quarantine file.
        name: The name of the file.

    Returns:
        The matched entries, and the list of entries without a match.
    """
    by_path: dict[str, list[SourceNode[Any]]] = {}
    by_identity: dict[str, list[SourceNode[Any]]] = {}
    for source in {_unique_name(source): source for source in sources}.values():
        by_path.setdefault(source.location, []).append(source)
        by_identity.setdefault(source.identity, []).append(source)
    rows: dict[str, set[int]] = {}
    functions: set[tuple[str, str, str | None, int]] = set()
    unmatched: list[Entry] = []
    for entry in entries:
        location = entry.place
        if location.function is not None:
            functions.add(_function_entry(location))
            continue
        # Several of one path are split parts or subsets of a folder: some may have the
        # sample.
        owners = by_path.get(location.dataset) or by_identity.get(
            location.source or "", []
        )
        matches = _matches(owners, location)
        for owner, index in matches:
            rows.setdefault(owner, set()).add(index)
        if not matches:
            unmatched.append(entry)
    by_source = {source: frozenset(indices) for source, indices in rows.items()}
    return Listed(name, by_source, frozenset(functions)), unmatched


def _matches(
    sources: Iterable[SourceNode[Any]], location: SamplePlace
) -> list[tuple[str, int]]:
    """Return the sources that have the sample at a place, and its number in each."""
    matches = []
    for source in sources:
        index = source.find(location.shard, location.index)
        if index is not None:
            matches.append((_unique_name(source), index))
    return matches


def _unique_name(source: SourceNode[Any]) -> str:
    """Return what sources of other samples, or at other paths, do not have in
    common.
    """
    return f"{source.location}\n{source.identity}"


def _function_entry(location: SamplePlace) -> tuple[str, str, str | None, int]:
    return (
        location.function or "",
        os.path.abspath(location.dataset),
        location.shard,
        location.index,
    )


def place_of(argument: Any, function: str) -> SamplePlace | None:
    """Return the stored sample that a function was called with, or None."""
    if isinstance(argument, dict):
        stored = argument.get("__sources__")
        key = argument.get("__key__")
        if "__shard__" in argument and not stored:
            dataset = str(argument.get("__dataset__"))
            shard = str(argument["__shard__"])
            index = int(argument.get("__index__", 0))
            return SamplePlace(dataset, shard, index, key, function=function)
    else:
        stored = getattr(argument, "__sources__", None)
        key = getattr(argument, "__key__", None)
    if not isinstance(stored, tuple) or not stored or not isinstance(key, str):
        return None
    first = stored[0]
    if not isinstance(first.index, int):
        return None
    return SamplePlace(
        first.dataset_path, first.shard_name, first.index, key, function=function
    )
