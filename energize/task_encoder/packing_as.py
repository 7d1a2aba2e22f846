"""Packing as a metadataset says it, in place of an encoder's own hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from energize.errors import ConfigError
from energize.packing.concat import concat_pack
from energize.packing.packer import Packer
from energize.task_encoder.augment import AugmentTaskEncoder
from energize.task_encoder.encoder import TaskEncoder
from energize.task_encoder.hooks import overrides


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
