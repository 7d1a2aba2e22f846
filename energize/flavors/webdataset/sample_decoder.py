"""Decoding of the parts of samples."""

from __future__ import annotations

from typing import Literal

from energize.av.parts import AVDecoderType
from energize.flavors.webdataset.default_decoder_webdataset import DEFAULT_DECODER
from energize.task_encoder.decoding import SampleDecoder

__all__ = ["DEFAULT_DECODER", "AVDecoderType", "ImageDecoderType", "SampleDecoder"]

ImageDecoderType = Literal[
    "l8",
    "rgb8",
    "rgba8",
    "l",
    "rgb",
    "rgba",
    "torchl8",
    "torchrgb8",
    "torchrgba8",
    "torchl",
    "torchrgb",
    "torch",
    "torchrgba",
    "pill",
    "pil",
    "pilrgb",
    "pilrgba",
]
"""The values of `image_decode`."""
