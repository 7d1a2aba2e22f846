"""Recipes of ms-swift: strings of datasets in the file of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from energize.core.validation import KeyPath, parse_json
from energize.recipes.parts import (
    FIXED,
    IMAGES,
    checked,
    conversation_fields,
    entry_of,
    hold_out,
    interleaved,
    is_drawn,
    read_json,
    validation,
)
from energize.recipes.recipe import Recipe, RecipeEntry, RecipeFormat, RecipeText

_RUN = {
    "dataset": "datasets, as path#number",
    "val_dataset": "datasets of validation, as path#number",
    "interleave_prob": "a share for each dataset",
    "stopping_strategy": "first_exhausted or all_exhausted",
    "split_dataset_ratio": "the part of the samples to hold out",
    "columns": "the name of each column, as JSON",
    "custom_dataset_info": "JSON files of datasets",
}
_MARKS = {*_RUN} - {"dataset", "columns"}
_OF_OTHERS = {"cutoff_len", "dataset_dir", "finetuning_type", "stage"}
"""Keys of a run of LLaMA-Factory."""
_INFO = ("dataset_path", "columns", "ms_dataset_id", "hf_dataset_id", "subsets", "tags")
_NAMES = {
    "conversations": "messages",
    "instruction": "prompt",
    "output": "response",
    "image": "images",
    "video": "videos",
}
"""Names of columns that ms-swift takes for others."""
_DRAWS = (
    "ms-swift draws samples by the seed of the run; here the draw depends on the data "
    "alone, and val has the last samples of every dataset"
)


def _is_run(value: Any) -> bool:
    """Return whether content is a run that lists datasets as text."""
    named = isinstance(value, Mapping) and "dataset" in value
    return (named and _OF_OTHERS.isdisjoint(value)) and (
        isinstance(value["dataset"], list) or not _MARKS.isdisjoint(value)
    )


def _read_run(text: RecipeText) -> Recipe:
    """Return the recipe of the file of a run."""
    text.check_run_keys(_RUN)
    keys = {**text.value, **text.options}
    entries, held = (_entries(text, keys, key) for key in ("dataset", "val_dataset"))
    if "split_dataset_ratio" in keys or is_drawn([*entries, *held]):
        text.note(_DRAWS)
    shares = keys.get("interleave_prob")
    if shares is None:
        recipe = text.mix("blend", entries, ("dataset",), **FIXED)
    else:
        stop = keys.get("stopping_strategy", "first_exhausted")
        stops = ("first_exhausted", "all_exhausted")
        checked(text, ("stopping_strategy",), stop, stops)
        recipe = interleaved(text, entries, shares, stop)
    if held:
        return recipe.with_splits_of(validation(text, held, ("val_dataset",)))
    return hold_out(recipe, float(keys.get("split_dataset_ratio") or 0))


def _entries(
    text: RecipeText, keys: Mapping[str, Any], key: str
) -> Sequence[RecipeEntry]:
    """Return the entries of the texts of a key of a run."""
    listed = keys.get(key) or []
    names = listed.split() if isinstance(listed, str) else listed
    described = _described(text, keys.get("custom_dataset_info") or [])
    columns = keys.get("columns") or {}
    columns = parse_json(columns) if isinstance(columns, str) else columns
    entries = []
    for number, name in enumerate(names):
        entry = _entry(text, (key, number), str(name))
        renamed = {**described.get(entry.keys.get("path", ""), {}), **columns}
        entries.append(_with_columns(entry, renamed))
    return entries


_ANSWERED = {"messages", "response"}


def _with_columns(entry: RecipeEntry, columns: Mapping[str, str]) -> RecipeEntry:
    """Return an entry with a field map, if its columns have names for the answer."""
    by_part = {_NAMES.get(part, part): column for column, part in columns.items()}
    if by_part.keys().isdisjoint(_ANSWERED):
        return entry
    return entry._replace(keys={**entry.keys, **conversation_fields(by_part)})


def _described(text: RecipeText, names: Any) -> Mapping[str, Mapping[str, str]]:
    """Return the columns of each path that files of datasets describe."""
    columns = {}
    for name in [names] if isinstance(names, str) else names:
        at: KeyPath = ("custom_dataset_info",)
        for row in read_json(text, at, name) or []:
            text.check_keys(at, row, _INFO, "ms-swift stops here, too")
            path = os.path.join(os.path.dirname(name), row.get("dataset_path", ""))
            columns[text.absolute(path)] = row.get("columns") or {}
    return columns


def _entry(text: RecipeText, at: KeyPath, name: str) -> RecipeEntry:
    """Return the entry of a text such as `path:subset#1000`."""
    path, marked, size = name.rpartition("#")
    if not marked:
        path = name
    if marked and not size.isdigit():
        text.fault(at, f"expected a number after #, got {name}. ms-swift stops, too")
    entry = entry_of(text, at, {"path": path.rpartition("::")[2].replace(":", "/")}, {})
    if marked and size.isdigit():
        entry = entry._replace(keys={**entry.keys, "choose": int(size)})
    return entry


SWIFT: Final = RecipeFormat("ms-swift", _is_run, _read_run, {**_RUN, **IMAGES})
