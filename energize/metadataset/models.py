"""The grammar of metadatasets: a pydantic model for each type of node and its place.

Keys are fields of node types or of places. Annotations validate keys, and are the
source of the JSON schema for editors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeAlias,
    Union,
    cast,
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
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from energize.core import limits
from energize.core.costs import ItemCost, level_costs
from energize.core.validation import Model, short
from energize.data.join import NONMATCH
from energize.data.nv_meta import TypeName
from energize.data.source import Subset
from energize.datasets.align import OPTIONS, Alignment
from energize.datasets.planned import WINDOW
from energize.datasets.quota import SAMPLING_METHODS
from energize.errors import ConfigError, nearest
from energize.order import Schedule
from energize.order.composition import BATCHING_METHODS
from energize.order.quota import Quota, epoch_size_in_samples
from energize.order.stopping import STOP_RULES
from energize.order.timeline import SCHEMES
from energize.order.weights import INTERPOLATIONS, SIZE_RULES
from energize.packing.packer import METHODS, Packer
from energize.task.encoder import Level
from energize.task.planning import PackPlan

ENERGIZE: Final = "energize"
ENERGON: Final = ("megatron.energon", "energize.energon")
"""Modules of Energon's grammar; the second in programs with replaced imports."""
EPOCHIZED: Final = "blend_epochized"
SUBFLAVORS: Final = "subflavors."
"""The prefix of a subflavor in place of a column."""
NODE = (
    "a dataset (a mapping with 'path'), or one with 'blend', 'blend_epochized' or "
    "'join'"
)

_WEIGHTS = (
    {
        "scheme",
        "block_size",
        "stop",
        "temperature",
        "exponent",
        "unit",
        "max_correction",
    },
    {"weight", "min_share", "max_share", "max_epochs", "target_weight"},
)
_QUOTAS = (
    {"epoch_size", "sampling_method", "composition"},
    {"proportion", "repeat", "choose"},
)
"""Keys of blends, and of their entries: those by weights, and those by quotas."""


class Keys(Model):
    """A mapping of a file; missing keys have their defaults."""

    model_config = ConfigDict(defer_build=True, arbitrary_types_allowed=True)


@dataclass(frozen=True)
class Expected:
    """Annotation: the expectation in messages, instead of the text of pydantic."""

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
Temperature = Annotated[
    PositiveInt | Annotated[float, Field(gt=0, allow_inf_nan=False)],
    Expected("a finite number above 0; exponent: 0 makes shares equal"),
]
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


_WeightsByValue = Annotated[dict[str, Weight], Field(min_length=1)]
_BlendWeights = Annotated[
    Annotated[str, OneOf(SIZE_RULES), Tag("<rule>")]
    | Annotated[_WeightsByValue, Tag("<mapping>")],
    Discriminator(lambda value: "<rule>" if isinstance(value, str) else "<mapping>"),
]


class ItemField(Keys):
    """A cost of samples by one of their fields."""

    field: Text


Unit = Annotated[
    Text | Annotated[ItemField, AfterValidator(lambda value: ItemCost(value.field))],
    Expected(
        "a column of all folders, such as tokens, or {field: NAME} of samples, or "
        "samples"
    ),
]


class RangeKeys(Keys):
    """A range of samples, or a number of samples that are drawn at random.

    The first sample of a range is included, the last one is not. Drawn samples are the
    same in every run, on every rank and in every epoch.
    """

    range: (
        Annotated[
            _Bounds,
            Expected(
                "two numbers, such as [100, end], or two percentages, such as [5%, 10%]"
            ),
        ]
        | None
    ) = None
    random: (
        Annotated[
            PositiveInt | _Percent,
            Expected("a number of samples, such as 1000, or a percentage, such as 10%"),
        ]
        | None
    ) = None

    def subset(self) -> Subset:
        """Return the subset that is meant."""
        if (self.range is None) == (self.random is None):
            raise ConfigError("a subset must have either 'range' or 'random'")
        if self.range is None:
            return self._drawn()
        start, end = self.range
        counted = isinstance(start, int)
        last = end == "end"
        if start == "end" or not (last or counted == isinstance(end, int)):
            raise ConfigError(
                "a range must have two numbers or two percentages, got "
                f"{short(self.range)}"
            )
        if counted:
            ordered = last or int(start) <= int(end)
            subset = Subset(samples=(int(start), None if last else int(end)))
        else:
            ends = (str(start), "100" if last else str(end))
            first, stop = (float(end.strip("% ")) / 100 for end in ends)
            ordered = first <= stop <= 1
            subset = Subset(ratios=(first, stop))
        if not ordered:
            raise ConfigError(
                "a range must end after its start and at most at 100%, got "
                f"{self.range}"
            )
        return subset

    def _drawn(self) -> Subset:
        if isinstance(self.random, int):
            return Subset(drawn=self.random)
        ratio = float(str(self.random).strip("% ")) / 100
        if not 0 < ratio <= 1:
            raise ConfigError(
                f"random must be above 0% and at most 100%, got {self.random}"
            )
        return Subset(drawn=ratio)


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


class CompositionKeys(Keys):
    """The composition of a global batch, see `ComposedDataset`.

    By default as large as a batch, with the `drop_last` of the program.
    """

    method: Annotated[str, OneOf(BATCHING_METHODS)]
    global_batch_size: PositiveInt | None = None
    drop_last: bool | None = None


_OF_PLANS = {"window", "homogeneous", "measure"}
_OF_BUFFERS = {"method", "buffer_size"}


class Packing(Keys):
    """How encoded samples are packed, see `Packer`, `PackPlan` and `concat_pack`.

    Packs are planned if `length` names columns of all sources. Otherwise, and if
    `method` or `buffer_size` is set, a buffer of a stream is packed: lengths are fields
    of encoded samples. With `window`, `homogeneous` or `measure`, columns are required.
    """

    length: Names
    capacity: Sizes
    method: Annotated[str, OneOf(METHODS)] = "best_fit"
    buffer_size: PositiveInt = 1000
    window: PositiveInt | None = None
    homogeneous: Text | None = None
    measure: Names | None = None
    too_long: Literal["error", "skip", "drop", "cut"] = "error"
    fields: Names | None = None
    flatten: Names | None = None

    @model_validator(mode="after")
    def _fits(self) -> Packing:
        planned, buffered = self._of_plan, self._of_buffer
        if planned and buffered:
            raise ConfigError(
                f"{planned[0]} belongs to planned packs, and {buffered[0]} to a "
                "buffer. Remove one of them"
            )
        _ = self.packer, self.plan
        return self

    @property
    def _of_plan(self) -> list[str]:
        """The set keys that belong to planned packs."""
        names = sorted(_OF_PLANS & self.model_fields_set)
        return [*names, *["too_long"] * (self.too_long in ("drop", "cut"))]

    @property
    def _of_buffer(self) -> list[str]:
        """The set keys that belong to a packed buffer."""
        names = sorted(_OF_BUFFERS & self.model_fields_set)
        return [*names, *["too_long"] * (self.too_long == "skip")]

    @property
    def plan(self) -> PackPlan | None:
        """The plan of packs; None if a buffer is packed."""
        if self._of_buffer:
            return None
        measure = None if self.measure is None else tuple(_listed(self.measure))
        return PackPlan(
            tuple(_listed(self.length)),
            tuple(_listed(self.capacity)),
            self.window or WINDOW,
            self.homogeneous,
            cast("Any", self.too_long),
            measure,
        )

    @property
    def packer(self) -> Packer | None:
        """The packer, which chooses the samples of a pack; None if columns do."""
        if self._of_plan:
            return None
        lengths = _listed(self.length)
        sizes = _listed(self.capacity)
        return Packer(
            tuple(lengths),
            tuple(sizes),
            self.method,  # type: ignore[arg-type]  # checked by the model
            cast("Any", self.too_long),
        )

    @property
    def joined(self) -> tuple[list[str], list[str]]:
        """The fields that packs have joined, and the lists that they have end to
        end.
        """
        return _listed(self.fields or _listed(self.length)[0]), _listed(
            self.flatten or []
        )


def _costs_tag(value: Any) -> str:
    """Return the form of a cost: a column, a list or a mapping of columns."""
    if isinstance(value, Mapping):
        return "<mapping>"
    return "<list>" if isinstance(value, list) else "<column>"


_Importance = Annotated[
    PositiveInt | Annotated[float, Field(gt=0, allow_inf_nan=False)],
    Expected("a finite number above 0, the importance of a cost"),
]
Costs = Annotated[
    Annotated[Text, Tag("<column>")]
    | Annotated[list[Text], Field(min_length=1), Tag("<list>")]
    | Annotated[dict[Text, _Importance], Field(min_length=1), Tag("<mapping>")],
    Discriminator(_costs_tag),
]
"""A column, a list of columns, or columns with the importance of each."""


class LevelKeys(Keys):
    """How batches are levelled: by columns, or by a field of encoded samples."""

    cost: Costs | None = None
    global_batch_size: PositiveInt | None = None
    field: Text | None = None
    buffer_size: PositiveInt | None = None

    def level(self) -> Level:
        """Return the level as an argument of a program."""
        if (self.cost is None) == (self.field is None):
            raise ConfigError(
                "set either 'cost', a column of all folders or several, or 'field', a "
                "field of samples"
            )
        cost = (
            ItemCost(self.field or "")
            if self.cost is None
            else level_costs(self.cost, "cost")
        )
        return Level(cost, self.global_batch_size, self.buffer_size)


_AlignRule = Annotated[
    Literal["together", "always"],
    Expected("'together' or 'always'; set options beside 'columns'"),
]
AlignColumns = Annotated[
    Annotated[Text, Tag("<column>")]
    | Annotated[list[Text], Field(min_length=1), Tag("<list>")]
    | Annotated[dict[Text, _AlignRule], Field(min_length=1), Tag("<mapping>")],
    Discriminator(_costs_tag),
]
"""A column, a list of columns, or columns with "together" or "always"."""


class AlignKeys(Keys):
    """The modalities that all ranks have together, with options."""

    columns: AlignColumns
    always: bool = False
    ranks: PositiveInt | None = None
    global_batch_size: PositiveInt | None = None


def _align_tag(value: Any) -> str:
    """Return the form of an alignment: columns, or columns with options."""
    has_options = isinstance(value, Mapping) and any(
        nearest(str(name), OPTIONS[:1]) and rule not in ("together", "always")
        for name, rule in value.items()
    )
    return "<options>" if has_options else "<columns>"


Align = Annotated[
    Annotated[AlignKeys, Tag("<options>")] | Annotated[AlignColumns, Tag("<columns>")],
    Discriminator(_align_tag),
]


def _alignment(value: Any) -> Alignment:
    """Return keys as an argument of a program."""
    if not isinstance(value, AlignKeys):
        return Alignment.of(value)
    return Alignment.of(
        value.columns,
        always=value.always,
        ranks=value.ranks,
        global_batch_size=value.global_batch_size,
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# Kinds of nodes


class ReadKeys(Keys):
    """Keys of datasets and joins about the samples that are read."""

    split_part: Text | None = None
    subflavors: Table | None = None
    shuffle_over_epochs_multiplier: Multiplier = 1
    dataset_config: Text | None = None
    split_config: Text | None = None
    subset: Range | None = None


class WeighedKeys(Keys):
    """Keys of nodes with a loss weight."""

    sample_weight: Number | None = None


class PropertyKeys(WeighedKeys):
    """Keys that mix samples by a property of theirs."""

    by: Text | None = None
    weights: _WeightsByValue | None = None
    other: Weight | None = None

    @model_validator(mode="after")
    def _property(self) -> PropertyKeys:
        if self.by is None:
            if isinstance(self.weights, Mapping) or self.other is not None:
                raise ConfigError(
                    "'weights' and 'other' need the property 'by'. Use 'weight' for "
                    "the share of an entry in its blend"
                )
        elif self.by.startswith("subflavor."):
            raise ConfigError(
                f"by: write {SUBFLAVORS}{self.by.partition('.')[2]}, with an s"
            )
        elif not isinstance(self.weights, Mapping):
            raise ConfigError("'by' needs 'weights', such as {high: 3, low: 1}")
        elif not any(self.weights.values()) and not self.other:
            raise ConfigError("weights: all are 0. Set at least one above 0")
        return self


SampleTypeName = Annotated[
    Annotated[Text, AfterValidator(lambda name: (ENERGIZE, name))]
    | Annotated[TypeName, AfterValidator(lambda kind: (kind.module, kind.name))]
    | SkipJsonSchema[type[Any]],
    Expected(
        "the name of a sample type, or a mapping with '__module__' and '__class__'"
    ),
]


class FolderKeys(ReadKeys, PropertyKeys):
    """A folder of samples, prepared or loose, a file of rows, or another metadataset.

    `sample_type` and `field_map` win over the values of the folder.
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
    recipe: Table | None = None


class JoinKeys(ReadKeys, PropertyKeys):
    """Folders with joined samples: those with equal keys."""

    join: Annotated[
        Annotated[list[JoinedKeys], Field(min_length=2), Tag("<list>")]
        | Annotated[dict[str, JoinedKeys], Field(min_length=2), Tag("<mapping>")],
        Discriminator(
            lambda value: "<mapping>" if isinstance(value, Mapping) else "<list>"
        ),
        BeforeValidator(_few),
    ]
    joiner: Joiner

    @property
    def entries(self) -> list[tuple[str | int, JoinedKeys]]:
        """The joined folders, by number or by name."""
        return list(
            self.join.items() if isinstance(self.join, dict) else enumerate(self.join)
        )

    @model_validator(mode="after")
    def _first(self) -> JoinKeys:
        if self.entries[0][1].nonmatch != "error":
            raise ConfigError(
                "join: nonmatch has no effect on the first dataset. Set it for the "
                "others"
            )
        return self


class ListKeys(WeighedKeys):
    """Nodes in a list, each with a quota of an epoch."""

    list_key: ClassVar[str]
    by_quotas: ClassVar[bool] = True
    subset: Range | None = None

    @property
    def entries(self) -> list[Any]:
        """The nodes."""
        return getattr(self, self.list_key)  # type: ignore[no-any-return]


class PassesKeys(ListKeys):
    """Nodes with a number of passes in an epoch."""

    list_key = EPOCHIZED
    blend_epochized: Annotated[
        list[PassesEntry], Field(min_length=1), BeforeValidator(_few)
    ]


class ConcatKeys(ListKeys):
    """Nodes that follow one another in every epoch."""

    list_key = "concat"
    concat: Annotated[list[ConcatEntry], Field(min_length=1), BeforeValidator(_few)]


class BlendSettings(Keys):
    """How the nodes of a blend are mixed."""

    scheme: Annotated[str, OneOf(SCHEMES)] | None = None
    block_size: PositiveInt | None = None
    stop: Annotated[str, OneOf(STOP_RULES)] | None = None
    temperature: Temperature | None = 1
    exponent: Number | None = 1
    unit: Unit | None = "samples"
    epoch_size: EpochSize | None = None
    sampling_method: Annotated[str, OneOf(SAMPLING_METHODS)] | None = None


BLEND_DEFAULTS: Final[Mapping[str, Any]] = {
    "scheme": None,
    "block_size": None,
    "stop": None,
    "temperature": 1,
    "exponent": 1,
    "unit": "samples",
}
"""The settings of a blend by weights that are options of `BlendDataset`."""


class OuterBlendSettings(Keys):
    """Settings of a blend that is not in another one."""

    composition: CompositionKeys | None = None
    max_correction: (
        Annotated[Number, Field(ge=1), Expected("a finite number, 1 or more")] | None
    ) = None


class BlendKeys(ListKeys, PropertyKeys, BlendSettings):
    """Nodes mixed by weights or by quotas."""

    list_key = "blend"
    blend: Annotated[list[BlendEntry], Field(min_length=1), BeforeValidator(_few)]
    weights: _BlendWeights | None = None  # type: ignore[assignment]  # also by size

    @cached_property
    def by_quotas(self) -> bool:  # type: ignore[override]
        """Whether quotas, not weights, decide what each node gives."""
        return bool(self._keys_of(_QUOTAS))

    def _keys_of(self, keys: tuple[set[str], set[str]]) -> list[str]:
        """Return those of some keys that it has, and that its entries have, as messages
        call them.
        """
        of_blend, of_entries = keys
        messages = [repr(key) for key in sorted(of_blend & self.model_fields_set)]
        for number, entry in enumerate(self.blend):
            for key in sorted(of_entries & entry.model_fields_set):
                messages.append(f"{key!r} of entry [{number}]")
        return messages

    @model_validator(mode="after")
    def _mixed(self, info: ValidationInfo) -> BlendKeys:
        """Raise `ConfigError` for keys that are valid alone but not together."""
        weights = self._keys_of(_WEIGHTS)
        if self.by_quotas and weights:
            raise ConfigError(
                f"a blend must have either weights or quotas, but {weights[0]} is "
                f"for weights and {self._keys_of(_QUOTAS)[0]} is for quotas. Remove "
                "one of them"
            )
        if self.block_size is not None and self.scheme not in (None, "block"):
            raise ConfigError(
                f"block_size needs scheme: block, got scheme: {self.scheme}"
            )
        if isinstance(self.weights, str):
            self._check_sizes(self.weights)
        if self.by is not None:
            self._check_property(weights)
        if not self.by_quotas:
            self._check_weights(every=(info.context or {}).get("weighs_all", True))
            self._check_targets()
        return self

    def _check_sizes(self, rule: str) -> None:
        fixed = self._keys_of(_QUOTAS) or self._keys_of((set(), {"weight"}))
        if fixed:
            raise ConfigError(
                f"'weights: {rule}' sets the weights of all entries, so {fixed[0]} has "
                "no effect. Remove one of them"
            )

    def _check_property(self, weights: list[str]) -> None:
        weighed = [key for key in weights if "entry" in key]
        if self.by_quotas or weighed:
            key = weighed[0] if weighed else self._keys_of(_QUOTAS)[0]
            raise ConfigError(
                f"the samples of all entries are weighted by {short(self.by)}, so "
                f"{key} has no effect. Remove it, or set 'by' for the entries"
            )

    def _check_weights(self, *, every: bool) -> None:
        without = [
            i
            for i, entry in enumerate(self.blend)
            if "weight" not in entry.model_fields_set
        ]
        if every and 0 < len(without) < len(self.blend):
            raise ConfigError(
                f"blend: entries {without} have no weight. Set the weight of all "
                "entries"
            )

    def _check_targets(self) -> None:
        targets = [entry.target_weight for entry in self.blend]
        without = [i for i, target in enumerate(targets) if target is None]
        if 0 < len(without) < len(targets):
            raise ConfigError(
                f"blend: entries {without} have no target_weight. Set it for all "
                "entries"
            )
        if not without and not any(targets):
            raise ConfigError(
                "blend: all target weights are 0. Set at least one above 0"
            )


class OuterBlendKeys(BlendKeys, OuterBlendSettings):
    """A blend that is a split or a stage."""


# Places of nodes


class NamedKeys(Keys):
    """An entry of a list."""

    name: EntryName | None = None


class InBlend(NamedKeys):
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
        """Its part of an epoch, in a blend by quotas."""
        return Quota(proportion=self.proportion, repeat=self.repeat, choose=self.choose)


class InPasses(NamedKeys):
    """An entry of blend_epochized."""

    repetitions: Number = 1

    @property
    def quota(self) -> Quota:
        """Its part of an epoch."""
        return Quota() if self.repetitions == 1 else Quota(repeat=self.repetitions)


class InConcat(NamedKeys):
    """An entry of a concat."""

    quota: ClassVar[Quota] = Quota()


class AtTop(Keys):
    """A split, or a stage."""

    packing: Packing | None = None
    batch_budget: dict[str, PositiveInt] | None = None
    level: Annotated[LevelKeys, AfterValidator(LevelKeys.level)] | None = None
    align: Annotated[Align, AfterValidator(_alignment)] | None = None


class StageSettings(Keys):
    """Settings of stages, beside their data."""

    seq_len: PositiveInt | None = None
    items_per_step: PositiveInt | None = None
    batch: Table | None = None
    seed: NonNegativeInt | None = None


class InStages(AtTop, StageSettings):
    """A stage."""

    name: Name
    start_step: NonNegativeInt
    end_step: PositiveInt | None = None


class StagesKeys(StageSettings):
    """A split with stages."""

    steps: PositiveInt | None = None
    stages: Annotated[list[Stage], Field(min_length=1), BeforeValidator(_few)]


class OnlyStagesKeys(StagesKeys, WeighedKeys):
    """A split of stages, without anything before them."""


class JoinedKeys(ReadKeys):
    """An entry of a join."""

    path: Text
    nonmatch: Annotated[str, OneOf(NONMATCH)] = "error"


KINDS: Final[Mapping[str, type[Keys]]] = {
    "concat": ConcatKeys,
    "join": JoinKeys,
    EPOCHIZED: PassesKeys,
    "blend": BlendKeys,
    "path": FolderKeys,
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
    """Return the tag of a split, which may have stages beside the data before them."""
    node_type = _kind(value)
    if node_type is None or "stages" not in value:
        return node_type
    return (
        f"<stages>{node_type}"
        if node_type != "<path>" or "path" in value
        else "<stages>"
    )


def _at(
    *places: tuple[str, type[Keys]],
    blend: type[BlendKeys] = BlendKeys,
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
    by_tag = Discriminator(
        tag, custom_error_type="expected", custom_error_message=f"expected {node}"
    )
    return Annotated[Union[tuple(members)], by_tag]  # noqa: UP007 - of any number


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
        blend=OuterBlendKeys,
        node="a stage: 'name', 'start_step' and a 'path'",
    )
    _only = [Annotated[OnlyStagesKeys, Tag("<stages>")]]
    Split = _at(
        ("", AtTop),
        ("<stages>", StagesKeys),
        blend=OuterBlendKeys,
        tag=_split,
        more=_only,
    )


class DocumentKeys(Keys):
    """A metadataset file."""

    module: Literal["energize", "megatron.energon", "energize.energon"] = Field(
        alias="__module__"
    )
    class_: Literal["MetadatasetV2"] = Field(alias="__class__")
    splits: Annotated[dict[str, Split], Field(min_length=1)]


DOCUMENT: Final = TypeAdapter(DocumentKeys)


def json_schema() -> dict[str, Any]:
    """Return our grammar as a JSON schema, for editors; Energon's older one is not
    looked into.
    """
    older = {
        "properties": {"__class__": {"const": "Metadataset"}},
        "required": ["splits"],
    }
    schema = DOCUMENT.json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "energize metadataset",
        "description": "Weighted sources of a training run",
        "$defs": schema.pop("$defs"),
        "anyOf": [schema, {"type": "object", **older}],
    }
