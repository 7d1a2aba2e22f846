"""Choose the sample type of a folder, and the parts its fields are read from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from energize.core.records import required_fields, type_fields
from energize.core.samples import METADATA, SAMPLE_TYPES, CrudeSample
from energize.data.nv_meta import CRUDE, SampleConfig
from energize.errors import ConfigError, DataError, PrepareError, nearest, some
from energize.preparation.scan import ShardHeaders
from energize.task.field_maps import (
    PartAccess,
    check_field_map,
    default_field_map,
    parse_field,
)

_TYPED = [name for name, cls in SAMPLE_TYPES.items() if cls is not CrudeSample]
SAMPLE_TYPE_NAMES = (*_TYPED, CRUDE)
"""Values of `sample_type`."""

# What both libraries import their sample types from.
_MODULE = "megatron.energon"
_COMPARED = 100
"""Samples that are searched for the keys of a field map."""
_USUAL: Mapping[str, tuple[str, ...]] = {
    "ConversationSample": (),
    "MultiChoiceVQASample": ("choices",),
    "VQASample": ("answers",),
    "CaptioningSample": (),
    "ImageClassificationSample": ("label",),
    "ImageSample": (),
    "TextSample": (),
}
"""The usual types; and fields without which samples are of another, though they may be
missing."""


_ALSO: Mapping[str, str] = {"caption": ",json[title],json[description]"}
"""Where a field is looked for last, when a field map is proposed."""


class FirstLook:
    """The parts of all samples of a shard, and the contents of its first samples.

    `json_keys` are the keys of the `json` part of the first sample.

    Args:
        path: The shard.

    Raises:
        ShardError: If the shard is damaged.
    """

    def __init__(self, path: Path) -> None:
        shard = ShardHeaders(path.parent, path.name)
        self.path = path
        self.parts = tuple(
            {part.name: 0 for entry in shard.content.samples for part in entry.parts}
        )
        self.samples = list(islice(shard.samples(), _COMPARED))
        self.json_keys: tuple[str, ...] = ()
        with suppress(PrepareError):
            for sample in self.samples[:1]:
                access = PartAccess("json")
                content = sample.json(access) if access.among(sample.sizes) else {}
                self.json_keys = tuple(content) if isinstance(content, dict) else ()

    def check_keys(self, field: str, source: str) -> None:
        """Raise `PrepareError` if no first sample has the JSON keys of a field."""
        reasons: dict[str, None] = {}
        for sample in self.samples:
            for access in parse_field(source):
                if access.among(sample.sizes):
                    try:
                        if access.keys:
                            sample.json(access)
                        return
                    except (DataError, PrepareError) as reason:
                        reasons[str(reason)] = None
        if reasons:
            count = len(self.samples)
            raise PrepareError(
                f"field map: {field!r} is read from {source!r}, but in the first "
                f"{f'{count} samples' if count > 1 else 'sample'} of {self.path} "
                f"{'; '.join(list(reasons)[:2])}"
            )

    def check_lists(self, field_map: Mapping[str, str]) -> None:
        """Raise `PrepareError` for a field that would hold names of parts.

        JSON can list the names of parts, such as images between texts.
        """
        for field, source in field_map.items():
            access = parse_field(source)[0]
            for sample in self.samples[:1] if access.keys else ():
                content = sample.json(access)
                values = content if isinstance(content, list) else ()
                part_names = [
                    value
                    for value in values
                    if isinstance(value, str) and value in sample.sizes
                ]
                if part_names:
                    raise PrepareError(
                        f"field map: {field!r} would have the names of parts in "
                        f"{source!r}, like {part_names[0]!r}, and not the "
                        "parts. Make it CrudeWebdataset, and insert the parts in a "
                        "cooker or a sample_loader (or, for the names, use --field-map "
                        f"{field}={source})"
                    )


def sample_fields(sample_type: str | type[Any]) -> dict[str, bool]:
    """Return the fields of a sample type, and whether each is required."""
    sample_class = (
        SAMPLE_TYPES[sample_type] if isinstance(sample_type, str) else sample_type
    )
    names = () if sample_class is CrudeSample else type_fields(sample_class)
    return {
        name: name in required_fields(sample_class)
        for name in names
        if name not in METADATA
    }


def check_choice(sample_type: str | None, field_map: Mapping[str, str] | None) -> None:
    """Raise `ConfigError` for an unknown sample type, or a wrong field map."""
    if sample_type is None:
        if field_map:
            raise ConfigError(
                "a field map needs a sample type. Pass sample_type (--sample-type)"
            )
        return
    if sample_type not in SAMPLE_TYPE_NAMES:
        raise ConfigError(
            f"sample type {sample_type!r} is not "
            f"known{nearest(sample_type, SAMPLE_TYPE_NAMES) or '.'} Known types: "
            f"{', '.join(SAMPLE_TYPE_NAMES)}"
        )
    if field_map is not None:
        check_field_map(SAMPLE_TYPES[sample_type], field_map)


def choose_config(
    sample_type: str | type[Any] | None,
    field_map: Mapping[str, str] | None,
    look: FirstLook,
    parts: Collection[str],
) -> SampleConfig | None:
    """Return the sample type and field map for `dataset.yaml`.

    Args:
        sample_type: The sample type; None writes no `dataset.yaml`.
        field_map: The parts of the fields; None proposes them.
        look: The first samples.
        parts: Names of the parts of all samples.

    Raises:
        PrepareError: If no sample has the parts of a field, or no part can be proposed
            for a required field.
    """
    if sample_type is None:
        return None
    if sample_type in (CRUDE, CrudeSample):
        return SampleConfig(_MODULE, CRUDE)
    called = sample_type if isinstance(sample_type, str) else sample_type.__name__
    chosen = dict(field_map or {})
    if field_map is None:
        chosen = propose_field_map(sample_type, look)
        look.check_lists(chosen)
    _check_parts_exist(chosen, parts)
    for name, needed in sample_fields(sample_type).items():
        if needed and name not in chosen:
            keys = ""
            if look.json_keys:
                keys = f", keys of the json part: {some(look.json_keys)}"
            raise PrepareError(
                f"the field map has no part for the {name!r} of a {called}. Pass a "
                "field map (--field-map). "
                f"{_parts_listed(parts)}{keys}"
            )
    return SampleConfig(module_of(called), called, chosen)


def _check_parts_exist(field_map: Mapping[str, str], parts: Collection[str]) -> None:
    """Raise `PrepareError` for a field that is read from parts no sample has."""
    for name, source in field_map.items():
        accesses = parse_field(source)
        if not any(access.among(parts) for access in accesses):
            near = nearest(accesses[0].part, list(parts))
            raise PrepareError(
                f"field map: no sample has {source!r} for {name!r}{near}. "
                f"{_parts_listed(parts)}"
            )


def _parts_listed(parts: Collection[str]) -> str:
    return f"Parts found: {some(sorted(parts))}"


def module_of(sample_type: str) -> str:
    """Return the module of a type for `dataset.yaml`, Energon's if it has the type."""
    is_new = sample_type in ("ConversationSample", "GroundingSample")
    return "energize" if is_new else _MODULE


def propose_field_map(sample_type: str | type[Any], look: Any) -> dict[str, str]:
    """Return the parts that usually hold each field, if samples have them."""
    proposed: dict[str, str] = {}
    sample_class = (
        SAMPLE_TYPES[sample_type] if isinstance(sample_type, str) else sample_type
    )
    usual = {} if sample_class is CrudeSample else default_field_map(sample_class)
    for name, source in usual.items():
        accesses = parse_field(f"{source}{_ALSO.get(name, '')}")
        whole = [access for access in accesses if access.is_whole]
        parts = [part for access in whole for part in access.among(look.parts)]
        options = parts or _keyed(accesses, look.json_keys)[:1]
        if options:
            proposed[name] = ",".join(options)
    return proposed


def _keyed(accesses: Iterable[PartAccess], json_keys: Collection[str]) -> list[str]:
    """Return the accesses with a first key among the keys of the JSON part."""
    keyed = [access for access in accesses if access.keys]
    return [str(access) for access in keyed if access.keys[0] in json_keys]


def propose_sample_type(look: Any, fixed: Collection[str] = ()) -> str:
    """Return the first usual sample type with parts for all required fields.

    `fixed` are fields that the type must have, and that need no part.
    """
    for name, telling in _USUAL.items():
        fields = sample_fields(name)
        wanted = {field for field, needed in fields.items() if needed} | set(telling)
        if set(fixed) <= fields.keys() and wanted <= {
            *propose_field_map(name, look),
            *fixed,
        }:
            return name
    return CRUDE


def field_notes(
    config: SampleConfig | None, parts: Mapping[str, int], total: int
) -> list[str]:
    """Return notes on required fields with parts that some samples must lack."""
    notes = []
    for name, source in ((config and config.field_map) or {}).items():
        part_names = {
            part for access in parse_field(source) for part in access.among(parts)
        }
        count = sum(parts[part] for part in part_names)
        if config and sample_fields(config.sample_class)[name] and count < total:
            notes.append(
                f"at least {total - count} of {total} samples have no part for the "
                f"field {name!r} "
                f"({source}); reading them will fail"
            )
    return notes
