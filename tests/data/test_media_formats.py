"""One table of media: every format decodes alike, wherever it is and whatever it is
called."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet
import pytest

from energize import DefaultTaskEncoder, SampleDecoder, get_val_dataset, prepare
from energize.data.media import FORMATS
from energize.errors import DatasetError
from tests.support.images import encoded, picture
from tests.support.tars import write_tar

PIL.Image.init()
NAMES = [each.name for each in FORMATS if each.kind == "image"]
WRITTEN = [name for name in NAMES if name in PIL.Image.SAVE] + ["MPO"]
NOT_READ = {
    "EPS": "runs Ghostscript",
    "WMF": "runs Windows",
    "BUFR": "needs a plug-in",
    "GRIB": "needs a plug-in",
    "HDF5": "needs a plug-in",
    "PALM": "is only written",
    "PDF": "is only written",
    "IM": "is a text at its start",
    "XBM": "is a text at its start",
    "SPIDER": "has no signature",
    "BLP": "of a game",
    "MSP": "of Windows 1",
    "ICNS": "of macOS",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))


def test_every_format_that_pillow_writes_is_read_or_left_out_for_a_reason():
    assert {*PIL.Image.SAVE} - {*WRITTEN} == {*NOT_READ}


def files(name: str) -> tuple[list[bytes], str]:
    """Two different images of a format, and its usual extension."""
    size = (32, 16) if name != "ICO" else (16, 16)
    images = [picture(*size), picture(*size).transpose(PIL.Image.Transpose.ROTATE_180)]
    end = next((each.extensions[0] for each in FORMATS if each.name == name), "mpo")
    return [encoded(each, name) for each in images], end


def as_files(root: Path, datas: list[bytes], end: str) -> Path:
    for number, data in enumerate(datas):
        (root / f"{number}.{end}".rstrip(".")).write_bytes(data)
        (root / f"{number}.txt").write_text(f"image {number}")
    return root


def as_tar(root: Path, datas: list[bytes], end: str) -> Path:
    parts = [(f"{n}.{end}", data) for n, data in enumerate(datas)]
    texts = [(f"{n}.txt", f"image {n}".encode()) for n in range(len(datas))]
    return write_tar(root / "a.tar", sorted(parts + texts))


def as_prepared(root: Path, datas: list[bytes], end: str) -> Path:
    as_tar(root, datas, end)
    prepare(
        root,
        split_ratios={"train": 1},
        sample_type="CaptioningSample",
        field_map={"image": "jpg,png", "caption": "txt"}
        if end in ("jpg", "JPG")
        else None,
        workers=1,
    )
    return root


def as_table(
    value: Callable[[bytes, str], Any],
) -> Callable[[Path, list[bytes], str], Path]:
    def written(root: Path, datas: list[bytes], end: str) -> Path:
        rows = [
            {"image": value(d, end), "caption": f"image {n}"}
            for n, d in enumerate(datas)
        ]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), root / "a.parquet")
        return root

    return written


def as_lines(
    value: Callable[[bytes, str], Any],
) -> Callable[[Path, list[bytes], str], Path]:
    def written(root: Path, datas: list[bytes], end: str) -> Path:
        rows = [
            {"image": value(d, end), "caption": f"image {n}"}
            for n, d in enumerate(datas)
        ]
        (root / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return root

    return written


def as_named(
    rename: Callable[[int, str], str],
) -> Callable[[Path, list[bytes], str], Path]:
    def written(root: Path, datas: list[bytes], end: str) -> Path:
        names = [rename(number, end) for number in range(len(datas))]
        for name, data in zip(names, datas, strict=True):
            (root / name).write_bytes(data)
        rows = [
            {"image": name, "caption": f"image {n}"} for n, name in enumerate(names)
        ]
        (root / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return root

    return written


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


PLACES: dict[str, Callable[[Path, list[bytes], str], Path]] = {
    "files": as_files,
    "upper-case files": lambda root, datas, end: as_files(root, datas, end.upper()),
    "files without extension": lambda root, datas, end: as_files(root, datas, ""),
    "files with an unknown extension": lambda root, datas, end: as_files(
        root, datas, "dat0"
    ),
    "files with the extension of another format": lambda root, datas, end: as_files(
        root, datas, "png" if end != "png" else "jpg"
    ),
    "tar": as_tar,
    "tar with upper-case parts": lambda root, datas, end: as_tar(
        root, datas, end.upper()
    ),
    "tar with parts of another extension": lambda root, datas, end: as_tar(
        root, datas, "img"
    ),
    "prepared": as_prepared,
    "prepared with upper-case parts": lambda root, datas, end: as_prepared(
        root, datas, end.upper()
    ),
    "bytes": as_table(lambda data, end: data),
    "struct": as_table(lambda data, end: {"bytes": data, "path": None}),
    "struct with a path": as_table(
        lambda data, end: {"bytes": data, "path": f"a/b.{end.upper()}"}
    ),
    "struct with further keys": as_table(
        lambda data, end: {"bytes": data, "path": "x", "width": 32, "height": 16}
    ),
    "base64 in bytes": as_table(lambda data, end: b64(data).encode()),
    "data URI": as_lines(lambda data, end: f"data:image/{end};base64,{b64(data)}"),
    "data URI with parameters": as_lines(
        lambda data, end: f"data:image/x;charset=utf-8;base64,{b64(data)}"
    ),
    "base64": as_lines(lambda data, end: b64(data)),
    "base64 in lines": as_lines(lambda data, end: base64.encodebytes(data).decode()),
    "base64 for URLs without padding": as_lines(
        lambda data, end: base64.urlsafe_b64encode(data).decode().rstrip("=")
    ),
    "struct of base64": as_lines(lambda data, end: {"bytes": b64(data), "path": None}),
    "names": as_named(lambda number, end: f"{number}.{end}"),
    "names without extension": as_named(lambda number, end: f"n{number}"),
    "names of another format": as_named(lambda number, end: f"{number}.jpeg"),
    "names in the wrong case": as_named(lambda number, end: f"{number}.{end.title()}"),
}
"""How images and captions are stored."""


EVERY_THIRD = [
    pytest.param(place, marks=[] if number % 3 == 0 else pytest.mark.jobs)
    for number, place in enumerate(PLACES)
]


@pytest.mark.parametrize("place", EVERY_THIRD)
def test_every_format_is_the_same_pixels_wherever_it_is_stored(place, tmp_path):
    encoder = DefaultTaskEncoder(decoder=SampleDecoder(image_decode="rgb8"))
    for name in WRITTEN:
        datas, end = files(name)
        root = tmp_path / name
        root.mkdir()
        path = PLACES[place](root, datas, end)
        dataset = get_val_dataset(
            path, split_part="train", batch_size=None, task_encoder=encoder
        )
        for number, data in enumerate(datas):
            sample = dataset[number]
            expected = np.array(PIL.Image.open(io.BytesIO(data)).convert("RGB"))
            assert np.array_equal(sample.image, expected), name
            assert sample.caption == f"image {number}", name


TALK = [
    {"from": "human", "value": "<image>What is this?"},
    {"from": "gpt", "value": "a picture"},
]
JPEG = encoded(picture(8, 6), "JPEG")


def talks_as_names(root: Path) -> Path:
    (root / "0.JPE").write_bytes(JPEG)
    (root / "a.jsonl").write_text(
        json.dumps({"images": "0.JPE", "conversations": TALK})
    )
    return root / "a.jsonl"


def talks_as_list_or_name(root: Path) -> Path:
    (root / "0.jpg").write_bytes(JPEG)
    rows = [{"images": value, "conversations": TALK} for value in ("0.jpg", ["0.jpg"])]
    (root / "a.json").write_text(json.dumps(rows))
    return root / "a.json"


def talks_as_bytes(root: Path) -> Path:
    table = pa.table({"images": [JPEG], "conversations": [TALK]})
    pyarrow.parquet.write_table(table, root / "a.parquet")
    return root


def talks_as_struct(root: Path) -> Path:
    image = {"bytes": JPEG, "path": None}
    table = pa.table({"image": [image], "conversations": [TALK]})
    pyarrow.parquet.write_table(table, root / "a.parquet")
    return root


def talks_as_tar(root: Path) -> Path:
    talk = json.dumps({"conversations": TALK}).encode()
    write_tar(root / "a.tar", [("0.JPG", JPEG), ("0.JSON", talk)])
    return root


def talks_as_prepared(root: Path, field_map: dict[str, str] | None = None) -> Path:
    talks_as_tar(root)
    prepare(
        root,
        split_ratios={"train": 1},
        sample_type="ConversationSample",
        field_map=field_map,
        workers=1,
    )
    return root


def talks_as_prepared_with_a_map(root: Path) -> Path:
    return talks_as_prepared(root, {"turns": "json[conversations]", "images": "jpg"})


@pytest.mark.parametrize(
    "written",
    [
        talks_as_names,
        talks_as_list_or_name,
        talks_as_bytes,
        talks_as_struct,
        talks_as_tar,
        talks_as_prepared,
        talks_as_prepared_with_a_map,
    ],
)
def test_a_single_image_of_a_conversation_is_a_list_of_one(written, tmp_path):
    dataset = get_val_dataset(written(tmp_path), split_part="train", batch_size=None)
    assert [[tuple(image.shape) for image in sample.images] for sample in dataset] == [
        [(3, 6, 8)]
    ] * len(dataset)


def test_a_single_answer_is_a_list_of_one_in_a_prepared_folder(tmp_path):
    row = json.dumps({"question": "What?", "answer": "a picture"}).encode()
    write_tar(tmp_path / "a.tar", [("0.jpg", JPEG), ("0.json", row)])
    prepare(
        tmp_path,
        split_ratios={"train": 1},
        sample_type="VQASample",
        field_map={
            "image": "jpg",
            "context": "json[question]",
            "answers": "json[answer]",
        },
        workers=1,
    )
    [sample] = get_val_dataset(tmp_path, split_part="train", batch_size=None)
    assert sample.answers == ["a picture"]


def test_binary_inside_of_columns_stays_binary(tmp_path):
    rows = [
        {
            "text": "a picture",
            "meta": {"raw": b"\0\1", "more": [{"raw": b"\2"}], "n": 1},
        }
    ]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    [sample] = get_val_dataset(
        tmp_path, split_part="train", batch_size=None, sample_type="CrudeSample"
    )
    assert sample["meta.raw.bin"] == b"\0\1"
    assert sample["meta.more.0.raw.bin"] == b"\2"
    assert sample["json"]["meta"] == {"raw": None, "more": [{"raw": None}], "n": 1}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.svg", b"<svg/>"),
        ("a.CR2", b"II*\0\x10\0\0\0CR\2\0"),
        ("a.dng", b"MM\0*\0\0\0\x08"),
        ("a.exr", b"v/1\x01"),
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0"),
    ],
)
def test_images_that_are_not_read_are_reported(name, data, tmp_path, caplog):
    (tmp_path / "b.jpg").write_bytes(JPEG)
    (tmp_path / name).write_bytes(data)
    assert len(get_val_dataset(tmp_path, split_part="train", batch_size=None)) == 1
    [line] = [each for each in caplog.records if name in each.getMessage()]
    assert line.levelname == "WARNING"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            {"height": 6, "width": 8, "nChannels": 3, "mode": 16, "data": b"\0"},
            "has 1 bytes",
        ),
        (
            {"height": 6, "width": 8, "nChannels": 3, "mode": 21, "data": bytes(576)},
            "mode 21",
        ),
        ("data:image/png;base64,iVBORw0KGgo" + "A" * 40 + "!!", "cannot be decoded"),
    ],
)
def test_images_in_tables_that_are_damaged_are_refused_with_the_row(
    value, reason, tmp_path
):
    pyarrow.parquet.write_table(
        pa.table({"image": [value] * 3}), tmp_path / "a.parquet"
    )
    with pytest.raises(DatasetError, match=rf"a\.parquet, row 0.*{reason}"):
        get_val_dataset(tmp_path, split_part="train", batch_size=None)
