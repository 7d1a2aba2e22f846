"""Paths, and what is read at them: local files, object storage, small documents.

`path_of` returns the `Path` or `RemotePath` of a text, `files_at` the `Files` that
reads a path, `read_document` the checked values of a JSON or YAML file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Self, TypeAlias, TypeVar

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
    """Return what reads the files at a path and below it; without `follow`, a link is
    no file.
    """
    if is_url(path):
        from energize.data.remote import files

        return files()
    return LocalFiles(follow=follow)


def path_of(path: AnyPath) -> Path:
    """Return the path of something given by name: a `Path`, or for a URL what has its
    methods.

    Raise `ConfigError` for a URL with a name, a password or a query in it, which would
    be written into logs and states.

    >>> path_of("s3://bucket/web") / "../text" / "0.tar"
    RemotePath('s3://bucket/text/0.tar')
    """
    text = os.fspath(path)
    if URL.match(text):
        from energize.data.remote import remote_path

        return remote_path(text)
    return Path(_local_text(text) if ":/" in text else os.path.expanduser(text))


def joined(base: Path, name: str) -> Path:
    """Return the path of a name in the folder `base`, which a URL does not depend
    on.
    """
    return path_of(name) if URL.match(name) else base / _local_text(name)


def absolute(path: AnyPath) -> str:
    """Return an absolute path without `..`, by which documents are known."""
    text = os.fspath(path)
    if URL.match(text):
        return text
    return os.path.abspath(
        _local_text(text) if ":/" in text else os.path.expanduser(text)
    )


def _local_text(text: str) -> str:
    """Return the path of this machine that a text stands for."""
    text = re.sub(r"\Afile://(localhost)?(?=/)", "", text)
    if _HALF.match(text):
        raise ConfigError(
            f"{text} is no URL: give s3://BUCKET/... or file:///FOLDER/..., as text, "
            "for a Path makes one slash of two"
        )
    return os.path.expanduser(text)


class Documents:
    """Documents, small files of JSON and YAML, by absolute path or URL: the text of
    each as it was first read, None for one that was not there.

    >>> with Documents({"/mix/cats/.nv-meta/split.yaml": "split_parts: {}"}).used():
    ...     (
    ...         read_file("/mix/cats/.nv-meta/split.yaml", "YAML_BYTES"),
    ...         path_type(Path("/mix/cats")),
    ...     )
    (b'split_parts: {}', 'folder')
    """

    def __init__(self, texts: Mapping[str, str | None] | None = None) -> None:
        self.texts = dict(texts or {})

    @cached_property
    def folders(self) -> set[str]:
        """Those that have documents, and those around them, which are there."""
        folders = {
            os.path.dirname(path)
            for path, text in self.texts.items()
            if text is not None
        }
        return folders | set(map(os.path.dirname, folders))

    @contextmanager
    def used(self) -> Iterator[Self]:
        """A block in which this thread reads no document twice, and none that is known
        here.
        """
        token = documents_in_use.set(self)
        try:
            yield self
        finally:
            documents_in_use.reset(token)


LISTED = "/*"
"""Ends the name of a document that is none: of the names of all files of a folder."""
# Those whose block a thread is in.
documents_in_use: ContextVar[Documents | None] = ContextVar("documents", default=None)


def read_file(path: AnyPath, most: str | None = None) -> bytes:
    """Return all bytes of a regular file; raise OSError if it cannot be read, or is
    larger than the limit of the name `most`, which documents have.
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
    ):  # else one letter makes all of them four bytes wide
        with suppress(UnicodeDecodeError):
            texts[key] = data.decode()
    return data


def _whole(path: str, most: str | None) -> bytes:
    """Return all bytes of a file as it is now, whatever it was before."""
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
    return LocalFiles().read(
        path, 0, size
    )  # which tries again, and tells what is wrong


def manifest_path(mix: Path) -> Path:
    """Return where the manifest of a mix lies.

    >>> manifest_path(Path("mixes/web.yaml")).name
    'web.manifest.json'
    """
    return mix.with_name(f"{mix.stem}.manifest.json")


PathType: TypeAlias = Literal["folder", "file", ""]


def path_type(path: AnyPath, *, follow: bool = True) -> PathType:
    r"""Return what is at a path: "folder", "file", or "" for nothing, which a link to
    nothing is with `follow`. Raise OSError if the disk cannot say.

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
    """Return what recorded documents have at a path, None if it is not recorded."""
    key = absolute(path)
    if key in documents.folders:
        return "folder"
    if key in documents.texts:
        return "" if documents.texts[key] is None else "file"
    return None


def _remote_type(path: Path) -> PathType:
    """Return what a store has at a path; a folder may share its name with an object."""
    if not path.suffix and path.is_dir():
        return "folder"
    if path.is_file():
        return "file"
    return "folder" if path.suffix and path.is_dir() else ""


def exists(path: AnyPath, *, follow: bool = True) -> bool:
    r"""Return whether `path_type` finds something at a path.

    >>> exists("/"), exists("/nowhere"), exists("no\0path")
    (True, False, False)
    """
    return path_type(path, follow=follow) != ""


def absent(path: AnyPath) -> str:
    """Return what to say of a path at which nothing is.

    >>> absent("/nowhere")
    'does not exist'
    """
    with suppress(OSError, ValueError):
        return f"is a link to {os.readlink(path)!r}, where nothing is; correct the link"
    lists = not absolute(path).startswith("http")
    return "does not exist" + (
        "" if lists else ", or is a folder that its server does not list"
    )


_NOT_THERE = (FileNotFoundError, NotADirectoryError)


def read_document(path: Path, schema: TypeAdapter[T]) -> T | None:
    """Return what a file of JSON or YAML, by its name, says; None where there is none.
    Raise `DatasetError` with file, line and key for one that is damaged, or not what
    `schema` describes.
    """
    is_json = path.suffix == ".json"
    try:
        text = read_file(path, "JSON_BYTES" if is_json else "YAML_BYTES")
        content = load_large_json(text) if is_json else load_yaml(text)
    except OSError as reason:
        if isinstance(reason, _NOT_THERE) and not exists(path, follow=False):
            return None
        raise DatasetError(os_error_message(reason, path)) from reason
    except EnergizeError:
        raise
    except (ValueError, yaml.YAMLError) as reason:
        raise DatasetError(
            f"{path} is not valid {path.suffix[1:].upper()}: {reason}"
        ) from reason
    return validated(schema, content, DatasetError, path, text)
