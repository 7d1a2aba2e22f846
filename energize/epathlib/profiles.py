"""Profiles: names for stores, with what it takes to reach them, in files of the user.

Those of the Multi-Storage Client are read (`MSC_CONFIG`, or `~/.msc_config.yaml` and the other
places where it looks), and remotes of rclone.
"""

from __future__ import annotations

import configparser
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from energize.errors import ConfigError, nearest

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_RCLONE_OPTIONS = {
    "region_name": "region",
    "endpoint_url": "endpoint",
    "base_path": "base_path",
    "profile_name": "profile_name",
}
_RCLONE_CREDENTIALS = {
    "access_key": "access_key_id",
    "secret_key": "secret_access_key",
    "session_token": "session_token",
}


@dataclass(frozen=True)
class Profile:
    """A store: its kind, what reaches it, and the file that says so. Secrets are not shown."""

    name: str
    file: str
    kind: str
    options: Mapping[str, Any] = field(repr=False)
    credentials_kind: str | None = None
    credentials: Mapping[str, Any] = field(default_factory=dict, repr=False)


def find_profile(name: str) -> Profile:
    """The profile of this name; `ConfigError` naming those there are, and where it was looked."""
    known: dict[str, str] = {}
    looked: list[str] = []
    for file, profiles in _files():
        looked.append(file)
        if name in profiles:
            return _profile(name, file, profiles[name])
        known |= dict.fromkeys(profiles, file)
    where = ", ".join(looked) or "no such file was found"
    raise ConfigError(
        f"msc://{name}/: there is no profile {name!r}{nearest(name, list(known))}; known are "
        f"{', '.join(sorted(known)) or 'none'} ({where}). Name the file with MSC_CONFIG, or add "
        "the profile to ~/.msc_config.yaml"
    )


def _files() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The profiles of each file in which some may be, the first one that has a name being right."""
    main = next((path for path in _msc_places() if path.is_file()), None)
    if main is not None:
        document = _document(main)
        yield str(main), _section(document, "profiles", main)
        for each in document.get("include") or ():
            included = main.parent / str(each)
            yield str(included), _section(_document(included), "profiles", included)
    remotes = next((path for path in _rclone_places() if path.is_file()), None)
    if remotes is not None:
        yield str(remotes), _rclone(remotes)


def _msc_places() -> Iterator[Path]:
    if given := os.environ.get("MSC_CONFIG"):
        yield Path(given)
    home = Path.home()
    folders = [home / ".config" / "msc", *_xdg_folders("msc")]
    if own := os.environ.get("XDG_CONFIG_HOME"):
        folders.insert(0, Path(own) / "msc")
    for stem in (home / ".msc_config", *(folder / "config" for folder in folders)):
        yield stem.with_name(f"{stem.name}.yaml")
        yield stem.with_name(f"{stem.name}.json")
    yield Path("/etc/msc_config.yaml")
    yield Path("/etc/msc_config.json")


def _xdg_folders(name: str) -> list[Path]:
    listed = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [Path(each) / name for each in listed.split(":") if each]


def _rclone_places() -> Iterator[Path]:
    if own := os.environ.get("XDG_CONFIG_HOME"):
        yield Path(own) / "rclone" / "rclone.conf"
    yield Path("/etc/rclone.conf")
    yield Path.home() / ".config" / "rclone" / "rclone.conf"
    yield Path.home() / ".rclone.conf"


def _document(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: profiles cannot be read: {error}") from error
    if document is not None and not isinstance(document, dict):
        raise ConfigError(f"{path}: expected a mapping with `profiles`, got {document!r:.80}")
    return document or {}


def _section(parent: Mapping[str, Any], name: str, where: Path | str) -> Mapping[str, Any]:
    section = parent.get(name) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{where}: `{name}` is a mapping, got a {type(section).__name__}")
    return section


def _rclone(path: Path) -> Mapping[str, Any]:
    """Remotes of rclone in the words of the Multi-Storage Client."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: remotes cannot be read: {error}") from error
    return {name: _remote(parser[name]) for name in parser.sections()}


def _remote(section: configparser.SectionProxy) -> dict[str, Any]:
    options = {
        ours: section[theirs] for ours, theirs in _RCLONE_OPTIONS.items() if theirs in section
    }
    secrets = {
        ours: section[theirs] for ours, theirs in _RCLONE_CREDENTIALS.items() if theirs in section
    }
    profile: dict[str, Any] = {
        "storage_provider": {"type": section.get("type", ""), "options": options}
    }
    if "access_key" in secrets:
        profile["credentials_provider"] = {"type": "S3Credentials", "options": secrets}
    return profile


def _profile(name: str, file: str, content: Any) -> Profile:
    where = f"{file}: profile {name!r}"
    if not isinstance(content, dict):
        raise ConfigError(f"{where} is a mapping, got {content!r:.80}")
    storage = _section(content, "storage_provider", where)
    secrets = _section(content, "credentials_provider", where)
    if not storage.get("type"):
        raise ConfigError(
            f"{where} has no `storage_provider` with a `type`; bundles and profiles made of others "
            "are not read here"
        )
    return Profile(
        name=name,
        file=file,
        kind=str(storage["type"]),
        options=_expanded(_section(storage, "options", where), where),
        credentials_kind=str(secrets["type"]) if secrets.get("type") else None,
        credentials=_expanded(_section(secrets, "options", where), where),
    )


def _expanded(value: Any, where: str) -> Any:
    """`value` with `$VAR` and `${VAR}` in its texts replaced by what the environment says."""
    if isinstance(value, dict):
        return {key: _expanded(each, where) for key, each in value.items()}
    if isinstance(value, list):
        return [_expanded(each, where) for each in value]
    if not isinstance(value, str):
        return value
    missing = [a or b for a, b in _VARIABLE.findall(value) if (a or b) not in os.environ]
    if missing:
        raise ConfigError(f"{where} needs the environment variable {missing[0]}, which is not set")
    return _VARIABLE.sub(lambda match: os.environ[match[1] or match[2]], value)
