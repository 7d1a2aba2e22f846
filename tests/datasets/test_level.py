"""Micro batches of one global batch that cost the same."""

from __future__ import annotations

import logging
import math
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    EncoderError,
    FilterDataset,
    LevelBufferDataset,
    LevelDataset,
    ListSource,
    MapDataset,
    NotIndexedError,
    RepeatDataset,
    ShuffleDataset,
    Stage,
    StagedDataset,
    StagePlan,
    StateMismatchError,
    WorkerConfig,
    get_loader,
)
from energize.errors import ColumnError


def lengths(count, start=0, seed=0, name="texts"):
    """Texts of skewed lengths: each sample is its number, and its length a column."""
    drawn = np.random.default_rng(seed).lognormal(4, 0.9, count)
    tokens = np.clip(drawn, 4, 500).astype(int).tolist()
    return ListSource(range(start, start + count), name=name, columns={"tokens": tokens})


def blended():
    texts, others = lengths(500), lengths(300, 1000, seed=1, name="others")
    return BlendDataset((ShuffleDataset(texts), 2), (ShuffleDataset(others), 1))


def costs_of(source, numbers):
    tokens = source.column("tokens").values
    return [int(tokens[number]) for number in numbers]


class TestGlobalBatches:
    """What they hold is what they would hold without levelling."""

    @given(
        count=st.integers(1, 70),
        batch=st.integers(1, 5),
        batches=st.integers(1, 6),
        epochs=st.sampled_from([1, None]),
        seed=st.integers(0, 9),
    )
    def test_they_hold_the_samples_of_the_plain_order(self, count, batch, batches, epochs, seed):
        data = ShuffleDataset(lengths(count, seed=seed))
        data = data if epochs else RepeatDataset(data)
        whole = batch * batches
        plain = BatchDataset(data, batch, list)
        level = BatchDataset(data, batch, list, level="tokens", global_batch_size=whole)
        assert level.size == plain.size
        per_epoch = -(-count // batch) if epochs else 4 * batches
        for epoch in range(2):
            first = epoch * per_epoch
            for start in range(first, first + per_epoch, batches):
                at = np.arange(start, min(start + batches, first + per_epoch))
                held, expected = (
                    sorted(number for each in dataset.at(at) for number in each)
                    for dataset in (level, plain)
                )
                assert held == expected
                assert list(map(len, level.at(at))) == list(map(len, plain.at(at)))


class TestPositions:
    def test_a_later_stage_goes_on_after_the_global_batches_that_were_begun(self):
        source = lengths(100)

        def stage(name, start, end):
            blend = BlendDataset(
                (ShuffleDataset(source), 1), (ShuffleDataset(lengths(9, 1000, name=name)), 1)
            )
            batches = BatchDataset(blend, 2, list, level="tokens", global_batch_size=8)
            return Stage(name, start, end, dataset=batches)

        staged = StagedDataset(StagePlan([stage("one", 0, 6), stage("two", 6, 20)]))
        first, second = (
            [n for n in chain(*staged.at(range(*span))) if n < 1000] for span in ((0, 6), (6, 20))
        )
        assert len({*first, *second}) == len(first) + len(second)
        begun = [n for n in chain(*staged.inputs[0].at(range(8))) if n < 1000]
        assert not {*begun} & {*second}


class TestStates:
    def batches(self, cost):
        return BatchDataset(ShuffleDataset(lengths(40)), 2, list, level=cost, global_batch_size=8)

    @staticmethod
    def after(dataset, steps):
        loader = get_loader(dataset)
        items = iter(loader)
        for _ in range(steps):
            next(items)
        return loader.state_dict()

    def test_between_two_global_batches_the_cost_may_change(self, caplog):
        loader = get_loader(self.batches(squared_tokens))
        with caplog.at_level(logging.WARNING):
            loader.load_state_dict(self.after(self.batches("tokens"), 8))
        assert "LevelDataset of 'texts': c" in caplog.text
        assert next(iter(loader)) == self.batches(squared_tokens).at([8])[0]

    def test_inside_of_one_it_may_not(self):
        state = self.after(self.batches("tokens"), 7)
        with pytest.raises(StateMismatchError, match=r"(?s)LevelDataset.*cost.*squared_tokens"):
            get_loader(self.batches(squared_tokens)).load_state_dict(state)


def yielding(items):
    yield from items


def squared_tokens(tokens):
    return tokens**2


def patches_or_tokens(tokens=0, width=0, height=0):
    return tokens + width * height / 196


class TestCosts:
    def test_a_function_of_columns_that_some_sources_lack(self):
        texts = lengths(30)
        photographs = ListSource(
            range(100, 130),
            name="photographs",
            columns={"width": [14 * (1 + n) for n in range(30)], "height": [280] * 30},
        )
        blend = BlendDataset((texts, 1), (photographs, 1))
        level = LevelDataset(blend, 2, global_batch_size=8, cost=patches_or_tokens)
        costs = level.cost.of(blend, np.arange(8))
        items = blend.at(range(8))
        assert costs.tolist() == [
            20.0 * (n - 99) if n >= 100 else float(costs_of(texts, [n])[0]) for n in items
        ]

    @pytest.mark.parametrize("bad", [0, -3, math.nan, math.inf])
    def test_a_cost_that_is_none_names_the_sample(self, bad):
        source = ListSource("abcd", name="letters", columns={"tokens": [1.0, 2.0, bad, 1.0]})
        level = LevelDataset(source, 2, global_batch_size=4, cost="tokens")
        with pytest.raises(ColumnError, match=rf"letters.* 2.*its cost is {bad:g}.*above 0"):
            level.at([0])

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"level": "token"}, ColumnError, "no column 'token'; did you mean 'tokens'"),
            ({"level": lambda words: words}, ColumnError, "no column 'words'"),
            ({"level": lambda: 1}, ConfigError, "has no parameters"),
            ({"level": 3}, ConfigError, "a cost is the name of a column, or a function"),
            ({"global_batch_size": 7}, ConfigError, r"BatchDataset: .* 7 .*batches of 2"),
            ({"global_batch_size": 0}, ConfigError, r"BatchDataset: global_batch_size is a whole"),
            ({"global_batch_size": None}, ConfigError, "level is given, and global_batch_size"),
            ({"level": None}, ConfigError, "global_batch_size is given, and level is not"),
            ({"batcher": yielding}, ConfigError, "a batcher that yields"),
        ],
    )
    def test_mistakes(self, options, error, message):
        given = {"batcher": list, "level": "tokens", "global_batch_size": 8} | options
        with pytest.raises(error, match=message):
            BatchDataset(lengths(20), 2, **given)

    def test_batches_of_another_size(self):
        level = LevelDataset(lengths(20), 2, global_batch_size=8, cost="tokens")
        with pytest.raises(ConfigError, match=r"batches have 4 items, and LevelDataset .* of 2"):
            BatchDataset(MapDataset(level, str), 4, list)
        buffered = LevelBufferDataset(lengths(20), 8, 2, lambda item: item + 1)
        with pytest.raises(ConfigError, match="batches have 3 items, and LevelBufferDataset"):
            BatchDataset(buffered, 3, list)

    def test_a_stream(self):
        with pytest.raises(NotIndexedError, match=r"FilterDataset.*LevelBufferDataset"):
            LevelDataset(FilterDataset(lengths(9), bool), 2, global_batch_size=4, cost="tokens")


class TestLoaders:
    def batches(self):
        return BatchDataset(lengths(64), 2, list, level="tokens", global_batch_size=16)

    def test_weights_that_change_act_from_the_next_global_batch_on(self):
        level = BatchDataset(blended(), 2, list, level="tokens", global_batch_size=16)
        loader = get_loader(level)
        items = iter(loader)
        came = [next(items) for _ in range(3)]
        loader.set_weights({"texts": 1, "others": 0}, at_step=5)
        came += [next(items) for _ in range(21)]
        assert came[:8] == level.at(range(8))
        others = [sum(number >= 1000 for number in chain(*came[n : n + 8])) for n in (0, 8, 16)]
        assert others[0] > 0 == others[1] == others[2]
        assert len(set(chain(*came))) == 48
        again = get_loader(level)
        again.load_state_dict(loader.state_dict())
        assert next(iter(again)) == next(items)


class TestStreams:
    """Levelled in each lane, some items at a time."""

    def stream(self, count=4000):
        return FilterDataset(RepeatDataset(ShuffleDataset(lengths(count))), lambda n: n % 5 > 0)

    def test_batches_cost_what_the_items_they_were_chosen_among_cost_on_average(self):
        source = lengths(4000)
        tokens = source.column("tokens").values
        level = LevelBufferDataset(self.stream(), 256, 8, lambda n: tokens[n])
        batches = BatchDataset(level, 8, list)
        config = [WorkerConfig(rank, 4, 0) for rank in range(4)]
        loaders = [get_loader(batches, worker_config=each) for each in config]
        steps = list(zip(*(list(islice(each, 32)) for each in loaders), strict=True))
        worst = [
            max(costs) / np.mean(costs)
            for costs in ([tokens[batch].sum() for batch in step] for step in steps)
        ]
        plain = iter(BatchDataset(self.stream(), 8, list))
        alone = [tokens[next(plain)].sum() for _ in range(128)]
        assert max(worst) < 1.15
        assert np.std(alone) / np.mean(alone) > 0.25

    @pytest.mark.parametrize("bad", [0, -1.5, math.nan, "7"])
    def test_a_cost_that_is_none_names_the_sample(self, bad):
        samples = [{"__key__": f"key-{n}", "cost": 1 if n != 2 else bad} for n in range(4)]
        level = LevelBufferDataset(ListSource(samples), 4, 2, lambda sample: sample["cost"])
        with pytest.raises(EncoderError, match="key-2"):
            list(level)

    @pytest.mark.parametrize("sizes", [(5, 2), (1, 2), (0, 1), (4, 0)])
    def test_sizes(self, sizes):
        with pytest.raises(ConfigError, match="LevelBufferDataset"):
            LevelBufferDataset(ListSource("abcd"), *sizes, len)
