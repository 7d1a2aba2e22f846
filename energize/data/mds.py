"""Folders of MDS shards: their index, in which files and where the samples lie, and the source."""

from __future__ import annotations

import hashlib
import io
import math
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from energize.core.checks import checked_whole
from energize.core.description import digest
from energize.core.lazy import optional_module
from energize.core.trace import Failed
from energize.core.validation import Listed, faults, load_json, read_document
from energize.data.files import Files, Recent, files_at, own_errors
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

# The columns of a sample by name, from its bytes and where it is; a `DecodeError` says both.
DecodeSample: TypeAlias = Callable[[bytes, str], dict[str, Any]]

# What decoders raise for bad bytes.
BAD_COLUMN = (
    *(ArithmeticError, EOFError, LookupError, OSError, SyntaxError, ValueError),
    PIL.Image.DecompressionBombError,
)

# The byte that stands for a dtype: its bits, plus 1 for signed and 2 for floating numbers.
_DTYPES = {
    8 * size + flag: f"{kind}{8 * size}"
    for flag, kind in enumerate(("uint", "int", "float"))
    for size in (1, 2, 4, 8)
    if (size, kind) != (1, "float")
}

# Digits of a size of an array: files of shards have less than 2**32 bytes.
_MOST_DIGITS = 10

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def column_decoder(
    encoding: str, column: str, where: str, *, decode_images: bool, allow_pickles: bool = False
) -> Decode:
    """Return what decodes a column of this encoding; bad bytes raise one of `BAD_COLUMN`.

    bytes, str, json, int (int), uint8 .. float64 (numpy scalars), str_int, str_float, str_decimal;
    ndarray, ndarray:dtype, ndarray:dtype:shape (writable arrays); jpeg, png, pil (Pillow images),
    jpeg_array, list[jpeg], list[png], list[pil] (lists of these). Images that are files stay bytes
    unless `decode_images`.

    Raise `DatasetError` for an unknown encoding, and `UntrustedCodeError` for pickles, which could
    run any program, unless `allow_pickles`.
    """
    name, _, options = encoding.partition(":")
    if name == "pkl":
        if allow_pickles:
            return pickle.loads
        raise UntrustedCodeError(
            f"{where}: column {column!r} contains an unsafe type: pickles (pkl) can run any "
            "program; write the folder again with another encoding (json, ndarray or bytes), or "
            "if you trust who wrote it, MdsSource(allow_pickles=True)"
        )
    if name == "ndarray":
        dtype, _, shape = options.partition(":")
        sizes = shape.split(",") if shape else []
        known = not dtype or dtype in _DTYPES.values()
        if known and all(each.isdecimal() and len(each) <= _MOST_DIGITS for each in sizes):
            fixed = np.dtype(dtype) if dtype else None
            return partial(_array, fixed, tuple(map(int, sizes)) or None)
    if name not in _DECODERS or options:
        raise _unknown(where, column, encoding, [*_DECODERS, "ndarray:DTYPE:SIZE,SIZE"])
    return _DECODERS[name] if decode_images else _UNDECODED.get(name, _DECODERS[name])


def _unknown(where: str, column: str, encoding: str, known: Iterable[str]) -> DatasetError:
    return DatasetError(
        f"{where}: column {column!r} has the encoding {encoding!r}, which is not one of "
        f"{', '.join(known)}{nearest(encoding, list(known))}"
    )


def _array(
    dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, data: bytes
) -> npt.NDArray[Any]:
    """Dtype and shape stand before the values where they are not fixed."""
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
        raise ValueError(f"{len(data)} bytes are too many for an array of shape {shape}")
    return values.reshape(shape).astype(dtype)


def _scalar(dtype: str, data: bytes) -> Any:
    values = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
    if len(values) != 1:
        raise ValueError(f"a {dtype} is expected")
    return values.astype(dtype)[0]


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _text_as(kind: Callable[[str], Any], data: bytes) -> Any:
    return kind(data.decode("utf-8"))


def _image(data: bytes) -> PIL.Image.Image:
    image = PIL.Image.open(io.BytesIO(data), formats=_FORMATS)
    image.load()
    return image


def _raw_image(data: bytes) -> PIL.Image.Image:
    """Three numbers, width, height and the length of the mode's name, stand before the pixels."""
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode = data[12 : 12 + length].decode("ascii")
    if width * height > 8 * len(data):  # before there is memory for it; a pixel has a bit or more
        raise ValueError(f"{len(data)} bytes are too few for {width} x {height} pixels")
    return PIL.Image.frombytes(mode, (width, height), data[12 + length :])


def _several(decode: Decode, before: int, data: bytes) -> list[Any]:
    """Their number and sizes stand before the values, after `before` bytes that say nothing."""
    [count] = np.frombuffer(data, "<u4", 1, before).tolist()
    begin = before + 4 * (1 + count)
    ends = begin + np.cumsum([0, *np.frombuffer(data[before + 4 : begin], "<u4")], dtype=np.int64)
    if len(ends) != 1 + count or ends[-1] != len(data):
        raise ValueError(f"{len(data)} bytes are not those of {count} values")
    return [decode(data[start:end]) for start, end in pairwise(ends.tolist())]


def _of_files(decode: Decode) -> dict[str, Decode]:
    """Decoders of images that are files, by what decodes the bytes of one."""
    return (
        dict.fromkeys(("jpeg", "png"), decode)
        | dict.fromkeys(("jpeg_array", "jpegarray"), partial(_several, decode, 0))
        | dict.fromkeys(("list[jpeg]", "list[png]"), partial(_several, decode, 4))
    )


_PLAIN: dict[str, Decode] = {
    "bytes": bytes,
    "str": _text,
    "int": lambda data: int(_scalar("int64", data)),
    "json": load_json,
    "str_int": partial(_text_as, int),
    "str_float": partial(_text_as, float),
    "str_decimal": partial(_text_as, Decimal),
    "pil": _raw_image,
    "list[pil]": partial(_several, _raw_image, 4),
}
_DECODERS: Mapping[str, Decode] = MappingProxyType(
    _PLAIN | _of_files(_image) | {dtype: partial(_scalar, dtype) for dtype in _DTYPES.values()}
)

# What stands for the decoders of images that are files, where these are to stay bytes.
_UNDECODED: Mapping[str, Decode] = MappingProxyType(_of_files(bytes))

_TEXTS: dict[str, Decode] = {
    "str": _text,
    "int": partial(_text_as, int),
    "float": partial(_text_as, float),
}
_SEPARATORS = {"csv": ",", "tsv": "\t"}


class Loose(BaseModel):
    """A mapping in a file that may have more keys than these."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Layout(Loose):
    """The columns of a shard: of MDS, with sizes in bytes where these are fixed; of rows, with what
    stands after each of them, and between columns.
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
            raise ValueError("nothing stands after a row: newline is text")
        if len(counts) > 1:
            raise ValueError("names, encodings and sizes of columns differ in number")
        if not (self.columns if self.format == "json" else self.column_names):
            raise ValueError("there are no columns")
        if self.format == "xsv" and not self.separator:
            raise ValueError("nothing stands between columns: separator is text")
        return self

    def decoder(
        self, where: str, *, decode_images: bool, allow_pickles: bool = False
    ) -> DecodeSample:
        """Return what decodes the samples of shards of this layout.

        Images stay bytes unless `decode_images`. Raise `DatasetError` for an unknown encoding.
        """
        named = zip(self.column_names, self.column_encodings, strict=True)
        columns = self.columns or dict(named)
        if self.format == "mds":
            sizes = [size or None for size in self.column_sizes]
            decoders = {
                name: column_decoder(
                    encoding,
                    name,
                    where,
                    decode_images=decode_images,
                    allow_pickles=allow_pickles,
                )
                for name, encoding in columns.items()
            }
            return partial(_decoded, decoders, partial(_sliced, sizes))
        for name, encoding in columns.items():
            if encoding not in _TEXTS:
                raise _unknown(where, name, encoding, _TEXTS)
        newline = self.newline.encode()
        if self.format == "json":
            return partial(_json_row, list(columns), newline)
        separator = _SEPARATORS.get(self.format, self.separator).encode()
        decoders = {name: _TEXTS[encoding] for name, encoding in columns.items()}
        return partial(_decoded, decoders, partial(_separated, len(columns), separator, newline))


def _decoded(
    decoders: dict[str, Decode], cut: Callable[[bytes], list[bytes]], data: bytes, where: str
) -> dict[str, Any]:
    sample: dict[str, Any] = {}
    what = ""
    try:
        for (name, decode), piece in zip(decoders.items(), cut(data), strict=True):
            what = f"column {name!r} of {len(piece)} bytes cannot be decoded: "
            sample[name] = decode(piece)
    except BAD_COLUMN as error:
        what += f"{type(error).__name__}: {error}; the sample begins with {data[:40]!r}"
        raise DecodeError(f"{where}: {what}") from error
    return sample


def _sliced(fixed: list[int | None], data: bytes) -> list[bytes]:
    """Return the columns of an MDS sample, after the sizes of those that have no fixed one."""
    unknown = fixed.count(None)
    given = iter(np.frombuffer(data, "<u4", unknown).tolist())
    sizes = [next(given) if size is None else size for size in fixed]
    if 4 * unknown + sum(sizes) != len(data):
        raise ValueError(f"its columns have {sum(sizes)} bytes, and it {len(data)}")
    ends = np.cumsum([4 * unknown, *sizes], dtype=np.int64).tolist()
    return [data[start:end] for start, end in pairwise(ends)]


def _separated(count: int, separator: bytes, newline: bytes, data: bytes) -> list[bytes]:
    pieces = data.removesuffix(newline).split(separator)
    if not data.endswith(newline) or len(pieces) != count:
        raise ValueError(
            f"a line of {count} columns with {separator.decode()!r} between them is expected, and "
            f"it has {len(pieces)}"
        )
    return pieces


def _json_row(names: list[str], newline: bytes, data: bytes, where: str) -> dict[str, Any]:
    try:
        sample = load_json(data.removesuffix(newline))
        if not isinstance(sample, dict) or not sample.keys() >= set(names):
            raise ValueError(f"an object with {', '.join(map(repr, names))} is expected")
    except (ValueError, RecursionError) as error:
        raise DecodeError(
            f"{where} is not JSON of a sample: {error}; it begins with {data[:40]!r}"
        ) from error
    return sample


INDEX = "index.json"
UNPACKED_BYTES = 2**29

# Offsets have 32 bits, so no file of a shard is larger.
_MOST_BYTES = 2**32
_LONGEST_HEADER = 16 * 1024 * 1024
_BLOCK = 2**23
_EXTRA = "energize[mds]"
_AGAIN = "copy the folder again"

# The part of cramjam, and its function, for each compression by its name in an index.
_UNPACKERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "br": ("brotli", "decompress_into"),
        "bz2": ("bzip2", "decompress_into"),
        "gz": ("gzip", "decompress_into"),
        "snappy": ("snappy", "decompress_raw_into"),
        "zstd": ("zstd", "decompress_into"),
    }
)


def _file_name(name: str) -> str:
    """Return a file in the folder or a subfolder: an index may not lead out of it."""
    path = PurePosixPath(name)
    plain = str(path) == name and "\\" not in name and "\0" not in name
    if not plain or name == "." or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is not the name of a file in the folder")
    return name


class MdsFile(Loose):
    """A file as the index has it: its path in the folder, its size and its hashes by algorithm."""

    name: Annotated[str, AfterValidator(_file_name)] = Field(alias="basename")
    size: Annotated[int, Field(alias="bytes", ge=0, le=_MOST_BYTES)]
    hashes: dict[str, str] | None = None


# A file of a shard, and the compressed one that may lie there besides or instead.
MdsPart: TypeAlias = tuple[MdsFile, MdsFile | None]


class MdsShard(Loose):
    """A shard as the index has it. Offsets are in a file of their own, `raw_meta`, or at the
    beginning of the data.
    """

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
            raise ValueError("a shard of rows has its offsets in raw_meta, and no other shard has")
        file, _ = self.parts[0]
        if 4 * (self.samples + 2) > file.size:
            raise ValueError(
                f"{file.name} of {file.size} bytes has no room for the offsets of {self.samples} "
                "samples"
            )
        return self

    @property
    def parts(self) -> list[MdsPart]:
        """The part that has the offsets, and, if that is another one, the data."""
        data = self.raw_data, self.zip_data
        return [data] if self.raw_meta is None else [(self.raw_meta, self.zip_meta), data]


class _Index(Loose):
    version: Literal[2]
    shards: Annotated[Listed[MdsShard], FailFast()]


_INDEX = TypeAdapter(_Index)
_LAYOUT = TypeAdapter(Layout)


def read_mds_index(folder: Path) -> tuple[MdsShard, ...]:
    """Return the shards of a folder, in their order.

    Raise `DatasetNotFoundError` if there is no index, `DatasetError` if it is not one of shards of
    version 2 or lists a file twice, `EmptyDatasetError` if the shards hold no sample.
    """
    path = folder / INDEX
    index = read_document(path, _INDEX)
    if index is None:
        inner = sorted(each.parent.name for each in folder.glob(f"*/{INDEX}"))
        hint = (
            f", but {len(inner)} of its subfolders do ({', '.join(inner[:3])}, ...): name one as "
        )
        hint += "split, or make one index of them with merge_index of MosaicML Streaming"
        raise DatasetNotFoundError(
            f"{folder} is not a folder of MDS shards: it has no {INDEX}{hint if inner else ''}"
        )
    shards = index.shards
    known: dict[str, int] = {}
    for number, shard in enumerate(shards):
        for raw, _ in shard.parts:
            first = known.setdefault(raw.name, number)
            if first != number:
                text = f"{path}: {raw.name} is listed twice, as shards {first} and {number}"
                raise DatasetError(f"{text}; merge the indices of the subfolders anew")
    if not any(shard.samples for shard in shards):
        raise EmptyDatasetError(f"{path}: the {len(shards)} shards hold no sample")
    return shards


def unpacked(packed: bytes, compression: str | None, size: int, path: str) -> bytes:
    """Return the `size` bytes that `packed` holds.

    No more memory than for these is used, whatever the file would unpack to. Raise `ShardError` for
    another size, damaged bytes and a compression that is not known, `ConfigError` if the package
    for it is not installed.
    """
    kind = str(compression).partition(":")[0]
    if kind not in _UNPACKERS:
        raise ShardError(
            f"{path} is compressed with {kind!r}, which is not one of {', '.join(_UNPACKERS)}; "
            "unpack it in the same folder, under the name that the index has for it"
        )
    cramjam = optional_module("cramjam", _EXTRA, f"reading {path}, which is compressed,")
    module, function = _UNPACKERS[kind]
    try:
        data = bytearray(size)
        written = getattr(getattr(cramjam, module), function)(packed, data)
        if written != size:
            raise ValueError(f"it holds {written}")
    except (MemoryError, ValueError, cramjam.DecompressionError) as error:
        raise ShardError(
            f"{path} cannot be unpacked into the {size} bytes that the index says "
            f"({type(error).__name__}: {error}): it is damaged or another one; {_AGAIN}"
        ) from error
    return bytes(data)


def new_hash(algorithm: str) -> Any:
    """Return an object of this algorithm with `update` and `hexdigest`: of hashlib, or of xxhash,
    which then has to be installed. Raise `ConfigError` if neither knows it.
    """
    if algorithm in hashlib.algorithms_available and not algorithm.startswith("shake_"):
        return hashlib.new(algorithm, usedforsecurity=False)
    if algorithm.startswith("xxh"):
        xxhash = optional_module("xxhash", _EXTRA, f"checking the hash {algorithm}")
        if algorithm in xxhash.algorithms_available:
            return getattr(xxhash, algorithm)()
    raise ConfigError(
        f"validate_hash={algorithm!r} is not one of the algorithms of hashlib and xxhash"
    )


class MdsSource(ShardedSource[dict[str, Any]]):
    """The samples of a folder that MosaicML Streaming's writers wrote: MDS, JSON, CSV, TSV or XSV
    shards, in subfolders too where `index.json` is a merged one.

    A sample is a new dict of its columns by name. Of MDS shards, columns of the encodings jpeg, png
    and pil become Pillow images, loaded, those of jpeg_array and list[...] lists of them; with
    `decode_images=False` all but pil stay bytes. ndarray columns become writable arrays, the others
    Python's or numpy's scalars, str, bytes and values of JSON. Pickles are refused, unless
    `allow_pickles`: they can run any program.

    Opening reads `index.json` only. Shards are read where they lie. Of one that is there only
    compressed, with br, bz2, gz, snappy or zstd (which needs `energize[mds]`), the files are
    unpacked as a whole into memory, where those used last are kept, up to `unpacked_bytes` in each
    process. So compressed shards should be read nearly in order: unpack folders that are to be
    shuffled as a whole. A shard that is there in both forms is read uncompressed.

    With `validate_hash`, the name of an algorithm that the writer was given in `hashes`, each
    process compares every file with its hash before it reads a sample of it.

    Raise `DatasetNotFoundError`, `DatasetError` or `EmptyDatasetError` when it is made. Reading
    raises `ShardError` if a shard is missing or not as the index says, in its size, its samples and
    its columns, of which each shard has a list of its own; a single damaged sample is a `Failed`
    with a `DecodeError`.
    """

    path: Path
    split: str
    decode_images: bool
    unpacked_bytes: int
    validate_hash: str | None
    allow_pickles: bool = False
    entries: tuple[MdsShard, ...]

    @own_errors
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str = "",
        decode_images: bool = True,
        unpacked_bytes: int = UNPACKED_BYTES,
        validate_hash: str | None = None,
        allow_pickles: bool = False,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        unusual: dict[str, Any] = {"allow_pickles": True} if allow_pickles else {}
        self._freeze(
            path=Path(path),
            split=split,
            decode_images=decode_images,
            unpacked_bytes=checked_whole(unpacked_bytes, "MdsSource: unpacked_bytes", 0),
            validate_hash=validate_hash,
            entries=read_mds_index(Path(path) / split),
            seed=seed,
            occurrence=occurrence,
            **unusual,
        )
        _ = self._decoders  # unknown encodings are found now
        if validate_hash is not None:
            self._check_hashes_known(validate_hash)

    @cached_property
    def shards(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(shard.raw_data.name for shard in self.entries)

    @cached_property
    def counts(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(shard.samples for shard in self.entries)

    @cached_property
    def identity(self) -> str:
        shards = [
            [name, shard.samples, shard.raw_data.size]
            for name, shard in zip(self.shards, self.entries, strict=True)
        ]
        return digest([self.path.absolute().name, self.split, shards])

    @cached_property
    def name(self) -> str:
        return "/".join(filter(None, [self.path.absolute().name, self.split]))

    def _how_to_index(self, name: str) -> str:
        return "Of MDS shards each sample would be read for it: write them into a folder of tars"

    def settings(self) -> dict[str, Any]:
        own = {"shards": len(self.entries), "decode_images": self.decode_images}
        return super().settings() | own

    @property
    def location(self) -> str:
        return str((self.path / self.split).absolute())

    def _where(self, shard: int, number: int) -> str:
        return f"{self._folder}/{self.shards[shard]}, sample {number}"

    def _read_shard(self, shard: int, numbers: list[int]) -> list[dict[str, Any] | Failed]:
        entry = self.entries[shard]
        if shard not in self._looked_at:
            self._compare(entry)
            self._looked_at.add(shard)
        # The two offsets of a sample are those of its start and its end.
        at = [4 * (number + 1) for number in numbers]
        found = b"".join(self._ranges(entry, entry.parts[0], at, [each + 8 for each in at]))
        starts, stops = np.frombuffer(found, "<u4").reshape(-1, 2).T.tolist()
        begin = 4 * (entry.samples + 2) if entry.raw_meta is None else 0
        for number, start, stop in zip(numbers, starts, stops, strict=True):
            if not begin <= start <= stop <= entry.raw_data.size:
                text = f"{self._where(shard, number)} would lie at bytes {start} to {stop}"
                raise ShardError(f"{text}: the shard is damaged; {_AGAIN}")
        texts = self._ranges(entry, entry.parts[-1], starts, stops)
        return [
            self._decoded(shard, number, text) for number, text in zip(numbers, texts, strict=True)
        ]

    def _decoded(self, shard: int, number: int, data: bytes) -> dict[str, Any] | Failed:
        where = self._where(shard, number)
        try:
            return self._decoders[shard](data, where)
        except DecodeError as reason:
            return Failed(reason, where)

    def _compare(self, shard: MdsShard) -> None:
        """Compare what a shard says of itself with the index: its samples, and its columns in the
        copy of its entry that it begins with.
        """
        part = shard.parts[0]
        path = self._path(part[0])
        head = next(self._ranges(shard, part, [0], [8]))
        samples, first = np.frombuffer(head, "<u4").tolist()
        if samples != shard.samples:
            text = f"{path} has {samples} samples, but the index says {shard.samples}"
            raise ShardError(f"{text}: it is another one; {_AGAIN}")
        start = 4 * (samples + 2)
        stop = part[0].size if shard.raw_meta else min(first, part[0].size)
        try:
            if not start <= stop <= start + _LONGEST_HEADER:
                raise ValueError(f"it would have {stop - start} bytes")
            header = load_json(next(self._ranges(shard, part, [start], [stop])))
            found = _LAYOUT.validate_python(header)
        except (ValueError, RecursionError) as error:
            what = (
                faults(error, _LAYOUT, header)[0] if isinstance(error, ValidationError) else error
            )
            raise ShardError(f"{path}: its header is damaged ({what}); {_AGAIN}") from error
        if found != shard.layout:
            text = f"{path}: by its header it has {str(found)[:300]}, and by {INDEX} "
            raise ShardError(f"{text}{str(shard.layout)[:300]}: one is of other files; {_AGAIN}")

    def _ranges(
        self, shard: MdsShard, part: MdsPart, starts: list[int], stops: list[int]
    ) -> Iterator[bytes]:
        """Return the bytes of a file of a shard: of where it lies, or of what is unpacked in
        memory.
        """
        raw, packed = part
        path = self._path(raw)
        if packed is None or self._files.exists(path):
            self._check(raw)
            return self._files.read_ranges(path, starts, stops)
        data = self._unpacked.get(path, lambda: self._unpack(shard, raw, packed))
        return (data[start:stop] for start, stop in zip(starts, stops, strict=True))

    def _unpack(self, shard: MdsShard, raw: MdsFile, packed: MdsFile) -> bytes:
        self._check(packed)
        path = self._path(packed)
        return unpacked(self._files.read(path), shard.compression, raw.size, path)

    def _check(self, file: MdsFile) -> None:
        """Raise `ShardError` unless a file has the size and the hash that the index says."""
        path = self._path(file)
        if path in self._looked_at:
            return
        if not self._files.exists(path):
            raise ShardError(f"{path} is missing; {_AGAIN}")
        size = self._files.size(path)
        if size != file.size:
            text = f"{path} holds {size} bytes, but the index says {file.size}"
            raise ShardError(f"{text}: it is cut off or another one; {_AGAIN}")
        if self.validate_hash is not None:
            hashed = new_hash(self.validate_hash)
            for start in range(0, size, _BLOCK):
                hashed.update(self._files.read(path, start, min(start + _BLOCK, size)))
            expected = (file.hashes or {})[self.validate_hash]
            if (found := hashed.hexdigest()) != expected:
                text = f"{path} has the {self.validate_hash} {found}, but the index says {expected}"
                raise ShardError(f"{text}: it was changed or damaged; {_AGAIN}")
        self._looked_at.add(path)

    def _check_hashes_known(self, algorithm: str) -> None:
        new_hash(algorithm)
        files = (file for shard in self.entries for part in shard.parts for file in part if file)
        for file in files:
            if algorithm not in (file.hashes or ()):
                known = ", ".join(file.hashes or ()) or "no hashes"
                raise DatasetError(
                    f"{self._folder}: validate_hash={algorithm!r}, but the index has {known} of "
                    f"{file.name}; name one of those, or write the folder with hashes=[...]"
                )

    def _path(self, file: MdsFile) -> str:
        return f"{self._folder}/{file.name}"

    @cached_property
    def _decoders(self) -> list[DecodeSample]:
        """Those of each shard; shards of one folder may have different columns."""
        known: dict[str, DecodeSample] = {}
        found = []
        for shard in self.entries:
            columns = shard.layout.model_dump_json()
            if columns not in known:
                known[columns] = shard.layout.decoder(
                    self._folder,
                    decode_images=self.decode_images,
                    allow_pickles=self.allow_pickles,
                )
            found.append(known[columns])
        return found

    @cached_property
    def _folder(self) -> str:
        return str(self.path / self.split)

    @cached_property
    def _files(self) -> Files:
        return files_at(self._folder)

    @cached_property
    def _unpacked(self) -> Recent[str, bytes]:
        return Recent(self.unpacked_bytes, len)

    @cached_property
    def _looked_at(self) -> set[str | int]:
        """The files, and the shards, that were compared with the index."""
        return set()
