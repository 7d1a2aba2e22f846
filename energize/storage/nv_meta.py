"""The `.nv-meta` folder of a prepared dataset: what its files say, read and written.

    .info.json     how many samples each shard has (older: .info.yaml)
    split.yaml     which shards make up train, val, test (or split.json)
    dataset.yaml   which type the samples have, and which parts its fields come from

The files are those of Megatron-Energon; a folder prepared by either library is read by both.
Nothing that they name is imported or run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from energize.errors import DatasetError, UntrustedCodeError
from energize.storage.bounded import read_bounded
from energize.storage.braces import collapse, escaped, expand
from energize.storage.nv_meta_files import (
    META_FOLDER,
    Document,
    find_document,
    info_document,
    is_inside,
)

__all__ = [
    "CRUDE",
    "FORMAT_VERSION",
    "META_FOLDER",
    "DatasetConfig",
    "Info",
    "Splits",
    "dump_dataset_yaml",
    "dump_info",
    "dump_splits",
    "read_dataset_yaml",
    "read_info",
    "read_splits",
    "where_listed",
]

FORMAT_VERSION = "7.4.1"
"""The release of Megatron-Energon whose format is written; `.info.json` has room for this only."""

CRUDE = "CrudeWebdataset"
"""What stands in place of a sample type when samples are plain dicts of their parts."""

_MOST_SAMPLES = 2**40
"""Of a shard; a sample takes a kilobyte of tar at least."""

_LOOKED_THROUGH = 100_000
"""Bytes of a split file that is looked through for the line of a shard."""

_TOLD = 10

_TYPE_KEYS = ("__module__", "__class__")
_OPTIONS = (
    "max_samples_per_sequence",
    "parallel_shard_iters",
    "part_filter",
    "shuffle_over_epochs",
    "split_config",
)
_CODE_KEYS = ("sample_loader", "part_filter")
_GENERIC = ("StandardWebdatasetFactory", "DefaultGenericWebdatasetFactory")


@dataclass(frozen=True, slots=True)
class Info:
    """Samples per shard, in the order of the shards; names are relative to the dataset folder."""

    shard_counts: dict[str, int]
    energon_version: str | None = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Splits:
    """The shards of each split part, and what is left out: `shard.tar` or `shard.tar/key`.

    Brace patterns are expanded.
    """

    parts: dict[str, tuple[str, ...]]
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DatasetConfig:
    """The type of the samples, by name, and how its fields are filled.

    `sample_class` is `CRUDE` for samples that stay plain dicts. `field_map` says for each field
    from which part it comes ("jpg,png", "json[caption]"), None when the file does not say.
    `options` are settings of the order of reading. `code` is what the file says of functions that
    make samples, `sample_loader` and `part_filter`: names of files in the folder, nothing of which
    is run here; or a list of parts.
    """

    sample_module: str
    sample_class: str
    field_map: dict[str, str] | None = None
    subflavors: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)


def read_info(path: str | Path) -> Info:
    """What `.info.json`, or an older `.info.yaml`, of the dataset folder `path` says.

    Raises `DatasetNotFoundError` when there is no such folder, `NotPreparedError` when it has not
    been prepared, `DatasetError` when the file is wrong.
    """
    document = info_document(Path(path))
    document.check_keys(("shard_counts", "energon_version"), required=("shard_counts",))
    counts = document.mapping("shard_counts")
    for shard, count in counts.items():
        if not is_inside(shard):
            raise document.error("shard_counts", shard, "names of files in this folder")
        if type(count) is not int or not 0 <= count < _MOST_SAMPLES:
            raise document.error(f"shard_counts[{shard!r}]", count, "a number of samples")
    version = document.content.get("energon_version")
    return Info(counts, None if version is None else str(version))


def dump_info(info: Info) -> str:
    """The text of `.info.json`."""
    version = {} if info.energon_version is None else {"energon_version": info.energon_version}
    return json.dumps({**version, "shard_counts": info.shard_counts}, indent=2)


def read_splits(path: str | Path, name: str = "split.yaml") -> Splits:
    """The splits of the dataset folder `path`, as its file `name` in `.nv-meta` gives them.

    Where there is no `split.yaml`, `split.json` is taken. Raises as `read_info` does.
    """
    document = _split_document(Path(path), name)
    document.check_keys(("split_parts", "exclude"), required=("split_parts",))
    parts = document.mapping("split_parts")
    return Splits(
        {part: _expanded(document, f"split_parts.{part}", parts[part]) for part in parts},
        _expanded(document, "exclude", document.content.get("exclude") or []),
    )


def _split_document(path: Path, name: str) -> Document:
    return find_document(path, _split_names(name), "the split file", ".yaml or .json")


def _split_names(name: str) -> tuple[str, ...]:
    return (name, "split.json") if name == "split.yaml" else (name,)


def where_listed(path: Path, name: str, part: str, shard: str) -> str:
    """Where the split file of a folder lists a shard of a part, for messages: the file with the
    line of the last entry, and the other lines.
    """
    names = _split_names(name)
    file = next(each for each in (path / META_FOLDER / one for one in names) if each.exists())
    try:
        text = read_bounded(file)
        if len(text) > _LOOKED_THROUGH:
            return str(file)
        node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        for key in ("split_parts", part):
            node = next(value for name, value in node.value if name.value == key)
        lines = [each.start_mark.line + 1 for each in node.value if shard in expand([each.value])]
    except (OSError, StopIteration, yaml.YAMLError):  # JSON that is no YAML, or just changed
        return str(file)
    lines = lines[-_TOLD:]
    before = ", ".join(map(str, lines[:-1]))
    return f"{file}:{lines[-1]}{f' (and line {before})' if before else ''}" if lines else str(file)


def dump_splits(splits: Splits, name: str = "split.yaml") -> str:
    """The text of the split file, YAML or JSON by its name; runs of shards become patterns."""
    content = {
        "split_parts": {part: collapse(shards) for part, shards in splits.parts.items()},
        "exclude": [escaped(each) for each in splits.exclude],
    }
    if name.endswith(".json"):
        return json.dumps(content, indent=2)
    return _yaml(content)


def read_dataset_yaml(
    path: str | Path, name: str = "dataset.yaml", *, code: bool = False
) -> DatasetConfig:
    """What the file `name` in `.nv-meta` of the dataset folder `path` says about its samples.

    Raises as `read_info` does, and `UntrustedCodeError` when the file asks for code of the data
    folder to be run, unless `code`: who gives it sees to what `code` of the answer names.
    """
    document = find_document(Path(path), (name,), "the dataset file", ".yaml")
    content = document.content
    if not code:
        _refuse_code(document)
    known = dict.fromkeys((*_OPTIONS, *_CODE_KEYS))
    document.check_keys((*_TYPE_KEYS, "sample_type", "field_map", "subflavors", *known))
    _check_code(document)
    _check_options(document)
    module, class_name = _sample_type(document)
    field_map = document.mapping("field_map") if content.get("field_map") is not None else None
    for target, source in (field_map or {}).items():
        if not isinstance(source, str) or not source:
            raise document.error(f"field_map.{target}", source, "a part such as 'jpg,png'")
    return DatasetConfig(
        module,
        class_name,
        field_map,
        document.mapping("subflavors") if content.get("subflavors") is not None else {},
        {key: content[key] for key in _OPTIONS if key in content},
        {key: content[key] for key in _CODE_KEYS if content.get(key) is not None},
    )


def dump_dataset_yaml(config: DatasetConfig) -> str:
    """The text of `dataset.yaml`."""
    named = {"__module__": config.sample_module, "__class__": config.sample_class}
    content: dict[str, Any] = named if config.sample_class == CRUDE else {"sample_type": named}
    if config.field_map is not None:
        content["field_map"] = config.field_map
    if config.subflavors:
        content["subflavors"] = config.subflavors
    return _yaml(content | config.options)


def _sample_type(document: Document) -> tuple[str, str]:
    """Module and class of the samples.

    Older files name a factory per type, `CaptioningWebdataset` say, and no sample type.
    """
    if "sample_type" in document.content:
        named = document.mapping("sample_type")
        if set(named) != set(_TYPE_KEYS) or not all(isinstance(v, str) for v in named.values()):
            raise document.error("sample_type", named, "__module__ and __class__, both text")
        return str(named["__module__"]), str(named["__class__"])
    module = document.content.get("__module__", "megatron.energon")
    factory = document.content.get("__class__")
    if not isinstance(factory, str) or not isinstance(module, str) or factory in _GENERIC:
        raise document.error("sample_type", None, "__module__ and __class__ of the sample type")
    if factory == CRUDE:
        return module, CRUDE
    if not factory.endswith("Webdataset"):
        raise document.error("__class__", factory, f"{CRUDE}, or a sample_type instead")
    return module, factory.removesuffix("Webdataset") + "Sample"


def _check_code(document: Document) -> None:
    loader, parts = (document.content.get(key) for key in _CODE_KEYS)
    if loader is not None and not isinstance(loader, str):
        raise document.error("sample_loader", loader, "a file and its function, 'file.py:name'")
    if loader is not None and document.content.get("field_map") is not None:
        raise document.error("sample_loader", loader, "it without a field_map, or a field_map only")
    listed = isinstance(parts, list) and all(isinstance(each, str) for each in parts)
    if parts is not None and not isinstance(parts, str) and not listed:
        raise document.error("part_filter", parts, "a list of parts, or 'file.py:function'")


def _check_options(document: Document) -> None:
    name = document.content.get("split_config")
    if name is not None and not isinstance(name, str):
        raise document.error("split_config", name, f"the name of a file in {META_FOLDER}")


def _refuse_code(document: Document) -> None:
    for key in _CODE_KEYS:
        value = document.content.get(key)
        if isinstance(value, str):
            raise UntrustedCodeError(
                f"{document.path}: {key}: {value!r} asks to run code from the data folder, which "
                f"is run only where the program says so. Give get_train_dataset the function, "
                f"{key}=..., or trust_code=[...] with the folder; or say in field_map which part "
                "each field comes from; or make it crude (__module__: megatron.energon, __class__: "
                f"{CRUDE}) and build the samples in your task encoder"
            )


def _expanded(document: Document, where: str, patterns: Any) -> tuple[str, ...]:
    if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
        raise document.error(where, patterns, "a list of shard names, each as text")
    try:
        return expand(patterns)
    except ValueError as reason:
        raise DatasetError(f"{document.path}: {where}: {reason}") from reason


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
