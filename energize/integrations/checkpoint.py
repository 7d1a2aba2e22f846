"""Loaders in torch.distributed.checkpoint."""

from __future__ import annotations

import json
from typing import Any

from energize.loader import Loader


class CheckpointedLoaders:
    """Several loaders as one entry at the top of a checkpoint's dict.

    torch.distributed.checkpoint calls `state_dict` and `load_state_dict` of objects at
    the top of the dict only, and pickles the others. A single loader can be an entry
    itself: `{"model": model, "loader": loader}`.

    Args:
        **loaders: The loaders by name.

    Example:
        >>> from energize import ListSource, get_loader
        >>> texts, images = get_loader(ListSource("abc")), get_loader(ListSource("de"))
        >>> saved = CheckpointedLoaders(texts=texts, images=images).state_dict()
        >>> list(saved)
        ['texts', 'images']
    """

    def __init__(self, **loaders: Loader[Any]) -> None:
        self.loaders = loaders

    def state_dict(self) -> dict[str, str]:
        """Return the state of each loader as JSON; all ranks call it together."""
        return {
            name: json.dumps(loader.state_dict())
            for name, loader in self.loaders.items()
        }

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Load the state of each loader.

        Args:
            state: The value of `state_dict`, from any number of ranks.

        Raises:
            StateError: If a state does not fit, see `Loader.load_state_dict`.
        """
        for name, loader in self.loaders.items():
            loader.load_state_dict(json.loads(state[name]))
