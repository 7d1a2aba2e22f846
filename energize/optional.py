"""Libraries that are only needed for some things."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from energize.errors import ConfigError


def optional_module(name: str, install: str, purpose: str) -> Any:
    """The module `name`; `ConfigError` saying what `pip install` needs where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        raise ConfigError(
            f"{purpose} needs {library}, which cannot be imported ({error}); install it with: "
            f"pip install {install!r}"
        ) from error


def is_instance_of(value: object, module: str, name: str) -> bool:
    """Whether `value` is an instance of `module.name`, without importing the module for it."""
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and isinstance(value, cls)
