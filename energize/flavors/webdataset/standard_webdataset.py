"""Samples of a type that is given, of a prepared folder."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from energize.errors import ConfigError
from energize.flavors.webdataset.default_decoder_webdataset import DefaultDecoderWebdatasetFactory
from energize.samples.crude import CrudeSample
from energize.samples.sample import Sample

T_co = TypeVar("T_co", covariant=True)


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T_co]):
    """Makes samples of `sample_type`, decoded: what a dataset.yaml with a `sample_type` stands for.

    Other arguments are those of `DefaultDecoderWebdatasetFactory` and `BaseWebdatasetFactory`.

    >>> import tempfile
    >>> from energize import TextSample, WorkerConfig, prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "a", "txt": "a cat"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> texts = StandardWebdatasetFactory(
    ...     folder, sample_type=TextSample, field_map={"text": "txt"}, split_part="train",
    ...     training=False, worker_config=WorkerConfig(),
    ... )
    >>> len(texts), [sample.text for sample in texts.build()]
    (1, ['a cat'])
    """

    __sample_type__: type[Any]  # type: ignore[misc]  # of this object, not of its class

    def __init__(
        self, path: str | os.PathLike[str], *, sample_type: type[T_co], **kwargs: Any
    ) -> None:
        if not isinstance(sample_type, type) or not issubclass(sample_type, Sample | CrudeSample):
            raise ConfigError(
                f"{type(self).__name__}: sample_type is a class that extends energize.Sample; got "
                f"{sample_type!r}"
            )
        self.__sample_type__ = sample_type
        super().__init__(path, **kwargs)
