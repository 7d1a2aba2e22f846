"""Decode the parts of raw samples: images, arrays, texts, video and sound."""

from __future__ import annotations

import io
import math
import pickle
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, get_args

import numpy as np

from energize.core import limits
from energize.core.checks import checked_choice, checked_whole
from energize.core.description import described
from energize.core.lazy import torch
from energize.core.validation import load_json
from energize.data.av import AVWebdatasetDecoder
from energize.data.media import (
    BY_EXTENSION,
    HEAD,
    AVDecoderType,
    MediaMetadataType,
    kind_by_start,
)
from energize.errors import (
    ConfigError,
    DecodeError,
    UntrustedCodeError,
)
from energize.task.images import IMAGE_SPECS, decode_image

_AT_ONCE = 64 * 1024
_MEMBER_BYTES = (
    32 * 1024
)  # what unpacking a member of gzip takes, however few bytes it is of


# Parts that are not images, from bytes.


def unpacked_gzip(data: bytes) -> bytes:
    """Return the content of gzip data with any number of members."""
    counted = int.from_bytes(
        data[-4:], "little"
    )  # what gzip itself wrote, of its last 4 GiB
    limits.decoding.spend(counted)
    unpacked = io.BytesIO()
    stream = io.BytesIO(data)
    rest = b""
    members = 0
    unpacking = None
    while rest := rest or stream.read(_AT_ONCE):
        if unpacking is None:
            rest = (
                rest.lstrip(b"\0") if members else rest
            )  # they may be padded with zeros
            if not rest:
                continue
            members = members + 1
            unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
        unpacked.write(unpacking.decompress(rest, _AT_ONCE))
        counted = limits.decoding.spend(
            unpacked.tell() + members * _MEMBER_BYTES, counted
        )
        rest = unpacking.unconsumed_tail
        if unpacking.eof:
            rest = unpacking.unused_data
            unpacking = None
    if unpacking is not None:
        raise EOFError("it ends before the end of what is packed")
    return unpacked.getvalue()


_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _array(data: bytes) -> np.ndarray[Any, Any]:
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version not in _NPY_HEADERS:
        raise ValueError(f"unknown format version {version} of .npy files")
    shape, _, dtype = _NPY_HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it has pickled Python objects, which are never unpickled")
    # The array is made before its bytes are read, so what the header says is compared
    # with them.
    promised = math.prod(shape) * dtype.itemsize
    available = len(data) - stream.tell()
    if promised != available:
        raise ValueError(
            f"the header promises {promised} bytes of values, but the file has "
            f"{available}"
        )
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _unzipped(data: bytes) -> zipfile.ZipFile:
    packed = zipfile.ZipFile(io.BytesIO(data))
    size = sum(entry.file_size for entry in packed.infolist())
    limits.decoding.spend(2 * size)
    return packed


def _arrays(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    packed = _unzipped(data)
    files = packed.infolist()
    if len(files) > limits.PARTS:
        raise ValueError(f"{len(files)} arrays: {limits.over('PARTS')}")
    return {  # no more is unpacked of a file than it says that it has
        entry.filename.removesuffix(".npy"): _array(
            packed.open(entry).read(entry.file_size)
        )
        for entry in files
    }


def _weights(data: bytes) -> Any:
    """Return the tensors and plain values that `torch.save` wrote."""
    damaged = _unzipped(data).testzip()  # torch compares no checksums
    if damaged is not None:
        raise ValueError(f"the bytes of {damaged} are not those of its checksum")
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "txt text transcript": lambda data: data.removeprefix(BOM_UTF8).decode(),
    "json jsn": load_json,
    "cls cls2 class index inx id count": int,
    "npy": _array,
    "npz": _arrays,
    "pth": _weights,
}
PART_DECODERS: Mapping[str, Callable[[bytes], Any]] = MappingProxyType(
    {part: decode for parts, decode in _DECODERS.items() for part in parts.split()}
)
"""Decoders by part name. Other parts stay bytes."""

_PICKLES = ("pickle", "pyd")


# Decoding the parts of raw samples.


@dataclass(frozen=True, kw_only=True)
class SampleDecoder:
    """Decode the parts of a sample. Decoders with equal arguments are equal.

    Images, videos and sounds are recognised by their first bytes, or else by the
    extension of the part; `energize.data.media.FORMATS` has all formats. Further parts
    are decoded by extension:

    - txt, text, transcript: str
    - json, jsn: the value
    - cls, cls2, class, index, inx, id, count: int
    - npy: a numpy array; npz: a dict of arrays
    - pth: tensors and plain values of `torch.save`, read weights-only

    A part that ends in .gz is unpacked first. All other parts stay bytes, such as pkl
    and pt. Parts pickle and pyd are refused without `unpickle`, because unpickling may
    run any program.

    Args:
        image_decode: The result of decoding images, by webdataset's names: numpy `l8
            rgb8 rgba8` (uint8) and `l rgb rgba` (float32 from 0 to 1) of shape (H, W)
            or (H, W, C); tensors with the prefix `torch`, of shape (H, W) or (C, H, W);
            PIL images `pill`, `pil`, `pilrgba`. `stored`, `torchstored` and `pilstored`
            keep the values of the file: the indices of a palette, 16 bits (as torch
            tensor int32).
        av_decode: The result of decoding videos and sounds. "AVDecoder" decodes clips
            on request; "torch" is an `AVData` of all frames, or of all sound if there
            is no video; "pyav" is an open container of PyAV. Only "AVDecoder" works
            without PyAV (`energize[av]`).
        video_decode_audio: Whether "torch" also decodes the sound of videos.
        guess_content: Whether parts with any extension may be media.
        unpickle: Whether pickle and pyd are unpickled. Always, for folders that the
            user trusts.
        orient: Whether images are turned by their EXIF orientation. By default, images
            of loose files are turned, and images of prepared folders if their
            dataset.yaml has `orient: true`.
        min_side: Least shorter side in pixels to which a JPEG is reduced while it is
            decoded, by 2, 4 or 8, which is faster. Other formats and coordinates in
            samples keep their size. By default, all pixels are decoded.
        fields: Decoders of single fields by name, of crude samples by part: `{"mask":
            SampleDecoder(image_decode="torchstored")}`; a function of bytes; None for
            the bytes.

    Raises:
        ConfigError: For an unknown `image_decode` or `av_decode`, and a `min_side`
            below 1.

    Example:
        >>> SampleDecoder().decode("meta.json", b'{"width": 640}')
        {'width': 640}
    """

    image_decode: str = "torchrgb"
    av_decode: AVDecoderType = "AVDecoder"
    video_decode_audio: bool = False
    guess_content: bool = False
    unpickle: bool = False
    orient: bool | None = None
    min_side: int | None = None
    fields: Mapping[str, SampleDecoder | Callable[[bytes], Any] | None] = field(
        default_factory=dict, hash=False
    )

    def __post_init__(self) -> None:
        for name, decoder in self.fields.items():
            if not (decoder is None or callable(decoder)):
                message = (
                    f"fields[{name!r}] is a SampleDecoder, a function of bytes, or None"
                )
                raise ConfigError(f"SampleDecoder: {message}, got {decoder!r}")
        checked_choice(self.image_decode, "image_decode", IMAGE_SPECS)
        checked_choice(self.av_decode, "av_decode", get_args(AVDecoderType))
        if self.min_side is not None:
            checked_whole(self.min_side, "min_side", least=1)

    def decode(self, name: str, data: bytes) -> Any:
        """Decode a part or file.

        Args:
            name: Name of the part, whose extension selects the decoder.
            data: Its bytes.

        Returns:
            The content, or the bytes if no decoder applies.

        Raises:
            DecodeError: If the bytes are damaged.
            UntrustedCodeError: For a pickle, without `unpickle`.
        """
        extension = name.rpartition(".")[2].lower()
        if extension == "gz":
            return self._decode_gzip(name, data)
        media_type = BY_EXTENSION.get(extension)
        if media_type is not None or self.guess_content:
            media_type = kind_by_start(data[:HEAD]) or media_type
        if media_type == MediaMetadataType.AV:
            decoder = AVWebdatasetDecoder(self.video_decode_audio, self.av_decode)
            return decoder.decoded(name, data)
        try:
            if media_type == MediaMetadataType.IMAGE:
                spec = IMAGE_SPECS[self.image_decode]
                return decode_image(
                    data, spec, orient=self.orient, min_side=self.min_side, name=name
                )
            return self._decode_by_extension(extension, data)
        except _NO_BAD_BYTES:
            raise
        except Exception as error:
            raise _undecodable(error, name, data) from error

    @limits.decoding
    def _decode_gzip(self, name: str, data: bytes) -> Any:
        while name.lower().endswith(".gz"):
            data = decoded_by(unpacked_gzip, name, data)
            name = name[:-3]
        return self.decode(name, data)

    def _decode_by_extension(self, extension: str, data: bytes) -> Any:
        if extension in PART_DECODERS:
            return PART_DECODERS[extension](data)
        if extension not in _PICKLES:
            return data
        if self.unpickle:
            return pickle.loads(data)  # noqa: S301 - the program requires it
        raise UntrustedCodeError(
            f"part {extension!r} is a pickle, and unpickling may run any program. If "
            "you trust its author, use SampleDecoder(unpickle=True); to get its bytes, "
            f"SampleDecoder(fields={{{extension!r}: None}})"
        )

    def decode_of(self, field: str) -> Callable[[str, bytes], Any]:
        """Return the function of name and bytes that decodes a field."""
        decoder = self.fields.get(field, self)
        if decoder is None:
            return undecoded
        return (
            decoder.decode
            if isinstance(decoder, SampleDecoder)
            else partial(decoded_by, decoder)
        )

    def with_options(self, options: Mapping[str, Any]) -> SampleDecoder:
        """Return the decoder with options of a dataset.yaml that it does not set.

        Args:
            options: `orient` and `guess_content`, if set.

        Example:
            >>> SampleDecoder().with_options({"orient": True}).orient
            True
        """
        if not options:
            return self
        fields = {
            name: decoder.with_options(options)
            if isinstance(decoder, SampleDecoder)
            else decoder
            for name, decoder in self.fields.items()
        }
        return replace(
            self,
            fields=fields,
            orient=options.get("orient") if self.orient is None else self.orient,
            guess_content=self.guess_content or bool(options.get("guess_content")),
        )

    def config(self) -> dict[str, Any]:
        """Return the arguments by name."""
        decoders = {name: described(decoder) for name, decoder in self.fields.items()}
        return asdict(replace(self, fields={})) | {"fields": decoders}

    def describe(self) -> dict[str, Any]:
        """Return `image_decode` and the arguments that differ from the defaults."""
        return dict(self._description)

    @cached_property
    def _description(self) -> dict[str, Any]:
        usual = SampleDecoder(
            image_decode=self.image_decode, unpickle=self.unpickle
        ).config()
        description = {"image_decode": self.image_decode}
        return description | {
            name: value for name, value in self.config().items() if value != usual[name]
        }

    @limits.decoding
    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Decode all parts of a raw sample; other values and names with __ stay."""
        return {
            name: self.decode_of(name)(name, value)
            if isinstance(value, bytes) and not name.startswith("__")
            else value
            for name, value in sample.items()
        }


_NO_BAD_BYTES = (MemoryError, TimeoutError, ConfigError, UntrustedCodeError)
"""Errors that do not mean damaged bytes."""


def decoded_by(decode: Callable[[bytes], Any], name: str, data: bytes) -> Any:
    """Return `decode(data)`; raise `DecodeError` with the part for damaged bytes.

    Errors for a lack of memory, a `TimeoutError` and wrong settings stay as they are.
    """
    try:
        return decode(data)
    except _NO_BAD_BYTES:
        raise
    except Exception as error:
        raise _undecodable(error, name, data) from error


def _undecodable(error: Exception, name: str, data: bytes) -> DecodeError:
    return DecodeError(
        f"part {name!r} of {len(data)} bytes cannot be decoded: "
        f"{type(error).__name__}: {error}; it begins with {data[:16]!r}"
    )


def undecoded(name: str, data: bytes) -> bytes:
    """Return the bytes of a part as they are."""
    return data
