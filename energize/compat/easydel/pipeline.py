"""A pipeline from files to batches, stage by stage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from energize.compat.easydel.config import (
    DatasetConfig,
    LoadStageConfig,
    MixStageConfig,
    PipelineConfig,
)
from energize.compat.easydel.mixed_source import SOURCE_FIELD
from energize.compat.easydel.mixing import mixed
from energize.compat.easydel.reading import Formatted, rows_of
from energize.compat.easydel.tokenizing import TokenizeExample, TokenizerConfig, loaded_tokenizer
from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.loader import Loader, get_loader
from energize.topology import WorkerConfig
from energize.wrappers.batch import BatchDataset
from energize.wrappers.map import MapDataset

__all__ = ["Pipeline"]

_log = logging.getLogger("energize")


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
    >>> config = PipelineConfig(datasets=[DatasetConfig(data_files=path, tokenizer=str.encode)])
    >>> loader = Pipeline.from_config(config).source().tokenize().mix().load().build()
    >>> batch = next(iter(loader))
    >>> batch["input_ids"].shape, batch["__source__"][0]
    ((8, 2), 'dataset_0')
    """

    config: PipelineConfig
    datasets: Mapping[str, Dataset[Any]] | None = None
    loading: LoadStageConfig | None = None

    @classmethod
    def from_config(cls, config: PipelineConfig | Mapping[str, Any]) -> Pipeline:
        """A pipeline before its first stage, of a config or of plain dicts."""
        if not isinstance(config, PipelineConfig | Mapping):
            raise ConfigError(
                f"Pipeline: a config is a PipelineConfig or a dict of its fields; got {config!r}"
            )
        if not isinstance(config, PipelineConfig):
            config = PipelineConfig.from_dict(config)
        return cls(config)

    def source(self) -> Pipeline:
        """Open the datasets."""
        if self.datasets is not None:
            raise ConfigError("Pipeline: source() has been called already")
        opened = {
            name: _opened(each, name, self.config.streaming)
            for name, each in zip(self.config.names(), self.config.datasets, strict=True)
        }
        return replace(self, datasets=opened)

    def tokenize(self) -> Pipeline:
        """Turn texts into token ids; datasets without a tokenizer stay as they are."""
        datasets = dict(self._opened("tokenize"))
        for name, config in zip(self.config.names(), self.config.datasets, strict=True):
            if name not in datasets:
                raise ConfigError("Pipeline: tokenize() comes before mix()")
            tokenizer = config.tokenizer or self.config.default_tokenizer
            if tokenizer is None:
                _log.info("Pipeline: dataset %r has no tokenizer and stays as it is", name)
                continue
            datasets[name] = _tokenized(datasets[name], config, name, tokenizer)
        return replace(self, datasets=datasets)

    def mix(self, config: MixStageConfig | None = None) -> Pipeline:
        """Mix the datasets into one."""
        config = config or self.config.mix
        mix = mixed(
            self._opened("mix"),
            config.weights,
            config.scheduler(),
            config.mixing(self.config.seed),
            source_field=SOURCE_FIELD,
        )
        return replace(self, datasets={"mixed": mix})

    def load(self, config: LoadStageConfig | None = None) -> Pipeline:
        """Make batches of the one dataset that there is."""
        self._only("load")
        return replace(self, loading=config or self.config.load)

    def build(self) -> Dataset[Any] | Loader[dict[str, Any]]:
        """The loader of batches, or without `load()` the dataset."""
        dataset = self._only("build")
        if self.loading is None:
            return dataset
        batches = BatchDataset(
            dataset, self.loading.batch_size, collated, drop_last=self.loading.drop_last
        )
        return get_loader(
            batches,
            worker_config=WorkerConfig.default_worker_config(self.loading.num_workers),
            prefetch_factor=self.loading.prefetch_factor,
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
        arrays = [np.asarray(each) for each in values]
    except ValueError:  # nested lists of different lengths
        return values
    alike = len({each.shape for each in arrays}) == 1
    return np.stack(arrays) if alike and all(a.dtype.kind in "biuf" for a in arrays) else values


def _opened(config: DatasetConfig, name: str, streaming: bool) -> Dataset[Any]:
    return rows_of(
        config.data_files,
        name=name,
        kind=config.type,
        split=config.split,
        streaming=streaming,
        num_rows=config.num_rows,
        formatted=Formatted(config.format_callback, config.format_fields or {}),
    )


def _tokenized(
    dataset: Dataset[Any], config: DatasetConfig, name: str, tokenizer: Any
) -> Dataset[Any]:
    settings = tokenizer if isinstance(tokenizer, TokenizerConfig) else TokenizerConfig(tokenizer)
    tokenize = TokenizeExample(
        loaded_tokenizer(settings, name),
        settings,
        config.content_field,
        tuple(config.additional_fields),
    )
    return MapDataset(dataset, tokenize, seeded=False)
