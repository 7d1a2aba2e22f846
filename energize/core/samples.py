"""Records (dataclasses, named tuples, dicts) as fields by name, and back."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

from energize.core.lazy import av, torch
from energize.core.padding import Markable
from energize.errors import ConfigError, DatasetError, UntrustedCodeError, nearest

T = TypeVar("T")


def is_record(value: object) -> bool:
    """Whether `value` has fields by name: a dataclass instance, a named tuple or a dict."""
    return not isinstance(value, type) and is_record_type(type(value))


def is_record_type(kind: type[Any]) -> bool:
    """Whether the instances of `kind` are records."""
    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return issubclass(kind, dict) or named_tuple or dataclasses.is_dataclass(kind)


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a record in their order; for a dict, a shallow copy of it."""
    if isinstance(record, dict):
        return dict(record)
    if isinstance(record, tuple):
        return dict(zip(record._fields, record, strict=True))  # type: ignore[attr-defined]
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def rebuilt(like: T, values: dict[str, Any]) -> T:
    """A record of the type of `like`, with `values` for all its fields.

    `__init__` and `__post_init__` do not run again: what they check of one sample need not hold for
    a batch.
    """
    if isinstance(like, dict):
        copied = copy.copy(like)
        copied.update(values)
        return copied
    if isinstance(like, tuple):
        return cast("T", like._make(values.values()))  # type: ignore[attr-defined]
    made = object.__new__(type(like))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def type_fields(kind: type[Any]) -> tuple[str, ...]:
    """The fields that a dataclass or a named tuple is made from, in their order."""
    if issubclass(kind, tuple):
        return tuple(kind._fields)  # type: ignore[attr-defined]
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


def required_fields(kind: type[Any]) -> tuple[str, ...]:
    """Those of `type_fields` that have no default."""
    if issubclass(kind, tuple):
        defaults = kind._field_defaults  # type: ignore[attr-defined]
        return tuple(name for name in type_fields(kind) if name not in defaults)
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    )


def build(kind: type[T], values: Mapping[str, Any], what: str) -> T:
    """A record of type `kind` from those of `values` that it has fields for; a dict takes all.

    Raises `ConfigError` naming `what` the values are and the fields that they lack.
    """
    if issubclass(kind, dict):
        return kind(values)
    missing = [name for name in required_fields(kind) if name not in values]
    if missing:
        raise ConfigError(
            f"{kind.__name__} needs the fields {_listed(missing)}, which {what} lacks; it has "
            f"{_listed(values)}. Give them a default, or fill them in the hook before"
        )
    return kind(**{name: values[name] for name in type_fields(kind) if name in values})


def map_leaves(value: Any, fn: Callable[[Any], Any]) -> Any:
    """`fn` of everything that is no record, list or tuple, at any depth, in a copy of `value`."""
    if is_record(value):
        fields = fields_of(value).items()
        return rebuilt(value, {name: map_leaves(each, fn) for name, each in fields})
    if isinstance(value, list | tuple):
        return type(value)(map_leaves(each, fn) for each in value)
    return fn(value)


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names) or "none"


# Where a sample was read from.


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """The files of a dataset that a sample was made from.

    `shard_name` is relative to `dataset_path`; `index` is the number of the sample in its shard;
    `file_names` are those of its files there that were used.
    """

    dataset_path: str
    index: int | str
    shard_name: str
    file_names: tuple[str, ...]


# Page-locked memory, from which copies to a GPU can run beside computation.


def pin_memory(value: T) -> T:
    """A copy of `value` with all tensors in page-locked memory; `value` itself without a GPU.

    Tensors are found at any depth in dataclasses, named tuples, dicts, lists and tuples. Another
    object is asked to pin itself when it has a `pin_memory` method, and else passed on as it is.
    """
    if not torch.cuda.is_available():
        return value
    return map_leaves(value, _pinned)  # type: ignore[no-any-return]  # of the type of `value`


def _pinned(leaf: Any) -> Any:
    method = getattr(leaf, "pin_memory", None)
    return method() if callable(method) and not isinstance(leaf, type) else leaf


# What all samples have in common.

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


# Samples without a type.


class CrudeSample(dict[str, Any]):
    """All parts of a sample by their names, with the metadata fields of `Sample` beside them.

    These are `__key__`, `__restore_key__`, `__subflavors__` and `__sources__`; beyond them,
    `__shard__` and `__index__` say where it lies. `Sample.derive_from(crude, ...)` makes a typed
    sample with the same metadata.
    """


# Samples of one image, alone or with what is said of it.


@dataclass(kw_only=True, slots=True)
class ImageSample(Sample):
    """An image."""

    image: torch.Tensor


@dataclass(kw_only=True, slots=True)
class CaptioningSample(Sample):
    """An image and a text that describes it."""

    image: torch.Tensor
    caption: str


@dataclass(kw_only=True, slots=True)
class ImageClassificationSample(Sample):
    """An image and its class, as a number, a name or both."""

    image: torch.Tensor
    label: int | None = None
    label_name: str | None = None


# Samples of text and images in turn.


@dataclass(kw_only=True, slots=True)
class InterleavedSample(Sample):
    """Texts and images in the order in which they are read; an image is a tensor, a text a str."""

    sequence: list[torch.Tensor | str]


@dataclass(kw_only=True, slots=True)
class SimilarityInterleavedSample(Sample):
    """Images and sentences of one document, of which it is not settled which belong together.

    `similarity_matrix` is float (images, texts), how well each image fits each text;
    `matched_text_indices` has for each image the number of the text that it was matched to.
    """

    images: list[torch.Tensor]
    texts: list[str]
    audio: list[torch.Tensor] | None = None
    video: list[torch.Tensor] | None = None
    similarity_matrix: torch.Tensor | None = None
    matched_text_indices: list[int] | None = None


# Samples of an image of text, alone or with a question about it.


@dataclass(kw_only=True, slots=True)
class OCRSample(Sample):
    """An image and the text in it, whole or by blocks, lines, words and characters.

    Boxes are float (N, 4), or (N, 5) with a confidence: x, y, width, height in pixels. The texts
    that belong to them are N strings.
    """

    image: torch.Tensor
    text: str
    block_boxes: torch.Tensor | None = None
    block_classes: torch.Tensor | list[str] | None = None
    block_text: list[str] | None = None
    lines_boxes: torch.Tensor | None = None
    lines_text: list[str] | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None
    chars_boxes: torch.Tensor | None = None
    chars_text: list[str] | None = None


@dataclass(kw_only=True, slots=True)
class VQAOCRSample(Sample):
    """A question about an image of text, its accepted answers, and the text in the image.

    Boxes are as those of `OCRSample`; there is a weight for each answer.
    """

    image: torch.Tensor
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None


# Samples of text.


@dataclass(kw_only=True, slots=True)
class TextSample(Sample):
    """A text."""

    text: str


# Samples of a video and what is asked about it.


@dataclass(kw_only=True, slots=True)
class VidQASample(Sample):
    """A question about a video and its accepted answers, with a weight for each answer.

    The `video` is not decoded yet: its methods give the frames and sounds that are wanted.
    """

    video: av.AVDecoder
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


# Samples of an image and a question about it.


@dataclass(kw_only=True, slots=True)
class VQASample(Sample):
    """A question and its accepted answers, with a weight for each answer; no answers in a test."""

    image: torch.Tensor
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


@dataclass(kw_only=True, slots=True)
class MultiChoiceVQASample(Sample):
    """A question with answers to choose from, of which `correct_choice_idx` is right."""

    image: torch.Tensor
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


# Sample types by the names under which dataset.yaml knows them.

SampleType = type[Sample] | type[CrudeSample]

SAMPLE_TYPES: Mapping[str, SampleType] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            TextSample,
            ImageSample,
            CaptioningSample,
            ImageClassificationSample,
            VQASample,
            MultiChoiceVQASample,
            OCRSample,
            VQAOCRSample,
            VidQASample,
            InterleavedSample,
            SimilarityInterleavedSample,
            CrudeSample,
        )
    }
    | {"CrudeWebdataset": CrudeSample}
)
"""The sample types that come with energize; "CrudeWebdataset" is what prepared folders write."""

_OWN_MODULES = ("energize", "megatron.energon")


def is_own_module(module: str) -> bool:
    """Whether a name means the types that come with energize: those of its modules, and of
    Megatron-Energon's.
    """
    return any(module == own or module.startswith(f"{own}.") for own in _OWN_MODULES)


def sample_type_named(module: str, name: str) -> SampleType:
    """The sample type that dataset.yaml means by `__module__: module` and `__class__: name`.

    Modules of energize and of Megatron-Energon mean the types here. A type of another module is
    found only when the program has imported that module itself: nothing is imported because a data
    folder names it.

    Raises `UntrustedCodeError` for a module that has not been imported, `DatasetError` for an
    unknown name and for what is no sample type.

    >>> sample_type_named("megatron.energon", "TextSample").__name__
    'TextSample'
    """
    if is_own_module(module):
        if name not in SAMPLE_TYPES:
            known = ", ".join(SAMPLE_TYPES)
            raise DatasetError(
                f"sample type {name!r} of {module!r} is not known; known are {known}"
                f"{nearest(name, list(SAMPLE_TYPES))}"
            )
        return SAMPLE_TYPES[name]
    return _imported(module, name)


def _imported(module: str, name: str) -> SampleType:
    if module not in sys.modules:
        raise UntrustedCodeError(
            f"the dataset names the sample type {name!r} of the module {module!r}, which this "
            f"program has not imported. Nothing is imported because a data folder asks for it: if "
            f"you trust that module, write `import {module}` in your program before opening the "
            "dataset"
        )
    kind = vars(sys.modules[module]).get(name)
    if not isinstance(kind, type) or not issubclass(kind, Sample | CrudeSample):
        found = "has no such name" if kind is None else f"has a {type(kind).__name__} of that name"
        raise DatasetError(
            f"the dataset names the sample type {name!r} of the module {module!r}, which {found}; "
            "a sample type is a dataclass that extends energize.Sample"
        )
    return kind
