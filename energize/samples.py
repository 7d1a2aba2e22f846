"""Sample types: dataclasses of images, texts, videos, sound and labels.

The most common types are also in `energize`.
"""

from energize.core.samples import (
    CaptioningSample,
    ConversationSample,
    CrudeSample,
    GroundingSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    PreferenceSample,
    Sample,
    SimilarityInterleavedSample,
    SourceInfo,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
    pin_memory,
)
from energize.core.turns import Turn

__all__ = [
    "CaptioningSample",
    "ConversationSample",
    "CrudeSample",
    "GroundingSample",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "MultiChoiceVQASample",
    "OCRSample",
    "PreferenceSample",
    "Sample",
    "SimilarityInterleavedSample",
    "SourceInfo",
    "TextSample",
    "Turn",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "pin_memory",
]
