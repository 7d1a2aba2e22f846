"""The older way to describe a mix of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energize.compat.checks import checked_list
from energize.compat.easydel.mixing import Mixing, mixed
from energize.compat.easydel.reading import Formatted, rows_of
from energize.compat.hugging_face import to_iterable_dataset
from energize.dataset import Dataset
from energize.errors import ConfigError, nearest
from energize.sources.row_files import DataFiles
from energize.wrappers.map import MapDataset

if TYPE_CHECKING:
    import datasets

__all__ = ["DatasetMixture", "TextDatasetInform", "build_dataset"]

Example = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TextDatasetInform:
    """Files of texts: where, of which type (see `DatasetConfig`), and which field is the text."""

    data_files: DataFiles
    type: str | None = None
    name: str | None = None
    content_field: str = "content"
    additional_fields: Sequence[str] = ()
    num_rows: int | None = None
    split: str = "train"
    format_callback: Callable[[Example], Example] | None = None
    format_fields: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetMixture:
    """Files of texts and how they are mixed; `build_dataset` makes the dataset.

    Informs without a name are called "ds1", "ds2", ... by their place; `mixture_weights` are by
    these names. With `block_mixture` every block of `mixture_block_size` examples holds the shares;
    without it sources are drawn at random by weight, or in turn when there are no weights. The text
    is called `text_target_field` in the result.
    """

    informs: Sequence[TextDatasetInform]
    mixture_weights: Mapping[str, float] | None = None
    block_mixture: bool = True
    mixture_block_size: int = 2048
    stop_strategy: str = "restart"
    streaming: bool = True
    seed: int | None = 42
    text_target_field: str = "text"

    def __post_init__(self) -> None:
        checked_list(self.informs, TextDatasetInform, "DatasetMixture: informs")
        names = self.names()
        if not names:
            raise ConfigError("DatasetMixture: there are no informs")
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"DatasetMixture: two informs are called {name!r}")

    def names(self) -> list[str]:
        """The names of the informs."""
        return [each.name or f"ds{number}" for number, each in enumerate(self.informs, 1)]


@dataclass(frozen=True)
class _Text:
    """The text under its new name, and the fields that are kept."""

    content_field: str
    target_field: str
    kept: tuple[str, ...]

    def __call__(self, example: Mapping[str, Any]) -> Example:
        for name in (self.content_field, *self.kept):
            if name not in example:
                raise ConfigError(
                    f"an example has no field {name!r}{nearest(name, list(example)) or '.'} "
                    f"It has {', '.join(example)}; set content_field and additional_fields of the "
                    "TextDatasetInform"
                )
        kept = {name: example[name] for name in self.kept}
        return {self.target_field: example[self.content_field], **kept}


def build_dataset(mixture: DatasetMixture) -> datasets.IterableDataset | Dataset[Example]:
    """The mix: a Hugging Face iterable dataset when `streaming`, else an energize dataset.

    The energize dataset has random access, and a length when the stop strategy ends it.
    """
    if not isinstance(mixture, DatasetMixture):
        raise ConfigError(f"build_dataset makes the dataset of a DatasetMixture; got {mixture!r}")
    scheme = "block"
    if not mixture.block_mixture:
        scheme = "round_robin" if mixture.mixture_weights is None else "random"
    mixing = Mixing(
        "DatasetMixture",
        mixture.mixture_block_size,
        mixture.seed,
        mixture.stop_strategy,
        scheme=scheme,
    )
    sources = {
        name: _texts(inform, name, mixture)
        for name, inform in zip(mixture.names(), mixture.informs, strict=True)
    }
    mix = mixed(sources, mixture.mixture_weights, None, mixing, source_field=None)
    return to_iterable_dataset(mix) if mixture.streaming else mix


def _texts(inform: TextDatasetInform, name: str, mixture: DatasetMixture) -> Dataset[Example]:
    rows = rows_of(
        inform.data_files,
        name=name,
        kind=inform.type,
        split=inform.split,
        streaming=mixture.streaming,
        num_rows=inform.num_rows,
        formatted=Formatted(inform.format_callback, inform.format_fields or {}),
    )
    text = _Text(inform.content_field, mixture.text_target_field, tuple(inform.additional_fields))
    return MapDataset(rows, text, seeded=False)
