"""`energize prepare-media`: what is known of the images, videos and sounds of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import energize.cli.prepare_options as opt
from energize.cli.console import Console
from energize.cli.contents import is_folder
from energize.cli.faults import Fault, FaultList
from energize.cli.mix_options import counted_text
from energize.cli.progress import progress_bar
from energize.cli.showing import show_lines, show_note
from energize.errors import ConfigError
from energize.preparation.media import MediaReport
from energize.preparation.media import prepare_media as collect_media

_WAYS = "--media-metadata-by-extension, --media-metadata-by-header or --media-metadata-by-glob"


def prepare_media(
    path: Annotated[Path, typer.Argument(help="A prepared folder, or a plain one of files.")],
    *,
    media_by_glob: opt.MediaByGlob = None,
    media_by_header: opt.MediaByHeader = False,
    media_by_extension: opt.MediaByExtension = False,
    num_workers: opt.NumWorkers = None,
    tmp_path: opt.TmpPath = None,
    progress: opt.ShowProgress = True,
) -> None:
    """Store width, height, duration and the like of all media, for stores to look up.

    Exits with 1 when some are damaged; what is known of the others is stored all the same.
    """
    by = media_filter(media_by_glob, media_by_header, media_by_extension)
    if by is None:
        raise ConfigError(f"say which files are media: {_WAYS}")
    if not is_folder(path):
        raise ConfigError(f"{path} is a file; media metadata are those of the files of a folder")
    console = Console(soft_wrap=True)
    report = collected(console, path, by, num_workers, tmp_path, progress=progress)
    console.print(f"Done. Stored metadata for {report.count} files.")
    if report.damaged:
        raise typer.Exit(1)


def media_filter(glob: str | None, header: bool, extension: bool) -> str | None:
    """Which files are media, as `prepare_media` takes it; None when nothing was said.

    Raises `ConfigError` for several answers.
    """
    given = [
        each
        for each in (glob, "header" if header else None, "extension" if extension else None)
        if each is not None
    ]
    if len(given) > 1:
        raise ConfigError(f"give one of {_WAYS}")
    return given[0] if given else None


def collected(
    console: Console,
    path: Path,
    by: str,
    workers: int | None,
    tmp_path: Path | None,
    *,
    progress: bool,
) -> MediaReport:
    """Collect the metadata, and tell which media are damaged."""
    with progress_bar(console, "Looking at media", shown=progress) as on_progress:
        report = collect_media(
            path, by, workers=workers, tmp_path=tmp_path, on_progress=on_progress
        )
    if report.damaged:
        count = counted_text(len(report.damaged), "damaged file")
        show_note(console, f"{count}, without metadata:")
        faults = FaultList()
        faults.add(Fault(place, "", text) for place, _, text in map(_parted, report.damaged))
        show_lines(console, faults.lines("file"))
    return report


def _parted(damaged: str) -> tuple[str, str, str]:
    return damaged.partition(": ")
