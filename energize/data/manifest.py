"""Manifests: the documents of all folders of a mix in one file, for many ranks.

`mix.manifest.json` contains the small files that opening `mix.yaml` reads, in
`.nv-meta` folders and included metadatasets, but neither the mix nor data. Opening the
mix reads these two files only; documents missing from the manifest are read from their
folders. Rank 0 checks for all ranks whether the manifest is stale.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, Self, TypeVar, cast

from pydantic import TypeAdapter, model_validator

from energize.core.description import digest
from energize.core.lanes import WorkerConfig
from energize.core.validation import Model
from energize.data.files import (
    LISTED,
    Documents,
    absolute,
    documents_in_use,
    joined,
    manifest_path,
    path_of,
    read_document,
    read_file,
)
from energize.errors import DatasetError, some

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 16


class Manifest(Model):
    """Texts of documents by path, None for missing files.

    Paths in the folder of the mix are relative to it; others are absolute, or URLs.
    """

    version: Literal[1] = 1
    digest: str
    documents: dict[str, str | None]

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.digest != digest(self.documents):
            raise ValueError(
                "its documents do not match this digest: the file is damaged"
            )
        return self


_MANIFEST = TypeAdapter(Manifest)


def dump_manifest(mix: Path, documents: Documents) -> tuple[str, int]:
    """Return the text of the manifest of a mix, and how many files it contains.

    Missing files, which later readers need not look for, are not counted.
    """
    mix_path = absolute(mix)
    folder = f"{os.path.dirname(mix_path)}/"
    texts = {
        path.removeprefix(folder): text
        for path, text in documents.texts.items()
        if path != mix_path and not path.endswith(LISTED)
    }
    manifest = Manifest(digest=digest(texts), documents=texts)
    count = sum(text is not None for text in texts.values())
    return manifest.model_dump_json(indent=1), count


def read_manifest(
    mix: Path, config: WorkerConfig | None = None
) -> dict[str, str | None]:
    """Return the texts in the manifest of a mix, by absolute path or URL.

    Args:
        mix: The mix.
        config: The ranks; rank 0 checks whether the manifest is stale. None to check.

    Returns:
        Texts by path, None for missing files.

    Raises:
        DatasetError: If the manifest is damaged, of a later version, or stale.
    """
    path = manifest_path(mix)
    again = f"Write it again with: energize manifest {mix}"
    try:
        documents = cast("Manifest", read_document(path, _MANIFEST)).documents
    except DatasetError as reason:
        raise DatasetError(f"{reason}. {again}") from reason
    texts = {
        absolute(joined(mix.parent, name)): text for name, text in documents.items()
    }
    if (config or WorkerConfig()).rank == 0:
        with ThreadPoolExecutor(_THREADS) as threads:
            same = threads.map(_is_still, texts, texts.values())
            changed = [
                name for name, is_still in zip(texts, same, strict=True) if not is_still
            ]
        if changed:
            raise DatasetError(
                f"{path} is stale: {len(changed)} of its {len(texts)} files have "
                f"changed since it was written ({some(changed)}). {again}"
            )
    return texts


def _is_still(path: str, text: str | None) -> bool:
    """Return whether a document still has this text, or is still missing."""
    try:
        return read_file(path, "JSON_BYTES") == (text is not None and text.encode())
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return text is None


def by_manifest(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function of a mix, to serve its documents from its manifest.

    The first parameter of the function is `path`. No document is read twice.
    """

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> T:
        mix = args[0] if args else kwargs.get("path")
        config = kwargs.get("worker_config")
        if documents_in_use.get() is not None:
            return function(*args, **kwargs)
        with Documents().used() as documents:
            path = path_of(mix) if isinstance(mix, str | os.PathLike) else Path()
            if path.suffix in (".yaml", ".yml"):
                with suppress(FileNotFoundError, NotADirectoryError):
                    read_file(
                        manifest_path(path), "JSON_BYTES"
                    )  # most mixes have no manifest
                    documents.texts |= read_manifest(path, cast("Any", config))
            return function(*args, **kwargs)

    return opened
