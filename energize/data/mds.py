"""Folders of MDS shards: the index, the layout of samples, and the source.

`read_mds_index` reads `index.json`; `Layout` decodes samples of MDS, JSON and delimited
shards; `MdsSource` reads them, unpacking compressed shards in memory.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image
import xxhash
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    model_validator,
)

from energize.core import limits
from energize.core.description import digest
from energize.core.failures import Failed
from energize.core.lazy import optional_module
from energize.core.os_errors import convert_os_errors
from energize.core.validation import Listed, load_json, parse_json
from energize.data.files import exists, path_of, read_document
from energize.data.local import Ranges, Recent
from energize.data.media import open_image
from energize.data.nv_meta import is_inside
from energize.data.source import ShardedSource
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    DecodeError,
    EmptyDatasetError,
    ShardError,
    UntrustedCodeError,
    nearest,
)

Decode = Callable[[bytes], Any]

# Decodes the columns of a sample from its bytes and its location, for errors.
DecodeSample: TypeAlias = Callable[[bytes, str], dict[str, Any]]

# Errors of decoders for bad bytes.
BAD_COLUMN = (
    *(
        ArithmeticError,
        DecodeError,
        EOFError,
        LookupError,
        OSError,
        SyntaxError,
        ValueError,
    ),
    PIL.Image.DecompressionBombError,
)

# Dtypes by code: the number of bits, plus 1 for signed and 2 for floating point.
_DTYPES = {
    8 * size + flag: f"{kind}{8 * size}"
    for flag, kind in enumerate(("uint", "int", "float"))
    for size in (1, 2, 4, 8)
    if (size, kind) != (1, "float")
}

# An array encoding, with dtype and shape if fixed; shard files are below 2**32 bytes.
_DTYPE_PATTERN = "|".join(_DTYPES.values())
_SHAPE_PATTERN = "[0-9]{1,10}(?:,[0-9]{1,10})*"
_NDARRAY = re.compile(rf"ndarray(?::({_DTYPE_PATTERN})(?::({_SHAPE_PATTERN}))?)?")


def _column_decoder(
    encoding: str, location: str, decoders: Mapping[str, Decode], allow_pickles: bool
) -> Decode:
    """Return the decoder of an encoding; bad bytes raise one of `BAD_COLUMN`.

    Raises `DatasetError` for an unknown encoding, and `UntrustedCodeError` for pickles,
    which could run any program, unless `allow_pickles`.
    """
    if decoders is not _TEXTS and encoding == "pkl":
        if allow_pickles:
            return pickle.loads
        raise UntrustedCodeError(
            f"{location} contains an unsafe type: pickles (pkl) can run any program. "
            "Write the folder again with another encoding (json, ndarray or bytes), "
            "or, if you trust its author, use MdsSource(allow_pickles=True)"
        )
    array = None if decoders is _TEXTS else _NDARRAY.fullmatch(encoding)
    if array is not None:
        dtype = np.dtype(array[1]) if array[1] else None
        return partial(
            _array, dtype, tuple(map(int, array[2].split(","))) if array[2] else None
        )
    if encoding not in decoders:
        arrays = "" if decoders is _TEXTS else ", ndarray:DTYPE:SIZE,SIZE"
        raise DatasetError(
            f"{location} has the encoding {encoding!r}, which is not one of "
            f"{', '.join(decoders)}{arrays}{nearest(encoding, [*decoders])}"
        )
    return decoders[encoding]


def _array(
    dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, data: bytes
) -> npt.NDArray[Any]:
    """Decode an array; variable dtype and shape precede the values."""
    at = 0
    if dtype is None:
        dtype = np.dtype(_DTYPES[data[at]])
        at += 1
    if shape is None:
        axes, width = divmod(data[at], 4)
        sizes = np.frombuffer(data, f"<u{2**width}", axes, at + 1)
        shape = tuple(sizes.tolist())
        at += 1 + sizes.nbytes
    values = np.frombuffer(data, dtype.newbyteorder("<"), math.prod(shape), at)
    if at + values.nbytes != len(data):
        raise ValueError(
            f"{len(data)} bytes are too many for an array of shape {shape}"
        )
    return values.reshape(shape).astype(dtype)


def _scalar(dtype: str, data: bytes) -> Any:
    values = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
    if len(values) != 1:
        raise ValueError(f"its dtype must be {dtype}")
    return values.astype(dtype)[0]


def _text_as(convert: Callable[[str], Any], data: bytes) -> Any:
    return convert(data.decode())


def _image(data: bytes) -> PIL.Image.Image:
    image = open_image(io.BytesIO(data))
    image.load()
    return image


def _raw_image(data: bytes) -> PIL.Image.Image:
    """Decode pixels after a header: width, height, length of the mode, and the mode."""
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode = data[12 : 12 + length].decode("ascii")
    limits.decoding.spend(4 * width * height)
    return PIL.Image.frombytes(mode, (width, height), data[12 + length :])


def _several(decode: Decode, skipped: int, data: bytes) -> list[Any]:
    """Decode a list: `skipped` bytes, the number of values, their sizes, the values."""
    [count] = np.frombuffer(data, "<u4", 1, skipped).tolist()
    begin = skipped + 4 * (1 + count)
    ends = begin + np.cumsum(
        [0, *np.frombuffer(data[skipped + 4 : begin], "<u4")], dtype=np.int64
    )
    if len(ends) != 1 + count or ends[-1] != len(data):
        raise ValueError(f"{len(data)} bytes do not fit {count} values")
    return [decode(data[start:end]) for start, end in pairwise(ends.tolist())]


def _decoders(image: Decode) -> Mapping[str, Decode]:
    """Return the decoders by encoding; `image` decodes image files."""
    return {
        "bytes": bytes,
        "str": bytes.decode,
        "int": lambda data: int(_scalar("int64", data)),
        "json": load_json,
        "str_int": partial(_text_as, int),
        "str_float": partial(_text_as, float),
        "str_decimal": partial(_text_as, Decimal),
        "pil": _raw_image,
        "list[pil]": partial(_several, _raw_image, 4),
        **dict.fromkeys(("jpeg", "png"), image),
        **dict.fromkeys(("jpeg_array", "jpegarray"), partial(_several, image, 0)),
        **dict.fromkeys(("list[jpeg]", "list[png]"), partial(_several, image, 4)),
        **{dtype: partial(_scalar, dtype) for dtype in _DTYPES.values()},
    }


_DECODERS = _decoders(_image)
_UNDECODED = _decoders(bytes)
_TEXTS: Mapping[str, Decode] = {
    "str": bytes.decode,
    "int": partial(_text_as, int),
    "float": partial(_text_as, float),
}
_SEPARATORS = {"csv": ",", "tsv": "\t"}


class Loose(BaseModel):
    """A mapping in a file that may have additional keys."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Layout(Loose):
    """The columns of a shard.

    MDS columns have fixed sizes in bytes, or None; row formats have a newline and a
    separator.
    """

    version: Literal[2]
    format: Literal["mds", "json", "csv", "tsv", "xsv"]
    column_names: Listed[str] = ()
    column_encodings: Listed[str] = ()
    column_sizes: Listed[Annotated[int, Field(ge=0)] | None] = ()
    columns: dict[str, str] = {}
    newline: str = ""
    separator: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        counts = {len(self.column_names), len(self.column_encodings)}
        if self.format == "mds":
            counts.add(len(self.column_sizes))
        elif not self.newline:
            raise ValueError("newline must not be empty")
        if len(counts) > 1:
            raise ValueError("names, encodings and sizes of columns differ in number")
        if not (self.columns if self.format == "json" else self.column_names):
            raise ValueError("columns are missing")
        if self.format == "xsv" and not self.separator:
            raise ValueError("separator must not be empty")
        return self

    def decoder(
        self, location: str, allow_pickles: bool, raw: bool = False
    ) -> DecodeSample:
        """Return the decoder of samples of this layout.

        Args:
            location: Name of the shard in errors.
            allow_pickles: Whether to decode pickles.
            raw: Whether to leave image files as bytes.

        Raises:
            DatasetError: If an encoding is unknown.
        """
        named = zip(self.column_names, self.column_encodings, strict=True)
        if self.format != "mds":
            by_encoding = _TEXTS
        elif raw:
            by_encoding = _UNDECODED
        else:
            by_encoding = _DECODERS
        decoders = {
            name: _column_decoder(
                encoding, f"{location}: column {name!r}", by_encoding, allow_pickles
            )
            for name, encoding in (self.columns or dict(named)).items()
        }
        return partial(self._decoded, decoders)

    @limits.decoding
    def _decoded(
        self, decoders: dict[str, Decode], data: bytes, location: str
    ) -> dict[str, Any]:
        sample: dict[str, Any] = {}
        reason = ""
        try:
            if self.format == "json":
                return self._row(data)
            pieces = (
                self._sliced(data) if self.format == "mds" else self._separated(data)
            )
            for (name, decode), piece in zip(decoders.items(), pieces, strict=True):
                reason = f"column {name!r} of {len(piece)} bytes cannot be decoded: "
                sample[name] = decode(piece)
        except BAD_COLUMN as error:
            reason += (
                f"{type(error).__name__}: {error} (the sample begins with "
                f"{data[:40]!r})"
            )
            raise DecodeError(f"{location}: {reason}") from error
        return sample

    def _sliced(self, data: bytes) -> list[bytes]:
        """Return the columns of an MDS sample; variable sizes precede them."""
        unknown = sum(not size for size in self.column_sizes)
        variable_sizes = iter(np.frombuffer(data, "<u4", unknown).tolist())
        sizes = [size or next(variable_sizes) for size in self.column_sizes]
        if 4 * unknown + sum(sizes) != len(data):
            raise ValueError(
                f"its columns have {sum(sizes)} bytes, but the sample has {len(data)}"
            )
        ends = accumulate(sizes, initial=4 * unknown)
        return [data[start:end] for start, end in pairwise(ends)]

    def _separated(self, data: bytes) -> list[bytes]:
        separator = _SEPARATORS.get(self.format, self.separator)
        newline = self.newline.encode()
        pieces = data.removesuffix(newline).split(separator.encode())
        if not data.endswith(newline) or len(pieces) != len(self.column_names):
            raise ValueError(
                f"a line must have {len(self.column_names)} columns separated by "
                f"{separator!r}, got {len(pieces)}"
            )
        return pieces

    def _row(self, data: bytes) -> dict[str, Any]:
        sample = load_json(data.removesuffix(self.newline.encode()))
        if not isinstance(sample, dict) or not sample.keys() >= self.columns.keys():
            raise ValueError(
                f"it must be an object with {', '.join(map(repr, self.columns))}"
            )
        return sample


INDEX = "index.json"

_UNPACKED_BYTES = 2**29

# Size of the header after the table of offsets of a shard.
_HEADER = 2**14
# Offsets have 32 bits, so no file of a shard is larger.
_MOST_BYTES = 2**32
_LONGEST_HEADER = 16 * 1024 * 1024
_EXTRA = "energize[mds]"
_AGAIN = "Copy the folder again"

# Modules of cramjam by the names of compressions in an index.
_UNPACKERS = {
    "br": "brotli",
    "bz2": "bzip2",
    "gz": "gzip",
    "snappy": "snappy",
    "zstd": "zstd",
}


def _file_name(name: str) -> str:
    """Check that a name stays inside the folder, also in subfolders."""
    if not is_inside(name):
        raise ValueError(f"{name!r} must be the name of a file in the folder")
    return name


class MdsFile(Loose):
    """A file in the index: path in the folder, size, and hashes by algorithm."""

    name: Annotated[str, AfterValidator(_file_name)] = Field(alias="basename")
    size: Annotated[int, Field(alias="bytes", ge=0, le=_MOST_BYTES)]
    hashes: dict[str, str] | None = None

    @property
    def basename(self) -> str:
        """The path, as MosaicML Streaming calls it."""
        return self.name

    @property
    def bytes(self) -> int:
        """The size, as MosaicML Streaming calls it."""
        return self.size


# A file of a shard, and its compressed form, if any.
MdsPart: TypeAlias = tuple[MdsFile, MdsFile | None]


class MdsShard(Loose):
    """A shard in the index; offsets are in `raw_meta`, or at the start of the data."""

    samples: Annotated[int, Field(ge=0)]
    layout: Layout
    compression: str | None = None
    raw_data: MdsFile
    zip_data: MdsFile | None = None
    raw_meta: MdsFile | None = None
    zip_meta: MdsFile | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_layout(cls, entry: Any) -> Any:
        return {**entry, "layout": entry} if isinstance(entry, dict) else entry

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if (self.raw_meta is None) != (self.layout.format == "mds"):
            raise ValueError(
                "raw_meta must be present for shards of rows and absent for others"
            )
        file, _ = self.parts[0]
        if 4 * (self.samples + 2) > file.size:
            raise ValueError(
                f"{file.name} of {file.size} bytes has no room for the offsets of "
                f"{self.samples} samples"
            )
        return self

    def __len__(self) -> int:
        return self.samples

    @property
    def parts(self) -> list[MdsPart]:
        """The part with the offsets and, if separate, the part with the data."""
        data = self.raw_data, self.zip_data
        return (
            [data] if self.raw_meta is None else [(self.raw_meta, self.zip_meta), data]
        )


class _Index(Loose):
    version: Literal[2]
    shards: Annotated[Listed[MdsShard], FailFast()]


_INDEX = TypeAdapter(_Index)


def read_mds_index(folder: Path) -> tuple[MdsShard, ...]:
    """Return the shards of a folder, in order.

    Args:
        folder: The folder with `index.json`.

    Returns:
        The shards.

    Raises:
        DatasetNotFoundError: If there is no index.
        DatasetError: If the index is invalid, not of version 2, or lists a file twice.
        EmptyDatasetError: If the shards have no samples.
    """
    path = folder / INDEX
    index = read_document(path, _INDEX)
    if index is None:
        raise DatasetNotFoundError(
            f"{folder} is not a folder of MDS shards: it has no {INDEX}. If its "
            "subfolders have one, pass a subfolder as split, or merge their indices "
            "with merge_index of MosaicML Streaming"
        )
    shards = index.shards
    for name, count in Counter(
        raw.name for shard in shards for raw, _ in shard.parts
    ).items():
        if count > 1:
            again = "Merge the indices of the subfolders again"
            raise DatasetError(f"{path}: {name} is listed twice. {again}")
    if not any(shard.samples for shard in shards):
        raise EmptyDatasetError(f"{path}: the {len(shards)} shards have no samples")
    return shards


def unpacked(
    packed: bytes, compression: str | None, size: int, path: str
) -> memoryview:
    """Decompress bytes, using no more memory than for `size` bytes.

    Args:
        packed: The compressed bytes.
        compression: Name of the algorithm in the index.
        size: Size of the result.
        path: Name of the file in errors.

    Returns:
        The decompressed bytes.

    Raises:
        ShardError: If the bytes are damaged, have another size, or the algorithm is
            unknown.
        ConfigError: If the package for the algorithm is not installed.
    """
    algorithm = str(compression).partition(":")[0]
    if algorithm not in _UNPACKERS:
        raise ShardError(
            f"{path} is compressed with {algorithm!r}, which is not one of "
            f"{', '.join(_UNPACKERS)}. Decompress it in the same folder, under its "
            "name in the index"
        )
    cramjam = optional_module(
        "cramjam", _EXTRA, f"reading {path}, which is compressed,"
    )
    function = "decompress_raw_into" if algorithm == "snappy" else "decompress_into"
    try:
        limits.decoding.spend(size)
        data = bytearray(size)
        written = getattr(getattr(cramjam, _UNPACKERS[algorithm]), function)(
            packed, data
        )
        if written != size:
            raise ValueError(f"it has {written}")
    except (DecodeError, MemoryError, ValueError, cramjam.DecompressionError) as error:
        raise ShardError(
            f"{path} cannot be unpacked into the {size} bytes of the index "
            f"({type(error).__name__}: {error}): it is damaged or was replaced. "
            f"{_AGAIN}"
        ) from error
    return memoryview(data)


def new_hash(algorithm: str) -> Any:
    """Return a new hash object of hashlib or xxhash; `ConfigError` if unknown."""
    if algorithm in hashlib.algorithms_available and not algorithm.startswith("shake_"):
        return hashlib.new(algorithm, usedforsecurity=False)
    if algorithm in xxhash.algorithms_available:
        return getattr(xxhash, algorithm)()
    raise ConfigError(
        f"validate_hash={algorithm!r} must be an algorithm of hashlib or xxhash"
    )


class MdsSource(ShardedSource[dict[str, Any]]):
    """The samples of a folder written by MosaicML Streaming.

    Shards are MDS, JSON, CSV, TSV or XSV, in subfolders too if `index.json` is merged.
    A sample is a new dict of its columns. In MDS shards, columns of the encodings jpeg,
    png and pil become loaded Pillow images, those of jpeg_array and list[...] lists of
    images. ndarray columns become writable arrays; others become Python or numpy
    scalars, str, bytes and JSON values.

    Opening reads `index.json` only. Compressed shards (br, bz2, gz, snappy or zstd,
    which need `energize[mds]`) are decompressed as a whole in memory, where each
    process caches up to 512 MiB of them. So read them nearly in order, or decompress
    folders that you shuffle as a whole. A shard in both forms is read uncompressed.

    Reading raises `ShardError` if a shard is missing or contradicts the index in size,
    samples or columns; a single damaged sample is a `Failed` with a `DecodeError`.

    Args:
        path: The folder.
        split: Name of a subfolder; empty for the folder itself.
        validate_hash: Algorithm, one of the writer's `hashes`: each process then
            verifies every file before its first sample. None to verify nothing.
        allow_pickles: Whether to decode pickles, which can run any program.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of the same folder.

    Raises:
        DatasetNotFoundError: If the folder has no index.
        DatasetError: If the index is invalid.
        EmptyDatasetError: If the shards have no samples.
    """

    order_name = "MdsSource"

    path: Path
    split: str
    validate_hash: str | None
    allow_pickles: bool
    entries: tuple[MdsShard, ...]
    _raw: ClassVar[bool] = False

    @convert_os_errors
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str = "",
        validate_hash: str | None = None,
        allow_pickles: bool = False,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        entries = read_mds_index(path_of(path) / split)
        self.freeze(
            path=path_of(path),
            split=split,
            validate_hash=validate_hash,
            entries=entries,
            shards=tuple(shard.raw_data.name for shard in entries),
            counts=tuple(shard.samples for shard in entries),
            seed=seed,
            occurrence=occurrence,
            allow_pickles=allow_pickles,
        )
        _ = self._decoders  # raises for unknown encodings
        if validate_hash is not None:
            new_hash(validate_hash)

    @cached_property
    def identity(self) -> str:
        shards = [
            [shard.raw_data.name, shard.samples, shard.raw_data.size]
            for shard in self.entries
        ]
        return digest(
            [self.earlier_name or self.path.absolute().name, self.split, shards]
        )

    @cached_property
    def name(self) -> str:
        return "/".join(filter(None, [self.path.absolute().name, self.split]))

    def indexing_hint(self, name: str) -> str:
        return (
            "MDS shards would be read whole to measure it. Write them into a folder "
            "of tars"
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"shards": len(self.entries)}

    @property
    def location(self) -> str:
        return str((self.path / self.split).absolute())

    def location_in_shard(self, shard: int, number: int) -> str:
        return f"{self._folder}/{self.shards[shard]}, sample {number}"

    def read_shard(
        self, shard: int, numbers: list[int]
    ) -> list[dict[str, Any] | Failed]:
        entry = self.entries[shard]
        if shard not in self._looked_at:
            unread = np.flatnonzero(np.equal(self.counts, 0))  # not read otherwise
            for other in {shard, *unread.tolist()}.difference(self._looked_at):
                self._compare(self.entries[other])
                self._looked_at.add(other)
        starts, stops = self._offsets(entry, numbers)
        begin = 4 * (entry.samples + 2) if entry.raw_meta is None else 0
        for number, start, stop in zip(numbers, starts, stops, strict=True):
            if not begin <= start <= stop <= entry.raw_data.size:
                raise ShardError(
                    f"{self.location_in_shard(shard, number)} has the offsets {start} "
                    f"to {stop}: the shard is damaged. {_AGAIN}"
                )
        texts = self._ranges(entry, entry.parts[-1], starts, stops)
        return [
            self._decoded(shard, number, text)
            for number, text in zip(numbers, texts, strict=True)
        ]

    def _offsets(
        self, entry: MdsShard, numbers: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Return start and end of samples in their file."""
        part = entry.parts[0]
        at = [4 * (number + 1) for number in numbers]
        if self._files.remote and part[1] is None:
            head = partial(self._ranges, entry, part, [0], [4 * (entry.samples + 2)])
            table = self._unpacked.get(
                self._path(part[0]), lambda: memoryview(next(head()))
            )
            offsets = b"".join(table[offset : offset + 8] for offset in at)
        else:
            offsets = b"".join(
                self._ranges(entry, part, at, [offset + 8 for offset in at])
            )
        starts, stops = np.frombuffer(offsets, "<u4").reshape(-1, 2).T.tolist()
        return starts, stops

    def index_ranges(self, shard: int) -> list[Ranges]:
        entry = self.entries[shard]
        head, packed = entry.parts[0]
        if packed is not None or self.validate_hash is not None:
            return [(self._path(zipped or raw), [], []) for raw, zipped in entry.parts]
        return [
            (self._path(head), [0], [min(4 * (entry.samples + 2) + _HEADER, head.size)])
        ]

    def sample_ranges(self, shard: int, numbers: Sequence[int]) -> list[Ranges]:
        entry = self.entries[shard]
        data, packed = entry.parts[-1]
        if packed is not None or self.validate_hash is not None:
            return []
        return [(self._path(data), *self._offsets(entry, numbers))]

    def _decoded(self, shard: int, number: int, data: bytes) -> dict[str, Any] | Failed:
        location = self.location_in_shard(shard, number)
        try:
            return self._decoders[shard](data, location)
        except DecodeError as reason:
            return Failed(reason, location)

    def _compare(self, shard: MdsShard) -> None:
        """Compare the header of a shard with the index: its samples and its columns."""
        part = shard.parts[0]
        path = self._path(part[0])
        head = next(self._ranges(shard, part, [0], [8]))
        samples, first = np.frombuffer(head, "<u4").tolist()
        if samples != shard.samples:
            text = f"{path} has {samples} samples, but the index lists {shard.samples}"
            raise ShardError(f"{text}: it was replaced. {_AGAIN}")
        start = 4 * (samples + 2)
        stop = part[0].size if shard.raw_meta else min(first, part[0].size)
        try:
            if not start <= stop <= start + _LONGEST_HEADER:
                raise ValueError(f"its header would have {stop - start} bytes")
            header = parse_json(next(self._ranges(shard, part, [start], [stop])))
            if (layout := Layout.model_validate(header)) != shard.layout:
                raise ValueError(f"it has {layout}, but {INDEX} has {shard.layout}")
        except ValueError as error:
            text = (
                f"{path}: its header is damaged or belongs to other files "
                f"({str(error)[:600]})"
            )
            raise ShardError(f"{text}; {_AGAIN}") from error

    def _ranges(
        self, shard: MdsShard, part: MdsPart, starts: list[int], stops: list[int]
    ) -> Iterator[bytes]:
        """Return bytes of a file of a shard, on disk or decompressed in memory."""
        raw, packed = part
        path = self._path(raw)
        if packed is None or (
            self._path(packed) not in self._looked_at and exists(path)
        ):
            self._check(raw)
            return self._files.read_ranges(path, starts, stops)
        self._check(packed)
        packed_path = self._path(packed)
        compression = shard.compression
        read = partial(self._files.read, packed_path)
        data = self._unpacked.get(
            path, lambda: unpacked(read(), compression, raw.size, packed_path)
        )
        return (
            bytes(data[start:stop]) for start, stop in zip(starts, stops, strict=True)
        )

    def _check(self, file: MdsFile) -> None:
        """Raise `ShardError` unless a file has the size and the hash of the index."""
        path = self._path(file)
        if path in self._looked_at:
            return
        size = self._files.size(path)
        if size != file.size:
            text = f"{path} has {size} bytes, but the index lists {file.size}"
            raise ShardError(f"{text}: it is truncated or was replaced. {_AGAIN}")
        if self.validate_hash is not None:
            hashed = new_hash(self.validate_hash)
            for data in self._files.pieces(path):
                hashed.update(data)
            expected = (file.hashes or {}).get(self.validate_hash)
            if expected is None:
                raise DatasetError(
                    f"{self._folder}: validate_hash={self.validate_hash!r}, but the "
                    f"index has {', '.join(file.hashes or ()) or 'no hashes'} of "
                    f"{file.name}. Set one of these, or write the folder with "
                    "hashes=[...]"
                )
            if (hexdigest := hashed.hexdigest()) != expected:
                text = (
                    f"{path} has the {self.validate_hash} {hexdigest}, but the index "
                    f"lists {expected}"
                )
                raise ShardError(f"{text}: it was changed or damaged. {_AGAIN}")
        self._looked_at.add(path)

    def _path(self, file: MdsFile) -> str:
        return f"{self._folder}/{file.name}"

    @cached_property
    def _decoders(self) -> list[DecodeSample]:
        """The decoder of each shard; columns may differ between shards."""
        shown = [str(shard.layout) for shard in self.entries]
        different = {
            text: shard.layout for text, shard in zip(shown, self.entries, strict=True)
        }
        decoders = {
            text: layout.decoder(self._folder, self.allow_pickles, self._raw)
            for text, layout in different.items()
        }
        return [decoders[text] for text in shown]

    @cached_property
    def _folder(self) -> str:
        return str(self.path / self.split)

    @cached_property
    def _unpacked(self) -> Recent[str, memoryview]:
        """Decompressed shards; for object storage, also tables of offsets."""
        return Recent(_UNPACKED_BYTES, len)

    @cached_property
    def _looked_at(self) -> set[str | int]:
        """Files and shards that were already compared with the index."""
        return set()


class MdsFiles(MdsSource):
    """The same samples, but with image files as undecoded bytes."""

    order_name = "MdsFiles"

    _raw = True
