"""Typed samples of a prepared folder, decoded."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from energize.flavors.webdataset.default_generic_webdataset import DefaultGenericWebdatasetFactory
from energize.task_encoder.decoding import SampleDecoder

T_co = TypeVar("T_co", covariant=True)

DEFAULT_DECODER = SampleDecoder()


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_co]):
    """As `DefaultGenericWebdatasetFactory`, with parts decoded by `decoder` (None: as bytes)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        decoder: SampleDecoder | None = DEFAULT_DECODER,
        **kwargs: Any,
    ) -> None:
        self._decoder = decoder
        super().__init__(path, **kwargs)
