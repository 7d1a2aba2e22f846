"""A task encoder for several questions about an image, and the loss of each answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import Any, Literal

import torch
from torch.nn.functional import cross_entropy, pad

from energize.core.checks import checked_choice
from energize.core.turns import IMAGE, Turn
from energize.errors import ConfigError, DataError
from energize.task.model_packing import ModelPacking
from energize.task.ready import IGNORED, ProcessorTaskEncoder

_BRANCHES = "branches"
_FIRST_IMAGES = re.compile(rf"(?:{IMAGE}\s*)*")


class QuestionsTaskEncoder(ProcessorTaskEncoder):
    """Encode several questions about an image, with the image once.

    The questions are the turns of a `ConversationSample`. All answers are learned;
    `answer_losses` returns the loss of each. Other samples are encoded as by
    `ProcessorTaskEncoder`.

    Args:
        processor: A processor of transformers, or a tokenizer for data without images.
        questions: "turns" has the questions one after another, in one conversation.
            "separate" hides questions and answers from each other, as if each were a
            sample with the image: they share the tokens up to the first that differs.
            It needs `packing=ModelPacking(model)`, for sdpa or eager attention.
        **options: Further arguments of `ProcessorTaskEncoder`.

    Raises:
        ConfigError: For separate questions without a model that accepts their masks, or
            an invalid option. Calls raise `DataError` for a question without an
            answer, or if separate questions have images in a later turn.

    Example:
        >>> try:
        ...     QuestionsTaskEncoder("Qwen/Qwen2-VL-2B-Instruct")
        ... except ConfigError as error:
        ...     print(str(error)[:60])
        ProcessorTaskEncoder needs a processor or a tokenizer of tra
    """

    def __init__(
        self,
        processor: Any,
        *,
        questions: Literal["turns", "separate"] = "turns",
        **options: Any,
    ) -> None:
        super().__init__(processor, **options)
        choices = ("turns", "separate")
        checked_choice(questions, "questions", choices, "QuestionsTaskEncoder")
        self.branching: ModelPacking | None = None
        if questions == "turns":
            return
        self.branching = self.model_packing
        if self.branching is None or not self.branching.takes_masks:
            raise ConfigError(
                "separate questions need a mask for a model with sdpa or eager "
                "attention, without windows and without blocks for images, got "
                f"packing={self.branching}. Pass packing=ModelPacking(model) for such "
                "a model, or questions='turns'"
            )

    def encode_sample(self, sample: Any) -> Any:
        """Return the questions of an image as tokens, with the image once."""
        if self.branching is None:
            return super().encode_sample(sample)
        rows = []
        for part in _separated(sample):
            rows.append(super().encode_sample(part))
        branched = self._branched(rows)
        self._check_length(sample, branched.tokens)
        return branched

    def _branched(self, rows: list[Any]) -> Any:
        """Return the common tokens of rows, followed by the rest of each row."""
        columns = [row.per_token for row in rows]
        tokens = zip(*(row["input_ids"].tolist() for row in columns), strict=False)
        shared = sum(1 for _ in takewhile(lambda ids: len({*ids}) == 1, tokens))
        for row in columns:  # the token before an answer is part of the rest
            shared = min(shared, int((row["labels"] != IGNORED).nonzero()[0]) - 1)
        image = getattr(self.processor, "image_token_id", None)
        if any(image in row["input_ids"][shared:] for row in columns if image):
            raise DataError(
                "separate questions share the image, but the chat template writes it "
                "after a question. Put the image first, or use questions='turns'"
            )
        per_token = {
            name: torch.cat([common[:shared], *(row[name][shared:] for row in columns)])
            for name, common in columns[0].items()
        }
        lengths = torch.tensor([shared, *(row.tokens - shared for row in rows)])
        per_token[_BRANCHES] = torch.arange(len(lengths)).repeat_interleave(lengths)
        return replace(rows[0], tokens=int(lengths.sum()), per_token=per_token)

    def _in_a_row(self, samples: list[Any]) -> dict[str, Any]:
        """Return samples end to end; separate questions continue the common tokens."""
        values = super()._in_a_row(samples)
        if self.branching is None:
            return values
        [branches] = values.pop(_BRANCHES)
        hidden = [_hidden_tokens(sample.per_token[_BRANCHES]) for sample in samples]
        values["position_ids"] = values["position_ids"] - torch.cat(hidden)
        lengths = torch.tensor([sample.tokens for sample in samples])
        numbers = torch.arange(len(samples)).repeat_interleave(lengths)
        is_visible = (branches == 0) | (branches == branches[:, None])
        mask = (is_visible & (numbers == numbers[:, None])).tril()
        return values | {"attention_mask": self.branching.attention_mask(mask)}


def _hidden_tokens(branches: torch.Tensor) -> torch.Tensor:
    """Return the number of tokens in earlier branches, for each token of a sample."""
    lengths = branches.bincount()
    lengths[0] = 0
    return (lengths.cumsum(0) - lengths)[branches]


def _separated(sample: Any) -> Iterator[Any]:
    """Yield a conversation for each answer, with the images of the first question."""
    turns: list[Turn] = getattr(sample, "turns", [])
    head = [turn for turn in turns if turn.role == "system"]
    rest = turns[len(head) :]
    if not rest:
        yield sample
        return
    images = "".join(_FIRST_IMAGES.findall(rest[0].text)[:1])
    ends = [number + 1 for number, turn in enumerate(rest) if turn.role == "assistant"]
    for start, end in pairwise(dict.fromkeys([0, *ends, len(rest)])):
        part = rest[start:end]
        if start:
            part[0] = replace(part[0], text=images + part[0].text)
        yield replace(sample, turns=[*head, *part])


def answer_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of the tokens of each answer of a batch.

    An answer is a run of learned tokens, in padded and in packed rows. The mean of the
    result gives each answer the same weight, whatever its length.

    Args:
        logits: Logits of the model, shape (rows, tokens, vocabulary).
        labels: Labels of the batch, shape (rows, tokens), -100 where none is learned.

    Returns:
        Losses in the order of the answers, shape (answers,).

    Example:
        >>> labels = torch.tensor([[-100, 1, 1, -100, 2]])
        >>> answer_losses(torch.zeros(1, 5, 4), labels)
        tensor([1.3863, 1.3863])
    """
    targets = labels[:, 1:]
    scores = logits[:, :-1].float().transpose(1, 2)
    losses = cross_entropy(scores, targets, ignore_index=IGNORED, reduction="none")
    learned = targets != IGNORED
    starts = learned & ~pad(learned[:, :-1], (1, 0))
    numbers = starts.flatten().cumsum(0)[learned.flatten()] - 1
    counts = numbers.bincount()
    sums = losses.new_zeros(len(counts)).index_add(0, numbers, losses[learned])
    return sums / counts
