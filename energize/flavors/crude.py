"""Crude samples: dicts of their parts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from energize.errors import ConfigError
from energize.flavors.webdataset.default_decoder_webdataset import DefaultDecoderWebdatasetFactory
from energize.samples.crude import CrudeSample
from energize.task_encoder.folder_code import PartFilter

__all__ = ["CrudeSample", "CrudeWebdataset"]


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """Crude samples of a prepared folder, each a dict of its parts, decoded, by their names.

    What a dataset.yaml with `__class__: CrudeWebdataset` stands for. `part_filter` (names, or a
    function of a name) says which parts are there.
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        part_filter: PartFilter | None = None,
        **kwargs: Any,
    ) -> None:
        if "sample_loader" in kwargs or "field_map" in kwargs:
            raise ConfigError(
                "CrudeWebdataset: crude samples are the parts as they are; make others of them in "
                "a cooker, or use StandardWebdatasetFactory with sample_loader or field_map"
            )
        super().__init__(path, subflavors=subflavors, part_filter=part_filter, **kwargs)
