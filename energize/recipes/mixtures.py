"""Recipes that are lists of datasets: of TRL, VeOmni and NVIDIA."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from glob import has_magic
from typing import Any, Final

from energize.core.validation import KeyPath, short
from energize.data.files import exists
from energize.data.rows import data_files
from energize.errors import DatasetNotFoundError
from energize.recipes.parts import (
    IMAGES,
    checked,
    entry_of,
    hold_out,
    interleaved,
    size_of,
)
from energize.recipes.recipe import Recipe, RecipeEntry, RecipeFormat, RecipeText


def _has_datasets(value: Any, *keys: str) -> bool:
    """Return whether content has a list of datasets, some with one of the keys."""
    rows = value.get("datasets") if isinstance(value, Mapping) else None
    return isinstance(rows, list) and any(
        isinstance(row, Mapping) and "path" in row and not row.keys().isdisjoint(keys)
        for row in rows
    )


# TRL: `DatasetMixtureConfig`, in the file of a run.

_TRL = {"split": "split_part"} | dict.fromkeys(
    ("name", "data_dir", "data_files", "columns", "fraction"), ""
)
_SLICE = re.compile(r"\s*([\w.-]+)(?:\[(-?[\d_]+%?)?:(-?[\d_]+%?)?\])?\s*")
"""A split part, and the bounds of a slice of its rows."""
_BUILDERS = ("json", "csv", "parquet", "arrow", "text", "imagefolder", "webdataset")
_COLUMNS = (
    "TRL drops the columns that an entry does not list; here the sample type follows "
    "from all columns"
)
_HOLDS = (
    "TRL draws test_split_size at random; here val has the last samples of every "
    "dataset"
)


def _read_trl(text: RecipeText) -> Recipe:
    """Return the recipe: all rows, or the first rows that fractions leave."""
    text.check_run_keys(("datasets", "streaming", "test_split_size"))
    rows = text.value["datasets"]
    datasets = [
        _trl_entries(text, ("datasets", number), row) for number, row in enumerate(rows)
    ]
    if not text.faults and any("fraction" in row for row in rows):
        datasets = _cut(text, datasets, [row.get("fraction") for row in rows])
    entries = [entry for dataset in datasets for entry in dataset]
    if "test_split_size" in text.value:
        text.note(_HOLDS)
    recipe = text.mix("blend_epochized", entries, ("datasets",))
    return hold_out(recipe, text.value.get("test_split_size") or 0)


def _trl_entries(text: RecipeText, at: KeyPath, row: Any) -> list[RecipeEntry]:
    """Return the entries of a dataset: a folder, or files."""
    if not isinstance(row, Mapping):
        return [entry_of(text, at, row, _TRL)]
    if row.get("columns"):
        text.note(_COLUMNS)
    return [
        entry
        for part, *bounds in _parts(text, (*at, "split"), row.get("split") or "train")
        for entry in _sliced(text, at, _of_part(text, at, row, part), bounds)
    ]


def _parts(text: RecipeText, at: KeyPath, split: Any) -> Iterator[Sequence[str | None]]:
    """Yield the split parts of `train[:10%]+test`, and the bounds of their slices."""
    for instruction in str(split).split("+"):
        match = _SLICE.fullmatch(instruction)
        if match is not None:
            yield match.groups()
            continue
        expected = "expected parts such as train, train[:10%] or train[100:200]+test"
        text.fault(at, f"{expected}, got {short(split)}. TRL stops here, too")


def _of_part(
    text: RecipeText, at: KeyPath, row: Mapping[str, Any], part: Any
) -> list[RecipeEntry]:
    """Return the entries of a split part: its folder, or its files."""
    files = row.get("data_files") or ""
    if isinstance(files, Mapping):
        files = files.get(checked(text, (*at, "split"), part, files)) or []
    folder = "" if row.get("path") in _BUILDERS else row.get("path") or ""
    if not files:
        folder = _configured(text, at, folder, row.get("name"))
    folder = os.path.join(folder, row.get("data_dir") or "")
    names = [files] if isinstance(files, str) else files
    paths = [path for name in names for path in _matching(text, folder, name)]
    # `datasets` calls the rows of files train, however they are named.
    keys = {**row, "split": None if files else part}
    return [entry_of(text, at, {**keys, "path": path}, _TRL) for path in paths]


def _configured(text: RecipeText, at: KeyPath, folder: str, name: Any) -> str:
    """Return the folder of a configuration; note one that is not a folder."""
    if not name or not exists(text.absolute(folder)):
        return folder
    path = os.path.join(folder, str(name))
    if not exists(text.absolute(path)):
        known = f"the configuration {short(name)} is not a folder in {folder}"
        remedy = "Write its files as data_files. TRL reads those that README.md lists"
        text.fault((*at, "name"), f"{known}. {remedy}")
        return folder
    return path


def _matching(text: RecipeText, folder: str, name: str) -> list[str]:
    """Return the files that match a pattern, or a path without one."""
    path = os.path.join(folder, name)
    if not has_magic(path):
        return [path]
    try:
        return [str(file) for file in data_files(text.absolute(path), text.format)]
    except DatasetNotFoundError:
        return [path]


def _sliced(
    text: RecipeText,
    at: KeyPath,
    entries: list[RecipeEntry],
    bounds: Sequence[str | None],
) -> list[RecipeEntry]:
    """Return entries with the rows of a slice, which counts the rows of all files."""
    if text.faults or not any(bounds):
        return entries
    total = sum(size_of(text, entry) for entry in entries)
    if text.faults:
        return entries
    low, high = (_bound(bound, total) for bound in bounds)
    start, stop = low or 0, total if high is None else high
    if start >= stop:
        text.fault((*at, "split"), f"the slice has none of {total} samples")
    return _ranged(text, entries, start, stop)


def _ranged(
    text: RecipeText, entries: list[RecipeEntry], start: int, stop: int
) -> list[RecipeEntry]:
    """Return entries with the rows from `start` to `stop` of all their rows."""
    ranged = []
    for entry in entries:
        size = size_of(text, entry)
        low, high = max(start, 0), min(stop, size)
        first = entry.keys.get("subset", {"range": [0]})["range"][0]
        if (low, high) == (0, size):
            ranged.append(entry)
        elif low < high:
            subset = {"range": [first + low, first + high]}
            ranged.append(entry._replace(keys={**entry.keys, "subset": subset}))
        start -= size
        stop -= size
    return ranged


def _bound(bound: str | None, total: int) -> int | None:
    """Return a bound as a number of rows; percentages give the nearest one.

    >>> _bound("10%", 25), _bound("-5", 25), _bound(None, 25)
    (2, 20, None)
    """
    if bound is None:
        return None
    number = int(bound.rstrip("%"))
    if bound.endswith("%"):
        number = round(number * total / 100)
    return min(max(number + total * (number < 0), 0), total)


def _cut(
    text: RecipeText, datasets: list[list[RecipeEntry]], fractions: list[Any]
) -> list[list[RecipeEntry]]:
    """Return datasets of their first rows, as many as fractions leave of all."""
    if None in fractions:
        text.fault(("datasets",), "set fraction in all or none. TRL stops here, too")
        return datasets
    shares = [Fraction(str(fraction)) for fraction in fractions]
    rows = [sum(size_of(text, entry) for entry in entries) for entries in datasets]
    total = min(size / share for size, share in zip(rows, shares, strict=True) if share)
    cut = []
    for number, (entries, share) in enumerate(zip(datasets, shares, strict=True)):
        count = round(share * total)
        if not count:
            none = f"none of {rows[number]} samples is left. Remove the entry"
            text.fault(("datasets", number, "fraction"), none)
        cut.append(_ranged(text, entries, 0, count))
    return cut


# VeOmni: sources with schedules.

_VEOMNI = (
    "sources",
    "names",
    "schedule",
    "level",
    "stopping_strategy",
    "boundary_type",
    "upstream_sharded",
)
_PIECE = ("weights", "init_weights", "end_weights")
_ROWS = {"const": 1, "changing": 2}
_STRATEGIES = ("first_exhausted", "all_exhausted", "never_exhausted")
_SCALE = "tokens_per_sample"
_IGNORES = "VeOmni ignores the key"
_ENDS = "VeOmni ends when all sources have been read; here such a mix has no end"
_FIRST = (
    "VeOmni's own loader takes the weights of the first piece of a schedule for all"
)


def _read_veomni(text: RecipeText) -> Recipe:
    """Return the recipe of sources with a schedule."""
    value = text.value
    text.check_keys((), value, _VEOMNI, _IGNORES)
    stop = value.get("stopping_strategy", _STRATEGIES[0])
    checked(text, ("stopping_strategy",), stop, _STRATEGIES)
    entries = _sources(text)
    weights = _weights(text, len(value["sources"]))
    by_tokens = value.get("level") == "token"
    plain = not by_tokens and len(value["schedule"]) == 1 and stop != _STRATEGIES[2]
    if text.faults or (plain and not isinstance(weights[0], Mapping)):
        return interleaved(text, entries, weights, stop)
    settings: dict[str, Any] = {"unit": {"field": "input_ids"}} if by_tokens else {}
    if stop == "first_exhausted":
        settings["stop"] = stop
    elif stop == "all_exhausted":
        text.note(_ENDS)
    rows = zip(entries, weights, strict=True)
    weighed = [entry._replace(keys={**entry.keys, "weight": w}) for entry, w in rows]
    return text.mix("blend", weighed, (), **settings)


def _sources(text: RecipeText) -> list[RecipeEntry]:
    """Return the entries of the sources."""
    names = text.value.get("names") or []
    sources = text.value["sources"]
    if not len({*names}) == len(names) == len(sources):
        expected = f"expected {len(sources)} names that differ, got {short(names)}"
        text.fault(("names",), f"{expected}. VeOmni stops here, too")
    entries = []
    for number, (source, name) in enumerate(zip(sources, names, strict=False)):
        entry = entry_of(text, ("sources", number), {"path": source}, {})
        keys = {**entry.keys, "name": str(name).replace("/", "-")}
        entries.append(entry._replace(keys=keys))
    return entries


def _weights(text: RecipeText, count: int) -> list[Any]:
    """Return the weight of each source: a number, or a schedule."""
    boundary = text.value.get("boundary_type", "token")
    ends = (f"init_{boundary}", f"end_{boundary}")
    scale: Any = text.options.get(_SCALE) if boundary == "token" else 1
    pieces = text.value["schedule"]
    rows = [_rows(text, number, count, ends) for number in range(len(pieces))]
    if not text.faults and scale is None and [len(row) for row in rows] != [1]:
        places = "places are tokens, and schedules count samples"
        text.fault(("schedule",), f"{places}. Set the recipe option {_SCALE!r}")
    if text.faults:
        return []
    if [len(row) for row in rows] == [1]:
        return list(rows[0][0])
    text.note(_FIRST)
    shape = "linear" if max(map(len, rows)) > 1 else "step"
    starts = [[int((piece.get(end) or 0) / scale) for end in ends] for piece in pieces]
    return [
        {"interpolation": shape, "points": _points(starts, rows, source)}
        for source in range(count)
    ]


def _points(
    starts: list[list[int]], rows: list[list[list[float]]], source: int
) -> dict[str, float]:
    """Return the points of the schedule of a source, from all pieces."""
    points = {}
    for (first, last), weights in zip(starts, rows, strict=True):
        points[str(first)] = weights[0][source]
        points[str(max(last - 1, first + 1))] = weights[-1][source]
    return points


def _rows(
    text: RecipeText, number: int, count: int, ends: tuple[str, str]
) -> list[list[float]]:
    """Return the weights of a piece of the schedule: of its start, and of its end."""
    piece = text.value["schedule"][number]
    at: KeyPath = ("schedule", number)
    text.check_keys(at, piece, ("schedule_type", *_PIECE, *ends), _IGNORES)
    form = checked(text, (*at, "schedule_type"), piece.get("schedule_type"), _ROWS)
    rows = [piece[key] for key in _PIECE if key in piece]
    if [len(row) for row in rows] != [count] * _ROWS.get(form, 1):
        text.fault(at, f"expected {count} weights. VeOmni stops here, too")
    return rows


# NVIDIA: blends of Nemotron.

_NVIDIA = {"name": "name", "weight": "weight", "split": "split_part"}
_OTHERS = {"subset": "", "text_field": ""}


def _read_nvidia(text: RecipeText) -> Recipe:
    """Return the recipe of a blend by weights."""
    text.check_keys((), text.value, ("datasets",), "Nemotron ignores the key")
    entries = []
    for number, row in enumerate(text.value["datasets"]):
        entry = entry_of(text, ("datasets", number), row, {**_NVIDIA, **_OTHERS})
        keys = {"weight": 1, **entry.keys}
        if "subset" in row:
            keys["path"] = os.path.join(keys["path"], row["subset"])
        if "text_field" in row:
            fields = {"text": row["text_field"]}
            keys |= {"sample_type": "TextSample", "field_map": fields}
        entries.append(entry._replace(keys=keys))
    return text.mix("blend", entries, ("datasets",))


def _is_nvidia(value: Any) -> bool:
    """Return whether some dataset has a key of NVIDIA's blends, or is on the Hub."""
    return _has_datasets(value, "weight", *_OTHERS) or (
        _has_datasets(value, "path") and "'hf://" in str(value["datasets"])
    )


TRL: Final = RecipeFormat(
    "TRL", lambda value: _has_datasets(value, "path"), _read_trl, IMAGES
)
NVIDIA: Final = RecipeFormat("Nemotron", _is_nvidia, _read_nvidia, IMAGES)
VEOMNI: Final = RecipeFormat(
    "VeOmni",
    lambda value: isinstance(value, Mapping) and {"sources", "schedule"} <= {*value},
    _read_veomni,
    {**IMAGES, _SCALE: "tokens of a sample on average, for the places of schedules"},
)
