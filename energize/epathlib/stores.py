"""The file systems of fsspec that paths and profiles mean."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from energize.epathlib.profiles import Profile, find_profile
from energize.errors import ConfigError, DatasetError, EnergizeError
from energize.late import fsspec

_log = logging.getLogger("energize")

_S3 = ("s3", "s8k")
_S3_OPTIONS = ("base_path", "endpoint_url", "profile_name", "region_name", "signature_version")
_SECRETS = {"key": "access_key", "secret": "secret_key", "token": "session_token"}
_EXTRAS = {"s3": "energize[s3]", "s3a": "energize[s3]", "http": "aiohttp", "https": "aiohttp"}


def file_system(protocol: str, **options: Any) -> Any:
    """The file system of a protocol; one object for equal options within a process.

    What lies in a folder is asked anew each time. Raises `ConfigError` for unknown protocols, and
    naming what to install.
    """
    try:
        return fsspec.filesystem(protocol, use_listings_cache=False, **options)
    except ImportError as error:
        install = _EXTRAS.get(protocol)
        hint = f"pip install {install!r}" if install else str(error)
        raise ConfigError(
            f"paths of {protocol}:// need another library ({error}): {hint}"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"paths of {protocol}:// are not known: {error}; known are local paths, file://, "
            "msc://PROFILE/, dss://, s3://, http(s):// and the other protocols of fsspec"
        ) from error


def profile_store(name: str) -> tuple[Any, str]:
    """The file system of a profile, and the path in it that `msc://name/` means."""
    profile = find_profile(name)
    base = str(profile.options.get("base_path") or "")
    if profile.kind == "file":
        return file_system("file"), base or "/"
    if profile.kind not in _S3:
        raise ConfigError(
            f"{profile.file}: profile {name!r} is of the type {profile.kind!r}, which is not read "
            f"through msc:// here, only s3, s8k and file; fsspec may have a protocol for it, such "
            "as gs://BUCKET/PATH"
        )
    return file_system("s3", **_s3_options(profile)), base


def _s3_options(profile: Profile) -> dict[str, Any]:
    if profile.credentials_kind not in (None, "S3Credentials"):
        raise ConfigError(
            f"{profile.file}: profile {profile.name!r} has credentials of the type "
            f"{profile.credentials_kind!r}; known is S3Credentials, and without any those of the "
            "environment and of ~/.aws are taken"
        )
    given = profile.options
    unused = [name for name in given if name not in _S3_OPTIONS]
    if unused:
        _log.info("profile %s: %s have no use here", profile.name, ", ".join(unused))
    client = {name: given[name] for name in ("endpoint_url", "region_name") if given.get(name)}
    options: dict[str, Any] = {
        ours: profile.credentials[theirs]
        for ours, theirs in _SECRETS.items()
        if profile.credentials.get(theirs)
    }
    if given.get("profile_name"):
        options["profile"] = given["profile_name"]
    if given.get("signature_version") == "UNSIGNED":
        options["anon"] = True
    return options | ({"client_kwargs": client} if client else {})


@contextmanager
def reaching(path: object) -> Iterator[None]:
    """Errors inside the block name `path`; those of a store's own library become `DatasetError`."""
    try:
        yield
    except EnergizeError:
        raise
    except OSError as error:
        plain = type(error) in (OSError, FileNotFoundError, PermissionError, TimeoutError)
        if error.filename is not None or not plain or str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:
        raise DatasetError(
            f"{path} cannot be reached: {type(error).__name__}: {error}; look at the address and "
            "the credentials of its profile or environment"
        ) from error
