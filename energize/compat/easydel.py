"""The exact order of EasyDeL 0.3, for runs that have to repeat one of its."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import datasets
import numpy as np
import torch.utils.data
from pydantic import Field, InstanceOf, StrictBool, StringConstraints

from energize.compat.checks import (
    ByName,
    Count,
    Weights,
    Whole,
    checked,
    checked_fields,
    checked_seed,
    expected,
    of_fields,
    or_fields,
)
from energize.compat.hugging_face import to_iterable_dataset
from energize.core.arrays import FloatArray, Int64Array, rows_by_value
from energize.core.checks import checked_whole, raised_as
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import described
from energize.core.lanes import SINGLE_LANE, Lane, WorkerConfig
from energize.core.lazy import optional_module
from energize.core.stream import INFINITE, Cursor, State
from energize.data.memory import as_dataset
from energize.data.rows import DataFiles, JsonSource, ParquetSource, data_files
from energize.datasets.batch import BatchDataset
from energize.datasets.blend import BlendDataset
from energize.datasets.order import ConcatDataset, LimitDataset, ShuffleDataset
from energize.datasets.transform import MapDataset
from energize.errors import ConfigError, DatasetError, WeightError, nearest
from energize.loader import Loader, get_loader
from energize.order import Schedule
from energize.order.schedule import checked_weight
from energize.order.weights import Weight, weights_at

if TYPE_CHECKING:
    import datasets

from energize.order.schedule import WeightSchedulePoint, WeightScheduler

__all__ = [
    "CompositeShardedSource",
    "DatasetConfig",
    "DatasetMixture",
    "HFDatasetShardedSource",
    "JsonShardedSource",
    "LoadStageConfig",
    "MixStageConfig",
    "MixedShardedSource",
    "ParquetShardedSource",
    "Pipeline",
    "PipelineConfig",
    "ShardedDataSource",
    "TextDatasetInform",
    "TokenizerConfig",
    "WeightSchedulePoint",
    "WeightScheduler",
    "block_mixture_interleave",
    "build_dataset",
]


_TABLE_BLOCKS = 2**24
_BLOCKS_AT_ONCE = 2**14


class EasydelScheme:
    """Blocks that hold floor(share * block_size) slots of each source, the rest of them going to
    the largest share, in the order that numpy's `default_rng(seed + block).shuffle` gives them.

    Nothing is carried from block to block, so sources with a share below 1 / block_size never come.
    Weights that are schedules are read at the first slot of each block. The order of the sources
    matters.

    >>> scheme = EasydelScheme([0.3, 0.7], block_size=10, seed=42)
    >>> scheme.locate(np.arange(10))[0].tolist()
    [1, 1, 0, 1, 1, 0, 1, 1, 0, 1]
    """

    def __init__(self, weights: Sequence[Weight], *, block_size: int, seed: int) -> None:
        self._weights, self._block_size, self._seed = tuple(weights), block_size, seed
        self._points = [0]
        for each in self._weights:
            self._points += each.slots if isinstance(each, Schedule) else []
        self._changing = -(-max(self._points) // block_size)
        if self._changing > _TABLE_BLOCKS:
            raise ConfigError(
                f"order='easydel' needs a table of all blocks up to the last point of a schedule; "
                f"{self._changing} blocks of {block_size} are too many. Use order='energize'"
            )

    @property
    def highest(self) -> list[float]:
        """The highest weight of each source at any slot."""
        weights = weights_at(self._weights, np.array(self._points, dtype=np.float64))
        highest: list[float] = weights.max(axis=0).tolist()
        return highest

    def describe(self) -> dict[str, Any]:
        return {
            "scheme": "easydel",
            "block_size": self._block_size,
            "seed": self._seed,
            "weights": described(self._weights),
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EasydelScheme) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((self._block_size, self._seed))

    def counts(self, n: int) -> Int64Array:
        """Return the slots given to each source among the first `n`."""
        block, rest = divmod(n, self._block_size)
        sources, _ = self._layout(block)
        return self._before(block) + np.bincount(sources[:rest], minlength=len(self._weights))

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return for each slot its source, and how many slots before it went to that source."""
        blocks, offset = np.divmod(ks, self._block_size)
        source, nth = np.empty_like(ks), np.empty_like(ks)
        for block, rows in rows_by_value(blocks):
            sources, ranks = self._layout(block)
            source[rows] = sources[offset[rows]]
            nth[rows] = ranks[offset[rows]] + self._before(block)[source[rows]]
        return source, nth

    def _layout(self, block: int) -> tuple[Int64Array, Int64Array]:
        counts = self._block_counts(np.array([block]))[0]
        return _layout(tuple(counts.tolist()), self._seed + block)

    def _before(self, block: int) -> Int64Array:
        """Slots of each source in all blocks before `block`; after the last point they repeat."""
        known = min(block, self._changing)
        repeated = self._block_counts(np.array([self._changing]))[0]
        return np.asarray(self._table[known] + repeated * (block - known))

    @cached_property
    def _table(self) -> Int64Array:
        """Slots of each source (columns) before each block up to the last point (rows)."""
        blocks = np.arange(self._changing)
        cuts = range(_BLOCKS_AT_ONCE, self._changing, _BLOCKS_AT_ONCE)
        parts = [self._block_counts(each) for each in np.split(blocks, cuts)]
        zero = np.zeros((1, len(self._weights)), dtype=np.int64)
        return np.cumsum(np.concatenate([zero, *parts]), axis=0)

    def _block_counts(self, blocks: Int64Array) -> Int64Array:
        """The slots of each source (columns) in each block (rows)."""
        weights: FloatArray = weights_at(self._weights, blocks * float(self._block_size))
        shares = weights / np.cumsum(weights, axis=1)[:, -1:]  # summed from left to right
        counts = np.floor(shares * self._block_size).astype(np.int64)
        largest = np.argmax(shares, axis=1)
        counts[np.arange(len(blocks)), largest] += self._block_size - counts.sum(axis=1)
        return np.asarray(counts)


@lru_cache(maxsize=8)
def _layout(counts: tuple[int, ...], seed: int) -> tuple[Int64Array, Int64Array]:
    """For each slot of a block its source, and that source's slots before it in the block."""
    sources = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(seed).shuffle(sources)
    ranks = np.empty_like(sources)
    ranks[np.argsort(sources, kind="stable")] = np.concatenate([*map(np.arange, counts)])
    return sources, ranks


# One mix of named datasets of examples, by EasyDeL's rules.

Example = dict[str, Any]
Stop = Literal["restart", "first_exhausted", "all_exhausted"]

_RUNS_PER_WINDOW = 4
"""Row groups that are shuffled together: few enough to stay in a cache."""


@dataclass(frozen=True)
class Named:
    """Copies an example, and writes into the copy which source it is from."""

    source: str
    field: str | None

    def __call__(self, example: Mapping[str, Any]) -> Example:
        if not isinstance(example, Mapping):
            raise ConfigError(
                f"source {self.source!r}: an example is a dict, got {type(example).__name__} "
                f"{str(example)[:80]!r}"
            )
        return {**example} if self.field is None else {**example, self.field: self.source}


def mixed(owner: str, source_field: str | None, *rules: Any, **more: Any) -> Dataset[Example]:
    """The dataset of a `Mix` with these rules; errors name `owner`, who was given them."""
    with raised_as(owner, "Mix", "BlendDataset"):
        return Mix(*rules, **more).dataset(owner, source_field)


@checked_fields
@dataclass(frozen=True)
class Mix:
    """Named sources, and how they are mixed.

    `order="energize"`: exact shares with carry from block to block, the same whatever the order of
    the names; sources with random access are shuffled, anew in every pass, unless `shuffle` is
    False. `order="easydel"`: its order exactly, sources in their stored order.
    """

    sources: ByName[Any]
    weights: Weights | None
    block_size: Count
    seed: Whole | None
    stop_strategy: Stop
    weight_scheduler: InstanceOf[WeightScheduler] | None = None
    order: Literal["energize", "easydel"] = "energize"
    shuffle: StrictBool | None = None
    scheme: str = "block"

    def dataset(self, owner: str, source_field: str | None = None) -> Dataset[Example]:
        """Examples by weight, each a new dict with its source in `source_field`.

        Indexed where all sources are; then any position is one look away and a state is a number.
        """
        theirs = self.order == "easydel"
        shuffle = not theirs if self.shuffle is None else self.shuffle
        seed = checked_seed(self.seed, owner)
        parts: dict[str, Dataset[Example]] = {}
        for name in self.sources if theirs else sorted(self.sources):
            dataset = as_dataset(self.sources[name], name).reseeded(seed)
            visited = _shuffled(dataset) if shuffle else dataset
            parts[name] = MapDataset(visited, Named(name, source_field), seeded=False)
        equal = dict.fromkeys(parts, 1.0)
        given = self.weight_scheduler or (equal if self.weights is None else self.weights)
        options: dict[str, Any] = {"block_size": self.block_size} if self.scheme == "block" else {}
        if not theirs:
            stop = self.stop_strategy
            return BlendDataset(parts, weights=given, scheme=self.scheme, stop=stop, **options)
        if self.stop_strategy == "all_exhausted":
            raise ConfigError(
                "under all_exhausted EasyDeL ends too early or never, so there is no order to "
                "repeat; use order='energize'"
            )
        scheme = EasydelScheme(BlendDataset(parts, weights=given).weights, seed=seed, **options)
        pairs = zip(parts.values(), scheme.highest, strict=True)
        return BlendDataset(pairs, scheme=scheme, stop=self.stop_strategy)


def _shuffled(dataset: Dataset[Any]) -> Dataset[Any]:
    """The dataset in random order where that costs no buffer."""
    if not isinstance(dataset, IndexedDataset) or not dataset.indexed:
        return dataset
    if dataset.size in (0, INFINITE):
        return dataset
    runs = [each.run_length for each in dataset.sources if each.run_length is not None]
    window = _RUNS_PER_WINDOW * max(runs) if runs else None
    return ShuffleDataset(dataset, shuffle_buffer_size=window)


# Files of examples, as configurations name them, as a dataset.

_KINDS = {
    **{name: name for name in ("parquet", "json", "csv", "arrow", "text", "huggingface")},
    "jsonl": "json",
    "txt": "text",
    "hf": "huggingface",
}
"""What a type, or the ending of a file's name, stands for."""


@dataclass(frozen=True, kw_only=True)
class ExampleFiles:
    """Files of examples.

    `data_files`: a path, a pattern, or a list of them; the path of a dataset on the Hugging Face
    hub with `type="huggingface"`.
    `type`: parquet, json (or jsonl), csv, arrow, text, huggingface; by default what the names of
    the files end in.
    `content_field`: the field with the text; `additional_fields`: those kept beside it.
    `format_callback`: a function of each example; `format_fields`: new names of fields by old ones;
    both come before tokenizing, the function first.
    `num_rows`: only the first so many examples.
    """

    data_files: Annotated[
        InstanceOf[os.PathLike[str]] | Annotated[DataFiles, Field(min_length=1)],
        expected("is a path, a pattern or a list of them"),
    ]
    name: str | None = None
    type: Annotated[str, StringConstraints(to_lower=True)] | None = None
    split: str = "train"
    num_rows: Count | None = None
    content_field: str = "text"
    additional_fields: Sequence[str] = ()
    format_callback: Callable[[Example], Example] | None = None
    format_fields: Mapping[str, str] | None = None

    def examples(self, *, streaming: bool) -> Dataset[Example]:
        """The examples, limited and formatted, as a dataset of this name.

        Parquet and JSON files are read at random. Other kinds are read by the library datasets, as
        a stream where `streaming` is true.
        """
        rows = self._read(self.name or "", streaming)
        if self.num_rows is not None:
            rows = LimitDataset(rows, self.num_rows)
        if self.format_callback is None and not self.format_fields:
            return rows
        formatted = Formatted(self.format_callback, self.format_fields or {})
        return MapDataset(rows, formatted, seeded=False)

    def _read(self, name: str, streaming: bool) -> Dataset[Example]:
        kind = self._kind(name)
        if kind == "parquet":
            return ParquetSource(self.data_files, name=name)
        if kind == "json":
            return JsonSource(self.data_files, name=name)
        hugging_face = optional_module("datasets", "energize[hf]", f"reading {kind} files")
        files, split = {}, self.split
        if kind != "huggingface":
            found = data_files(self.data_files, f"dataset {name!r}")
            files, split = {"data_files": list(map(str, found))}, "train"
        path = self._first if kind == "huggingface" else kind
        try:
            rows = hugging_face.load_dataset(path, split=split, streaming=streaming, **files)
        except Exception as error:
            reason = error.__cause__ or error  # most are an "error while generating the dataset"
            raise DatasetError(
                f"dataset {name!r}: {self.data_files} cannot be read as {kind} by the library "
                f"datasets: {type(reason).__name__}: {reason}. Repair the files, or name their "
                "type"
            ) from error
        return as_dataset(rows, name)

    def _kind(self, name: str) -> str:
        given = self.type or Path(self._first).suffix[1:]
        if given not in _KINDS:
            raise ConfigError(
                f"dataset {name!r}: the type {given!r} of {self._first!r} is not known"
                f"{nearest(given, list(_KINDS)) or '.'} Give type, one of {', '.join(_KINDS)}"
            )
        return _KINDS[given]

    @property
    def _first(self) -> str:
        files = self.data_files
        return os.fspath(files if isinstance(files, str | os.PathLike) else files[0])


F = TypeVar("F", bound=ExampleFiles)


@dataclass(frozen=True)
class Formatted:
    """A function of an example, then new names for its fields; the example is left as it is."""

    callback: Callable[[Example], Example] | None
    fields: Mapping[str, str]

    def __call__(self, example: Mapping[str, Any]) -> Example:
        made = {**example}
        if self.callback is not None:
            made = self.callback(made)
        _check_fields(made, self.fields, "format_fields")
        return {self.fields.get(name, name): value for name, value in made.items()}


@dataclass(frozen=True)
class Content:
    """What is made of the content of an example, and the fields that are kept."""

    field: str
    kept: tuple[str, ...]
    make: Callable[[Any], Example]

    def __call__(self, example: Mapping[str, Any]) -> Example:
        _check_fields(example, (self.field, *self.kept), "content_field and additional_fields")
        made = self.make(example[self.field])
        return {**made, **{name: example[name] for name in self.kept}}


def _check_fields(example: Mapping[str, Any], names: Iterable[str], options: str) -> None:
    """`ConfigError` for a field named by `options` that the example does not have."""
    for name in names:
        if name not in example:
            raise ConfigError(
                f"an example has no field {name!r}{nearest(name, list(example)) or '.'} It has "
                f"{', '.join(example)}; set {options} of the dataset"
            )


def named(files: Sequence[F], owner: str, what: str, default: str, first: int) -> list[F]:
    """The same files, those without a name called `default` with their number.

    Raises `ConfigError` where there are none, or two of one name.
    """
    if not files:
        raise ConfigError(f"{owner}: there are no {what}")
    found = [
        each if each.name else replace(each, name=f"{default}{number}")
        for number, each in enumerate(files, first)
    ]
    for name, often in Counter(each.name for each in found).items():
        if often > 1:
            raise ConfigError(f"{owner}: two {what} are called {name!r}")
    return found


# Texts as token ids.

Tokenizer = Callable[[str], Any]
"""A function of a text that gives token ids, or a mapping with `input_ids` among its values."""

_TOKENIZER = expected("is a function of a text, a file, or a name that transformers knows")


@checked_fields
@dataclass(frozen=True)
class TokenizerConfig:
    """A tokenizer by name or path, and how it is called.

    `name_or_path` is a function of a text, the file of a saved tokenizer (`tokenizer.json`), or a
    name or folder that transformers finds on this machine. Nothing is downloaded, and no code that
    comes with a tokenizer is run.
    """

    name_or_path: Annotated[str | os.PathLike[str] | Tokenizer, _TOKENIZER]
    max_length: Count = 2048
    truncation: StrictBool = True
    add_special_tokens: StrictBool = True
    return_attention_mask: StrictBool = True


AnyTokenizer = Annotated[
    str | os.PathLike[str] | TokenizerConfig | Tokenizer, _TOKENIZER, or_fields(TokenizerConfig)
]
"""A tokenizer, by itself or with how it is called."""


@dataclass(frozen=True)
class Tokens:
    """`input_ids` of a text, `attention_mask` where it is wanted, and what the tokenizer adds."""

    tokenizer: Tokenizer
    config: TokenizerConfig

    def __call__(self, text: object) -> dict[str, Any]:
        given = self.tokenizer(str(text))
        values = dict(given) if isinstance(given, Mapping) else {"input_ids": list(given)}
        if "input_ids" not in values:
            raise ConfigError(
                f"the tokenizer gave {', '.join(values)} and no input_ids; it has to give token "
                "ids, or a mapping with input_ids"
            )
        if self.config.truncation:
            values = {name: ids[: self.config.max_length] for name, ids in values.items()}
        if not self.config.return_attention_mask:
            values.pop("attention_mask", None)
        elif "attention_mask" not in values:
            values["attention_mask"] = [1] * len(values["input_ids"])
        return values


@dataclass(frozen=True)
class _SavedTokenizer:
    """A tokenizer of the library tokenizers, called like a function."""

    tokenizer: Any
    add_special_tokens: bool

    def __call__(self, text: str) -> Any:
        return self.tokenizer.encode(text, add_special_tokens=self.add_special_tokens).ids


def loaded_tokenizer(config: TokenizerConfig, dataset: str) -> Tokenizer:
    """The tokenizer of a config; `ConfigError` naming the dataset where there is none."""
    if callable(config.name_or_path):
        return config.name_or_path
    path = Path(config.name_or_path)
    purpose = f"tokenizing dataset {dataset!r} with {config.name_or_path!r}"
    if path.is_file():
        tokenizers = optional_module("tokenizers", "tokenizers", purpose)
        return _SavedTokenizer(tokenizers.Tokenizer.from_file(str(path)), config.add_special_tokens)
    transformers = optional_module("transformers", "transformers", purpose)
    try:
        found = transformers.AutoTokenizer.from_pretrained(
            config.name_or_path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{purpose}: it is not on this machine, and nothing is downloaded; fetch it first, or "
            f"give a function or the file of a saved tokenizer ({error})"
        ) from error
    return partial(found, add_special_tokens=config.add_special_tokens)


# What a pipeline is made of.

_SUM_TOLERANCE = 1e-6


@checked_fields
@dataclass(frozen=True, kw_only=True)
class DatasetConfig(ExampleFiles):
    """One dataset of a pipeline: `ExampleFiles`, and a `tokenizer` for them: a function of a text,
    the file of a saved tokenizer, or the name of one that lies in the local cache of transformers.
    """

    tokenizer: AnyTokenizer | None = None


@checked_fields
@dataclass(frozen=True)
class MixStageConfig:
    """How the datasets of a pipeline are mixed: by `weights`, which sum to 1, or by a schedule.

    A `weight_schedule` comes before `weights`. `seed=None` takes the seed of the pipeline.

    >>> MixStageConfig(weights={"code": 0.3, "text": 0.8})
    Traceback (most recent call last):
        ...
    energize.errors.WeightError: MixStageConfig: the weights sum to 1.1, not to 1
    """

    weights: Weights | None = None
    weight_schedule: Sequence[InstanceOf[WeightSchedulePoint]] | None = None
    weight_schedule_type: Literal["step", "linear", "cosine"] = "step"
    block_size: Count = 1000
    stop_strategy: Stop = "restart"
    seed: Whole | None = None

    def __post_init__(self) -> None:
        if self.weights is not None:
            total = math.fsum(
                checked_weight(weight, f"MixStageConfig: weight of {name!r}")
                for name, weight in self.weights.items()
            )
            if not abs(total - 1) <= _SUM_TOLERANCE:
                raise WeightError(f"MixStageConfig: the weights sum to {total:.9g}, not to 1")
        with raised_as("MixStageConfig", "WeightScheduler"):
            self.scheduler()  # the points are checked here

    def scheduler(self) -> WeightScheduler | None:
        """The schedule, where there is one."""
        if not self.weight_schedule:
            return None
        return WeightScheduler(self.weight_schedule, self.weight_schedule_type)


@checked_fields
@dataclass(frozen=True)
class LoadStageConfig:
    """How examples become batches, and how many processes read them."""

    batch_size: Count = 8
    drop_last: StrictBool = True
    num_workers: Whole = 0
    prefetch_factor: Count = 2


@checked_fields
@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """The datasets of a pipeline and its stages, each also as a dict of its fields.

    A dataset without a name is called dataset_0, dataset_1, ... by its place. `default_tokenizer`
    is for datasets that name none.

    Raises `ConfigError` for no datasets, and for two of one name.
    """

    datasets: Sequence[Annotated[InstanceOf[DatasetConfig], or_fields(DatasetConfig)]]
    default_tokenizer: AnyTokenizer | None = None
    streaming: StrictBool = True
    seed: Whole | None = None
    mix: Annotated[InstanceOf[MixStageConfig], or_fields(MixStageConfig)] = field(
        default_factory=MixStageConfig
    )
    load: Annotated[InstanceOf[LoadStageConfig], or_fields(LoadStageConfig)] = field(
        default_factory=LoadStageConfig
    )

    def __post_init__(self) -> None:
        datasets = named(self.datasets, "PipelineConfig", "datasets", "dataset_", 0)
        object.__setattr__(self, "datasets", datasets)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> PipelineConfig:
        """A config from plain dicts; `ConfigError` naming keys that are not known."""
        return of_fields(cls, tree)


# Sources of examples in named shards.
Shard = Dataset[Example] | Callable[[], Dataset[Example]]


class ShardedDataSource(torch.utils.data.IterableDataset[Example]):
    """Examples in shards that are opened by name; `dataset` is all of them as one.

    `shards` has the dataset of each shard by its name, or what makes it.

    It is an iterable torch dataset: iterating yields all examples, in the workers of a DataLoader a
    part each. Ranks are not divided among: `to_iterable_dataset()` is for trainers, which do that.
    """

    def __init__(self, dataset: Dataset[Example], shards: Mapping[str, Shard]) -> None:
        self._dataset = dataset
        self._shards = dict(shards)

    @property
    def dataset(self) -> Dataset[Example]:
        """The examples of all shards, shard after shard, as an energize dataset."""
        return self._dataset

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, all different."""
        return tuple(self._shards)

    def num_shards(self) -> int:
        """How many shards there are."""
        return len(self.shard_names)

    def shard(self, shard_name: str) -> Dataset[Example]:
        """The examples of one shard; `ConfigError` for a name that is not there."""
        names = self.shard_names
        if shard_name not in names:
            raise ConfigError(
                f"{type(self).__name__} has no shard {shard_name!r}"
                f"{nearest(str(shard_name), names) or '.'} "
                f"It has {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
            )
        found = self._shards[shard_name]
        return found if isinstance(found, Dataset) else found()

    def open_shard(self, shard_name: str, state: State | None = None) -> Cursor[Example]:
        """One pass over a shard, or the rest of one from the `state()` of such a pass."""
        return self.shard(shard_name).open(state=state)

    def open_shard_at_row(self, shard_name: str, row: int) -> Cursor[Example]:
        """A pass that begins at example `row`; in a shard with random access nothing is skipped."""
        row = checked_whole(row, "open_shard_at_row: row", 0)
        shard = self.shard(shard_name)
        if shard.indexed:
            return shard.open(state={"position": row})
        cursor = shard.open()
        next(islice(cursor, row, row), None)
        return cursor

    def iter_shards(self) -> Iterator[Example]:
        """The examples of all shards."""
        return self.dataset.open()

    def __iter__(self) -> Iterator[Example]:
        worker = torch.utils.data.get_worker_info()
        lane = SINGLE_LANE if worker is None else Lane(worker.id, worker.num_workers)
        return self.dataset.open(lane)

    def to_iterable_dataset(self) -> datasets.IterableDataset:
        """The examples as a Hugging Face iterable dataset, with a state and parts for ranks."""
        return to_iterable_dataset(self.dataset)

    def __len__(self) -> int:
        """Examples in all shards; `NotIndexedError` (a TypeError) when there is no such number."""
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r})"


class HFDatasetShardedSource(ShardedDataSource):
    """A Hugging Face dataset, map-style or streaming, as one shard called "<name>:0".

    Anything else that `as_dataset` takes will do as well. Map-style datasets are read when examples
    are asked for.

    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    >>> source = HFDatasetShardedSource(rows)
    >>> list(source.open_shard(source.shard_names[0]))
    [{'text': 'a'}, {'text': 'b'}]
    """

    def __init__(self, dataset: Any, name: str | None = None) -> None:
        name = name or "hf_dataset"
        whole = as_dataset(dataset, name)
        super().__init__(whole, {f"{name}:0": whole})


class _FileShards(ShardedDataSource):
    """Every file is a shard, called by its path."""

    _kind: type[ParquetSource | JsonSource]

    def __init__(self, data_files: DataFiles, name: str | None = None) -> None:
        whole = self._kind(data_files, name=name or "")
        shards: dict[str, Shard] = {
            str(path): partial(self._kind, path, name=f"{name or ''}:{path.name}")
            for path in whole.files
        }
        super().__init__(whole, shards)


class ParquetShardedSource(_FileShards):
    """Parquet files, given by path, pattern, or a list of them; every file is a shard."""

    _kind = ParquetSource


class JsonShardedSource(_FileShards):
    """JSON files (an object per line, or an array of objects); every file is a shard."""

    _kind = JsonSource


class CompositeShardedSource(ShardedDataSource):
    """The shards of several sources one after another, without mixing.

    A shard name that several sources have gets the number of its source, from 0, after it:
    "hf_dataset:0@1".

    >>> parts = [HFDatasetShardedSource([{"x": 1}]), HFDatasetShardedSource([{"x": 2}])]
    >>> combined = CompositeShardedSource(parts)
    >>> [(name, list(combined.open_shard(name))) for name in combined.shard_names]
    [('hf_dataset:0@0', [{'x': 1}]), ('hf_dataset:0@1', [{'x': 2}])]
    """

    @checked
    def __init__(self, sources: Sequence[InstanceOf[ShardedDataSource]]) -> None:
        if not sources:
            raise ConfigError("CompositeShardedSource: there are no sources to combine")
        self._sources = sources
        often = Counter(name for part in sources for name in part.shard_names)
        self._shards: dict[str, Shard] = {
            f"{name}@{number}" if often[name] > 1 else name: partial(part.shard, name)
            for number, part in enumerate(sources)
            for name in part.shard_names
        }

    @cached_property
    def dataset(self) -> Dataset[Example]:
        return ConcatDataset(*(each.dataset for each in self._sources))


# Named sources of examples mixed into one.

SOURCE_FIELD = "__source__"


class MixedShardedSource(ShardedDataSource):
    """Examples of named sources in blocks, one shard called "mixed_shard_0".

    `weights` by name, or none for equal ones; they need not sum to 1. With a `weight_scheduler` the
    weights change; its steps count examples of the mix from 0, by its `slots_per_step` optimizer
    steps. Every block of `block_size` examples holds the shares in whole examples, in random order;
    what a source is owed is carried into the next block. `__source__` of an example, a copy, names
    its source.

    `stop_strategy`: "restart" never ends, and a source that is exhausted starts again;
    "first_exhausted" ends where an exhausted source would be asked for more; "all_exhausted" gives
    every example once, and hands the share of an exhausted source to the others.

    Sources with random access are visited in random order, a new one in each pass, unless
    `shuffle=False`; streams come as they come. `order="easydel"` repeats the order of EasyDeL 0.3,
    sources in their stored order. `seed=None` draws a seed, which the log tells.

    `dataset` is the mix for `energize.get_loader`; `to_iterable_dataset()` the same for trainers.
    Either gives ranks and workers a part each of one and the same order; with a stream among the
    sources, only the second can divide it among ranks. The source itself goes into a torch
    DataLoader, whose workers get a part each.

    Raises `WeightError` listing names that do not match, `ConfigError` for other values,
    `EmptyDatasetError` naming a source that is to start again and has no examples.

    >>> sources = {"code": [{"x": 1}] * 5, "text": [{"x": 2}] * 5}
    >>> mixed = MixedShardedSource(sources, weights={"code": 0.3, "text": 0.7}, seed=42)
    >>> block = [row["__source__"] for row in mixed.dataset.at(range(1000))]
    >>> block.count("code"), block.count("text")
    (300, 700)
    """

    def __init__(  # noqa: PLR0917 - the order of arguments that users know
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        block_size: int = 1000,
        seed: int | None = None,
        stop_strategy: str = "restart",
        weight_scheduler: WeightScheduler | None = None,
        *,
        order: str = "energize",
        shuffle: bool | None = None,
    ) -> None:
        rules = (weights, block_size, seed, stop_strategy, weight_scheduler, order, shuffle)
        mix = mixed(type(self).__name__, SOURCE_FIELD, sources, *rules)
        super().__init__(mix, {"mixed_shard_0": mix})


def block_mixture_interleave(
    datasets: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
    block_size: int = 1000,
    seed: int | None = 42,
    stop: str = "restart",
    *,
    weight_scheduler: WeightScheduler | None = None,
    order: str = "energize",
    shuffle: bool | None = None,
) -> datasets.IterableDataset:
    """A `datasets.IterableDataset` that mixes named datasets, map-style and streaming ones.

    The mix is that of `MixedShardedSource` with the same arguments, without `__source__`. Its
    `state_dict()` is exact after any example, and ranks and workers get a part each.

    >>> import datasets
    >>> one = datasets.Dataset.from_dict({"x": [1] * 4})
    >>> two = datasets.Dataset.from_dict({"x": [2] * 4})
    >>> mix = block_mixture_interleave({"one": one, "two": two}, {"one": 0.25, "two": 0.75})
    >>> sum(example["x"] == 1 for example in mix.take(1000))
    250
    """
    rules = (weights, block_size, seed, stop, weight_scheduler, order, shuffle)
    return to_iterable_dataset(mixed("block_mixture_interleave", None, datasets, *rules))


# The older way to describe a mix of files.


@checked_fields
@dataclass(frozen=True, kw_only=True)
class TextDatasetInform(ExampleFiles):
    """Files of texts (see `ExampleFiles`), and which field is the text."""

    content_field: str = "content"


@checked_fields
@dataclass(frozen=True, kw_only=True)
class DatasetMixture:
    """Files of texts and how they are mixed; `build_dataset` makes the dataset.

    Informs without a name are called "ds1", "ds2", ... by their place; `mixture_weights` are by
    these names. With `block_mixture` every block of `mixture_block_size` examples holds the shares;
    without it sources are drawn at random by weight, or in turn when there are no weights. The text
    is called `text_target_field` in the result.
    """

    informs: Sequence[InstanceOf[TextDatasetInform]]
    mixture_weights: Weights | None = None
    block_mixture: StrictBool = True
    mixture_block_size: Count = 2048
    stop_strategy: Stop = "restart"
    streaming: StrictBool = True
    seed: Whole | None = 42
    text_target_field: str = "text"

    def __post_init__(self) -> None:
        informs = named(self.informs, "DatasetMixture", "informs", "ds", 1)
        object.__setattr__(self, "informs", informs)


@checked
def build_dataset(
    mixture: InstanceOf[DatasetMixture],
) -> datasets.IterableDataset | Dataset[Example]:
    """The mix: a Hugging Face iterable dataset when `streaming`, else an energize dataset.

    The energize dataset has random access, and a length when the stop strategy ends it.
    """
    scheme = "round_robin" if mixture.mixture_weights is None else "random"
    mix = mixed(
        "DatasetMixture",
        None,
        {each.name: _texts(each, mixture) for each in mixture.informs},
        mixture.mixture_weights,
        mixture.mixture_block_size,
        mixture.seed,
        mixture.stop_strategy,
        scheme="block" if mixture.block_mixture else scheme,
    )
    return to_iterable_dataset(mix) if mixture.streaming else mix


def _texts(inform: TextDatasetInform, mixture: DatasetMixture) -> Dataset[Example]:
    made, kept = _Text(mixture.text_target_field), tuple(inform.additional_fields)
    text = Content(inform.content_field, kept, made)
    return MapDataset(inform.examples(streaming=mixture.streaming), text, seeded=False)


@dataclass(frozen=True)
class _Text:
    """A text under its name in the mix."""

    field: str

    def __call__(self, content: Any) -> Example:
        return {self.field: content}


# A pipeline from files to batches, stage by stage.

_log = logging.getLogger("energize")


@checked_fields
@dataclass(frozen=True)
class Pipeline:
    """Stages that are called one after another, each giving a new pipeline:

    `source()` opens the datasets, `tokenize()` turns texts into token ids where a dataset has a
    tokenizer, `mix()` makes one stream of them with `__source__` in each example, also of a single
    dataset; `load()` makes batches, `build()` gives the result: a `Loader` of batches after
    `load()`, else the dataset itself. A batch is a dict of columns: arrays where the values have
    one shape, lists where they do not.

    Raises `ConfigError` for stages out of order, and where several datasets would be left unmixed.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = path.write_text('{"text": "ab"}' + chr(10) + '{"text": "cd"}')
    >>> config = {"datasets": [{"data_files": path, "tokenizer": str.encode}]}
    >>> loader = Pipeline.from_config(config).source().tokenize().mix().load().build()
    >>> batch = next(iter(loader))
    >>> batch["input_ids"].shape, batch["__source__"][0]
    ((8, 2), 'dataset_0')
    """

    config: Annotated[InstanceOf[PipelineConfig], or_fields(PipelineConfig)]
    datasets: Mapping[str, Dataset[Any]] | None = None
    loading: LoadStageConfig | None = None

    @classmethod
    def from_config(cls, config: PipelineConfig | Mapping[str, Any]) -> Pipeline:
        """A pipeline before its first stage, of a config or of plain dicts."""
        return cls(config)  # type: ignore[arg-type]  # a dict becomes a config

    def source(self) -> Pipeline:
        """Open the datasets."""
        if self.datasets is not None:
            raise ConfigError("Pipeline: source() has been called already")
        opened = {
            str(each.name): each.examples(streaming=self.config.streaming)
            for each in self.config.datasets
        }
        return replace(self, datasets=opened)

    def tokenize(self) -> Pipeline:
        """Turn texts into token ids; datasets without a tokenizer stay as they are."""
        datasets = dict(self._opened("tokenize"))
        for config in self.config.datasets:
            name = str(config.name)
            if name not in datasets:
                raise ConfigError("Pipeline: tokenize() comes before mix()")
            given = config.tokenizer or self.config.default_tokenizer
            if given is None:
                _log.info("Pipeline: dataset %r has no tokenizer and stays as it is", name)
                continue
            settings = given if isinstance(given, TokenizerConfig) else TokenizerConfig(given)
            tokens = Tokens(loaded_tokenizer(settings, name), settings)
            content = Content(config.content_field, tuple(config.additional_fields), tokens)
            datasets[name] = MapDataset(datasets[name], content, seeded=False)
        return replace(self, datasets=datasets)

    def mix(self, config: MixStageConfig | None = None) -> Pipeline:
        """Mix the datasets into one."""
        config = config or self.config.mix
        seed = self.config.seed if config.seed is None else config.seed
        rules = (config.weights, config.block_size, seed, config.stop_strategy, config.scheduler())
        mix = mixed("MixStageConfig", SOURCE_FIELD, self._opened("mix"), *rules)
        return replace(self, datasets={"mixed": mix})

    def load(self, config: LoadStageConfig | None = None) -> Pipeline:
        """Make batches of the one dataset that there is."""
        self._only("load")
        return replace(self, loading=config or self.config.load)

    def build(self) -> Dataset[Any] | Loader[dict[str, Any]]:
        """The loader of batches, or without `load()` the dataset."""
        dataset, load = self._only("build"), self.loading
        if load is None:
            return dataset
        return get_loader(
            BatchDataset(dataset, load.batch_size, collated, drop_last=load.drop_last),
            worker_config=WorkerConfig.default_worker_config(load.num_workers),
            prefetch_factor=load.prefetch_factor,
        )

    def _opened(self, stage: str) -> Mapping[str, Dataset[Any]]:
        if self.datasets is None:
            raise ConfigError(f"Pipeline: call source() before {stage}()")
        return self.datasets

    def _only(self, stage: str) -> Dataset[Any]:
        datasets = self._opened(stage)
        if len(datasets) > 1:
            raise ConfigError(
                f"Pipeline: {stage}() works on one dataset, and there are {', '.join(datasets)}; "
                "call mix() before it"
            )
        return next(iter(datasets.values()))


def collated(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Examples as columns: numeric values of one shape as one array, others as a list.

    An example that lacks a field has None there.
    """
    names = dict.fromkeys(name for example in examples for name in example)
    return {name: _column([example.get(name) for example in examples]) for name in names}


def _column(values: list[Any]) -> Any:
    if not all(isinstance(each, int | float | list | np.ndarray | np.number) for each in values):
        return values
    try:
        column = np.array(values)
    except ValueError:  # different shapes
        return values
    return column if column.dtype.kind in "biuf" else values
