"""The rows of a map-style Hugging Face dataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from energize.arrays import Int64Array
from energize.errors import ConfigError
from energize.optional import is_instance_of
from energize.reading import Failed
from energize.sources.field_columns import FieldSource


class HuggingFaceSource(FieldSource[dict[str, Any]]):
    """The rows of a `datasets.Dataset` as dicts, in its format, read when they are asked for.

    Orders depend on `name` and on the number of rows, not on the fingerprint of the dataset, which
    is not the same on every machine. A streaming dataset is read by `IterableSource`.

    Raises `ConfigError` for anything else than a `datasets.Dataset`.

    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"text": ["one", "two"]})
    >>> HuggingFaceSource(rows, name="numbers")[1]
    {'text': 'two'}
    """

    rows: Any
    given_name: str

    def __init__(
        self, rows: Any, *, name: str = "hugging face", seed: int = 0, occurrence: int = 0
    ) -> None:
        if not is_instance_of(rows, "datasets", "Dataset"):
            remedy = ""
            if is_instance_of(rows, "datasets", "IterableDataset"):
                remedy = "; a streaming dataset is read by IterableSource"
            elif is_instance_of(rows, "datasets", "DatasetDict"):
                remedy = f"; choose one of its splits: {', '.join(map(str, rows))}"
            raise ConfigError(
                f"HuggingFaceSource {name!r} reads a datasets.Dataset, got "
                f"{type(rows).__name__}{remedy}"
            )
        self._freeze(rows=rows, given_name=name, seed=seed, occurrence=occurrence)

    @property
    def name(self) -> str:
        return self.given_name

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def identity(self) -> str:
        return f"{self.given_name}:{self.count}"

    @property
    def field_names(self) -> tuple[str, ...]:
        """Those of the dataset."""
        return tuple(self.rows.column_names)

    def field_values(self, name: str) -> Iterable[Any]:
        """The column alone is read, whatever the format of the dataset."""
        values: Iterable[Any] = self.rows.with_format(None).select_columns([name])[:][name]
        return values

    def read(self, indices: Int64Array) -> list[dict[str, Any] | Failed]:
        rows: list[dict[str, Any] | Failed] = self.rows.__getitems__(indices.tolist())
        return rows

    def _compared(self) -> tuple[Any, ...]:
        return id(self.rows), self.given_name, self.seed, self.occurrence

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"columns": list(self.rows.column_names)}
