"""Measuring columns: right values on any number of processes, all of them or none."""

import io
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from energize import WebdatasetSource, prepare, write_shards
from energize.errors import ColumnError, ConfigError, NotPreparedError, PrepareError
from energize.preparation import prepare_columns
from energize.preparation.verify import check_folder
from tests.support.refusals import check_refusals

ALL = {"train": 1}


def png(width, height, letters=0):
    """An image with so many letters in its header."""
    buffer, text = io.BytesIO(), PngInfo()
    text.add_text("note", "x" * letters)
    Image.new("RGB", (width, height)).save(buffer, "PNG", pnginfo=text)
    return buffer.getvalue()


def sample(i):
    return {
        "__key__": f"{i:03d}",
        "png": png(8 + i, 4, 100_000 * (i == 3)),
        "seg.png": png(5, 20),
        "txt": "ä" * (i % 5 + 1),
        "json": {
            "meta": {"quality": ["high", "low"][i % 3 == 0]},
            "score": i / 4,
            "caption": "ab",
        },
        "cls": i,
    }


def prepared(folder, samples, per_shard=7):
    write_shards(samples, folder, samples_per_shard=per_shard)
    prepare(folder, split_ratios=ALL, workers=1)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return prepared(
        tmp_path_factory.mktemp("measured") / "f", [sample(i) for i in range(20)]
    )


@pytest.fixture
def small(tmp_path):
    return prepared(tmp_path / "f", [sample(i) for i in range(9)])


def words(column):
    return [column.categories[v] if v >= 0 else None for v in column.values]


def test_measures(made):
    rows = [sample(i) for i in range(20)]
    columns = {
        "bytes": ("size:txt", [2 * (i % 5 + 1) for i in range(20)]),
        "several": ("size:*png", [len(r["png"]) + len(r["seg.png"]) for r in rows]),
        "letters": ("len:txt", [i % 5 + 1 for i in range(20)]),
        "in_json": ("len:json[caption]", [2] * 20),
        "number": (lambda raw: int(raw["cls"]), list(range(20))),
        "score": ("json[score]", [i / 4 for i in range(20)]),
        "width": ("image:width", [8 + i for i in range(20)]),
        "height": ("image:height", [20] * 20),
        "pixels": ("image:pixels", [4 * (8 + i) + 100 for i in range(20)]),
        "called": (
            lambda raw: len(raw) + raw["__index__"],
            [9 + i % 7 for i in range(20)],
        ),
        "quality": (
            "json[meta][quality]",
            [["high", "low"][i % 3 == 0] for i in range(20)],
        ),
        "word": (lambda raw: raw["cls"].decode(), [str(i) for i in range(20)]),
    }
    given = {name: how for name, (how, _) in columns.items()}
    for workers in (1, 2):
        defaults = {"number": 0.5, "word": "nobody's"}  # nobody is without
        report = prepare_columns(made, given, defaults=defaults, workers=workers)
        assert (report.samples, report.notes) == (20, ())
        source = WebdatasetSource(made)
        for name, (_, expected) in columns.items():
            column = source.column(name)
            for each in (column, report.columns[name]):
                found = words(each) if each.is_text else each.values.tolist()
                assert found == expected, name
            kind = {str: np.int32, int: np.int64, float: np.float64}[type(expected[0])]
            assert column.values.dtype == kind, name
            assert "nobody's" not in (column.categories or ()), name


VALUES = st.one_of(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.lists(
        st.none() | st.text("aäz", max_size=3).filter(bool), min_size=1, max_size=20
    ).filter(any),
)


@settings(max_examples=8, deadline=None)
@given(VALUES, st.integers(1, 6), st.integers(1, 2))
def test_any_values_come_back_as_they_are(tmp_path_factory, values, per_shard, workers):
    folder = tmp_path_factory.mktemp("any") / "f"
    samples = (
        {"__key__": f"{i:03d}", "json": {"v": value}} for i, value in enumerate(values)
    )
    prepared(folder, samples, per_shard)
    prepare_columns(folder, {"v": "json[v]"}, workers=workers)
    column = WebdatasetSource(folder).column("v")
    assert (words(column) if column.is_text else column.values.tolist()) == values


def test_missing_words_are_noted_and_missing_numbers_refused(tmp_path):
    def some(i):
        parts = {"json": {"lang": "en", "n": 3}} if i % 4 and i > 7 else {}
        return {"__key__": f"{i:03d}", "txt": "x", **parts}

    there = [i % 4 != 0 and i > 7 for i in range(20)]
    folder = prepared(
        tmp_path / "f", [some(i) for i in range(20)]
    )  # none in the first shard
    report = prepare_columns(folder, {"lang": "json[lang]"}, workers=1)
    assert words(report.columns["lang"]) == ["en" if each else None for each in there]
    assert "11 of 20 samples have no value" in report.notes[0]
    assert "sample '000': it has no part json, but txt" in report.notes[0]
    with pytest.raises(
        PrepareError, match=r"11 of 20 samples have no value.*--column-default n=0"
    ):
        prepare_columns(folder, {"n": "json[n]"}, workers=1)
    for default, kind in (("0.5", np.float64), (7, np.int64), ("7", np.int64)):
        filled = prepare_columns(
            folder, {"n": "json[n]"}, defaults={"n": default}, workers=1
        ).columns["n"]
        assert filled.values.tolist() == [
            3 if each else float(default) for each in there
        ]
        assert filled.values.dtype == kind
    report = prepare_columns(
        folder, {"l": "json[lang]"}, defaults={"l": "??"}, workers=1
    )
    assert words(report.columns["l"]) == ["en" if each else "??" for each in there]
    assert "were given '??'" in report.notes[0]
    assert check_folder(folder).faults == ()
    with pytest.raises(ConfigError, match="has numbers, but its default is 'none'"):
        prepare_columns(folder, {"n": "json[n]"}, defaults={"n": "none"}, workers=1)


def test_what_no_column_can_have_is_told_with_the_sample(small, monkeypatch):
    monkeypatch.setattr("energize.preparation.columns.MOST_WORDS", 8)
    before = sorted(small.rglob("*"))
    for how, told in (
        ("json[qality]", "9 of 9 samples .* json is an object with the keys 'meta'"),
        ("size:jpg", "9 of 9 samples .* it has no part jpg, but "),
        ("json[meta]", "neither a number nor a word, but a dict"),
        ("len:png", "png is not UTF-8"),
        (lambda raw: float("nan"), "finite numbers.*got float 'nan'"),
        (lambda raw: 2**63, "64 bits.*got int"),
        (
            lambda raw: "a" if raw["__key__"] > "007" else 1,
            "or all have words; .* has 'a'",
        ),
        (
            lambda raw: "a" if raw["__key__"] > "005" else 1,
            "or all have words; .* has '1'",
        ),
        (lambda raw: None, "it is None"),
        (lambda raw: raw["cls"].decode(), "9 different words"),
    ):
        with pytest.raises(
            (PrepareError, ConfigError), match=f"(?s)column 'x'.*{told}"
        ) as error:
            prepare_columns(small, {"x": how}, workers=1)
        named = isinstance(error.value, ConfigError) or "sample '0" in str(error.value)
        assert named or "different words" in told, told
        assert sorted(small.rglob("*")) == before, told


def test_prepare_measures_columns_of_its_own_shards(tmp_path):
    folder = tmp_path / "f"
    write_shards([sample(i) for i in range(9)], folder, samples_per_shard=4)
    options = {"split_ratios": ALL, "workers": 1}
    report = prepare(folder, columns={"a": "size:txt", "b": len}, **options)
    assert report.columns["a"].values.tolist() == [2 * (i % 5 + 1) for i in range(9)]
    assert WebdatasetSource(folder).column_names == ("a", "b")
    with pytest.raises(PrepareError, match="column 'a'"):
        prepare(
            folder, columns={"a": lambda raw: raw["txt"]}, overwrite=True, **options
        )
    assert WebdatasetSource(folder).column_names == ("a", "b")
    prepare(folder, columns={"b": len}, overwrite=True, **options)
    assert WebdatasetSource(folder).column_names == ("b",)


def test_wrong_arguments(made, tmp_path):
    rows = {
        "": ("has no part to read the field from",),
        "txt": ("column 'a': expected size:PART",),
        "siz:txt": ("expected size:PART", "did you mean 'size'"),
        "size:json[a]": ("keys of JSON are for len and alone",),
        "image:widht": ("did you mean 'width'",),
    }
    check_refusals(ConfigError, {
        how: (partial(prepare_columns, made, {"a": how}), *told) for how, told in rows.items()
    } | {
        "none": (partial(prepare_columns, made, {}), "no columns to measure"),
        "name": (partial(prepare_columns, made, {"a b": "size:txt"}), ColumnError, "column names must be"),
        "default": (partial(prepare_columns, made, {"tokens": "size:txt"}, defaults={"tokn": 1}),
                    "did you mean 'tokens'"),
        "folder": (partial(prepare_columns, tmp_path, {"a": "size:txt"}), NotPreparedError),
    })  # fmt: skip
