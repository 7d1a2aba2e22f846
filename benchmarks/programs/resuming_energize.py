"""energize, stopped and resumed in a process that `benchmarks.resuming` starts."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.programs.resuming import BATCH, Asked, Place, main, read_to
from energize import (
    BatchDataset,
    BlendDataset,
    Dataset,
    DefaultTaskEncoder,
    FilterDataset,
    IndexedDataset,
    Loader,
    RepeatDataset,
    SequenceSource,
    ShuffleDataset,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energize.core.config import packed, unpacked
from energize.loader.state import sealed

__all__ = ["Energize"]

_PER_SOURCE = 10**6
_LANES = 2


class Numbers:
    """A sequence whose samples are their indices."""

    def __len__(self) -> int:
        return _PER_SOURCE

    def __getitem__(self, index: int) -> int:
        return index


def kept(number: int) -> bool:
    """Nine of ten."""
    return number % 10 > 0


class Energize:
    """Batches of `indexed` sources or of the `stream` that a filter makes of them,
    whose samples are computed; or of prepared `folders`.
    """

    name = "energize"

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._lanes = _LANES if asked.kind == "stream" else None

    def describe(self) -> Dataset[Any]:
        """The mix, as a new process makes it."""
        if self._asked.kind == "folders":
            return get_train_dataset(
                self._asked.data,
                batch_size=BATCH,
                shuffle_buffer_size=100,
                task_encoder=DefaultTaskEncoder(),
            )
        sources = [
            RepeatDataset(
                ShuffleDataset(SequenceSource(Numbers(), name=f"folder-{n:05d}"))
            )
            for n in range(self._asked.sources)
        ]
        weights = [1 + n * 7919 % 97 for n in range(len(sources))]
        mix: Dataset[int] = BlendDataset(zip(sources, weights, strict=True))
        if self._asked.kind == "stream":
            mix = FilterDataset(mix, kept)
        return BatchDataset(mix, BATCH, list)

    def loader(self, described: Dataset[Any]) -> Loader[Any]:
        """The loader of a single rank."""
        config = WorkerConfig(rank=0, world_size=1, num_workers=self._asked.workers)
        return get_loader(described, worker_config=config, lanes=self._lanes)

    def state(self, loader: Loader[Any]) -> Any:
        """As it is saved."""
        return loader.state_dict()

    def load(self, loader: Loader[Any], state: Any) -> None:
        """Go on from a state."""
        loader.load_state_dict(state)

    def close(self, loader: Loader[Any]) -> None:
        """End the workers."""
        loader.close()

    def look(self, batch: Any) -> list[Any]:
        """The numbers, or the keys of samples."""
        return list(batch if isinstance(batch, list) else batch.__key__)

    def reach(self, position: int, seconds: float) -> Place:
        """A state at any position: that of a run that has begun, with the numbers of
        that place.
        """
        if self._asked.kind == "stream":
            return self._reach_in_stream(position, seconds)
        dataset = self.describe()
        batches = position // BATCH
        assert isinstance(dataset, IndexedDataset)
        state = self.loader(dataset).state_dict()
        state = sealed(state | {"cursor": packed({"position": batches})})
        return Place(position, state, self.look(dataset.at([batches])[0]))

    def _reach_in_stream(self, position: int, seconds: float) -> Place:
        """Of each lane's numbers those that it has about there: a filter has no exact
        ones.
        """
        near = read_to(self, min(position, 64 * BATCH), seconds)
        if near.position >= position:
            return near
        state = near.state
        times = position // near.position
        cursor = unpacked(state["cursor"], "cursor")
        lanes = json.loads(cursor["cursors"])
        for lane in lanes["cursors"]:
            batched = lane["input"]
            part = batched["input"]["input"]
            lane["taken"] *= times
            batched["called"] *= times
            part["round"] *= times
        changed = {"position": cursor["position"] * times, "cursors": packed(lanes)}
        kept = {
            name: value
            for name, value in cursor.items()
            if name not in ("places", "slot")
        }
        state = sealed(state | {"cursor": packed(kept | changed)})
        return Place(position, state, self._after(state))

    def _after(self, state: Any) -> list[Any]:
        """The batch that another number of workers gives after a state."""
        config = WorkerConfig(rank=0, world_size=1)
        with get_loader(
            self.describe(), worker_config=config, lanes=self._lanes
        ) as loader:
            loader.load_state_dict(state)
            # How far each source has come is computed anew: it is not a multiple of
            # that before.
            saved, loaded = (
                unpacked(each["cursor"], "cursor")["cursors"]
                for each in (loader.state_dict(), state)
            )
            if saved != loaded:
                raise RuntimeError("a state that was loaded is not that which is saved")
            return self.look(next(iter(loader)))


if __name__ == "__main__":
    main(Energize)
