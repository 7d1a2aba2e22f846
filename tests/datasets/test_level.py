"""Micro batches of one global batch that cost the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from energize import (
    BatchDataset,
    ConfigError,
    EncoderError,
    FilterDataset,
    ListSource,
    MapDataset,
    NotIndexedError,
    RepeatDataset,
    ShuffleDataset,
    StateMismatchError,
    get_loader,
)
from energize.errors import ColumnError
from energize.experimental import LevelBufferDataset, LevelDataset
from tests.support.loading import take


def lengths(count, start=0, seed=0, name="texts"):
    """Texts of skewed lengths: each sample is its number, and its length a column."""
    drawn = np.random.default_rng(seed).lognormal(4, 0.9, count)
    tokens = np.clip(drawn, 4, 500).astype(int).tolist()
    return ListSource(
        range(start, start + count), name=name, columns={"tokens": tokens}
    )


def test_the_cost_may_not_change_inside_of_a_global_batch():
    def batches(cost):
        return BatchDataset(
            ShuffleDataset(lengths(40)), 2, list, level=cost, global_batch_size=8
        )

    loader = get_loader(batches("tokens"))
    take(loader, 7)
    with pytest.raises(
        StateMismatchError, match=r"(?s)LevelDataset.*cost.*squared_tokens"
    ):
        get_loader(batches(squared_tokens)).load_state_dict(loader.state_dict())


def yielding(items):
    yield from items


def squared_tokens(tokens):
    return tokens**2


class TestCosts:
    @pytest.mark.parametrize("bad", [0, -3, math.nan, math.inf])
    def test_a_cost_that_is_none_names_the_sample(self, bad):
        source = ListSource(
            "abcd", name="letters", columns={"tokens": [1.0, 2.0, bad, 1.0]}
        )
        level = LevelDataset(source, 2, global_batch_size=4, cost="tokens")
        with pytest.raises(
            ColumnError,
            match=rf"letters.* 2.*its cost must be a number > 0, got {bad:g}",
        ):
            level.at([0])

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            (
                {"level": "token"},
                ColumnError,
                "no column 'token'; did you mean 'tokens'",
            ),
            ({"level": lambda words: words}, ColumnError, "no column 'words'"),
            ({"level": lambda: 1}, ConfigError, "a function whose parameters have"),
            (
                {"level": 3},
                ConfigError,
                "a cost must be the name of a column, or a function",
            ),
            (
                {"global_batch_size": 7},
                ConfigError,
                r"BatchDataset: .* 7 .*batch of 2",
            ),
            (
                {"global_batch_size": 0},
                ConfigError,
                r"BatchDataset: global_batch_size must be a whole",
            ),
            (
                {"global_batch_size": None},
                ConfigError,
                "level needs global_batch_size",
            ),
            (
                {"level": None},
                ConfigError,
                "global_batch_size needs level",
            ),
            ({"batcher": yielding}, ConfigError, "no batcher that yields"),
        ],
    )
    def test_mistakes(self, options, error, message):
        given = {"batcher": list, "level": "tokens", "global_batch_size": 8} | options
        with pytest.raises(error, match=message):
            BatchDataset(lengths(20), 2, **given)

    def test_batches_of_another_size(self):
        level = LevelDataset(lengths(20), 2, global_batch_size=8, cost="tokens")
        with pytest.raises(
            ConfigError, match=r"LevelDataset below levels batches of 2, .* have 4"
        ):
            BatchDataset(MapDataset(level, str), 4, list)
        buffered = LevelBufferDataset(lengths(20), 8, 2, lambda item: item + 1)
        with pytest.raises(
            ConfigError, match=r"LevelBufferDataset below .* of 2, .* have 3"
        ):
            BatchDataset(buffered, 3, list)

    def test_a_stream(self):
        with pytest.raises(NotIndexedError, match=r"FilterDataset.*LevelBufferDataset"):
            LevelDataset(
                FilterDataset(lengths(9), bool), 2, global_batch_size=4, cost="tokens"
            )


class TestStreams:
    """Levelled in each lane, some items at a time."""

    def stream(self, count=4000):
        return FilterDataset(
            RepeatDataset(ShuffleDataset(lengths(count))), lambda n: n % 5 > 0
        )

    @pytest.mark.parametrize("bad", [0, -1.5, math.nan, "7"])
    def test_a_cost_that_is_none_names_the_sample(self, bad):
        samples = [
            {"__key__": f"key-{n}", "cost": 1 if n != 2 else bad} for n in range(4)
        ]
        level = LevelBufferDataset(
            ListSource(samples), 4, 2, lambda sample: sample["cost"]
        )
        with pytest.raises(EncoderError, match="key-2"):
            list(level)

    @pytest.mark.parametrize("sizes", [(5, 2), (1, 2), (0, 1), (4, 0)])
    def test_sizes(self, sizes):
        with pytest.raises(ConfigError, match="LevelBufferDataset"):
            LevelBufferDataset(ListSource("abcd"), *sizes, len)
