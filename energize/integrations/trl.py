"""TRL's DPOTrainer, over loaders."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers import ProcessorMixin
from trl import DPOTrainer

from energize.errors import ConfigError
from energize.integrations.transformers import LoaderTrainer
from energize.loader import Loader

_STAND_IN = {"prompt": "a", "chosen": " b", "rejected": " c"}


class LoaderDPOTrainer(LoaderTrainer, DPOTrainer):  # type: ignore[misc]
    """A DPOTrainer that trains on a loader of preference pairs, and resumes exactly.

    The batches are those of `PreferenceTaskEncoder`. DPOTrainer gets a dataset of one
    row instead of a `train_dataset`, which it inspects and does not train on.

    Args:
        *args: As those of `DPOTrainer`.
        train_loader: The loader to train on.
        **options: As those of `DPOTrainer`, with `processing_class`. `ref_model` is
            needed for a model that is passed as an object. `eval_dataset` is a loader
            of the role "eval", or a dict of them.

    Raises:
        ConfigError: For `precompute_ref_log_probs`.
    """

    def __init__(self, *args: Any, train_loader: Loader[Any], **options: Any) -> None:
        if getattr(options.get("args"), "precompute_ref_log_probs", False):
            raise ConfigError(
                "LoaderDPOTrainer computes the reference in each step. Set "
                "precompute_ref_log_probs=False"
            )
        has_images = isinstance(options.get("processing_class"), ProcessorMixin)
        row: dict[str, Any] = _STAND_IN | ({"images": []} if has_images else {})
        data = Dataset.from_list([row])
        evaluated = options.get("eval_dataset")
        options["eval_dataset"] = None if evaluated is None else data
        options["train_dataset"] = data
        super().__init__(*args, train_loader=train_loader, **options)
        self.eval_dataset = evaluated
