"""PyTorch Lightning: exact states of training loaders, and means of token losses.

Fabric needs no adapter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from pytorch_lightning import Callback

from energize.core.means import TokenMean, token_weights, total_weight
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


class LightningTokenMean(Callback):
    """Makes gradients those of the mean loss of tokens over a global batch.

    Lightning passes one micro batch at a time, so a call returns a sum. Before a step
    of the optimizer, and before gradients are clipped, they are divided by the weights
    of all micro batches and ranks. Call it in `training_step` only:

        return self.token_mean(self.model(**batch).logits, batch)

    and pass it to the Trainer, in `callbacks`.

    Args:
        mean: As of `token_weights`.

    Attributes:
        last_mean: The mean of the last step; None before the first one.

    Raises:
        ConfigError: For another `mean`.

    Example:
        >>> callback = LightningTokenMean("samples")  # Trainer(callbacks=[callback])
        >>> callback.last_mean is None
        True
    """

    def __init__(
        self, mean: Literal["tokens", "samples", "sqrt_tokens"] = "tokens"
    ) -> None:
        self.last_mean: float | None = None
        self._mean = TokenMean(mean)
        self._weights = list[torch.Tensor]()
        self._losses = list[torch.Tensor]()

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Undo the division by the number of accumulated batches."""
        self._mean.total = 1 / trainer.accumulate_grad_batches

    def __call__(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        """Return the loss of a micro batch, for `training_step`.

        Args:
            logits: As of `TokenMean`.
            batch: The batch.

        Returns:
            A scalar.
        """
        loss = self._mean(logits, batch)
        self._losses.append(loss.detach())
        self._weights.append(token_weights(batch, self._mean.mean))
        return loss

    def on_before_optimizer_step(
        self, trainer: Any, _: Any, optimizer: torch.optim.Optimizer
    ) -> None:
        """Divide the gradients by the weights of the global batch."""
        total = float(total_weight(self._weights))
        summed = float(total_weight(self._losses))
        self._weights.clear()
        self._losses.clear()
        scale = 1 / total if total else 0.0
        more = trainer.world_size * trainer.accumulate_grad_batches
        self.last_mean = summed * scale / more
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)


def _leaves(collection: Any) -> Iterable[Any]:
    """Return the loaders in nested dicts and lists."""
    if isinstance(collection, Mapping):
        collection = list(collection.values())
    if not isinstance(collection, Sequence) or isinstance(collection, str):
        return [collection]
    return [leaf for entry in collection for leaf in _leaves(entry)]
