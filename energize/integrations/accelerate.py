"""Accelerate: loaders that count padding nowhere, and steps at the end of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import recursively_apply, send_to_device

from energize.core.loss_weights import counted
from energize.core.padding import is_padding, padding_rows
from energize.core.stream import State
from energize.errors import ConfigError
from energize.loader import Loader

T = TypeVar("T")


class AccelerateLoader(DataLoaderStateMixin, Generic[T]):  # type: ignore[misc]
    """A loader that Accelerate treats as one of its own while it is iterated over.

    Batches are moved to the device of the accelerator. At the last step of an epoch
    `accelerator.accumulate` makes an optimizer step, and `gather_for_metrics` leaves
    out padding.

    For evaluation the loader needs a length and no `global_batch_size`, since
    `gather_for_metrics` leaves out padding of the last step only. Use `gather_real`
    with the loader itself otherwise, or if samples may fail.

    Args:
        loader: The loader to iterate over. Register this one for checkpointing.
        accelerator: The accelerator that trains or evaluates.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from energize import BatchDataset, ListSource, get_loader
        >>> loader = get_loader(BatchDataset(ListSource([1, 2, 3, 4]), 2, torch.tensor))
        >>> list(AccelerateLoader(loader, Accelerator(cpu=True)))
        [tensor([1, 2]), tensor([3, 4])]
    """

    def __init__(self, loader: Loader[T], accelerator: Accelerator) -> None:
        self.loader = loader
        self.accelerator = accelerator
        self.gradient_state = GradientState()

    def state_dict(self) -> State:
        """Return the state of the loader."""
        return self.loader.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Load a state of the loader."""
        self.loader.load_state_dict(state)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[T]:
        if self.loader.role == "eval" and not self._pads_last_step_only():
            raise ConfigError(
                "gather_for_metrics cannot leave out the padding of a stream of "
                "unknown length or of a global batch. Iterate over the loader itself, "
                "and gather with gather_real"
            )
        self.begin()
        try:
            for batch in self.loader:
                if self.loader.at_loop_end:
                    samples = 0 if self.loader.padding else counted(batch)
                    counts = _gathered_counts(self.accelerator, samples)
                    self.remainder = sum(counts)
                    self.end_of_dataloader = True
                yield send_to_device(batch, self.accelerator.device)
        finally:
            self.end()

    def _pads_last_step_only(self) -> bool:
        try:
            return len(self.loader) > 0 and self.loader.accumulation_steps == 1
        except TypeError:
            return False


def gather_real(accelerator: Accelerator, tensors: Any, batch: Any) -> Any:
    """Gather tensors of all ranks without the rows that are padding.

    Serves datasets of known and unknown length, global batches, short last batches and
    samples that fail. Costs one small gather more than `accelerator.gather`. All ranks
    call it at each step.

    Args:
        accelerator: The accelerator to gather with.
        tensors: A tensor, or nested tensors, with a row for each sample of the batch.
        batch: The batch of this rank, which marks its padding.

    Returns:
        The same structure with the real rows of all ranks, in the order of the stream.

    Example:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> batch = {"x": torch.tensor([1, 2, 3])}
        >>> gather_real(Accelerator(cpu=True), batch["x"] + 1, batch).tolist()
        [2, 3, 4]
    """
    padded = [] if is_padding(batch) else padding_rows(batch)
    rows = 0 if is_padding(batch) else counted(batch)
    real = [row for row in range(rows) if row not in padded]
    counts = _gathered_counts(accelerator, len(real))

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        selected = tensor[: len(real)] if not padded else tensor[real]
        if not real:
            selected = tensor[:1]  # a rank without rows takes part in the collective
        aligned = accelerator.pad_across_processes(selected)
        parts = accelerator.gather(aligned).chunk(len(counts))
        pairs = zip(parts, counts, strict=True)
        return torch.cat([part[:count] for part, count in pairs])

    return recursively_apply(gather, tensors)


def _gathered_counts(accelerator: Accelerator, count: int) -> list[int]:
    mine = torch.tensor([count], device=accelerator.device)
    counts: list[int] = accelerator.gather(mine).tolist()
    return counts
