"""A task encoder for documents of texts and images in turn."""

from __future__ import annotations

import re
from typing import Any

import torch

from energize.core.samples import InterleavedSample
from energize.errors import ConfigError, DataError
from energize.task.ready import ProcessorTaskEncoder, as_bytes

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
        around = {"type": "text", "text": _AROUND}
        message = {"role": "user", "content": [around, {"type": "image"}, around]}
        self._template()
        _, *image = self._rendered([message], []).split(_AROUND)
        if len(image) != 2 or not image[0].strip():
            raise ConfigError(
                f"the chat template of {type(self.processor).__name__} does not write "
                "an image between two texts. Pass the text of an image: "
                "InterleavedTaskEncoder(processor, image_text='<image>')"
            )
        return image[0].strip()

    def _tokenized(self, sample: Any) -> tuple[dict[str, Any], torch.Tensor]:
        """Return a processed document, and the weights of its tokens."""
        if not isinstance(sample, InterleavedSample):
            return super()._tokenized(sample)
        pieces = sample.sequence
        images = [as_bytes(piece) for piece in pieces if not isinstance(piece, str)]
        self._check_turns(sample, [], images)
        texts = list(map(self._written_piece, range(len(pieces)), pieces))
        if not any(isinstance(piece, str) and piece.strip() for piece in pieces):
            raise DataError("nothing to learn: the document has no text")
        if not images:
            return self._text_only(self.separator.join(texts))
        text = self.separator.join(texts) + (self.tokenizer.eos_token or "")
        spans: list[tuple[int, int]] = []
        rest = 0
        for image in re.finditer(re.escape(self.image_text), text):
            spans.append((rest, image.start()))
            rest = image.end()
        spans.append((rest, len(text)))
        learned = [span for span in spans if span[0] < span[1]]
        return self._weighted(text, images, {1.0: learned})

    def _written_piece(self, number: int, piece: Any) -> str:
        """Return a text, or the text for an image."""
        if piece is None:
            raise DataError(
                f"piece {number} of the document is null: neither a text nor an image. "
                "Remove it, or add the image"
            )
        if not isinstance(piece, str):
            return self.image_text
        if self.image_text and self.image_text in piece:
            raise DataError(
                f"piece {number} of the document contains {self.image_text!r}, the "
                f"placeholder of an image: {piece!r:.80}. Replace it in the text, or "
                "put the image itself into the sequence"
            )
        return piece
