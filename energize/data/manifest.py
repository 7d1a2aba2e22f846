"""A manifest: the documents of all folders of a mix in one file beside it, for many ranks.

`mix.manifest.json` holds the texts of the small files that opening `mix.yaml` reads, of `.nv-meta`
folders and of metadatasets that it includes; not those of the mix itself, nor any data. Who opens
the mix reads these two files. What is not in the manifest is read where it lies. Whether folders
have changed since it was written is looked up by one rank for all, rank 0, which reads all of them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, Self, TypeVar, cast

from pydantic import TypeAdapter, model_validator

from energize.core.description import digest
from energize.core.lanes import WorkerConfig
from energize.core.validation import Model, read_document
from energize.data.files import Documents, absolute, documents_in_use
from energize.data.remote import path_of
from energize.errors import DatasetError, some

P = ParamSpec("P")
T = TypeVar("T")

_SUFFIXES = (".yaml", ".yml")
_THREADS = 16


class Manifest(Model):
    """The texts of documents, None for one that is not there, by their paths: relative to the
    folder of the mix for what lies in it, absolute ones and URLs for the others.
    """

    version: Literal[1] = 1
    digest: str
    documents: dict[str, str | None]

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.digest != digest(self.documents):
            raise ValueError("expected documents with this digest: the file is damaged")
        return self


_MANIFEST = TypeAdapter(Manifest)


def manifest_path(mix: Path) -> Path:
    """Return where the manifest of a mix lies.

    >>> manifest_path(Path("mixes/web.yaml")).name
    'web.manifest.json'
    """
    return mix.with_name(f"{mix.stem}.manifest.json")


def dump_manifest(mix: Path, documents: Documents) -> str:
    """Return the text of the manifest of a mix whose documents have been read."""
    own, folder = absolute(str(mix)), _folder(mix)
    texts = {
        path.removeprefix(folder): text for path, text in documents.texts.items() if path != own
    }
    return Manifest(digest=digest(texts), documents=texts).model_dump_json(indent=1)


def read_manifest(mix: Path, config: WorkerConfig | None = None) -> Documents | None:
    """Return the documents that the manifest of a mix holds, None where it has none.

    Raise `DatasetError` for one that is damaged or of a later version; on rank 0 also for one that
    is stale, for which all documents are read.
    """
    path, folder = manifest_path(mix), _folder(mix)
    again = f"Write it again with: energize manifest {mix}"
    try:
        found = read_document(path, _MANIFEST)
    except DatasetError as reason:
        raise DatasetError(f"{reason}. {again}") from reason
    if found is None:
        return None
    texts = {
        each if "://" in each or os.path.isabs(each) else f"{folder}{each}": text
        for each, text in found.documents.items()
    }
    if (config or WorkerConfig()).rank == 0:
        now = Documents()
        with ThreadPoolExecutor(_THREADS) as threads:
            deque(threads.map(now.look_up, texts))
        seen: Mapping[str, Any] = now.texts
        changed = [each for each, text in texts.items() if seen.get(each, 0) != text]
        if changed:
            raise DatasetError(
                f"{path} is stale: since it was written, {len(changed)} of its {len(texts)} files "
                f"have changed, {some(changed)}. {again}"
            )
    return Documents(texts)


def _folder(mix: Path) -> str:
    return f"{os.path.dirname(absolute(str(mix)))}/"


def by_manifest(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function whose first parameter, `path`, is a mix: a file is opened by its manifest, if
    it has one, and no document is read twice.
    """

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> T:
        mix = args[0] if args else kwargs.get("path")
        if not isinstance(mix, str | os.PathLike) or documents_in_use.get() is not None:
            return function(*args, **kwargs)
        path, config = path_of(mix), cast("Any", kwargs.get("worker_config"))
        found = read_manifest(path, config) if path.suffix in _SUFFIXES else None
        with (found or Documents()).used():
            return function(*args, **kwargs)

    return opened
