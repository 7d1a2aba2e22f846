"""Code of the user, which is imported because the command line names it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from energize.errors import ConfigError, nearest


def imported(name: str, option: str) -> ModuleType:
    """The module of that name, or the Python file at that path; the working folder is looked in.

    Raises `ConfigError` that names the `option` for one that cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return _of_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except Exception as reason:  # whatever the code of a user raises
        raise ConfigError(
            f"{option}: {name!r} cannot be imported: {type(reason).__name__}: {reason}"
        ) from reason


def object_named(text: str, option: str) -> Any:
    """What MODULE:NAME, or FILE.py:NAME, names; `ConfigError` when there is no such thing."""
    module_name, colon, name = text.rpartition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{option}: expected MODULE:NAME or FILE.py:NAME, got {text!r}")
    found: Any = imported(module_name, option)
    if not hasattr(found, name):
        known = [each for each in vars(found) if not each.startswith("_")]
        raise ConfigError(f"{option}: {module_name} has no {name!r}{nearest(name, known)}")
    return getattr(found, name)


def _of_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
