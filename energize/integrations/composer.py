"""MosaicML's Composer: the state of the training loader in checkpoints."""

from __future__ import annotations

from typing import Any

from composer import Callback

from energize.errors import StateError
from energize.loader import Loader


class ComposerLoaderState(Callback):  # type: ignore[misc]
    """Keeps the state of the training loader in the checkpoints of a Trainer.

    It sets `state.dataset_resumption`, so Composer reads no batch to skip it, whatever
    `spin_dataloaders` is.

    Args:
        loader: The `train_dataloader` of the Trainer.
    """

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader."""
        return {"loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any], *_: Any) -> None:
        """Load the state of the loader."""
        self.loader.load_state_dict(state["loader"])

    def fit_start(self, state: Any, logger: Any) -> None:
        """Raise `StateError` for a checkpoint without a state of the loader."""
        if int(state.timestamp.batch) and not self.loader.has_started:
            raise StateError(
                "Composer resumes a run, and its checkpoint has no state of the "
                "loader. Save it with ComposerLoaderState"
            )
        state.dataset_resumption["train"] = True
