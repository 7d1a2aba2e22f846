"""Options of loose data in an entry of a metadataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from energize.core.samples import CrudeSample, sample_type_named
from energize.data.nv_meta import CRUDE, SampleConfig
from energize.task.field_maps import check_sample_type


@dataclass(frozen=True)
class MediaOptions:
    """Where the media of rows are.

    Args:
        folder: The folder in which names of files in rows begin; `image_folder` in an
            entry. By default that of the table.
        path: Where the file of a column's value is, below the folder; `media_path` in
            an entry: `images/{id}.jpg`, or `images/{image:name}` for the file name of a
            path. By default it is inferred.
    """

    folder: str | None = None
    path: str | None = None


@dataclass(frozen=True)
class DataOptions:
    """The properties of samples that an entry of a metadataset states; all others are
    inferred.

    Args:
        sample_type: The type, or its module and its name.
        field_map: For each field its columns or parts.
        media: Where the media of rows are.
        strict: Whether files that are left out are an error.
        format: Which of several possible formats is read.
        files: Patterns of the files that are read, all as one split part.
        split_by: The column that states split parts, with the part of each value; an
            empty mapping if no column does.
        inferred: The inferred facts when the entry was written; data that differ are an
            error.

    """

    sample_type: type[Any] | tuple[str, str] | None = None
    field_map: Mapping[str, str] | None = field(default=None, hash=False)
    media: MediaOptions = MediaOptions()
    strict: bool | None = False
    format: str | None = None
    files: Sequence[str] | None = field(default=None, hash=False)
    split_by: Mapping[str, Mapping[Any, str]] | None = field(default=None, hash=False)
    inferred: Mapping[str, Any] | None = field(default=None, hash=False)

    @classmethod
    def of_entry(
        cls,
        *,
        image_folder: str | None = None,
        media_path: str | None = None,
        **options: Any,
    ) -> DataOptions:
        """Return the options of an entry, by its keys."""
        return cls(media=MediaOptions(image_folder, media_path), **options)

    @property
    def kind(self) -> type[Any] | None:
        """The type of samples; raise what `sample_type_named` raises."""
        kind = self.sample_type
        if isinstance(kind, tuple):
            kind = sample_type_named(*kind)
        if kind is not None:
            check_sample_type(kind)
        return kind

    def config(
        self, config: SampleConfig, field_map: Mapping[str, str] | None
    ) -> SampleConfig:
        """Return the contents of a dataset.yaml, replaced by the stated options."""
        kind = self.kind
        if kind is not None:
            name = CRUDE if kind is CrudeSample else kind.__name__
            stated = SampleConfig(kind.__module__, name)
            config = replace(
                stated, subflavors=config.subflavors, options=config.options
            )
        return (
            config if field_map is None else replace(config, field_map=dict(field_map))
        )


OF_SAMPLES = (
    "sample_type",
    "field_map",
    "image_folder",
    "strict",
    "format",
    "files",
    "media_path",
    "split_by",
    "inferred",
)
"""Keys of an entry that state properties of samples, in addition to its folder."""
