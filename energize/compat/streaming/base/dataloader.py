"""A DataLoader with a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from energize.compat.streaming.base.dataset import StreamingDataset
from energize.core.stream import State
from energize.errors import ConfigError, StateError

__all__ = ["StreamingDataLoader"]


class StreamingDataLoader(DataLoader[Any]):
    """torch's DataLoader over a `StreamingDataset`, with a state.

    The state resumes with any number of ranks and workers.

    Raises:
        ConfigError: For a state of another dataset.

    Example:
        >>> import tempfile
        >>> from energize import prepare, write_shards
        >>> folder = tempfile.mkdtemp()
        >>> _ = write_shards(
        ...     [{"__key__": str(n), "txt": str(n)} for n in range(6)], folder
        ... )
        >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
        >>> loader = StreamingDataLoader(
        ...     StreamingDataset(local=folder, batch_size=2), batch_size=2
        ... )
        >>> batches = iter(loader)
        >>> next(batches)["txt"]
        ['0', '1']
        >>> state = loader.state_dict()
        >>> loader.load_state_dict(state)
        >>> [batch["txt"] for batch in loader]
        [['2', '3'], ['4', '5']]
    """

    num_samples_yielded = 0
    """Samples delivered to this rank since the iteration began."""

    def __iter__(self) -> Any:
        self.num_samples_yielded = 0
        for batch in super().__iter__():
            self.num_samples_yielded += self._get_batch_size(batch)
            yield batch

    def _get_batch_size(self, batch: Any) -> int:
        """Return the samples in a batch; subclasses override it for their batches."""
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()))
        elif not isinstance(batch, torch.Tensor):
            batch = batch[0]
        return len(batch)

    def state_dict(self) -> State:
        """Return the state after the last batch, the same on all ranks."""
        dataset = self._streaming()
        if self.num_workers > 1 and self.batch_size != dataset.device_batch_size:
            raise StateError(
                f"batch_size is {self.batch_size} in the loader and "
                f"{dataset.device_batch_size} in the dataset, whose workers yield "
                "whole batches. Pass the same batch_size to both"
            )
        ranks = dataset.ranks.world_size
        return dataset.state_dict(
            self.num_samples_yielded * ranks, from_beginning=False
        )

    def load_state_dict(self, state_dict: State) -> None:
        """Start the next iteration at a state, see
        `StreamingDataset.load_state_dict`.
        """
        self._streaming().load_state_dict(state_dict)
        self.num_samples_yielded = 0

    def _streaming(self) -> StreamingDataset:
        if not isinstance(self.dataset, StreamingDataset):
            raise ConfigError(
                "StreamingDataLoader needs a StreamingDataset to have a state, got a "
                f"{type(self.dataset).__name__}"
            )
        return self.dataset
