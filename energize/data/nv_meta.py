"""The `.nv-meta` folder of a prepared dataset: reading and writing its files.

`.info.json` counts samples per shard, `split.yaml` assigns shards to splits,
`dataset.yaml` describes samples, and `shards.json` records checksums of shards.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import yaml
from braceexpand import braceexpand
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from energize.core import limits
from energize.core.samples import is_package_module
from energize.core.validation import Listed, Model, short
from energize.data.files import absent, exists, read_document
from energize.errors import (
    DatasetError,
    DatasetNotFoundError,
    NotPreparedError,
    UntrustedCodeError,
    in_place_of,
    nearest,
)

T = TypeVar("T")

META_FOLDER = ".nv-meta"
INFO_NAMES = (".info.json", ".info.yaml")
SQLITE_NAME = "index.sqlite"
UUID_NAME = "index.uuid"

# Release of Megatron-Energon with the format that is written to `.info.json`.
FORMAT_VERSION = "7.4.1"

# Pseudo sample type of samples that are plain dicts of parts.
CRUDE = "CrudeWebdataset"

# Most samples of a shard; each takes at least a kilobyte of tar.
_MOST_SAMPLES = 2**40
_USUAL_LETTERS = 100
_TOLD = 10

_GENERIC = ("StandardWebdatasetFactory", "DefaultGenericWebdatasetFactory")
_OPTIONS = (
    *(
        "max_samples_per_sequence",
        "parallel_shard_iters",
        "part_filter",
        "shuffle_over_epochs",
    ),
    *("split_config", "orient", "guess_content"),
)
_CODE_KEYS = ("sample_loader", "part_filter")

_NUMBER = re.compile(r"([0-9]+)")
_SPECIAL = re.compile(r"[\\{},]")
_RANGE = re.compile(r"(-?[0-9]+|[A-Za-z])\.\.(-?[0-9]+|[A-Za-z])(?:\.\.-?([0-9]+))?")
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class SampleConfig:
    """The sample type, by name, and how to fill its fields, as in `dataset.yaml`.

    Attributes:
        sample_module: Module of the sample type, or of a user's factory.
        sample_class: Name of the sample type or factory; `CRUDE` for plain dicts.
        field_map: Part of each field ("jpg,png", "json[caption]"); None if not
            specified.
        subflavors: Values that are added to samples.
        options: Reading and decoding options (`orient`, `guess_content`).
        code: `sample_loader` and `part_filter`: names of files in the folder, which are
            not run here, or a list of parts.
        factory: Arguments of a user's factory, which then decides the sample type; None
            without one.
    """

    sample_module: str
    sample_class: str
    field_map: dict[str, str] | None = None
    subflavors: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)
    factory: dict[str, Any] | None = None


def is_inside(name: str) -> bool:
    """Return whether a relative name stays inside its folder.

    >>> [
    ...     is_inside(each)
    ...     for each in ("parts/0.tar", "../0.tar", "/0.tar", "a/../../0.tar", "")
    ... ]
    [True, False, False, False, False]
    """
    return (
        name[:1] not in ("", "/") and "\0" not in name and ".." not in name.split("/")
    )


def expand(patterns: Iterable[str]) -> tuple[str, ...]:
    r"""Expand brace patterns to names, in order; `\{` is a literal brace.

    Args:
        patterns: Patterns such as `a{08..10}.tar` or `{a,b}.tar`.

    Returns:
        The names.

    Raises:
        ValueError: If braces are unbalanced, nested too deeply, or expand to too many
            names.

    Example:
        >>> expand(["b.tar", "a{08..10}.tar"])
        ('b.tar', 'a08.tar', 'a09.tar', 'a10.tar')
    """
    listed = list(patterns)
    names = letters = 0
    for pattern in listed:
        if len(pattern) > limits.LETTERS:
            raise ValueError(
                f"{reprlib.repr(pattern)}: {limits.over('LETTERS', len(pattern))}"
            )
        if _SPECIAL.search(pattern):
            names += (count := _count(pattern))
            letters += (count + 20) * len(
                pattern
            )  # so long as that, a pattern is looked at
        if names > limits.NAMES or letters > limits.NAMES * _USUAL_LETTERS:
            raise ValueError(f"{reprlib.repr(pattern)}: {limits.over('NAMES')}")
    expanded: list[str] = []
    for entry in listed:
        expanded += braceexpand(entry) if _SPECIAL.search(entry) else (entry,)
    return tuple(expanded)


def _count(pattern: str) -> int:
    """Count the names that a pattern expands to, without expanding it."""
    open_groups: list[
        tuple[int, int, int]
    ] = []  # open groups: start, and counts before it
    alternatives = 0
    product = 1  # names of the alternatives before this one; and of it, so far
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "{":
            open_groups.append((position + 1, alternatives, product))
            alternatives = 0
            product = 1
            if len(open_groups) > limits.LEVELS:
                raise ValueError(f"{reprlib.repr(pattern)}: {limits.over('LEVELS')}")
        elif char == "," and open_groups:
            alternatives = alternatives + product
            product = 1
        elif char == "}":
            if not open_groups:
                raise ValueError(f"{reprlib.repr(pattern)}: Unbalanced braces")
            start, outer_sum, factor = open_groups.pop()
            inner = _length(pattern[start:position]) or alternatives + product
            alternatives = outer_sum
            product = factor * inner
        position += 2 if char == "\\" else 1
    for _, outer_sum, factor in reversed(
        open_groups
    ):  # unbalanced; `braceexpand` raises later
        product = factor * (alternatives + product)
        alternatives = outer_sum
    return alternatives + product


def _length(inner: str) -> int:
    """Return an upper bound of the length of a brace range; 0 if it is not a range."""
    match = _RANGE.fullmatch(inner)
    if match is None:
        return 0
    if max(map(len, match.groups(""))) > _MOST_DIGITS:
        return int(10**_MOST_DIGITS)
    ends = match.group(1, 2)
    first, last = map(int if ends[0][-1].isdigit() else ord, ends)
    return abs(first - last) // (int(match[3] or 1) or 1) + 1


def collapse(names: Iterable[str]) -> list[str]:
    """Return patterns that expand to exactly `names`, in the same order.

    Consecutive names that count up by one in a single number of constant width become
    one pattern.

    >>> collapse(["a08.tar", "a09.tar", "a10.tar", "b.tar"])
    ['a{08..10}.tar', 'b.tar']
    """
    # Pieces of the first name, pieces of the last one, index of the counting number.
    runs: list[tuple[list[str], list[str], int | None]] = []
    for name in names:
        pieces = _NUMBER.split(name)  # texts at even indices, numbers at odd ones
        first, last, slot = runs[-1] if runs else ([], [], None)
        counting = _counting_index(last, pieces)
        if counting is not None and slot in (None, counting):
            runs[-1] = first, pieces, counting
        else:
            runs.append((pieces, pieces, None))
    patterns = []
    for first, last, slot in runs:
        texts = [escaped(piece) for piece in first]
        if slot is not None:
            texts[slot] = f"{{{first[slot]}..{last[slot]}}}"
        patterns.append("".join(texts))
    return patterns


def _counting_index(previous: list[str], pieces: list[str]) -> int | None:
    """Return the index of the one number that went up by 1, None for other changes."""
    if len(previous) != len(pieces):
        return None
    changed = [
        index
        for index, (old, new) in enumerate(zip(previous, pieces, strict=True))
        if old != new
    ]
    if len(changed) != 1:
        return None
    [index] = changed
    is_number = index % 2 == 1 and len(previous[index]) == len(pieces[index])
    counts_up = is_number and int(pieces[index]) == int(previous[index]) + 1
    return index if counts_up else None


def escaped(name: str) -> str:
    """Return the pattern that expands to `name` alone.

    >>> expand([escaped("a{1,2}.tar")])
    ('a{1,2}.tar',)
    """
    return _SPECIAL.sub(r"\\\g<0>", name)


def is_prepared(path: Path) -> bool:
    """Return whether the folder has been prepared."""
    return any(exists(_meta_file(path, name), follow=False) for name in INFO_NAMES)


def _meta_file(path: Path, name: str) -> str:
    """Return the path of a file of a prepared folder; joining `Path`s is slow."""
    return f"{path}/{META_FOLDER}/{name}"


def is_converting(path: Path) -> bool:
    """Return whether a conversion into the folder has begun and not ended."""
    begun = next((path / META_FOLDER / "tasks").glob("convert-*/*"), None)
    return begun is not None and not is_prepared(path)


def read_info(path: Path) -> Info:
    """Read `.info.json`, or an older `.info.yaml`, of the dataset folder `path`.

    Args:
        path: The prepared folder.

    Returns:
        Samples per shard.

    Raises:
        DatasetNotFoundError: If the folder does not exist.
        NotPreparedError: If the folder has not been prepared.
        DatasetError: If the file is invalid.
    """
    for name in INFO_NAMES:
        info = read_document(_meta_file(path, name), _INFO)
        if info is not None:
            return info
    raise _unprepared(path)


def _unprepared(path: Path) -> DatasetError:
    """Return the error for a folder that cannot be read."""
    if not path.exists():
        siblings: list[str] = []
        with suppress(OSError):
            siblings = sorted(
                {folder.name for folder in path.absolute().parent.iterdir()}
                - {path.name}
            )
        hint = in_place_of(path) or nearest(path.name, siblings)
        return DatasetNotFoundError(f"{path} {absent(path)}{hint}")
    if not path.is_dir():
        text = f"{path} is a file, not a folder of tar shards"
        return NotPreparedError(text + in_place_of(path))
    with suppress(FileNotFoundError, NotADirectoryError):
        next(
            (path / META_FOLDER).iterdir(), None
        )  # raises PermissionError if it cannot be entered
    if is_converting(path):
        return NotPreparedError(
            f"{path} is incomplete: its conversion was interrupted. Resume it with: "
            f"energize convert SOURCE {path}"
        )
    prepared = [
        folder for folder in (path.parent, path.parent.parent) if is_prepared(folder)
    ]
    if prepared:
        return NotPreparedError(
            f"{path} has no {META_FOLDER} folder, but its parent {prepared[0]} is a "
            "prepared dataset. Pass that path"
        )
    return NotPreparedError(
        f"{path} is not a prepared dataset: it has no {META_FOLDER}/.info.json. "
        f"Prepare tar shards with: energize prepare {path}. Convert loose files to "
        f"shards with: energize convert {path} OUT"
    )


def _counts(counts: dict[Any, Any]) -> dict[str, int]:
    """Check shard counts by a plain loop: pydantic would report every wrong entry."""
    for shard, count in counts.items():
        if not isinstance(shard, str) or not is_inside(shard):
            raise ValueError(
                f"expected names of files in this folder, got {short(shard)}"
            )
        if type(count) is not int or not 0 <= count < _MOST_SAMPLES:
            raise ValueError(
                f"[{short(shard)}]: expected a number of samples, got {short(count)}"
            )
    return counts


class Info(Model):
    """Samples per shard, in shard order; names are relative to the dataset folder."""

    energon_version: Annotated[
        str | None, BeforeValidator(lambda value: None if value is None else str(value))
    ] = None
    shard_counts: Annotated[dict[Any, Any], AfterValidator(_counts)]


_Number = Annotated[int, Field(ge=0, lt=_MOST_SAMPLES)]
_Run = Annotated[list[_Number], Field(min_length=2, max_length=2)]


class Splits(Model):
    """The shards of each split, and excluded shards and samples.

    Attributes:
        split_parts: Shards by split; brace patterns are expanded.
        samples: For splits that begin or end inside a shard, the range of samples among
            those of their shards.
        exclude: Excluded entries, `shard.tar` or `shard.tar/key`.
    """

    split_parts: dict[str, Annotated[Listed[str], AfterValidator(expand)]]
    samples: dict[str, _Run] = Field(default_factory=dict)
    exclude: Annotated[
        Listed[str],
        AfterValidator(expand),
        BeforeValidator(lambda value: () if value is None else value),
    ] = ()


_INFO = TypeAdapter(Info)
_SPLITS = TypeAdapter(Splits)


def read_splits(path: Path, name: str = "split.yaml") -> Splits:
    """Read the splits of a dataset folder from a file in its `.nv-meta`.

    Falls back to `split.json` if there is no `split.yaml`. Raises as `read_info` does.

    Args:
        path: The prepared folder.
        name: Name of the split file.

    Returns:
        The splits.
    """
    names = (name, "split.json") if name == "split.yaml" else (name,)
    return _file(path, names, _SPLITS, "split file", ".yaml or .json")[1]


def _file(
    path: Path, names: Sequence[str], schema: TypeAdapter[T], role: str, suffixes: str
) -> tuple[str, T]:
    """Return the first of the files `names` in the `.nv-meta` of a prepared folder."""
    for name in names:
        file = _meta_file(path, name)
        if not is_inside(name):
            raise DatasetError(
                f"{path / META_FOLDER}: the {role} must be a file in this folder, got "
                f"{short(name)}. Copy it there"
            )
        if not name.endswith((".yaml", ".json")):
            raise DatasetError(
                f"{file}: the {role} must have a name that ends in {suffixes}"
            )
        document = read_document(file, schema)
        if document is not None:
            return file, document
    read_info(path)
    files = (path / META_FOLDER).iterdir()
    existing = sorted(file.name for file in files if file.suffix in (".yaml", ".json"))
    existing = [name for name in existing if name not in INFO_NAMES]
    raise NotPreparedError(
        f"{path} has no {role} {META_FOLDER}/{names[0]}"
        f"{nearest(names[0], existing) or '.'} "
        f"Found: {', '.join(existing) or 'none'}. Write it with: energize prepare "
        f"--force-overwrite {path}"
    )


def dump_info(info: Info) -> str:
    """Return the text of `.info.json`."""
    return json.dumps(info.model_dump(exclude_none=True), indent=2)


def dump_splits(
    parts: Mapping[str, Sequence[str]],
    name: str,
    exclude: Sequence[str] = (),
    **more: Any,
) -> str:
    """Return the text of a split file, YAML or JSON by its name, with patterns."""
    content = {
        "split_parts": {part: collapse(shards) for part, shards in parts.items()},
        "exclude": [escaped(entry) for entry in exclude],
        **{name: value for name, value in more.items() if value},
    }
    return json.dumps(content, indent=2) if name.endswith(".json") else _yaml(content)


def dump_dataset_yaml(config: SampleConfig) -> str:
    """Return the text of `dataset.yaml`."""
    named = {"__module__": config.sample_module, "__class__": config.sample_class}
    content: dict[str, Any] = (
        named if config.sample_class == CRUDE else {"sample_type": named}
    )
    if config.field_map is not None:
        content["field_map"] = config.field_map
    if config.subflavors:
        content["subflavors"] = config.subflavors
    return _yaml(content | config.options)


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)


class TypeName(Model):
    """Module and name of a sample type."""

    module: str = Field(alias="__module__")
    name: str = Field(alias="__class__")


PartName: TypeAlias = Annotated[str, Field(min_length=1)]


class _DatasetFile(Model):
    module: str = Field("megatron.energon", alias="__module__")
    factory: str | None = Field(None, alias="__class__")
    sample_type: TypeName | None = None
    field_map: dict[str, PartName] | None = None
    subflavors: dict[str, Any] | None = None
    sample_loader: str | None = None
    part_filter: str | list[str] | None = None
    split_config: str | None = None
    max_samples_per_sequence: Any = None
    parallel_shard_iters: Any = None
    shuffle_over_epochs: Any = None
    orient: bool | None = None
    guess_content: bool | None = None


class _WithFactory(_DatasetFile):
    """A dataset file with a user's factory, which may take other keys."""

    model_config = ConfigDict(extra="allow")


_DATASET = TypeAdapter(_DatasetFile)
_WITH_FACTORY = TypeAdapter(_WithFactory)


def read_dataset_yaml(
    path: Path, name: str = "dataset.yaml", *, code: bool = False
) -> SampleConfig:
    """Read the sample config of a dataset folder from a file in its `.nv-meta`.

    Raises as `read_info` does, too.

    Args:
        path: The prepared folder.
        name: Name of the file.
        code: Whether code of the folder is trusted; the caller then decides about
            `SampleConfig.code`.

    Returns:
        The sample config.

    Raises:
        UntrustedCodeError: If the file names code in the folder, and `code` is False.
    """
    file, config = _file(path, (name,), _WITH_FACTORY, "dataset file", ".yaml")
    if config.model_extra and not _has_user_factory(config):
        _file(path, (name,), _DATASET, "dataset file", ".yaml")  # raises for the keys
    functions = _code_of(config, file, trusted=code)
    if config.sample_loader is not None and config.field_map is not None:
        raise DatasetError(f"{file}: set sample_loader or field_map, not both")
    options = {
        key: getattr(config, key) for key in config.model_fields_set if key in _OPTIONS
    }
    return SampleConfig(
        *_sample_type(config, file),
        config.field_map,
        config.subflavors or {},
        options,
        functions,
        _factory_arguments(config) if _has_user_factory(config) else None,
    )


def _has_user_factory(config: _DatasetFile) -> bool:
    return config.factory is not None and not is_package_module(config.module)


def _code_of(config: _DatasetFile, file: str, *, trusted: bool) -> dict[str, Any]:
    """Return `sample_loader` and `part_filter`; raise if they need trust they lack."""
    functions = {}
    for key in _CODE_KEYS:
        value = getattr(config, key)
        if value is not None:
            functions[key] = value
        if isinstance(value, str) and not trusted:
            raise UntrustedCodeError(
                f"{file}: {key}: {value!r} requires code from the data folder, which "
                f"is not trusted. Pass {key}=... or trust_code=[FOLDER] to "
                "get_train_dataset, set field_map, or make the dataset crude "
                f"(__module__: megatron.energon, __class__: {CRUDE}) and build the "
                "samples in your task encoder"
            )
    return functions


def _factory_arguments(config: _WithFactory) -> dict[str, Any]:
    """Return the arguments of a user's factory: the keys that the file sets."""
    keys = ("field_map", "subflavors", "part_filter", "sample_loader")
    values = {key: getattr(config, key) for key in keys}
    arguments = {key: value for key, value in values.items() if value is not None}
    arguments |= config.model_extra or {}
    if config.sample_type is not None:
        sample_type = config.sample_type
        arguments["sample_type"] = sample_type.module, sample_type.name
    return arguments


def _sample_type(config: _DatasetFile, file: str) -> tuple[str, str]:
    """Return module and class of the sample type, or of a user's factory.

    Older files name a factory per type, such as `CaptioningWebdataset`, and no sample
    type.
    """
    if config.factory is not None and _has_user_factory(config):
        return config.module, config.factory
    if config.sample_type is not None:
        return config.sample_type.module, config.sample_type.name
    if config.factory is None or config.factory in _GENERIC:
        raise DatasetError(
            f"{file}: sample_type: expected __module__ and __class__ of the samples"
        )
    if config.factory == CRUDE:
        return config.module, CRUDE
    if not config.factory.endswith("Webdataset"):
        raise DatasetError(
            f"{file}: __class__: expected {CRUDE}, or a sample_type instead, got "
            f"{short(config.factory)}"
        )
    return config.module, config.factory.removesuffix("Webdataset") + "Sample"


RECORDS_NAME = "shards.json"


_Crc = Annotated[int, Field(ge=0, lt=2**32)]


class ConvertedFrom(NamedTuple):
    """The loose files that a split was converted from.

    Attributes:
        name: Name of the loose source.
        identity: Identity of the loose source.
        samples: Number of samples.
        files: Number of files of rows.
        shards: Digest of the converted shards and their counts.
    """

    name: str
    identity: str
    samples: int
    files: Annotated[int, Field(ge=1)]
    shards: str = ""

    @classmethod
    def of(cls, source: Any) -> ConvertedFrom:
        """Return the record of a loose source."""
        return cls(source.name, source.identity, source.count, len(source.counts))


class ShardRecord(NamedTuple):
    """A shard as it was prepared: its size and checksums.

    Attributes:
        bytes: Size of the shard.
        index_crc32: CRC-32 of its `.tar.idx`.
        headers_crc32: CRC-32 of all its tar headers, concatenated.
        ends_crc32: CRC-32 of its first and last `END_BYTES`.
        checksums_crc32: CRC-32 of its `.tar.crc`; None without one.
        parts_crc32: CRC-32 of the part names of each kind of sample; None if there are
            many kinds.
        origin: The loose files that it was converted from; None if it was not.
    """

    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    index_crc32: _Crc
    headers_crc32: _Crc
    ends_crc32: _Crc
    checksums_crc32: _Crc | None = None
    parts_crc32: Listed[_Crc] | None = None
    origin: ConvertedFrom | None = None

    @property
    def of_shard(self) -> tuple[int, int, int, int]:
        """The fields that identify the shard, with or without checksums."""
        return self[:4]


class _Records(Model):
    version: Literal[1] = 1
    shards: dict[str, ShardRecord]


_RECORDS = TypeAdapter(_Records)


def read_records(
    path: Path, shard_counts: Mapping[str, int] | None = None
) -> dict[str, ShardRecord] | None:
    """Read the records of the shards of a prepared folder.

    Args:
        path: The prepared folder.
        shard_counts: The shards of `.info.json`; None to accept any.

    Returns:
        Records by shard; None if the folder has none.

    Raises:
        DatasetError: If the file is damaged, of a later version, or of other shards.
    """
    file = _meta_file(path, RECORDS_NAME)
    records = read_document(file, _RECORDS)
    if records is None:
        return None
    shards = records.shards
    if shard_counts is not None and shards.keys() != shard_counts.keys():
        shard = min(shards.keys() ^ shard_counts.keys())
        only = "this file" if shard in shards else ".info.json"
        raise DatasetError(
            f"{file} does not match the shards of the folder: only {only} has "
            f"{shard[:80]!r}. Another program prepared the folder since; write the "
            f"file again with: energize prepare --tar-index-only {path}"
        )
    return {shard: shards[shard] for shard in shard_counts or shards}


def dump_records(records: Mapping[str, ShardRecord]) -> str:
    """Return the text of `shards.json`."""
    shards = {}
    for shard, record in records.items():
        fields = record._asdict()
        if record.origin is not None:
            fields["origin"] = record.origin._asdict()
        shards[shard] = {
            name: value for name, value in fields.items() if value is not None
        }
    return json.dumps({"version": 1, "shards": shards}, indent=1)
