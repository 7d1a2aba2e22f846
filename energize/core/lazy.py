"""Libraries that are imported when they are first used.

Importing torch takes longer than anything that commands such as `energize plan` do, and
the others are for few of them. Modules that need one to define classes import it
themselves.
"""

from __future__ import annotations

import importlib
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from energize.errors import ConfigError

__all__ = [
    "PIL",
    "fsspec",
    "is_instance_of",
    "optional_module",
    "torch",
    "webdataset",
    "yaml",
]


class _LateModule(ModuleType):
    """Stands for a module of that name, and has its attributes."""

    def __getattr__(self, name: str) -> Any:
        module = import_module(self.__name__)
        try:
            value = getattr(module, name)
        except AttributeError:
            if name.startswith("_"):
                raise
            value = import_module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import fsspec
    import fsspec.utils
    import PIL
    import PIL.Image
    import torch
    import torch.distributed
    import torch.multiprocessing
    import torch.utils.data
    import webdataset
    import yaml

else:
    PIL = _LateModule("PIL")
    fsspec = _LateModule("fsspec")
    torch = _LateModule("torch")
    webdataset = _LateModule("webdataset")
    yaml = _LateModule("yaml")


# Libraries that are only needed for some things.


def optional_module(name: str, install: str, purpose: str) -> Any:
    """Import a module; `ConfigError` with an install command if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        raise ConfigError(
            f"{purpose} needs {library}, which cannot be imported ({error}). Install "
            f"it with: pip install {install!r}"
        ) from error


def is_instance_of(value: object, module: str, name: str) -> bool:
    """Return whether `value` is an instance of `module.name`, without importing the
    module for it.
    """
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and isinstance(value, cls)
