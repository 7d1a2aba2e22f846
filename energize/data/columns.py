"""Columns of a prepared folder: what is known of each sample without reading it, on
disk.

    .nv-meta/columns/columns.json      which columns there are, and of which shards
    .nv-meta/columns/NAME.DIGEST.npy   the values of one, in the order of `.info.json`

Values are int64 or float64, or int32 places in the list of words that `columns.json`
has, -1 for a sample without a word. A file of values is named after what is in it, and
the words, and compared with its name when it is read. It is never written again, so who
reads a column while it is measured anew goes on reading the older one. Megatron-Energon
looks at none of this. Nothing of these files is unpickled or run.
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

# Different words of a column; one with more, such as texts, is no property of samples.
MOST_WORDS = 65_536
_SHOWN = 3

# What numpy raises for damaged `.npy` files, whose headers are Python literals.
_BAD_ARRAY = (
    ValueError,
    EOFError,
    OverflowError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
)

_NAME = r"^[^\W\d]\w{0,99}$"
_FILE = r"^[^\W\d]\w*\.[0-9a-f]{16}\.npy$"


class StoredColumn(Model):
    """What `columns.json` says of a column: its file, the type of its values, how it
    was measured, as `energize prepare --column` takes it, and the words that the values
    are places of.
    """

    file: Annotated[str, Field(pattern=_FILE)]
    dtype: Literal["int64", "float64", "int32"]
    measured: str
    categories: Listed[str] | None = None

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if (self.dtype == "int32") != (self.categories is not None):
            raise ValueError("expected categories for int32, and for no other dtype")
        if self.categories is not None and len(set(self.categories)) < len(
            self.categories
        ):
            raise ValueError("expected a list of different words as categories")
        return self


class ColumnIndex(Model):
    """The columns of a folder by name, the samples of the shards that they are of, and
    the `index.uuid` of the folder when they were measured.
    """

    version: Literal[1] = 1
    index: str | None = None
    shard_counts: dict[str, int]
    columns: dict[Annotated[str, Field(pattern=_NAME)], StoredColumn]

    @property
    def measured(self) -> dict[str, str]:
        """How each column was measured."""
        return {name: column.measured for name, column in self.columns.items()}


_INDEX = TypeAdapter(ColumnIndex)


def check_name(name: object) -> str:
    """Return a name that columns may have; raise `ColumnError` for others.

    >>> check_name("tokens")
    'tokens'
    """
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise ColumnError(
            "a column is called as variables are, letters, digits and _, so that "
            f"functions can take it as a parameter; got {str(name)[:80]!r}"
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
    """Return what is different when a folder was prepared again with an `index.sqlite`;
    None without.
    """
    file = str(path / META_FOLDER / UUID_NAME)
    try:
        return read_file(file, "YAML_BYTES")[:100].decode("ascii", "replace")
    except FileNotFoundError:
        return None


@convert_os_errors
def read_columns(path: Path) -> ColumnIndex:
    """Return the columns of the prepared folder `path`, which may have none.

    Raise `DatasetError` for a file that is damaged or of a later version, and for
    columns of other shards than those that the folder has now; what reading
    `.info.json` raises.
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
            f"{file}: its columns are not of the shards that the folder has now: "
            f"{difference}. Measure them again with: "
            f"{column_command(path, index.measured)}"
        )
    return index


@convert_os_errors
def read_values(path: Path, name: str, stored: StoredColumn, samples: int) -> Column:
    """Return the values of a column of the folder `path`: about a second, and 8 bytes a
    sample, for 100 million samples.

    Raise `DatasetError` for a file that is missing, cut off, of another type or another
    number of samples, has places of words that there are not, or other content than
    when it was written.
    """
    file = f"{path}/{COLUMNS_FOLDER}/{stored.file}"
    words = stored.categories
    try:
        values = load_values(file, words)
        if values.dtype != stored.dtype or values.shape != (samples,):
            raise ValueError(
                f"it holds {values.dtype} of shape {values.shape}, and {COLUMNS_NAME} "
                "says "
                f"{stored.dtype} of {samples} samples"
            )
        least, most = (values.min(), values.max()) if len(values) else (-1, -1)
        if words is not None and not -1 <= least <= most < len(words):
            raise ValueError(f"it has {least} to {most}, but {len(words)} words")
    except (FileNotFoundError, ValueError) as reason:
        raise DatasetError(
            f"the column {name!r} of {path} is damaged: {file}: {reason}; measure it "
            "again with: "
            f"{column_command(path, {name: stored.measured})}"
        ) from reason
    return Column(values, words)


def load_values(file: str, words: Sequence[str] | None = None) -> npt.NDArray[Any]:
    """Return the numbers in a file that is called as `values_file` says; ValueError for
    any other file. They are not mapped: where a mapped file is cut, the kernel ends who
    reads it.
    """
    stream = BytesIO(read_file(file))
    try:
        # Not `np.load`, which takes archives too.
        values: npt.NDArray[Any] = read_array(stream, allow_pickle=False)
    except _BAD_ARRAY as reason:
        raise ValueError(
            f"it holds no numbers: {str(reason).splitlines()[0]}"
        ) from reason
    called = Path(file).name
    if values_file(called.split(".")[0], values, words) != called:
        raise ValueError(
            "it is named after other content: it was changed, or what names it"
        )
    return values


def dump_columns(index: ColumnIndex) -> str:
    """Return the text of `columns.json`."""
    return index.model_dump_json(indent=2, exclude_none=True)


def values_file(
    name: str, values: npt.NDArray[Any], words: Sequence[str] | None
) -> str:
    """Return what the file with these values of a column is called."""
    content_hash = hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8)
    content_hash.update(str(values.dtype).encode())
    if words is not None:
        content_hash.update(json.dumps(list(words)).encode())
    return f"{name}.{content_hash.hexdigest()}.npy"


def column_of(
    path: Path, index: ColumnIndex, name: str, counts: Mapping[str, int]
) -> Column:
    """Return a column of the folder `path` for the samples of some shards, in the order
    of these; `counts` says how many each has for who asks.

    Raise what `read_values` raises.
    """
    indexed_counts = index.shard_counts
    whole = read_values(path, name, index.columns[name], sum(indexed_counts.values()))
    ends = np.cumsum([0, *indexed_counts.values()]).tolist()
    stretches_of = dict(zip(indexed_counts, pairwise(ends), strict=True))
    stretches = [stretches_of.get(shard, (0, 0)) for shard in counts]
    if [stop - start for start, stop in stretches] != list(counts.values()):
        raise DatasetError(
            f"{path} was prepared again, with other shards, while it was in use; make "
            "the dataset anew"
        )
    if all(previous[1] == following[0] for previous, following in pairwise(stretches)):
        return whole.part(slice(stretches[0][0], stretches[-1][1]))  # nothing is copied
    return whole.part(np.concatenate([np.arange(*stretch) for stretch in stretches]))
