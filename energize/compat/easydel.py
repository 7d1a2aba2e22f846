"""EasyDeL's words for mixing: named sources in blocks, pipelines, and the older
mixtures.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
import torch.utils.data
from pydantic import (
    ConfigDict,
    Field,
    InstanceOf,
    NonNegativeFloat,
    PositiveInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from energize.compat.squirrel import checked_seed
from energize.core.checks import checked_choice, raised_as
from energize.core.dataset import Dataset
from energize.core.description import order_name_of
from energize.core.ignored import log_once
from energize.core.lanes import SINGLE_LANE, Lane, WorkerConfig
from energize.core.lazy import optional_module
from energize.core.node import INFINITE
from energize.core.reader import DatasetReader
from energize.core.records import fields_of
from energize.core.stream import State
from energize.core.validation import Listed, Model, fault_report, faults
from energize.data.memory import IterableSource, as_dataset
from energize.data.rows import DataFiles, JsonSource, ParquetSource, data_files
from energize.datasets.batch import BatchDataset
from energize.datasets.blend import BlendDataset
from energize.datasets.order import ConcatDataset, ShuffleDataset
from energize.datasets.packing import ShuffleBufferDataset
from energize.datasets.transform import FilterDataset, MapDataset
from energize.errors import ConfigError, EmptyDatasetError, StateError
from energize.loader import Loader, get_loader
from energize.loader.state import packed_state, unpacked_state
from energize.order.weights import WeightSchedulePoint, WeightScheduler

try:
    import datasets
    from datasets.iterable_dataset import _BaseExamplesIterable
except ImportError as missing:
    raise ImportError(
        "energize.compat.easydel needs Hugging Face datasets, which is not installed. "
        "Install it with: pip install 'energize[hf]'"
    ) from missing

__all__ = [
    "CompositeShardedSource",
    "DatasetConfig",
    "DatasetMixture",
    "HFDatasetShardedSource",
    "MixStageConfig",
    "MixedShardedSource",
    "ParquetShardedSource",
    "Pipeline",
    "PipelineConfig",
    "ShardedDataSource",
    "TextDatasetInform",
    "WeightSchedulePoint",
    "WeightScheduler",
    "block_mixture_interleave",
    "build_dataset",
]

Example = dict[str, Any]
T = TypeVar("T")
Stop = Literal["restart", "first_exhausted", "all_exhausted"]
Seed = Annotated[int, Field(ge=0)]

SOURCE_FIELD = "__source__"

_RUNS_PER_WINDOW = 4
"""Row groups that are shuffled together: few enough to stay in a cache."""

_SUM_TOLERANCE = 1e-6

_SHARDS = 2**10 * 3**2 * 5 * 7
"""Shards of an indexed dataset: a multiple of most numbers of ranks times workers."""

# Options, checked where they are given.


class Options(Model):
    """Options by name or in their order; `ConfigError` names what is wrong with them.

    >>> class Sizes(Options):
    ...     batch_size: int = 8
    >>> Sizes(batch_sise=4)
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: Sizes (batch_sise): unknown key 'batch_sise'; did ...
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(self, *positional: Any, **arguments: Any) -> None:
        names = list(type(self).model_fields)
        if len(positional) > len(names) or arguments.keys() & names[: len(positional)]:
            raise TypeError(
                f"{type(self).__name__}: an option is set twice. Pass it once, in "
                "order or by name"
            )
        arguments |= dict(zip(names, positional, strict=False))
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            problems = faults(error, TypeAdapter(type(self)), arguments)
            raise ConfigError(fault_report(problems, type(self).__name__, {})) from None


# Named sources of examples mixed into one dataset.


def _named(source: str, field: str | None, example: Any) -> Example:
    """Copy an example, or fields of a sample, and write into the copy which source it
    is from.
    """
    copy = {**example} if isinstance(example, Mapping) else fields_of(example)
    return copy if field is None else {**copy, field: source}


def mixed(
    owner: str,
    sources: Mapping[str, Any],
    weights: Mapping[str, float] | WeightScheduler | None,
    *,
    seed: int | None,
    source_field: str | None = None,
    shuffle: bool = True,
    **options: Any,
) -> Dataset[Example]:
    """Return the blend of `sources`, the same whatever the order of their names.

    Each example is a new dict with its source in `source_field`. Sources with random
    access are shuffled, anew in every pass, if `shuffle`. `options` are those of
    `BlendDataset`. Errors name `owner`, who was given all this.
    """
    if not isinstance(sources, Mapping):
        raise ConfigError(
            f"{owner}: sources must be a mapping by name, {{'code': ..., 'text': ...}}"
        )
    seed = checked_seed(seed, owner)
    parts: dict[str, Dataset[Example]] = {}
    for name in sorted(sources):
        dataset = as_dataset(sources[name], name).reseeded(seed)
        visited = _shuffled(dataset) if shuffle else dataset
        parts[name] = MapDataset(visited, partial(_named, name, source_field))
    if weights is None:
        weights = dict.fromkeys(parts, 1.0)
    with raised_as(owner, "BlendDataset"):
        return BlendDataset(parts, weights=weights, **options)


def _shuffled(dataset: Dataset[Any]) -> Dataset[Any]:
    """Return the dataset in random order where that costs no buffer."""
    if not dataset.indexed or dataset.size in (0, INFINITE):
        return dataset
    runs = [
        source.run_length for source in dataset.sources if source.run_length is not None
    ]
    window = _RUNS_PER_WINDOW * max(runs) if runs else None
    return ShuffleDataset(dataset, shuffle_buffer_size=window)


# Any dataset of examples as a Hugging Face iterable dataset.


def to_iterable_dataset(dataset: Dataset[dict[str, Any]]) -> datasets.IterableDataset:
    """Return a `datasets.IterableDataset` of the examples of `dataset`, in the same
    order.

    It can be handed to trainers, to a torch DataLoader and to `split_dataset_by_node`:
    ranks and workers take turns in one order, and all their parts together are the
    whole. A stream, which can only be read from the front, is one shard: one worker
    reads it, and each rank reads it all and leaves out what is not its part. An indexed
    dataset has shards enough for any number of them.

    `state_dict()` is exact after any example; `load_state_dict` costs the same anywhere
    in an indexed dataset. Iterating raises `StateMismatchError` naming what differs
    when the state is of another dataset. The order is that of `dataset`: `shuffle` only
    adds a buffer, and `set_epoch` changes nothing.

    >>> from energize import ListSource
    >>> stream = to_iterable_dataset(ListSource([{"x": 1}, {"x": 2}]))
    >>> [example["x"] for example in stream]
    [1, 2]
    """
    return datasets.IterableDataset(_Examples(dataset, SINGLE_LANE))


class _LiveState:
    """State of an open reader; it is serialized when it is copied or pickled.

    Trainers copy states far less often than they read examples.
    """

    def __init__(self, dataset: Dataset[Any], cursor: DatasetReader[Any]) -> None:
        self._dataset = dataset
        self._cursor = cursor

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (packed_state(self._dataset, self._cursor.state()),)


class _Examples(_BaseExamplesIterable):  # type: ignore[misc]  # datasets has no types
    """One lane of a dataset, as Hugging Face's pipelines take it."""

    order_name = "_Examples"

    def __init__(self, dataset: Dataset[dict[str, Any]], lane: Lane) -> None:
        super().__init__()
        self._state_dict: dict[str, Any] | None = None
        self._sleep_on_threads_shutdown = False  # there are no threads to wait for
        self.dataset = dataset
        self.lane = lane

    @property
    def num_shards(self) -> int:
        return max(1, _SHARDS // self.lane.count) if self.dataset.indexed else 1

    n_shards = num_shards  # the name in older versions

    def shard_data_sources(
        self, num_shards: int, index: int, contiguous: bool = True
    ) -> _Examples:
        """Every `num_shards`-th of the examples of this lane; of a stream, one shard,
        all.
        """
        if self.dataset.indexed:
            count = self.lane.count
            lane = Lane(self.lane.index + count * index, count * num_shards)
            return _Examples(self.dataset, lane)
        if index:
            raise ConfigError(
                f"part {index} of {num_shards} of a mix that reads a stream does not "
                "exist: a stream has one shard. Use split_dataset_by_node, which "
                "divides its examples"
            )
        return copy.copy(self)

    def shuffle_data_sources(self, generator: Any = None) -> _Examples:
        """Return the same: the order is the dataset's own, and there are parts
        enough.
        """
        return copy.copy(self)

    reshard_data_sources = shuffle_data_sources

    def _init_state_dict(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {
            "energize": None,
            "lane": None,
            "type": order_name_of(self),
        }
        self._state_dict = fresh
        return fresh

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        state = self._state_dict or {}
        saved = copy.copy(state.get("energize"))
        part = [self.lane.index, self.lane.count]
        if saved is not None and state.get("lane") != part:
            raise StateError(
                f"the saved state is of part {state.get('lane')} (number, total), this "
                f"is part {part}. Resume with the same number of ranks and workers, or "
                "use energize.get_loader, whose states fit any number"
            )
        start = None if saved is None else unpacked_state(self.dataset, saved)
        cursor = self.dataset.open(self.lane, start)
        if self._state_dict is not None:
            self._state_dict |= {
                "energize": _LiveState(self.dataset, cursor),
                "lane": part,
            }
        yield from enumerate(cursor)


# Files of examples, as configurations name them, as a dataset.

_KINDS: dict[str, type[ParquetSource | JsonSource]] = {
    "parquet": ParquetSource,
    "json": JsonSource,
    "jsonl": JsonSource,
}
"""Source class by type name or file extension."""


class ExampleFiles(Options):
    """Files of examples.

    `data_files`: a path, a pattern, or a list of them. `type`: parquet or json (a line
    for each example, or an array); by default what the names of the files end in. Other
    kinds are read by Hugging Face's `load_dataset`, for a `HFDatasetShardedSource`.
    `content_field`: the field with the text.
    """

    data_files: Annotated[str, Field(min_length=1)] | Path | Listed[str | Path]
    name: str | None = None
    type: Annotated[str, StringConstraints(to_lower=True)] | None = None
    content_field: str = "text"

    def examples(self, name: str) -> Dataset[Example]:
        """Return the examples as a dataset of this name, with random access."""
        paths = data_files(self.data_files, f"dataset {name!r}")
        type_name = self.type or paths[0].suffix[1:]
        source_type = checked_choice(
            type_name, "type", _KINDS, f"dataset {name!r} of {paths[0]}"
        )
        return _KINDS[source_type](paths, name=name)


def _content(
    field: str, make: Callable[[Any], Example], example: Mapping[str, Any]
) -> Example:
    """Return what is made of the content of an example."""
    checked_choice(field, "content_field", example, "an example")
    return make(example[field])


F = TypeVar("F", bound=ExampleFiles)


def _by_name(files: Iterable[F], owner: str, default: str, first: int) -> dict[str, F]:
    """Files by their names, those without one by `default` and their number."""
    by_name: dict[str, F] = {}
    for number, entry in enumerate(files, first):
        name = entry.name or f"{default}{number}"
        if name in by_name:
            raise ConfigError(
                f"{owner}: several datasets have the name {name!r}. Rename them"
            )
        by_name[name] = entry
    return by_name


# Texts as token ids.

Tokenizer = Callable[[str], Any]
"""A function of a text that gives token ids, or a mapping with `input_ids` among its
values."""


def _tokens(tokenizer: Tokenizer, text: object) -> Example:
    """Return `input_ids` of a text, an `attention_mask`, and what else the tokenizer
    gives.
    """
    encoded = tokenizer(str(text))
    values = (
        dict(encoded) if isinstance(encoded, Mapping) else {"input_ids": list(encoded)}
    )
    values.setdefault("attention_mask", [1] * len(values["input_ids"]))
    return values


def _loaded_tokenizer(tokenizer: str | Tokenizer, dataset: str) -> Tokenizer:
    if callable(tokenizer):
        return tokenizer
    purpose = f"tokenizing dataset {dataset!r} with {tokenizer!r}"
    transformers = optional_module("transformers", "transformers", purpose)
    if Path(tokenizer).is_file():
        load = partial(transformers.PreTrainedTokenizerFast, tokenizer_file=tokenizer)
    else:
        load = partial(
            transformers.AutoTokenizer.from_pretrained,
            tokenizer,
            local_files_only=True,
            trust_remote_code=False,
        )
    try:
        loaded: Tokenizer = load()
    except Exception as error:  # a damaged file is a plain Exception of tokenizers
        raise ConfigError(
            f"{purpose}: it cannot be loaded from this machine ({error}). Download it "
            "first, or pass a function"
        ) from error
    return loaded


# What a pipeline is made of.


class DatasetConfig(ExampleFiles):
    """One dataset of a pipeline: its files, and a `tokenizer` for their texts.

    That is a function of a text, a `tokenizer.json`, or a name or folder that
    transformers finds on this machine. Nothing is downloaded, and no code that comes
    with a tokenizer is run.
    """

    tokenizer: str | Tokenizer | None = None


class MixStageConfig(Options):
    """How the datasets of a pipeline are mixed: by `weights`, which sum to 1, or by a
    schedule.

    A `weight_schedule` comes before `weights`. `seed=None` takes the seed of the
    pipeline.

    >>> MixStageConfig(weights={"code": 0.3, "text": 0.8})
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: MixStageConfig: the weights must sum to 1, got 1.1
    """

    weights: dict[str, NonNegativeFloat] | None = None
    weight_schedule: Listed[InstanceOf[WeightSchedulePoint]] | None = None
    weight_schedule_type: Literal["step", "linear", "cosine"] = "step"
    block_size: PositiveInt = 1000
    stop_strategy: Stop = "restart"
    seed: Seed | None = None

    @model_validator(mode="after")
    def _weights(self) -> Self:
        total = math.fsum((self.weights or {"": 1.0}).values())
        if not abs(total - 1) <= _SUM_TOLERANCE:
            raise ConfigError(f"the weights must sum to 1, got {total:.9g}")
        self.scheduler()  # the points are checked here
        return self

    def scheduler(self) -> WeightScheduler | None:
        """Return the schedule, if there is one."""
        if not self.weight_schedule:
            return None
        return WeightScheduler(self.weight_schedule, self.weight_schedule_type)


class PipelineConfig(Options):
    """The datasets of a pipeline and its stages, each also as a dict of its fields.

    A dataset without a name is called dataset_0, dataset_1, ... by its number.
    """

    datasets: Annotated[Listed[DatasetConfig], Field(min_length=1)]
    seed: Seed | None = None
    mix: MixStageConfig = MixStageConfig()

    @property
    def named(self) -> dict[str, DatasetConfig]:
        """The datasets by their names; `ConfigError` for two of one name."""
        return _by_name(self.datasets, "PipelineConfig", "dataset_", 0)


# Sources of examples in named shards.


class ShardedDataSource(torch.utils.data.IterableDataset[T]):
    """Examples in shards that are opened by name; `dataset` is all of them as one.

    A source of your own gives `shard_names`, `num_shards()` and `open_shard(name)`, an
    iterator over the examples of a shard, from its front each time. It is a stream:
    resuming reads the shard at hand again, up to the place.

    It is an iterable torch dataset: iterating yields all examples, in the workers of a
    DataLoader a part each. Ranks are not divided among: `to_iterable_dataset()` is for
    trainers, which do that.

    >>> class Letters(ShardedDataSource):
    ...     shard_names = ("ab", "c")
    ...
    ...     def num_shards(self):
    ...         return 2
    ...
    ...     def open_shard(self, name):
    ...         return ({"text": letter} for letter in name)
    >>> [
    ...     example["text"]
    ...     for example in Letters().map(lambda e: {"text": e["text"].upper()})
    ... ]
    ['A', 'B', 'C']
    """

    order_name = "ShardedDataSource"

    _dataset: Dataset[Any] | None = None
    _shards: Mapping[str, Callable[[], Dataset[Any]]] = MappingProxyType({})

    def wrap(
        self, dataset: Dataset[Any], shards: Mapping[str, Callable[[], Dataset[Any]]]
    ) -> Self:
        """Read `dataset`, with a function that opens every shard by name."""
        self._shards = dict(shards)
        self._dataset = dataset
        return self

    @property
    def dataset(self) -> Dataset[Any]:
        """The examples of all shards, shard after shard."""
        if self._dataset is None:
            shards = [self.shard(name) for name in self.shard_names]
            if not shards:
                raise EmptyDatasetError(f"{type(self).__name__} has no shards")
            self._dataset = ConcatDataset(*shards)
        return self._dataset

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, all different."""
        return tuple(self._shards)

    def num_shards(self) -> int:
        """Return how many shards there are."""
        return len(self.shard_names)

    def shard(self, shard_name: str) -> Dataset[Any]:
        """Return the examples of one shard; raise `ConfigError` for a name that is not
        there.
        """
        checked_choice(shard_name, "shard_name", self.shard_names, type(self).__name__)
        if shard_name in self._shards:
            return self._shards[shard_name]()
        return IterableSource(partial(self.open_shard, shard_name), name=shard_name)

    def open_shard(self, shard_name: str, state: State | None = None) -> Iterator[T]:
        """Return one pass over a shard, or the rest of one from the `state()` of such a
        pass.
        """
        if not self._shards:
            raise ConfigError(
                f"{type(self).__name__} has no open_shard(shard_name). Define one that "
                f"returns an iterator over the examples of the shard {shard_name!r}"
            )
        return self.shard(shard_name).open(state=state)

    def open_shard_at_row(self, shard_name: str, row: int) -> Iterator[T]:
        """Return a pass that begins at example `row`; with random access nothing is
        skipped.
        """
        shard = self.shard(shard_name)
        if shard.indexed:
            return shard.open(state={"position": row})
        examples = iter(self.open_shard(shard_name))
        next(islice(examples, row, row), None)
        return examples

    def iter_shards(
        self,
        shard_indices: Sequence[int] | None = None,
        start_shard: int = 0,
        start_row: int = 0,
    ) -> Iterator[T]:
        """Yield the examples of all shards, or of those of these numbers, from a row of
        one on: `start_shard` counts among the shards that are read.
        """
        names = self.shard_names
        chosen = range(len(names)) if shard_indices is None else shard_indices
        for number in list(chosen)[start_shard:]:
            yield from self.open_shard_at_row(names[number], start_row)
            start_row = 0

    # Other sources made of this one. Nothing is read until these are.

    def _with(
        self, change: Callable[[Dataset[Any]], Dataset[Any]]
    ) -> ShardedDataSource[Any]:
        shards = {
            name: partial(_changed, change, self, name) for name in self.shard_names
        }
        return ShardedDataSource[Any]().wrap(change(self.dataset), shards)

    def map(self, fn: Callable[[T], Any]) -> ShardedDataSource[Any]:
        """Return a source of `fn(example)`."""
        return self._with(partial(MapDataset, map_fn=fn))

    def filter(self, predicate: Callable[[T], bool]) -> ShardedDataSource[Any]:
        """Return a source of the examples for which `predicate(example)` is true: a
        stream.
        """
        return self._with(partial(FilterDataset, filter_fn=predicate))

    def rename_fields(self, mapping: Mapping[str, str]) -> ShardedDataSource[Any]:
        """Return a source with fields renamed by `mapping` (old name to new name)."""
        return self.map(partial(_renamed, dict(mapping)))

    def select_fields(self, fields: Sequence[str]) -> ShardedDataSource[Any]:
        """Return a source of these fields only."""
        return self.map(partial(_selected, tuple(fields)))

    def drop_fields(self, fields: Sequence[str]) -> ShardedDataSource[Any]:
        """Return a source without these fields."""
        return self.map(partial(_dropped, frozenset(fields)))

    def shuffle(
        self, buffer_size: int = 10_000, seed: int | None = None
    ) -> ShardedDataSource[Any]:
        """Return a source in random order, another one in each pass: the whole of what
        has random access, else `buffer_size` examples at a time.
        """
        seeded = self.dataset.reseeded(checked_seed(seed, "shuffle"))
        mixed = _shuffled(seeded)
        if mixed is seeded and not seeded.indexed:
            mixed = ShuffleBufferDataset(seeded, buffer_size)
        return ShardedDataSource[Any]().wrap(mixed, {"shuffled": lambda: mixed})

    def __iter__(self) -> Iterator[T]:
        worker = torch.utils.data.get_worker_info()
        lane = SINGLE_LANE if worker is None else Lane(worker.id, worker.num_workers)
        return self.dataset.open(lane)

    def to_iterable_dataset(self) -> datasets.IterableDataset:
        """Return the examples as a Hugging Face iterable dataset, with a state and
        parts for ranks.
        """
        return to_iterable_dataset(self.dataset)

    def __len__(self) -> int:
        """Examples in all shards; `NotIndexedError` (a TypeError) when there is no such
        number.
        """
        return len(self.dataset)


def _changed(
    change: Callable[[Dataset[Any]], Dataset[Any]],
    source: ShardedDataSource[Any],
    name: str,
) -> Dataset[Any]:
    return change(source.shard(name))


def _renamed(mapping: Mapping[str, str], example: Example) -> Example:
    return {mapping.get(name, name): value for name, value in example.items()}


def _selected(names: Sequence[str], example: Example) -> Example:
    return {name: example[name] for name in names if name in example}


def _dropped(names: frozenset[str], example: Example) -> Example:
    return {name: value for name, value in example.items() if name not in names}


class HFDatasetShardedSource(ShardedDataSource[Example]):
    """A Hugging Face dataset, map-style or streaming, as one shard called "<name>:0".

    Anything else that `as_dataset` takes will do as well.

    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    >>> source = HFDatasetShardedSource(rows)
    >>> list(source.open_shard(source.shard_names[0]))
    [{'text': 'a'}, {'text': 'b'}]
    """

    order_name = "HFDatasetShardedSource"

    def __init__(self, dataset: Any, name: str | None = None) -> None:
        name = name or "hf_dataset"
        whole = as_dataset(dataset, name)
        self.wrap(whole, {f"{name}:0": lambda: whole})


class ParquetShardedSource(ShardedDataSource[Example]):
    """Parquet files, given by path, pattern, or a list of them; every file is a shard.
    `columns` limits what is read.
    """

    order_name = "ParquetShardedSource"

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        if storage_options:
            text = f"storage_options={storage_options!r} has no effect: files are local"
            log_once(type(self).__name__, "storage_options", text)
        whole = ParquetSource(data_files, columns=columns, name=name or "")
        opened = {
            str(path): partial(
                ParquetSource, path, columns=columns, name=f"{name or ''}:{path.name}"
            )
            for path in whole.files
        }
        self.wrap(whole, opened)


class CompositeShardedSource(ShardedDataSource[Example]):
    """The shards of several sources one after another, without mixing.

    A shard name that several sources have gets the number of its source, from 0, after
    it: "hf_dataset:0@1".

    >>> parts = [HFDatasetShardedSource([{"x": 1}]), HFDatasetShardedSource([{"x": 2}])]
    >>> combined = CompositeShardedSource(parts)
    >>> [(name, list(combined.open_shard(name))) for name in combined.shard_names]
    [('hf_dataset:0@0', [{'x': 1}]), ('hf_dataset:0@1', [{'x': 2}])]
    """

    order_name = "CompositeShardedSource"

    def __init__(self, sources: Sequence[ShardedDataSource[Any]]) -> None:
        often = Counter(name for part in sources for name in part.shard_names)
        shards = {
            f"{name}@{number}" if often[name] > 1 else name: partial(part.shard, name)
            for number, part in enumerate(sources)
            for name in part.shard_names
        }
        self.wrap(ConcatDataset(*(source.dataset for source in sources)), shards)


class MixedShardedSource(ShardedDataSource[Example]):
    """Examples of named sources in blocks of exact shares.

    The source has one shard, "mixed_shard_0". Every block of `block_size` examples
    holds the shares in whole examples, in random order; remainders carry over to the
    next block. Every example is a copy with the name of its source in `__source__`.

    `dataset` is the mix for `energize.get_loader`; `to_iterable_dataset()` is the mix
    for trainers. Both divide one order among ranks and workers; with a stream among the
    sources, only `to_iterable_dataset()` divides it among ranks. A torch DataLoader
    over the source itself divides it among its workers.

    Args:
        sources: Sources by name.
        weights: Weights by name; they need not sum to 1. None is equal weights.
        block_size: Examples per block.
        stop_strategy: "restart" never ends, and exhausted sources restart.
            "first_exhausted" ends when an exhausted source is needed. "all_exhausted"
            yields every example once and gives the share of an exhausted source to the
            others.
        seed: Seed of the order; None draws one and logs it.
        shuffle: Whether sources with random access are shuffled in every pass. Streams
            keep their order.
        weight_scheduler: Weights over the optimizer steps, `slots_per_step` examples
            each.

    Raises:
        WeightError: If names do not match; the message lists them.
        ConfigError: For other invalid arguments.
        EmptyDatasetError: If a source without examples has to restart.

    Example:
        >>> sources = {"code": [{"x": 1}] * 5, "text": [{"x": 2}] * 5}
        >>> weights = {"code": 0.3, "text": 0.7}
        >>> mixed = MixedShardedSource(sources, weights=weights, seed=42)
        >>> block = [row["__source__"] for row in mixed.dataset.at(range(1000))]
        >>> block.count("code"), block.count("text")
        (300, 700)
    """

    order_name = "MixedShardedSource"

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        block_size: int = 1000,
        seed: int | None = None,
        stop_strategy: str = "restart",
        weight_scheduler: WeightScheduler | None = None,
        *,
        shuffle: bool = True,
    ) -> None:
        mix = mixed(
            type(self).__name__,
            sources,
            weights if weight_scheduler is None else weight_scheduler,
            seed=seed,
            source_field=SOURCE_FIELD,
            shuffle=shuffle,
            stop=stop_strategy,
            block_size=block_size,
        )
        self.wrap(mix, {"mixed_shard_0": lambda: mix})


def block_mixture_interleave(
    datasets: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
    block_size: int = 1000,
    seed: int | None = 42,
    stop: str = "restart",
) -> datasets.IterableDataset:
    """Return a `datasets.IterableDataset` that mixes named datasets, map-style and
    streaming ones.

    The mix is that of `MixedShardedSource` with the same arguments, without
    `__source__`. Its `state_dict()` is exact after any example, and ranks and workers
    get a part each.

    >>> import datasets
    >>> one = datasets.Dataset.from_dict({"x": [1] * 4})
    >>> two = datasets.Dataset.from_dict({"x": [2] * 4})
    >>> mix = block_mixture_interleave(
    ...     {"one": one, "two": two}, {"one": 0.25, "two": 0.75}
    ... )
    >>> sum(example["x"] == 1 for example in mix.take(1000))
    250
    """
    owner = "block_mixture_interleave"
    return to_iterable_dataset(
        mixed(owner, datasets, weights, seed=seed, stop=stop, block_size=block_size)
    )


# The older way to describe a mix of files.


class TextDatasetInform(ExampleFiles):
    """Files of texts, and which field is the text."""

    content_field: str = "content"


class DatasetMixture(Options):
    """Files of texts and how they are mixed; `build_dataset` makes the dataset.

    Informs without a name are called "ds1", "ds2", ... by their number;
    `mixture_weights` are by these names. With `block_mixture` every block of
    `mixture_block_size` examples holds the shares; without it sources are drawn at
    random by weight, or in turn when there are no weights. The text is called "text" in
    the result.
    """

    informs: Listed[TextDatasetInform]
    mixture_weights: dict[str, Any] | None = None
    block_mixture: bool = True
    mixture_block_size: PositiveInt = 2048
    stop_strategy: Stop = "restart"
    streaming: bool = True
    seed: Seed | None = 42


def build_dataset(
    mixture: DatasetMixture,
) -> datasets.IterableDataset | Dataset[Example]:
    """Return the mix: a Hugging Face iterable dataset when `streaming`, else an
    energize dataset.

    The energize dataset has random access, and a length when the stop strategy ends it.
    """
    texts: dict[str, Any] = {}
    for name, entry in _by_name(mixture.informs, "DatasetMixture", "ds", 1).items():
        text = partial(_content, entry.content_field, _text)
        texts[name] = MapDataset(entry.examples(name), text)
    weights = mixture.mixture_weights
    options = dict[str, Any](stop=mixture.stop_strategy)
    if mixture.block_mixture:
        options["block_size"] = mixture.mixture_block_size
    else:
        options["scheme"] = "round_robin" if weights is None else "random"
    mix = mixed("DatasetMixture", texts, weights, seed=mixture.seed, **options)
    return to_iterable_dataset(mix) if mixture.streaming else mix


def _text(content: Any) -> Example:
    return {"text": content}


# A pipeline from files to batches, stage by stage.


@dataclass(frozen=True)
class Pipeline:
    """Stages that are called one after another, each giving a new pipeline:

    `source()` opens the datasets, `tokenize()` turns texts into token ids where a
    dataset has a tokenizer, `mix()` makes one stream of them with `__source__` in each
    example, also of a single dataset; `load()` makes batches, `build()` gives the
    result: a `Loader` of batches after `load()`, else the dataset itself. A batch is a
    dict of columns: arrays where the values have one shape, lists where they do not.

    Raises `ConfigError` for stages out of order, and where several datasets would be
    left unmixed.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = path.write_text('{"text": "ab"}' + chr(10) + '{"text": "cd"}')
    >>> config = {"datasets": [{"data_files": path, "tokenizer": str.encode}]}
    >>> loader = Pipeline.from_config(config).source().tokenize().mix().load().build()
    >>> batch = next(iter(loader))
    >>> batch["input_ids"].shape, batch["__source__"][0]
    ((8, 2), 'dataset_0')
    """

    config: PipelineConfig
    datasets: Mapping[str, Dataset[Any]] = field(default_factory=dict)
    loader: Loader[dict[str, Any]] | None = None

    @classmethod
    def from_config(cls, config: PipelineConfig | Mapping[str, Any]) -> Pipeline:
        """Return a pipeline before its first stage, of a config or of plain dicts."""
        return cls(PipelineConfig(**config) if isinstance(config, Mapping) else config)

    def source(self) -> Pipeline:
        """Open the datasets."""
        opened = {
            name: entry.examples(name) for name, entry in self.config.named.items()
        }
        return replace(self, datasets=opened)

    def tokenize(self) -> Pipeline:
        """Turn texts into token ids; datasets without a tokenizer stay as they are."""
        datasets = dict(self.datasets)
        configs = self.config.named
        if set(datasets) != set(configs):
            raise ConfigError(
                "Pipeline: tokenize() must come after source() and before mix()"
            )
        for name, config in configs.items():
            if config.tokenizer is not None:
                tokens = partial(_tokens, _loaded_tokenizer(config.tokenizer, name))
                content = partial(_content, config.content_field, tokens)
                datasets[name] = MapDataset(datasets[name], content)
        return replace(self, datasets=datasets)

    def mix(self, config: MixStageConfig | None = None) -> Pipeline:
        """Mix the datasets into one."""
        config = config or self.config.mix
        mix = mixed(
            "MixStageConfig",
            self.datasets,
            config.scheduler() or config.weights,
            seed=self.config.seed if config.seed is None else config.seed,
            source_field=SOURCE_FIELD,
            stop=config.stop_strategy,
            block_size=config.block_size,
        )
        return replace(self, datasets={"mixed": mix})

    def load(
        self, batch_size: int = 8, *, drop_last: bool = True, num_workers: int = 0
    ) -> Pipeline:
        """Make batches of the one dataset that there is."""
        batches = BatchDataset(self._only(), batch_size, collated, drop_last=drop_last)
        config = WorkerConfig.default_worker_config(num_workers)
        return replace(self, loader=get_loader(batches, worker_config=config))

    def build(self) -> Dataset[Any] | Loader[dict[str, Any]]:
        """Return the loader of batches, or without `load()` the dataset."""
        return self._only() if self.loader is None else self.loader

    def _only(self) -> Dataset[Any]:
        if len(self.datasets) != 1:
            raise ConfigError(
                f"Pipeline: needs one dataset, got {', '.join(self.datasets) or 0}. "
                "Call source() and mix() before"
            )
        return next(iter(self.datasets.values()))


def collated(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return examples as columns: numeric values of one shape as one array, others as a
    list.

    An example that lacks a field has None there.
    """
    names = dict.fromkeys(name for example in examples for name in example)
    return {
        name: _column([example.get(name) for example in examples]) for name in names
    }


def _column(values: list[Any]) -> Any:
    if not all(
        isinstance(value, int | float | list | np.ndarray | np.number)
        for value in values
    ):
        return values
    try:
        column = np.array(values)
    except ValueError:  # different shapes
        return values
    return column if column.dtype.kind in "biuf" else values
