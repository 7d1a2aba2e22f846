"""Texts delivered by a loader, counted in the environment of each library.

    python -m benchmarks.programs.token_shares energize METADATASET TEXTS
        CAPACITY BUFFER

`energize` or `megatron.energon` is the module that everything is taken from: the names
are the same. A byte of a text is a token, and which byte it is says the folder that the
text is from. Texts are encoded one by one; with a BUFFER, packed in buffers of so many
into packs of CAPACITY tokens. Prints as JSON, for each letter, the tokens that came
until some numbers of texts had come.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import make_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.programs.packing import greedy

if TYPE_CHECKING:
    from energize import TextSample

__all__ = ["main"]


def main() -> None:
    """Read so many texts and print what came."""
    module, path, texts, capacity, buffer = sys.argv[1:]
    start = time.perf_counter()
    loader = _loader(import_module(module), path, int(capacity), int(buffer))
    counts = np.zeros(256, dtype=np.int64)
    came: list[list[int]] = []
    seconds = 0.0
    begun = 0.0
    for item in loader:
        if not came:
            seconds = time.perf_counter() - start
            begun = time.process_time()
        counts += np.bincount(item.tokens.numpy(), minlength=256)
        texts_so_far = len(item.starts) + (came[-1][0] if came else 0)
        came.append([texts_so_far, *(int(counts[ord(letter)]) for letter in "abc")])
        if texts_so_far >= int(texts):
            break
    found = {
        "came": came,
        "first_after": seconds,
        "texts_per_second": came[-1][0] / (time.process_time() - begun),
    }
    print(json.dumps(found))


def _loader(library: Any, path: str, capacity: int, buffer: int) -> Any:
    fields = [("tokens", torch.Tensor), ("starts", list)]
    kind = make_dataclass("Tokens", fields, bases=(library.Sample,), kw_only=True)

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        @library.stateless  # type: ignore[untyped-decorator]  # of either library
        def encode_sample(self, sample: TextSample) -> Any:
            data = torch.frombuffer(bytearray(sample.text.encode()), dtype=torch.uint8)
            return kind.derive_from(sample, tokens=data, starts=[0])  # type: ignore[attr-defined]

        if buffer:

            def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
                return greedy(samples, capacity, lambda each: len(each.tokens))

            @library.stateless  # type: ignore[untyped-decorator]
            def pack_selected_samples(self, samples: list[Any]) -> Any:
                joined = torch.cat([each.tokens for each in samples])
                starts = np.cumsum(
                    [0, *(len(each.tokens) for each in samples[:-1])]
                ).tolist()
                return kind.derive_from(  # type: ignore[attr-defined]
                    samples[0], tokens=joined, starts=starts
                )

    dataset = library.get_train_dataset(
        path,
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        packing_buffer_size=buffer or None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Encoder(),
    )
    return library.get_loader(dataset)


if __name__ == "__main__":
    main()
