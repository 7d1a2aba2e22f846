"""Columns of prepared folders that say something else than the samples do."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from energize.data.columns import (
    COLUMNS_FOLDER,
    COLUMNS_NAME,
    dump_columns,
    read_columns,
    values_file,
)


def revalued(folder: Path, name: str, changes: dict[int, int]) -> None:
    """Write a column again with other values of some samples, as whoever measured them
    wrong."""
    index = read_columns(folder)
    stored = index.columns[name]
    values = np.load(folder / COLUMNS_FOLDER / stored.file)
    for sample, value in changes.items():
        values[sample] = value
    file = values_file(name, values, stored.categories)
    np.save(folder / COLUMNS_FOLDER / file, values)
    columns = index.columns | {name: stored.model_copy(update={"file": file})}
    text = dump_columns(index.model_copy(update={"columns": columns}))
    (folder / COLUMNS_FOLDER / COLUMNS_NAME).write_text(text)
