"""Brace patterns of shard names: `parts/data-{000..012}.tar` and what it stands for."""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from braceexpand import braceexpand

from energize.core.bounded import load_yaml, read_bounded, read_json
from energize.core.limits import limit, over_limit
from energize.data.writing import exists, told
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    NotPreparedError,
    UntrustedCodeError,
    nearest,
)

_NUMBER = re.compile(r"([0-9]+)")
_SPECIAL = re.compile(r"[\\{},]")
_RANGE = re.compile(r"(-?[0-9]+|[A-Za-z])\.\.(-?[0-9]+|[A-Za-z])(?:\.\.-?([0-9]+))?")
_USUAL_LETTERS = 100
"""Of a name; longer ones count as several."""

_MOST_DIGITS = 18
_COSTS = 20
"""How many names take the time that it takes to look at a pattern."""


def expand(patterns: Iterable[str]) -> tuple[str, ...]:
    r"""All names that the patterns stand for, in their order; `\{` is a brace in a name.

    Raises ValueError when braces are not balanced, nested too deeply, or stand for too many names.

    >>> expand(["b.tar", "a{08..10}.tar"])
    ('b.tar', 'a08.tar', 'a09.tar', 'a10.tar')
    """
    listed = list(patterns)
    most, names, letters = limit("NAMES"), 0, 0
    for pattern in listed:
        if len(pattern) > limit("LETTERS"):
            raise ValueError(f"{reprlib.repr(pattern)}: {over_limit('LETTERS', len(pattern))}")
        if _SPECIAL.search(pattern):
            names += (count := _count(pattern))
            letters += (count + _COSTS) * len(pattern)
        if names > most or letters > most * _USUAL_LETTERS:
            raise ValueError(f"{reprlib.repr(pattern)}: {over_limit('NAMES')}")
    return tuple(name for pattern in listed for name in _names(pattern))


def _names(pattern: str) -> Iterable[str]:
    return braceexpand(pattern) if _SPECIAL.search(pattern) else (pattern,)


def collapse(names: Iterable[str]) -> list[str]:
    """Patterns that expand to exactly `names`, in the same order.

    Neighbours that count up by one in a single number of constant width become one pattern.

    >>> collapse(["a08.tar", "a09.tar", "a10.tar", "b.tar"])
    ['a{08..10}.tar', 'b.tar']
    """
    runs: list[_Run] = []
    for name in names:
        if not runs or not runs[-1].extended_by(name):
            runs.append(_Run(name))
    return [run.pattern() for run in runs]


def escaped(name: str) -> str:
    """The pattern that stands for `name` alone.

    >>> expand([escaped("a{1,2}.tar")])
    ('a{1,2}.tar',)
    """
    return _SPECIAL.sub(r"\\\g<0>", name)


def _count(pattern: str) -> int:
    """How many names a pattern stands for, without making them."""
    around: list[tuple[int, int, int]] = []  # of what is open: its start, and counts before it
    others, product = 0, 1  # names of the alternatives before this one; and of it, so far
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "{":
            around.append((position + 1, others, product))
            others, product = 0, 1
            if len(around) > limit("LEVELS"):
                raise ValueError(f"{reprlib.repr(pattern)}: {over_limit('LEVELS')}")
        elif char == "," and around:
            others, product = others + product, 1
        elif char == "}" and around:
            start, before, factor = around.pop()
            ends = _RANGE.fullmatch(pattern, start, position)
            inner = _length(ends) if ends else others + product
            others, product = before, factor * inner
        position += 2 if char == "\\" else 1
    for _, before, factor in reversed(around):  # which `braceexpand` refuses, mostly
        others, product = before, factor * (others + product)
    return others + product


def _length(ends: re.Match[str]) -> int:
    """How many numbers or letters a range has, or a few more."""
    if max(len(end) for end in ends.group(1, 2, 3) if end) > _MOST_DIGITS:
        return int(10**_MOST_DIGITS)
    first, last = (int(end) if end[-1].isdigit() else ord(end) for end in ends.group(1, 2))
    return abs(first - last) // (int(ends[3] or 1) or 1) + 1


class _Run:
    """Names that count up in one slot; texts have even places, numbers odd ones."""

    def __init__(self, name: str) -> None:
        self.first = _NUMBER.split(name)
        self.last = self.first
        self.slot: int | None = None

    def extended_by(self, name: str) -> bool:
        """Take `name` in if it is the next one of this run."""
        pieces = _NUMBER.split(name)
        if len(pieces) != len(self.last):
            return False
        changed = [i for i, piece in enumerate(pieces) if piece != self.last[i]]
        if len(changed) != 1 or self.slot not in (None, changed[0]):
            return False
        slot = changed[0]
        before, after = self.last[slot], pieces[slot]
        if slot % 2 == 0 or len(before) != len(after) or int(after) != int(before) + 1:
            return False
        self.slot, self.last = slot, pieces
        return True

    def pattern(self) -> str:
        pieces = [escaped(piece) for piece in self.first]
        if self.slot is not None:
            pieces[self.slot] = f"{{{self.first[self.slot]}..{self.last[self.slot]}}}"
        return "".join(pieces)


# Finding and parsing the files of `.nv-meta`, with errors that say where and what to do.

META_FOLDER = ".nv-meta"
INFO_NAMES = (".info.json", ".info.yaml")
SQLITE_NAME = "index.sqlite"
UUID_NAME = "index.uuid"


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file and where it is."""

    path: Path
    content: dict[str, Any]

    def error(self, key: str, value: Any, expected: str) -> DatasetError:
        """An error about one key."""
        return DatasetError(f"{self.path}: {key}: expected {expected}, got {_shown(value)}")

    def check_keys(self, known: Sequence[str], required: Sequence[str] = ()) -> None:
        """Refuse keys that mean nothing here, and miss none that is needed."""
        for key in self.content:
            if key not in known:
                raise DatasetError(
                    f"{self.path}: unknown key {_shown(key)}{nearest(str(key), known)}; "
                    f"known keys are {', '.join(known)}"
                )
        for key in required:
            if key not in self.content:
                found = ", ".join(map(str, self.content)) or "nothing"
                raise DatasetError(f"{self.path}: key {key!r} is missing; found {found}")

    def mapping(self, key: str) -> dict[str, Any]:
        """The mapping from text under `key`."""
        value = self.content[key]
        if not isinstance(value, dict):
            raise self.error(key, value, "a mapping")
        for inner in value:
            if not isinstance(inner, str):
                raise self.error(f"{key}.{inner}", inner, "text as the key (put it in quotes)")
        return dict(value)


def is_inside(name: str) -> bool:
    """Whether a name that stands in a file of a folder is that of something in this folder.

    >>> [is_inside(each) for each in ("parts/0.tar", "../0.tar", "/0.tar", "a/../../0.tar", "")]
    [True, False, False, False, False]
    """
    return (
        name[:1] not in ("", "/")
        and "\0" not in name
        and (".." not in name or ".." not in name.split("/"))
    )


def is_prepared(path: Path) -> bool:
    """Whether the folder has been prepared."""
    return any(exists(path / META_FOLDER / name, follow=False) for name in INFO_NAMES)


def info_document(path: Path) -> Document:
    """The file that makes a folder a prepared dataset."""
    for name in INFO_NAMES:
        # What is no file is told when it is read.
        if exists(path / META_FOLDER / name, follow=False):
            return parsed(path / META_FOLDER / name)
    if not path.exists():
        raise DatasetNotFoundError(f"{path} does not exist{_hint_for_missing(path)}")
    if not path.is_dir():
        raise NotPreparedError(f"{path} is a file; a prepared dataset is a folder of tar shards")
    with suppress(FileNotFoundError, NotADirectoryError):
        os.stat(f"{path / META_FOLDER}/.")  # where it may not be entered, nobody knows
    prepared = [each for each in (path.parent, path.parent.parent) if is_prepared(each)]
    if prepared:
        raise NotPreparedError(
            f"{path} has no {META_FOLDER} folder of its own, but {prepared[0]} above it is a "
            "prepared dataset: give that path"
        )
    raise NotPreparedError(
        f"{path} is not a prepared dataset: it has no {META_FOLDER}/.info.json. "
        f"Prepare it with: energize prepare {path}"
    )


def find_document(path: Path, names: Sequence[str], what: str, suffixes: str) -> Document:
    """The first of the files `names` that is in the `.nv-meta` of a prepared folder."""
    folder = path / META_FOLDER
    for name in names:
        if not is_inside(name):
            raise DatasetError(
                f"{folder}: {what} is a file in this folder, and {_shown(name)} is none; copy it "
                "there"
            )
        if not name.endswith((".yaml", ".json")):
            raise DatasetError(f"{folder / name}: {what} has a name that ends in {suffixes}")
        if exists(folder / name, follow=False):  # what is no file is told when it is read
            return parsed(folder / name)
    info_document(path)
    there = sorted(each.name for each in folder.iterdir() if each.suffix in (".yaml", ".json"))
    there = [name for name in there if name not in INFO_NAMES]
    raise NotPreparedError(
        f"{path} has no {what} {META_FOLDER}/{names[0]}{nearest(names[0], there)}. There is "
        f"{', '.join(there) or 'no such file at all'}. "
        f"Write it with: energize prepare --force-overwrite {path}"
    )


def parsed(path: Path) -> Document:
    """A file of JSON or YAML, by its name; `DatasetError` for one that is no mapping."""
    try:
        if path.suffix == ".json":
            content = read_json(path)
        else:
            content = load_yaml(read_bounded(path).decode("utf-8"))
    except OSError as reason:
        raise DatasetError(told(reason, path)) from reason
    except ConfigError:
        raise
    except (ValueError, yaml.YAMLError) as reason:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise DatasetError(f"{path} is not valid {kind}: {reason}") from reason
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: expected a mapping of keys, got {_shown(content)}")
    return Document(path, content)


def _hint_for_missing(path: Path) -> str:
    """What there is instead, as far as the path goes."""
    existing = next((each for each in path.absolute().parents if each.is_dir()), None)
    if existing is None:
        return ""
    missing = path.absolute().relative_to(existing).parts[0]
    try:
        there = sorted(each.name for each in existing.iterdir() if each.is_dir())
    except OSError:
        return f" (its folder {existing} does)"
    return f"; its folder {existing} exists{nearest(missing, there)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= 80 else f"{text[:77]}..."


# The `.nv-meta` folder of a prepared dataset: what its files say, read and written.

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
