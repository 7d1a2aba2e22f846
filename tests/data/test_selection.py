"""The samples of one value as a source: which they are, what they are called, where
they lie."""

from functools import partial

from energize import ListSource, SequenceSource, SkipSample, WebdatasetSource, prepare
from energize.core.quarantine import Entry, listed_for
from energize.data.local import LocalFiles
from energize.data.selection import PropertySource, Selection, selections, source_labels
from energize.errors import ColumnError, ConfigError, EmptyDatasetError, WeightError
from energize.nodes import ReadContext
from energize.preparation import prepare_columns
from energize.sources import JsonSource
from tests.support.refusals import check_refusals
from tests.support.shards import packed

KINDS = ["low", "high", None, "low", "low", "high", None]
SCORES = [0.1, 0.5, 0.5, 0.9, 2, -1, 0]


def letters(name="letters", **columns):
    return ListSource(
        "abcdefg", name=name, columns=columns or {"kind": KINDS, "score": SCORES}
    )


def part(value, by="kind", source=None):
    return PropertySource(source or letters(), Selection(by, value))


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
    source = SequenceSource(
        Some(set(range(0, 60, 6))), name="some", columns={"kind": kinds}
    )
    high = PropertySource(source, Selection("kind", "high"))
    assert all(item % 6 == 3 for item in high.at(range(40)))


def test_samples_of_one_value_are_expected_where_those_of_their_source_are(
    tmp_path, monkeypatch
):
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"kind": "{each}"}}\n' for each in KINDS)
    )
    source = JsonSource(tmp_path / "a.jsonl")
    assert (source.remote, part("low", source=source).remote) == (False, False)
    monkeypatch.setattr(LocalFiles, "remote", True)
    assert (source.remote, part("low", source=source).remote) == (True, True)


def test_places_lead_back_and_quarantine_finds_them(tmp_path):
    files = [(f"{i:02d}.txt", [b"low", b"high"][i % 3 == 0]) for i in range(12)]
    tmp_path.joinpath("f").mkdir()
    for shard in range(2):
        (tmp_path / "f" / f"s{shard}.tar").write_bytes(
            packed(files[6 * shard : 6 * shard + 6])
        )
    prepare(tmp_path / "f", split_ratios={"train": 1}, workers=1)
    prepare_columns(
        tmp_path / "f", {"kind": lambda raw: raw["txt"].decode()}, workers=1
    )
    whole = WebdatasetSource(tmp_path / "f")
    high, low = (
        PropertySource(whole, Selection("kind", each)) for each in ("high", "low")
    )
    assert [sample["__key__"] for sample in high] == ["00", "03", "06", "09"]
    assert high.where(2).endswith("s1.tar, sample '06' (index 0)")
    place = high.place(3)
    assert (place.shard, place.index, place.key, place.source) == (
        "s1.tar",
        3,
        "09",
        high.identity,
    )
    assert high.find("s1.tar", 3) == 3
    assert low.find("s1.tar", 3) is None
    assert high.find("s9.tar", 0) is None
    assert source_labels([high, low, whole]) == ["f/high", "f/low", "f"]
    listed, strange = listed_for([high, low], [Entry(place, "bad")], "list")
    assert (listed.count, strange) == (1, [])
    items = high.at(range(12), ReadContext(listed=listed))
    assert {item["__key__"] for item in items} == {"00", "03", "06"}
    assert len(low.at(range(8), ReadContext(listed=listed))) == 8


def test_what_is_refused():
    def select(by, values, *sources, other=False):
        return partial(selections, sources or [letters()], by, values, other=other)

    called = letters(kind=["other", "x"] * 3 + ["x"])
    one, two = letters("one", a=["x"] * 7), letters("two", a=range(7))
    check_refusals(ColumnError, {
        "misspelt value": (partial(part, "hihg"), EmptyDatasetError, "mean 'high'", "low: 3, (no"),
        "misspelt column": (partial(part, "low", "kid"), "no column 'kid'; did you mean 'kind'"),
        "neither": (partial(Selection, "kind"), ConfigError, "a selection must have either a value"),
        "both": (partial(Selection, "kind", "a", ("b",)), ConfigError, "a selection must have either a value"),
        "tuple": (partial(Selection, "kind", ("a",)), ConfigError, "kind: a value must be a word"),
        "left": (select("kind", ["low"]), "4 samples", "without a weight: (no value): 2, high: 2"),
        "none": (select("kind", ["low", "hihg"]), "no sample of letters has the value 'hihg'"),
        "common": (select("score", ["0..1", "0.5.."]), "'0..1' and '0.5..' have samples in common"),
        "twice": (select("score", [0.5, "0.5"]), "the value '0.5' is listed twice"),
        "number in range": (select("score", ["0..1", 0.5]), "have samples in common"),
        "nothing": (select("kind", [], other=True), WeightError, "Its values: low: 3"),
        "other": (select("kind", ["other"], called, other=True), "'other' is a value and also"),
        "mixed": (select("a", ["x"], one, two, other=True), "a word in one, but a number in two"),
    } | {
        f"range {value!r}": (partial(part, value, "score"), "not a number or range")
        for value in ("..", "good", "0.5..0.5", "0.9..0.1", "1..2..3", "")
    })  # fmt: skip
