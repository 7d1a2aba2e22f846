"""What all samples have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from energize.errors import ConfigError
from energize.late import torch
from energize.padding import Markable
from energize.samples.pinning import pin_memory
from energize.samples.source_info import SourceInfo
from energize.samples.structure import build, fields_of, is_record, type_fields

RestoreKey = tuple[Any, ...]
"""Strings, integers and tuples of them: what finds a sample again in its dataset."""


@dataclass(kw_only=True, slots=True)
class Sample(Markable):
    """Base of all sample types: a dataclass whose fields are what the task needs.

    `__key__` names the sample in its dataset. `__subflavors__` are labels that the dataset gives to
    all its samples. `__sources__` says which files it was read from. All three, and
    `__restore_key__`, are passed on by `derive_from`. `__restore_key__` names the stored sample
    until a loader delivers what was made of it: then it is what `Loader.restore_sample` finds that
    by, and `__stored_key__` is what it was.

    `__sample_weight__` is how much the sources of the sample say that it counts in the loss; an
    encoder adds to that what it says, in a field `sample_weight` of its own type. `sample_weights`
    is for what is made of several samples: the weights of these, float32. Both are passed on too,
    and None where nobody gives a weight.

    >>> @dataclass
    ... class Tokens(Sample):
    ...     ids: list[int]
    >>> text = Sample(__key__="000", __subflavors__={"lang": "en"})
    >>> tokens = Tokens.derive_from(text, ids=[1, 2])
    >>> tokens.__key__, tokens.__subflavors__, tokens.ids
    ('000', {'lang': 'en'}, [1, 2])
    """

    __key__: str
    __restore_key__: RestoreKey = ()
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None
    __sample_weight__: float | None = field(default=None, repr=False)
    sample_weights: torch.Tensor | None = field(default=None, repr=False)

    @classmethod
    def derive_from(cls, base_sample: Sample | Mapping[str, Any], **values: Any) -> Self:
        """A sample of this type with the metadata of `base_sample` and `values` as its fields.

        `base_sample` is a sample, or a crude one: a dict with the metadata under the same names.
        """
        return cls(**_metadata(base_sample) | values)

    @classmethod
    def extend(cls, src: Sample, **values: Any) -> Self:
        """A sample of this type with all fields of `src`, and `values` added or put in their place.

        Raises `ConfigError` when this type is not that of `src` or a subclass of it.
        """
        if not issubclass(cls, type(src)):
            raise ConfigError(
                f"{cls.__name__}.extend takes a sample of a type that {cls.__name__} extends, got "
                f"a {type(src).__name__}; to keep only its metadata use derive_from"
            )
        kept = {name: getattr(src, name) for name in type_fields(type(src))}
        return cls(**kept | values)

    @classmethod
    def from_joined(cls, *args: Any, **kwargs: Any) -> Self:
        """A sample of this type from those that a join puts together.

        The first one is the primary: it gives key, restore key, subflavors and weight. Its fields
        come first; of fields with one name the value of the last sample is taken. Sources of all
        are listed, in their order. None stands for a sample that has no match, and gives nothing.
        The samples may be crude, and named (`from_joined(image=..., text=...)`): their names are
        for types that override this method. Raises `ConfigError` without a primary, for a field
        that this type does not have, and for one that it needs and nothing gives.

        >>> @dataclass
        ... class Captioned(Sample):
        ...     text: str
        ...     lang: str = "?"
        >>> first = Captioned(__key__="7", text="a cat")
        >>> Captioned.from_joined(first, {"__key__": "7", "lang": "en"}, None)
        Captioned(__key__='7', __restore_key__=(), __subflavors__=None, __sources__=None, \
text='a cat', lang='en')
        """
        samples = (*args, *kwargs.values())
        if not samples or samples[0] is None:
            raise ConfigError(
                f"{cls.__name__}.from_joined takes the primary sample first, which every row of a "
                "join has; got " + ("no sample" if not samples else "None")
            )
        present = [each for each in samples if each is not None]
        joined: dict[str, Any] = {}
        for each in present:
            joined |= _own_fields(each)
        unknown = [name for name in joined if name not in type_fields(cls)]
        if unknown:
            raise ConfigError(
                f"{cls.__name__} has no field {', '.join(map(repr, unknown))}, which the joined "
                f"samples have; add it, or override from_joined in {cls.__name__} to choose"
            )
        metadata = _metadata(present[0])
        sources = [_metadata(each).get("__sources__") for each in present]
        if any(each is not None for each in sources):
            metadata["__sources__"] = tuple(info for each in sources for info in each or ())
        return build(cls, metadata | joined, "the join")

    def pin_memory(self) -> Self:
        """A copy with all tensors in page-locked memory; the sample itself without a GPU."""
        return pin_memory(self)


METADATA = frozenset(each.name for each in fields(Sample))
"""The fields that say what a sample is, where it comes from, and how much it counts."""


def _metadata(sample: Any) -> dict[str, Any]:
    """The metadata of a sample, crude or not; `ConfigError` for what is none."""
    if isinstance(sample, Mapping):
        if "__key__" not in sample:
            raise ConfigError(
                f"a crude sample is a dict with a '__key__'; got one with the keys "
                f"{', '.join(map(repr, list(sample)[:20])) or '(none)'}"
            )
        return {name: sample[name] for name in METADATA if name in sample}
    if not hasattr(sample, "__key__"):
        raise ConfigError(f"expected a sample to take metadata from, got a {type(sample).__name__}")
    return {name: getattr(sample, name) for name in METADATA if hasattr(sample, name)}


def _own_fields(sample: Any) -> dict[str, Any]:
    """The fields of a sample that are no metadata; of a crude one, no other `__name__` either."""
    if not isinstance(sample, Mapping) and not is_record(sample):
        raise ConfigError(
            f"a join puts samples together (dataclasses or dicts), got a {type(sample).__name__}"
        )
    values = dict(sample) if isinstance(sample, Mapping) else fields_of(sample)
    return {
        name: value
        for name, value in values.items()
        if not (name.startswith("__") or name in METADATA)
    }
