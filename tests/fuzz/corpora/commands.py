"""Commands over folders, and preparing what nobody has looked at."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from energize import prepare
from energize.cli.main import app
from energize.data.tar import split_name
from energize.errors import DatasetError
from energize.preparation.index import prepare_jsonl
from tests.fuzz.corpora import rows, saved, shards
from tests.fuzz.corpora.reading import validated
from tests.fuzz.formats import Corpus, Format, Seen, told

_RUNNER = CliRunner()


def _ran(folder: Path, *arguments: str) -> Seen:
    """What a command prints; `DatasetError` with its words when it ends with another
    code than 0.

    What it raises is raised.
    """
    given = [each.replace("FOLDER", str(folder)) for each in arguments]
    done = _RUNNER.invoke(app, given)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code not in (0, 1, 2) or "Traceback" in done.output:
        raise RuntimeError(f"exit code {done.exit_code}: {done.output[-2000:]}")
    if done.exit_code:
        raise DatasetError(f"{done.stdout} {done.stderr}")
    return Seen((done.output,), described=done.output)


def _command(corpus: Corpus, *arguments: str, fresh: bool = False) -> Corpus:
    return Corpus(
        corpus.name, corpus.write, lambda folder: _ran(folder, *arguments), fresh
    )


def _raw(folder: Path) -> None:
    shards.ustar(folder)
    for file in [*folder.glob("*.idx"), *(folder / ".nv-meta").iterdir()]:
        file.unlink()
    (folder / ".nv-meta").rmdir()


def _prepared(folder: Path) -> Seen:
    """What is read after preparing, which has to be what Python's own reader finds in
    the tars."""
    prepare(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)
    seen = validated(folder)
    return Seen(
        seen.items,
        seen.reported,
        told([_members(path) for path in folder.glob("*.tar")]),
    )


def _members(path: Path) -> list[tuple[str, bytes]]:
    """The files of a tar that belong to samples."""
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
        found = [(each.name, tar.extractfile(each)) for each in tar if each.isfile()]
        return [
            (name, file.read()) for name, file in found if file and split_name(name)
        ]


def _prepared_lines(folder: Path) -> Seen:
    """Lines that are indexed anew."""
    file = folder / "rows.jsonl"
    prepare_jsonl(file)
    seen = validated(file)
    return Seen(seen.items, seen.reported, told(file.read_bytes().split(b"\n")))


def _of(what: str, *arguments: str, **options: Any) -> Format:
    corpus, files, kind = _ON[what]
    return Format(
        f"{arguments[0]} on {what}",
        _command(corpus, *arguments),
        files,
        kind,
        describes=True,
        named=("FOLDER",),
        cost=3,
        **options,
    )


_STATES = saved.FORMATS[0].corpus
_ON: dict[str, tuple[Corpus, str, str]] = {
    "tar": (shards.USTAR, "*.tar", "bytes"),
    "tar.idx": (shards.USTAR, "*.tar.idx", "bytes"),
    ".info.json": (shards.USTAR, ".nv-meta/.info.json", "json"),
    "split.yaml": (shards.USTAR, ".nv-meta/split.yaml", "yaml"),
    "jsonl": (rows.JSONL, "*.jsonl", "text"),
    "state": (_STATES, "indexed.json", "json"),
    "mix": (_STATES, "blended, nested.yaml", "yaml"),
}
_LINT = ("lint", "FOLDER", "--parallel", "1", "--no-progress")

FORMATS = [
    *(_of(what, *_LINT) for what in ("tar", "tar.idx", ".info.json", "split.yaml")),
    _of("jsonl", "lint", "FOLDER/rows.jsonl", "--parallel", "1", "--no-progress"),
    *(_of(what, "info", "FOLDER") for what in ("tar.idx", ".info.json", "split.yaml")),
    _of("mix", "preview", "FOLDER/blended, nested.yaml"),
    _of(
        "mix", "lint", "FOLDER/blended, nested.yaml", "--parallel", "1", "--no-progress"
    ),
    _of("state", "state", "show", "FOLDER/indexed.json"),
    Format(
        "prepare on tar",
        Corpus("raw", _raw, _prepared, fresh=True),
        "*.tar",
        describes=True,
        cost=3,
    ),
    Format(
        "prepare on jsonl",
        Corpus("jsonl", rows.jsonl, _prepared_lines, fresh=True),
        "*.jsonl",
        "text",
        describes=True,
        cost=2,
    ),
]
