"""Typed samples from raw ones: by field maps, by functions of the program, by code of folders that
the program trusts; and of several raw ones that a join puts together.
"""

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

from energize.core.description import described, function_name
from energize.core.limits import load_json
from energize.core.samples import (
    CrudeSample,
    Sample,
    SourceInfo,
    required_fields,
)
from energize.data.nv_meta import META_FOLDER
from energize.errors import ConfigError, DataError, DatasetError, UntrustedCodeError
from energize.task.decode import SampleDecoder, decoded_by
from energize.task.fields import (
    PartAccess,
    check_field_map,
    check_fields,
    contradiction,
    default_field_map,
    parse_field,
)

FolderPath = str | os.PathLike[str]
LoadFunction = Callable[[dict[str, Any]], Mapping[str, Any]]
PartFilter = Callable[[str], bool] | Collection[str]


# Functions that a dataset.yaml names: given by the program, or run where it trusts the folder.


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
        """Return file and function, wherever the folder is mounted."""
        return f"{self.file.name}:{self.name}"


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


def _all_given(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else [value]


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
        for each in _all_given(self.sample_loader):
            if each is not None and not callable(each):
                raise ConfigError(f"sample_loader is a function of a dict of parts; got {each!r}")
        for each in _all_given(self.part_filter):
            if isinstance(each, str):
                raise ConfigError(f"part_filter is a list of parts, [{each!r}], or a function")

    def trusts(self, folder: Path) -> bool:
        """Return whether code of this folder may be run."""
        own = folder.resolve()
        return any(own.is_relative_to(Path(each).resolve()) for each in self.trust_code)

    def of(
        self, folder: Path, code: Mapping[str, Any], *, crude: bool = False
    ) -> tuple[LoadFunction | None, PartFilter | None]:
        """Return the sample loader and the part filter of a folder whose dataset.yaml names `code`.

        Samples that are `crude` have no loader; one that the file names all the same is an error.

        Raises `UntrustedCodeError` when it names a file that the program says nothing of, and
        `DatasetError` for files that are not there or cannot be run.
        """
        if crude and "sample_loader" in code:
            raise DatasetError(
                f"{folder}: dataset.yaml has a sample_loader, and crude samples have no fields; "
                "remove it, or give a sample_type"
            )
        loader = None if crude else self._of(folder, "sample_loader", code)
        return loader, self._of(folder, "part_filter", code)

    def _of(self, folder: Path, key: str, code: Mapping[str, Any]) -> Any:
        """What the program gives for a folder, or else what the folder itself names."""
        given, own = getattr(self, key), folder.resolve()
        if isinstance(given, Mapping):
            matching = (each for path, each in given.items() if Path(path).resolve() == own)
            given = next(matching, None)
        value = code.get(key)
        if given is not None or not isinstance(value, str):
            return value if given is None else given
        named = f"{folder}: {key}: {value!r}"
        if not self.trusts(folder):
            raise UntrustedCodeError(
                f"{named} in dataset.yaml is code of the data folder, which is run only where the "
                f"program says so. Give the function yourself, {key}=..., or trust the folder, "
                f"trust_code=[{str(folder)!r}]; or do without, by a field_map, or by cookers in "
                "your task encoder (CrudeWebdataset)"
            )
        file, _, name = value.partition(":")
        path = (folder / META_FOLDER / file).resolve()
        if not self.trusts(path):
            raise UntrustedCodeError(
                f"{named} leads out of the folder, to {path}, which trust_code does not name"
            )
        if not path.is_file():
            raise DatasetError(f"{named}: there is no file {path}")
        made = FolderFunction(path, name or key)
        _ = made.function  # what is wrong with it is said now, not at the first sample
        return made


NO_CODE = LoadingCode()
"""Field maps only, and nothing of a folder is run."""


def loading_code(arguments: dict[str, Any]) -> LoadingCode:
    """Return what `sample_loader`, `part_filter` and `trust_code` among these say, and take them
    out.

    >>> arguments = {"part_filter": ["jpg"], "handler": None}
    >>> loading_code(arguments).part_filter, arguments
    (['jpg'], {'handler': None})
    """
    names = [each.name for each in fields(LoadingCode)]
    return LoadingCode(**{name: arguments.pop(name) for name in names if name in arguments})


# Typed samples from raw ones.

T_sample = TypeVar("T_sample")

_RESTORE_KIND = "Webdataset"
_ABSENT: Any = object()
_CHECKED = 4
"""How many samples of a loader are compared, in each process, with the types that are declared."""

_MOST_PLANS = 256
"""Sets of part names that a loader keeps a plan for; samples of one dataset have few."""


_Option = tuple[PartAccess, list[str]]
"""One way to a value, and the parts that it means among those of a sample."""

_Plan = list[tuple[str, str | None, list[_Option]]]
"""For each field its options, and the part of the first one where that is a part as a whole."""


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
        if self.sample_loader is not None and (self._crude or self.field_map is not None):
            why = "which has none" if self._crude else "so give no field_map too"
            raise ConfigError(f"sample_loader makes the fields of a {kind.__name__}, {why}")
        parts = self.part_filter
        if parts is not None and not callable(parts):
            if isinstance(parts, str) or not all(isinstance(name, str) for name in parts):
                raise ConfigError(f"part_filter is a function of a name, or names; got {parts!r}")
            object.__setattr__(self, "part_filter", tuple(dict.fromkeys(parts)))

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: the description, not what was compiled from it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def describe(self) -> dict[str, Any]:
        """Return the description as a JSON-able tree."""
        values = self.__getstate__()
        for name in ("sample_loader", "part_filter"):
            if values[name] is None:
                del values[name]
        return {"kind": type(self).__name__, **described(values)}

    def __call__(self, raw: Mapping[str, Any]) -> T_sample:
        kept = self.part_filter
        if kept is not None:
            kept = kept if callable(kept) else kept.__contains__
            raw = {name: raw[name] for name in raw if name.startswith("__") or kept(name)}
        try:
            if self._crude or self.sample_loader is not None:
                return self._load_all(raw)
            return self._load(raw)
        except DataError as reason:
            raise type(reason)(f"sample {raw['__key__']!r}: {reason}") from reason

    @cached_property
    def _crude(self) -> bool:
        return issubclass(self.sample_type, CrudeSample)

    # By field map. Which part a field is read from follows from the names of a sample's parts.

    def _load(self, raw: Mapping[str, Any]) -> T_sample:
        names = tuple(raw)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._planned(names)
        decode = None if self.decoder is None else self.decoder.decode
        contents: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for name, whole, options in plan:
            if whole is None:
                found = self._search(name, options, raw, contents)
                if found is not _ABSENT:
                    values[name] = found
                continue
            if whole not in contents:
                contents[whole] = raw[whole] if decode is None else decode(whole, raw[whole])
            values[name] = contents[whole]
        return self._typed(raw, values, contents)

    @cached_property
    def _plans(self) -> dict[tuple[str, ...], _Plan]:
        return {}

    @cached_property
    def _accesses(self) -> dict[str, tuple[PartAccess, ...]]:
        """For each field the parts it may come from."""
        given = default_field_map(self.sample_type) if self.field_map is None else self.field_map
        return {name: parse_field(text) for name, text in given.items()}

    def _planned(self, names: tuple[str, ...]) -> _Plan:
        """The plan for samples with parts of these names."""
        plan: _Plan = []
        for name, accesses in self._accesses.items():
            options = [(each, parts) for each in accesses if (parts := each.among(names))]
            whole = None
            if options and options[0][0].is_whole:
                (whole,) = options[0][1]
            plan.append((name, whole, options))
        if len(self._plans) < _MOST_PLANS:
            self._plans[names] = plan
        return plan

    def _search(
        self, name: str, options: list[_Option], raw: Mapping[str, Any], contents: dict[str, Any]
    ) -> Any:
        """What the first option that leads anywhere leads to; `_ABSENT` where a field may lack."""
        reasons: list[str] = []
        for access, parts in options:
            found = [self._content(part, raw, contents, keyed=bool(access.keys)) for part in parts]
            try:
                found = [access.within(each) for each in found]
            except DataError as reason:
                reasons.append(str(reason))
                continue
            return found if access.several else found[0]
        if self.field_map is None and name not in required_fields(self.sample_type):
            return _ABSENT
        there = ", ".join(part for part in raw if not part.startswith("__"))
        reasons = reasons or [f"the sample has only the parts {there or '(none)'}"]
        asked = " or ".join(map(str, self._accesses[name]))
        raise DataError(f"field {name!r} is read from {asked}, but {'; '.join(reasons)}")

    def _content(
        self, part: str, raw: Mapping[str, Any], contents: dict[str, Any], *, keyed: bool
    ) -> Any:
        """A part decoded; `keyed` to what keys lead into, JSON where nothing else is."""
        if part.startswith("__"):
            return raw[part]
        if part not in contents:
            decoder = self.decoder
            contents[part] = raw[part] if decoder is None else decoder.decode(part, raw[part])
        found = contents[part]
        as_json = keyed and isinstance(found, bytes | str)
        return decoded_by(load_json, part, raw[part]) if as_json else found

    # Of all parts, and what both ways make in the end.

    def _load_all(self, raw: Mapping[str, Any]) -> T_sample:
        """A crude sample, or the one that the program's function makes."""
        names = [name for name in raw if not name.startswith("__")]
        parts = dict(raw) if self.decoder is None else self.decoder(raw)
        if self._crude:
            return self.sample_type(parts | self._metadata(raw, names))  # type: ignore[call-arg]
        function: Any = self.sample_loader
        values = function({name: parts[name] for name in names} | self._metadata(raw, names))
        said = f"sample {raw['__key__']!r}: sample_loader returned"
        if not isinstance(values, Mapping):
            raise ConfigError(f"{said} a {type(values).__name__}, and no dict of fields")
        check_fields(self.sample_type, values, said)
        return self._typed(raw, values, names)

    def _typed(
        self, raw: Mapping[str, Any], values: Mapping[str, Any], parts: Iterable[str]
    ) -> T_sample:
        """A sample with these values, made of these parts."""
        if self._unchecked and self.decoder is not None:
            self._check_types(raw, values)
            self._unchecked.pop()
        return self.sample_type(**{**self._metadata(raw, parts), **values})

    def _metadata(self, raw: Mapping[str, Any], parts: Iterable[str]) -> dict[str, Any]:
        key, shard, index = raw["__key__"], raw["__shard__"], raw["__index__"]
        source = SourceInfo(
            dataset_path=raw["__dataset__"],
            index=index,
            shard_name=shard,
            file_names=tuple([f"{key}.{part}" for part in parts]),
        )
        return {
            "__key__": key,
            "__restore_key__": (_RESTORE_KIND, shard, index),
            "__subflavors__": dict(self.subflavors),
            "__sources__": (source,),
        }

    @cached_property
    def _unchecked(self) -> list[None]:
        """One for each of the first samples, whose values are compared with what is declared."""
        return [None] * _CHECKED

    def _check_types(self, raw: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        found = contradiction(self.sample_type, values)
        if found is not None:
            name, wrong = found
            told = "what sample_loader returned"
            if self.sample_loader is None:
                told = ",".join(map(str, self._accesses[name]))
            raise ConfigError(
                f"{raw['__dataset__']}, {raw['__shard__']}, sample {raw['__key__']!r}: the field "
                f"{name!r} of {self.sample_type.__name__} {wrong}, from {told}. Correct the field "
                "map, or make the value in a sample_loader, or in a cooker of crude samples"
            )


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
        pairs = zip(self.loaders, raw, strict=True)
        samples = [None if each is None else load(each) for load, each in pairs]
        if self.names is None:
            joined = self.function(*samples)
        else:
            joined = self.function(**dict(zip(self.names, samples, strict=True)))
        if not isinstance(joined, Sample | dict):
            raise ConfigError(
                f"sample {raw[0]['__key__']!r}: the joiner {function_name(self.function)} returns "
                f"a sample, and returned a {type(joined).__name__}"
            )
        return joined

    def describe(self) -> dict[str, Any]:
        """Return the description as a JSON-able tree."""
        return {
            "kind": type(self).__name__,
            "loaders": [described(each) for each in self.loaders],
            "names": list(self.names or ()),
            "function": function_name(self.function),
        }
