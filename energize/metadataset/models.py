"""What a metadataset may say: a pydantic model for each kind of node, at each place it
may have.

A key is a field of the kinds of nodes that have it, or of the places where nodes have
it. Its annotation is what checks it and tells editors of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeAlias,
    Union,
)

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from energize.core import limits
from energize.core.costs import ItemCost
from energize.core.validation import KeyPath, Model, faults, short
from energize.data.files import path_of
from energize.data.join import NONMATCH
from energize.data.nv_meta import TypeName
from energize.data.source import Subset
from energize.datasets.quota import SAMPLING_METHODS
from energize.errors import ConfigError
from energize.metadataset.located import (
    Located,
    Problem,
    as_error,
    check_few,
    plain_values,
    read_yaml,
)
from energize.order import Schedule
from energize.order.composition import BATCHING_METHODS
from energize.order.quota import Quota, epoch_size_in_samples
from energize.order.stopping import STOP_RULES
from energize.order.timeline import SCHEMES
from energize.order.weights import INTERPOLATIONS
from energize.packing.packer import METHODS, Packer
from energize.task.encoder import Level

ENERGIZE: Final = "energize"
ENERGON: Final = "megatron.energon"
EPOCHIZED: Final = "blend_epochized"
SUBFLAVORS: Final = "subflavors."
"""What stands before the name of a subflavor in the place of a column's."""
NODE = (
    "a dataset (a mapping with 'path'), or one with 'blend', 'blend_epochized' or "
    "'join'"
)

_WEIGHTS = (
    {"scheme", "block_size", "stop", "temperature", "unit", "max_correction"},
    {"weight", "min_share", "max_share", "max_epochs", "target_weight"},
)
_QUOTAS = (
    {"epoch_size", "sampling_method", "composition"},
    {"proportion", "repeat", "choose"},
)
"""Keys of blends, and of their entries: those by weights, and those by quotas."""


class Keys(Model):
    """A mapping of a file; keys that are left out have their defaults."""

    model_config = ConfigDict(defer_build=True, arbitrary_types_allowed=True)


@dataclass(frozen=True)
class Expected:
    """In an annotation: what messages say is expected, in place of pydantic's words."""

    text: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.custom_error_schema(
            handler(source),
            custom_error_type="expected",
            custom_error_message=f"expected {self.text}",
        )


@dataclass(frozen=True, eq=False)
class OneOf:
    """In an annotation: only these texts."""

    words: Collection[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.literal_schema(list(self.words))


def _few(value: Any) -> Any:
    if isinstance(value, list | Mapping) and len(value) > limits.ENTRIES:
        raise ConfigError(limits.over("ENTRIES", len(value)))
    return value


# Values

_Float = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_SCHEDULED = Expected(
    "a finite number, 0 or more, or a schedule (a mapping with 'points')"
)
_STEP = Annotated[
    str, Field(pattern=r"^[0-9][0-9_]{0,17}$"), Expected("a step, a whole number")
]
_Percent = Annotated[str, Field(pattern=r"^\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*%\s*$")]
_Bounds = Annotated[
    list[NonNegativeInt | Literal["end"] | _Percent], Field(min_length=2, max_length=2)
]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"\S"), Expected("text that is not blank")]
EntryName = Annotated[
    str,
    Field(pattern=r"^[^/]*[^/\s][^/]*$"),
    Expected("text that is not blank, without '/'"),
]
Table = dict[str, Any]
Number = Annotated[NonNegativeInt | _Float, Expected("a finite number, 0 or more")]
Portion = Annotated[
    Annotated[int, Field(ge=0, le=1)] | Annotated[float, Field(ge=0, le=1)],
    Expected("a number from 0 to 1"),
]
Multiplier = Annotated[
    PositiveInt | Literal[-1] | None,
    Expected(
        "a whole number above 0, or -1 (draw with replacement), or null (no shuffle)"
    ),
]
Sizes = Annotated[
    PositiveInt | Annotated[list[PositiveInt], Field(min_length=1)],
    Expected("a whole number, 1 or more, or a list of them"),
]
Names = Annotated[
    Text | Annotated[list[str], Field(min_length=1)],
    Expected("a name, or a list of names"),
]
_SIZE = WithJsonSchema(
    {
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {
                "type": "string",
                "pattern": r"^\s*\+?[0-9][0-9_.]*(e[0-9]+)?\s*[kKmMbBtT]?\s*$",
            },
        ]
    }
)
Chosen = Annotated[
    int | str, AfterValidator(lambda value: Quota(choose=value).choose), _SIZE
]
EpochSize = Annotated[int | str, AfterValidator(epoch_size_in_samples), _SIZE]


def _reference(value: Any) -> Any:
    """Return what an entry of `aux` refers to as text; Energon also takes a `path` or
    `fs_path`.
    """
    match value:
        case {"path": path, **others} if not others:
            return str(path)
        case {"fs_path": path, **others} if not others:
            return f"filesystem://{path}"
    return value


References = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[^\W\d]\w*$")],
        Annotated[Text, BeforeValidator(_reference)],
    ],
    Expected(
        "a mapping of names, as Python writes arguments, to folders, .jsonl or "
        "filesystem://"
    ),
]


class ScheduleKeys(Keys):
    """A weight that changes with the step."""

    points: Annotated[dict[_STEP, Number], Field(min_length=1)]
    interpolation: Annotated[str, OneOf(INTERPOLATIONS)] = "step"
    slots_per_step: PositiveInt = 1

    def schedule(self) -> Schedule:
        """Return the weight as blends take it."""
        points = [(int(step), weight) for step, weight in self.points.items()]
        return Schedule(points, self.interpolation, self.slots_per_step)


Weight = Annotated[
    Annotated[Number, _SCHEDULED, Tag("<number>")]
    | Annotated[ScheduleKeys, AfterValidator(ScheduleKeys.schedule), Tag("<schedule>")],
    Discriminator(
        lambda value: "<schedule>" if isinstance(value, Mapping) else "<number>"
    ),
]
"""A number, or a `Schedule`."""


class ItemField(Keys):
    """What samples cost, by a field of theirs."""

    field: Text


Unit = Annotated[
    Text | Annotated[ItemField, AfterValidator(lambda value: ItemCost(value.field))],
    Expected(
        "a column of all folders, such as tokens, or {field: NAME} of samples, or "
        "samples"
    ),
]


class RangeKeys(Keys):
    """Which samples are read: the first of the range counts, the last does not."""

    range: Annotated[
        _Bounds,
        Expected(
            "two numbers, such as [100, end], or two percentages, such as [5%, 10%]"
        ),
    ]

    def subset(self) -> Subset:
        """Return the subset that is meant."""
        start, end = self.range
        counted = isinstance(start, int)
        last = end == "end"
        if start == "end" or not (last or counted == isinstance(end, int)):
            raise ConfigError(
                f"a range is of numbers or of percentages; got {short(self.range)}"
            )
        if counted:
            ordered = last or int(start) <= int(end)
            subset = Subset(samples=(int(start), None if last else int(end)))
        else:
            ends = (str(start), "100" if last else str(end))
            first, stop = (float(each.strip("% ")) / 100 for each in ends)
            ordered = first <= stop <= 1
            subset = Subset(ratios=(first, stop))
        if not ordered:
            raise ConfigError(
                f"a range ends after it starts, at most at 100%; got {self.range}"
            )
        return subset


Range = Annotated[RangeKeys, AfterValidator(RangeKeys.subset)]


class JoinerName(Keys):
    """A joiner by its module and its name: a class, or a function."""

    module: Text = Field(alias="__module__")
    class_: Text | None = Field(None, alias="__class__")
    function: Text | None = Field(None, alias="__function__")

    @model_validator(mode="after")
    def _one(self) -> JoinerName:
        if (self.class_ is None) == (self.function is None):
            raise ConfigError("either a class or a function")
        return self


Joiner = Annotated[
    JoinerName | SkipJsonSchema[Callable[..., Any]],
    Expected("a mapping with '__module__' and either '__class__' or '__function__'"),
]
"""A joiner as a file names it, or the type or function that a program gives itself."""


class Composition(Keys):
    """What a global batch is made of, see `ComposedDataset`; None: as large as a batch,
    and `drop_last` as the program that reads the mix says.
    """

    method: Annotated[str, OneOf(BATCHING_METHODS)]
    global_batch_size: PositiveInt | None = None
    drop_last: bool | None = None


class Packing(Keys):
    """How encoded samples are packed, see `Packer` and `concat_pack`."""

    length: Names
    capacity: Sizes
    method: Annotated[str, OneOf(METHODS)] = "best_fit"
    buffer_size: PositiveInt = 1000
    too_long: Literal["error", "skip"] = "error"
    fields: Names | None = None
    flatten: Names | None = None

    @model_validator(mode="after")
    def _fits(self) -> Packing:
        _ = self.packer
        return self

    @property
    def packer(self) -> Packer:
        """Which samples share a pack."""
        lengths = _listed(self.length)
        sizes = _listed(self.capacity)
        return Packer(tuple(lengths), tuple(sizes), self.method, self.too_long)  # type: ignore[arg-type]  # checked above

    @property
    def joined(self) -> tuple[list[str], list[str]]:
        """The fields that packs have joined, and the lists that they have end to
        end.
        """
        return _listed(self.fields or _listed(self.length)[0]), _listed(
            self.flatten or []
        )


class LevelKeys(Keys):
    """How batches are made to cost the same: by a column, or by a field of encoded
    samples.
    """

    cost: Text | None = None
    global_batch_size: PositiveInt | None = None
    field: Text | None = None
    buffer_size: PositiveInt | None = None

    def level(self) -> Level:
        """Return the same as a program would say it."""
        if (self.cost is None) == (self.field is None):
            raise ConfigError(
                "give either 'cost', a column of all folders, or 'field', of samples"
            )
        cost = self.cost if self.cost is not None else ItemCost(self.field or "")
        return Level(cost, self.global_batch_size, self.buffer_size)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# Kinds of nodes


class _Read(Keys):
    """What a dataset and a join say of how they are read."""

    split_part: Text | None = None
    subflavors: Table | None = None
    shuffle_over_epochs_multiplier: Multiplier = 1
    dataset_config: Text | None = None
    split_config: Text | None = None
    subset: Range | None = None


class _Weighed(Keys):
    sample_weight: Number | None = None


class _Property(_Weighed):
    """What mixes samples by a property of theirs."""

    by: Text | None = None
    weights: Annotated[dict[str, Weight], Field(min_length=1)] | None = None
    other: Weight | None = None

    @model_validator(mode="after")
    def _property(self) -> _Property:
        if self.by is None:
            if self.weights is not None or self.other is not None:
                raise ConfigError(
                    "'weights' and 'other' belong to a property, and no 'by' says "
                    "which; the share "
                    "of an entry in its blend is 'weight'"
                )
        elif self.by.startswith("subflavor."):
            raise ConfigError(
                f"by: write {SUBFLAVORS}{self.by.partition('.')[2]}, with an s"
            )
        elif self.weights is None:
            raise ConfigError("'by' needs 'weights', such as {high: 3, low: 1}")
        elif not any(self.weights.values()) and not self.other:
            raise ConfigError("weights: all are 0, so nothing could ever be drawn")
        return self


SampleTypeName = Annotated[
    Annotated[Text, AfterValidator(lambda name: (ENERGIZE, name))]
    | Annotated[TypeName, AfterValidator(lambda kind: (kind.module, kind.name))]
    | SkipJsonSchema[type[Any]],
    Expected(
        "the name of a sample type, or a mapping with '__module__' and '__class__'"
    ),
]


class Folder(_Read, _Property):
    """A folder of samples, prepared or loose, a file of rows, or another metadataset.
    `sample_type` and `field_map` say what its samples are, where the folder does not,
    or otherwise than it does.
    """

    path: Annotated[
        Text, Expected("text: a folder of samples, a .jsonl file or a .yaml file")
    ]
    aux: References | None = None
    sample_type: SampleTypeName | None = None
    field_map: dict[str, Text] | None = None
    image_folder: Text | None = None
    strict: bool = False
    format: Text | None = None
    files: Annotated[list[Text], Field(min_length=1)] | None = None
    media_path: Text | None = None
    split_by: dict[Text, dict[Text | int | bool, Text]] | None = None
    inferred: Table | None = None


class Join(_Read, _Property):
    """Folders whose samples of one key are joined."""

    join: Annotated[
        Annotated[list[Joined], Field(min_length=2), Tag("<list>")]
        | Annotated[dict[str, Joined], Field(min_length=2), Tag("<mapping>")],
        Discriminator(
            lambda value: "<mapping>" if isinstance(value, Mapping) else "<list>"
        ),
        BeforeValidator(_few),
    ]
    joiner: Joiner

    @property
    def entries(self) -> list[tuple[str | int, Joined]]:
        """What is joined, by number or by name."""
        return list(
            self.join.items() if isinstance(self.join, dict) else enumerate(self.join)
        )

    @model_validator(mode="after")
    def _first(self) -> Join:
        if self.entries[0][1].nonmatch != "error":
            raise ConfigError(
                "join: nonmatch of the first dataset says nothing, as its samples are "
                "looked up in "
                "the others; give it to these"
            )
        return self


class _List(_Weighed):
    """Nodes in a list; quotas say what each gives to an epoch."""

    kind: ClassVar[str]
    by_quotas: ClassVar[bool] = True
    subset: Range | None = None

    @property
    def entries(self) -> list[Any]:
        """The nodes."""
        return getattr(self, self.kind)  # type: ignore[no-any-return]


class Passes(_List):
    """Nodes that are read some passes each in an epoch."""

    kind = EPOCHIZED
    blend_epochized: Annotated[
        list[PassesEntry], Field(min_length=1), BeforeValidator(_few)
    ]


class Concat(_List):
    """Nodes that follow one another in every epoch."""

    kind = "concat"
    concat: Annotated[list[ConcatEntry], Field(min_length=1), BeforeValidator(_few)]


class Blend(_List, _Property):
    """Nodes mixed by weights or by quotas."""

    kind = "blend"
    blend: Annotated[list[BlendEntry], Field(min_length=1), BeforeValidator(_few)]
    scheme: Annotated[str, OneOf(SCHEMES)] | None = None
    block_size: PositiveInt | None = None
    stop: Annotated[str, OneOf(STOP_RULES)] | None = None
    temperature: Number | None = 1
    unit: Unit | None = "samples"
    epoch_size: EpochSize | None = None
    sampling_method: Annotated[str, OneOf(SAMPLING_METHODS)] | None = None

    @cached_property
    def by_quotas(self) -> bool:  # type: ignore[override]
        """Whether quotas, not weights, say what each node gives."""
        return bool(self._given(_QUOTAS))

    @property
    def targets(self) -> tuple[float, ...] | None:
        """What the entries weigh in the loss, where they say it."""
        given = [
            each.target_weight for each in self.blend if each.target_weight is not None
        ]
        return tuple(given) if given else None

    def _given(self, keys: tuple[set[str], set[str]]) -> list[str]:
        """Return those of some keys that it has, and that its entries have, as messages
        call them.
        """
        own, of_entries = keys
        found = [repr(key) for key in sorted(own & self.model_fields_set)]
        for number, entry in enumerate(self.blend):
            for key in sorted(of_entries & entry.model_fields_set):
                found.append(f"{key!r} of entry [{number}]")
        return found

    @model_validator(mode="after")
    def _mixed(self, info: ValidationInfo) -> Blend:
        """Raise `ConfigError` for keys that are right one by one, and not together."""
        weights = self._given(_WEIGHTS)
        if self.by_quotas and weights:
            raise ConfigError(
                f"a blend is mixed by weights or by quotas, and {weights[0]} is for "
                "the one, "
                f"{self._given(_QUOTAS)[0]} for the other; remove either"
            )
        if self.block_size is not None and self.scheme not in (None, "block"):
            raise ConfigError(
                f"block_size is for scheme: block, and the scheme is {self.scheme}"
            )
        weighed = [each for each in weights if "entry" in each]
        if self.by is not None and (self.by_quotas or weighed):
            told = weighed[0] if weighed else self._given(_QUOTAS)[0]
            raise ConfigError(
                f"the samples of all entries are weighed by {short(self.by)}, so "
                f"{told} says "
                "nothing; remove it, or give 'by' to the entries"
            )
        if not self.by_quotas:
            self._check_weights(every=(info.context or {}).get("weighs_all", True))
        return self

    def _check_weights(self, *, every: bool) -> None:
        without = [
            i
            for i, each in enumerate(self.blend)
            if "weight" not in each.model_fields_set
        ]
        if every and 0 < len(without) < len(self.blend):
            raise ConfigError(
                f"blend: entries {without} have no weight; give all entries one"
            )
        targets = [each.target_weight for each in self.blend]
        without = [i for i, each in enumerate(targets) if each is None]
        if 0 < len(without) < len(targets):
            raise ConfigError(
                f"blend: entries {without} have no target_weight; give all one"
            )
        if not without and not any(targets):
            raise ConfigError(
                "blend: all target weights are 0, so nothing counts in the loss"
            )


class OuterBlend(Blend):
    """A blend that is a split or a stage."""

    composition: Composition | None = None
    max_correction: (
        Annotated[Number, Field(ge=1), Expected("a finite number, 1 or more")] | None
    ) = None


# Places of nodes


class _Named(Keys):
    """An entry of a list."""

    name: EntryName | None = None


class InBlend(_Named):
    """An entry of a blend."""

    weight: Weight = 1
    min_share: Portion | None = None
    max_share: Portion | None = None
    max_epochs: PositiveInt | None = None
    target_weight: Number | None = None
    proportion: Number | None = None
    repeat: Number | None = None
    choose: Chosen | None = None

    @model_validator(mode="after")
    def _one_quota(self) -> InBlend:
        if not (self.proportion is self.repeat is self.choose is None):
            _ = self.quota
        return self

    @property
    def quota(self) -> Quota:
        """What it gives to an epoch, in a blend by quotas."""
        return Quota(proportion=self.proportion, repeat=self.repeat, choose=self.choose)


class InPasses(_Named):
    """An entry of blend_epochized."""

    repetitions: Number = 1

    @property
    def quota(self) -> Quota:
        """What it gives to an epoch."""
        return Quota() if self.repetitions == 1 else Quota(repeat=self.repetitions)


class InConcat(_Named):
    """An entry of a concat."""

    quota: ClassVar[Quota] = Quota()


class AtTop(Keys):
    """A split, or a stage."""

    packing: Packing | None = None
    level: Annotated[LevelKeys, AfterValidator(LevelKeys.level)] | None = None


class Settings(Keys):
    """What stages have beside what they read."""

    seq_len: PositiveInt | None = None
    items_per_step: PositiveInt | None = None
    batch: Table | None = None
    seed: NonNegativeInt | None = None


class InStages(AtTop, Settings):
    """A stage."""

    name: Name
    start_step: NonNegativeInt
    end_step: PositiveInt | None = None


class Stages(Settings):
    """A split with stages."""

    steps: PositiveInt | None = None
    stages: Annotated[list[Stage], Field(min_length=1), BeforeValidator(_few)]


class OnlyStages(Stages, _Weighed):
    """A split of stages, without anything before them."""


class Joined(_Read):
    """An entry of a join."""

    path: Text
    nonmatch: Annotated[str, OneOf(NONMATCH)] = "error"


KINDS: Final[Mapping[str, type[Keys]]] = {
    "concat": Concat,
    "join": Join,
    EPOCHIZED: Passes,
    "blend": Blend,
    "path": Folder,
}
"""By the key that makes a node what it is."""


def _kind(value: Any) -> str | None:
    """Return the tag of a node."""
    if not isinstance(value, Mapping):
        return None
    for key in KINDS:
        if key in value:
            return f"<{key}>"
    return "<path>"


def _split(value: Any) -> str | None:
    """Return the tag of a split, whose stages may stand beside what is read before
    them.
    """
    kind = _kind(value)
    if kind is None or "stages" not in value:
        return kind
    return f"<stages>{kind}" if kind != "<path>" or "path" in value else "<stages>"


def _at(
    *places: tuple[str, type[Keys]],
    blend: type[Blend] = Blend,
    tag: Any = _kind,
    node: str = NODE,
    more: Sequence[Any] = (),
) -> Any:
    """Any node at a place: for each kind, a model with the keys of both."""
    members = list(more)
    for prefix, place in places:
        for key, kind in {**KINDS, "blend": blend}.items():
            bases = (place, kind)
            model = type(
                f"{place.__name__}{kind.__name__}", bases, {"__module__": __name__}
            )
            members.append(Annotated[model, Tag(f"{prefix}<{key}>")])
    told = Discriminator(
        tag, custom_error_type="expected", custom_error_message=f"expected {node}"
    )
    return Annotated[Union[tuple(members)], told]  # noqa: UP007 - of any number


if TYPE_CHECKING:
    BlendEntry: TypeAlias = InBlend
    PassesEntry: TypeAlias = InPasses
    ConcatEntry: TypeAlias = InConcat
    Stage: TypeAlias = InStages
    Split: TypeAlias = Keys
else:
    BlendEntry, PassesEntry, ConcatEntry = (
        _at(("", p)) for p in (InBlend, InPasses, InConcat)
    )
    Stage = _at(
        ("", InStages),
        blend=OuterBlend,
        node="a stage: 'name', 'start_step' and a 'path'",
    )
    _only = [Annotated[OnlyStages, Tag("<stages>")]]
    Split = _at(
        ("", AtTop), ("<stages>", Stages), blend=OuterBlend, tag=_split, more=_only
    )


class Document(Keys):
    """A metadataset file."""

    module: Literal["energize", "megatron.energon"] = Field(alias="__module__")
    class_: Literal["MetadatasetV2"] = Field(alias="__class__")
    splits: Annotated[dict[str, Split], Field(min_length=1)]


DOCUMENT: Final = TypeAdapter(Document)


STAGE_FILE = (
    "a file of stages is no metadataset; it is read by "
    "get_staged_train_dataset and read_stages"
)


_OLDER = {
    *("path", "split_part", "subflavors", "shuffle_over_epochs_multiplier"),
    *("dataset_config", "split_config", "weight"),
}


_LISTS = {"blend", "blend_epochized", "join", "datasets"}


_NEWER = {*_OLDER, *_LISTS, "repetitions", "joiner", "nonmatch", "aux", "subset"}
"""The keys of Energon's two grammars."""


_OTHERS: tuple[type[Keys], ...] = (
    OuterBlend,
    InBlend,
    InPasses,
    InStages,
    Stages,
    Joined,
)
_KEYS = frozenset(
    name for model in (*KINDS.values(), *_OTHERS) for name in model.model_fields
)
"""All keys of nodes."""


_MEANT = {
    **dict.fromkeys(InBlend.model_fields, "it is for an entry of 'blend'"),
    **dict.fromkeys((*Settings.model_fields, "steps"), "it stands beside 'stages'"),
    **dict.fromkeys(
        ("loss_weight", "loss_weights", "sample_weights"), "it is 'sample_weight'"
    ),
    **dict.fromkeys(("target_weights", "importance_weight"), "it is 'target_weight'"),
    "repetitions": "it is for an entry of 'blend_epochized'",
    "nonmatch": "it is for an entry of 'join'",
    "joiner": "it is for a 'join'",
    "composition": "it is for the outermost 'blend'",
    "sample_weight": "it is for a dataset, a blend, a concat or a join as a whole",
    "stages": "stages are parts of the whole run, so they stand in a split",
}
"""What keys that stand in the wrong place are for, and what others are called here."""


@dataclass(frozen=True, slots=True)
class MetadatasetFile:
    """A metadataset file, checked by itself: what it refers to was not looked at."""

    file: Path
    splits: Mapping[str, Keys]
    text: Located

    @property
    def older(self) -> bool:
        """Whether it is written in Energon's older grammar."""
        return bool(self.text.renamed)


def read_metadataset(
    path: str | os.PathLike[str] | Mapping[str, Any],
) -> MetadatasetFile:
    """Read a metadataset file, or a mapping with what one would say; what it names is
    not touched.

    The text is plain data: nothing in it is imported or executed. Variables of the
    environment are put in where a text names them: `${NAME}`, or `${NAME:-default}`.
    Relative paths in a mapping begin in the current folder.

    Raises `MetadatasetError` with every fault of the file, each with its line, its path
    in the document, the value and what was expected; `DatasetNotFoundError` when there
    is no such file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "mix.yaml"
    >>> _ = file.write_text('''
    ... __module__: energize
    ... __class__: MetadatasetV2
    ... splits:
    ...   train:
    ...     blend:
    ...       - {path: captions, weight: 3}
    ...       - {path: photographs, weight: 1}
    ... ''')
    >>> [
    ...     (entry.path, entry.weight)
    ...     for entry in read_metadataset(file).splits["train"].blend
    ... ]
    [('captions', 3), ('photographs', 1)]
    """
    problems: list[Problem] = []
    if isinstance(path, Mapping):
        file = Path("<a mapping>")
        metadataset = document(plain_values(path, file, problems), problems)
    else:
        file = path_of(path)
        metadataset = load(file, problems)
    if metadataset is None:
        raise as_error(file, problems)
    return metadataset


def load(file: Path, problems: list[Problem]) -> MetadatasetFile | None:
    """Return the document in `file`, or None when it cannot be used; faults go to
    `problems`.
    """
    found: list[Problem] = []
    text = read_yaml(file, found, variables=True)
    metadataset = None if text is None else document(text, found)
    problems += sorted(found, key=lambda problem: problem.line)
    return metadataset


def document(
    text: Located, problems: list[Problem], *, weighs_all: bool | None = None
) -> MetadatasetFile | None:
    """Return what a document says, or None when something in it is wrong; faults go to
    `problems`, but for those of values that have a problem already.

    With `weighs_all` every entry of a blend has a weight, or none has; by default so in
    our own files, where Energon's give 1 to an entry without.
    """
    found: list[tuple[KeyPath, str]] = []
    if not isinstance(text.data, dict):
        told = (
            "expected a mapping with __module__, __class__ and splits; got "
            f"{short(text.data)}"
        )
        found.append(((), told))
    elif "training" in text.data and "splits" not in text.data:
        found.append((("training",), STAGE_FILE))
    else:
        text, module = _rewritten(text, problems), text.data.get("__module__")
        try:
            every = module == ENERGIZE if weighs_all is None else weighs_all
            checked = DOCUMENT.validate_python(text.data, context={"weighs_all": every})
        except ValidationError as error:
            found += _told(error, text.data)
        else:
            if not problems:
                return MetadatasetFile(text.file, checked.splits, text)
    known = {problem.place for problem in problems}
    faulty = [text.problem(*fault) for fault in found]
    problems += [problem for problem in faulty if problem.place not in known]
    check_few(text.file, problems)
    return None


def _told(error: ValidationError, data: Any) -> Iterator[tuple[KeyPath, str]]:
    """Yield what is wrong with a document. A key that is missing is not told beside one
    that is a slip of the pen.
    """
    found = [
        (path, _with_hint(path, text, data))
        for path, text in faults(error, DOCUMENT, data)
    ]
    misspelt = {path[:-1] for path, text in found if "did you mean" in text}
    for path, text in found:
        if not text.endswith("is missing") or path[:-1] not in misspelt:
            yield path, text


def _with_hint(path: KeyPath, text: str, data: Any) -> str:
    """Return what is wrong with a value; of a key that nothing reads, what else is
    known of it.
    """
    if not text.startswith("unknown key"):
        return text
    around = data
    key = str(path[-1])
    for part in path[:-1]:
        around = around[part]
    kinds = [kind for kind in KINDS if kind in around]
    if key in kinds and len(kinds) > 1:
        return (
            f"{' and '.join(map(repr, kinds))} are given; expected exactly one of them"
        )
    if key in _MEANT or key in _KEYS:
        return f"the key {key!r} has no place here; {_MEANT.get(key, 'remove it')}"
    return text


# Energon's grammars


def _rewritten(text: Located, found: list[Problem]) -> Located:
    """Return a document in our words; keys that Energon's grammars do not have go to
    `found`.
    """
    data = text.data
    splits = text.data.get("splits")
    nodes = splits if isinstance(splits, dict) else {}
    listed = any(
        isinstance(node, dict) and "datasets" in node for node in nodes.values()
    )
    if data.get("__class__", "Metadataset" if listed else "") == "Metadataset":
        keys = _OLDER
        needs = "`__class__: MetadatasetV2`"
    elif data.get("__module__") == ENERGON:
        keys = _NEWER
        needs = f"`__module__: {ENERGIZE}`"
    else:
        return text
    for name, node in nodes.items():
        for foreign in _foreign(node, keys, ("splits", name)):
            told = (
                "unknown key, or value, in a file of Energon's grammar; it needs "
                f"{needs}"
            )
            found.append(text.problem(foreign, told))
    if keys is _NEWER:
        return text
    own: dict[Any, Any] = {}
    renamed: dict[KeyPath, KeyPath] = {("__class__",): ("__class__",)}
    for name, node in nodes.items():
        path: KeyPath = ("splits", name)
        if not isinstance(node, dict) or not isinstance(node.get("datasets"), list):
            told = f"expected a mapping with 'datasets'; got {short(node)}"
            found.append(text.problem(path, told))
            continue
        rest = {key: value for key, value in node.items() if key != "datasets"}
        own[name] = {
            **rest,
            "blend": [_relabelled(entry) for entry in node["datasets"]],
        }
        renamed[*path, "blend"] = (*path, "datasets")
    head = {"__module__": ENERGIZE, **data, "__class__": "MetadatasetV2"}
    return replace(text, data={**head, "splits": own or splits}, renamed=renamed)


def _foreign(node: Any, keys: set[str], path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths of our own keys, and of schedules, below a node of a grammar that
    has `keys`.
    """
    for key, value in node.items() if isinstance(node, dict) else ():
        if (key in _KEYS and key not in keys) or (
            key == "weight" and isinstance(value, dict)
        ):
            yield (*path, key)
        elif key in _LISTS and isinstance(value, dict | list):
            for i, each in (
                value.items() if isinstance(value, dict) else enumerate(value)
            ):
                yield from _foreign(each, keys, (*path, key, i))


def _relabelled(entry: Any) -> Any:
    """Return an entry of the older grammar with its `subflavor` among the
    subflavors.
    """
    if not isinstance(entry, dict) or "subflavor" not in entry:
        return entry
    rest = {key: value for key, value in entry.items() if key != "subflavor"}
    labels = rest.get("subflavors", {})
    own = {"__subflavor__": entry["subflavor"]}
    return {
        **rest,
        "subflavors": {**own, **labels} if isinstance(labels, dict) else labels,
    }


def json_schema() -> dict[str, Any]:
    """Return our grammar as a JSON schema, for editors; Energon's older one is not
    looked into.
    """
    older = {
        "properties": {"__class__": {"const": "Metadataset"}},
        "required": ["splits"],
    }
    own = DOCUMENT.json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "energize metadataset",
        "description": "Weighted sources of a training run",
        "$defs": own.pop("$defs"),
        "anyOf": [own, {"type": "object", **older}],
    }
