"""What becomes of the columns of a folder whose index is written anew."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from energize.data.columns import (
    COLUMNS_FOLDER,
    COLUMNS_NAME,
    column_command,
    dump_columns,
    read_columns,
)
from energize.data.nv_meta import UUID_NAME
from energize.data.tar import index_path
from energize.errors import DatasetError
from energize.preparation.staging import Staging

COLUMNS = f"{Path(COLUMNS_FOLDER).name}/{COLUMNS_NAME}"
"""What says of columns, in `.nv-meta`: without it there are none."""


def measured_before(root: Path) -> dict[str, str]:
    """How the columns of a folder were measured, whatever has become of its shards."""
    try:
        index = read_columns(root, checked=False)
    except DatasetError:
        return {}
    return {} if index is None else index.measured


def same_shards(root: Path, names: Iterable[str], staging: Staging) -> bool:
    """Whether the indexes that are staged say what those do that are there."""
    for name in names:
        index = Path(index_path(str(root / name)))
        try:
            if index.read_bytes() != staging.place(index).read_bytes():
                return False
        except FileNotFoundError:
            return False
    return True


def keep_columns(root: Path, staging: Staging) -> None:
    """Stage that the columns of a folder are of the index that is staged."""
    with suppress(DatasetError):  # columns that cannot be used now cannot be used then
        index = read_columns(root)
        if index is not None:
            version = staging.staged_text(UUID_NAME)
            kept = index if version is None else replace(index, version=version)
            staging.write(COLUMNS, dump_columns(kept))


def lost_columns(root: Path, again: Collection[str]) -> tuple[str, ...]:
    """A note when columns are of the index that is written anew, and are not measured again."""
    lost = {name: how for name, how in measured_before(root).items() if name not in again}
    if not lost:
        return ()
    return (
        f"the columns {', '.join(lost)} are gone with the index they were of, for shards may have "
        f"changed; measure them again with: {column_command(root, lost)}",
    )
