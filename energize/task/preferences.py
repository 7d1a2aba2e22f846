"""A task encoder for pairs of a preferred and a rejected answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from energize.core.samples import ConversationSample, PreferenceSample, Sample
from energize.errors import ConfigError, DataError
from energize.task.ready import IGNORED, ProcessorBatch, ProcessorTaskEncoder


@dataclass(kw_only=True)
class PreferenceBatch(ProcessorBatch):
    """Pairs as TRL's `DPOTrainer` takes them: all preferred answers, then all others.

    The first dimension of the items is twice the number of samples: row i has the
    prompt and the preferred answer of sample i, row i + samples the rejected answer.
    Images are repeated alike. `labels` is None, so it is not an item.

    Args:
        completion_mask: 1 for tokens of answers, 0 elsewhere; int64 of the shape of
            `input_ids`.
    """

    completion_mask: torch.Tensor
    labels: torch.Tensor | None = None  # type: ignore[assignment]  # TRL adds labels

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments of the model, without `completion_mask`."""
        return {name: self[name] for name in self if name != "completion_mask"}

    def log_probs(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities of the preferred and the rejected answers.

        Args:
            logits: Logits of the model, shape (2 * samples, tokens, vocabulary).

        Returns:
            Sums over the tokens of an answer, each of shape (samples,).

        Example:
            >>> batch = PreferenceBatch(
            ...     __key__=["0"],
            ...     input_ids=torch.tensor([[0, 1], [0, 2]]),
            ...     completion_mask=torch.tensor([[0, 1], [0, 1]]),
            ... )
            >>> chosen, rejected = batch.log_probs(torch.zeros(2, 2, 4))
            >>> chosen.exp(), rejected.exp()
            (tensor([0.2500]), tensor([0.2500]))
        """
        scores = logits[:, :-1].float().log_softmax(-1)
        tokens = scores.gather(-1, self.input_ids[:, 1:, None])[..., 0]
        sums = (tokens * self.completion_mask[:, 1:]).sum(-1)
        chosen, rejected = sums.chunk(2)
        return chosen, rejected


@dataclass(kw_only=True, slots=True)
class _EncodedPair(Sample):
    """The encoded conversations with the preferred and with the rejected answer."""

    rows: list[Any]
    tokens: int


class PreferenceTaskEncoder(ProcessorTaskEncoder):
    """Encode pairs of a preferred and a rejected answer, with images, as for DPO.

    Prompt and answers pass the chat template of the processor, as turns of the user and
    of the assistant if they are texts. Batches are the input of TRL's `DPOTrainer` and
    of a loop with `PreferenceBatch.log_probs`. Pairs are padded, not packed.

    Args:
        processor: A processor of transformers, or a tokenizer for data without images.
        **options: Further arguments of `ProcessorTaskEncoder`; `max_length` holds for
            the prompt with either answer.

    Raises:
        ConfigError: For packing, or an invalid option. Calls raise `DataError` for
            equal answers, and `ConfigError` for samples of other types.

    Example:
        >>> try:
        ...     PreferenceTaskEncoder("Qwen/Qwen2-VL-2B-Instruct")
        ... except ConfigError as error:
        ...     print(str(error)[:60])
        ProcessorTaskEncoder needs a processor or a tokenizer of tra
    """

    def __init__(
        self,
        processor: Any,
        *,
        batch_type: type[PreferenceBatch] = PreferenceBatch,
        **options: Any,
    ) -> None:
        super().__init__(processor, batch_type=batch_type, **options)
        if self.packing:
            raise ConfigError(
                "PreferenceTaskEncoder does not pack: a batch has a row for each "
                "answer, as DPOTrainer needs it. Remove packing="
            )

    def encode_sample(self, sample: Any) -> Any:
        """Return a pair as two conversations with a common prompt."""
        if not isinstance(sample, PreferenceSample):
            raise ConfigError(
                "PreferenceTaskEncoder encodes only PreferenceSample, with a preferred "
                "and a rejected answer, got a "
                f"{type(sample).__name__}. If the data have both answers, name their "
                "columns: sample_type='PreferenceSample', field_map={'prompt': ..., "
                "'chosen': ..., 'rejected': ...}"
            )
        if sample.chosen == sample.rejected:
            raise DataError(
                f"chosen and rejected are the same answer, {sample.chosen!r:.80}, so "
                "there is no preference to learn. Remove the pair, or correct one "
                "answer"
            )
        prompt = [replace(turn, learned=False) for turn in sample.prompt]
        rows = []
        for answer in (sample.chosen, sample.rejected):
            conversation = ConversationSample.derive_from(
                sample, turns=[*prompt, *answer], images=sample.images
            )
            rows.append(super().encode_sample(conversation))
        return _EncodedPair.derive_from(
            sample, rows=rows, tokens=max(row.tokens for row in rows)
        )

    def batch(self, samples: list[Any]) -> Any:
        """Return the preferred answers of pairs, then the rejected ones, padded."""
        both = [pair.rows[side] for side in (0, 1) for pair in samples]
        rows = self._rows(both)
        learned = rows.pop("labels") != IGNORED
        return self.batch_type.from_samples(
            samples, completion_mask=learned.long(), **rows
        )
