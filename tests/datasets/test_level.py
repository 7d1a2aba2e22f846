"""Micro batches of one global batch that cost the same."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    EncoderError,
    FilterDataset,
    ItemCost,
    ListSource,
    MapDataset,
    NotIndexedError,
    RepeatDataset,
    ShuffleDataset,
    StateMismatchError,
    get_loader,
)
from energize.datasets.planned import PackDataset
from energize.errors import ColumnError
from energize.experimental import LevelBufferDataset, LevelDataset
from energize.testing import check_resume, check_topology
from tests.support.loading import loader_of, take


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


PATCHES = 256


def pictures(count=96, name="pictures"):
    """Samples with tokens, of which two of five have no patches."""
    numbers = range(count)
    columns = {
        "tokens": [8 + n * n * n % 487 for n in numbers],
        "patches": [0 if n % 5 < 2 else 1 + n * n * 7 % PATCHES for n in numbers],
        "nothing": [0] * count,
    }
    return ListSource(numbers, name=name, columns=columns)


def some_patches(patches=0):
    return patches


BOTH = {"tokens": 1, "patches": 0.3}


class TestSeveralCosts:
    """The dearest micro batch costs about the mean, by each cost."""

    def batches(self, level=BOTH, *, packs=1):
        samples = ShuffleDataset(pictures())
        items = BatchDataset(samples, packs, list) if packs > 1 else samples
        if level is None:
            return BatchDataset(items, 4, list)
        return BatchDataset(items, 4, list, level=level, global_batch_size=24)

    @pytest.mark.parametrize("packs", [1, 2])
    @pytest.mark.parametrize("level", [BOTH, [*BOTH], (some_patches, "tokens")])
    def test_global_batches_have_the_samples_that_they_have_without(self, level, packs):
        plain, levelled = (
            self.batches(None, packs=packs),
            self.batches(level, packs=packs),
        )
        for start in range(0, 24 // packs, 6):
            numbers = range(start, start + 6)
            both = [
                sorted(np.ravel(dataset.at(numbers)).tolist())
                for dataset in (plain, levelled)
            ]
            assert both[0] == both[1]

    @pytest.mark.parametrize("packs", [1, 2])
    def test_laws(self, packs):
        dataset = self.batches(packs=packs)
        check_resume(dataset, items=20)
        check_topology(dataset, world_sizes=(1, 2, 3), num_workers=(0, 2), items=24)

    def test_planned_packs(self):
        """Ranks and a state do not change the order; global batches stay the same."""
        samples = RepeatDataset(ShuffleDataset(pictures()))
        packs = PackDataset(samples, "tokens", 1000, list, window=64)
        plain = BatchDataset(packs, 2, list)
        level = BatchDataset(packs, 2, list, level=BOTH, global_batch_size=8)
        expected = level.at(range(24))
        for start in range(0, 24, 4):
            members = [
                sorted(chain.from_iterable(dataset.at(range(start, start + 4))))
                for dataset in (plain, level)
            ]
            assert members[0] == members[1]
        check_resume(level, items=24)
        ranks = [loader_of(level, 2, rank, 2) for rank in range(2)]
        rows = zip(*(take(loader, 5) for loader in ranks), strict=True)
        assert [batch for row in rows for batch in row] == expected[:10]
        resumed = loader_of(level)
        resumed.load_state_dict(ranks[0].state_dict())
        assert take(resumed, 14) == expected[10:]

    @pytest.mark.parametrize("cost", ["tokens", lambda tokens: tokens**2])
    def test_a_single_cost_in_a_list_or_dict_is_this_cost(self, cost):
        datasets = [self.batches(level) for level in (cost, [cost], {cost: 0.3})]
        first, *others = [(dataset.at(range(24)), dataset.key) for dataset in datasets]
        assert others == [first, first]
        names = {str(dataset.inputs[0].settings()) for dataset in datasets}
        assert len(names) == 1

    def test_both_costs_are_level(self):
        values = {name: np.array(pictures().column(name).values) for name in BOTH}
        for name, column in values.items():
            ratios = []
            for dataset in (self.batches([*BOTH]), self.batches(None)):
                costs = column[np.array(dataset.at(range(24)))].sum(axis=1)
                totals = costs.reshape(4, 6)
                ratios.append((totals.max(axis=1) / totals.mean(axis=1)).max())
            assert ratios[0] < 1.2 < 1.5 < ratios[1], name

    def test_settings_have_all_costs(self):
        dataset = self.batches({"tokens": 2, some_patches: 1})
        first, second = dataset.inputs[0].settings()["cost"]
        assert first == {"column": "tokens", "importance": 2.0}
        assert second["columns"] == ["patches"]
        assert second["function"].endswith("some_patches")

    def test_costs_change_after_whole_global_batches_only(self):
        loader = get_loader(self.batches())
        taken = take(loader, 6)
        other = self.batches(["tokens", "patches"])
        changed = get_loader(other)
        changed.load_state_dict(loader.state_dict())
        assert take(changed, 6) == other.at(range(6, 12))
        assert taken == self.batches().at(range(6))
        take(loader, 1)
        with pytest.raises(StateMismatchError, match=r"(?s)LevelDataset.*cost"):
            get_loader(other).load_state_dict(loader.state_dict())

    @pytest.mark.parametrize(
        ("level", "error", "message"),
        [
            ([], ConfigError, "BatchDataset: 1 to 8 costs can .* got 0"),
            ({}, ConfigError, "1 to 8 costs can be levelled at once, got 0"),
            ([f"c{n}" for n in range(9)], ConfigError, "1 to 8 costs can .* got 9"),
            ({"tokens": 0}, ConfigError, "importance of 'tokens' must be .* got 0"),
            ({"tokens": 1, "patches": -1}, ConfigError, "'patches' must be .* got -1"),
            ({"tokens": math.nan}, ConfigError, "must be a finite number > 0, got nan"),
            ({"tokens": "1"}, ConfigError, "must be a finite number > 0, got '1'"),
            ({"tokens": True}, ConfigError, "must be a finite number > 0, got True"),
            (["tokens", "tokens"], ConfigError, "'tokens' is listed twice"),
            (["tokens", 3], ConfigError, "a cost must be the name of a column"),
            (["tokens", ItemCost("x")], ConfigError, "several costs .* ItemCost"),
            (["tokens", "patchs"], ColumnError, "'patchs'; did you mean 'patches'"),
            (["tokens", "nothing"], ColumnError, "'nothing' is 0 for all .* pictures"),
            (["tokens", lambda tokens: -tokens], ColumnError, "a number >= 0, got -8"),
        ],
    )
    def test_mistakes(self, level, error, message):
        with pytest.raises(error, match=message):
            self.batches(level)

    def test_a_live_change_acts_after_the_started_global_batch(self):
        sources = {name: ShuffleDataset(pictures(name=name)) for name in "ab"}
        blend = BlendDataset(sources, weights={"a": 1, "b": 1})
        dataset = BatchDataset(blend, 4, list, level=BOTH, global_batch_size=24)
        loader, plain = get_loader(dataset), dataset.at(range(18))
        assert take(loader, 8) == plain[:8]
        loader.set_weights({"a": 1, "b": 9})
        assert take(loader, 4) == plain[8:12]
        resumed = get_loader(dataset)
        resumed.load_state_dict(loader.state_dict())
        later = take(loader, 6)
        assert later != plain[12:]
        assert later == take(resumed, 6)

    def test_a_sample_without_any_cost(self):
        dataset = self.batches(["patches", lambda nothing, patches: patches // 2])
        with pytest.raises(
            ColumnError,
            match=r"pictures.*one of its costs must be > 0, got 0 by 'patches', '.*lambda",
        ):
            dataset.at(range(6))

    def test_one_source_may_lack_a_cost(self):
        texts = lengths(40)
        samples = BlendDataset((texts, 1), (pictures(), 1))
        dataset = BatchDataset(
            samples, 4, list, level=["tokens", some_patches], global_batch_size=24
        )
        assert len(dataset.at(range(6))) == 6
        with pytest.raises(ColumnError, match=r"texts.*no column 'patches'"):
            BatchDataset(samples, 4, list, level=BOTH, global_batch_size=24)


def test_a_function_of_columns_that_raises_is_named_with_its_source():
    def unusual(tokens):
        raise KeyError("size")

    with pytest.raises(
        ColumnError, match=r"texts: .*unusual.*tokens.*KeyError: 'size'"
    ):
        BatchDataset(lengths(8), 2, list, level=unusual, global_batch_size=8).at([0])


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
