"""Sample types, the names that data folders know them by, and records as fields by
name.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import Signature, get_annotations, signature
from itertools import chain
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

from energize.core.lazy import torch
from energize.core.loss_weights import WEIGHT, WEIGHTS
from energize.core.media import MediaDecoder
from energize.core.padding import HIDDEN_WEIGHTS, PADDING, has_hidden_weights
from energize.core.records import (
    STORED_KEY,
    build,
    fields_of,
    format_sample_compact,
    is_record,
    map_leaves,
    quoted_names,
    rebuilt,
    type_fields,
)
from energize.core.turns import (
    IMAGE,
    MediaPlace,
    Turn,
    checked_turns,
    messages_of,
    places_of,
    tools_of,
    turn_of,
)
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    UntrustedCodeError,
    nearest,
)

T = TypeVar("T")


# Where a sample was read from.


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class SourceInfo:
    """The files that a sample was made from. Treat it as immutable.

    It is not frozen, because it is created for each sample, and trainers that convert
    the tensors of a batch assign the fields of copies.

    Attributes:
        dataset_path: The path of the dataset.
        index: The number of the sample in the split part, in the order of its shards;
            in a store or a join, in its shard.
        shard_name: The shard, relative to `dataset_path`.
        file_names: The used files of the sample in the shard.
    """

    dataset_path: str
    index: int | str
    shard_name: str
    file_names: tuple[str, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        # A tenth of the time of the methods that dataclasses with slots have.
        values = (self.dataset_path, self.index, self.shard_name, self.file_names)
        return _source_info, values


def _source_info(path: str, index: int | str, shard: str, names: Any) -> SourceInfo:
    return SourceInfo(
        dataset_path=path, index=index, shard_name=shard, file_names=names
    )


# Page-locked memory, from which copies to a GPU can run beside computation.


def pin_memory(value: T) -> T:
    """Return a copy with all tensors in page-locked memory.

    Tensors are copied at any depth of dataclasses, named tuples, dicts, lists and
    tuples. Other objects are replaced by the result of their method `pin_memory`, if
    they have one. Without a GPU, the value itself is returned.
    """
    if not torch.cuda.is_available():
        return value
    return call_on_leaves(value, "pin_memory")


def call_on_leaves(value: T, method: str, *arguments: Any, **options: Any) -> T:
    """Return a copy with each leaf replaced by the result of a method, if it has it."""

    def call(leaf: Any) -> Any:
        function = getattr(leaf, method, None)
        return (
            function(*arguments, **options)
            if callable(function) and not isinstance(leaf, type)
            else leaf
        )

    return cast("T", map_leaves(value, call))


# What all samples have in common.


class _ItemFields(dict[str, Any]):
    """The fields of a class; of an object, without the weights that it does not have.

    `dataclasses.fields` and `asdict` of an object read them here, so they contain what
    the user made.
    """

    unset: tuple[str, ...] = ()

    def __get__(self, item: Any, owner: type) -> dict[str, Any]:
        if item is None:
            return self
        hidden = [name for name in self.unset if getattr(item, name, None) is None]
        if not hidden:
            return self
        return {name: field for name, field in self.items() if name not in hidden}


def _is_of_package(owner: type) -> bool:
    return owner.__module__.startswith("energize.")


class _HidesUnsetWeights(ABCMeta):
    """Has `dataclass` store the fields of a class as `_ItemFields`."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if name == "__dataclass_fields__":
            value = _ItemFields(value)
            declared: set[str] = set()
            for base in cls.__mro__:
                if not _is_of_package(base):
                    declared.update(get_annotations(base))
            value.unset = tuple(
                weight
                for weight in (WEIGHT, WEIGHTS)
                if weight in value and weight not in declared
            )
        super().__setattr__(name, value)


def _short_repr(item: Any) -> str:
    """Return the fields of a sample or a batch in one line; of tensors their shape and
    type.
    """
    hidden = ("__restore_key__", "__sources__")
    texts = [
        f"{name}={format_sample_compact(value, 2, 4, 60)}"
        for name, value in _repr_fields(item)
        if value is not None and name not in hidden
    ]
    return f"{type(item).__name__}({', '.join(texts)})"


def _repr_fields(item: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a dataclass that its `repr` contains."""
    for name, declared in getattr(type(item), "__dataclass_fields__", {}).items():
        if declared.repr:
            yield name, getattr(item, name, None)


class Markable(metaclass=_HidesUnsetWeights):
    """Base of classes with slots and fields for the marks of a loader.

    `dataclasses.fields` and `asdict` of an object contain the weights only if it has
    them or its class declares them. Subclasses without a `__repr__` get a short one.
    """

    __slots__ = (PADDING, HIDDEN_WEIGHTS, STORED_KEY)

    __rich_repr__ = _repr_fields

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        inherited = {base.__repr__ for base in cls.__bases__}
        if "__repr__" not in cls.__dict__ and inherited <= _PLAIN_REPRS:
            cls.__repr__ = _short_repr  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        from energize.core.html import item_html, notebook

        return notebook(item_html(self))


_PLAIN_REPRS = {object.__repr__, _short_repr}
"""The representations that a class may lose for a short one."""


RestoreKey = tuple[Any, ...]
"""Strings, integers and tuples of them: what finds a sample again in its dataset."""


@dataclass(kw_only=True, slots=True)
class Sample(Markable):
    """Base of all sample types: a dataclass with the fields that the task needs.

    `derive_from` copies the metadata to a sample of another type.

    Attributes:
        __key__: The name of the sample in its dataset.
        __restore_key__: Identifies the stored sample. A loader replaces it by the key
            of the delivered item, for `Loader.restore_sample`, and moves the previous
            one to `__stored_key__`.
        __subflavors__: Labels that the dataset has for all its samples.
        __sources__: The files that the sample was read from; None if unknown.
        __sample_weight__: The product of the loss weights of its sources; None for 1.
            An encoder sets a field `sample_weight` of its own type in addition.
        sample_weights: The loss weights of the samples of a batch or pack, float32;
            None for 1.

    Example:
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
    def derive_from(
        cls, base_sample: Sample | Mapping[str, Any], **values: Any
    ) -> Self:
        """Return a sample of this type with the metadata of `base_sample` and the
        fields `values`.

        `base_sample` is a sample, or a crude one: a dict with the metadata under the
        same names.
        """
        return cls(**metadata_of(base_sample) | values)

    @classmethod
    def extend(cls, src: Sample, **values: Any) -> Self:
        """Return a sample of this type with all fields of `src`, and `values` added or
        put in.

        Raises `ConfigError` when this type is not that of `src` or a subclass of it.
        """
        if not issubclass(cls, type(src)):
            raise ConfigError(
                f"{cls.__name__} does not extend the type of the sample, "
                f"{type(src).__name__}. Use derive_from to keep only its metadata"
            )
        copied = {name: getattr(src, name) for name in type_fields(type(src))}
        return cls(**copied | values)

    @classmethod
    def from_joined(cls, *args: Any, **kwargs: Any) -> Self:
        """Create a sample of this type from the samples of a join.

        The first sample is the primary: it provides key, restore key, subflavors and
        weight. Its fields come first; if several samples have a field of one name, the
        last value is used. Sources of all are listed, in order.

        Args:
            *args: The samples, typed or crude; None for a sample without a match.
            **kwargs: Further samples by name. Types that override this method can use
                the names.

        Raises:
            ConfigError: If the primary is missing, samples have a field that this type
                lacks, or a required field is missing.

        Example:
            >>> @dataclass
            ... class Captioned(Sample):
            ...     text: str
            ...     lang: str = "?"
            >>> first = Captioned(__key__="7", text="a cat")
            >>> Captioned.from_joined(first, {"__key__": "7", "lang": "en"}, None)
            Captioned(__key__='7', text='a cat', lang='en')
        """
        samples = (*args, *kwargs.values())
        if not samples or samples[0] is None:
            value = "None" if samples else "no sample"
            raise ConfigError(
                f"{cls.__name__}.from_joined: the first argument must be the primary "
                f"sample, got {value}"
            )
        present = [sample for sample in samples if sample is not None]
        joined: dict[str, Any] = {}
        for sample in present:
            joined.update(_data_fields(sample))
        unknown = [name for name in joined if name not in type_fields(cls)]
        if unknown:
            raise ConfigError(
                f"{cls.__name__} has no field {quoted_names(unknown)}, but the "
                "joined samples have. Add it, or override from_joined in "
                f"{cls.__name__} to choose"
            )
        metadata = [metadata_of(sample) for sample in present]
        sources = [values.get("__sources__") for values in metadata]
        listed = [source for source in sources if source is not None]
        if listed:
            metadata[0]["__sources__"] = tuple(chain.from_iterable(listed))
        return build(cls, metadata[0] | joined, "the join")

    def pin_memory(self) -> Self:
        """Return a copy with all tensors in page-locked memory; the sample itself
        without a GPU.
        """
        return pin_memory(self)


METADATA = frozenset(entry.name for entry in fields(Sample))
"""Fields of identity, origin and weight of a sample."""


class _Name(str):
    """The name of a field of `batch`."""

    batch: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class _Rebuilt(_HidesUnsetWeights):
    """Metaclass for classes that can be created from their own items.

    Trainers move a batch with `type(batch)({name: value, ...})`. The keys of a batch
    refer to it, so the copy gets the fields that are not items, such as padding and
    metadata.
    """

    @property
    def __signature__(cls) -> Signature:
        return Signature(
            [*signature(cast("Any", cls).__init__).parameters.values()][1:]
        )

    def __call__(cls, *arguments: Any, **fields: Any) -> Any:
        if len(arguments) == 1 and not fields and isinstance(arguments[0], Mapping):
            batch = getattr(next(iter(arguments[0]), None), "batch", None)
            if isinstance(batch, cls):
                return rebuilt(batch, arguments[0], marks=True)
        return super().__call__(*arguments, **fields)


class Items(Markable, abc.MutableMapping[str, Any], metaclass=_Rebuilt):
    """Base of dataclasses that are mappings of their fields, without metadata.

    So batches pass through trainers. `model(**batch)` gets the fields of the user's
    class, and weights if there are any.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__dataclass_fields__" in cls.__dict__:  # a copy, which `slots=True` makes
            return
        for name in get_annotations(cls):
            is_method = hasattr(abc.MutableMapping, name)
            if is_method and name not in cls.__dict__:  # or the method is its default
                setattr(cls, name, field())

    def __iter__(self) -> Iterator[str]:
        left_out = METADATA - (set() if has_hidden_weights(self) else {WEIGHTS})
        for declared in fields(cast("Any", self)):
            if declared.name not in left_out and hasattr(self, declared.name):
                key = _Name(declared.name)
                key.batch = self
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Any:
        return {str(key): getattr(self, key) for key in self}[name]

    __setitem__ = object.__setattr__
    __delitem__ = object.__delattr__


def metadata_of(sample: Any) -> dict[str, Any]:
    """Return the metadata of a sample, typed or crude.

    Raises:
        ConfigError: If the value is not a sample.
    """
    if hasattr(sample, "__key__"):
        return {
            name: getattr(sample, name) for name in METADATA if hasattr(sample, name)
        }
    if not isinstance(sample, Mapping):
        raise ConfigError(
            f"the source of metadata must be a sample, got a {type(sample).__name__}"
        )
    if "__key__" not in sample:
        keys = quoted_names(list(sample)[:20])
        raise ConfigError(
            f"a crude sample must be a dict with a '__key__', got one with {keys}"
        )
    return {name: sample[name] for name in METADATA if name in sample}


def _data_fields(sample: Any) -> dict[str, Any]:
    """Return the fields of a sample without metadata."""
    if not isinstance(sample, Mapping) and not is_record(sample):
        raise ConfigError(f"a join takes only samples, got a {type(sample).__name__}")
    values = dict(sample) if isinstance(sample, Mapping) else fields_of(sample)
    names = (
        name for name in values if not name.startswith("__") and name not in METADATA
    )
    return {name: values[name] for name in names}


# Samples without a type.


class CrudeSample(dict[str, Any]):
    """All parts of a sample by their names, and the metadata of `Sample`.

    The metadata are `__key__`, `__restore_key__`, `__subflavors__` and `__sources__`,
    and the location: `__shard__` and `__index__`. `Sample.derive_from(crude, ...)`
    creates a typed sample with the same metadata.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({format_sample_compact(dict(self), 2, 25, 60)})"


# Samples of one image, alone or with a description.


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
    """Texts and images in the order in which they are read; an image is a tensor, a
    text a str.
    """

    sequence: list[torch.Tensor | str]


@dataclass(kw_only=True, slots=True)
class SimilarityInterleavedSample(Sample):
    """Images and sentences of one document, to be matched.

    `similarity_matrix` is float (images, texts), the similarity of each image and text;
    `matched_text_indices` has the number of the matched text for each image.
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

    Boxes are float (N, 4), or (N, 5) with a confidence: x, y, width, height in pixels.
    The texts that belong to them are N strings.
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
    """A question about an image of text, its accepted answers, and the text in the
    image.

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


# Samples of several turns about any number of images and videos.


@dataclass(kw_only=True, slots=True)
class ConversationSample(Sample):
    """A conversation, with the images and videos in it.

    Turns may be given in the forms of LLaVA, ShareGPT and OpenAI's API. The keys that
    decide which turns are learned, calls of tools and reasoning become fields of
    `Turn`.

    Attributes:
        turns: The turns in their order.
        images: One for each placeholder `<image>` in the turns, in their order.
        videos: One for each placeholder `<video>`.
        tools: The tools that the assistant may call, as schemas in the form of OpenAI's
            API. May be given as JSON text, and as functions alone.

    Raises:
        DataError: If a turn or a tool has another form, or placeholders and media
            differ in number.

    Example:
        >>> given = [
        ...     {"from": "human", "value": "What?"},
        ...     {"from": "gpt", "value": "A cat."},
        ... ]
        >>> ConversationSample(__key__="7", turns=given).turns
        [Turn(role='user', text='What?'), Turn(role='assistant', text='A cat.')]

    """

    turns: list[Turn]
    images: list[torch.Tensor] = field(default_factory=list)
    videos: list[MediaDecoder] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = checked_turns(self.turns, len(self.images), len(self.videos))
        self.tools = tools_of(self.tools)

    @property
    def places(self) -> list[MediaPlace]:
        """Where in the turns images and videos are."""
        return places_of(self.turns)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The turns as chat templates of transformers take them."""
        return messages_of(self.turns)


@dataclass(kw_only=True, slots=True)
class GroundingSample(ConversationSample):
    """A conversation about boxes in one image.

    `<bbox>` in a turn stands for the next box, `<ref-object>` for the next label, as in
    ms-swift.

    Attributes:
        boxes: Boxes of four numbers, in the order of their placeholders.
        labels: Labels, in the order of their placeholders.
    """

    boxes: list[list[float]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class PreferenceSample(Sample):
    """A prompt with a preferred and a rejected answer, and images.

    Prompt and answers may be given as text, or as turns in any of the usual forms. If
    both answers begin with the same turns, these are the prompt. Images without a
    placeholder come before the first turn of the prompt.

    Attributes:
        prompt: The turns before the answers.
        chosen: The preferred answer.
        rejected: The other answer.
        images: One for each placeholder `<image>` of the prompt.

    Raises:
        DataError: If placeholders and images differ in number, or an answer is missing.

    Example:
        >>> sample = PreferenceSample(
        ...     __key__="7", prompt="What?", chosen="A cat.", rejected="No."
        ... )
        >>> sample.prompt, sample.chosen
        ([Turn(role='user', text='What?')], [Turn(role='assistant', text='A cat.')])
    """

    chosen: list[Turn]
    rejected: list[Turn]
    prompt: list[Turn] = field(default_factory=list)
    images: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        chosen = _as_turns(self.chosen, "assistant", "chosen")
        rejected = _as_turns(self.rejected, "assistant", "rejected")
        prompt = _as_turns(self.prompt, "user", "prompt")
        shared = 0
        while (
            shared < min(len(chosen), len(rejected)) - 1
            and chosen[shared] == rejected[shared]
        ):
            shared += 1
        if shared:
            prompt = chosen[:shared]
        if not chosen[shared:] or not rejected[shared:]:
            raise DataError(
                f"an answer is missing: chosen {chosen}, rejected {rejected}"[:300]
            )
        images = len(self.images)
        if images and prompt and not places_of(prompt):
            first = prompt[0]
            prompt = [Turn(first.role, f"{IMAGE * images}\n{first.text}"), *prompt[1:]]
        if prompt:
            prompt = checked_turns(prompt, images, 0)
        self.prompt = prompt
        self.chosen = chosen[shared:]
        self.rejected = rejected[shared:]


def _as_turns(value: Any, role: str, name: str) -> list[Turn]:
    """Return a text as one turn of a role, and turns of any form as they are."""
    if isinstance(value, str):
        return [Turn(role, value)]
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence):
        raise DataError(
            f"{name!r} must be text or a list of turns, got {value!r:.80}. Add it, or "
            "remove the pair"
        )
    return [turn_of(turn, number) for number, turn in enumerate(value)]


# Samples of a video and a question about it.


@dataclass(kw_only=True, slots=True)
class VidQASample(Sample):
    """A question about a video and its accepted answers, with a weight for each answer.

    The `video` is not decoded yet: its methods give the frames and sounds that are
    wanted.
    """

    video: MediaDecoder
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


# Samples of an image and a question about it.


@dataclass(kw_only=True, slots=True)
class VQASample(Sample):
    """A question and its accepted answers, with a weight for each answer; no answers in
    a test.

    The image is None for a question without one.
    """

    image: torch.Tensor | None
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


@dataclass(kw_only=True, slots=True)
class MultiChoiceVQASample(Sample):
    """A question with choices; `correct_choice_idx` is the right one.

    The image is None for a question without one.
    """

    image: torch.Tensor | None
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


# Sample types by the names under which dataset.yaml knows them.

SampleType = type[Sample] | type[CrudeSample]

SAMPLE_TYPES: Mapping[str, SampleType] = MappingProxyType(
    {
        name: kind
        for name, kind in globals().items()
        if isinstance(kind, type)
        and issubclass(kind, Sample | CrudeSample)
        and kind is not Sample
    }
    | {"CrudeWebdataset": CrudeSample}
)
"""The sample types that come with energize; "CrudeWebdataset" is what prepared folders
write."""


def is_package_module(module: str) -> bool:
    """Return whether a module name refers to the sample types of this package."""
    return f"{module}.".startswith(("energize.", "megatron.energon."))


def sample_type_named(module: str, name: str) -> SampleType:
    """Return the sample type that dataset.yaml means by `__module__: module`,
    `__class__: name`.

    Modules of energize and of Megatron-Energon mean the types here. A type of another
    module is found only when the program has imported that module itself: nothing is
    imported because a data folder names it.

    Raises `UntrustedCodeError` for a module that has not been imported, `DatasetError`
    for an unknown name and for what is no sample type.

    >>> sample_type_named("megatron.energon", "TextSample").__name__
    'TextSample'
    """
    if is_package_module(module):
        if name not in SAMPLE_TYPES:
            raise DatasetError(
                f"unknown sample type {name!r} of {module!r}. Known: "
                f"{', '.join(SAMPLE_TYPES)}{nearest(name, list(SAMPLE_TYPES))}"
            )
        return SAMPLE_TYPES[name]
    named = (
        f"the dataset names the sample type {name!r} of the module {module!r}, which"
    )
    if module not in sys.modules:
        raise UntrustedCodeError(
            f"{named} this program has not imported. If you trust that module, write "
            f"`import {module}` in your program before opening the dataset"
        )
    member = vars(sys.modules[module]).get(name)
    if not isinstance(member, type) or not issubclass(member, Sample | CrudeSample):
        fault = (
            "has no member of this name"
            if member is None
            else f"has a {type(member).__name__} of this name"
        )
        raise DatasetError(
            f"{named} {fault}. Use a dataclass that extends energize.Sample"
        )
    return member
