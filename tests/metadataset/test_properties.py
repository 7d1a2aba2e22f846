"""Shares by what samples are: `by` a column, or a subflavor of the folders."""

from __future__ import annotations

from collections import Counter

import pytest

from energize import (
    MetadatasetError,
    StateMismatchError,
    get_train_dataset,
    get_val_dataset,
    prepare_columns,
)
from energize.metadataset import leaves_with_weights, resolve
from energize.preparation.index import prepare_jsonl
from tests.metadataset.conftest import Keys, folder_of, train
from tests.support.joining import keys, texts
from tests.support.loading import loader_of, take
from tests.support.tables import row


def kinds(file, count, first=0):
    """What of each folder and quality there is among the samples from the first on."""
    samples = train(file).at(range(first, first + count))
    return Counter(
        (sample.__key__[0], "low" if int(sample.__key__[1:]) % 3 else "high") for sample in samples
    )


def test_shares_by_a_column(mix):
    """A third of each folder is high."""
    file = mix("{path: a, by: quality, weights: {high: 3, low: 1}}")
    assert kinds(file, 4000) == {("0", "high"): 3000, ("0", "low"): 1000}
    assert [source.name for source in train(file).sources] == ["a/high", "a/low"]
    found = leaves_with_weights(resolve(file, "train"))
    assert [(leaf.chosen.name, float(share)) for leaf, share in found] == [
        ("high", 0.75),
        ("low", 0.25),
    ]
    several = mix("{by: quality, weights: {high: 3, low: 1}, blend: [{path: a}, {path: b}]}")
    found = kinds(several, 4000)  # by how many samples they have
    asked = {("0", "high"): 2000, ("1", "high"): 1000, ("0", "low"): 667, ("1", "low"): 333}
    assert all(abs(found[kind] - count) <= 2 for kind, count in asked.items())
    part = mix("{path: a, subset: {range: [0, 30]}, by: quality, weights: {high: 1}, other: 0}")
    assert {int(sample.__key__) for sample in train(part).at(range(50))} == set(range(0, 30, 3))
    val = get_val_dataset(part, split_part="train", batch_size=None)
    assert sorted(int(sample.__key__) for sample in val) == list(range(30))  # every sample once


def test_nested_scheduled_and_where_it_ends(mix):
    fades = "by: quality, weights: {high: {points: {0: 1, 100: 0}}, low: 1}"
    file = mix(
        f"{{scheme: exact, blend: [{{path: a, weight: 3, {fades}}}, {{path: b, weight: 1}}]}}"
    )
    first, later = kinds(file, 96), kinds(file, 400, 400)
    assert (first["0", "high"], first["0", "low"]) == (36, 36)
    assert (later["0", "high"], later["0", "low"]) == (0, 300)
    inner = "{path: a, by: quality, weights: {high: 3, low: 1}}"
    other = "{path: b, by: quality, weights: {low: 1}, other: 5}"
    for entries in (
        f"[{inner}, {other}]",
        "[{path: a}, {path: b}], by: quality, weights: {low: 1, high: 9}",
    ):
        ends = mix(f"{{stop: all_exhausted, blend: {entries}}}")
        assert len({sample.__key__ for sample in train(ends, repeat=False)}) == 90
        assert train(ends).size == 90


def test_ranges_and_the_rest(mix):
    file = mix("{path: a, by: score, weights: {0..0.25: 1, 0.5: 2}, other: 1}")
    numbers = [int(sample.__key__) for sample in train(file).at(range(400))]
    assert sum(number < 15 for number in numbers) == 100
    assert numbers.count(30) == 200


def test_labels_of_folders(mix):
    entries = (
        "[{path: a, subflavors: {lang: en, ok: true}}, {path: b, subflavors: {lang: fr, ok: true}}]"
    )
    file = mix(f"{{blend: {entries}, by: subflavors.lang, weights: {{en: 1, fr: 3}}}}")
    assert Counter(sample.__key__[0] for sample in train(file).at(range(4000))) == {
        "0": 1000,
        "1": 3000,
    }
    same = mix(f"{{blend: {entries}, by: subflavors.ok, weights: {{true: 1}}}}")
    assert Counter(sample.__key__[0] for sample in train(same).at(range(900))) == {
        "0": 600,
        "1": 300,
    }


def test_json_lines_joins_and_stages(mix, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text": "{i}", "lang": "{"ef"[i % 2]}"}}\n' for i in range(9)))
    prepare_jsonl(rows)
    file = mix("{path: rows.jsonl, by: lang, weights: {e: 1, f: 3}}")
    found = Counter(sample["json"]["lang"] for sample in train(file).at(range(400)))
    assert found == {"e": 100, "f": 300}
    for name in ("one", "two"):
        texts(tmp_path / name, [keys(*range(8))])
    prepare_columns(tmp_path / "two", {"even": lambda raw: int(raw["__key__"]) % 2}, workers=1)
    joiner = "joiner: {__module__: tests.support.joining, __class__: Pair}"
    file = mix(
        f"{{join: [{{path: one}}, {{path: two}}], {joiner}, by: even, weights: {{0: 3, 1: 1}}}}"
    )
    found = Counter(int(sample.__key__) % 2 for sample in train(file).at(range(400)))
    assert found == {0: 300, 1: 100}
    file = mix("""
        steps: 20
        stages:
          - {name: first, start_step: 0, path: a, by: quality, weights: {high: 1, low: 0}}
          - {name: then, start_step: 10, path: a, by: quality, weights: {high: 1, low: 3}}
    """)
    batches = train(file, batch_size=4).at(range(20))
    highs = [sum(int(key) % 3 == 0 for key in batch) for batch in batches]
    assert (sum(highs[:10]), sum(highs[10:])) == (40, 10)


def test_a_run_goes_on_but_not_over_a_column_measured_anew(mix, tmp_path):
    folder_of(tmp_path / "own", 5, 30)
    file = mix("blend: [{path: own, by: quality, weights: {high: 1, low: 1}}, {path: a}]")

    def loader(**options):
        return loader_of(get_train_dataset(file, batch_size=2, task_encoder=Keys()), **options)

    with loader() as one, loader(workers=2) as other:
        stream = take(one, 20)
        with loader() as first:
            take(first, 8)
            state = first.state_dict()
        other.load_state_dict(state)
        assert take(other, 12) == stream[8:]
    anew = {"quality": lambda raw: "low" if int(raw["__key__"]) % 5 else "high"}
    prepare_columns(tmp_path / "own", anew, workers=1)
    told = pytest.raises(StateMismatchError, match="'own/high': count was 10, is 6")
    with loader() as one, told:
        one.load_state_dict(state)


WRONG = """
{path: a, by: qualty, weights: {high: 1}} | no column 'qualty'; did you mean 'quality'
{path: a, by: length, weights: {9: 1}} | --column 'length=json
{path: a, by: quality, weights: {high: 1}} | 40 samples of a have values without a
{path: a, by: quality, weights: {hig: 1}, other: 1} | did you mean 'high'
{path: a, by: score, weights: {0..0.5: 1, 0.4..: 1}} | have samples in common
{path: a, by: subflavors.lang, weights: {en: 1}} | has none as the subflavor 'lang'
{path: a, subflavors: {lang: en}, by: lang, weights: {en: 1}} | do you mean by: subflavors.lang?
{path: a, subflavors: {l: e}, by: subflavors.l, weights: {e: 1, f: 2}} | no folder has 'f' as
{by: quality, weights: {low: 1}, other: 1, blend: [{blend: [{path: a}]}]} | something else already
{by: q, weights: {x: 1}, blend: [{path: a, by: q, weights: {x: 1}}]} | by something else already
{path: inner.yaml, by: quality, weights: {high: 1}, other: 1} | by something else already
"""


def test_what_is_wrong_is_told_with_its_line(mix):
    inner = mix("blend: [{path: a}, {path: b}]", "inner.yaml")
    assert inner.exists()
    for line in WRONG.strip().splitlines():
        node, words = line.split(" | ")
        file = mix(node)
        with row(line), pytest.raises(MetadatasetError) as error:
            train(file)
        assert words in str(error.value), line
        assert f"{file}:5 (splits.train" in str(error.value), line
