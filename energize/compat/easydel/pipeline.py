"""A pipeline from files to batches, stage by stage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import InstanceOf

from energize.compat.checks import checked_fields, or_fields
from energize.compat.easydel.config import LoadStageConfig, MixStageConfig, PipelineConfig
from energize.compat.easydel.files import Content
from energize.compat.easydel.mixed_source import SOURCE_FIELD
from energize.compat.easydel.mixing import mixed
from energize.compat.easydel.tokenizing import TokenizerConfig, Tokens, loaded_tokenizer
from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.loader import Loader, get_loader
from energize.topology import WorkerConfig
from energize.wrappers.batch import BatchDataset
from energize.wrappers.map import MapDataset

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
