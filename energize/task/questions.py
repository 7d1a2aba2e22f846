"""A task encoder for several questions about an image, and the loss of each answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from os.path import commonprefix
from typing import Any, Literal

import torch
from torch.nn.functional import cross_entropy, pad

from energize.core.checks import checked_choice
from energize.core.samples import ConversationSample, VQASample
from energize.core.turns import IMAGE, Turn
from energize.errors import ConfigError, DataError
from energize.task.ready import IGNORED, ProcessorTaskEncoder

_BRANCHES = "branches"
_FIRST_IMAGES = re.compile(rf"(?:{IMAGE}\s*)*")


class QuestionsTaskEncoder(ProcessorTaskEncoder):
    """Encode several questions about an image; the image is processed by the model once.

    A `VQASample` with lists of questions and answers, or a `ConversationSample`, is one
    sample. All answers are learned; `answer_losses` returns the loss of each. Other
    samples are encoded as by `ProcessorTaskEncoder`.

    Args:
        processor: A processor of transformers, or a tokenizer for data without images.
        questions: "turns" asks the questions one after another, in one conversation.
            "separate" hides questions and answers from each other, as if each were a
            sample with the image: they share the tokens up to the first that differs.
            It needs `packing=ModelPacking(model)`, for sdpa or eager attention.
        **options: Further arguments of `ProcessorTaskEncoder`.

    Raises:
        ConfigError: For separate questions without a model that accepts their masks, or
            an invalid option. Calls raise `DataError` if questions and answers differ
            in number, or if separate questions have images in a later turn.

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
        self.is_separate = questions == "separate"
        packing = self.model_packing
        if self.is_separate and (packing is None or not packing.takes_masks):
            raise ConfigError(
                "separate questions need a mask for a model with sdpa or eager "
                "attention, without windows and without blocks for images, got "
                f"{packing}. Pass packing=ModelPacking(model) for such a model, or "
                "questions='turns'"
            )

    def encode_sample(self, sample: Any) -> Any:
        """Return the questions of an image as tokens, with the image once."""
        conversation = _conversation_of(sample)
        if not self.is_separate:
            return super().encode_sample(conversation)
        rows = []
        for part in _separated(conversation):
            rows.append(super().encode_sample(part))
        branched = self._branched(rows)
        if self.max_length is not None and branched.tokens > self.max_length:
            reason = f"has {branched.tokens} tokens, and max_length is less"
            skip = self.too_long == "skip"
            self._leave_out(sample, reason, "raise it", "too_long='skip'", skip=skip)
        return branched

    def _branched(self, rows: list[Any]) -> Any:
        """Return the common tokens of rows, followed by the rest of each row."""
        columns = [row.per_token for row in rows]
        shared = len(commonprefix([row["input_ids"].tolist() for row in columns]))
        for row in columns:  # the token before an answer is part of the rest
            shared = min(shared, int((row["labels"] != IGNORED).nonzero()[0]) - 1)
        image = getattr(self.processor, "image_token_id", None)
        if any(image in row["input_ids"][shared:].tolist() for row in columns):
            raise DataError(
                "separate questions share the image, but the chat template writes it "
                "after a question. Put the image first, or use questions='turns'"
            )
        per_token = {
            name: torch.cat(
                [values[:shared], *(row[name][shared:] for row in columns)]
            )
            for name, values in columns[0].items()
        }
        lengths = [shared, *(row.tokens - shared for row in rows)]
        numbers = torch.arange(len(lengths))
        per_token[_BRANCHES] = numbers.repeat_interleave(torch.tensor(lengths))
        return replace(rows[0], tokens=sum(lengths), per_token=per_token)

    def _in_a_row(self, samples: list[Any]) -> dict[str, Any]:
        """Return samples end to end; separate questions continue the common tokens."""
        values = super()._in_a_row(samples)
        if self.model_packing is None or not self.is_separate:
            return values
        branches = values.pop(_BRANCHES)[0]
        skipped = [_tokens_between(sample.per_token[_BRANCHES]) for sample in samples]
        values["position_ids"] = values["position_ids"] - torch.cat(skipped)
        lengths = torch.tensor([sample.tokens for sample in samples])
        numbers = torch.arange(len(samples)).repeat_interleave(lengths)
        is_visible = (branches == 0) | (branches == branches[:, None])
        mask = (is_visible & (numbers == numbers[:, None])).tril()
        return values | {"attention_mask": self.model_packing.attention_mask(mask)}


def _tokens_between(branches: torch.Tensor) -> torch.Tensor:
    """Return the tokens of earlier branches for each token, which it does not see."""
    lengths = branches.bincount()
    lengths[0] = 0
    return (lengths.cumsum(0) - lengths)[branches]


def _conversation_of(sample: Any) -> Any:
    """Return lists of questions and answers as a conversation, others unchanged."""
    if not isinstance(sample, VQASample) or isinstance(sample.context, str):
        return sample
    questions: list[Any] = list(sample.context or [])
    answers: list[Any] = list(sample.answers or [])
    if len(questions) != len(answers):
        raise DataError(
            f"the image has {len(questions)} questions and {len(answers)} answers. "
            "Write an answer for each question"
        )
    turns: list[Any] = []
    for question, answer in zip(questions, answers, strict=True):
        turns.append({"role": "user", "content": question})
        turns.append({"role": "assistant", "content": answer})
    images = [] if sample.image is None else [sample.image]
    if images and turns and IMAGE not in str(turns):
        turns[0] = {"role": "user", "content": f"{IMAGE}{questions[0]}"}
    return ConversationSample.derive_from(sample, turns=turns, images=images)


def _separated(sample: Any) -> Iterator[Any]:
    """Yield a conversation for each answer, with the images of the first question."""
    if not isinstance(sample, ConversationSample):
        yield sample
        return
    count = sum(turn.role == "system" for turn in sample.turns[:1])
    head = sample.turns[:count]
    first = sample.turns[count].text if sample.turns[count:] else ""
    images = _FIRST_IMAGES.match(first)
    shown = images[0] if images else ""
    part: list[Turn] = []
    for turn in sample.turns[count:]:
        if not part and not turn.text.startswith(shown):
            turn = replace(turn, text=shown + turn.text)
        part.append(turn)
        if turn.role == "assistant":
            yield ConversationSample.derive_from(
                sample, turns=[*head, *part], images=sample.images, tools=sample.tools
            )
            part = []
    if part:
        raise DataError(f"the last question has no answer: {part[-1].text!r:.80}")


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
