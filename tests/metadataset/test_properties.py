"""Shares by what samples are: `by` a column, or a subflavor of the folders."""

from __future__ import annotations

import pytest

from energize import MetadatasetError
from tests.metadataset.conftest import train
from tests.support.tables import row


def test_ranges_and_the_rest(mix):
    file = mix("{path: a, by: score, weights: {0..0.25: 1, 0.5: 2}, other: 1}")
    numbers = [int(sample.__key__) for sample in train(file).at(range(400))]
    assert sum(number < 15 for number in numbers) == 100
    assert numbers.count(30) == 200


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
