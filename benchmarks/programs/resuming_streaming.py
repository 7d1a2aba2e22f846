"""MosaicML Streaming, stopped and resumed; run in an environment of its own.

What its StreamingDataLoader adds to torch's, counting samples for
`StreamingDataset.state_dict`, is done here: its module imports transformers and
torchvision, which serve other parts of it.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.programs.resuming import BATCH, Asked, Place, main

# Packages that only know where their modules lie, without what importing them would
# import.
_FOUND = list(importlib.util.find_spec("streaming").submodule_search_locations or ())  # type: ignore[union-attr]
for _name, _below in (("streaming", ""), ("streaming.base", "/base")):
    sys.modules[_name] = types.ModuleType(_name)
    sys.modules[_name].__path__ = [folder + _below for folder in _FOUND]

StreamingDataset: Any = import_module("streaming.base.dataset").StreamingDataset
MDSWriter: Any = import_module("streaming.base.format").MDSWriter
Stream: Any = import_module("streaming.base.stream").Stream
clean_stale_shared_memory: Any = import_module(
    "streaming.base.util"
).clean_stale_shared_memory

EPOCH = 3 * 10**6
"""Samples of an epoch: the place in it is what a state holds."""

_PER_FOLDER = 64


class Streaming:
    """Batches of streams that lie in folders of MDS shards, upsampled to an epoch of
    `EPOCH`.
    """

    name = "streaming"

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._folders = [
            Path(asked.data).parent / f"mds-{n:05d}" for n in range(asked.sources)
        ]
        for folder in self._folders:
            if not (folder / "index.json").exists():
                _write(folder)
        clean_stale_shared_memory()

    def describe(self) -> Any:
        """The mix, as a new process makes it."""
        streams = [
            Stream(local=str(folder), proportion=float(1 + number * 7919 % 97))
            for number, folder in enumerate(self._folders)
        ]
        return StreamingDataset(
            streams=streams, epoch_size=EPOCH, batch_size=BATCH, shuffle=True
        )

    def loader(self, described: Any) -> Any:
        """The loader of a single rank."""
        return DataLoader(described, batch_size=BATCH, num_workers=self._asked.workers)

    def state(self, loader: Any) -> Any:
        """After one batch, as StreamingDataLoader counts."""
        return loader.dataset.state_dict(BATCH, False)

    def load(self, loader: Any, state: Any) -> None:
        """Go on from a state."""
        loader.dataset.load_state_dict(state)

    def close(self, loader: Any) -> None:
        """Let go of shared memory."""
        del loader

    def look(self, batch: Any) -> list[Any]:
        """The numbers."""
        return list(batch["number"].tolist())

    def reach(self, position: int, seconds: float) -> Place:
        """A state at any position: that of a new run, with the epoch and the place in
        it.
        """
        described = self.describe()
        epoch, sample = divmod(position, EPOCH)
        state = described.state_dict(0, False) | {
            "epoch": epoch,
            "sample_in_epoch": sample,
        }
        return Place(position, state, None)


def _write(folder: Path) -> None:
    with MDSWriter(columns={"number": "int"}, out=str(folder), exist_ok=True) as writer:
        for number in range(_PER_FOLDER):
            writer.write({"number": number})


if __name__ == "__main__":
    main(Streaming)
