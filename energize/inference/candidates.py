"""Candidates of formats, their readings, and keyed rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from energize.core.progress import counted, counting
from energize.data.loose import Media, key_of
from energize.data.rows import Row
from energize.data.source import ShardedSource
from energize.data.tables import AT, KEY, MemoryRows
from energize.errors import DatasetError
from energize.inference.columns import ColumnProfile, NameLook, columns_of
from energize.inference.scene import Scene, listed, sample_of

STATED = 9
"""Strength of a format that the user names."""

CERTAIN = 6
"""Strength of contents, and of names of files."""

KEYED = 5
"""Strength of names without extensions, and of numbers."""

CLASSES = 4
"""Strength of names of folders."""

WEAK = 2
"""Strength of tables without content about the images."""

ALONE = 1
"""Strength of images without other files."""

FILE = "file_name"
"""Column of file names in rows that are built from files."""


@dataclass(frozen=True)
class ReadingAccount:
    """The use of files by a reading, for the summary.

    Attributes:
        left_out: Files that no row has, by the reason.
        notes: Other decisions.
        claims: Roles of files that the candidate did not claim.

    """

    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    claims: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """The rows of a split part, with their columns as the first rows show them.

    Attributes:
        rows: The rows.
        first: Some rows, with the contents of their files.
        columns: Profiles of the columns of these rows.
        files: Columns of files other than media, with the prefix of their parts.
        parts: Access of the columns that are not in the rows themselves.
        row_parts: Number of rows of each split part, if a column states the parts.
        account: The use of files.
    """

    rows: ShardedSource[Row]
    first: Sequence[Row]
    columns: Mapping[str, ColumnProfile]
    files: Media = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    row_parts: Mapping[str, int] = field(default_factory=dict)
    account: ReadingAccount = field(default_factory=ReadingAccount)

    def with_notes(self, *notes: str) -> Reading:
        """Return the reading with more notes."""
        account = replace(self.account, notes=[*self.account.notes, *notes])
        return replace(self, account=account)


@dataclass(frozen=True)
class Candidate:
    """A possible reading of the files of a split part.

    Attributes:
        format: Name of the format, as in an entry of a metadataset.
        strength: Strength of the evidence.
        argument: The evidence, for messages.
        claims: Role of each file.
        read: Returns the rows.
        problem: Error that prevents reading, without the path. None if it can be read.
        override: Line of an entry that selects it.
    """

    format: str
    strength: int
    argument: str
    claims: Mapping[str, str]
    read: Callable[[], Reading]
    problem: DatasetError | None = None
    override: str = ""

    @property
    def line(self) -> str:
        """The line of an entry that selects this candidate."""
        return self.override or f"format: {self.format}"


def reading_of(
    scene: Scene,
    rows: Sequence[Row],
    column: str,
    look: NameLook,
    left_out: Mapping[str, Sequence[str]],
    notes: Iterable[str] = (),
) -> Reading:
    """Return rows in memory, keyed by the files in a column.

    Raises:
        DatasetError: If there are no rows.
    """
    repeated: list[str] = []
    keyed = counting(
        _keyed(rows, column, repeated), f"{scene.root}: samples", len(rows)
    )
    table = MemoryRows(keyed)
    notes = [*notes]
    if repeated:
        count = counted(len(repeated), "sample")
        notes.append(f"of the file of another sample: {count}, {listed(repeated)}")
    if not rows:
        reasons = "; ".join(
            f"{why}: {listed(names)}" for why, names in left_out.items() if names
        )
        raise DatasetError(
            f"{scene.path}: no sample is left: {'; '.join([reasons, *notes])}"
        )
    first = sample_of(table)
    nonempty = {why: names for why, names in left_out.items() if names}
    account = ReadingAccount(nonempty, notes)
    return Reading(table, first, columns_of(first, look), account=account)


def _keyed(rows: Iterable[Row], column: str, repeated: list[str]) -> Iterator[Row]:
    """Yield rows with unique keys; repeated names get a number."""
    counts: Counter[str] = Counter()
    for row in rows:
        name = row[column] if isinstance(row[column], str) else row[column][0]
        key = key_of(name)
        counts[key] += 1
        if counts[key] > 1:
            repeated.append(f"{name} ({row[AT]})" if AT in row else name)
            key = f"{key}~{counts[key]}"
        yield {**row, KEY: key}
