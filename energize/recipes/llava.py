"""Recipes of LLaVA-NeXT: YAML files of annotation files with sampling strategies."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from energize.core.validation import KeyPath, short
from energize.recipes.recipe import (
    IMAGE_FOLDER,
    Recipe,
    RecipeEntry,
    RecipeFormat,
    RecipeText,
)

_STRATEGY = re.compile(r"\s*(first|end|random)\s*:\s*(\d+)\s*(%?)\s*")
_BRACES = re.compile(r"(.*)\{([^{}]*,[^{}]*)\}\.json")
_RANDOM = (
    "LLaVA-NeXT draws the samples of random: without a seed, so that ranks can have "
    "different ones; here the draw depends on the data alone"
)
_OTHER_STRATEGY = "LLaVA-NeXT reads the whole file then"


def _recognises(value: Any) -> bool:
    """Return whether content has a list of datasets, some with a `json_path`."""
    datasets = value.get("datasets") if isinstance(value, Mapping) else None
    return isinstance(datasets, list) and any(
        isinstance(entry, Mapping) and "json_path" in entry for entry in datasets
    )


def _read(text: RecipeText) -> Recipe:
    """Return the recipe: all entries, each once in an epoch, shuffled together."""
    text.is_entry((), text.value, ("datasets",), ())
    entries = []
    for number, entry in enumerate(text.value["datasets"]):
        path: KeyPath = ("datasets", number)
        if text.is_entry(path, entry, ("json_path",), ("sampling_strategy",)):
            renamed = {"path": "json_path", "subset": "sampling_strategy"}
            entries.append(RecipeEntry(_entry(text, path, entry), path, renamed))
    return text.mix("blend_epochized", entries, ("datasets",))


def _entry(text: RecipeText, path: KeyPath, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of the metadataset; an empty one for a missing file."""
    file = text.existing((*path, "json_path"), str(entry["json_path"]))
    if file is None:
        return {}
    keys: dict[str, Any] = {"path": str(file)}
    if text.images is not None:
        keys[IMAGE_FOLDER] = text.images
    strategy = entry.get("sampling_strategy", "all")
    if strategy != "all":
        keys |= _subset(text, (*path, "sampling_strategy"), strategy, file)
    return keys


def _subset(
    text: RecipeText, path: KeyPath, strategy: Any, file: Path
) -> dict[str, Any]:
    """Return the `subset` of a sampling strategy; none if it takes all samples."""
    match = _STRATEGY.fullmatch(strategy) if isinstance(strategy, str) else None
    if match is None:
        expected = "expected all, or first:N, end:N or random:N, N a whole number or "
        text.fault(
            path, f"{expected}percentage, got {short(strategy)}. {_OTHER_STRATEGY}"
        )
        return {}
    total = text.count(path, file)
    if total is None:
        return {}
    amount = int(match[2])
    count = -(-amount * total // 100) if match[3] else amount
    if match[1] == "random":
        text.note(_RANDOM)
    return text.subset(path, match[1], count, total)


def brace_list(path: str) -> dict[str, Any] | None:
    """Return `/data/{a,b}.json`, as LLaVA takes it, as the content of a recipe.

    Args:
        path: A path.

    Returns:
        The content; None for another path.

    Example:
        >>> brace_list("/data/{a,b}.json")["datasets"]
        [{'json_path': '/data/a.json'}, {'json_path': '/data/b.json'}]
    """
    match = _BRACES.fullmatch(path)
    if match is None or os.path.exists(path):
        return None
    names = (f"{match[1]}{name}.json" for name in match[2].split(","))
    return {"datasets": [{"json_path": name} for name in names]}


LLAVA: Final = RecipeFormat(
    "LLaVA-NeXT",
    _recognises,
    _read,
    {IMAGE_FOLDER: "the folder of the images, as --image_folder"},
)
