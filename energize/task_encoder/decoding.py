"""Decoding the parts of raw samples."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import PIL.Image

from energize.av.parts import AV_EXTENSIONS, AVDecoderType, AVWebdatasetDecoder
from energize.errors import ConfigError, DecodeError, nearest
from energize.media.metadata import MediaMetadataType
from energize.media.recognising import HEAD, kind_by_start
from energize.task_encoder.images import IMAGE_EXTENSIONS, IMAGE_SPECS, decode_image
from energize.task_encoder.parts import PART_DECODERS, unpacked_gzip

# What codecs raise for bad bytes. MemoryError is not among them, and neither is the TimeoutError of
# a signal handler, though it is an OSError.
_BAD_BYTES = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    PIL.Image.DecompressionBombError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, kw_only=True)
class SampleDecoder:
    """Decodes the parts of a sample by their extensions; a plain value, equal when set equally.

    Images (jpg, png, webp, ...) become what `image_decode` names, with webdataset's names and
    results: numpy `l8 rgb8 rgba8` (uint8) and `l rgb rgba` (float32 from 0 to 1), shape (H, W) or
    (H, W, C); the same as torch tensors, shape (H, W) or (C, H, W), with the prefix `torch`; PIL
    images `pill`, `pil` (= `pilrgb`), `pilrgba`. EXIF orientation is not applied.

    Videos and sounds (mp4, avi, mov, webm, mkv, flv, flac, mp3, wav) become what `av_decode` names:
    an `AVDecoder`, which decodes clips when it is asked for them; with "torch" an `AVData` of all
    frames, or of all sound where there is no video, and with `video_decode_audio` of both; with
    "pyav" an open container of PyAV. Only "AVDecoder" can be made without PyAV (`energize[av]`).

    With `guess_content`, images, videos and sounds are told by how their bytes begin, whatever the
    part is called.

    txt, text, transcript become str; json, jsn their value; cls, cls2, class, index, inx, id, count
    int; npy a numpy array, npz a dict of them. A part that ends in .gz is unpacked first. All
    others stay bytes, and so do pickles (pkl, pickle, pyd, pt, pth): nothing is ever unpickled.

    Raises `ConfigError` for an unknown `image_decode` or `av_decode`.

    >>> SampleDecoder().decode("meta.json", b'{"width": 640}')
    {'width': 640}
    """

    image_decode: str = "torchrgb"
    av_decode: AVDecoderType = "AVDecoder"
    video_decode_audio: bool = False
    guess_content: bool = False

    def __post_init__(self) -> None:
        AVWebdatasetDecoder(self.video_decode_audio, self.av_decode)  # checks them
        if self.image_decode not in IMAGE_SPECS:
            raise ConfigError(
                f"image_decode={self.image_decode!r} is not one of {', '.join(IMAGE_SPECS)}"
                f"{nearest(str(self.image_decode), list(IMAGE_SPECS))}"
            )

    def decode(self, name: str, data: bytes) -> Any:
        """The content of the part, or file, called `name`.

        Raises `DecodeError` naming it when its bytes are bad.
        """
        extension = name.rpartition(".")[2].lower()
        if extension == "gz":
            return self.decode(name[:-3], decoded_by(unpacked_gzip, name, data))
        kind = kind_by_start(data[:HEAD]) if self.guess_content else None
        if kind == MediaMetadataType.IMAGE or (not kind and extension in IMAGE_EXTENSIONS):
            as_asked = partial(decode_image, spec=IMAGE_SPECS[self.image_decode])
            return decoded_by(as_asked, name, data)
        if kind == MediaMetadataType.AV or (not kind and extension in AV_EXTENSIONS):
            return AVWebdatasetDecoder(self.video_decode_audio, self.av_decode).decoded(name, data)
        if extension in PART_DECODERS:
            return decoded_by(PART_DECODERS[extension], name, data)
        return data

    def config(self) -> dict[str, Any]:
        """The arguments by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def describe(self) -> dict[str, Any]:
        """`image_decode`, and what else is not as by default."""
        usual = {each.name: each.default for each in fields(self)}
        return {
            name: value
            for name, value in self.config().items()
            if name == "image_decode" or value != usual[name]
        }

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """All parts of a raw sample decoded; what is not bytes, and names with __, as they are."""
        return {
            name: self.decode(name, value)
            if isinstance(value, bytes) and not name.startswith("__")
            else value
            for name, value in sample.items()
        }


def decoded_by(decode: Callable[[bytes], Any], name: str, data: bytes) -> Any:
    """`decode(data)`; `DecodeError` naming the part and the reason when its bytes are bad."""
    try:
        return decode(data)
    except TimeoutError:
        raise
    except _BAD_BYTES as error:
        raise DecodeError(
            f"part {name!r} of {len(data)} bytes cannot be decoded: {type(error).__name__}: "
            f"{error}; it begins with {data[:16]!r}"
        ) from error
