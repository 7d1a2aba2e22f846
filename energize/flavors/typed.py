"""One factory for each sample type, as older folders name them; all of them deprecated."""

from __future__ import annotations

import os
import warnings
from typing import Any, TypeVar

from energize.flavors.webdataset.default_decoder_webdataset import DefaultDecoderWebdatasetFactory
from energize.samples.image import CaptioningSample, ImageClassificationSample, ImageSample
from energize.samples.interleaved import InterleavedSample, SimilarityInterleavedSample
from energize.samples.ocr import OCRSample, VQAOCRSample
from energize.samples.text import TextSample
from energize.samples.video import VidQASample
from energize.samples.vqa import MultiChoiceVQASample, VQASample

T_co = TypeVar("T_co", covariant=True)


class _TypedWebdataset(DefaultDecoderWebdatasetFactory[T_co]):
    """As `StandardWebdatasetFactory`, with the sample type that its name says: a `FutureWarning`.

    A dataset.yaml that names one of these as its `__class__` is read without a warning.
    """

    def __init__(self, path: str | os.PathLike[str], **kwargs: Any) -> None:
        own, kind = type(self).__name__, self.__sample_type__.__name__
        warnings.warn(
            f"{own} is deprecated: use StandardWebdatasetFactory(..., sample_type={kind}); in "
            f"dataset.yaml, put sample_type: {{__module__: megatron.energon, __class__: {kind}}} "
            "in place of __module__ and __class__",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__(path, **kwargs)


class CaptioningWebdataset(_TypedWebdataset[CaptioningSample]):
    """Deprecated: `StandardWebdatasetFactory` of `CaptioningSample`."""

    __sample_type__ = CaptioningSample


class ImageWebdataset(_TypedWebdataset[ImageSample]):
    """Deprecated: `StandardWebdatasetFactory` of `ImageSample`."""

    __sample_type__ = ImageSample


class ImageClassificationWebdataset(_TypedWebdataset[ImageClassificationSample]):
    """Deprecated: `StandardWebdatasetFactory` of `ImageClassificationSample`."""

    __sample_type__ = ImageClassificationSample


class InterleavedWebdataset(_TypedWebdataset[InterleavedSample]):
    """Deprecated: `StandardWebdatasetFactory` of `InterleavedSample`."""

    __sample_type__ = InterleavedSample


class MultiChoiceVQAWebdataset(_TypedWebdataset[MultiChoiceVQASample]):
    """Deprecated: `StandardWebdatasetFactory` of `MultiChoiceVQASample`."""

    __sample_type__ = MultiChoiceVQASample


class OCRWebdataset(_TypedWebdataset[OCRSample]):
    """Deprecated: `StandardWebdatasetFactory` of `OCRSample`."""

    __sample_type__ = OCRSample


class SimilarityInterleavedWebdataset(_TypedWebdataset[SimilarityInterleavedSample]):
    """Deprecated: `StandardWebdatasetFactory` of `SimilarityInterleavedSample`."""

    __sample_type__ = SimilarityInterleavedSample


class TextWebdataset(_TypedWebdataset[TextSample]):
    """Deprecated: `StandardWebdatasetFactory` of `TextSample`."""

    __sample_type__ = TextSample


class VidQAWebdataset(_TypedWebdataset[VidQASample]):
    """Deprecated: `StandardWebdatasetFactory` of `VidQASample`."""

    __sample_type__ = VidQASample


class VQAOCRWebdataset(_TypedWebdataset[VQAOCRSample]):
    """Deprecated: `StandardWebdatasetFactory` of `VQAOCRSample`."""

    __sample_type__ = VQAOCRSample


class VQAWebdataset(_TypedWebdataset[VQASample]):
    """Deprecated: `StandardWebdatasetFactory` of `VQASample`."""

    __sample_type__ = VQASample
