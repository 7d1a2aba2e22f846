"""Recipes of LLaMA-Factory: `dataset_info.json`, the file of a run, and files of v1."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from energize.core.validation import short
from energize.data.files import path_of
from energize.errors import some
from energize.recipes.parts import (
    FIXED,
    IMAGES,
    MEDIA,
    checked,
    conversation_fields,
    entry_of,
    hold_out,
    interleaved,
    is_drawn,
    read_json,
    size_of,
    validation,
)
from energize.recipes.recipe import (
    BASE,
    IMAGE_FOLDER,
    Recipe,
    RecipeEntry,
    RecipeFormat,
    RecipeText,
)

_ELSEWHERE = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_PLACES = {"file_name", *_ELSEWHERE}
_ENTRY = {
    "num_samples": "choose",
    **dict.fromkeys((*_PLACES, "formatting", "ranking", "columns", "tags"), ""),
    **dict.fromkeys(("split", "subset", "folder", "revision", "file_sha1"), ""),
}
_ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
_MESSAGES = {"messages": "conversations"}
_DEFAULTS = {"alpaca": _ALPACA, "sharegpt": _MESSAGES, "openai": _MESSAGES}
_ANSWERS = ("chosen", "rejected")
_COLUMNS = (*_ALPACA, "history", "messages", "system", "tools", *MEDIA, *_ANSWERS)
_FIELDLESS = {
    "audios": "LLaMA-Factory places the sounds at <audio>",
    "kto_tag": "LLaMA-Factory trains KTO with the tag",
}
"""Columns without a field in any sample type, with their use in the original."""
_TAGS: Mapping[str, Sequence[str]] = {
    "role_tag": ("from", "role"),
    "content_tag": ("value", "content"),
    "user_tag": ("human", "user"),
    "assistant_tag": ("gpt", "assistant", "chatgpt", "bing", "bot", "model"),
    "observation_tag": ("observation", "tool", "tool_response", "function_response"),
    "function_tag": ("function_call", "tool_call", "tool_calls"),
    "system_tag": ("system",),
}
"""The tags, with the values that turns have without field maps."""
_STOPS = {
    "concat": "",
    "interleave_under": "first_exhausted",
    "interleave_over": "all_exhausted",
    "interleave_once": "all_exhausted_without_replacement",
}
_RUN = {
    "dataset": "names of datasets, with commas",
    "eval_dataset": "names of datasets of validation, with commas",
    "dataset_dir": "the folder of dataset_info.json",
    "media_dir": "the folder of images and videos",
    "mix_strategy": ", ".join(_STOPS),
    "interleave_probs": "shares, with commas",
    "max_samples": "how many of the first samples of every dataset are read",
    "val_size": "samples to hold out: a number, or a part",
    "mask_history": "whether only the last answer is learned",
}
_NAMED = ("dataset", "eval_dataset")
_MARKS = {"template", "cutoff_len", "dataset_dir", "finetuning_type", "stage"}
_DRAWS = (
    "LLaMA-Factory draws num_samples by the global generator, and val_size from all "
    "datasets; here samples are drawn by the data alone, and val has the last samples "
    "of every dataset"
)


def _is_described(value: Any, keys: set[str]) -> bool:
    """Return whether content is a mapping of names to mappings with some keys."""
    rows = list(value.values()) if isinstance(value, Mapping) else []
    return bool(rows) and all(
        isinstance(row, Mapping) and keys & row.keys() for row in rows
    )


def _is_run(value: Any) -> bool:
    """Return whether content is a run that names datasets."""
    named = isinstance(value, Mapping) and not value.keys().isdisjoint(_NAMED)
    return named and not _MARKS.isdisjoint(value)


def _read_info(text: RecipeText) -> Recipe:
    """Return the recipe of datasets of a `dataset_info.json`."""
    only = {"dataset": next(iter(text.value))} if len(text.value) == 1 else {}
    folder = str(path_of(str(text.file)).parent)
    return _mix(text, {**only, **text.options}, text, folder)


def _read_run(text: RecipeText) -> Recipe:
    """Return the recipe of the file of a run."""
    text.check_run_keys(_RUN)
    keys = {**text.value, **text.options}
    folder = text.absolute(os.fspath(keys.get("dataset_dir", "data")))
    file = f"{folder}/dataset_info.json"
    described = read_json(text, ("dataset_dir",), file)
    if not _is_described(described, _PLACES):
        if described is not None:
            text.fault(("dataset_dir",), f"{file} describes no datasets")
        return text.mix("blend", [], ())
    info = replace(text, value=described, file=path_of(file))
    return _mix(text, keys, info, folder)


def _mix(
    text: RecipeText, keys: Mapping[str, Any], info: RecipeText, folder: str
) -> Recipe:
    """Return the recipe of the datasets that a run names."""
    media = os.fspath(keys.get(IMAGE_FOLDER, keys.get("media_dir", folder)))
    options = {BASE: folder, IMAGE_FOLDER: text.absolute(media)}
    info = replace(info, options=options)
    if not any(map(keys.get, _NAMED)):
        expected = f"set the recipe option 'dataset' to names of {some(info.value)}"
        text.fault((), f"{expected}: {_RUN['dataset']}")
    entries, held = (_entries(text, keys, info, key) for key in _NAMED)
    strategy = keys.get("mix_strategy", "concat")
    stop = _STOPS.get(checked(text, ("mix_strategy",), strategy, _STOPS))
    size = float(keys.get("val_size") or 0)
    if size or is_drawn([*entries, *held]):
        text.note(_DRAWS)
    if stop and len(entries) > 1:
        recipe = interleaved(text, entries, keys.get("interleave_probs"), stop)
    else:
        recipe = text.mix("blend", entries, (), **FIXED)
    if not held:
        whole = sum(size_of(text, entry) for entry in entries) if size > 1 else 1
        return hold_out(recipe, size / whole)
    if size:
        excluded = "val_size and eval_dataset exclude each other"
        text.fault(("val_size",), f"{excluded}. LLaMA-Factory stops here, too")
    val = validation(text, held, ("eval_dataset",))
    return recipe.with_splits_of(val) if entries else val


def _entries(
    text: RecipeText, keys: Mapping[str, Any], info: RecipeText, key: str
) -> list[RecipeEntry]:
    """Return the entries of the datasets that a key of a run names."""
    listed = keys.get(key) or []
    if isinstance(listed, str):
        listed = [name.strip() for name in listed.split(",")]
    entries = []
    for name in dict.fromkeys(listed):
        if checked(text, (key,), name, info.value) in info.value:
            entries.append(_entry(info, name, keys))
    if len({*listed}) < len(listed):
        text.fault((key,), "a name is listed twice. LLaMA-Factory reads it once")
    if text.file != info.file:
        return [entry._replace(path=(key,)) for entry in entries]
    return entries


def _entry(text: RecipeText, name: str, run: Mapping[str, Any]) -> RecipeEntry:
    """Return the entry of a described dataset."""
    row = text.value[name]
    for key in row.keys() & {*_ELSEWHERE}:
        remedy = "Download it, and write file_name"
        text.fault((name, key), f"LLaMA-Factory downloads {row[key]}. {remedy}")
    entry = entry_of(text, (name,), {**row, "path": row.get("file_name", "")}, _ENTRY)
    formatting = row.get("formatting", "alpaca")
    checked(text, (name, "formatting"), formatting, _DEFAULTS)
    columns = row.get("columns") or _DEFAULTS.get(formatting, _ALPACA)
    effect = "LLaMA-Factory ignores it"
    text.check_keys((name, "columns"), columns, (*_COLUMNS, *_FIELDLESS), effect)
    for column in columns.keys() & _FIELDLESS.keys():
        remedy = "Name the file in a metadataset, with sample_type: CrudeSample"
        fieldless = f"no sample type has a field for {column}. {remedy}"
        text.fault((name, "columns", column), f"{fieldless}. {_FIELDLESS[column]}")
    tags = row.get("tags") or {}
    text.check_keys((name, "tags"), tags, _TAGS, effect)
    unusual = {
        tag: tags[tag]
        for tag, usual in _TAGS.items()
        if tags.get(tag) not in (None, *usual)
    }
    for tag, value in unusual.items():
        if not isinstance(value, str) or {*value} & {*",'"}:
            expected = f"expected a text without , and ', got {short(value)}"
            text.fault((name, "tags", tag), f"{expected}. Rename it in the data")
    fields = conversation_fields(
        columns,
        unusual,
        ranking=bool(row.get("ranking")),
        last=bool(run.get("mask_history")),
    )
    keys = {**entry.keys, **fields, "name": name.replace("/", "-")}
    most = run.get("max_samples")
    if most is not None and "choose" in keys:
        keys["choose"] = min(keys["choose"], most)
    elif most is not None:
        keys |= text.subset((name,), "first", most, size_of(text, entry))
    return entry._replace(keys=keys)


_V1 = {
    "size": "choose",
    "weight": "repeat",
    "split": "split_part",
    **dict.fromkeys(("source", "converter", "streaming"), ""),
}
_CONVERTERS: Mapping[str | None, Mapping[str, Any]] = {
    None: {},
    "alpaca": conversation_fields(_ALPACA),
    "sharegpt": conversation_fields(_MESSAGES),
    "pair": {
        "sample_type": "PreferenceSample",
        "field_map": {name: name for name in _ANSWERS},
    },
}
_REPLACES = (
    "LLaMA-Factory draws size and weight with replacement and without a seed, so that "
    "ranks can have different samples; here samples are drawn evenly, by the data alone"
)


def _read_v1(text: RecipeText) -> Recipe:
    """Return the recipe of a file of v1."""
    entries = []
    for name, row in text.value.items():
        entry = entry_of(text, (name,), row, _V1)
        if row.get("source") != "local":
            remedy = "Download it, and write source: local"
            text.fault((name, "source"), f"LLaMA-Factory downloads the data. {remedy}")
        converter = checked(
            text, (name, "converter"), row.get("converter"), _CONVERTERS
        )
        keys = {**entry.keys, **_CONVERTERS.get(converter, {}), "name": name}
        if {"choose", "repeat"} <= keys.keys():
            keys["choose"] = int(keys["choose"] * keys.pop("repeat"))
        entries.append(entry._replace(keys=keys))
    if is_drawn(entries):
        text.note(_REPLACES)
    return text.mix("blend", entries, (), **FIXED)


_OPTIONS = {**_RUN, **IMAGES}
_NAME = "LLaMA-Factory"
INFO: Final = RecipeFormat(
    _NAME, lambda value: _is_described(value, _PLACES), _read_info, _OPTIONS
)
RUN: Final = RecipeFormat(_NAME, _is_run, _read_run, _OPTIONS)
V1: Final = RecipeFormat(
    f"{_NAME} v1",
    lambda value: _is_described(value, {"source", "converter"}),
    _read_v1,
    IMAGES,
)
