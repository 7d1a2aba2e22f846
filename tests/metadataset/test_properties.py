"""Shares by what samples are: `by` a column, or a subflavor of the folders."""

from __future__ import annotations

import pytest

from energize import BlendDataset, ListSource, MetadatasetError, by_property, get_loader
from tests.metadataset.conftest import train
from tests.support.tables import row


def folder(name):
    return ListSource("abc", name=name, columns={"quality": ["high", "low", "low"]})


def test_ranges_and_the_rest(mix):
    file = mix("{path: a, by: score, weights: {0..0.25: 1, 0.5: 2}, other: 1}")
    numbers = [int(sample.__key__) for sample in train(file).at(range(400))]
    assert sum(number < 15 for number in numbers) == 100
    assert numbers.count(30) == 200


KINDS = "by: quality, weights: {high: 3, low: 1}"
NAMES = f"""
{{path: a, {KINDS}}} | high low
{{{KINDS}, blend: [{{path: a}}, {{path: b}}]}} | high/a high/b low/a low/b
blend: [{{path: a, {KINDS}}}, {{path: c}}] | a/high a/low c
"""


def test_parts_are_called_as_in_python_in_reports_and_for_changes(mix):
    split = {"a": by_property(folder("a"), "quality", {"high": 3, "low": 1})}
    both = by_property([folder("a"), folder("b")], "quality", {"high": 3, "low": 1})
    mixes = (
        split["a"],
        both,
        BlendDataset({**split, "c": folder("c")}, weights={"a": 1, "c": 1}),
    )
    for line, python in zip(NAMES.strip().splitlines(), mixes, strict=True):
        node, names = line.split(" | ")
        with get_loader(train(mix(node))) as loader, row(line):
            assert " ".join(loader.dataset.names) == names
            assert python.names == loader.dataset.names
            loader.set_weights(dict.fromkeys(names.split(), 1))
            next(iter(loader))
            assert loader.last_sources[0] in names.split()
            levels = [each.name for each in loader.report().rows if each.is_source]
            assert levels == [name.split("/")[-1] for name in names.split()]


WRONG = """
{path: a, by: qualty, weights: {high: 1}} | no column 'qualty'; did you mean 'quality'
{path: a, by: length, weights: {9: 1}} | --column 'length=json
{path: a, by: quality, weights: {high: 1}} | 40 samples of a have values without a
{path: a, by: quality, weights: {hig: 1}, other: 1} | did you mean 'high'
{path: a, by: score, weights: {0..0.5: 1, 0.4..: 1}} | have samples in common
{path: a, by: subflavors.lang, weights: {en: 1}} | has none as the subflavor 'lang'
{path: a, subflavors: {lang: en}, by: lang, weights: {en: 1}} | do you mean by: subflavors.lang?
{path: a, subflavors: {l: e}, by: subflavors.l, weights: {e: 1, f: 2}} | no folder has 'f' as
{by: quality, weights: {low: 1}, other: 1, blend: [{blend: [{path: a}]}]} | already mixed by something else
{by: q, weights: {x: 1}, blend: [{path: a, by: q, weights: {x: 1}}]} | already mixed by something else
{path: inner.yaml, by: quality, weights: {high: 1}, other: 1} | already mixed by something else
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
