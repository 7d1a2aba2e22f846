"""Make typed samples of raw ones, by field maps, functions or code of folders.

`SampleLoader` makes a sample of one raw sample, `JoinLoader` of several joined ones.
`LoadingCode` decides which functions may replace field maps.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from inspect import get_annotations
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from energize.core import limits
from energize.core.description import described, function_name, order_name_of
from energize.core.os_errors import is_url
from energize.core.records import required_fields
from energize.core.samples import (
    CrudeSample,
    Sample,
    SourceInfo,
    is_package_module,
)
from energize.core.validation import load_json
from energize.data.files import path_of
from energize.data.nv_meta import META_FOLDER
from energize.data.trust import (
    VARIABLE,
    may_unpickle,
    trusted_modules,
    why_not,
)
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    UntrustedCodeError,
)
from energize.task.decode import SampleDecoder, decoded_by, undecoded
from energize.task.field_maps import (
    FieldCall,
    PartAccess,
    check_field_map,
    check_fields,
    check_sample_type,
    default_field_map,
    parse_call,
    parse_field,
)
from energize.task.images import sample_in_use
from energize.task.shapes import SHAPES
from energize.task.types import type_fault

FolderPath = str | os.PathLike[str]
LoadFunction = Callable[[dict[str, Any]], Mapping[str, Any]]
PartFilter = Callable[[str], bool] | Collection[str]


# Functions that a dataset.yaml names: given by the program, or run where it trusts the
# folder.


@dataclass(frozen=True, slots=True)
class FolderFunction:
    """A function of a file of a trusted data folder.

    The file is run when the function is first called in a process.
    """

    file: Path
    name: str

    def __call__(self, argument: Any) -> Any:
        return self.function(argument)

    @property
    def function(self) -> Callable[..., Any]:
        """The function; `DatasetError` if the file fails or does not have it."""
        function = getattr(_module(self.file), self.name, None)
        if not callable(function):
            raise DatasetError(f"{self.file} has no function {self.name!r}")
        return function  # type: ignore[no-any-return]

    def describe(self) -> str:
        """Return file and function, without the location of the folder."""
        return f"{self.file.name}:{self.name}"


@lru_cache(maxsize=64)
def _module(file: Path) -> ModuleType:
    """Return the module of a trusted file; run once in a process."""
    digest = hashlib.blake2b(str(file).encode(), digest_size=8).hexdigest()
    return run_file(file, f"energize_folder_code_{digest}")


def run_file(file: Path, name: str) -> ModuleType:
    """Run a Python file as a module; raise `DatasetError` if it fails."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise DatasetError(f"{file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in it look themselves up there
    try:
        spec.loader.exec_module(module)
    except Exception as reason:
        del sys.modules[name]
        raise DatasetError(
            f"{file} cannot be run: {type(reason).__name__}: {reason}"
        ) from reason
    return module


@dataclass(frozen=True)
class LoadingCode:
    """Functions and trusted folders that may replace field maps.

    Args:
        sample_loader: Function that returns the fields of a sample, by name, from a
            dict of its decoded parts. It replaces that of dataset.yaml, for all
            folders, or as a dict, for the folders that are its keys.
        part_filter: The parts that samples have: names, or a function of a name. Also
            for all folders or by folder.
        trust_code: Folders whose own files may be run, with all folders below them, in
            addition to the variable ENERGIZE_TRUST_CODE and the folders of `energize
            trust`; and modules that may be imported for factories in dataset.yaml.

    Raises:
        ConfigError: For wrong values.
    """

    sample_loader: LoadFunction | Mapping[FolderPath, LoadFunction] | None = None
    part_filter: PartFilter | Mapping[FolderPath, PartFilter] | None = None
    trust_code: Collection[FolderPath] = ()

    def __post_init__(self) -> None:
        if isinstance(self.trust_code, str | os.PathLike):
            folder = os.fspath(self.trust_code)
            raise ConfigError(
                f"trust_code must be a list of folders, [{folder!r}] for one"
            )
        loaders = self.sample_loader
        for function in loaders.values() if isinstance(loaders, Mapping) else [loaders]:
            if function is not None and not callable(function):
                raise ConfigError(
                    "sample_loader must be a function of a dict of parts, got "
                    f"{function!r}"
                )
        for module in trusted_modules(self.trust_code) if self.trust_code else ():
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise ConfigError(
                    f"trust_code: {module!r} is neither a folder nor a module that can "
                    "be imported: "
                    f"{error}"
                ) from error

    def of(
        self,
        folder: Path,
        code: Mapping[str, Any],
        decoder: SampleDecoder | None,
        *,
        crude: bool = False,
    ) -> tuple[LoadFunction | None, PartFilter | None, SampleDecoder | None]:
        """Return the sample loader, part filter and decoder of a folder.

        The decoder unpickles if the folder is trusted.

        Args:
            folder: The folder.
            code: Functions that its dataset.yaml names.
            decoder: The decoder, or None.
            crude: Whether its samples are crude; then a sample loader is an error.

        Raises:
            UntrustedCodeError: For a file that is not trusted.
            DatasetError: For files that are missing or fail.
        """
        if crude and "sample_loader" in code:
            raise DatasetError(
                f"{folder}: dataset.yaml has a sample_loader, but crude samples have "
                "no fields. Remove it, or set a sample_type"
            )
        if (
            decoder is not None
            and not decoder.unpickle
            and may_unpickle(folder, self.trust_code)
        ):
            decoder = replace(decoder, unpickle=True)
        if not (code or self.sample_loader or self.part_filter):
            return None, None, decoder
        loader = None if crude else self._of(folder, "sample_loader", code)
        return loader, self._of(folder, "part_filter", code), decoder

    def _of(self, folder: Path, key: str, code: Mapping[str, Any]) -> Any:
        """Return the function of the program for a folder, or else of the folder."""
        chosen = self._argument(folder, key)
        if chosen is not None:
            return chosen
        value = code.get(key)
        if not isinstance(value, str):
            return value
        return self._folder_function(folder, key, value)

    def _argument(self, folder: Path, key: str) -> Any:
        """Return the argument of the program that applies to a folder, or None."""
        argument = getattr(self, key)
        if not isinstance(argument, Mapping):
            return argument
        resolved = folder.resolve()
        matches = (
            function
            for path, function in argument.items()
            if path_of(path).resolve() == resolved
        )
        return next(matches, None)

    def _folder_function(self, folder: Path, key: str, value: str) -> FolderFunction:
        """Return the function that a dataset.yaml names; raise if it is not trusted."""
        named = f"{folder}: {key}: {value!r}"
        reason = why_not(folder, self.trust_code)
        if reason is not None:
            trusting = (
                " Look at it, and trust it: energize trust "
                f"{shlex.quote(str(folder))}; or in the program, "
                f"trust_code=[{str(folder)!r}], or {VARIABLE} in the environment. Or "
                "do without:"
            )
            raise UntrustedCodeError(
                f"{named} in dataset.yaml is code of the data folder, and {reason}."
                f"{' Do without:' if is_url(folder) else trusting} pass the function "
                "yourself, "
                f"{key}=..., a field_map, or cookers in your task encoder "
                "(CrudeWebdataset)"
            )
        file, _, name = value.partition(":")
        path = (folder / META_FOLDER / file).resolve()
        inside = path.is_relative_to((folder / META_FOLDER).resolve())
        if not inside and why_not(path, self.trust_code) is not None:
            raise UntrustedCodeError(
                f"{named} is outside the folder, in {path}, which is not in trust_code"
            )
        if not path.is_file():
            raise DatasetError(f"{named}: there is no file {path}")
        function = FolderFunction(path, name or key)
        _ = function.function  # raises its errors before the first sample
        return function


NO_CODE = LoadingCode()
"""Field maps only, and nothing of a folder is run."""


def loading_code(arguments: dict[str, Any]) -> LoadingCode:
    """Remove the arguments of `LoadingCode` from a dict, and return them.

    >>> arguments = {"part_filter": ["jpg"], "handler": None}
    >>> loading_code(arguments).part_filter, arguments
    (['jpg'], {'handler': None})
    """
    names = [option.name for option in fields(LoadingCode)]
    return LoadingCode(
        **{name: arguments.pop(name) for name in names if name in arguments}
    )


# Typed samples from raw ones.

T_sample = TypeVar("T_sample")

_RESTORE_TAG = "Webdataset"
_ABSENT: Any = object()
"""Value of an optional field with no matching part."""

_LIST = re.compile(r"(?:typing\.)?(?:Optional\[)?(?:typing\.)?[Ll]ist\[(.*)")
"""Annotation of a list, with the type of its elements."""

_ARRAYS = re.compile("Tensor|ndarray|Any")

_MOST_PLANS = 256
"""Sets of part names with a stored plan; a dataset has few."""


_Option = tuple[PartAccess, list[str]]
"""An access to a part, and the matching parts of a sample."""

_Decode = Callable[[str, bytes], Any]

_FieldPlan = tuple[str, str | None, list[_Option], _Decode | None, FieldCall | None]
"""The options of a field, the part of the first one if it is a whole part, the decoder
of the field, and the function of the options; the last two may be None."""


class _LoadPlan(NamedTuple):
    """How fields are read from samples with parts of the same names.

    Attributes:
        fields: The plan of each field.
        whole: Field and part of each field, if all are different whole parts without
            decoders of their own; else None.
        endings: The part names after the key, in the order of `whole`.
    """

    fields: list[_FieldPlan]
    whole: tuple[tuple[str, str], ...] | None
    endings: tuple[str, ...]

    @classmethod
    def of(cls, plans: list[_FieldPlan]) -> _LoadPlan:
        """Return the plan of these fields."""
        names = dict.fromkeys(part for _, part, *_ in plans)
        single = len(names) == len(plans) and None not in names
        if not single or any(decode is not None for *_, decode, _ in plans):
            return cls(plans, None, ())
        whole = tuple((field, str(part)) for field, part, *_ in plans)
        return cls(plans, whole, tuple(f".{part}" for _, part in whole))


@dataclass(frozen=True, kw_only=True)
class SampleLoader(Generic[T_sample]):
    """Makes samples of a type from raw ones; mapped over a source.

    A raw sample, as `WebdatasetSource` returns it, is a dict of `__key__`,
    `__dataset__`, `__shard__`, `__index__` and the bytes of its parts by name. Only
    parts that a field needs are decoded, each once.

    Args:
        sample_type: The type of the samples. A `CrudeSample` has all parts, decoded, by
            name.
        field_map: The part of each field: "jpg,png" is the first of these that the
            sample has, "json[caption][en]" a value in a JSON part, "*.jpg" the list of
            all matching parts, 0.jpg before 10.jpg. By default, the usual parts (`jpg`,
            `png` for an image, `txt` for a text, `cls` for a label, else a key of
            `json`); fields with a default may be missing.
        decoder: Decodes parts. None leaves bytes, but keys in brackets still read JSON.
        subflavors: Labels of the samples.
        sample_loader: Instead of a field map: function of a dict of decoded parts and
            metadata that returns a dict of fields.
        part_filter: The parts that samples have: names, or a function of a name.
        checked: Fields with values that must fit their annotated types.
        numbered: The source that numbers the samples by its shards.

    Raises:
        ConfigError: For a wrong type, unknown or missing fields, and malformed
            descriptions. Calls raise `DataError` for a missing part or key, and
            `DecodeError`.

    Example:
        >>> from energize import TextSample
        >>> load = SampleLoader(
        ...     sample_type=TextSample, field_map={"text": "json[body]"}
        ... )
        >>> raw = {
        ...     "__key__": "a",
        ...     "__dataset__": "texts",
        ...     "__shard__": "0.tar",
        ...     "__index__": 0,
        ... }
        >>> load(raw | {"json": b'{"body": "hello"}'}).text
        'hello'
    """

    order_name: ClassVar[str] = "SampleLoader"

    sample_type: type[T_sample]
    field_map: Mapping[str, str] | None = None
    decoder: SampleDecoder | None = field(default_factory=SampleDecoder)
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    sample_loader: LoadFunction | None = None
    part_filter: PartFilter | None = None
    checked: Sequence[str] = ()
    """Fields with values that must fit their annotated types."""
    numbered: Any = field(default=None, repr=False, compare=False)
    """The source that numbers the samples by its shards, if there is one."""
    loads_stored: ClassVar[bool] = True
    """The key of a stored sample restores the result."""

    def __post_init__(self) -> None:
        sample_type = self.sample_type
        check_sample_type(sample_type)
        object.__setattr__(self, "subflavors", dict(self.subflavors))
        if self.field_map is not None:
            object.__setattr__(self, "field_map", dict(self.field_map))
            check_field_map(sample_type, self.field_map)
        if self.sample_loader is not None and (
            self._crude or self.field_map is not None
        ):
            why = "which has no fields" if self._crude else "so remove field_map"
            raise ConfigError(
                f"sample_loader must return the fields of a {sample_type.__name__}, "
                f"{why}"
            )
        object.__setattr__(self, "part_filter", _checked_filter(self.part_filter))

    def numbered_by(self, source: Any) -> Self:
        """Return the same loader, with samples numbered by the shards of a source."""
        other = object.__new__(type(self))
        vars(other).update(self.__getstate__(), numbered=source)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without plans."""
        return {option.name: getattr(self, option.name) for option in fields(self)}

    def describe(self) -> dict[str, Any]:
        """Return the description as a JSON-able tree."""
        values = self.__getstate__()
        del values["numbered"], values["checked"]
        for name in ("sample_loader", "part_filter"):
            if values[name] is None:
                del values[name]
        return {"kind": order_name_of(self), **described(values)}

    def __call__(self, raw: Mapping[str, Any]) -> T_sample:
        if self._copies_bytes:
            plan = self._plans.get(tuple(raw))
            if plan is not None and plan.whole is not None:
                values = self._metadata(raw, plan.endings)
                for name, part in plan.whole:
                    values[name] = raw[part]
                return self.sample_type(**values)
        return self._load_checked(raw)

    def _load_checked(self, raw: Mapping[str, Any]) -> T_sample:
        """Return the sample; name its key in errors, and limit decoded bytes."""
        is_part = self.part_filter
        if is_part is not None:
            is_part = is_part if callable(is_part) else is_part.__contains__
            raw = {
                name: raw[name]
                for name in raw
                if name.startswith("__") or is_part(name)
            }
        load = (
            self._load_all
            if self._crude or self.sample_loader is not None
            else self._load
        )
        blocks = (
            limits.decoding.blocks
        )  # what `with limits.decoding` does, for each sample
        blocks.append(0)
        token = sample_in_use.set(raw)
        try:
            return load(raw)
        except DataError as reason:
            raise type(reason)(f"sample {raw['__key__']!r}: {reason}") from reason
        except UntrustedCodeError as reason:
            folder = raw["__dataset__"]
            raise UntrustedCodeError(
                f"sample {raw['__key__']!r} of {folder}: {reason}. To trust all "
                f"pickles of the folder: energize trust --pickles {shlex.quote(folder)}"
                f", or trust_code=[folder] in the program, or {VARIABLE} in the "
                "environment"
            ) from None
        finally:
            sample_in_use.reset(token)
            blocks.pop()

    @property
    def is_pure(self) -> bool:
        """Whether samples depend on bytes only, and on no function of the user."""
        decoders = () if self.decoder is None else self.decoder.fields.values()
        is_library_code = all(
            decoder is None or isinstance(decoder, SampleDecoder)
            for decoder in decoders
        )
        check = getattr(self.sample_type, "__post_init__", None)
        is_library_code = is_library_code and (
            check is None or is_package_module(check.__module__)
        )
        return (
            is_library_code
            and self.sample_loader is None
            and not callable(self.part_filter)
        )

    @cached_property
    def _copies_bytes(self) -> bool:
        """Whether fields of whole parts are their bytes, without decoding or checks."""
        functions = self.decoder, self.part_filter, self.sample_loader
        checks = getattr(self.sample_type, "__post_init__", None)
        is_plain = functions == (None, None, None) and checks is None
        return is_plain and not (self._crude or self._lists or self.checked)

    @cached_property
    def _crude(self) -> bool:
        return issubclass(self.sample_type, CrudeSample)

    # By field map. Which part a field is read from follows from the names of a sample's
    # parts.

    def _load(self, raw: Mapping[str, Any]) -> T_sample:
        names = tuple(raw)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._planned(names)
        usual: _Decode = undecoded if self.decoder is None else self.decoder.decode
        if plan.whole is not None:
            values = self._metadata(raw, plan.endings)
            for name, part in plan.whole:
                values[name] = usual(part, raw[part])
            if self._lists or self.checked:
                self._conform(values)
            return self.sample_type(**values)
        contents: dict[str, Any] = {}
        values = {}
        for name, whole, options, field_decoder, call in plan.fields:
            decoded = contents
            decode = usual
            if field_decoder is not None:
                decoded = {}
                decode = field_decoder
            if whole is None:
                content = partial(_content, raw, decoded, decode)
                if call is not None:
                    values[name] = _called(name, call, options, content)
                elif (
                    value := self._search(name, options, raw, content)
                ) is not _ABSENT:
                    values[name] = value
            elif (value := decoded.get(whole, _ABSENT)) is _ABSENT:
                values[name] = decoded[whole] = decode(whole, raw[whole])
            else:
                values[name] = value
            if (
                field_decoder is not None
            ):  # the parts of a sample are named in its metadata
                contents |= {part: contents.get(part, _ABSENT) for part in decoded}
        self._conform(values)
        metadata = self._metadata(raw, map(".".__add__, contents))
        return self.sample_type(**{**metadata, **values})

    def _conform(self, values: dict[str, Any]) -> None:
        """Wrap single values of list fields in lists, and check types of fields.

        Raises:
            DataError: If a value of a checked field is of another type.
        """
        for name, elements in self._lists.items():
            value = values.get(name)
            if isinstance(value, str):
                alone = "str" in elements
            elif hasattr(value, "ndim"):
                alone = _ARRAYS.search(elements) is not None
            else:
                alone = not (value is None or isinstance(value, list | tuple))
            if alone:
                values[name] = [value]
        for name in self.checked:
            fault = type_fault(self.sample_type, name, values.get(name, ""))
            if fault:
                raise DataError(f"field {name!r}: {fault}")

    @cached_property
    def _lists(self) -> dict[str, str]:
        """List fields, with the annotation of their elements."""
        classes = reversed(self.sample_type.__mro__)
        annotations = {
            n: str(a) for base in classes for n, a in get_annotations(base).items()
        }
        matches = {name: _LIST.match(text) for name, text in annotations.items()}
        return {name: match[1] for name, match in matches.items() if match is not None}

    @cached_property
    def _plans(self) -> dict[tuple[str, ...], _LoadPlan]:
        return {}

    @cached_property
    def _accesses(self) -> dict[str, tuple[PartAccess, ...]]:
        """The accesses of each field, preferred first."""
        field_map = (
            default_field_map(self.sample_type)
            if self.field_map is None
            else self.field_map
        )
        return {name: parse_field(text) for name, text in field_map.items()}

    @cached_property
    def _calls(self) -> dict[str, FieldCall]:
        """Calls of fields that functions make."""
        calls = {
            name: parse_call(text) for name, text in (self.field_map or {}).items()
        }
        return {name: call for name, call in calls.items() if call is not None}

    def _planned(self, names: tuple[str, ...]) -> _LoadPlan:
        """Return the plan for samples with parts of these names."""
        plan = _LoadPlan.of(
            [self._plan_field(field, names) for field in self._accesses]
        )
        if len(self._plans) < _MOST_PLANS:
            self._plans[names] = plan
        return plan

    def _plan_field(self, field: str, names: tuple[str, ...]) -> _FieldPlan:
        call = self._calls.get(field)
        options = [(access, access.among(names)) for access in self._accesses[field]]
        if call is None:
            options = [option for option in options if option[1]]
        whole = None
        if call is None and options and options[0][0].is_whole:
            whole = options[0][1][0]
        decode = None
        if self.decoder is not None and field in self.decoder.fields:
            decode = self.decoder.decode_of(field)
        return field, whole, options, decode, call

    def _search(
        self,
        name: str,
        options: list[_Option],
        raw: Mapping[str, Any],
        content: Callable[..., Any],
    ) -> Any:
        """Return the value of the first matching option, or `_ABSENT`."""
        reasons: list[str] = []
        for access, parts in options:
            values = [content(part, keyed=bool(access.keys)) for part in parts]
            try:
                values = [access.within(value) for value in values]
                return values if access.several else values[0]
            except DataError as reason:
                reasons.append(str(reason))
        if self._may_lack(name):
            return _ABSENT
        existing = ", ".join(part for part in raw if not part.startswith("__"))
        reasons = reasons or [f"the sample has only the parts {existing or '(none)'}"]
        expected = " or ".join(map(str, self._accesses[name]))
        raise DataError(
            f"field {name!r} is read from {expected}, but {'; '.join(reasons)}"
        )

    def _may_lack(self, field: str) -> bool:
        """Return whether a field may have no part."""
        is_list = any(access.several for access in self._accesses[field])
        is_optional = is_list or self.field_map is None
        return is_optional and field not in required_fields(self.sample_type)

    # Of all parts, and what both ways make in the end.

    def _load_all(self, raw: Mapping[str, Any]) -> T_sample:
        """Return a crude sample, or the result of the sample loader."""
        names = [name for name in raw if not name.startswith("__")]
        endings = [f".{name}" for name in names]
        parts = dict(raw) if self.decoder is None else self.decoder(raw)
        if self._crude:
            sample = parts | self._metadata(raw, endings)
            return self.sample_type(sample)  # type: ignore[call-arg]
        function: Any = self.sample_loader
        values = function(
            {name: parts[name] for name in names} | self._metadata(raw, endings)
        )
        prefix = f"sample {raw['__key__']!r}: sample_loader returned"
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{prefix} a {type(values).__name__}, not a dict of fields"
            )
        check_fields(self.sample_type, values, prefix)
        fields = dict(values)
        self._conform(fields)
        return self.sample_type(**{**self._metadata(raw, endings), **fields})

    @cached_property
    def _first_indices(self) -> Mapping[str, int]:
        """Index of the first sample of each shard."""
        if self.numbered is None:
            return defaultdict(int)
        firsts = accumulate(self.numbered.counts, initial=0)
        return dict(zip(self.numbered.shards, firsts, strict=False))

    def _metadata(
        self, raw: Mapping[str, Any], endings: Iterable[str]
    ) -> dict[str, Any]:
        """Return the metadata of a sample with files of the key and these endings."""
        key = raw["__key__"]
        shard = raw["__shard__"]
        index = raw["__index__"]
        source = SourceInfo(
            dataset_path=raw["__dataset__"],
            index=self._first_indices[shard] + index,
            shard_name=shard,
            file_names=tuple([key + ending for ending in endings]),
        )
        return {
            "__key__": key,
            "__restore_key__": (_RESTORE_TAG, shard, index),
            "__subflavors__": dict(self.subflavors),
            "__sources__": (source,),
        }


def _checked_filter(parts: PartFilter | None) -> PartFilter | None:
    """Return a filter of parts, names without duplicates."""
    if parts is None or callable(parts):
        return parts
    if isinstance(parts, str) or not all(isinstance(name, str) for name in parts):
        raise ConfigError(
            f"part_filter must be a function of a name, or names, got {parts!r}"
        )
    return tuple(dict.fromkeys(parts))


def _called(
    field: str, call: FieldCall, options: list[_Option], content: Callable[..., Any]
) -> Any:
    """Return the result of a function of parts; a missing part is None."""
    arguments: list[tuple[str, Any]] = []
    for (label, access), (_, parts) in zip(call.arguments, options, strict=True):
        value: Any = (
            [content(part, keyed=False) for part in parts] if access.several else None
        )
        if parts and not access.several:
            with suppress(DataError):
                value = access.within(content(parts[0], keyed=bool(access.keys)))
        arguments.append((label, value))
    try:
        return SHAPES[call.name]([*arguments, *call.texts])
    except DataError as reason:
        raise DataError(f"field {field!r} is {call}, but {reason}") from reason


def _content(
    raw: Mapping[str, Any],
    contents: dict[str, Any],
    decode: _Decode,
    part: str,
    *,
    keyed: bool,
) -> Any:
    """Return a decoded part; if `keyed`, an undecoded part is read as JSON."""
    if part.startswith("__"):
        return raw[part]
    if contents.get(part, _ABSENT) is _ABSENT:
        contents[part] = decode(part, raw[part])
    content = contents[part]
    as_json = keyed and isinstance(content, bytes | str)
    return decoded_by(load_json, part, raw[part]) if as_json else content


# Joined samples: each loaded by the type of its own dataset, then made one.


@dataclass(frozen=True)
class JoinLoader:
    """Makes one sample of several raw ones; mapped over a `JoinedSource`.

    Args:
        loaders: The loader of each raw sample; None stays None.
        names: Keywords for the loaded samples; None passes them by position.
        function: Joins the loaded samples.

    Raises:
        ConfigError: If `function` does not return a sample; calls also raise errors of
            the loaders and of `function`.
    """

    order_name: ClassVar[str] = "JoinLoader"

    loaders: tuple[Callable[[Any], Any], ...]
    names: tuple[str, ...] | None
    function: Callable[..., Any]
    loads_stored: ClassVar[bool] = True

    @property
    def is_pure(self) -> bool:
        """Whether joined samples depend on bytes only."""
        library_function = getattr(Sample.from_joined, "__func__", None)
        is_library_code = getattr(self.function, "__func__", None) is library_function
        return is_library_code and all(
            getattr(loader, "is_pure", False) for loader in self.loaders
        )

    @limits.decoding
    def __call__(self, raw: Sequence[Any]) -> Any:
        pairs = zip(self.loaders, raw, strict=True)
        samples = [None if part is None else load(part) for load, part in pairs]
        if self.names is None:
            joined = self.function(*samples)
        else:
            joined = self.function(**dict(zip(self.names, samples, strict=True)))
        if not isinstance(joined, Sample | dict):
            raise ConfigError(
                f"sample {raw[0]['__key__']!r}: the joiner "
                f"{function_name(self.function)} must return a sample, but returned a "
                f"{type(joined).__name__}"
            )
        return joined

    def describe(self) -> dict[str, Any]:
        """Return the description as a JSON-able tree."""
        return {
            "kind": order_name_of(self),
            "loaders": [described(loader) for loader in self.loaders],
            "names": list(self.names or ()),
            "function": function_name(self.function),
        }
