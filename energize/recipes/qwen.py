"""Recipes of Qwen-VL's finetuning: a dictionary of datasets, chosen by names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from energize.core.validation import KeyPath, short
from energize.data.documents import PACKED
from energize.data.files import files_at
from energize.errors import nearest, some
from energize.recipes.recipe import (
    IMAGE_FOLDER,
    Recipe,
    RecipeEntry,
    RecipeFormat,
    RecipeText,
)

_USE = "dataset_use"
_KEYS = ("annotation_path", "data_path")
_RENAMED = {"path": "annotation_path", IMAGE_FOLDER: "data_path"}
_RATE = re.compile(r"(.*?)(?:%(\d+))?")
_PACKS = re.compile(rb"\s*\[\s*[\[\]]")
_HEAD = 4096
_RANDOM = (
    "Qwen-VL draws the samples of NAME%N without a seed, on each rank; here the draw "
    "depends on the data alone"
)


def _recognises(value: Any) -> bool:
    """Return whether content has entries with an `annotation_path`."""
    entries = value.values() if isinstance(value, Mapping) else ()
    return any(
        isinstance(entry, Mapping) and "annotation_path" in entry for entry in entries
    )


def _read(text: RecipeText) -> Recipe:
    """Return the recipe: the chosen entries, each once in an epoch."""
    entries = []
    for use in str(text.options.get(_USE, "")).split(","):
        match = _RATE.fullmatch(use.strip())
        name = "" if match is None else match[1]
        if match is None or name not in text.value:
            hint = nearest(name, list(text.value)) or "."
            text.fault(
                (),
                f"the recipe option {_USE!r} must be names of the file, such as "
                f"'NAME%50,NAME', got {short(use)}{hint} Names: {some(text.value)}",
            )
            continue
        if text.is_entry((name,), text.value[name], _KEYS, ()):
            keys = _entry(text, name, int(match[2] or 100))
            named = {"name": use.strip(), **keys}
            entries.append(RecipeEntry(named, (name,), _RENAMED))
    return text.mix("blend_epochized", entries, ())


def _entry(text: RecipeText, name: str, rate: int) -> dict[str, Any]:
    """Return an entry of the metadataset; an empty one for an unreadable file."""
    entry = text.value[name]
    at: KeyPath = (name, "annotation_path")
    file = text.existing(at, str(entry["annotation_path"]))
    if file is None or _has_packs(text, at, file):
        return {}
    folder = text.located((name, "data_path"), str(entry["data_path"]))
    keys: dict[str, Any] = {"path": str(file), IMAGE_FOLDER: folder}
    if rate < 100:
        text.note(_RANDOM)
        total = text.count(at, file) or 0
        keys |= text.subset(at, "random", int(total * (rate / 100.0)), total)
    return keys


def _has_packs(text: RecipeText, path: KeyPath, file: Path) -> bool:
    """Return whether a file has lists of samples; note it as a fault."""
    files = files_at(file)
    location = str(file)
    head = files.read(location, 0, min(_HEAD, files.size(location)))
    is_line = file.suffix == ".jsonl" and head.lstrip().startswith(b"[")
    if not is_line and _PACKS.match(head) is None:
        return False
    text.fault(
        path,
        f"{short(file.name)} {PACKED}. Qwen-VL reads packs with --data_packing True, "
        "and fails without it",
    )
    return True


QWEN: Final = RecipeFormat(
    "Qwen-VL",
    _recognises,
    _read,
    {_USE: "names of the file, as --dataset_use: 'NAME%50,NAME'"},
)
