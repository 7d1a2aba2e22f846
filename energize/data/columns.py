"""Columns of a prepared folder: values per sample, stored without the samples.

    .nv-meta/columns/columns.json      the columns, and the shards they belong to
    .nv-meta/columns/NAME.DIGEST.npy   values of a column, in the order of `.info.json`

Values are int64 or float64; words are int32 indices into the list in `columns.json`, -1
for none. Value files are named after a digest of their content, verified on reading and
never overwritten, so readers keep the old version while a column is measured again.
Nothing is unpickled or run.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tokenize
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from numpy.lib.format import read_array
from pydantic import Field, TypeAdapter, model_validator

from energize.core.columns import Column
from energize.core.os_errors import convert_os_errors
from energize.core.validation import Listed, Model
from energize.data.files import read_document, read_file
from energize.data.nv_meta import META_FOLDER, UUID_NAME, read_info
from energize.errors import ColumnError, DatasetError

COLUMNS_FOLDER = f"{META_FOLDER}/columns"
COLUMNS_NAME = "columns.json"

# Most distinct words of a column; columns with more, such as texts, are refused.
MOST_WORDS = 65_536
_SHOWN = 3

# Errors of numpy for damaged `.npy` files; headers are Python literals.
_BAD_ARRAY = (
    ValueError,
    EOFError,
    OverflowError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
)

_NAME = r"^[^\W\d]\w{0,99}$"
ColumnName = Annotated[str, Field(pattern=_NAME)]
_FILE = r"^[^\W\d]\w*\.[0-9a-f]{16}\.npy$"


class StoredColumn(Model):
    """A column in `columns.json`.

    Attributes:
        file: Name of the file of values.
        dtype: Type of the values.
        measured: Definition of the column, as for `energize prepare --column`.
        categories: Words that int32 values index; None for numbers.
    """

    file: Annotated[str, Field(pattern=_FILE)]
    dtype: Literal["int64", "float64", "int32"]
    measured: str
    categories: Listed[str] | None = None

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if (self.dtype == "int32") != (self.categories is not None):
            raise ValueError(
                "categories must be present for int32 and absent for other dtypes"
            )
        if self.categories is not None and len(set(self.categories)) < len(
            self.categories
        ):
            raise ValueError("categories must be a list of different words")
        return self


class ColumnIndex(Model):
    """The columns of a folder.

    Attributes:
        version: Version of the format.
        index: The `index.uuid` of the folder when they were measured.
        shard_counts: Samples per shard when they were measured.
        columns: Columns by name.
    """

    version: Literal[1] = 1
    index: str | None = None
    shard_counts: dict[str, int]
    columns: dict[ColumnName, StoredColumn]

    @property
    def measured(self) -> dict[str, str]:
        """Definition of each column."""
        return {name: column.measured for name, column in self.columns.items()}


_INDEX = TypeAdapter(ColumnIndex)


def check_name(name: object) -> str:
    """Return a valid column name; raise `ColumnError` for others.

    >>> check_name("tokens")
    'tokens'
    """
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise ColumnError(
            "column names must be identifiers (letters, digits and _), got "
            f"{str(name)[:80]!r}. Functions take them as parameters"
        )
    return name


def column_command(path: Path, measured: Mapping[str, str]) -> str:
    """Return the command that measures columns of a folder."""
    options = " ".join(
        f"--column {shlex.quote(f'{name}={how}')}" for name, how in measured.items()
    )
    return f"energize prepare {path} {options}"


@convert_os_errors
def folder_version(path: Path) -> str | None:
    """Return the `index.uuid` of a folder, which preparing renews, or None."""
    file = str(path / META_FOLDER / UUID_NAME)
    try:
        return read_file(file, "YAML_BYTES")[:100].decode("ascii", "replace")
    except FileNotFoundError:
        return None


@convert_os_errors
def read_columns(path: Path) -> ColumnIndex:
    """Return the columns of a prepared folder, which may have none.

    Raises as `read_info` does, too.

    Args:
        path: The prepared folder.

    Returns:
        The columns.

    Raises:
        DatasetError: If the file is damaged, of a later version, or of other shards
            than the folder has now.
    """
    shard_counts = read_info(path).shard_counts
    file = path / COLUMNS_FOLDER / COLUMNS_NAME
    index = read_document(file, _INDEX)
    if index is None:
        return ColumnIndex(shard_counts=shard_counts, columns={})
    difference = ""
    if list(index.shard_counts.items()) != list(shard_counts.items()):
        changed_shards = sorted(dict(index.shard_counts.items() ^ shard_counts.items()))
        difference = (
            ", ".join(map(repr, changed_shards[:_SHOWN]))
            or "their order is another one"
        )
    elif index.index != folder_version(path):
        difference = "the folder was prepared again"
    if difference:
        raise DatasetError(
            f"{file}: its columns do not match the current shards of the folder: "
            f"{difference}. Measure them again with: "
            f"{column_command(path, index.measured)}"
        )
    return index


@convert_os_errors
def read_values(path: Path, name: str, stored: StoredColumn, samples: int) -> Column:
    """Return the values of a column; about a second for 100 million samples.

    Args:
        path: The prepared folder.
        name: Name of the column.
        stored: Its entry in the index.
        samples: Number of samples of the folder.

    Returns:
        The column, 8 bytes per sample.

    Raises:
        DatasetError: If the file is missing or truncated, has another type, size or
            content, or indexes missing words.
    """
    return read_stored(path / COLUMNS_FOLDER, path, name, stored, samples)


def read_stored(
    folder: Path, path: Path, name: str, stored: StoredColumn, samples: int
) -> Column:
    """Return the values of a column.

    Args:
        folder: The folder of the file of values.
        path: The dataset, for messages.
        name: Name of the column.
        stored: Its entry in the index.
        samples: Number of samples.

    Returns:
        The column.

    Raises:
        DatasetError: If the file is damaged, as in `read_values`.
    """
    file = f"{folder}/{stored.file}"
    words = stored.categories
    try:
        values = load_values(file, words)
        if values.dtype != stored.dtype or values.shape != (samples,):
            raise ValueError(
                f"it has {values.dtype} of shape {values.shape}, but {COLUMNS_NAME} "
                f"lists {stored.dtype} of {samples} samples"
            )
        least, most = (values.min(), values.max()) if len(values) else (-1, -1)
        if words is not None and not -1 <= least <= most < len(words):
            raise ValueError(f"it has {least} to {most}, but {len(words)} words")
    except (FileNotFoundError, ValueError) as reason:
        raise DatasetError(
            f"the column {name!r} of {path} is damaged: {file}: {reason}. Measure it "
            f"again with: {column_command(path, {name: stored.measured})}"
        ) from reason
    return Column(values, words)


def load_values(file: str, words: Sequence[str] | None = None) -> npt.NDArray[Any]:
    """Return the numbers of a file, verified by its name; see `values_file`.

    The file is not memory-mapped: truncating a mapped file kills its readers.

    Args:
        file: The file.
        words: The words that the numbers index; None for numbers.

    Returns:
        The numbers.

    Raises:
        ValueError: If the content does not match the name.
    """
    stream = BytesIO(read_file(file))
    try:
        # Not `np.load`, which also opens archives.
        values: npt.NDArray[Any] = read_array(stream, allow_pickle=False)
    except _BAD_ARRAY as reason:
        raise ValueError(
            f"it has no numbers: {str(reason).splitlines()[0]}"
        ) from reason
    called = Path(file).name
    if values_file(called.split(".")[0], values, words) != called:
        raise ValueError("its name does not match its content")
    return values


def dump_columns(index: ColumnIndex) -> str:
    """Return the text of `columns.json`."""
    return index.model_dump_json(indent=2, exclude_none=True)


def values_file(
    name: str, values: npt.NDArray[Any], words: Sequence[str] | None
) -> str:
    """Return the name of the file with these values of a column."""
    content_hash = hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8)
    content_hash.update(str(values.dtype).encode())
    if words is not None:
        content_hash.update(json.dumps(list(words)).encode())
    return f"{name}.{content_hash.hexdigest()}.npy"


def column_of(
    path: Path, index: ColumnIndex, name: str, counts: Mapping[str, int]
) -> Column:
    """Return a column for some shards of a folder, in their order.

    Raises as `read_values` does, too.

    Args:
        path: The prepared folder.
        index: Its columns.
        name: Name of the column.
        counts: Samples of the shards, as the caller has read them.

    Returns:
        The column.

    Raises:
        DatasetError: If the folder was prepared again in the meantime.
    """
    indexed_counts = index.shard_counts
    whole = read_values(path, name, index.columns[name], sum(indexed_counts.values()))
    ends = np.cumsum([0, *indexed_counts.values()]).tolist()
    stretches_of = dict(zip(indexed_counts, pairwise(ends), strict=True))
    stretches = [stretches_of.get(shard, (0, 0)) for shard in counts]
    if [stop - start for start, stop in stretches] != list(counts.values()):
        raise DatasetError(
            f"{path} was prepared again with other shards while in use. Create the "
            "dataset again"
        )
    if all(previous[1] == following[0] for previous, following in pairwise(stretches)):
        return whole.part(
            slice(stretches[0][0], stretches[-1][1])
        )  # a view, without a copy
    return whole.part(np.concatenate([np.arange(*stretch) for stretch in stretches]))
