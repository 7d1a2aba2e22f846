"""Rows of Lance datasets, read by Lance itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from energize.core.failures import Failed
from energize.core.lazy import optional_module
from energize.data.rows import FieldSource, Row
from energize.data.source import ShardedSource
from energize.errors import DatasetError, DatasetNotFoundError


class LanceSource(ShardedSource[Row], FieldSource[Row]):
    """The rows of a Lance dataset as dicts, in storage order.

    Rows are read at random by Lance (`pip install 'energize[lance]'`), so any mix,
    resume and topology works without preparation. A run reads one version of the
    dataset; rows that are added later do not change it. Orders depend on `name` and the
    number of rows. Lance has threads, so start workers with
    `get_loader(multiprocessing_context="spawn")`.

    Args:
        path: The dataset, local or a URL that Lance reads.
        version: The version to read; None for the latest one when this is called.
        columns: The columns of the rows; None for all.
        name: Name in reports, which also keys the order; by default the last part of
            the path.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of the same dataset.

    Raises:
        ConfigError: If Lance is not installed.
        DatasetNotFoundError: If the dataset or the version does not exist.
        DatasetError: If Lance cannot open it.

    Example:
        >>> import pytest
        >>> lance, pyarrow = map(pytest.importorskip, ("lance", "pyarrow"))
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/texts.lance"
        >>> _ = lance.write_dataset(pyarrow.table({"text": ["one", "two"]}), path)
        >>> LanceSource(path)[1]
        {'text': 'two'}
    """

    order_name = "LanceSource"

    uri: str
    version: int
    columns: tuple[str, ...]
    blobs: tuple[str, ...]
    """Columns of the blob encoding of Lance; `take_blobs` reads their values."""
    explicit_name: str
    remote = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        version: int | None = None,
        columns: Iterable[str] | None = None,
        name: str = "",
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        location = os.fspath(path)
        rows = _opened(location, version)
        chosen = tuple(rows.schema.names if columns is None else columns)
        missing = [column for column in chosen if column not in rows.schema.names]
        if missing:
            raise DatasetError(
                f"{location} has no column {missing[0]!r}. Its columns are "
                f"{', '.join(rows.schema.names)}"
            )
        self.freeze(
            uri=location,
            version=rows.version,
            columns=chosen,
            blobs=tuple(name for name in chosen if _is_blob(rows.schema.field(name))),
            counts=(rows.count_rows(),),
            explicit_name=name or os.path.basename(location.rstrip("/")),
            seed=seed,
            occurrence=occurrence,
        )

    @property
    def name(self) -> str:
        return self.earlier_name or self.explicit_name

    @property
    def identity(self) -> str:
        return f"{self.earlier_name or self.explicit_name}:{self.count}"

    @property
    def record(self) -> str | None:
        return f"version {self.version}"

    @property
    def shards(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.uri,)

    @property
    def location(self) -> str:
        return self.uri

    @property
    def column_names(self) -> tuple[str, ...]:
        return self.columns

    def column_values(self, name: str) -> Iterable[Any]:
        column = self._dataset.to_table(columns=[name])[name]
        values: Iterable[Any] = column.to_pylist(maps_as_pydicts="strict")
        return values

    def location_in_shard(self, shard: int, number: int) -> str:
        return f"{self.uri}, row {number}"

    def read_shard(self, shard: int, numbers: list[int]) -> list[Row | Failed]:
        taken = self._dataset.take(numbers, columns=list(self.columns))
        rows: list[Row] = taken.to_pylist(maps_as_pydicts="strict")
        for name in self.blobs:
            filled = [at for at, row in enumerate(rows) if row[name] is not None]
            indices = [numbers[at] for at in filled]
            files = self._dataset.take_blobs(name, indices=indices) if filled else ()
            for at, file in zip(filled, files, strict=True):
                rows[at][name] = file.readall()
        return [*rows]

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"columns": list(self.columns)}

    @cached_property
    def _dataset(self) -> Any:
        """The dataset, opened by each process for itself: Lance has threads."""
        return _opened(self.uri, self.version)


def _is_blob(field: Any) -> bool:
    """Return whether a field of a schema has the blob encoding."""
    encoding = (field.metadata or {}).get(b"lance-encoding:blob")
    extension = getattr(field.type, "extension_name", "")
    return encoding == b"true" or extension.startswith("lance.blob")


def _opened(path: str, version: int | None) -> Any:
    lance = optional_module("lance", "energize[lance]", "LanceSource")
    try:
        return lance.dataset(path, version=version)
    except (FileNotFoundError, ValueError) as error:
        chosen = "" if version is None else f", version {version}"
        raise DatasetNotFoundError(
            f"{path}{chosen} is not a Lance dataset: {str(error)[:200]}. Check the "
            "path, or list versions with lance.dataset(path).versions()"
        ) from error
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be opened by Lance: {str(error)[:200]}. Check the network "
            "and the credentials of the store"
        ) from error
