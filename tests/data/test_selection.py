"""The samples of one value as a source: which they are, what they are called, where they lie."""

import pickle

import numpy as np
import pytest

from energize import (
    ListSource,
    Reading,
    SequenceSource,
    SkipSample,
    WebdatasetSource,
    prepare,
    prepare_columns,
)
from energize.core.columns import Column
from energize.core.quarantine import Entry, listed_for
from energize.data.selection import PropertySource, Selection, selections, source_labels
from energize.errors import ColumnError, ConfigError, EmptyDatasetError, WeightError
from energize.testing import check_laws
from tests.support.shards import packed

KINDS = ["low", "high", None, "low", "low", "high", None]
SCORES = [0.1, 0.5, 0.5, 0.9, 2, -1, 0]


def letters(name="letters", **columns):
    return ListSource("abcdefg", name=name, columns=columns or {"kind": KINDS, "score": SCORES})


def part(value, by="kind", source=None):
    return PropertySource(source or letters(), Selection(by, value))


@pytest.mark.parametrize(
    ("by", "value", "expected"),
    [
        ("kind", "low", "ade"),
        ("kind", "high", "bf"),
        ("score", 0.5, "bc"),
        ("score", 2, "e"),
        ("score", "0.5", "bc"),
        ("score", "0.1..0.9", "abc"),
        ("score", "0.5..", "bcde"),
        ("score", "..0", "f"),
        ("score", "-1..1e-3", "fg"),
    ],
)
def test_which_samples_a_value_names(by, value, expected):
    source = part(value, by)
    assert "".join(source) == expected
    assert source.name == f"letters/{value}"
    assert source.column("score").values.tolist() == [SCORES["abcdefg".index(c)] for c in expected]
    check_laws(source)


def test_others_are_all_that_have_none_of_the_values():
    others = PropertySource(letters(), Selection("kind", other_than=("low",)))
    assert "".join(others) == "bcfg"
    assert others.name == "letters/other"
    check_laws(others)


@pytest.mark.parametrize("value", ["..", "good", "0.5..0.5", "0.9..0.1", "1..2..3", ""])
def test_what_is_no_number_and_no_range_is_told(value):
    with pytest.raises(ColumnError, match="neither one nor a range"):
        part(value, "score")


def test_a_value_that_no_sample_has_is_told_with_those_that_there_are():
    with pytest.raises(EmptyDatasetError, match=r"mean 'high'.*low: 3, .no value.: 2, high: 2"):
        part("hihg")
    with pytest.raises(ColumnError, match="no column 'kid'; did you mean 'kind'"):
        part("low", "kid")


def test_a_selection_is_a_value_or_others():
    for wrong in ({}, {"value": "a", "other_than": ("b",)}):
        with pytest.raises(ConfigError, match="a selection has a value, or"):
            Selection("kind", **wrong)
    with pytest.raises(ConfigError, match=r"kind: a value is a word.*got \('a',\)"):
        Selection("kind", ("a",))


def test_words_are_taken_as_they_are_written():
    source = letters(flag=["true", "1", "0..1", "1.5", "true", "1", "other"])
    for value, expected in ((True, "ae"), (1, "bf"), ("0..1", "c"), (1.5, "d")):
        assert "".join(part(value, "flag", source)) == expected


def test_identity_is_that_of_the_samples_not_of_how_they_were_measured():
    low = part("low")
    assert low == part("low", source=low.source)
    assert low.identity == part("low").identity
    assert low.identity != part("high").identity
    measured_anew = letters(kind=["low", "low", *KINDS[2:]], score=SCORES)
    assert part("low", source=measured_anew).identity != low.identity
    assert {name: low.settings()[name] for name in ("name", "count", "by")} == {
        "name": "letters/low",
        "count": 3,
        "by": "kind",
    }
    assert low.reseeded(3).key != low.key
    assert low._distinguished(1).key != low.key


def test_other_processes_need_not_look_again():
    low = part("low")
    state = low.__getstate__()
    assert state["rows"].tolist() == [0, 3, 4]
    assert pickle.loads(pickle.dumps(low)).rows.tolist() == [0, 3, 4]


class Some:
    """Letters, some of which cannot be read."""

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index in self.bad:
            raise SkipSample
        return index


def test_substitutes_have_the_same_value():
    kinds = ["low" if i % 3 else "high" for i in range(60)]
    source = SequenceSource(Some(set(range(0, 60, 6))), name="some", columns={"kind": kinds})
    high = PropertySource(source, Selection("kind", "high"))
    assert all(item % 6 == 3 for item in high.at(range(40)))


def test_places_lead_back_and_quarantine_finds_them(tmp_path):
    files = [(f"{i:02d}.txt", [b"low", b"high"][i % 3 == 0]) for i in range(12)]
    tmp_path.joinpath("f").mkdir()
    for shard in range(2):
        (tmp_path / "f" / f"s{shard}.tar").write_bytes(packed(files[6 * shard : 6 * shard + 6]))
    prepare(tmp_path / "f", split_ratios={"train": 1}, workers=1)
    prepare_columns(tmp_path / "f", {"kind": "text:txt"}, workers=1)
    whole = WebdatasetSource(tmp_path / "f")
    high, low = (PropertySource(whole, Selection("kind", each)) for each in ("high", "low"))
    assert [sample["__key__"] for sample in high] == ["00", "03", "06", "09"]
    assert high.where(2).endswith("s1.tar, sample '06' (index 0)")
    place = high.place(3)
    assert (place.shard, place.index, place.key, place.source) == ("s1.tar", 3, "09", high.identity)
    assert high.find("s1.tar", 3) == 3
    assert low.find("s1.tar", 3) is None
    assert high.find("s9.tar", 0) is None
    assert source_labels([high, low, whole]) == ["f/high", "f/low", "f"]
    listed, strange = listed_for([high, low], [Entry(place, "bad")], "list")
    assert (listed.count, strange) == (1, [])
    items = high.at(range(12), Reading(listed=listed))
    assert {item["__key__"] for item in items} == {"00", "03", "06"}
    assert len(low.at(range(8), Reading(listed=listed))) == 8


def test_which_parts_weights_make():
    source = letters()
    named = selections([source], "kind", ["low"], other=True)
    assert [each.name for each in named] == ["low", "other"]
    assert [each.name for each in selections([source], "score", ["..1", "1.."], other=True)] == [
        "..1",
        "1..",
    ]


@pytest.mark.parametrize(
    ("by", "values", "told"),
    [
        (
            "kind",
            ["low"],
            "4 samples .* have values without a weight: .no value.: 2, high: 2",
        ),
        ("kind", ["low", "hihg"], "no sample of letters has the value 'hihg'; did you mean 'high'"),
        ("score", ["0..1", "0.5.."], "'0..1' and '0.5..' have samples in common"),
        ("score", [0.5, "0.5"], "the value '0.5' is given twice"),
        ("score", ["0..1", 0.5], "have samples in common"),
    ],
)
def test_weights_that_make_no_parts(by, values, told):
    with pytest.raises(ColumnError, match=told):
        selections([letters()], by, values, other=False)


def test_weights_for_nothing_and_for_the_word_other():
    with pytest.raises(WeightError, match=r"kind: there are no weights; its values are low: 3"):
        selections([letters()], "kind", [], other=True)
    with pytest.raises(ColumnError, match="given for the value 'other' and for all others"):
        selections([letters(kind=["other", "x"] * 3 + ["x"])], "kind", ["other"], other=True)


def test_a_word_here_and_a_number_there_is_told():
    one, two = letters("one", a=["x"] * 7), letters("two", a=range(7))
    with pytest.raises(ColumnError, match="a: it is a word in one and a number in two"):
        selections([one, two], "a", ["x"], other=True)


def test_values_of_numbers_are_those_of_numpy_too():
    column = Column.of(np.array([1, 2, 2], dtype=np.uint8), "n")
    assert Selection("n", 2).rows(column).tolist() == [1, 2]
