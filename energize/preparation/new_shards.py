"""Writing samples into new tar shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from PIL import Image

from energize.core.checks import checked_whole
from energize.core.lazy import webdataset
from energize.data.records import checksums_path
from energize.data.tar import scan
from energize.data.writing import NewFiles, remove_left, taken_back_when_stopped, writing
from energize.errors import ConfigError, PrepareError
from energize.preparation.checksums import sample_checksums
from energize.preparation.staging import locked


def write_shards(
    samples: Iterable[Mapping[str, Any]],
    folder: str | Path,
    *,
    samples_per_shard: int = 1000,
    pattern: str = "shard-%06d.tar",
    checksums: bool = False,
) -> list[Path]:
    """Write samples into tar shards of a new folder, ready for `prepare`; the paths of the shards.

    A sample is a dict of its unique `__key__` and its parts by name. Parts are bytes, taken as they
    are, text, or what webdataset encodes by the name of the part: a PIL image or an array as `jpg`
    or `png`, anything of dicts and lists as `json`, a number as `cls`. Names that begin with `_`
    are left out. The same samples give the same bytes. With `checksums` those of each sample are
    written beside the shards, as `prepare_checksums` does later; `prepare` takes them over.

    Shards get their names together, after the last sample. On any error, one that `samples` raises
    too, and when the process is asked to end, all that was written is removed; what a process left
    that was killed, the next that writes to the folder removes.

    Raises `PrepareError` naming a sample without a key or parts, a key that occurs twice or holds a
    dot or a slash, a part that cannot be encoded, a folder that is not empty, a file that cannot be
    written; `ConfigError` for wrong parameters.

    >>> import tempfile
    >>> from energize import WebdatasetSource
    >>> from energize.preparation import prepare
    >>> samples = [{"__key__": f"{i:03d}", "txt": "hello", "json": {"i": i}} for i in range(5)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shards = write_shards(samples, folder, samples_per_shard=2)
    ...     report = prepare(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset")
    ...     source = WebdatasetSource(folder)
    ...     len(shards), report.samples, source[4]["__key__"], source[4]["json"]
    (3, 5, '004', b'{"i": 4}')
    """
    per_shard = checked_whole(samples_per_shard, "write_shards: samples_per_shard", 1)
    _check_pattern(pattern)
    if not isinstance(folder, str | os.PathLike):
        raise ConfigError(
            "write_shards: the folder is a path, and comes after the samples; got a "
            f"{type(folder).__name__}"
        )
    root = Path(folder).absolute()
    with taken_back_when_stopped(), _new_folder(root), NewFiles(PrepareError) as files:
        count = _write(samples, root, pattern, per_shard, files)
        shards = [root / (pattern % number) for number in range(-(-count // per_shard))]
        for shard in shards if checksums else ():
            made = files.place(shard)
            data = sample_checksums(str(made), scan(made))
            files.write(Path(checksums_path(str(shard))), data)
        files.commit()
    return shards


def _check_pattern(pattern: str) -> None:
    try:
        names = [pattern % number for number in (0, 1)]
    except (TypeError, ValueError):
        names = []
    if len(set(names)) < 2 or "/" in names[0] or not names[0].endswith(".tar"):
        raise ConfigError(
            "write_shards: pattern names a shard by its number and ends with .tar, like "
            f"'shard-%06d.tar'; got {pattern!r}"
        )


@contextmanager
def _new_folder(root: Path) -> Iterator[None]:
    """The empty folder `root`, held; when the block raises, it is as it was before."""
    with writing(root, PrepareError):
        made = not root.exists()
        root.mkdir(parents=True, exist_ok=True)
    lock = locked(root)
    try:
        remove_left(root)
        with writing(root, PrepareError):
            found = next(root.iterdir(), None)
        if found is not None:
            raise PrepareError(
                f"{root} is not empty: there is {found.name}; shards are written to a new folder, "
                "so give another one, or empty it"
            )
        try:
            yield
        except BaseException:
            if made:
                with suppress(OSError):
                    root.rmdir()
            raise
    finally:
        os.close(lock)


def _write(
    samples: Iterable[Mapping[str, Any]],
    root: Path,
    pattern: str,
    per_shard: int,
    files: NewFiles,
) -> int:
    """Write shards under temporary names; the number of samples."""
    encode = webdataset.writer.make_encoder(True)
    keys: set[str] = set()
    with ExitStack() as open_shard:
        for number, sample in enumerate(samples):
            key = _checked_key(sample, number)
            if key in keys:
                raise PrepareError(
                    f"sample {number}: its key {key!r} occurs twice; keys are unique"
                )
            keys.add(key)
            encoded = _encoded(sample, encode, f"sample {number}, {key!r}")
            shard = root / (pattern % (number // per_shard))
            if number % per_shard == 0:
                open_shard.close()
                tar = open_shard.enter_context(_tar(files, shard))
            with writing(shard, PrepareError):
                tar.write({"__key__": key} | encoded)
        if not keys:
            raise PrepareError(f"there are no samples to write to {root}")
    return len(keys)


@contextmanager
def _tar(files: NewFiles, shard: Path) -> Iterator[Any]:
    with writing(shard, PrepareError):
        stream = files.create(shard)
    # Names and numbers of any length are what this form of tar has room for.
    tar = webdataset.TarWriter(stream, mtime=0, format="GNU_FORMAT", encoder=False)
    try:
        yield tar
        with writing(shard, PrepareError):
            tar.close()
            stream.close()
    finally:  # what could not be written has been told of
        for each in (tar, stream):
            with suppress(OSError):
                each.close()


def _checked_key(sample: object, number: int) -> str:
    if not isinstance(sample, Mapping):
        raise PrepareError(
            f"sample {number} is a dict of '__key__' and parts; got {type(sample).__name__}"
        )
    key = sample.get("__key__")
    if not isinstance(key, str) or not key:
        raise PrepareError(
            f"sample {number}: '__key__' is a text that no other sample has; got {key!r}, beside "
            f"{', '.join(map(str, sample)) or 'no parts'}"
        )
    if any(each in "./" or not each.isprintable() for each in key):
        raise PrepareError(
            f"sample {number}: the key {key!r} holds a dot, a slash, or what cannot be printed; a "
            "dot ends the key in the name of a file, so write '_' or '-' instead"
        )
    return key


def _encoded(
    sample: Mapping[str, Any], encode: Callable[[Any], Any], where: str
) -> dict[str, bytes]:
    """The parts of a sample as bytes."""
    images = Image.registered_extensions()
    parts: dict[str, bytes] = {}
    for name, value in sample.items():
        if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
            raise PrepareError(
                f"{where}: the name of a part is that of a file after its key, like 'jpg' or "
                f"'seg.png'; got {name!r}"
            )
        if name.startswith("_"):
            continue
        if isinstance(value, str) and f".{name.split('.')[-1].lower()}" in images:
            raise PrepareError(
                f"{where}: part {name!r} is the text {value[:80]!r}; give the bytes of the file, "
                "or a PIL image"
            )
        whole = bytes(value) if isinstance(value, bytearray | memoryview) else value
        try:
            parts[name] = encode({name: whole})[name]
        except Exception as reason:
            raise PrepareError(
                f"{where}: part {name!r}, {type(value).__name__}, cannot be encoded by that name: "
                f"{reason}. Give bytes, which are taken as they are"
            ) from reason
    if not parts:
        raise PrepareError(f"{where} has no parts beside its key")
    return parts
