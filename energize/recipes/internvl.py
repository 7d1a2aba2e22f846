"""Recipes of InternVL and of Eagle: JSON files of annotation files with repetitions."""

from __future__ import annotations

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

_RESAMPLING = "use_data_resampling"
_MODEL_KEYS = (
    "data_augment",
    "dynamic_image_size",
    "max_dynamic_patch",
    "max_dynamic_tiles",
)
_EAGLE_KEYS = ("weight", "modality", "modility")
_KEYS = ("repeat_time", "length", *_MODEL_KEYS, *_EAGLE_KEYS)
_RENAMED = {
    "path": "annotation",
    IMAGE_FOLDER: "root",
    "subset": "repeat_time",
    "repetitions": "repeat_time",
}
_MODEL_NOTE = "data_augment and max_dynamic_patch are left to the encoder"
_WEIGHT_NOTE = "weight is not read by Eagle's loader, nor here"
_RANDOM_NOTE = (
    "Eagle draws the samples of a repeat_time below 1 by the seed 10086; here the draw "
    "depends on the data alone"
)
_RESAMPLING_NOTE = (
    "weights are the square roots of the numbers of samples, and the mix has no end"
)


def _entries(value: Any) -> list[Mapping[str, Any]]:
    """Return the entries of content that may be a recipe."""
    values = value.values() if isinstance(value, Mapping) else ()
    return [entry for entry in values if isinstance(entry, Mapping)]


def _is_eagle(value: Any) -> bool:
    """Return whether content has the keys of Eagle, or was prepared by it."""
    return _is_internvl(value) and any(
        not entry.keys().isdisjoint(_EAGLE_KEYS)
        or str(entry.get("annotation")).endswith(".parquet")
        for entry in _entries(value)
    )


def _is_internvl(value: Any) -> bool:
    """Return whether content has entries with an annotation file and a root."""
    return any({"annotation", "root"} <= entry.keys() for entry in _entries(value))


def _read(text: RecipeText) -> Recipe:
    """Return the recipe: entries with repetitions, or weights by size."""
    resampling = bool(text.options.get(_RESAMPLING))
    entries = []
    for name, entry in text.value.items():
        if text.is_entry((name,), entry, ("annotation", "root"), _KEYS):
            keys = _entry(text, name, entry)
            label = {"name": name.replace("/", "_")}
            whole = {**label, "blend_epochized": [keys]} if resampling else label | keys
            entries.append(RecipeEntry(whole, (name,), _RENAMED))
    if not resampling:
        return text.mix("blend_epochized", entries, ())
    text.note(_RESAMPLING_NOTE)
    return text.mix("blend", entries, (), weights="sqrt_size")


def _entry(text: RecipeText, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of the metadataset; an empty one for a missing file."""
    if any(entry.get(key) for key in _MODEL_KEYS):
        text.note(_MODEL_NOTE)
    if "weight" in entry:
        text.note(_WEIGHT_NOTE)
    file = text.existing((name, "annotation"), str(entry["annotation"]))
    if file is None:
        return {}
    keys = {"path": str(file), **_amount(text, (name, "repeat_time"), entry, file)}
    if entry["root"] is not None:
        keys[IMAGE_FOLDER] = text.located((name, "root"), str(entry["root"]))
    return keys


def _amount(
    text: RecipeText, path: KeyPath, entry: Mapping[str, Any], file: Path
) -> dict[str, Any]:
    """Return how many samples of an entry are read, and how often."""
    times = entry.get("repeat_time", 1)
    if not isinstance(times, int | float) or times <= 0:
        text.fault(path, f"expected a number above 0, got {short(times)}")
        return {}
    if times < 1:
        part = "first"
        if text.format == EAGLE.name:
            part = "random"
            text.note(_RANDOM_NOTE)
        total = text.count(path, file) or 0
        return text.subset(path, part, int(total * times), total)
    if times > 1 and not isinstance(times, int):
        text.fault(
            path,
            f"a repeat_time above 1 must be a whole number, got {times}. Write the "
            f"entry twice, as a whole and as a part. {text.format} stops here, too",
        )
    return {} if times == 1 else {"repetitions": times}


EAGLE: Final = RecipeFormat("Eagle", _is_eagle, _read, {})
INTERNVL: Final = RecipeFormat(
    "InternVL",
    _is_internvl,
    _read,
    {_RESAMPLING: "whether weights are by the root of sizes, as its own option"},
)
