"""Paths and small documents: local files and object storage.

`path_of` returns the `Path` or `RemotePath` of a text, `files_at` the `Files` that
reads a path, `read_document` the validated content of a JSON or YAML file. `Documents`
records documents that were read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar

import yaml
from pydantic import TypeAdapter

from energize.core import limits
from energize.core.os_errors import (
    PASSING,
    URL,
    AnyPath,
    again,
    is_url,
    os_error_message,
)
from energize.core.validation import load_large_json, load_yaml, validated
from energize.data.local import (
    RUN_BYTES,
    Files,
    LocalFiles,
    OpenFile,
)
from energize.errors import (
    ConfigError,
    DatasetError,
    EnergizeError,
)

T = TypeVar("T")

_HALF = re.compile(r"(s3|gs|az|abfss?|https?|hf|msc|file):/(?!/)|file://")


def files_at(path: AnyPath, *, follow: bool = True) -> Files:
    """Return the `Files` for a path; without `follow`, links are not files."""
    if is_url(path):
        from energize.data.remote import files

        return files()
    return LocalFiles(follow=follow)


def path_of(path: AnyPath) -> Path:
    """Return the path of a text: a `Path`, or a `RemotePath` for a URL.

    Args:
        path: A path or URL.

    Returns:
        The path.

    Raises:
        ConfigError: If a URL has a user name, a password or a query, which would end up
            in logs and states.

    Example:
        >>> path_of("s3://bucket/web") / "../text" / "0.tar"
        RemotePath('s3://bucket/text/0.tar')
    """
    text = os.fspath(path)
    if URL.match(text):
        from energize.data.remote import remote_path

        return remote_path(text)
    local = _local_text(text) if ":/" in text else os.path.expanduser(text)
    return path if isinstance(path, Path) and local == text else Path(local)


def joined(base: Path, name: str) -> Path:
    """Return the path of a name in the folder `base`; URLs are absolute."""
    return path_of(name) if URL.match(name) else base / _local_text(name)


def absolute(path: AnyPath) -> str:
    """Return an absolute path without `..`, the key of documents."""
    text = os.fspath(path)
    if URL.match(text):
        return text
    return os.path.abspath(
        _local_text(text) if ":/" in text else os.path.expanduser(text)
    )


def _local_text(text: str) -> str:
    """Return the local path of a text; strips `file://`."""
    text = re.sub(r"\Afile://(localhost)?(?=/)", "", text)
    if _HALF.match(text):
        raise ConfigError(
            f"{text} is not a URL, because Path merges two slashes. Pass "
            "s3://BUCKET/... or file:///FOLDER/... as text"
        )
    return os.path.expanduser(text)


class Documents:
    """Texts of small JSON and YAML files by absolute path or URL, as first read.

    None marks a missing file.

    >>> with Documents({"/mix/cats/.nv-meta/split.yaml": "split_parts: {}"}).used():
    ...     (
    ...         read_file("/mix/cats/.nv-meta/split.yaml", "YAML_BYTES"),
    ...         path_type(Path("/mix/cats")),
    ...     )
    (b'split_parts: {}', 'folder')
    """

    def __init__(self, texts: Mapping[str, str | None] | None = None) -> None:
        self.texts = dict(texts or {})
        self.results: dict[tuple[Hashable, ...], Any] = {}

    @cached_property
    def folders(self) -> set[str]:
        """Existing folders: those with documents, and their parents."""
        folders = {
            os.path.dirname(path)
            for path, text in self.texts.items()
            if text is not None
        }
        return folders | set(map(os.path.dirname, folders))

    @contextmanager
    def used(self) -> Iterator[Self]:
        """Serve documents from this record in the block, and record new ones."""
        token = documents_in_use.set(self)
        try:
            yield self
        finally:
            documents_in_use.reset(token)


LISTED = "/*"
"""Suffix of pseudo-documents: the names of all files of a folder."""
# The documents in use by the current context.
documents_in_use: ContextVar[Documents | None] = ContextVar("documents", default=None)


def once(call: Callable[..., T], *arguments: Hashable) -> T:
    """Return the result of a call, which is made once while documents are in use.

    >>> with Documents().used():
    ...     once(list) is once(list)
    True
    """
    documents = documents_in_use.get()
    if documents is None:
        return call(*arguments)
    key = call, *arguments
    if key not in documents.results:
        documents.results[key] = call(*arguments)
    result: T = documents.results[key]
    return result


def real_path(path: AnyPath) -> str:
    """Return a path without links; the folder above it is resolved `once`."""
    text = os.fspath(path)
    if URL.match(text):
        return text
    folder, name = os.path.split(text)
    if name in ("", ".", "..") or os.path.islink(text):
        return os.path.realpath(text)
    return os.path.join(once(os.path.realpath, folder), name)


def read_file(path: AnyPath, most: str | None = None) -> bytes:
    """Return the bytes of a regular file.

    Args:
        path: The file.
        most: Name of the limit of its size in `limits`; only documents have one.

    Returns:
        The bytes.

    Raises:
        OSError: If the file cannot be read, or is larger than the limit.
    """
    location = os.fspath(path)
    documents = documents_in_use.get()
    if most is None or documents is None:
        return _whole(location, most)
    key = absolute(location)
    texts = documents.texts
    if (text := texts.get(key)) is not None:
        return text.encode()
    if key in texts:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
    try:
        data = _whole(location, most)
    except FileNotFoundError:
        texts[key] = None
        raise
    if (
        data.isascii() or len(data) <= RUN_BYTES
    ):  # one such character would take 4 bytes per character
        with suppress(UnicodeDecodeError):
            texts[key] = data.decode()
    return data


def _whole(path: str, most: str | None) -> bytes:
    """Return the current bytes of a file, which may have changed."""
    if URL.match(path):
        from energize.data.remote import RemoteFiles

        return RemoteFiles().whole(path, most)
    file = again(partial(OpenFile, path), path)
    size = file.signature[0]
    if most is not None and size > getattr(limits, most):
        raise OSError(errno.EFBIG, limits.over(most, size), path)
    with suppress(OSError):
        data = os.pread(file.number, size, 0)
        if len(data) == size and os.fstat(file.number).st_mtime_ns == file.signature[1]:
            return data
    return LocalFiles().read(path, 0, size)  # retries, and raises with the reason


def manifest_path(mix: Path) -> Path:
    """Return the path of the manifest of a mix.

    >>> manifest_path(Path("mixes/web.yaml")).name
    'web.manifest.json'
    """
    return mix.with_name(f"{mix.stem}.manifest.json")


PathType: TypeAlias = Literal["folder", "file", ""]


def path_type(path: AnyPath, *, follow: bool = True) -> PathType:
    r"""Return the type of a path: "folder", "file", or "" if nothing exists.

    Args:
        path: A path or URL.
        follow: Whether to follow links; a broken link then does not exist.

    Returns:
        The type.

    Raises:
        OSError: If the disk fails.

    Example:
        >>> path_type("/"), path_type("/nowhere"), path_type("no\0path")
        ('folder', '', '')
    """
    documents = documents_in_use.get()
    location = os.fspath(path)
    recorded = None if documents is None else _recorded_type(documents, location)
    if recorded is not None:
        return recorded
    if URL.match(location):
        return _remote_type(path_of(location))
    try:
        status = again(partial(os.stat, location, follow_symlinks=follow), location)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise
        return ""
    return "folder" if stat.S_ISDIR(status.st_mode) else "file"


def _recorded_type(documents: Documents, path: str) -> PathType | None:
    """Return the type of a path by recorded documents, None if not recorded."""
    key = absolute(path)
    if key in documents.folders:
        return "folder"
    if key in documents.texts:
        return "" if documents.texts[key] is None else "file"
    return None


def _remote_type(path: Path) -> PathType:
    """Return the type of a path in a store; folder and object may share a name."""
    if not path.suffix and path.is_dir():
        return "folder"
    if path.is_file():
        return "file"
    return "folder" if path.suffix and path.is_dir() else ""


def exists(path: AnyPath, *, follow: bool = True) -> bool:
    r"""Return whether a path exists, as `path_type` does.

    >>> exists("/"), exists("/nowhere"), exists("no\0path")
    (True, False, False)
    """
    return path_type(path, follow=follow) != ""


def absent(path: AnyPath) -> str:
    """Return the reason why a path does not exist, for messages.

    >>> absent("/nowhere")
    'does not exist'
    """
    with suppress(OSError, ValueError):
        target = os.readlink(path)
        return f"is a link to {target!r}, which does not exist. Correct the link"
    lists = not absolute(path).startswith("http")
    return "does not exist" + (
        "" if lists else ", or is a folder that its server does not list"
    )


_NOT_THERE = (FileNotFoundError, NotADirectoryError)
_SMALL = 4096


@lru_cache(1024)
def _small_yaml(text: bytes, bounds: tuple[int, ...]) -> Any:
    """Return the content of a small YAML text; many folders have equal ones.

    `bounds` are the limits that the text was checked with.
    """
    return load_yaml(text)


def read_document(path: AnyPath, schema: TypeAdapter[T]) -> T | None:
    """Read and validate a JSON or YAML file.

    Args:
        path: The file; its extension selects the format.
        schema: Schema of the content.

    Returns:
        The content; None if the file does not exist.

    Raises:
        DatasetError: If the file is damaged or violates the schema; the message has
            file, line and key.
    """
    is_json = os.fspath(path).endswith(".json")
    try:
        text = read_file(path, "JSON_BYTES" if is_json else "YAML_BYTES")
        if is_json:
            content = load_large_json(text)
        elif len(text) <= _SMALL:
            bounds = limits.LEVELS, limits.YAML_VALUES, limits.LETTERS
            content = _small_yaml(text, bounds)
        else:
            content = load_yaml(text)
    except OSError as reason:
        if isinstance(reason, _NOT_THERE) and not exists(path, follow=False):
            return None
        raise DatasetError(os_error_message(reason, path)) from reason
    except EnergizeError:
        raise
    except (ValueError, yaml.YAMLError) as reason:
        raise DatasetError(
            f"{path} is not valid {'JSON' if is_json else 'YAML'}: {reason}"
        ) from reason
    return validated(schema, content, DatasetError, path, text)
