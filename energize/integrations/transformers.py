"""The Trainer of transformers, over loaders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from energize.core.loss_weights import WEIGHTS, counted
from energize.core.means import TokenMean
from energize.errors import ConfigError, StateError
from energize.integrations.accelerate import AccelerateLoader, gather_real
from energize.loader import Loader

_FILE = "energize_loader.json"
_NO_ARGUMENTS = ("labels", WEIGHTS)
"""Items of batches of which a model need not know."""


class LoaderTrainer(Trainer):
    """A Trainer that trains and evaluates on loaders, and resumes exactly.

    Each checkpoint folder has the state of the training loader, which
    `train(resume_from_checkpoint=...)` loads; no batch is read to be skipped.
    Evaluation counts real samples only. Combine it with a Trainer of your own: `class
    MyTrainer(LoaderTrainer, SomeTrainer)`.

    Args:
        *args: As those of `Trainer`.
        train_loader: The loader to train on, or None for a `train_dataset`.
        token_mean: How the mean of the training loss counts tokens, as of
            `token_weights`: over accumulated batches and ranks, with the weights of
            samples and messages. None for the loss of the model.
        **options: As those of `Trainer`. `eval_dataset` is a loader of the role "eval",
            or a dict of them.

    Raises:
        ConfigError: For `token_mean` beside another loss.

    Example:
        >>> from energize import ListSource, get_loader
        >>> train = get_loader(ListSource([1, 2]))
        >>> LoaderTrainer.__init__.__kwdefaults__["train_loader"] is None
        True
    """

    def __init__(
        self,
        *args: Any,
        train_loader: Loader[Any] | None = None,
        token_mean: Literal["tokens", "samples", "sqrt_tokens"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.train_loader = train_loader
        self.token_mean = None if token_mean is None else TokenMean(token_mean)
        if token_mean is not None:
            self.loss_is_scaled_for_ga = True
            if self.compute_loss_func or self.label_smoother:
                raise ConfigError(
                    "LoaderTrainer: token_mean computes the loss, so compute_loss_func "
                    "and label_smoothing_factor have no effect. Remove them"
                )
        self._evaluated: Any = None
        self._reads_loader = False
        if train_loader is not None:
            self.args.ignore_data_skip = (
                True  # the state of the loader has the position
            )
            self.add_callback(TrainerLoaderState(train_loader))

    def get_train_dataloader(self) -> Any:
        """Return the training loader."""
        if self.train_loader is None:
            return super().get_train_dataloader()
        return self.train_loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of `eval_dataset`: a loader, or its name in the dict."""
        loader: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(loader, str):
            named: Any = self.eval_dataset
            loader = named[loader]
        if isinstance(loader, Loader):
            return loader
        return super().get_eval_dataloader(eval_dataset)

    def train(
        self, resume_from_checkpoint: Any = None, *args: Any, **options: Any
    ) -> Any:
        """Train; resume the loader as well if a checkpoint is given.

        Raises:
            StateError: If the checkpoint has no state of the loader.
        """
        folder = resume_from_checkpoint
        if folder is True:
            find: Any = get_last_checkpoint
            folder = find(self.args.output_dir)
        if folder and self.train_loader is not None:
            file = Path(folder, _FILE)
            if not file.exists():
                raise StateError(
                    f"{file} is missing: the checkpoint has no state of the loader. "
                    "Save it with LoaderTrainer"
                )
            self.train_loader.load_state_dict(json.loads(file.read_text()))
        return super().train(resume_from_checkpoint, *args, **options)

    def get_batch_samples(self, *args: Any) -> Any:
        """Return the micro batches of a step, and the number of their tokens."""
        micro_batches, count = super().get_batch_samples(*args)
        if self.token_mean is not None and micro_batches:
            self.token_mean.begin(micro_batches)
        return micro_batches, count

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of a batch; in training, its part of `token_mean`."""
        if self.token_mean is None or not model.training:
            return super().compute_loss(
                model, inputs, return_outputs, num_items_in_batch
            )
        outputs = model(
            **{name: inputs[name] for name in inputs if name not in _NO_ARGUMENTS}
        )
        loss = self.token_mean(outputs.logits, inputs)
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, dataloader: Any, *args: Any, **options: Any) -> Any:
        """Evaluate; of a loader the real samples only."""
        self._reads_loader = isinstance(dataloader, Loader)
        if self._reads_loader:  # Trainer sets its own function after each evaluation
            self.gather_function = self._gather_real
            if self.args.batch_eval_metrics:  # asks Accelerate for the last step
                dataloader = AccelerateLoader(dataloader, self.accelerator)
        return super().evaluation_loop(dataloader, *args, **options)

    def prediction_step(
        self, model: Any, inputs: Any, *args: Any, **options: Any
    ) -> Any:
        """Predict a batch, and note which of its rows are real.

        Raises:
            ConfigError: If a batch is larger than `per_device_eval_batch_size`.
        """
        if self._reads_loader:
            rows = counted(inputs)
            if rows > self.args.eval_batch_size:  # a loss is repeated as often
                raise ConfigError(
                    f"a batch has {rows} samples. Set per_device_eval_batch_size={rows}"
                )
            self._evaluated = inputs
        return super().prediction_step(model, inputs, *args, **options)

    def _gather_real(self, tensors: Any) -> Any:
        return gather_real(self.accelerator, tensors, self._evaluated)


class TrainerLoaderState(TrainerCallback):
    """Writes the state of a loader into each checkpoint folder.

    Args:
        loader: The loader that is trained on.

    Example:
        >>> from energize import ListSource, get_loader
        >>> callback = TrainerLoaderState(get_loader(ListSource("abc")))
    """

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the state: all ranks collect it, one writes it."""
        saved = self.loader.state_dict()
        if args.should_save:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (folder / _FILE).write_text(json.dumps(saved))
