"""The formats of mixture files."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from energize.core import limits
from energize.data.files import files_at
from energize.data.media import kind_by_name
from energize.recipes.internvl import EAGLE, INTERNVL
from energize.recipes.llamafactory import INFO, RUN, V1
from energize.recipes.llava import LLAVA
from energize.recipes.mixtures import NVIDIA, TRL, VEOMNI
from energize.recipes.qwen import QWEN
from energize.recipes.recipe import RecipeFormat
from energize.recipes.swift import SWIFT

FORMATS: Final = (
    LLAVA,
    EAGLE,
    INTERNVL,
    QWEN,
    INFO,
    V1,
    SWIFT,
    RUN,
    NVIDIA,
    TRL,
    VEOMNI,
)
"""The formats, in the order in which they are tried."""


def format_of(value: Any) -> RecipeFormat | None:
    """Return the format of parsed content; None if it is not a recipe.

    Args:
        value: The content of a file.

    Example:
        >>> format_of({"datasets": [{"json_path": "a.json"}]}).name
        'LLaVA-NeXT'
    """
    return next((entry for entry in FORMATS if entry.recognises(value)), None)


def is_recipe(file: Path) -> bool:
    """Return whether a `.json` file is a recipe, by its content.

    Args:
        file: A file; larger ones than `limits.YAML_BYTES` are data.
    """
    location = str(file)
    if file.suffix != ".json":
        return False
    try:
        files = files_at(file)
        if files.size(location) > limits.YAML_BYTES:
            return False
        content = files.read(location)
        if not content.removeprefix(BOM_UTF8).lstrip().startswith(b"{"):
            return False
        value = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return False
    return format_of(value) is not None and not _names_media(value)


def _names_media(value: Mapping[str, Any]) -> bool:
    """Return whether entries name images or videos, as rows by key do."""
    entries = [entry for entry in value.values() if isinstance(entry, Mapping)]
    texts = [text for entry in entries for text in entry.values()]
    return any(isinstance(text, str) and kind_by_name(text) for text in texts)
