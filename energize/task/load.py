"""Functions that a dataset.yaml names: given by the program, or run where it trusts the folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from energize.core.description import described
from energize.core.samples import (
    METADATA,
    CrudeSample,
    Sample,
    SourceInfo,
    required_fields,
    type_fields,
)
from energize.data.nv_meta import META_FOLDER
from energize.errors import ConfigError, DataError, DatasetError, UntrustedCodeError
from energize.task.decode import SampleDecoder, decode_json, decoded_by
from energize.task.fields import (
    PartAccess,
    check_field_map,
    contradiction,
    default_field_map,
    parse_field,
)

FolderPath = str | os.PathLike[str]
LoadFunction = Callable[[dict[str, Any]], Mapping[str, Any]]
PartFilter = Callable[[str], bool] | Collection[str]


@dataclass(frozen=True, slots=True)
class FolderFunction:
    """A function of a file of a data folder, which the program has trusted.

    The file is run when the function is first called in a process.
    """

    file: Path
    name: str

    def __call__(self, argument: Any) -> Any:
        return self.function(argument)

    @property
    def function(self) -> Callable[..., Any]:
        """The function; `DatasetError` when the file cannot be run or does not have it."""
        found = getattr(_module(self.file), self.name, None)
        if not callable(found):
            raise DatasetError(f"{self.file} has no function {self.name!r}")
        return found  # type: ignore[no-any-return]

    def describe(self) -> str:
        """File and function, wherever the folder is mounted."""
        return f"{self.file.name}:{self.name}"


@dataclass(frozen=True)
class LoadingCode:
    """What a program allows in place of field maps.

    `sample_loader` makes the values of a sample's fields, by name, of a dict of its decoded parts;
    `part_filter` says which parts it is given: names, or a function of a name. Both stand for what
    dataset.yaml says, for all folders, or, as dicts, for the folders that they name. `trust_code`
    names folders whose own files may be run, and with them all folders below; none is by default.

    Raises `ConfigError` for values that are neither.

    >>> LoadingCode(trust_code=["/data/cats"]).trusts(Path("/data/cats/2024"))
    True
    """

    sample_loader: LoadFunction | Mapping[FolderPath, LoadFunction] | None = None
    part_filter: PartFilter | Mapping[FolderPath, PartFilter] | None = None
    trust_code: Collection[FolderPath] = ()

    def __post_init__(self) -> None:
        if isinstance(self.trust_code, str | os.PathLike):
            raise ConfigError(
                f"trust_code is a list of folders, [{os.fspath(self.trust_code)!r}] for one"
            )
        loaders = self.sample_loader
        for each in loaders.values() if isinstance(loaders, Mapping) else [loaders]:
            if each is not None and not callable(each):
                raise ConfigError(f"sample_loader is a function of a dict of parts; got {each!r}")
        filters = self.part_filter
        for given in filters.values() if isinstance(filters, Mapping) else [filters]:
            if isinstance(given, str):
                raise ConfigError(f"part_filter is a list of parts, [{given!r}], or a function")

    def trusts(self, folder: Path) -> bool:
        """Whether code of this folder may be run."""
        own = folder.resolve()
        return any(own.is_relative_to(Path(each).resolve()) for each in self.trust_code)

    def of(
        self, folder: Path, code: Mapping[str, Any], *, crude: bool = False
    ) -> tuple[LoadFunction | None, PartFilter | None]:
        """The sample loader and the part filter of a folder whose dataset.yaml names `code`.

        Samples that are `crude` have no loader; one that the file names all the same is an error.

        Raises `UntrustedCodeError` when it names a file that the program says nothing of, and
        `DatasetError` for files that are not there or cannot be run.
        """
        if crude and "sample_loader" in code:
            raise DatasetError(
                f"{folder}: sample_loader in dataset.yaml makes the fields of a sample, and crude "
                "samples have none; remove it, or give a sample_type"
            )
        loader = None if crude else _given(self.sample_loader, folder)
        if loader is None:
            loader = self._named(folder, "sample_loader", code)
        parts = _given(self.part_filter, folder)
        return loader, self._named(folder, "part_filter", code) if parts is None else parts

    def _named(self, folder: Path, key: str, code: Mapping[str, Any]) -> Any:
        value = code.get(key)
        if not isinstance(value, str):
            return value
        if not self.trusts(folder):
            raise UntrustedCodeError(_refusal(folder, key, value))
        file, _, name = value.partition(":")
        path = (folder / META_FOLDER / file).resolve()
        if not self.trusts(path):
            raise UntrustedCodeError(
                f"{folder}: {key}: {value!r} leads out of the folder, to {path}, which trust_code "
                "does not name"
            )
        if not path.is_file():
            raise DatasetError(f"{folder}: {key}: there is no file {path}")
        made = FolderFunction(path, name or key)
        _ = made.function  # what is wrong with it is said now, not at the first sample
        return made


NO_CODE = LoadingCode()
"""Field maps only, and nothing of a folder is run."""


def loading_code(arguments: dict[str, Any]) -> LoadingCode:
    """What the `sample_loader`, `part_filter` and `trust_code` among these say, taken out of them.

    >>> arguments = {"part_filter": ["jpg"], "handler": None}
    >>> loading_code(arguments).part_filter, arguments
    (['jpg'], {'handler': None})
    """
    names = [each.name for each in fields(LoadingCode)]
    return LoadingCode(**{name: arguments.pop(name) for name in names if name in arguments})


def _given(value: Any, folder: Path) -> Any:
    """What the program gives for a folder."""
    if not isinstance(value, Mapping):
        return value
    own = folder.resolve()
    return next((each for key, each in value.items() if Path(key).resolve() == own), None)


def _refusal(folder: Path, key: str, value: str) -> str:
    return (
        f"{folder}: {key}: {value!r} in dataset.yaml names code of the data folder, which is run "
        f"only where the program says so. Import the function in your program and give it, "
        f"{key}=...; or, if you trust the folder, let its files be run: "
        f"trust_code=[{str(folder)!r}]. Or do without: say in field_map which part each field "
        "comes from, or build the samples in your task encoder (CrudeWebdataset)"
    )


@lru_cache(maxsize=64)
def _module(file: Path) -> ModuleType:
    """The module that a trusted file is; run once in a process."""
    name = f"energize_folder_code_{hashlib.blake2b(str(file).encode(), digest_size=8).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise DatasetError(f"{file} is no Python file: its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in it look themselves up there
    try:
        spec.loader.exec_module(module)
    except Exception as reason:
        del sys.modules[name]
        raise DatasetError(f"{file} cannot be run: {type(reason).__name__}: {reason}") from reason
    return module


# Typed samples from raw ones.

T_sample = TypeVar("T_sample")

_RESTORE_KIND = "Webdataset"
_ABSENT = object()
_CHECKED = 4
"""How many samples of a loader are compared, in each process, with the types that are declared."""


@dataclass(frozen=True, kw_only=True)
class SampleLoader(Generic[T_sample]):
    """Makes samples of `sample_type` from raw ones: a function to map over a source.

    A raw sample is what `WebdatasetSource` gives: a dict of `__key__`, `__dataset__`, `__shard__`,
    `__index__` and the bytes of its parts by name. `field_map` says for each field which part it
    comes from: "jpg,png" is the first of these that the sample has; "json[caption][en]" a value
    inside a JSON part. Only parts that a field needs are decoded, each once. With `decoder=None`
    they stay bytes; keys in brackets read JSON all the same.

    "*.jpg" is the list of all parts that match, 0.jpg before 10.jpg.

    Without a field map the usual parts are taken (`jpg`, `png` for an image, `txt` for a text,
    `cls` for a label, else a key of `json`), and fields with a default may be missing.

    In place of a field map, `sample_loader` is given a dict of the decoded parts with the metadata
    of the sample, and returns a dict of the fields. `part_filter` says which parts there are for
    anyone: a list of names, or a function of a name. A `CrudeSample` has all parts, decoded, by
    their names.

    Raises `ConfigError` for a type that is no sample type, fields that it does not have, fields
    without a default that the map leaves out, and malformed descriptions. Calling it raises
    `DataError` naming the sample, when a part or a key is missing, and `DecodeError`; of the first
    samples `ConfigError` when a value contradicts the type that its field declares.

    >>> from energize import TextSample
    >>> load = SampleLoader(sample_type=TextSample, field_map={"text": "json[body]"})
    >>> raw = {"__key__": "a", "__dataset__": "texts", "__shard__": "0.tar", "__index__": 0}
    >>> load(raw | {"json": b'{"body": "hello"}'}).text
    'hello'
    """

    sample_type: type[T_sample]
    field_map: Mapping[str, str] | None = None
    decoder: SampleDecoder | None = field(default_factory=SampleDecoder)
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    sample_loader: LoadFunction | None = None
    part_filter: PartFilter | None = None
    loads_stored: ClassVar[bool] = True
    """What it returns for a stored sample is what the key of that sample restores."""

    def __post_init__(self) -> None:
        kind = self.sample_type
        typed = isinstance(kind, type) and issubclass(kind, Sample | CrudeSample)
        if not typed or not (self._crude or is_dataclass(kind)):
            raise ConfigError(
                f"sample_type is a dataclass that extends Sample, or CrudeSample; got {kind!r}"
            )
        object.__setattr__(self, "subflavors", dict(self.subflavors))
        if self.field_map is not None:
            object.__setattr__(self, "field_map", dict(self.field_map))
            check_field_map(kind, self.field_map)
        self._check_functions()
        _ = self._accesses  # descriptions are parsed here, not at the first sample

    def describe(self) -> dict[str, Any]:
        """The description as a JSON-able tree."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("sample_loader", "part_filter"):
            if values[name] is None:
                del values[name]
        return {"kind": type(self).__name__, **described(values)}

    def __call__(self, raw: Mapping[str, Any]) -> T_sample:
        raw = self._filtered(raw)
        try:
            if self._crude:
                return self._load_crude(raw)
            return self._load(raw) if self.sample_loader is None else self._load_by(raw)
        except DataError as reason:
            raise type(reason)(f"sample {raw['__key__']!r}: {reason}") from reason

    def _check_functions(self) -> None:
        if self.sample_loader is not None and (self._crude or self.field_map is not None):
            raise ConfigError(
                f"sample_loader makes the fields of a {self.sample_type.__name__}, so "
                + ("it cannot be given: it has none" if self._crude else "give no field_map too")
            )
        given = self.part_filter
        if given is None or callable(given):
            return
        if isinstance(given, str) or not all(isinstance(name, str) for name in given):
            raise ConfigError(
                f"part_filter is a function of a part's name, or a list of names; got {given!r}"
            )
        object.__setattr__(self, "part_filter", tuple(dict.fromkeys(given)))

    def _filtered(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The raw sample with the parts that the filter lets through."""
        given = self.part_filter
        if given is None:
            return raw
        kept = given if callable(given) else given.__contains__
        return {name: part for name, part in raw.items() if name.startswith("__") or kept(name)}

    @property
    def _crude(self) -> bool:
        return issubclass(self.sample_type, CrudeSample)

    @cached_property
    def _accesses(self) -> dict[str, tuple[PartAccess, ...]]:
        """For each field the parts it may come from."""
        if self._crude or self.sample_loader is not None:
            return {}
        given = default_field_map(self.sample_type) if self.field_map is None else self.field_map
        return {name: parse_field(text) for name, text in given.items()}

    @cached_property
    def _optional(self) -> frozenset[str]:
        """The fields that may be missing from a sample."""
        if self.field_map is not None or self._crude:
            return frozenset()
        return frozenset(type_fields(self.sample_type)) - set(required_fields(self.sample_type))

    def _load_crude(self, raw: Mapping[str, Any]) -> T_sample:
        parts = dict(raw) if self.decoder is None else self.decoder(raw)
        names = [name for name in raw if not name.startswith("__")]
        return self.sample_type(parts | self._metadata(raw, names))  # type: ignore[call-arg]

    def _load(self, raw: Mapping[str, Any]) -> T_sample:
        contents: dict[tuple[str, bool], Any] = {}
        values: dict[str, Any] = {}
        for name, options in self._accesses.items():
            value = self._value(name, options, raw, contents)
            if value is not _ABSENT:
                values[name] = value
        names = dict.fromkeys(part for part, _ in contents if not part.startswith("__"))
        return self._typed(raw, values, names)

    def _load_by(self, raw: Mapping[str, Any]) -> T_sample:
        """The sample that the program's function makes."""
        names = [name for name in raw if not name.startswith("__")]
        decoded = {name: raw[name] for name in names}
        if self.decoder is not None:
            decoded = self.decoder(decoded)
        function: Any = self.sample_loader
        values = function(decoded | self._metadata(raw, names))
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"sample {raw['__key__']!r}: sample_loader returns a dict of the fields of "
                f"{self.sample_type.__name__}, and returned a {type(values).__name__}"
            )
        known = type_fields(self.sample_type)
        unknown = next((name for name in values if name not in known), None)
        needed = (name for name in required_fields(self.sample_type) if name not in METADATA)
        missing = [name for name in needed if name not in values]
        if unknown is not None or missing:
            what = f"the field {unknown!r}, which {self.sample_type.__name__} does not have"
            if unknown is None:
                what = f"no {', '.join(missing)}, which {self.sample_type.__name__} needs"
            raise ConfigError(f"sample {raw['__key__']!r}: sample_loader returned {what}")
        return self._typed(raw, values, names)

    def _typed(
        self, raw: Mapping[str, Any], values: Mapping[str, Any], parts: Iterable[str]
    ) -> T_sample:
        """A sample with these values, of the parts named."""
        if self._unchecked and self.decoder is not None:
            self._check_types(raw, values)
            del self._unchecked[:1]
        return self.sample_type(**{**self._metadata(raw, parts), **values})

    @cached_property
    def _unchecked(self) -> list[None]:
        """One for each of the first samples, whose values are compared with what is declared."""
        return [None] * _CHECKED

    def _check_types(self, raw: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        found = contradiction(self.sample_type, values)
        if found is not None:
            name, wrong = found
            told = ",".join(map(str, self._accesses.get(name, ()))) or "what sample_loader returned"
            raise ConfigError(
                f"{raw['__dataset__']}, {raw['__shard__']}, sample {raw['__key__']!r}: the field "
                f"{name!r} of {self.sample_type.__name__} {wrong}, from {told}. Correct the field "
                "map, or make the value what the field says: with a sample_loader, or in a cooker "
                "of crude samples"
            )

    def _value(
        self,
        name: str,
        options: Sequence[PartAccess],
        raw: Mapping[str, Any],
        contents: dict[tuple[str, bool], Any],
    ) -> Any:
        """What the first option that the sample has leads to; `contents` are decoded parts."""
        reasons: list[str] = []
        for option in options:
            parts = option.among(raw)
            if not parts:
                continue
            for part in parts:
                seen = (part, bool(option.keys))
                if seen not in contents:
                    contents[seen] = self._content(part, raw[part], keyed=bool(option.keys))
            try:
                found = [option.within(contents[part, bool(option.keys)]) for part in parts]
                return found if option.several else found[0]
            except DataError as reason:
                reasons.append(str(reason))
        if name in self._optional:
            return _ABSENT
        there = ", ".join(part for part in raw if not part.startswith("__"))
        reasons = reasons or [f"the sample has only the parts {there or '(none)'}"]
        asked = " or ".join(map(str, options))
        raise DataError(f"field {name!r} is read from {asked}, but {'; '.join(reasons)}")

    def _content(self, part: str, data: Any, *, keyed: bool) -> Any:
        """A part decoded; with `keyed` to what keys can lead into, JSON where nothing else is."""
        if part.startswith("__"):
            return data
        decoded = data if self.decoder is None else self.decoder.decode(part, data)
        if keyed and isinstance(decoded, bytes | str):
            return decoded_by(decode_json, part, data)
        return decoded

    def _metadata(self, raw: Mapping[str, Any], parts: Iterable[str]) -> dict[str, Any]:
        key, shard, index = raw["__key__"], raw["__shard__"], raw["__index__"]
        source = SourceInfo(
            dataset_path=raw["__dataset__"],
            index=index,
            shard_name=shard,
            file_names=tuple(f"{key}.{part}" for part in parts),
        )
        return {
            "__key__": key,
            "__restore_key__": (_RESTORE_KIND, shard, index),
            "__subflavors__": dict(self.subflavors),
            "__sources__": (source,),
        }


# Joined samples: each loaded by the type of its own dataset, then made one.


@dataclass(frozen=True)
class JoinLoader:
    """Makes one sample of a tuple of raw ones: a function to map over a `JoinedSource`.

    Each is loaded by the loader at its place, a `SampleLoader` say, None stays None, and
    `function` joins what comes out: given by place, or by `names`.

    Raises `ConfigError` for a joiner that gives no sample, and what the loaders and it raise.
    """

    loaders: tuple[Callable[[Any], Any], ...]
    names: tuple[str, ...] | None
    function: Callable[..., Any]
    loads_stored: ClassVar[bool] = True

    def __call__(self, raw: Sequence[Any]) -> Any:
        samples = [
            None if each is None else load(each)
            for load, each in zip(self.loaders, raw, strict=True)
        ]
        if self.names is None:
            joined = self.function(*samples)
        else:
            joined = self.function(**dict(zip(self.names, samples, strict=True)))
        if not isinstance(joined, Sample | dict):
            raise ConfigError(
                f"sample {raw[0]['__key__']!r}: the joiner {_name(self.function)} gave a "
                f"{type(joined).__name__}; it has to return a sample"
            )
        return joined

    def describe(self) -> dict[str, Any]:
        """The description as a JSON-able tree."""
        return {
            "kind": type(self).__name__,
            "loaders": [described(each) for each in self.loaders],
            "names": list(self.names or ()),
            "function": _name(self.function),
        }


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
