"""The base of batch types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from energize.late import torch
from energize.padding import Markable
from energize.samples.pinning import pin_memory
from energize.samples.sample import METADATA, RestoreKey
from energize.samples.source_info import SourceInfo
from energize.task_encoder.batching import filled_from

__all__ = ["Batch", "pin_memory"]


@dataclass(kw_only=True, slots=True)
class Batch(Markable):
    """A batch as a dataclass, with the metadata of its samples: lists with one entry per sample.

    `__restore_key__`, `__subflavors__` and `__sources__` are None in a batch that was made without
    them; an entry is None for a sample that has none. In a batch that a loader has delivered,
    `__restore_key__` is the key of the batch, by which `Loader.restore_sample` finds it, and
    `__stored_key__` the list of the keys of its samples.

    `sample_weights` is how much each of its samples counts in the loss: float32 of shape
    (samples,), of packs (packs, pieces) with 0 where one has fewer; None where nobody says, so that
    all count the same. A dataset sets it; a batch that was made with it keeps what it has.

    >>> from energize import TextSample
    >>> @dataclass
    ... class TextBatch(Batch):
    ...     text: list[str]
    >>> samples = [TextSample(__key__="0", text="zero"), TextSample(__key__="1", text="one")]
    >>> batch = TextBatch.from_samples(samples)
    >>> batch.__key__, batch.text
    (['0', '1'], ['zero', 'one'])
    """

    __key__: list[str]
    __restore_key__: RestoreKey | list[RestoreKey] | None = None
    __subflavors__: list[dict[str, Any] | None] | None = None
    __sources__: list[tuple[SourceInfo, ...] | None] | None = None
    sample_weights: torch.Tensor | None = field(default=None, repr=False)

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **values: Any) -> Self:
        """A batch whose fields are `values`, or else those of the samples by name.

        Tensors are padded and stacked, records batched field by field, other values listed. Raises
        `ConfigError` naming fields that have no default and that the samples lack.
        """
        return filled_from(samples, cls, values)

    @classmethod
    def derive_from(cls, base_batch: Batch, **values: Any) -> Self:
        """A batch of this type with the metadata of `base_batch` and `values` as its fields."""
        kept = {name: getattr(base_batch, name) for name in METADATA if hasattr(base_batch, name)}
        return cls(**kept | values)

    def pin_memory(self) -> Self:
        """A copy with all tensors in page-locked memory; the batch itself without a GPU."""
        return pin_memory(self)
