"""The older way to describe a mix of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import datasets
from pydantic import InstanceOf, StrictBool

from energize.compat.checks import Count, Weights, Whole, checked, checked_fields
from energize.compat.easydel.files import Content, Example, ExampleFiles, named
from energize.compat.easydel.mixing import Stop, mixed
from energize.compat.hugging_face import to_iterable_dataset
from energize.dataset import Dataset
from energize.wrappers.map import MapDataset


@checked_fields
@dataclass(frozen=True, kw_only=True)
class TextDatasetInform(ExampleFiles):
    """Files of texts (see `ExampleFiles`), and which field is the text."""

    content_field: str = "content"


@checked_fields
@dataclass(frozen=True, kw_only=True)
class DatasetMixture:
    """Files of texts and how they are mixed; `build_dataset` makes the dataset.

    Informs without a name are called "ds1", "ds2", ... by their place; `mixture_weights` are by
    these names. With `block_mixture` every block of `mixture_block_size` examples holds the shares;
    without it sources are drawn at random by weight, or in turn when there are no weights. The text
    is called `text_target_field` in the result.
    """

    informs: Sequence[InstanceOf[TextDatasetInform]]
    mixture_weights: Weights | None = None
    block_mixture: StrictBool = True
    mixture_block_size: Count = 2048
    stop_strategy: Stop = "restart"
    streaming: StrictBool = True
    seed: Whole | None = 42
    text_target_field: str = "text"

    def __post_init__(self) -> None:
        informs = named(self.informs, "DatasetMixture", "informs", "ds", 1)
        object.__setattr__(self, "informs", informs)


@checked
def build_dataset(
    mixture: InstanceOf[DatasetMixture],
) -> datasets.IterableDataset | Dataset[Example]:
    """The mix: a Hugging Face iterable dataset when `streaming`, else an energize dataset.

    The energize dataset has random access, and a length when the stop strategy ends it.
    """
    scheme = "round_robin" if mixture.mixture_weights is None else "random"
    mix = mixed(
        "DatasetMixture",
        None,
        {each.name: _texts(each, mixture) for each in mixture.informs},
        mixture.mixture_weights,
        mixture.mixture_block_size,
        mixture.seed,
        mixture.stop_strategy,
        scheme="block" if mixture.block_mixture else scheme,
    )
    return to_iterable_dataset(mix) if mixture.streaming else mix


def _texts(inform: TextDatasetInform, mixture: DatasetMixture) -> Dataset[Example]:
    made, kept = _Text(mixture.text_target_field), tuple(inform.additional_fields)
    text = Content(inform.content_field, kept, made)
    return MapDataset(inform.examples(streaming=mixture.streaming), text, seeded=False)


@dataclass(frozen=True)
class _Text:
    """A text under its name in the mix."""

    field: str

    def __call__(self, content: Any) -> Example:
        return {self.field: content}
