"""Tars without an index: the index is stored in the cache, their parts are columns."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from energize.core.description import digest
from energize.core.failures import Failed
from energize.core.os_errors import PASSING, is_url
from energize.data.media import HEAD, media_kind
from energize.data.nv_meta import ConvertedFrom, is_prepared
from energize.data.webdataset import WebdatasetSource
from energize.errors import DatasetError, DecodeError, NotPreparedError, PrepareError
from energize.inference.candidates import Reading
from energize.inference.columns import AV, IMAGE, ColumnProfile, Named, columns_of
from energize.inference.scene import FIRST, Scene
from energize.preparation.index import prepare
from energize.task.decode import PART_DECODERS

_log = logging.getLogger("energize")
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of a disk that occur only when it is written to."""


def open_tars(scene: Scene) -> WebdatasetSource:
    """Return the samples of tars by an index in the cache folder, with links to the
    tars.

    Raises:
        NotPreparedError: If the tars are in object storage, where they must be
            prepared.
        DatasetError: If a tar cannot be indexed, or the cache folder not be written.
    """
    if is_url(scene.path):
        location = scene.path if scene.is_folder else scene.root
        raise NotPreparedError(
            f"{scene.path}: tars in a store must be prepared. Run: energize prepare "
            f"{location}"
        )
    names = scene.names("tar")
    stats = [(scene.root / name).stat() for name in names]
    states = [
        [n, stat.st_size, stat.st_mtime_ns]
        for n, stat in zip(names, stats, strict=True)
    ]
    called = (
        scene.path.absolute().name
    )  # a tar alone and its folder have indexes of their own
    folder = cache_folder(
        "tars", digest([called, str(scene.root.absolute()), states]), called
    )
    try:
        if not is_prepared(folder):
            _log.warning(
                "%s: %d tars are indexed, in %s", scene.path, len(names), folder
            )
            _index(scene.root, names, folder)
    except OSError as error:
        if error.errno in PASSING:
            raise
        raise DatasetError(
            f"{scene.path}: the index of tars that are not prepared cannot be written "
            f"to the cache folder: {error.filename or folder} ({error.strerror}). Set "
            "XDG_CACHE_HOME to a folder that can be written, or run: energize prepare "
            f"{scene.root}"
        ) from error
    whole = WebdatasetSource(folder)
    return whole.replace(origin=ConvertedFrom.of(whole))


def cache_folder(*names: str) -> Path:
    """Return a folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "energize", *names)


def _index(root: Path, names: Sequence[str], folder: Path) -> None:
    """Write the index of tars into a folder of links to them.

    Raises:
        OSError: If the folder cannot be written.
    """
    if not folder.is_absolute():
        raise OSError(
            errno.ENOENT, os.strerror(errno.ENOENT), str(folder)
        )  # there is no home
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent.parent) as new:
        links = Path(new, "tars", folder.name)
        for name in names:
            link = links / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((root / name).absolute())
        try:
            report = prepare(links, split_ratios={"train": 1})
        except PrepareError as reason:
            cause = reason.__cause__
            if isinstance(cause, OSError) and cause.errno in _NOT_WRITTEN:
                raise cause from None
            raise DatasetError(str(reason).replace(f"{links}", f"{root}")) from None
        for note in report.notes:
            _log.warning("%s: %s", root, note)
        with suppress(OSError):  # another process was sooner
            Path(new, "tars").rename(folder.parent)


def read_tars(source: WebdatasetSource) -> Reading:
    """Return the parts of the first samples, and the keys of their JSON, as columns."""
    samples = source.read(np.arange(min(FIRST, source.count)))
    stored = [sample for sample in samples if not isinstance(sample, Failed)]
    rows = [_decoded(sample) for sample in stored]
    forms = _forms_of_media(stored, rows)
    texts = [
        {name: value for name, value in row.items() if name not in forms}
        for row in rows
    ]
    columns = columns_of(texts, _none)
    parts = {name: name for row in texts for name in row}
    for form in (IMAGE, AV):
        names = [name for name, its_form in forms.items() if its_form == form]
        if names:
            column, access = _media_column(names, form, rows)
            columns = {column.name: column, **columns}
            parts[column.name] = access
    return Reading(source, rows, columns, {}, parts)


def _forms_of_media(
    stored: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """Return the form of each part that is an image, a video or a sound."""
    contents = {name: data for sample in stored for name, data in sample.items()}
    forms = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        kind = media_kind(f"a.{name}", contents[name][:HEAD])
        if kind is not None:
            forms[name] = str(kind.value)
    return forms


def _media_column(
    names: list[str], form: str, rows: Sequence[dict[str, Any]]
) -> tuple[ColumnProfile, str]:
    """Return the column of all parts that are media of one form, and its access."""
    is_numbered = any("." in name for name in names)
    column = names[0].rpartition(".")[2] if is_numbered else names[0]
    is_several = max(sum(name in row for name in names) for row in rows) > 1
    profile = ColumnProfile(
        column, f"{form}s" if is_several else form, tuple(rows), len(rows), ("{}",)
    )
    if not is_several:
        return profile, ",".join(names)
    extensions = dict.fromkeys(name.rpartition(".")[2] for name in names)
    return profile, ",".join(f"*{extension}" for extension in extensions)


def _decoded(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a raw sample with decoded texts, numbers and JSON."""
    decoded = {}
    for name, data in raw.items():
        if name.startswith("__") or not isinstance(data, bytes):
            continue
        decode = PART_DECODERS.get(name.rpartition(".")[2].lower())
        try:
            decoded[name] = data if decode is None else decode(data)
        except (ValueError, DecodeError):
            decoded[name] = data
    return decoded


def _none(column: str, values: Sequence[Any]) -> Named | None:
    return None
