"""Typed samples from raw ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from energize.describing import described
from energize.errors import ConfigError, DataError
from energize.samples.crude import CrudeSample
from energize.samples.field_map import (
    PartAccess,
    check_field_map,
    default_field_map,
    parse_field,
)
from energize.samples.sample import Sample
from energize.samples.source_info import SourceInfo
from energize.samples.structure import required_fields, type_fields
from energize.task_encoder.decoding import SampleDecoder, decoded_by
from energize.task_encoder.parts import decode_json

T_sample = TypeVar("T_sample")

_RESTORE_KIND = "Webdataset"
_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class SampleLoader(Generic[T_sample]):
    """Makes samples of `sample_type` from raw ones: a function to map over a source.

    A raw sample is what `WebdatasetSource` gives: a dict of `__key__`, `__dataset__`, `__shard__`,
    `__index__` and the bytes of its parts by name. `field_map` says for each field which part it
    comes from: "jpg,png" is the first of these that the sample has; "json[caption][en]" a value
    inside a JSON part. Only parts that a field needs are decoded, each once. With `decoder=None`
    they stay bytes; keys in brackets read JSON all the same.

    Without a field map the usual parts are taken (`jpg`, `png` for an image, `txt` for a text,
    `cls` for a label, else a key of `json`), and fields with a default may be missing.

    A `CrudeSample` has all parts, decoded, by their names.

    Raises `ConfigError` for a type that is no sample type, fields that it does not have, fields
    without a default that the map leaves out, and malformed descriptions. Calling it raises
    `DataError` naming the sample, when a part or a key is missing, and `DecodeError`.

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
        _ = self._accesses  # descriptions are parsed here, not at the first sample

    def describe(self) -> dict[str, Any]:
        """The description as a JSON-able tree."""
        parameters = {each.name: described(getattr(self, each.name)) for each in fields(self)}
        return {"kind": type(self).__name__} | parameters

    def __call__(self, raw: Mapping[str, Any]) -> T_sample:
        try:
            return self._load_crude(raw) if self._crude else self._load(raw)
        except DataError as reason:
            raise type(reason)(f"sample {raw['__key__']!r}: {reason}") from reason

    @property
    def _crude(self) -> bool:
        return issubclass(self.sample_type, CrudeSample)

    @cached_property
    def _accesses(self) -> dict[str, tuple[PartAccess, ...]]:
        """For each field the parts it may come from."""
        if self._crude:
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
        names = dict.fromkeys(part for part, _ in contents)
        return self.sample_type(**values, **self._metadata(raw, names))

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
            if option.part not in raw:
                continue
            seen = (option.part, bool(option.keys))
            if seen not in contents:
                contents[seen] = self._content(option, raw[option.part])
            try:
                return option.within(contents[seen])
            except DataError as reason:
                reasons.append(str(reason))
        if name in self._optional:
            return _ABSENT
        parts = ", ".join(part for part in raw if not part.startswith("__"))
        reasons = reasons or [f"the sample has only the parts {parts or '(none)'}"]
        asked = " or ".join(map(str, options))
        raise DataError(f"field {name!r} is read from {asked}, but {'; '.join(reasons)}")

    def _content(self, access: PartAccess, data: bytes) -> Any:
        if access.keys:
            return decoded_by(decode_json, access.part, data)
        return data if self.decoder is None else self.decoder.decode(access.part, data)

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
