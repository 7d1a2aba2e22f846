"""Collecting what is known of the images, videos and sounds of a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from energize.core.checks import checked_whole
from energize.data.files import LocalFile
from energize.data.media import MediaFilterConfig, MediaMetadataBase
from energize.data.nv_meta import META_FOLDER, SQLITE_NAME, is_prepared, read_info
from energize.data.stores import SystemFileStore, local_path
from energize.data.tar import scan
from energize.data.writing import os_errors_as, writing
from energize.errors import DatasetNotFoundError, DecodeError, PrepareError, SampleError, ShardError
from energize.preparation.indexing import is_utf8
from energize.preparation.media_index import MediaIndex
from energize.preparation.parallel import default_workers, map_in_order
from energize.preparation.preparing import prepare
from energize.preparation.staging import Staging

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class MediaReport:
    """What was collected: of how many files metadata was written, and `damaged`, what was left out,
    each with its place and the reason.
    """

    path: Path
    count: int
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Run:
    root: Path
    media_filter: MediaFilterConfig
    workers: int
    on_progress: Progress
    tmp_path: Path | None


@dataclass(slots=True)
class _Found:
    """What one shard or file gave."""

    media: list[tuple[str, MediaMetadataBase]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


@os_errors_as(PrepareError, what="cannot be used")
def prepare_media(
    path: str | os.PathLike[str],
    by: str | MediaFilterConfig = "extension",
    *,
    workers: int | None = None,
    on_progress: Progress | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
) -> MediaReport:
    """Store the metadata of all media of a folder, for `store.get_media_metadata(name)`.

    `path` is a folder prepared by `energize prepare` or Energon, or a plain one. `by` says which
    files are media: "extension", "header", patterns such as "*.jpg,*.png", or a
    `MediaFilterConfig`. Files are read and images decoded in `workers` processes. The metadata goes
    into `.nv-meta/index.sqlite`, beside what is there, and is there when all has been read; a
    prepared folder without that file gets one. `tmp_path` is a folder in which it is built.
    `on_progress` is called with how many shards or files are done, and how many there are.

    Damaged media are no error: they are in the report, and have no metadata. Raises
    `PrepareError` when there is no media at all, for damaged shards, and when a process is killed;
    `ConfigError` for wrong arguments, and when a video is met without PyAV;
    `DatasetNotFoundError`.

    >>> import tempfile
    >>> from energize.preparation import prepare, write_shards
    >>> from energize.cache import WebdatasetFileStore
    >>> from PIL import Image
    >>> folder = tempfile.mkdtemp()
    >>> image = Image.new("RGB", (8, 4))
    >>> _ = write_shards([{"__key__": "a", "png": image}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sqlite=True)
    >>> prepare_media(folder).count
    1
    >>> WebdatasetFileStore(folder).get_media_metadata("a.png").width
    8
    """
    root = local_path(path)
    if not root.is_dir():
        raise DatasetNotFoundError(f"{root} does not exist, or is no folder")
    run = _Run(
        root,
        _filter(by),
        default_workers() if workers is None else checked_whole(workers, "workers", 1),
        on_progress or _silent,
        None if tmp_path is None else Path(tmp_path),
    )
    if not is_prepared(root):
        return _of_folder(run)
    if not (root / META_FOLDER / SQLITE_NAME).exists():
        prepare(root, tar_index_only=True, sqlite=True, workers=run.workers)
    return _collected(run, partial(_of_shard, root, run.media_filter), _shards(root))


def prepare_filesystem_dataset(
    root_path: str | os.PathLike[str],
    media_filter: MediaFilterConfig,
    *,
    progress: bool = False,
    workers: int = 16,
    index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
) -> int:
    """Store the metadata of all media below a plain folder; returns of how many files.

    As `prepare_media` does, which says more: this one raises `PrepareError` for damaged media.
    """
    tmp = None if index_sqlite_tmp_path is None else Path(index_sqlite_tmp_path).parent
    root = local_path(root_path)
    if not root.is_dir():
        raise DatasetNotFoundError(f"{root} does not exist, or is no folder")
    report = _of_folder(_Run(root, media_filter, workers, _silent, tmp))
    if report.damaged:
        listed = "\n  ".join(report.damaged[:20])
        raise PrepareError(
            f"{root}: {len(report.damaged)} files are damaged, the metadata of the other "
            f"{report.count} was written:\n  {listed}"
        )
    return report.count


def _filter(by: str | MediaFilterConfig) -> MediaFilterConfig:
    if isinstance(by, MediaFilterConfig):
        return by
    kind = by.lower()
    if kind in ("extension", "header"):
        return MediaFilterConfig.parse(header=kind == "header", extension=kind == "extension")
    return MediaFilterConfig.parse(glob=by)


def _of_folder(run: _Run) -> MediaReport:
    names = sorted(_files(run.root, run.media_filter))
    return _collected(run, partial(_of_file, SystemFileStore(run.root), run.media_filter), names)


def _shards(root: Path) -> list[str]:
    return list(read_info(root).shard_counts)


def _files(root: Path, media_filter: MediaFilterConfig) -> Iterator[str]:
    """The names of files below `root` that may be media; hidden ones and `.nv-meta` are none."""
    for folder, inner, files in os.walk(root, onerror=_unreadable):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for file in files:
            name = os.path.relpath(os.path.join(folder, file), root)
            if not file.startswith(".") and media_filter.should_consider_media(name):
                if not is_utf8(name):
                    raise PrepareError(
                        f"{root}: the name {name!r} is no UTF-8, so that the index cannot hold it; "
                        "rename the file (convmv does it for whole folders)"
                    )
                yield name


def _unreadable(reason: OSError) -> None:
    raise PrepareError(f"{reason.filename} cannot be read: {reason.strerror}") from reason


def _of_file(store: SystemFileStore, media_filter: MediaFilterConfig, name: str) -> _Found:
    found = _Found()
    try:
        with store.open(name) as file:
            metadata = media_filter.extract_metadata(file, name)
    except SampleError as reason:
        found.gone.append(name)
        found.damaged.append(f"{store.get_path()}: {reason}")
        return found
    if metadata is not None:
        found.media.append((name, metadata))
    return found


def _of_shard(root: Path, media_filter: MediaFilterConfig, shard: str) -> _Found:
    path = root / shard
    samples = scan(path).samples
    file = LocalFile(str(path))
    found = _Found()
    for sample in samples:
        for part in sample.parts:
            name = f"{sample.key}.{part.name}"
            if not media_filter.should_consider_media(name):
                continue
            data = file.read(part.offset, part.size)
            try:
                metadata = media_filter.extract_metadata(data, name)
            except DecodeError as reason:
                found.gone.append(name)
                found.damaged.append(f"{path}, sample {sample.key!r}: {reason}")
                continue
            if metadata is not None:
                found.media.append((name, metadata))
    return found


def _collected(run: _Run, collect: Callable[[str], _Found], names: Sequence[str]) -> MediaReport:
    """Put what is collected of all names into a copy of the database, which takes its place."""
    count, damaged = 0, list[str]()
    final = run.root / META_FOLDER / SQLITE_NAME
    results = map_in_order(collect, names, run.workers)
    run.on_progress(0, len(names))
    with Staging(run.root, META_FOLDER) as staging, closing(results):
        staging.add([final])
        place = staging.place(final)
        built = run.tmp_path / place.name if run.tmp_path else place
        with _built(final, built, place), MediaIndex(built, run.media_filter, final) as index:
            for done, found in enumerate(_checked(results), 1):
                index.put(found.media, found.gone)
                count += len(found.media)
                damaged += found.damaged
                run.on_progress(done, len(names))
        if not count:
            raise PrepareError(_nothing(run, damaged))
        staging.commit(run.root)
    return MediaReport(run.root, count, tuple(damaged))


@contextmanager
def _built(final: Path, built: Path, place: Path) -> Iterator[None]:
    """A copy `built` of the database, which is at `place` after the block."""
    try:
        _copy(final, built)
        yield
        if built != place:
            _copy(built, place)
    finally:
        if built != place:
            with suppress(OSError):
                built.unlink(missing_ok=True)


def _copy(old: Path, new: Path) -> None:
    with writing(new, PrepareError), new.open("xb") as stream:
        if old.exists():
            with old.open("rb") as content:
                shutil.copyfileobj(content, stream)


def _checked(results: Iterator[_Found | Exception]) -> Iterator[_Found]:
    for result in results:
        if isinstance(result, ShardError):
            raise PrepareError(f"{result}\nNothing was written") from result
        if isinstance(result, Exception):
            raise result
        yield result


def _nothing(run: _Run, damaged: Sequence[str]) -> str:
    if damaged:
        listed = "\n  ".join(damaged[:20])
        return f"{run.root}: all of the {len(damaged)} media are damaged:\n  {listed}"
    if not is_prepared(run.root) and next(run.root.rglob("*.tar"), None) is not None:
        return (
            f"{run.root} is a folder of tar shards that are not indexed, and only indexed ones are "
            f"looked into; do that first, with: energize prepare {run.root}"
        )
    patterns = ", ".join(["", *run.media_filter.patterns])
    return (
        f"{run.root} has no files that are images, videos or sounds by "
        f"{run.media_filter.strategy}{patterns}; try another of --media-metadata-by-extension, "
        "-header and -glob"
    )


def _silent(done: int, total: int) -> None:
    pass
