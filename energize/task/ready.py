"""A ready task encoder for processors and tokenizers of transformers."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, compress
from operator import gt
from typing import Any, Literal, NoReturn

import torch
from torch.nn.functional import pad

from energize.core.checks import checked_choice, checked_whole
from energize.core.dataset import Dataset
from energize.core.ignored import log_once
from energize.core.loss_weights import LOSS_WEIGHTS
from energize.core.records import type_fields
from energize.core.samples import (
    CaptioningSample,
    ConversationSample,
    Sample,
    TextSample,
    VQASample,
)
from energize.core.turns import (
    IMAGE,
    REASONING,
    TURN_KEYS,
    Turn,
    checked_turns,
    messages_of,
)
from energize.errors import ConfigError, DataError, SampleError, SkipSample
from energize.packing.packer import Packer
from energize.task.decode import SampleDecoder
from energize.task.encoder import TaskEncoder
from energize.task.hooks import Batch, concat_pad, default
from energize.task.model_packing import (
    AXES,
    ModelPacking,
    boundaries,
    grid_positions,
    text_positions,
    uses_three_axes,
)
from energize.task.planning import PackPlan

IGNORED = -100
"""Label of tokens without a loss, as models of transformers expect it."""

_GENERATION = re.compile(r"\{%-?\s*generation\b")
_MARKER = "\ue000"  # a letter that no template and no text has
_REPLACED = "text_replacement_offsets"
_REPLACING = "get_text_with_replacements"
_PER_TOKEN = (
    "attention_mask",
    "token_type_ids",
    "mm_token_type_ids",
    "cross_attention_mask",
)
_NOT_PACKED = {"image_grid_thw", "mm_token_type_ids"}
_OF_MEDIA = ("pixel_", "image_", "video_")


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How `ProcessorTaskEncoder` pads the samples of a batch.

    Args:
        side: Side on which samples are padded; by default that of the tokenizer.
        multiple_of: The padded length is a multiple of this number.

    Raises:
        ConfigError: For an unknown side, or a number below 1.
    """

    side: Literal["left", "right"] | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        checked_whole(self.multiple_of, "Padding: multiple_of", 1)
        if self.side is not None:
            checked_choice(self.side, "side", ("left", "right"), "Padding")


@dataclass(frozen=True, kw_only=True)
class TurnKeys:
    """The keys of turns that `ProcessorTaskEncoder` accepts.

    Args:
        extra: Keys in addition to those of `Turn`; they are passed to the template.
        unknown: "error" raises for a turn with other keys; "skip" leaves the sample
            out.

    Raises:
        ConfigError: For another value of `unknown`.
    """

    extra: Collection[str] = ()
    unknown: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        checked_choice(self.unknown, "unknown", ("error", "skip"), "TurnKeys")


_DEFAULT_PADDING = Padding()
_DEFAULT_TURN_KEYS = TurnKeys()


@dataclass(kw_only=True)
class ProcessorBatch(Batch):
    """The arguments of a model of transformers; fields of None are not items.

    `input_ids`, `labels`, `attention_mask`, `position_ids` and type ids have the shape
    (samples, tokens), or (1, tokens) for packed rows. In packed rows, `position_ids`
    restart for each sample. For Qwen2-VL, Qwen2.5-VL and Qwen3-VL their shape is
    (4, 1, tokens): the number of the token in its sample, then time, height and width.
    For images of Gemma 3, `attention_mask` has a mask for each type of layer.
    `cu_seqlens` (the items `cu_seq_lens_q` and `cu_seq_lens_k`) is int32: the start of
    each sample of a packed row, and the end of the last one.

    `loss_weights` is how much each learned token counts in `token_weights` and
    `TokenMean`; None if all count 1. It is not an item, for models do not take it.

    A processor with further outputs needs a subclass with fields of these names.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None
    token_type_ids: torch.Tensor | None = None
    mm_token_type_ids: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    pixel_values: torch.Tensor | None = None
    pixel_attention_mask: torch.Tensor | None = None
    image_grid_thw: torch.Tensor | None = None
    image_sizes: torch.Tensor | None = None
    batch_num_images: torch.Tensor | None = None
    cu_seq_lens_q: torch.Tensor | None = None
    cu_seq_lens_k: torch.Tensor | None = None
    max_length_q: int | None = None
    max_length_k: int | None = None
    use_cache: bool | None = None
    loss_weights: torch.Tensor | None = None

    @property
    def cu_seqlens(self) -> torch.Tensor | None:
        """Offsets of the samples of a packed row; vision towers take items so named."""
        return self.cu_seq_lens_q

    def __iter__(self) -> Iterator[str]:
        return (
            name
            for name in super().__iter__()
            if name != LOSS_WEIGHTS and getattr(self, name) is not None
        )


@dataclass(kw_only=True, slots=True)
class _Encoded(Sample):
    """Tensors of shape (tokens,), and media to join along dimension 0.

    `tokens` is the number of tokens, for `measure="tokens"` of planned packs.
    """

    tokens: int
    per_token: dict[str, torch.Tensor]
    media: dict[str, torch.Tensor]


@dataclass(kw_only=True, slots=True)
class _Pack(Sample):
    samples: list[_Encoded]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"its {name} is not text: {value!r:.80}")
    return value


def _is_learned(turn: Turn) -> bool:
    return turn.role == "assistant" if turn.learned is None else turn.learned


def _tokens(sample: _Encoded) -> int:
    return sample.tokens


class ProcessorTaskEncoder(TaskEncoder[Any, Any, Any, Any]):
    """Encode conversations, captions, questions and texts for a model of transformers.

    Conversations pass the chat template of the processor, images its placeholders. A
    `CaptioningSample` becomes a turn of the user, with the image and `prompt`, and the
    caption as answer. A `VQASample` becomes its question and the answer of the largest
    weight. A `TextSample` is a text without turns, which starts like every text of the
    tokenizer and ends with the end-of-sequence token. Images are turned upright.

    `labels` are the tokens of the turns of the assistant, and -100 elsewhere: the
    tokens that the template marks by `{% generation %}`, or the text that such a turn
    adds to the conversation. Placeholders of images are never learned. `train`, `loss`,
    `weight`, `loss_mask` or `masked` of a turn decide whether it is learned; `weight`,
    `loss_weight` and `loss_scale` may also be other numbers: how much it counts.

    Tools, tool calls and reasoning are passed to the chat template. If the template
    does not write one of them, or refuses the conversation, the sample is damaged.
    Samples are never cut.

    Args:
        processor: A processor of transformers, or a tokenizer for data without images.
        max_length: Tokens of a sample, and of a packed row, at most.
        too_long: "error" raises for longer samples; "skip" leaves them out, with one
            log message.
        packing: `ModelPacking(model)` joins the samples of a batch into one row without
            padding, with `position_ids` and `cu_seqlens`, for a model that is checked.
            True does so without the check. With `packing_buffer_size` of
            `get_train_dataset`, rows are filled up to `max_length`.
        padding: How samples are padded to the longest of a batch.
        prompt: Text of the user for a `CaptioningSample`.
        batch_type: The type of the batches, a subclass of `ProcessorBatch`.
        turn_keys: The accepted keys of turns.

    Raises:
        ConfigError: For a processor without a tokenizer, a model that looks ahead in
            answers (PaliGemma), or a tokenizer without a padding token. Calls raise it
            for a missing chat template, a template that does not show the turns of the
            assistant, and packing for a model that needs more than positions to
            separate samples. They raise `DataError` for a turn that the template leaves
            out.

    Example:
        >>> try:
        ...     ProcessorTaskEncoder("Qwen/Qwen2-VL-2B-Instruct")
        ... except ConfigError as error:
        ...     print(str(error)[:60])
        ProcessorTaskEncoder needs a processor or a tokenizer of tra
    """

    decoder = SampleDecoder(image_decode="pilrgb", orient=True)

    def __init__(
        self,
        processor: Any,
        *,
        max_length: int | None = None,
        too_long: Literal["error", "skip"] = "error",
        packing: bool | ModelPacking = False,
        padding: Padding = _DEFAULT_PADDING,
        prompt: str = "",
        batch_type: type[ProcessorBatch] = ProcessorBatch,
        turn_keys: TurnKeys = _DEFAULT_TURN_KEYS,
    ) -> None:
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.processor = processor
        if not callable(processor) or not hasattr(self.tokenizer, "pad_token_id"):
            raise ConfigError(
                "ProcessorTaskEncoder needs a processor or a tokenizer of "
                "transformers, as returned by AutoProcessor.from_pretrained(...), got "
                f"{processor!r:.80}"
            )
        if self.tokenizer.pad_token_id is None and not packing:
            raise ConfigError(
                f"{type(self.tokenizer).__name__} has no token for padding. Set "
                "tokenizer.pad_token = tokenizer.eos_token, or pass packing=True"
            )
        if "labels" in getattr(processor, "model_input_names", ()):
            raise ConfigError(
                f"{type(processor).__name__} makes labels itself, from suffix=, and "
                "its model attends ahead in all other text, including answers. Write "
                "an encoder of your own for it"
            )
        if max_length is not None:
            checked_whole(max_length, "ProcessorTaskEncoder: max_length", 1)
        if packing and padding.multiple_of != 1:
            raise ConfigError(
                "Padding(multiple_of=...) has no effect with packing=True, which does "
                "not pad. "
                "Remove one of them"
            )
        side: Any = padding.side or getattr(self.tokenizer, "padding_side", "right")
        checked_choice(too_long, "too_long", ("error", "skip"), "ProcessorTaskEncoder")
        checked_choice(side, "padding_side", ("left", "right"), "ProcessorTaskEncoder")
        self.turn_keys = turn_keys
        self.max_length = max_length
        self.too_long = too_long
        self.packing = bool(packing)
        self.model_packing = packing if isinstance(packing, ModelPacking) else None
        self.padding_side = side
        self.pad_to_multiple_of = padding.multiple_of
        self.prompt = prompt
        self.batch_type = batch_type

    def encode_sample(self, sample: Any) -> _Encoded:
        """Return a sample as tokens with labels, and its processed images."""
        encoding, weights = self._tokenized(sample)
        self._check_length(sample, encoding["input_ids"].shape[1])
        return _Encoded.derive_from(sample, **self._divided(encoding, weights))

    def _tokenized(self, sample: Any) -> tuple[dict[str, Any], torch.Tensor]:
        """Return the processed text of a sample, and the weights of its tokens."""
        if isinstance(sample, TextSample):
            return self._text_only(_text(sample.text, "text"))
        turns, media = self.turns_of(sample)
        media = list(map(as_bytes, media))
        self._check_turns(sample, turns, media)
        return self._conversation(turns, media, getattr(sample, "tools", []))

    def _check_length(self, sample: Sample, length: int) -> None:
        """Raise an error, or `SkipSample`, for more than `max_length` tokens."""
        if self.max_length is not None and length > self.max_length:
            reason = f"has {length} tokens, and max_length is {self.max_length}"
            skip = self.too_long == "skip"
            self._leave_out(sample, reason, "raise it", "too_long='skip'", skip=skip)

    def _text_only(self, text: str) -> tuple[dict[str, Any], torch.Tensor]:
        """Return the tokens of a text that ends with the token for the end, once."""
        end = self.tokenizer.eos_token or ""
        text = text.removesuffix(end)
        special = self._special(text)
        encoding = self._processed(text + end, [], add_special_tokens=special)
        if encoding["input_ids"][0, -2:].tolist() == 2 * [self.tokenizer.eos_token_id]:
            # The tokenizer adds the token for the end itself.
            encoding = self._processed(text, [], add_special_tokens=special)
        return encoding, torch.ones(encoding["input_ids"].shape[1])

    def _check_turns(
        self, sample: Sample, turns: Sequence[Turn], images: list[Any]
    ) -> None:
        if images and self.processor is self.tokenizer:
            raise ConfigError(
                f"the sample has {len(images)} images, but ProcessorTaskEncoder has a "
                "tokenizer, which cannot read images. Pass the processor of the model"
            )
        accepted = TURN_KEYS.union(self.turn_keys.extra)
        unknown = {name for turn in turns for name in turn.extra} - accepted
        if unknown:
            reason = f"has turns with unknown keys: {', '.join(sorted(unknown))}"
            remedy = "name keys that may stay in turn_keys=TurnKeys(extra=[...])"
            option = "turn_keys=TurnKeys(unknown='skip')"
            skip = self.turn_keys.unknown == "skip"
            self._leave_out(sample, reason, remedy, option, skip=skip)

    def _leave_out(
        self, sample: Sample, reason: str, remedy: str, option: str, *, skip: bool
    ) -> NoReturn:
        """Raise an error, or with `skip`, `SkipSample`; logs the first one."""
        if not skip:
            raise SampleError(
                f"ProcessorTaskEncoder: the sample {reason}; {remedy}, or skip these "
                "samples with "
                f"{option}"
            )
        text = f"sample {sample.__key__!r} {reason}: left out, as others will be"
        log_once("ProcessorTaskEncoder", option, text, logging.WARNING)
        raise SkipSample(reason)

    def turns_of(self, sample: Any) -> tuple[list[Turn], list[Any]]:
        """Return the conversation of a sample, and its images; for subclasses.

        Args:
            sample: A typed sample.

        Returns:
            The turns, and what `media_arguments` takes, in the order of placeholders.
        """
        if isinstance(sample, ConversationSample):
            if sample.videos:
                raise ConfigError(
                    "ProcessorTaskEncoder does not read videos, but the sample has "
                    f"{len(sample.videos)}. Use energize.encoders.VideoTaskEncoder"
                )
            return sample.turns, sample.images
        if isinstance(sample, CaptioningSample):
            question = self.prompt
            answer = _text(sample.caption, "caption")
        elif isinstance(sample, VQASample):
            if not sample.answers:
                raise DataError("the question has no answer to learn")
            weights = sample.answer_weights
            best = 0 if weights is None else int(torch.as_tensor(weights).argmax())
            question = _text(sample.context, "context")
            answer = _text(sample.answers[best], "answer")
        else:
            raise ConfigError(
                "ProcessorTaskEncoder encodes only ConversationSample, "
                "CaptioningSample, VQASample and TextSample, got a "
                f"{type(sample).__name__}. Pass sample_type= when you open the data, "
                "or a cooker"
            )
        if sample.image is None:
            raise DataError("it has no image")
        question = question if IMAGE in question else IMAGE + question
        # A text file ends with a line end, which is not part of the text.
        turns = [Turn("user", question), Turn("assistant", answer.rstrip("\r\n"))]
        return checked_turns(turns, 1, 0), [sample.image]

    def _conversation(
        self, turns: Sequence[Turn], images: list[Any], tools: list[Any]
    ) -> tuple[dict[str, Any], torch.Tensor]:
        """Return a processed conversation, and the weights of its tokens."""
        weights = [turn.weight * _is_learned(turn) for turn in turns]
        if not any(weights):
            raise DataError(
                "nothing to learn: it has no turn of the assistant, or all are masked"
            )
        template = self._template()
        messages, text = self._written(turns, tools)
        self._check_written(turns, messages, text, tools)
        spans = {}
        for weight in sorted({*weights} - {0}):
            chosen = [other == weight for other in weights]
            learned = self._spans(template, messages, text, chosen, tools)
            if images:
                learned = self._without_images(text, learned)
            spans[weight] = learned
        return self._weighted(text, images, spans)

    def _weighted(
        self,
        text: str,
        images: list[Any],
        spans: Mapping[float, list[tuple[int, int]]],
    ) -> tuple[dict[str, Any], torch.Tensor]:
        """Return a processed text, and the weights of its tokens by spans."""
        encoding = self._processed(text, images, **self._offset_options(images))
        offsets = encoding.pop("offset_mapping", None)
        [replaced] = encoding.pop(_REPLACED, None) or [[]]
        ids = encoding["input_ids"][0]
        weights = torch.zeros(len(ids))
        by_offsets = not images or replaced
        by_offsets = by_offsets and _are_exact(offsets, replaced, len(text))
        for weight, parts in spans.items():
            if by_offsets:
                learned = _overlapping(offsets[0], replaced, parts)
            else:
                learned = self._by_prefixes(text, images, parts, ids)
            weights[learned] = weight
        return encoding, weights

    def _written(
        self, turns: Sequence[Turn], tools: list[Any]
    ) -> tuple[list[Any], str]:
        """Return the messages of a conversation, and their text by the template."""
        messages = messages_of(turns)
        if self.processor is self.tokenizer:
            messages = [
                message | {"content": turn.text}
                for message, turn in zip(messages, turns, strict=True)
            ]
        try:
            return messages, self._rendered(messages, tools)
        except TypeError:  # the template joins arguments of calls to texts
            messages = json.loads(
                json.dumps(messages), object_hook=_with_text_arguments
            )
            return messages, self._rendered(messages, tools)

    def _without_images(
        self, text: str, spans: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return the spans without placeholders of images."""
        placeholder = str(getattr(self.processor, "image_token", None) or IMAGE)
        for cut in re.finditer(re.escape(placeholder), text):
            parts = [
                ((start, min(stop, cut.start())), (max(start, cut.end()), stop))
                for start, stop in spans
            ]
            spans = [
                (start, stop)
                for start, stop in chain.from_iterable(parts)
                if start < stop
            ]
        return spans

    def _offset_options(self, images: list[Any]) -> dict[str, Any]:
        """Return the options with which the processor returns offsets of tokens."""
        if not getattr(self.tokenizer, "is_fast", False):
            return {}
        if not images:
            return {"return_offsets_mapping": True}
        if hasattr(self.processor, _REPLACING):
            return {"return_offsets_mapping": True, f"return_{_REPLACED}": True}
        return {}

    def _check_written(
        self, turns: Sequence[Turn], messages: list[Any], text: str, tools: list[Any]
    ) -> None:
        """Raise `DataError` if the template leaves out content of turns."""
        last_question = max(
            (n for n, turn in enumerate(turns) if turn.role == "user"), default=-1
        )
        variants = [("the tools", messages, list[Any]())] if tools else []
        for number, (turn, message) in enumerate(zip(turns, messages, strict=True)):
            # Templates may take the reasoning out of answers that a question follows.
            whole = turn.role != "assistant" or number > last_question
            self._check_text_written(number, turn, message, text, whole=whole)
            for key in self._keys_to_write(message, whole=whole):
                rest = {
                    name: value
                    for name, value in message.items()
                    if value != message[key]
                }
                changed = [*messages[:number], rest, *messages[number + 1 :]]
                variants.append((f"{key!r} of turn {number}", changed, tools))
        for subject, changed, offered in variants:
            if self._renders_as(changed, offered, text):
                raise DataError(f"{self._template_name()} does not write {subject}")

    def _check_text_written(
        self, number: int, turn: Turn, message: Any, text: str, *, whole: bool
    ) -> None:
        """Raise `DataError` if the template leaves out the text of a turn."""
        words = re.findall(r"\w+", re.sub("<(image|video)>", " ", turn.text))
        is_lost = whole and any(word not in text for word in (*words[:1], *words[-1:]))
        content = message["content"]
        in_parts = self.processor is not self.tokenizer
        if is_lost or (in_parts and content and str(content) in text):
            refused = "a list of parts" if in_parts else "text, only parts"
            raise DataError(
                f"{self._template_name()} does not write the text of turn {number}, "
                f"{turn.role!r}, given as {content!r:.80}: it does not support this "
                f"role, or does not accept {refused}"
            )

    def _keys_to_write(self, message: Any, *, whole: bool) -> Iterator[str]:
        """Yield the keys of a message that the template has to write."""
        for key in {"tool_calls", REASONING[0]} & message.keys():
            is_named = any(name in self._template() for name in REASONING)
            if whole or key == "tool_calls" or not is_named:
                yield key

    def _renders_as(self, messages: list[Any], tools: list[Any], text: str) -> bool:
        try:
            return self._rendered(messages, tools) == text
        except DataError:
            return False

    def _template_name(self) -> str:
        return f"the chat template of {type(self.processor).__name__}"

    def _template(self) -> str:
        if template := getattr(self.processor, "chat_template", None):
            return str(template)
        raise ConfigError(
            f"{type(self.processor).__name__} has no chat template to turn a "
            "conversation into text. Use the processor of an instruction-tuned model, "
            "or set "
            "processor.chat_template to a Jinja template"
        )

    def _rendered(
        self, messages: Sequence[Any], tools: list[Any], *, begun: bool = False
    ) -> str:
        """Return messages as a text; with `begun`, and the beginning of an answer."""
        with _refusals_as_data_errors(self.processor):
            return self.processor.apply_chat_template(  # type: ignore[no-any-return]
                list(messages),
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=begun,
            )

    def _head(self, messages: list[Any], role: str, tools: list[Any]) -> str:
        """Return the text that the template writes before the text of a turn."""
        content: Any = (
            _MARKER
            if self.processor is self.tokenizer
            else [{"type": "text", "text": _MARKER}]
        )
        message = {"role": role, "content": content}
        return self._rendered([*messages, message], tools).partition(_MARKER)[0]

    def _special(self, text: str) -> bool:
        """Return whether the tokenizer adds special tokens to a text."""
        start = getattr(self.tokenizer, "bos_token", None)
        return not (start and text.startswith(start))

    def media_arguments(self, media: list[Any]) -> dict[str, Any]:
        """Return the arguments of the processor for the media of a sample.

        Args:
            media: As from `turns_of`.
        """
        return {"images": [media]} if media else {}

    def _processed(
        self, text: str, images: list[Any], **options: Any
    ) -> dict[str, Any]:
        special = self.processor is not self.tokenizer and self._special(text)
        arguments = self.media_arguments(images)
        arguments |= {"return_tensors": "pt", "add_special_tokens": special} | options
        try:
            encoding = self.processor(text=[text], **arguments)
        except ImportError as error:
            raise ConfigError(
                f"{type(self.processor).__name__} needs a library that is not "
                f"installed ({error}). For torchvision, pip install torchvision, or "
                "load the processor with backend='pil'"
            ) from error
        except ValueError as error:
            message = (
                f"{type(self.processor).__name__} refuses a sample of {len(images)} "
                f"images, rendered as {text!r:.200}: {error}"
            )
            if text.count(getattr(self.processor, "image_token", IMAGE)) < len(images):
                raise ConfigError(
                    f"{message}. Its chat template must write one placeholder for each "
                    "image"
                ) from error
            raise DataError(message) from error
        encoding = {
            name: value
            for name, value in encoding.items()
            if isinstance(value, torch.Tensor) or name == _REPLACED
        }
        self._check_shapes(encoding)
        return encoding

    def _check_shapes(self, encoding: dict[str, Any]) -> None:
        """Raise `ConfigError` unless all token tensors have one row of one length."""
        shape = tuple(encoding["input_ids"].shape)
        for name in ("input_ids", *_PER_TOKEN):
            if name in encoding and (
                shape[0] != 1 or tuple(encoding[name].shape) != shape
            ):
                raise ConfigError(
                    f"{type(self.processor).__name__} gave {name!r} of shape "
                    f"{tuple(encoding[name].shape)} and 'input_ids' of {shape} for one "
                    "text. Both must have one row, with an entry for each token"
                )

    def _spans(
        self,
        template: str,
        messages: list[Any],
        text: str,
        learned: list[bool],
        tools: list[Any],
    ) -> list[tuple[int, int]]:
        """Return the learned spans of the text.

        They are marked by {% generation %} in the template, or are the text that a
        learned turn adds to the conversation.
        """
        if _GENERATION.search(template):
            return self._generated_spans(template, messages, text, learned, tools)
        spans = []
        for number, message in enumerate(messages):
            if not learned[number]:
                continue
            if number and message["role"] == "assistant":
                begun = self._rendered(messages[:number], tools, begun=True)
            else:
                begun = self._head(messages[:number], message["role"], tools)
            ended = self._rendered(messages[: number + 1], tools)
            if not (text.startswith(begun) and text.startswith(ended)):
                raise ConfigError(
                    f"the chat template of {type(self.processor).__name__} writes the "
                    f"turns up to turn {number} differently from the beginning of the "
                    "whole conversation, so the tokens of the assistant are not "
                    "known. Put the assistant's text in it between {% generation %} "
                    "and {% endgeneration %}"
                )
            spans.append((len(begun), len(ended)))
        return spans

    def _generated_spans(
        self,
        template: str,
        messages: list[Any],
        text: str,
        learned: list[bool],
        tools: list[Any],
    ) -> list[tuple[int, int]]:
        """Return the spans that the template marks by {% generation %}."""
        module = import_module("transformers.utils.chat_template_utils")
        with _refusals_as_data_errors(self.processor):
            rendered, [spans] = module.render_jinja_template(
                conversations=[messages],
                tools=tools or None,
                chat_template=template,
                return_assistant_tokens_mask=True,
                **self.tokenizer.special_tokens_map,
            )
        if rendered != [text] or not any(start < end for start, end in spans):
            raise ConfigError(
                "the chat template marks the assistant's text with {% generation %}, "
                "but nothing is in it. Put the assistant's text between {% "
                "generation %} and {% endgeneration %}"
            )
        answers = [message["role"] == "assistant" for message in messages]
        if learned != answers:
            if len(spans) != sum(answers) or any(map(gt, learned, answers)):
                raise DataError(
                    "keys of turns select the learned text, but the chat template does "
                    "not mark exactly the turns of the assistant, each with one "
                    "{% generation %} block, so the tokens of these turns are not known"
                )
            spans = compress(spans, compress(learned, answers))
        return [(start, end) for start, end in spans]

    def _by_prefixes(
        self,
        text: str,
        images: list[Any],
        spans: list[tuple[int, int]],
        ids: torch.Tensor,
    ) -> torch.Tensor:
        """Return the mask of learned tokens, for a processor without offsets.

        The position of a token is the number of tokens of the text before it.
        """
        learned = torch.zeros_like(ids, dtype=torch.bool)
        placeholder = getattr(self.processor, "image_token", IMAGE)

        def length(part: str) -> int:
            prefix_ids = self._processed(part, images[: part.count(placeholder)])[
                "input_ids"
            ][0]
            if not torch.equal(ids[: len(prefix_ids)], prefix_ids):
                raise ConfigError(
                    f"{type(self.processor).__name__} makes other tokens of a text "
                    f"when more follows {part[-40:]!r}, and does not say where they "
                    "are, so which are the assistant's is not known; take a fast "
                    "tokenizer and a newer transformers, or where the processor moves "
                    "images, an encoder of your own"
                )
            return len(prefix_ids)

        for start, end in spans:
            learned[length(text[:start]) if start else 0 : length(text[:end])] = True
        return learned

    def _divided(
        self, encoding: dict[str, Any], weights: torch.Tensor
    ) -> dict[str, Any]:
        """Return tensors of tokens, with labels and weights, and of media."""
        shape = encoding["input_ids"].shape
        tokens = dict[str, torch.Tensor]()
        media = dict[str, torch.Tensor]()
        for name, tensor in encoding.items():
            per_token = tensor.shape == shape and not name.startswith(_OF_MEDIA)
            (tokens if per_token else media)[name] = tensor[0] if per_token else tensor
        tokens["labels"] = torch.where(weights > 0, tokens["input_ids"], IGNORED)
        tokens[LOSS_WEIGHTS] = weights
        tokens["labels"][0] = IGNORED
        length = len(tokens["labels"])
        return {"tokens": length, "per_token": tokens, "media": media}

    def _packed(
        self, samples: Dataset[Any], packing: int | PackPlan, active: frozenset[str]
    ) -> Dataset[Any]:
        is_planned = isinstance(packing, PackPlan)
        if not self.packing or (self.max_length is None and not is_planned):
            options = "" if is_planned else ", max_length=..."
            raise ConfigError(
                "packing fills rows with samples. Pass ProcessorTaskEncoder(processor, "
                f"packing=ModelPacking(model){options})"
            )
        if isinstance(packing, PackPlan):
            packing = packing.with_measure(_tokens)
        hooks = {"select_samples_to_pack", "pack_selected_samples"}
        return super()._packed(samples, packing, active | hooks)

    @default
    def select_samples_to_pack(self, samples: list[_Encoded]) -> list[list[_Encoded]]:
        """Return the samples of each row of up to `max_length` tokens."""
        return Packer(_tokens, self.max_length or 1)(samples)

    @default
    def pack_selected_samples(self, samples: list[_Encoded]) -> _Pack:
        """Return the samples of a row, which `batch` joins."""
        keys = ",".join(sample.__key__ for sample in samples)
        return _Pack.derive_from(samples[0], __key__=keys, samples=samples)

    def batch(self, samples: list[Any]) -> ProcessorBatch:
        """Return samples padded to one length, or end to end."""
        flat = [
            sample for entry in samples for sample in getattr(entry, "samples", [entry])
        ]
        return self.batch_type.from_samples(flat, **self._rows(flat))

    def _rows(self, samples: list[_Encoded]) -> dict[str, Any]:
        """Return samples as rows of one length, or end to end, with their media."""
        values: dict[str, Any] = _joined_media(samples)
        values |= self._in_a_row(samples) if self.packing else self._padded(samples)
        if ((values[LOSS_WEIGHTS] == 1) | (values["labels"] == IGNORED)).all():
            del values[LOSS_WEIGHTS]
        field_names = type_fields(self.batch_type)
        if unknown := [name for name in values if name not in field_names]:
            raise ConfigError(
                f"{type(self.processor).__name__} gives {', '.join(unknown)}, for "
                "which "
                f"{self.batch_type.__name__} has no field. Pass batch_type=, a "
                "subclass with these fields"
            )
        return values

    def _padded(self, samples: list[_Encoded]) -> dict[str, Any]:
        more = -max(map(_tokens, samples)) % self.pad_to_multiple_of
        fill = {"input_ids": self.tokenizer.pad_token_id, "labels": IGNORED}
        joined = dict[str, torch.Tensor]()
        side = self.padding_side
        for name in samples[0].per_token:
            rows = [sample.per_token[name][None] for sample in samples]
            value = fill.get(name, 0)
            whole = concat_pad(rows, pad_value=value, side=side)
            joined[name] = pad(
                whole, (more, 0) if side == "left" else (0, more), value=value
            )
        return joined

    def _in_a_row(self, samples: list[_Encoded]) -> dict[str, Any]:
        """Return samples end to end, with what keeps them separate."""
        self._check_packable(samples)
        lengths = list(map(_tokens, samples))
        values: dict[str, Any] = {
            name: torch.cat([sample.per_token[name] for sample in samples])[None]
            for name in samples[0].per_token
            if name != "attention_mask"
        }
        values |= boundaries(lengths)
        if self._has_three_axes():
            positions = [self.positions_of(sample)[:, None] for sample in samples]
            return values | {"position_ids": torch.cat(positions, -1)}
        values["position_ids"] = text_positions(lengths)
        is_image = values.get("token_type_ids")
        if self.model_packing is not None and is_image is not None and is_image.any():
            masks = self.model_packing.masks(lengths, is_image[0] == 1)
            values["attention_mask"] = masks
        return values

    def _has_three_axes(self) -> bool:
        if self.model_packing is not None:
            return self.model_packing.has_three_axes
        return uses_three_axes(self.processor)

    def positions_of(self, sample: Any) -> torch.Tensor:
        """Return the positions of a sample on three axes, after its own numbers.

        Args:
            sample: A result of `encode_sample`.
        """
        grids = sample.media.get("image_grid_thw")
        if grids is None:
            return text_positions([_tokens(sample)], 1 + AXES)[:, 0]
        merged = self.processor.image_processor.merge_size
        is_image = sample.per_token["input_ids"] == self.processor.image_token_id
        return grid_positions(is_image, grids // torch.tensor([1, merged, merged]))

    def _check_packable(self, samples: list[_Encoded]) -> None:
        """Raise `ConfigError` if rows of the model need more than is known of it."""
        name = type(self.processor).__name__
        if self.model_packing is None:
            log_once(
                "ProcessorTaskEncoder",
                "packing",
                "packing=True packs samples for a model that is not known, and some "
                "models mix packed samples. Pass packing=ModelPacking(model) to check "
                "it",
                logging.WARNING,
            )
        names = {key for sample in samples for key in sample.per_token | sample.media}
        conflicts = sorted(names & _NOT_PACKED)
        if conflicts and not (
            self._has_three_axes() and uses_three_axes(self.processor)
        ):
            raise ConfigError(
                f"packed rows for {name} need positions that follow from "
                f"{conflicts[0]}, which are known for Qwen2-VL, Qwen2.5-VL and "
                "Qwen3-VL with their models. Pad the samples instead"
            )
        types = [sample.per_token.get("token_type_ids") for sample in samples]
        if any(entry is not None and entry.any() for entry in types) and not (
            self.model_packing is not None and self.model_packing.has_block_masks
        ):
            raise ConfigError(
                f"packed images of {name} need masks for a model that attends in both "
                "directions within an image. Pass packing=ModelPacking(model) for "
                "Gemma 3, or pad the samples instead"
            )


def _joined_media(samples: Sequence[_Encoded]) -> dict[str, torch.Tensor]:
    """Return the media of samples by name, joined along their first dimension."""
    names = dict.fromkeys(chain.from_iterable(sample.media for sample in samples))
    columns = {
        name: [sample.media[name] for sample in samples if name in sample.media]
        for name in names
    }
    return {name: concat_pad(tensors) for name, tensors in columns.items()}


@contextmanager
def _refusals_as_data_errors(processor: Any) -> Iterator[None]:
    """Raise as `DataError` what a chat template raises for a conversation."""
    jinja2 = import_module("jinja2")
    try:
        yield
    except jinja2.TemplateSyntaxError:
        raise
    except jinja2.TemplateError as error:
        name = type(processor).__name__
        raise DataError(
            f"the chat template of {name} refuses the conversation: {error}"
        ) from error


def _are_exact(offsets: Any, replaced: list[Any], length: int) -> bool:
    """Return whether offsets of tokens are those of the text with its images."""
    if offsets is None:
        return False
    if not (offsets[0, 1:-1, 0] < offsets[0, 1:-1, 1]).all():
        return False
    # The processor may write more text than it reports.
    length += sum(entry["new_span"][1] - entry["span"][1] for entry in replaced[-1:])
    return int(offsets.max()) <= length


def _with_text_arguments(keys: dict[str, Any]) -> dict[str, Any]:
    """Return an object with its arguments, if it is a call of a tool, as JSON text."""
    return keys | {
        name: json.dumps(keys[name]) for name in ("arguments",) if name in keys
    }


def _overlapping(
    offsets: torch.Tensor, replacements: list[Any], spans: list[tuple[int, int]]
) -> torch.Tensor:
    """Return which tokens are in the spans of a text with replaced images."""
    starts, ends = offsets.unbind(-1)
    learned = torch.zeros_like(starts, dtype=torch.bool)
    more = [
        (entry["span"][1], entry["new_span"][1] - entry["span"][1])
        for entry in replacements
    ]
    for span in spans:
        start, end = (
            at + max((by for to, by in more if to <= at), default=0) for at in span
        )
        learned |= (starts < end) & (ends > start)
    return learned


def as_bytes(image: Any) -> Any:
    """Return an image with values from 0 to 255, as processors expect."""
    floating = isinstance(image, torch.Tensor) and image.is_floating_point()
    return (image * 255).round().to(torch.uint8) if floating else image
