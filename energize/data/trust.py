"""Trusted folders: their code may run while it has the recorded digest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from energize.core.os_errors import is_url
from energize.data.files import once, real_path
from energize.data.nv_meta import INFO_NAMES, META_FOLDER
from energize.data.writing import write_new
from energize.errors import ConfigError, DatasetError

VARIABLE = "ENERGIZE_TRUST_CODE"
"""Environment variable with trusted folders, including their subfolders."""

_OF_STORE = "code in object storage is not run, because it may change at any time"


def trusted_file() -> Path:
    """Return the file that records the folders this user trusts."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home, "energize", "trusted.json")


def trusted_folders() -> dict[str, str]:
    """Return the digest of each folder that this user trusts.

    Raises:
        ConfigError: If the file is invalid.
    """
    file = trusted_file()
    try:
        digests = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}. Remove it, and run trust again"
        ) from error
    if not isinstance(digests, dict) or not all(
        isinstance(digest, str) for digest in digests.values()
    ):
        raise ConfigError(
            f"{file} is not a list of folders. Remove it, and run trust again"
        )
    return digests


def code_digest(folder: Path) -> str:
    """Return a digest of names and contents of Python files in a `.nv-meta` folder."""
    seen = hashlib.sha256()
    for file in sorted((folder / META_FOLDER).glob("**/*.py")):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        seen.update(
            f"{file.relative_to(folder)}\0{content}\0".encode(
                "utf-8", "surrogateescape"
            )
        )
    return seen.hexdigest()


def pickles_digest(folder: Path) -> str:
    """Return a digest of the code of a folder, and of the list of its shards."""
    listed = [folder / META_FOLDER / name for name in INFO_NAMES]
    lists = b"".join(path.read_bytes() for path in listed if path.is_file())
    return f"{code_digest(folder)}+{hashlib.sha256(lists).hexdigest()}"


def trust(folder: str | os.PathLike[str], *, pickles: bool = False) -> list[Path]:
    """Trust the current code of a prepared folder, for this user; runs nothing.

    Args:
        folder: The prepared folder.
        pickles: Whether the pickles in its shards are trusted too, until shards are
            added or removed. Contents of shards are not compared.

    Returns:
        The files with code.

    Raises:
        DatasetError: If the folder has no code, without `pickles`.
        ConfigError: If the record cannot be written.
    """
    if is_url(folder):
        raise ConfigError(
            f"{folder}: {_OF_STORE}. Keep it in a module of the program, and set that "
            "module"
        )
    path = Path(folder).resolve()
    files = sorted((path / META_FOLDER).glob("**/*.py"))
    if not files and not pickles:
        raise DatasetError(
            f"{path}: {META_FOLDER} has no code to trust. To trust the pickles in its "
            "shards: energize trust --pickles"
        )
    digest = pickles_digest(path) if pickles else code_digest(path)
    _remember({**trusted_folders(), str(path): digest})
    return files


def forget(folder: str | os.PathLike[str]) -> None:
    """Stop trusting a folder; raise `ConfigError` if it was not trusted."""
    path = str(Path(folder).resolve())
    trusted = trusted_folders()
    if path not in trusted:
        raise ConfigError(
            f"{path} is not trusted. Trusted folders: {', '.join(trusted) or 'none'}"
        )
    _remember({name: digest for name, digest in trusted.items() if name != path})


def _remember(folders: dict[str, str]) -> None:
    file = trusted_file()
    if not file.is_absolute():
        raise ConfigError(
            f"{file}: this user has no home folder. Set XDG_CONFIG_HOME to a folder "
            "of this user"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{file.parent} cannot be made: {error}") from error
    write_new(file, json.dumps(folders, indent=2).encode() + b"\n", ConfigError)


def trusted_modules(named: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the entries that are modules: dotted names that are not paths."""
    texts = [name for name in named if isinstance(name, str)]
    return [
        name
        for name in texts
        if all(part.isidentifier() for part in name.split("."))
        and not Path(name).exists()
    ]


def is_named(folder: Path, named: Iterable[str | os.PathLike[str]]) -> bool:
    """Return whether a folder is, or is below, one named by program or environment."""
    paths = [*named, *filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))]
    return any(folder.resolve().is_relative_to(Path(path).resolve()) for path in paths)


def why_not(folder: Path, named: Iterable[str | os.PathLike[str]]) -> str | None:
    """Return None if code of a folder may run, or else the reason why not.

    It may run if program or environment name the folder or a parent, or if the user
    trusted it and its code has not changed.
    """
    resolved = folder.resolve()
    if is_url(folder):
        return _OF_STORE
    if is_named(folder, named):
        return None
    trusted_digest = trusted_folders().get(str(resolved))
    if trusted_digest is None:
        return "this folder is not trusted"
    return (
        None
        if trusted_digest.partition("+")[0] == code_digest(resolved)
        else "it has changed since it was trusted"
    )


def may_unpickle(folder: Path, named: Iterable[str | os.PathLike[str]]) -> bool:
    """Return whether the pickles in the shards of a folder may be unpickled.

    They may if program or environment name the folder or a parent, or if the user
    trusted its pickles and its shards are the same. Without a readable record nothing
    is trusted.
    """
    if is_named(folder, named):
        return True
    try:
        trusted = once(trusted_folders)
    except ConfigError:
        return False
    if not trusted or is_url(folder):
        return False
    trusted_digest = trusted.get(real_path(folder), "")
    return "+" in trusted_digest and trusted_digest == pickles_digest(folder.resolve())
