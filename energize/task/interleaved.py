"""A task encoder for documents of texts and images in turn."""

from __future__ import annotations

from typing import Any

import torch

from energize.core.samples import InterleavedSample
from energize.errors import ConfigError, DataError
from energize.task.images import as_bytes
from energize.task.ready import ProcessorTaskEncoder

_AROUND = "\ue001"  # a character that no template and no text has


class InterleavedTaskEncoder(ProcessorTaskEncoder):
    """Encode documents of texts and images in turn for a model of transformers.

    The pieces of an `InterleavedSample` are joined in their order, an image as its
    placeholder. The text starts like every text of the tokenizer and ends with the
    end-of-sequence token. All texts are learned, images are not. Other samples are
    encoded as by `ProcessorTaskEncoder`.

    Args:
        processor: A processor of transformers, or a tokenizer for data without images.
        image_text: Text for an image, with the placeholder of the processor. None
            takes the text that the chat template writes.
        separator: Text between two pieces.
        **options: Further arguments of `ProcessorTaskEncoder`.

    Raises:
        ConfigError: If the chat template does not write an image between two texts, or
            for an invalid option. Calls raise `DataError` for a missing image, a
            document without text, and a text that contains the placeholder.

    Example:
        >>> try:
        ...     InterleavedTaskEncoder("Qwen/Qwen2-VL-2B-Instruct")
        ... except ConfigError as error:
        ...     print(str(error)[:60])
        ProcessorTaskEncoder needs a processor or a tokenizer of tra
    """

    def __init__(
        self,
        processor: Any,
        *,
        image_text: str | None = None,
        separator: str = "\n",
        **options: Any,
    ) -> None:
        super().__init__(processor, **options)
        self.separator = separator
        self.image_text = image_text or ""
        if image_text is None and self.processor is not self.tokenizer:
            self.image_text = self._image_text()

    def _image_text(self) -> str:
        """Return the text that the chat template writes for an image."""
        if not getattr(self.processor, "chat_template", None):
            raise ConfigError(
                f"{type(self.processor).__name__} has no chat template that shows the "
                "text of an image. Pass it: InterleavedTaskEncoder(processor, "
                "image_text='<image>')"
            )
        around = {"type": "text", "text": _AROUND}
        content = [around, {"type": "image"}, around]
        rendered = self._rendered([{"role": "user", "content": content}], [])
        _, image, *rest = rendered.split(_AROUND)
        if not rest or not image.strip():
            raise ConfigError(
                f"the chat template of {type(self.processor).__name__} writes no image "
                f"between two texts, but {rendered!r:.200}. Pass the text of an image: "
                "InterleavedTaskEncoder(processor, image_text='<image>')"
            )
        return image.strip()

    def _tokenized(self, sample: Any) -> tuple[dict[str, Any], torch.Tensor]:
        """Return a processed document, and the mask of learned tokens."""
        if not isinstance(sample, InterleavedSample):
            return super()._tokenized(sample)
        pieces = self._pieces(sample)
        images = [as_bytes(piece) for piece in pieces if not isinstance(piece, str)]
        texts = [
            piece if isinstance(piece, str) else self.image_text for piece in pieces
        ]
        if not images:
            return self._text_only(self.separator.join(texts))
        spans: list[tuple[int, int]] = []
        position = 0
        rest = 0
        for piece, written in zip(pieces, texts, strict=True):
            if not isinstance(piece, str):
                spans.append((rest, position))
                rest = position + len(written)
            position += len(written) + len(self.separator)
        text = self.separator.join(texts) + (self.tokenizer.eos_token or "")
        spans.append((rest, len(text)))
        return self._marked(text, images, [span for span in spans if span[0] < span[1]])

    def _pieces(self, sample: InterleavedSample) -> list[Any]:
        """Return the pieces of a document, checked."""
        pieces = list(sample.sequence)
        for number, piece in enumerate(pieces):
            if piece is None:
                raise DataError(
                    f"piece {number} of the document is null: neither a text nor an "
                    "image. Remove it, or add the image"
                )
            if isinstance(piece, str):
                self._check_text(number, piece)
            elif not self.image_text:
                raise ConfigError(
                    "the document has images, but InterleavedTaskEncoder has a "
                    "tokenizer, which cannot read images. Pass the processor of the "
                    "model"
                )
        if not any(isinstance(piece, str) and piece.strip() for piece in pieces):
            raise DataError(
                f"nothing to learn: the document has {len(pieces)} pieces and no text"
            )
        return pieces

    def _check_text(self, number: int, text: str) -> None:
        """Raise `DataError` for a text with the placeholder of an image."""
        if self.image_text and self.image_text in text:
            raise DataError(
                f"piece {number} of the document contains {self.image_text!r}, the "
                f"placeholder of an image: {text!r:.80}. Replace it in the text, or "
                "put the image itself into the sequence"
            )
