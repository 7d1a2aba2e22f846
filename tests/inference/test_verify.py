"""Samples are looked at before they are delivered; what was inferred is written and
read."""

from __future__ import annotations

import json
import os
import tarfile
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from energize import (
    FailurePolicy,
    WorkerConfig,
    convert,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    infer,
)
from energize.data.tables import read_delimited
from energize.errors import ConfigError, DatasetError, EnergizeError
from energize.inference import verify
from tests.cli.commands import run
from tests.preparation.test_loose import JPEG, KINDS, N, cache, described, files, table  # noqa: F401
from tests.support.refusals import check_refusals

read = partial(get_val_dataset, split_part="train", batch_size=None)


def lines(path: Path, rows: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_is_not_as_inferred_is_an_error_with_row_value_and_line(tmp_path):
    chat = [
        {"from": "human", "value": "<image><image>?"},
        {"from": "gpt", "value": "Yes."},
    ]
    files(tmp_path, ["0.jpg"])
    files(tmp_path / "pages", [f"{n}.jpg" for n in range(4)], b"<html>404</html>")
    mixed = lines(
        tmp_path / "mixed.jsonl", [{"text": value} for value in ("a", 5, ["x"])]
    )
    places = lines(
        tmp_path / "places.jsonl", [{"image": "0.jpg", "conversations": chat}]
    )
    turns = lines(
        tmp_path / "turns.jsonl", [{"conversations": "Hi"}, {"conversations": chat}]
    )
    late = lines(
        tmp_path / "late.jsonl",
        [{"text": f"t{n}"} for n in range(80)] + [{"text": 7}] * 9,
    )
    write = "sample_type: TYPE, field_map: {FIELD: COLUMN}, or set verify=False"
    check_refusals(
        DatasetError,
        types=(
            partial(read, mixed),
            "line 2",
            "'text': expected str, found int: 5",
            write,
        ),
        later=(partial(read, late), "expected str, found int: 7", write),
        images=(
            partial(read, tmp_path / "pages"),
            "4 of 4 samples cannot be made",
            "404",
            write,
        ),
        placeholders=(
            partial(read, places),
            "1 images, but its turns have 2 pl",
            write,
        ),
        turns=(
            partial(read, turns),
            "2 of 2 samples",
            "a conversation must be a list of turns",
            write,
        ),
    )
    for path in (mixed, tmp_path / "pages", places, turns):
        assert len(read(path, verify=False))


def test_a_missing_value_is_a_damaged_sample_and_mentioned_once(tmp_path, caplog):
    rows = [{"text": None if n % 7 == 3 else f"t{n}"} for n in range(80)]
    dataset = read(lines(tmp_path / "a.jsonl", rows))
    assert (
        "11 of 80 rows have no 'text': they are left out when they are read"
        in caplog.text
    )
    with get_loader(
        dataset, worker_config=WorkerConfig(0, 1), failures=FailurePolicy(budget=None)
    ) as loader:
        texts = {sample.text for sample in loader}
    assert texts == {row["text"] for row in rows} - {None}


def test_most_values_missing_is_an_error(tmp_path):
    rows = [{"text": None if n % 4 else f"t{n}"} for n in range(80)]
    with pytest.raises(
        DatasetError, match=r"samples cannot be made, the first one is .*NoneType"
    ):
        read(lines(tmp_path / "a.jsonl", rows))


def test_every_text_of_json_is_checked_before_anything_is_delivered(tmp_path, caplog):
    rows = [{"text": f"sentence {n}"} for n in range(3000)]
    rows[1234]["text"] = 5
    path = lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(
        DatasetError, match=r"line 1235, .*'text': expected str, found int: 5"
    ):
        read(path)
    assert isinstance(read(path, verify=False)[1234].text, str)
    assert "line 1235" in caplog.text
    assert "field 'text': expected str, found int: 5" in caplog.text
    told = read(path, sample_type="TextSample", field_map={"text": "text"})
    assert told[1234].text == 5


def test_a_row_whose_image_is_none_names_column_and_remedy(tmp_path, caplog):
    files(tmp_path, [f"{n}.jpg" for n in range(4)])
    rows = [{"image": f"{n % 4}.jpg", "caption": f"a cat {n}"} for n in range(500)]
    rows[30]["image"] = {"x": 1}
    path = lines(tmp_path / "rows.jsonl", rows)
    assert read(path)[30].caption != "a cat 30"
    assert "line 31" in caplog.text
    assert "column 'image' was inferred to hold images or videos" in caplog.text


EMPTY = {
    "a.jsonl": b"",
    "a.csv": b"",
    "b.csv": b"text\n",
    "a.json": b"[]",
    "blank.jsonl": b"\n \n",
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_table_without_rows_is_an_error_that_names_it(name, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(EMPTY[name])
    with pytest.raises(DatasetError, match="no row") as told:
        read(tmp_path / "data")
    assert name in str(told.value)
    with pytest.raises(EnergizeError) as told:
        read(tmp_path / "data" / name)
    assert name in str(told.value)


def test_few_damaged_samples_are_left_out_and_not_refused(tmp_path):
    files(tmp_path, [f"{n}.jpg" for n in range(9)])
    files(tmp_path, ["3.jpg", "4.jpg"], b"damaged")
    assert len(read(tmp_path)) == 9


def test_data_are_verified_once_for_each_version(tmp_path, monkeypatch):
    looked: list[int] = []
    loader = verify._loader
    monkeypatch.setattr(
        verify, "_loader", lambda found: looked.append(1) or loader(found)
    )
    path = lines(tmp_path / "a.jsonl", [{"text": "a"}] * 200)
    for _ in range(3):
        read(path)
    assert len(looked) == 1
    lines(path, [{"text": "b"}] * 200)
    os.utime(path, (time.time() + 9,) * 2)
    read(path)
    assert len(looked) == 2
    read(path, field_map={"text": "text"})
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    lines(path, [{"text": 5}] * 200)
    os.utime(path, (time.time() + 19,) * 2)
    assert len(read(path)) == 200  # the first rank verifies


def test_at_most_64_samples_are_read(tmp_path, monkeypatch):
    path = lines(tmp_path / "a.jsonl", [{"text": f"{n}"} for n in range(5000)])
    numbers = verify._numbers(5000)
    assert len(numbers) == 64
    assert {0, 19, 4999} <= {*numbers.tolist()}
    assert read(path)[4999].text == "4999"


@pytest.mark.parametrize("kind", KINDS)
def test_what_init_writes_is_the_identical_dataset(kind, tmp_path, monkeypatch):
    make, _, _ = KINDS[kind]
    (tmp_path / "here").mkdir()
    path = make(tmp_path / "here" / kind)
    monkeypatch.chdir(tmp_path)
    mix = tmp_path / "mix.yaml"
    run("init", path, "-o", mix)
    text = mix.read_text()
    assert f"path: here/{path.name}" in text
    spec = infer(path)
    assert f"# {spec.samples:,} samples: {spec.argument}" in text
    written, plain = (get_train_dataset(each, batch_size=3) for each in (mix, path))
    assert written.describe() == plain.describe()
    for one, other in zip(get_loader(written), get_loader(plain), strict=False):
        assert one.__key__ == other.__key__
        break
    told, alone = (read(each) for each in (mix, path))
    assert [each.__key__ for each in told] == [each.__key__ for each in alone]


def test_init_writes_several_paths_and_all_split_parts(tmp_path):
    described(tmp_path / "photos", ".csv")
    for part, count in (("train", 3), ("dev", 2)):
        lines(
            tmp_path / "texts" / f"{part}.jsonl",
            [{"text": f"{n}"} for n in range(count)],
        )
    run("init", tmp_path / "photos", tmp_path / "texts", "-o", tmp_path / "mix.yaml")
    text = (tmp_path / "mix.yaml").read_text()
    assert "      # column 'n': metadata\n" in text
    assert "      - path: photos\n        weight: 1\n        format: tables\n" in text
    assert (
        len(get_val_dataset(tmp_path / "mix.yaml", split_part="dev", batch_size=None))
        == 2
    )
    assert len(read(tmp_path / "mix.yaml")) == 2 * N + 3
    shown = run("init", tmp_path / "texts", "--output", tmp_path / "again.yaml")
    assert "Wrote " in shown


CHANGES = {
    "a row more": (
        lambda root: (root / "rows.jsonl").open("a").write('{"text": "b", "n": 1}\n'),
        "samples was 3 and is 4",
    ),
    "a column more": (
        lambda root: lines(root / "rows.jsonl", [{"text": "a", "n": 1, "new": 2}] * 3),
        "column 'new' was 'missing' and is 'metadata'",
    ),
    "a column less": (
        lambda root: lines(root / "rows.jsonl", [{"text": "a"}] * 3),
        "column 'n' was 'metadata' and is 'missing'",
    ),
    "a file more": (
        lambda root: lines(root / "more.jsonl", [{"text": "a", "n": 1}] * 3),
        "file '*.jsonl' was 'missing' and is 2",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_an_entry_that_no_longer_fits_names_what_changed(case, tmp_path):
    change, words = CHANGES[case]
    lines(tmp_path / "rows" / "rows.jsonl", [{"text": "a", "n": 1}] * 3)
    run("init", tmp_path / "rows", "-o", tmp_path / "mix.yaml")
    assert read(tmp_path / "mix.yaml")
    change(tmp_path / "rows")
    refused = {
        "changed": (partial(read, tmp_path / "mix.yaml"), words, "energize init")
    }
    check_refusals(DatasetError, refused)


def test_a_spec_tells_the_use_of_every_file_and_column(tmp_path):
    described(tmp_path, ".csv")
    files(tmp_path, ["lost.jpg", ".hidden.jpg", "@eaDir/0.jpg", "README.md"])
    files(tmp_path, ["scan.dcm"], bytes(128) + b"DICM")
    spec = infer(tmp_path)
    uses = {
        use.name: (use.status, use.role or use.why, use.count) for use in spec.files
    }
    assert uses == {
        "*.jpg": ("used", "named by file_name", 2 * N),
        "lost.jpg": ("left out", "no row names it", 1),
        "*.csv": ("used", "table", 2),
        "scan.dcm": ("left out", "not of a known kind", 1),
        "README.md": ("metadata", "document", 1),
        ".hidden.jpg": ("metadata", "hidden", 1),
        "@eaDir/0.jpg": ("metadata", "thumbnails of Synology", 1),
    }
    assert [(use.name, use.status) for use in spec.columns] == [
        ("file_name", "used"),
        ("text", "used"),
        ("n", "metadata"),
    ]
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(ConfigError, match="is not loose data"):
        infer(tmp_path / "nothing")


DELIMITED = {
    "commas": ("a,b\n1,x\n2,y\n", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
    "semicolons": ('a;b\n1;"x, y"\n', [{"a": 1, "b": "x, y"}]),
    "tabs": ("a\tb\n1\tx y\n", [{"a": 1, "b": "x y"}]),
    "bars with spaces": ("a| b\n1| x, y\n", [{"a": 1, "b": "x, y"}]),
    "no names": (
        "0.jpg,cat\n1.jpg,dog\n",
        [{"column 1": "0.jpg", "column 2": "cat"}] * 1,
    ),
    "addresses": (
        "a cat\thttp://a.b/0.jpg\n",
        [{"column 1": "a cat", "column 2": "http://a.b/0.jpg"}],
    ),
    "padded": ("a , b\n1 , x\n", [{"a": 1, "b": "x"}]),
    "an index": (",a\n0,x\n", [{"column 1": 0, "a": "x"}]),
    "zeros": ("a,b\n007,1\n", [{"a": "007", "b": 1}]),
    "one column": ("text\nhello\n", [{"text": "hello"}]),
    "quotes in tabs": ('a\tb\n1\tsaid "no" x\n', [{"a": 1, "b": 'said "no" x'}]),
    "empty": ("", []),
    "names alone": ("a,b\n", []),
}


@pytest.mark.parametrize("case", DELIMITED)
def test_delimited_values_are_rows(case, tmp_path):
    text, rows = DELIMITED[case]
    (tmp_path / "a.csv").write_text(text)
    found = read_delimited([tmp_path / "a.csv"])
    plain = [
        {name: value for name, value in row.items() if name != "__at__"}
        for row in found
    ]
    assert plain[: len(rows)] == rows
    assert bool(plain) == bool(rows)


def test_delimited_values_that_do_not_fit_are_refused(tmp_path):
    def of(name, data):
        (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return partial(read_delimited, [tmp_path / name])

    check_refusals(
        DatasetError,
        twice=(of("a.csv", "a,b,b\n1,2,3\n"), "a.csv, line 1", "named 'b'"),
        fewer=(
            of("b.csv", "a,b\n1,2\n3\n"),
            "b.csv, line 3: a row has 1 values",
            "'a', 'b'",
        ),
        latin=(
            of("c.csv", "a\nGrün\n".encode("latin-1")),
            "c.csv is not a CSV file in UTF-8",
        ),
    )


def test_lint_compares_types_loose_and_prepared(tmp_path):
    path = lines(
        tmp_path / "a.jsonl", [{"text": value} for value in ("a", 5, ["x"], None)]
    )
    shown = run("lint", path, code=1)
    assert "3 faults in 4 samples" in shown
    assert "field 'text': expected str, found " in shown
    convert(path, tmp_path / "out", workers=1)
    assert "3 faults in 4 samples" in run("lint", tmp_path / "out", code=1)


def test_a_cut_tar_is_told_where_it_is_read(tmp_path, caplog):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(30):
            info = tarfile.TarInfo(f"{number:03}.txt")
            tar.addfile(info)
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: 512 * 15])
    read(tmp_path, verify=False)
    assert "has no end mark" in caplog.text


def test_a_parquet_of_every_form_of_image_is_read(tmp_path):
    import base64

    url = f"data:image/jpeg;base64,{base64.b64encode(JPEG).decode()}"
    spark = {
        "origin": "",
        "height": 2,
        "width": 2,
        "nChannels": 1,
        "mode": 0,
        "data": bytes(4),
    }
    for name, value in {
        "bytes": JPEG,
        "struct": {"bytes": JPEG, "path": None, "height": 6},
        "url": url,
        "base64": url.partition(",")[2],
        "spark": spark,
    }.items():
        path = tmp_path / f"{name}.parquet"
        pyarrow.parquet.write_table(
            pa.Table.from_pylist([{"image": value, "caption": "a cat"}]), path
        )
        assert read(path)[0].image.ndim == 3
