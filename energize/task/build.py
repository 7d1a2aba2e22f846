"""Encoders and batches as a program or a metadataset asks for them beside the encoder's hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energize.core.costs import ColumnCost, Cost, ItemCost
from energize.core.dataset import Dataset
from energize.core.ignored import accepted
from energize.datasets.batch import BatchDataset
from energize.datasets.level import LevelBufferDataset
from energize.errors import ConfigError
from energize.packing.concat import concat_pack
from energize.packing.packer import Packer
from energize.task.encoder import AugmentTaskEncoder, DefaultTaskEncoder, TaskEncoder
from energize.task.hooks import Hook, active_hooks, overrides
from energize.task.load import SampleDecoder
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
    """Return the encoder, or each of a dict of them, decoding as older arguments of `owner` say.

    `auto_decode=False` leaves the bytes of parts; the others are parameters of `SampleDecoder`.
    What else is given is accepted with a word in the log, or an error where nobody knows it. Raises
    `ConfigError` where the encoder has a decoder of its own, too.
    """
    options = {name: older[name] for name in _OPTIONS if name in older}
    auto = older.get("auto_decode", True) is not False
    known = (*_OPTIONS, "auto_decode")
    accepted(owner, **{name: value for name, value in older.items() if name not in known})
    if auto and not options:
        return encoder
    if isinstance(encoder, Mapping):
        return {kind: decoding_as(owner, each, older) for kind, each in encoder.items()}
    own = encoder.decoder if isinstance(encoder, TaskEncoder) else TaskEncoder.decoder
    if own is not TaskEncoder.decoder:
        raise ConfigError(
            f"{owner}: {', '.join(options) or 'auto_decode'} says how samples are decoded, and so "
            f"does the decoder of {type(encoder).__name__}; leave one out"
        )
    decoder = SampleDecoder(**options) if auto else None
    return _Decoding(DefaultTaskEncoder() if encoder is None else encoder, decoder)


class PackingEncoder(AugmentTaskEncoder[Any, Any, Any, Any]):
    """An encoder whose samples are packed by `packer`, in place of its own hooks.

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
        """Return the samples of each pack, as the packer selects them."""
        return self.packer(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Return a pack as the encoder makes it, or joined."""
        if overrides(self.wrapped_encoder, "pack_selected_samples"):
            return self.wrapped_encoder.pack_selected_samples(samples)
        return concat_pack(samples, self.fields, flatten=self.flatten)


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
        read = isinstance(self.cost, ItemCost)
        wrong = self.global_batch_size if read else self.buffer_size
        if wrong is not None:
            name = "global_batch_size" if read else "a buffer size"
            raise ConfigError(
                f"level: {name}={wrong} does not go with this cost. What encoded items hold, "
                "an ItemCost, levels a buffer of them; a column levels whole global batches"
            )
        if not read and self.global_batch_size is None:
            raise ConfigError(
                "level says what samples cost, and global_batch_size is missing: among the samples "
                "of how many micro batches those of one are chosen"
            )

    @classmethod
    def asked(
        cls,
        level: Cost | ColumnCost | ItemCost | None,
        global_batch_size: int | None,
        level_buffer_size: int | None,
    ) -> Level | None:
        """Return what a program asks for; None where it asks for nothing."""
        if level is not None:
            return cls(level, global_batch_size, level_buffer_size)
        if global_batch_size is None and level_buffer_size is None:
            return None
        name = "level_buffer_size" if global_batch_size is None else "global_batch_size"
        raise ConfigError(
            f"{name} is given, and level, which says what samples cost, is not. (For gradient "
            "accumulation alone, give global_batch_size to get_loader)"
        )

    def batches(
        self,
        encoder: TaskEncoder[Any, Any, Any, Any],
        samples: Dataset[Any],
        *,
        batch_size: int | None,
        batch_drop_last: bool,
        packing_buffer_size: int | None,
    ) -> Dataset[Any]:
        """Return encoded samples after the rest of the hooks, as batches of level cost."""
        if batch_size is None:
            raise ConfigError("level is about batches, and batch_size is None")
        grouped = "batch_group_criterion" in active_hooks(encoder)
        if grouped or type(encoder).build_batch is not TaskEncoder.build_batch:
            name = "batch_group_criterion" if grouped else "build_batch"
            raise ConfigError(
                f"{type(encoder).__name__} overrides {name}, which says which samples share a "
                "batch, and so does level; give one of the two"
            )
        items = encoder.build_batch(
            samples, batch_size=None, packing_buffer_size=packing_buffer_size
        )
        options: dict[str, Any] = {"drop_last": batch_drop_last}
        if isinstance(self.cost, ItemCost):
            size = BATCHES * batch_size if self.buffer_size is None else self.buffer_size
            items = LevelBufferDataset(items, size, batch_size, self.cost)
        else:
            options |= {"level": self.cost, "global_batch_size": self.global_batch_size}
        batches = BatchDataset(items, batch_size, Hook(encoder, "batch"), **options)
        return after_batch(encoder, batches)
