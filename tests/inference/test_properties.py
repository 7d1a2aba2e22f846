"""For any folder: every file and column is accounted for, and samples are as many as
written."""

from __future__ import annotations

import csv
import json
import os
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import get_val_dataset, infer
from tests.support.images import encoded, picture

JPEG = encoded(picture(8, 6), "JPEG")
ASIDE = (
    *(
        "cat/.DS_Store",
        "@eaDir/1.jpg",
        "__MACOSX/._0.jpg",
        "Thumbs.db",
        ".hidden/x.jpg",
    ),
    *("README.md", "LICENSE", "scan.dcm", "notes.pdf", "images.zip", "run.log"),
)
COLUMNS = {
    "stars": lambda rng: rng.randrange(9),
    "author": lambda rng: rng.choice(["ann", "bo", "cy"]),
    "tags": lambda rng: ["a", "b"][: 1 + rng.randrange(2)],
    "meta": lambda rng: {"width": rng.randrange(99)},
    "score": lambda rng: rng.random(),
    "url": lambda rng: "http://a.example/1",
    "nothing": lambda rng: None,
}


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def sentence(number: int) -> str:
    return f"a sentence of words, number {number}"


def plain_images(root: Path, count: int, rng: random.Random) -> None:
    for n in range(count):
        write(root / f"pictures/{n}.jpg", JPEG)


def class_folders(root: Path, count: int, rng: random.Random) -> None:
    for n in range(count):
        write(root / ("cat", "dog", "emu")[n % 3] / f"photo {n}.jpg", JPEG)


def captions(root: Path, count: int, rng: random.Random) -> None:
    for n in range(count):
        write(root / f"{n}.jpg", JPEG)
        write(root / f"{n}.txt", sentence(n).encode())


def rows_of(
    count: int, rng: random.Random, columns: list[str], **named: str
) -> list[dict]:
    more = [{name: COLUMNS[name](rng) for name in columns} for _ in range(count)]
    fixed = [
        {
            key: text.format(n) if "{}" in text else sentence(n)
            for key, text in named.items()
        }
        for n in range(count)
    ]
    return [row | own for row, own in zip(fixed, more, strict=True)]


def table(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


MEDIA = {"plain": plain_images, "classes": class_folders, "beside": captions}
TABLES = (
    "metadata.csv",
    "metadata.jsonl",
    "rows.jsonl",
    "rows.json",
    "rows.parquet",
    "list.csv",
)


@given(
    st.sampled_from([*MEDIA, *TABLES, "text.jsonl", "text.parquet"]),
    st.integers(4, 30),
    st.lists(st.sampled_from([*COLUMNS]), unique=True, max_size=4),
    st.lists(st.sampled_from(ASIDE), unique=True, max_size=5),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_every_file_and_column_is_accounted_for(
    kind, count, columns, aside, strays, rng
):
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        root = Path(folder, "data")
        names: list[str] = []
        if kind in MEDIA:
            MEDIA[kind](root, count, rng)
        elif kind.startswith("text"):
            rows = rows_of(count, rng, columns, text="sentence")
            table(root / kind, rows)
            names = [*rows[0]]
        else:
            for n in range(count + strays):
                write(root / f"images/{n}.jpg", JPEG)
            rows = rows_of(
                count, rng, columns, image="images/{}.jpg", caption="sentence"
            )
            table(root / kind, rows)
            names = [*rows[0]]
        for name in aside:
            write(root / name, b"some words of nobody")
        spec = infer(root)
        found = [
            Path(path, file).relative_to(root)
            for path, _, files in os.walk(root)
            for file in files
        ]
        hidden = {each.parts[0] for each in found if each.parts[0] == ".hidden"}
        expected = len([each for each in found if each.parts[0] != ".hidden"]) + len(
            hidden
        )
        assert sum(use.count for use in spec.files) == expected
        assert {use.name for use in spec.columns if "[" not in use.name} >= {*names}
        assert spec.samples == count
        lost = [use for use in spec.files if use.why == "no row names it"]
        assert sum(use.count for use in lost) == (strays if kind in TABLES else 0)
        dataset = get_val_dataset(root, split_part="train", batch_size=None)
        samples = [dataset[n] for n in range(len(dataset))]
        assert (
            len(
                {
                    sample.__key__ if hasattr(sample, "__key__") else sample["__key__"]
                    for sample in samples
                }
            )
            == count
        )


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
