"""Which type the samples of a folder have, and from which parts its fields are filled."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from energize.core.samples import METADATA, SAMPLE_TYPES, CrudeSample, required_fields, type_fields
from energize.data.nv_meta import CRUDE, DatasetConfig
from energize.errors import ConfigError, PrepareError, nearest
from energize.preparation.first_look import FirstLook
from energize.task.fields import default_field_map, parse_field

SAMPLE_TYPE_NAMES = tuple(name for name, kind in SAMPLE_TYPES.items() if kind is not CrudeSample)
SAMPLE_TYPE_NAMES = (*SAMPLE_TYPE_NAMES, CRUDE)
"""What `sample_type` may be."""

# What both libraries import their sample types from.
_MODULE = "megatron.energon"


def sample_fields(sample_type: str) -> dict[str, bool]:
    """The fields of a sample type, and whether each must be given; none for crude samples."""
    if sample_type == CRUDE:
        return {}
    kind = SAMPLE_TYPES[sample_type]
    required = required_fields(kind)
    return {name: name in required for name in type_fields(kind) if name not in METADATA}


def check_choice(sample_type: str | None, field_map: Mapping[str, str] | None) -> None:
    """Raises `ConfigError` for an unknown sample type or field, or a field that is missing."""
    if sample_type is None:
        if field_map:
            raise ConfigError(
                "a field map needs the sample type whose fields it fills: give sample_type "
                "(--sample-type)"
            )
        return
    if sample_type not in SAMPLE_TYPE_NAMES:
        raise ConfigError(
            f"sample type {sample_type!r} is not known{nearest(sample_type, SAMPLE_TYPE_NAMES)}; "
            f"known are {', '.join(SAMPLE_TYPE_NAMES)}"
        )
    fields = sample_fields(sample_type)
    for name, source in (field_map or {}).items():
        if name not in fields:
            known = ", ".join(fields) or "none, it keeps all parts as they are"
            raise ConfigError(
                f"field map: {sample_type} has no field {name!r}{nearest(name, list(fields))}; "
                f"its fields are {known}"
            )
        parse_field(source)
    missing = [name for name, needed in fields.items() if needed and name not in (field_map or {})]
    if field_map is not None and missing:
        raise ConfigError(
            f"field map: {sample_type} needs the fields {', '.join(missing)} too; say from which "
            "parts they come"
        )


def choose_config(
    sample_type: str | None,
    field_map: Mapping[str, str] | None,
    look: FirstLook,
    parts: Collection[str],
) -> DatasetConfig | None:
    """The choice as `dataset.yaml` has it, proposing a field map where none was given.

    Raises `PrepareError` when a field comes from parts that no sample has, or when none can be
    proposed for a field that is needed.
    """
    if sample_type is None:
        return None
    if sample_type == CRUDE:
        return DatasetConfig(_MODULE, CRUDE)
    chosen = propose_field_map(sample_type, look) if field_map is None else dict(field_map)
    for name, source in chosen.items():
        wanted = parse_field(source)
        if not any(access.among(parts) for access in wanted):
            raise PrepareError(
                f"field map: {name!r} is to come from {source!r}, but no sample has such a part"
                f"{nearest(wanted[0].part, list(parts))}. Parts found: {_listed(parts)}"
            )
    for name, needed in sample_fields(sample_type).items():
        if needed and name not in chosen:
            keys = f", keys of the json part: {_listed(look.json_keys)}" if look.json_keys else ""
            raise PrepareError(
                f"nothing says which part holds the {name!r} of a {sample_type}; give a field map "
                f'(--field-map \'{{"{name}": "...", ...}}\'). Parts found: {_listed(parts)}{keys}'
            )
    return DatasetConfig(_MODULE, sample_type, chosen)


def propose_field_map(sample_type: str, look: FirstLook) -> dict[str, str]:
    """For each field the parts that usually hold it, as far as there are any."""
    proposed: dict[str, str] = {}
    if sample_type == CRUDE:
        return proposed
    for name, usual in default_field_map(SAMPLE_TYPES[sample_type]).items():
        accesses = parse_field(usual)
        plain = [each.part for each in accesses if not each.keys and each.part in look.parts]
        keyed = [
            str(each)
            for each in accesses
            if each.part == "json" and each.keys[:1] and each.keys[0] in look.json_keys
        ]
        if plain or keyed:
            proposed[name] = ",".join(plain or keyed[:1])
    return proposed


def propose_sample_type(look: FirstLook) -> str:
    """The first of the usual sample types of whose fields there is something in the parts."""
    for name in (
        "MultiChoiceVQASample",
        "VQASample",
        "CaptioningSample",
        "ImageClassificationSample",
        "ImageSample",
        "TextSample",
    ):
        proposed = propose_field_map(name, look)
        wanted = [field for field, needed in sample_fields(name).items() if needed]
        wanted += _TELLING.get(name, ())
        if all(field in proposed for field in wanted):
            return name
    return CRUDE


_TELLING = {
    "MultiChoiceVQASample": ("choices",),
    "VQASample": ("answers",),
    "ImageClassificationSample": ("label",),
}
"""Fields without which a sample is more likely of another type, though they may be left out."""


def field_notes(config: DatasetConfig | None, parts: Mapping[str, int], total: int) -> list[str]:
    """Fields that are needed but whose parts cannot be in every sample."""
    if config is None or config.field_map is None:
        return []
    notes = []
    needed = sample_fields(config.sample_class)
    for name, source in config.field_map.items():
        named = {part for each in parse_field(source) for part in each.among(parts)}
        found = sum(parts[part] for part in named)
        if needed[name] and found < total:
            notes.append(
                f"at least {total - found} of {total} samples have no part for the field {name!r} "
                f"({source}); reading them will fail"
            )
    return notes


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:20]
    return ", ".join(shown) + (" ..." if len(names) > len(shown) else "")
