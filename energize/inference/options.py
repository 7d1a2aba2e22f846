"""Options of loose data in an entry of a metadataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from energize.core.samples import CrudeSample, sample_type_named
from energize.data.nv_meta import CRUDE, SampleConfig
from energize.task.field_maps import check_sample_type


@dataclass(frozen=True)
class DataOptions:
    """What an entry of a metadataset says of its samples; what it does not say is
    inferred.

    Args:
        sample_type: The type, or its module and its name.
        field_map: For each field its columns or parts.
        image_folder: Where names of files in rows begin.
        strict: Whether files that are left out are an error.
        format: Which of several possible formats is read.
        files: Patterns of the files that are read, all as one split part.
        media_path: Where the file of a column's value is, below the image folder:
            `images/{id}.jpg`, with the file name of a path alone `images/{image:name}`.
        split_by: The column that states split parts, with the part of each value; an
            empty mapping if no column does.
        inferred: What was inferred when the entry was written; data that differ are an
            error.

    """

    sample_type: type[Any] | tuple[str, str] | None = None
    field_map: Mapping[str, str] | None = field(default=None, hash=False)
    image_folder: str | None = None
    strict: bool | None = False
    format: str | None = None
    files: Sequence[str] | None = field(default=None, hash=False)
    media_path: str | None = None
    split_by: Mapping[str, Mapping[Any, str]] | None = field(default=None, hash=False)
    inferred: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def kind(self) -> type[Any] | None:
        """The type of samples; raise what `sample_type_named` raises."""
        asked = self.sample_type
        kind = sample_type_named(*asked) if isinstance(asked, tuple) else asked
        if kind is not None:
            check_sample_type(kind)
        return kind

    def config(
        self, config: SampleConfig, field_map: Mapping[str, str] | None
    ) -> SampleConfig:
        """Return what a dataset.yaml says, with what was told in its place."""
        if (kind := self.kind) is not None:
            name = CRUDE if kind is CrudeSample else kind.__name__
            own = SampleConfig(kind.__module__, name)
            config = replace(own, subflavors=config.subflavors, options=config.options)
        return (
            config if field_map is None else replace(config, field_map=dict(field_map))
        )


OF_SAMPLES = tuple(DataOptions.__dataclass_fields__)
"""Keys of an entry that say what its samples are, beside what its folder says."""
