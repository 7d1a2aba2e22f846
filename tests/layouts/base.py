"""Dataset layouts as they lie on disks and hubs, each as a tiny instance and what is
right there.

`LAYOUTS` maps names to `Layout`. `Layout.make(root, rng)` writes the files below
`root`; the record `Layout.expected` says which paths to open and what a reader that
knows the layout would deliver. Nothing here knows the library under test. Texts, names
and images are invented: only the shapes are those of the public data that `source`
names.

Each image is of one colour, and is known by `hash_of(number)`: the mean of its pixels,
in steps of 32 for each channel, which JPEG does not change.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

# What is expected.

MEANINGS = (
    "image",
    "caption",
    "classification",
    "vqa",
    "choice",
    "conversation",
    "multi-image conversation",
    "video conversation",
    "video caption",
    "interleaved",
    "preference",
    "ocr",
    "detection",
    "text",
    "text-chat",
    "crude",
)


@dataclass(frozen=True, kw_only=True)
class Want:
    """What has to be in one sample, whatever its type calls it.

    `images` are hashes in the order of the sample. In `turns`, (role, text), and in
    `question`, `<image>` and `<video>` stand where the source puts them; where it does
    not say, `placed` is false. In `sequence` an image is `#` and its hash. `boxes` are
    runs of numbers, and `texts` are strings that have to be found somewhere in the
    sample.
    """

    images: tuple[str, ...] = ()
    videos: int = 0
    caption: str | None = None
    label: str | None = None
    label_id: int | None = None
    question: str | None = None
    answers: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    right: int | None = None
    turns: tuple[tuple[str, str], ...] = ()
    placed: bool = True
    sequence: tuple[str, ...] = ()
    boxes: tuple[tuple[float, ...], ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A path to open, from the root on, and what is right there.

    splits       the split parts, with the number of samples, or with the numbers that
    are all right meaning      what the samples are, one of `MEANINGS`; `also` lists
    others that are right too samples      for split parts, what some of their samples
    have left_out     words of which the log has to have one each, `a|b` for either:
    what no sample has refuse       why this has to be an error or a question; then
    nothing else is compared says         words of which such an error has to have one,
    so that it is about that may_refuse   why a clear error is right too holds
    files that hold what samples need; a log that says they were left out is no silence
    not_splits   split parts that there are not, and that must not be delivered
    """

    path: str = "."
    meaning: str = "crude"
    also: tuple[str, ...] = ()
    splits: dict[str, int | tuple[int, ...]] = field(default_factory=dict)
    samples: dict[str, tuple[Want, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    refuse: str = ""
    says: tuple[str, ...] = ()
    may_refuse: str = ""
    holds: tuple[str, ...] = ()
    not_splits: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How to write an instance of a layout, what is right there, and which public data
    has it."""

    name: str
    make: Callable[[Path, random.Random], None]
    expected: tuple[Opening, ...]
    source: str


LAYOUTS: dict[str, Layout] = {}

Make = Callable[[Path, random.Random], None]


def layout(source: str, *expected: Opening) -> Callable[[Make], Make]:
    """Register a function as a layout under its name."""

    def register(make: Make) -> Make:
        name = make.__name__
        assert name not in LAYOUTS, name
        for each in expected:
            assert each.meaning in MEANINGS, each
            assert each.refuse or each.splits, name
        LAYOUTS[name] = Layout(name=name, make=make, expected=expected, source=source)
        return make

    return register


def instance(name: str, folder: Path, seed: int = 0) -> Path:
    """Write an instance of a layout as `folder/name`, and return that path."""
    root = folder / name
    root.mkdir(parents=True)
    LAYOUTS[name].make(root, random.Random(f"{name} {seed}"))
    return root


# Images.


def colour(number: int) -> tuple[int, int, int]:
    """Return the colour of an image: one of 512, in the middle of their cells."""
    cell = number * 37 % 512
    return cell // 64 * 32 + 16, cell // 8 % 8 * 32 + 16, cell % 8 * 32 + 16


def hash_of_colour(mean: Sequence[float]) -> str:
    """Return the hash of an image whose pixels have this mean, in 0 to 255."""
    return "".join(str(min(int(each) // 32, 7)) for each in mean)


def hash_of(number: int) -> str:
    """Return the hash of the image of this number."""
    return hash_of_colour(colour(number))


def picture(
    number: int, rng: random.Random, size: tuple[int, int] | None = None
) -> Image.Image:
    """Return the image of this number: two halves, whose mean is its colour."""
    width, height = size or (2 * rng.randint(8, 14), rng.randint(12, 24))
    image = Image.new(
        "RGB", (width, height), tuple(each + 5 for each in colour(number))
    )
    image.paste(tuple(each - 5 for each in colour(number)), (0, 0, width // 2, height))
    return image


_FORMATS = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".webp": "WEBP",
    ".tif": "TIFF",
}


def encoded(
    number: int,
    rng: random.Random,
    suffix: str = ".jpg",
    size: tuple[int, int] | None = None,
) -> bytes:
    """Return the bytes of a file of the image of this number."""
    stream = io.BytesIO()
    options = {"lossless": True} if suffix.lower() == ".webp" else {}
    picture(number, rng, size).save(stream, _FORMATS[suffix.lower()], **options)
    return stream.getvalue()


def draw(
    path: Path, number: int, rng: random.Random, size: tuple[int, int] | None = None
) -> Path:
    """Write the image of this number as a file, in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(number, rng, path.suffix, size))
    return path


def film(path: Path, number: int) -> None:
    """Write a short video whose frames have the colour of this number."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        pixels = np.zeros((32, 32, 3), np.uint8) + np.array(colour(number), np.uint8)
        for _ in range(4):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())


# Words.

_ADJECTIVES = ("small", "striped", "broken", "wooden", "shiny", "heavy", "paper")
NOUNS = (
    "kettle",
    "ladder",
    "lantern",
    "basket",
    "anchor",
    "violin",
    "barrel",
    "saddle",
    "anvil",
)


def caption(number: int) -> str:
    """Return the caption of the image of this number."""
    noun = NOUNS[number % len(NOUNS)]
    return f"a {_ADJECTIVES[number % len(_ADJECTIVES)]} {noun} on shelf {number}"


def question(number: int) -> str:
    """Return a question about the image of this number."""
    return f"What stands on shelf {number}?"


def answer(number: int) -> str:
    """Return the answer to it."""
    return f"{NOUNS[number % len(NOUNS)]} {number}"


def captioned(number: int) -> Want:
    """Return what a sample of an image and its caption has."""
    return Want(images=(hash_of(number),), caption=caption(number))


def pictured(*numbers: int) -> Want:
    """Return what a sample of images alone has."""
    return Want(images=tuple(map(hash_of, numbers)))


def labelled(number: int, label: str, label_id: int | None = None) -> Want:
    """Return what a sample of an image and its class has."""
    return Want(images=(hash_of(number),), label=label, label_id=label_id)


def asked(number: int, *answers: str) -> Want:
    """Return what a sample of an image, a question and its answers has."""
    return Want(
        images=(hash_of(number),),
        question=question(number),
        answers=answers or (answer(number),),
    )


def talked(number: int, *, before: str = "<image>\n", after: str = "") -> Want:
    """Return what a sample of an image, a question and an answer has as turns."""
    asking = f"{before}{question(number)}{after}"
    turns = (("user", asking), ("assistant", answer(number)))
    return Want(images=(hash_of(number),), turns=turns)


def llava_turns(
    number: int, before: str = "<image>\n", after: str = ""
) -> list[dict[str, str]]:
    """Return a question and an answer as LLaVA writes them."""
    return [
        {"from": "human", "value": f"{before}{question(number)}{after}"},
        {"from": "gpt", "value": answer(number)},
    ]


def chat_turns(number: int, before: str = "") -> list[dict[str, Any]]:
    """Return a question and an answer as OpenAI writes them."""
    return [
        {"role": "user", "content": f"{before}{question(number)}"},
        {"role": "assistant", "content": answer(number)},
    ]


def chatted(number: int) -> Want:
    """Return what a sample of text turns has."""
    return Want(turns=(("user", question(number)), ("assistant", answer(number))))


# Files.


def write(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a text, with its folders, and line ends as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))


def dump(path: Path, value: Any) -> None:
    """Write a value as JSON."""
    write(path, json.dumps(value, ensure_ascii=False, indent=1))


def lines(path: Path, rows: Iterable[Any]) -> None:
    """Write a value for each line as JSON."""
    write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def table(path: Path, rows: Sequence[Sequence[Any]], sep: str = ",") -> None:
    """Write rows, of which the first may be the names of columns, as CSV."""
    stream = io.StringIO()
    csv.writer(stream, delimiter=sep, lineterminator="\n").writerows(rows)
    write(path, stream.getvalue())


def parquet(path: Path, rows: Sequence[dict[str, Any]], schema: Any = None) -> None:
    """Write rows as Parquet, without what Hugging Face's datasets would add."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)


def hub_parquet(
    path: Path, rows: Sequence[dict[str, Any]], features: Any = None
) -> None:
    """Write rows as Parquet as `push_to_hub` does, with its features in the
    metadata."""
    import datasets

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    given = datasets.Features(features) if features else None
    made = datasets.Dataset.from_dict(columns, features=given)
    whole = made.data.table.combine_chunks()
    schema = pa.schema(list(whole.schema), made.features.arrow_schema.metadata)
    pq.write_table(whole.cast(schema).replace_schema_metadata(schema.metadata), path)


def struct(number: int, rng: random.Random, name: str | None = None) -> dict[str, Any]:
    """Return an image as Hugging Face's datasets keep it."""
    return {"bytes": encoded(number, rng), "path": name}


def tarball(
    path: Path, members: Iterable[tuple[str, bytes]], *, zipped: bool = False
) -> None:
    """Write a tar of these members; the same bytes each time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    data = stream.getvalue()
    path.write_bytes(gzip.compress(data, mtime=0) if zipped else data)


def text_of(value: Any) -> bytes:
    """Return the bytes of a text, or of a value as JSON."""
    return (value if isinstance(value, str) else json.dumps(value)).encode()
