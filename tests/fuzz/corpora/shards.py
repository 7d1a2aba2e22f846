"""Prepared folders of tar shards, as `energize prepare` leaves them and as Energon
does."""

from __future__ import annotations

import io
import json
import random
import tarfile
from functools import partial
from pathlib import Path

from energize import prepare
from tests.fuzz.corpora.reading import validated
from tests.fuzz.formats import Corpus, Format, Ranges
from tests.fuzz.mutations import BLOCK
from tests.support.shards import packed

LONG = "a-folder-with-a-name-that-is-longer-than-the-hundred-bytes-of-a-header/" * 2


def _files(shard: int, prefix: str = "") -> list[tuple[str, bytes]]:
    """Five samples of three parts, some of them smaller than a block, empty, or
    larger."""
    files = []
    for number in range(shard * 5, shard * 5 + 5):
        text = f"text {number} ".encode() * (number % 3 * 40)
        files += [
            (f"{prefix}{number:04d}.cls", str(number).encode()),
            (f"{prefix}{number:04d}.json", json.dumps({"n": [number, "ä"]}).encode()),
            (f"{prefix}{number:04d}.txt", text),
        ]
    return files


def _folder(folder: Path, tar_format: int, prefix: str = "", **options: object) -> None:
    for shard in range(2):
        name = f"shard-{shard}.tar"
        (folder / name).write_bytes(packed(_files(shard, prefix), tar_format))
    prepare(
        folder,
        split_ratios={"train": 1},
        sample_type="CrudeWebdataset",
        workers=1,
        **options,  # type: ignore[arg-type]
    )


def ustar(folder: Path) -> None:
    """As most writers leave shards."""
    _folder(folder, tarfile.USTAR_FORMAT)


def _forget_records(folder: Path) -> None:
    """What preparing saw of small shards tells all damage, before anything else may."""
    (folder / ".nv-meta" / "shards.json").unlink()


def as_energon(folder: Path) -> None:
    """Without what only energize writes."""
    ustar(folder)
    _forget_records(folder)


def large(
    folder: Path, prefix: str = "", tar_format: int = tarfile.USTAR_FORMAT
) -> None:
    """Shards so large that what lies in their middle is not compared when they are
    opened; with a prefix also links that are no parts of samples.
    """
    noise = random.Random(0)
    for shard in range(2):
        files = [
            (f"{prefix}{name}.{part}", data)
            for number in range(shard * 5, shard * 5 + 5)
            for name, part, data in (
                (f"{number:04d}", "bin", noise.randbytes(9000)),
                (f"{number:04d}", "txt", f"text {number}".encode()),
            )
        ]
        (folder / f"shard-{shard}.tar").write_bytes(packed(files, tar_format))
        with tarfile.open(folder / f"shard-{shard}.tar", "a", format=tar_format) as tar:
            for kind in (tarfile.LNKTYPE, tarfile.SYMTYPE) if prefix else ():
                link = tarfile.TarInfo(f"{prefix}link")
                link.type, link.linkname = kind, files[0][0]
                tar.addfile(link)
    prepare(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)


def checked(folder: Path) -> None:
    """With a checksum of each sample."""
    _folder(folder, tarfile.PAX_FORMAT, LONG, checksums=True)


def gnu(folder: Path) -> None:
    """Names that take a header of their own."""
    _folder(folder, tarfile.GNU_FORMAT, LONG)
    _forget_records(folder)


def pax(folder: Path) -> None:
    """Names and sizes in extended headers."""
    _folder(folder, tarfile.PAX_FORMAT, LONG)
    _forget_records(folder)


def typed(folder: Path) -> None:
    """Samples of a type, whose fields are read from parts."""
    ustar(folder)
    text = {
        "__module__": "energize",
        "__class__": "TextWebdataset",
        "field_map": {"text": "txt"},
        "subflavors": {"kind": "plain"},
    }
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(text))


def unchecked(old: bytes, new: bytes, *, recorded: bool = False) -> Ranges:
    """The bytes of a tar that its checksums, which are those of headers, do not cover:
    what is in its files, long names that `prepare` has not `recorded`, and whole blocks
    that another place of the same shard has. A checksum is a sum, so nor do they cover
    the order of bytes within a header.
    """
    with tarfile.open(fileobj=io.BytesIO(old)) as tar:
        files = [each for each in tar if each.isfile()]
    contents = [(each.offset_data, each.offset_data + each.size) for each in files]
    names = [(each.offset + BLOCK, each.offset_data - BLOCK) for each in files]
    known = {old[at : at + BLOCK] for at in range(0, len(old), BLOCK)}
    moved = [
        (at, at + BLOCK)
        for at in range(0, len(old), BLOCK)
        if (block := new[at : at + BLOCK]) != old[at : at + BLOCK]
        and (block in known or sorted(block) == sorted(old[at : at + BLOCK]))
    ]
    names = [] if recorded else [(start, stop) for start, stop in names if start < stop]
    return [*contents, *names, *moved]


USTAR = Corpus("ustar", ustar, validated)
ENERGON = Corpus("energon", as_energon, validated)
LARGE = Corpus("large", large, validated)
CHECKED = Corpus("checked", checked, partial(validated, checksums=True))
GNU = Corpus("gnu", gnu, validated)
PAX = Corpus("pax", pax, validated)
NAMED = {
    form: Corpus(
        f"named {form}", partial(large, prefix=LONG, tar_format=form), validated
    )
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
}
TYPED = Corpus("typed", typed, validated)

FORMATS = [
    Format("tar", USTAR, "*.tar", unchecked=unchecked),
    Format("tar of Energon", ENERGON, "*.tar", unchecked=unchecked),
    Format("tar, large", LARGE, "*.tar", unchecked=unchecked),
    Format("tar with checksums", CHECKED, "*.tar"),
    Format("tar.crc", CHECKED, "*.tar.crc"),
    Format("shards.json", CHECKED, ".nv-meta/shards.json", "json"),
    Format("tar GNU names", GNU, "*.tar", unchecked=unchecked),
    Format("tar PAX", PAX, "*.tar", unchecked=unchecked),
    *(
        Format(
            f"tar, named {form}",
            corpus,
            "*.tar",
            unchecked=partial(unchecked, recorded=True),
        )
        for form, corpus in NAMED.items()
    ),
    Format("tar.idx", USTAR, "*.tar.idx"),
    Format("tar.idx of Energon", ENERGON, "*.tar.idx"),
    Format(".info.json", USTAR, ".nv-meta/.info.json", "json"),
    Format("split.yaml", USTAR, ".nv-meta/split.yaml", "yaml", describes=True),
    Format("dataset.yaml", TYPED, ".nv-meta/dataset.yaml", "yaml", describes=True),
]
