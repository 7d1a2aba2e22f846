"""Arguments of Megatron-Energon that say how samples are decoded, beside the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energize.core.costs import ColumnCost, Cost
from energize.core.dataset import Dataset
from energize.core.ignored import accepted
from energize.datasets.batch import BatchDataset
from energize.datasets.item_cost import ItemCost
from energize.datasets.level import LevelBufferDataset
from energize.errors import ConfigError
from energize.packing.concat import concat_pack
from energize.packing.packer import Packer
from energize.task.decode import SampleDecoder
from energize.task.encoder import AugmentTaskEncoder, DefaultTaskEncoder, TaskEncoder
from energize.task.hooks import Hook, active_hooks, overrides
from energize.task.pipeline import after_batch

_OPTIONS = ("image_decode", "av_decode", "video_decode_audio", "guess_content")


class _Decoding(AugmentTaskEncoder[Any, Any, Any, Any]):
    """An encoder with another decoder; the one that was given stays as it is."""

    decoder = None

    def __init__(
        self, task_encoder: TaskEncoder[Any, Any, Any, Any], decoder: SampleDecoder | None
    ) -> None:
        super().__init__(task_encoder)
        self.decoder = decoder


def decoding_as(owner: str, encoder: Any, older: Mapping[str, Any]) -> Any:
    """The encoder, or each of a dict of them, decoding as older arguments of `owner` say.

    `auto_decode=False` leaves the bytes of parts; the others are parameters of `SampleDecoder`.
    What else is given is accepted with a word in the log, or an error where nobody knows it. Raises
    `ConfigError` where the encoder has a decoder of its own, too.
    """
    options = {name: older[name] for name in _OPTIONS if name in older}
    auto = older.get("auto_decode", True)
    accepted(
        owner,
        **{
            name: value
            for name, value in older.items()
            if name not in _OPTIONS and name != "auto_decode"
        },
    )
    if not options and auto is not False:
        return encoder
    if isinstance(encoder, Mapping):
        return {kind: decoding_as(owner, each, older) for kind, each in encoder.items()}
    own = encoder.decoder if isinstance(encoder, TaskEncoder) else TaskEncoder.decoder
    if own is not TaskEncoder.decoder:
        raise ConfigError(
            f"{owner}: {', '.join([*options, 'auto_decode'][: len(options) or 1])} says how samples"
            f" are decoded, and so does the decoder of {type(encoder).__name__}; leave one out"
        )
    decoder = SampleDecoder(**options) if auto is not False else None
    return _Decoding(DefaultTaskEncoder() if encoder is None else encoder, decoder)


# Packing as a metadataset says it, in place of an encoder's own hooks.


class PackingEncoder(AugmentTaskEncoder[Any, Any, Any, Any]):
    """An encoder whose samples are packed by `packer`.

    A pack is what the encoder's `pack_selected_samples` makes of its samples, or else `concat_pack`
    of `fields` and `flatten`. Raises `ConfigError` for an encoder that selects samples itself.
    """

    def __init__(
        self,
        task_encoder: TaskEncoder[Any, Any, Any, Any],
        packer: Packer,
        fields: Sequence[str],
        flatten: Sequence[str],
    ) -> None:
        super().__init__(task_encoder)
        if overrides(task_encoder, "select_samples_to_pack"):
            raise ConfigError(
                f"packing says here which samples share a pack, and so does select_samples_to_pack "
                f"of {type(task_encoder).__name__}; remove either"
            )
        self.packer, self.fields, self.flatten = packer, fields, flatten

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """As the packer selects them."""
        return self.packer(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """As the encoder makes a pack, or joined."""
        if overrides(self.wrapped_encoder, "pack_selected_samples"):
            return self.wrapped_encoder.pack_selected_samples(samples)
        return concat_pack(samples, self.fields, flatten=self.flatten)


# Batches of level cost, as a program or a metadataset asks for them.

BATCHES = 64
"""Of so many batches the items are levelled together, where nobody says how many."""


@dataclass(frozen=True)
class Level:
    """What batches of level cost are made by: see `LevelDataset` where `cost` is of columns, and
    `LevelBufferDataset` where it is an `ItemCost`, of what has been encoded and packed.

    Raises `ConfigError` for sizes that do not go with the cost.
    """

    cost: Cost | ColumnCost | ItemCost
    global_batch_size: int | None = None
    buffer_size: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.cost, ItemCost):
            if self.global_batch_size is not None:
                raise ConfigError(
                    "level is told by what encoded items hold, which is known of those that were "
                    f"read, so global_batch_size={self.global_batch_size} cannot be levelled as a "
                    "whole; say how many items are levelled at a time (level_buffer_size, in a "
                    "file buffer_size), or what samples cost by a column"
                )
        elif self.global_batch_size is None:
            raise ConfigError(
                "level says what samples cost, and global_batch_size is missing: among the samples "
                "of how many micro batches those of one are chosen"
            )
        elif self.buffer_size is not None:
            raise ConfigError(
                f"{self.buffer_size} items are to be levelled at a time, and level is told by "
                "columns, which levels whole global batches; leave the buffer size out, or give "
                "an ItemCost (in a file: field)"
            )

    @classmethod
    def asked(
        cls,
        level: Cost | ColumnCost | ItemCost | None,
        global_batch_size: int | None,
        level_buffer_size: int | None,
    ) -> Level | None:
        """What a program asks for; None where it asks for nothing."""
        if level is not None:
            return cls(level, global_batch_size, level_buffer_size)
        if global_batch_size is None and level_buffer_size is None:
            return None
        name = "level_buffer_size" if global_batch_size is None else "global_batch_size"
        raise ConfigError(
            f"{name} is given, and level is not: it says what samples cost, so that the ranks' "
            "batches cost the same. (For gradient accumulation alone, give global_batch_size to "
            "get_loader)"
        )

    def batches(
        self,
        encoder: TaskEncoder[Any, Any, Any, Any],
        samples: Dataset[Any],
        *,
        batch_size: int | None,
        drop_last: bool,
        packing_buffer_size: int | None,
    ) -> Dataset[Any]:
        """Encoded samples through the hooks after that, to batches of level cost."""
        if batch_size is None:
            raise ConfigError("level is about batches, and batch_size is None")
        _check(encoder)
        items = encoder.build_batch(
            samples, batch_size=None, packing_buffer_size=packing_buffer_size
        )
        batch = Hook(encoder, "batch")
        if isinstance(self.cost, ItemCost):
            size = BATCHES * batch_size if self.buffer_size is None else self.buffer_size
            items = LevelBufferDataset(items, size, batch_size, self.cost)
            batches: Dataset[Any] = BatchDataset(items, batch_size, batch, drop_last=drop_last)
        else:
            batches = BatchDataset(
                items,
                batch_size,
                batch,
                drop_last=drop_last,
                level=self.cost,
                global_batch_size=self.global_batch_size,
            )
        return after_batch(encoder, batches)


def _check(encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
    own = type(encoder).__name__
    if "batch_group_criterion" in active_hooks(encoder):
        raise ConfigError(
            f"batch_group_criterion of {own} says which samples share a batch, and so does level; "
            "give one of the two"
        )
    if type(encoder).build_batch is not TaskEncoder.build_batch:
        raise ConfigError(
            f"{own} overrides build_batch, which makes its batches, so level has none to make; "
            "put a LevelDataset below the batches there"
        )
