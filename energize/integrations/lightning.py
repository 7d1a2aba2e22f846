"""PyTorch Lightning: exact states of training loaders. Fabric needs no adapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytorch_lightning import Callback

from energize.errors import ConfigError
from energize.loader import Loader


class LightningLoaderState(Callback):
    """Counts a batch in the loader's state when Lightning has trained on it.

    Lightning saves and restores the states of loaders itself. It fetches one batch
    ahead of a loader without a length, so a state that counts delivered batches would
    skip one. With `overfit_batches` each epoch starts at the first batch.

    It moves to the front of `trainer.callbacks`, so that callbacks that save a
    checkpoint in `on_train_batch_end` have the batch counted.

    Args:
        *loaders: The loaders that `trainer.fit` trains on.

    Example:
        >>> from energize import ListSource, get_loader
        >>> loader = get_loader(ListSource("abc"))
        >>> callback = LightningLoaderState(loader)  # Trainer(callbacks=[callback])
        >>> loader.requires_confirmation
        True
    """

    def __init__(self, *loaders: Loader[Any]) -> None:
        self.loaders = loaders
        for loader in loaders:
            loader.require_confirmation()

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Move to the front of the callbacks."""
        trainer.callbacks.remove(self)
        trainer.callbacks.insert(0, self)

    def on_fit_start(self, *_: Any) -> None:
        """Return to the first batch that an interrupted fit did not train on."""
        for loader in self.loaders:
            loader.discard_unconfirmed()

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Raise `ConfigError` for a loader that this fit does not train on."""
        trained = {id(loader) for loader in _leaves(trainer.train_dataloader)}
        if not trained.issuperset(map(id, self.loaders)):
            raise ConfigError(
                "LightningLoaderState has a loader that this fit does not train on. "
                "Give it the loaders of trainer.fit"
            )

    def on_train_batch_end(self, *_: Any) -> None:
        """Count the batch of this step."""
        for loader in self.loaders:
            loader.confirm()

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """Return to the first batch without a step, or to the first of all."""
        for loader in self.loaders:
            if trainer.overfit_batches:
                loader.rewind()
            else:
                loader.discard_unconfirmed()


def _leaves(collection: Any) -> Iterable[Any]:
    """Return the loaders in nested dicts and lists."""
    if isinstance(collection, Mapping):
        collection = list(collection.values())
    if not isinstance(collection, Sequence) or isinstance(collection, str):
        return [collection]
    return [leaf for entry in collection for leaf in _leaves(entry)]
