"""Typed samples of a prepared folder, by a field map or a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar, cast

from energize.errors import ConfigError, UntrustedCodeError
from energize.flavors.webdataset.base_webdataset import BaseWebdatasetFactory
from energize.task_encoder.decoding import SampleDecoder
from energize.task_encoder.folder_code import LoadFunction, PartFilter
from energize.task_encoder.loading import SampleLoader

T_co = TypeVar("T_co", covariant=True)


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_co]):
    """Makes samples of `__sample_type__` by a `field_map`, or by a function `sample_loader`.

    Both are those of `SampleLoader`, which takes the usual parts where neither is given;
    `part_filter` (names, or a function of a name) says which parts there are. Parts are bytes here,
    decoded ones in `DefaultDecoderWebdatasetFactory`. A subclass may override `load_sample`.

    Raises `ConfigError` when both are given, and for a `sample_loader` without `part_filter`;
    `UntrustedCodeError` for a name of a file in place of a function.
    """

    _decoder: SampleDecoder | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: LoadFunction | None = None,
        part_filter: PartFilter | None = None,
        **kwargs: Any,
    ) -> None:
        owner = type(self).__name__
        for name, given in (("sample_loader", sample_loader), ("part_filter", part_filter)):
            if isinstance(given, str):
                raise UntrustedCodeError(
                    f"{owner}: {name}={given!r} names a file of the data folder, which is not run "
                    "here; import the function in your program and give the function, or let "
                    "get_dataset_from_config(..., trust_code=[folder]) read it"
                )
        if sample_loader is not None and part_filter is None:
            raise ConfigError(
                f"{owner}: sample_loader needs part_filter, which says which parts to read: their "
                "names, or a function of a name"
            )
        self.subflavors = dict(subflavors or {})
        self.field_map = None if field_map is None else dict(field_map)
        self.sample_loader = sample_loader
        super().__init__(path, part_filter=part_filter, **kwargs)
        _ = self._typed  # what does not fit the type is an error now

    @cached_property
    def _typed(self) -> SampleLoader[Any]:
        """What makes samples."""
        return SampleLoader(
            sample_type=self.__sample_type__,
            field_map=self.field_map,
            decoder=self._decoder,
            subflavors=self.subflavors,
            sample_loader=self.sample_loader,
            part_filter=self.part_filter,
        )

    def _loading(self) -> Callable[[dict[str, Any]], T_co]:
        if type(self).load_sample is DefaultGenericWebdatasetFactory.load_sample:
            return self._typed
        return super()._loading()

    def load_sample(self, raw_data: dict[str, Any]) -> T_co:
        return cast("T_co", self._typed(raw_data))
