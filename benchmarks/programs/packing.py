"""Packs delivered by a loader, measured in the environment of each library.

    python -m benchmarks.programs.packing energize FOLDER BUFFER CAPACITY RUNS
        [METHOD ...]

`energize` or `megatron.energon` is the module that everything is taken from: the names
are the same. Captions are texts in a prepared folder and a byte of them is a token.
Read, encoded, selected and joined they are in this process, a whole epoch at a time,
and the first one is not measured. Prints a list of measurements as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import make_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from energize import TextSample

__all__ = ["GREEDY", "greedy", "main"]

T = TypeVar("T")

GREEDY = "energon greedy"

Select = Callable[[list[Any]], list[list[Any]]]


def main() -> None:
    """Measure the methods that the command line names, in turn, and print what was
    found.
    """
    module, folder, buffer, capacity, runs, *methods = sys.argv[1:]
    library = import_module(module)
    loaders = {
        name: _loader(library, folder, int(buffer), _select(name, int(capacity)))
        for name in methods
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    lengths: dict[str, list[int]] = {}
    for _ in range(int(runs) + 1):
        for name, loader in loaders.items():
            start = time.process_time()
            lengths[name] = [len(pack.tokens) for pack in loader]
            seconds[name].append(time.process_time() - start)
    found = [
        {
            "method": name,
            "packs": len(lengths[name]),
            "tokens": sum(lengths[name]),
            "longest": max(lengths[name]),
            "seconds": statistics.median(seconds[name][1:]),
        }
        for name in methods
    ]
    print(json.dumps(found))


def _select(method: str, capacity: int) -> Select:
    if method == GREEDY:
        return lambda samples: greedy(samples, capacity, lambda each: len(each.tokens))
    packer: Select = import_module("energize.packing").Packer(
        "tokens", capacity, method
    )
    return packer


def greedy(
    items: Iterable[T], capacity: int, length: Callable[[T], int]
) -> list[list[T]]:
    """What `benchmarks.packing` calls by this name."""
    packs: list[list[T]] = []
    room = 0
    for item in sorted(items, key=length):
        if length(item) >= room:  # it has to stay below the capacity there
            packs.append([])
            room = capacity
        packs[-1].append(item)
        room -= length(item)
    return packs


def _loader(library: Any, folder: str, buffer: int, select: Select) -> Any:
    tokens = make_dataclass(
        "Tokens", [("tokens", torch.Tensor)], bases=(library.Sample,), kw_only=True
    )
    pack = make_dataclass("Pack", [("starts", list)], bases=(tokens,), kw_only=True)

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        @library.stateless  # type: ignore[untyped-decorator]  # of either library
        def encode_sample(self, sample: TextSample) -> Any:
            data = torch.frombuffer(bytearray(sample.text.encode()), dtype=torch.uint8)
            return tokens.derive_from(sample, tokens=data)  # type: ignore[attr-defined]

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return select(samples)

        @library.stateless  # type: ignore[untyped-decorator]
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            starts = [0]
            for each in samples[:-1]:
                starts.append(starts[-1] + len(each.tokens))
            joined = torch.cat([each.tokens for each in samples])
            return pack.derive_from(  # type: ignore[attr-defined]
                samples[0], tokens=joined, starts=starts
            )

    dataset = library.get_train_dataset(
        folder,
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        packing_buffer_size=buffer,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
        repeat=False,
    )
    return library.get_loader(dataset)


if __name__ == "__main__":
    main()
