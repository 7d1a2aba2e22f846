"""Packing: which samples fit together, and one sample made of them.

`Packer` selects samples by how long they are, with one of three methods, and
`concat_pack` makes one sample of several. Both go into a `PackingDataset`, or into the
hooks of a task encoder:

    class PackingEncoder(DefaultTaskEncoder):
        packer = Packer(length="tokens", capacity=2048)

        def select_samples_to_pack(self, samples):
            return self.packer(samples)

        @stateless
        def pack_selected_samples(self, samples):
            return concat_pack(samples, ["tokens", "labels"], flatten=["images"])
"""

from energize.packing.concat import concat_pack
from energize.packing.packer import (
    Packer,
    attention_cost,
    balanced,
    best_fit,
    first_fit,
)

__all__ = [
    "Packer",
    "attention_cost",
    "balanced",
    "best_fit",
    "concat_pack",
    "first_fit",
]
