"""Packing: select the samples that fit together, and concatenate them.

`Packer` selects samples by length, and `concat_pack` makes one sample of several. Use
them in a `PackingDataset`, or in the hooks of a task encoder:

    class PackingEncoder(DefaultTaskEncoder):
        packer = Packer(length="tokens", capacity=2048)

        def select_samples_to_pack(self, samples):
            return self.packer(samples)

        @stateless
        def pack_selected_samples(self, samples):
            return concat_pack(samples, ["tokens", "labels"], flatten=["images"])

`image_tokens` has the rules by which processors make tokens of image sizes.
"""

from energize.packing.concat import concat_pack
from energize.packing.image_tokens import ImageTokenRule, image_token_rule
from energize.packing.packer import (
    Packer,
    attention_cost,
    balanced,
    best_fit,
    first_fit,
)

__all__ = [
    "ImageTokenRule",
    "Packer",
    "attention_cost",
    "balanced",
    "best_fit",
    "concat_pack",
    "first_fit",
    "image_token_rule",
]
