"""How metadatasets mix: what is drawn is what the file says."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from energize import (
    CaptioningSample,
    ConfigError,
    EncoderError,
    ImageClassificationSample,
    NotIndexedError,
    TextSample,
    WeightError,
    get_savable_loader,
)
from energize.core.stream import INFINITE
from energize.errors import ColumnError
from energize.metadataset import leaves_with_weights, resolve
from tests.metadataset.conftest import SIZES, Keys, train
from tests.support.tables import row


def drawn(dataset, count, start=0):
    """How often each folder comes among `count` items from `start` on."""
    sources = dataset.refs(np.arange(start, start + count)).source
    return dict(Counter(dataset.sources[number].name for number in sources))


def seen(dataset, epoch=0):
    """How often each sample of each folder comes in an epoch."""
    refs = dataset.refs(np.arange(epoch * dataset.size, (epoch + 1) * dataset.size))
    counts = {source.name: np.zeros(source.count, dtype=int) for source in dataset.sources}
    for number, index in zip(refs.source, refs.index, strict=True):
        counts[dataset.sources[number].name][index] += 1
    return counts


def asked(file, **options):
    node = resolve(file, "train")
    return {leaf.path.name: float(share) for leaf, share in leaves_with_weights(node, **options)}


def fault(kind, file, **options):
    with pytest.raises(kind) as caught:
        train(file, **options)
    return str(caught.value)


# By weights


NESTED = "{blend: [{path: b, weight: 9}, {path: c, weight: 1}]%s}"
SHARES = [  # keys of the outer blend, what is drawn of a, b and c in how many, and how exactly
    ("scheme: exact", {"a": 0.5, "b": 0.45, "c": 0.05}, (20, 100, 340), 1),
    ("", {"a": 0.5, "b": 0.45, "c": 0.05}, (1000,), 1),
    ("scheme: block\nblock_size: 100", {"a": 0.5, "b": 0.45, "c": 0.05}, (200, 1000), 0),
    ("scheme: random", {"a": 0.5, "b": 0.45, "c": 0.05}, (4000,), 150),
    ("temperature: 0", {"a": 0.5, "b": 0.45, "c": 0.05}, (1000,), 1),
    ("temperature: 0.5", {"a": 0.5, "b": 0.45, "c": 0.05}, (1000,), 1),
]


def test_nested_shares_under_each_scheme(mix):
    for options, shares, counts, slack in SHARES:
        file = mix(f"{options}\nblend:\n- {{path: a, weight: 1}}\n- {NESTED % ', weight: 1'}")
        with row(options):
            assert asked(file) == pytest.approx(shares)
            for count in counts:
                found = drawn(train(file), count)
                assert all(abs(found[name] - shares[name] * count) <= slack for name in shares)
    file = mix("scheme: round_robin\nblend: [{path: a}, {blend: [{path: b}, {path: c}]}]")
    assert asked(file) == {"a": 0.5, "b": 0.25, "c": 0.25}
    assert drawn(train(file), 4000) == {"a": 2000, "b": 1000, "c": 1000}


def test_where_a_blend_ends(mix):
    file = mix("stop: all_exhausted\nblend: [{path: a}, {path: c, max_epochs: 3}]")
    dataset = train(file)
    assert dataset.size == 60 + 3 * 9
    for epoch in range(2):
        counts = seen(dataset, epoch)
        assert (set(counts["a"]), set(counts["c"])) == ({1}, {3})
    assert len({sample.__key__ for sample in dataset}) == 69
    ending = mix("stop: first_exhausted\nblend: [{path: a}, {path: b}]")
    assert train(ending, repeat=False).size == train(ending).size < INFINITE
    assert "never ends" in fault(ConfigError, mix("blend: [{path: a}, {path: b}]"), repeat=False)


# By quotas


def test_quotas_inside_a_weighted_blend(mix):
    file = mix("blend: [{path: a}, {blend: [{path: b, repeat: 1}, {path: c, choose: 10}]}]")
    assert asked(file) == {"a": 0.5, "b": 0.375, "c": 0.125}
    assert train(file).size == INFINITE
    assert drawn(train(file), 4000) == {"a": 2000, "b": 1500, "c": 500}
    ends = mix(
        "blend: [{path: c, repeat: 1}, {stop: all_exhausted, blend: [{path: a}, {path: b}]}]"
    )
    assert train(ends).size == 99
    with pytest.raises(ConfigError, match="not known from its file"):
        asked(ends)
    ends = "{stop: all_exhausted, blend: [{path: a}, {path: b}], proportion: 2}"
    file = mix(f"blend: [{{path: c, proportion: 1}}, {ends}]")
    assert asked(file) == dict.fromkeys("cab", pytest.approx(1 / 3))


def test_global_batches_are_composed(mix):
    text = "epoch_size: 1600\ncomposition: {method: stratified, global_batch_size: 16}\n"
    file = mix(f"{text}blend: [{{path: a, proportion: 3}}, {{path: b, proportion: 1}}]")
    for size in (4, 8, 16):
        dataset = train(file, size)
        assert dataset.size == 1600 / size
        assert len(dataset[0]) == size
        for k in range(20):
            assert drawn(dataset, 16 // size, k * 16 // size) == {"a": 12, "b": 4}
        assert train(mix("path: mix.yaml", "by.yaml"), size).describe() == dataset.describe()
    for said in (None, False, True):  # 10 samples in global batches of 4: what the file says wins
        for drop in (False, True):
            table = {"method": "random", "global_batch_size": 4}
            table |= {} if said is None else {"drop_last": said}
            file = mix({"epoch_size": 10, "composition": table, "blend": [{"path": "a"}]})
            drops = drop if said is None else said
            dataset = train(file, 2, batch_drop_last=drop)
            assert dataset.size == (4 if drops else 6)
            assert len(dataset.refs(np.arange(dataset.size))) == (8 if drops else 10)


# By passes, and one after the other


def epochs(dataset, count):
    """How often each sample comes, in each of several epochs."""
    size = dataset.size
    items = [sample.__key__ for sample in dataset.at(range(count * size))]
    return [Counter(items[i * size : (i + 1) * size]) for i in range(count)]


def times(counts, number):
    """How often each sample of a folder came."""
    count = list(SIZES.values())[number]
    return [counts[f"{number}{i:03d}"] for i in range(count)]


def test_passes_in_passes_are_multiplied_and_count_in_blends(mix):
    mix("blend_epochized: [{path: b, repetitions: 0.3}, {path: c, repetitions: 2}]", "inner.yaml")
    file = mix("blend_epochized: [{path: inner.yaml, repetitions: 3}, {path: a}]")
    assert [quota.repeat for quota in resolve(file, "train").quotas] == [0.9, 6.0, None]
    dataset = train(file, repeat=False)
    assert dataset.size == 27 + 54 + 60
    assert sorted(times(epochs(dataset, 1)[0], 1)) == [0] * 3 + [1] * 27
    inline = "{repetitions: 3, blend_epochized: [{path: b, repetitions: 0.3}, {path: c, "
    inline = mix(f"blend_epochized: [{inline}repetitions: 2}}]}}, {{path: a}}]")
    assert train(inline, repeat=False) == dataset
    counted = "{blend_epochized: [{path: b}, {path: c}]}"
    items = [
        sample.__key__ for sample in train(mix(f"blend: [{counted}, {{path: a}}]")).at(range(156))
    ]
    assert set(times(Counter(items), 1) + times(Counter(items), 2)) == {2}


def test_passes_without_shuffling_and_those_that_cannot_be(mix, caplog):
    still = "shuffle_over_epochs_multiplier: null"
    file = mix(f"blend_epochized: [{{path: c, repetitions: 2, {still}}}, {{path: b, {still}}}]")
    keys = [sample.__key__ for sample in train(file, repeat=False)]
    assert keys == [f"2{i:03d}" for i in range(9)] * 2 + [f"1{i:03d}" for i in range(30)]
    one = f"{{path: c, {still}}}"
    drawn_anew = "{path: c, shuffle_over_epochs_multiplier: -1}"
    endless = "{blend: [{path: a}, {path: c}]}"
    for node, words in [
        (f"blend_epochized: [{one}, {{path: b}}]", "shuffles all of them or none"),
        (f"blend_epochized: [{drawn_anew}, {{path: b}}]", "a quota does"),
        (f"blend_epochized: [{endless}, {{path: b}}]", r"(?s)asked for at .*yaml:\d+ \(splits.tr"),
        ("blend_epochized: [{path: a, repetitions: 0}]", r"(?s)no sample of any.*asked for at"),
        (f"concat: [{endless}, {{path: b}}]", r"(?s)never ends.*asked for at .*\(splits.train"),
    ]:
        with row(node), pytest.raises(ConfigError, match=words):
            train(mix(node))
    caplog.set_level("INFO", "energize")
    dataset = train(mix("blend_epochized: [{path: c}]"), shuffle_buffer_size=10)
    assert dataset == train(mix("blend_epochized: [{path: c}]"))
    assert "shuffle_buffer_size=10 says in which order" in caplog.text


# Batches of several encoders


ENCODERS = {TextSample: Keys(), ImageClassificationSample: Keys()}


def test_batches_of_several_encoders_are_mixed_as_the_blend_says(mix):
    inner = "{weight: 3, blend: [{path: a, weight: 1}, {path: b, weight: 1}]}"
    file = mix(f"scheme: exact\nblend: [{{path: images, weight: 1}}, {inner}]")
    dataset = train(file, batch_size=4, task_encoder=ENCODERS)
    kinds = [drawn(dataset, 1, k) for k in range(40)]
    assert kinds.count({"images": 4}) == 10
    assert kinds.count({"a": 2, "b": 2}) == 30
    plain = mix("blend: [{path: b}, {blend: [{path: images}, {path: a}]}]")
    dataset = train(plain, batch_size=12, task_encoder=ENCODERS)
    kinds = [drawn(dataset, 1, k) for k in range(400)]
    assert kinds.count({"images": 12}) == 100
    together = [kind for kind in kinds if "a" in kind]  # across levels
    assert sum("b" in kind for kind in together) > 0.9 * len(together)
    ends = mix("stop: all_exhausted\nblend: [{path: images}, {path: a}]")
    dataset = train(ends, batch_size=7, task_encoder=ENCODERS)
    images = len(train(mix("path: images"), repeat=False))
    assert dataset.size == -(-images // 7) + -(-60 // 7)
    assert all(set(counts) == {1} for counts in seen(dataset).values())
    quotas = mix("blend: [{path: a, repeat: 2}, {path: images, repeat: 2}]")
    told = fault(ConfigError, quotas, batch_size=4, task_encoder=ENCODERS)
    assert "several task encoders" in told
    wrong = {TextSample: Keys(), CaptioningSample: Keys()}
    assert "CaptioningSample" in fault(ConfigError, file, batch_size=4, task_encoder=wrong)


# By what samples cost


def test_units_that_cannot_be(mix):
    inner = "{proportion: 1, unit: {field: text}, blend: [{path: b}, {path: c}]}"
    for kind, node, words in [
        (ColumnError, "unit: tokens\nblend: [{path: crude}]", r"(?s)no column.*--colum.*mix\.yaml"),
        (ConfigError, "unit: tokens\nstop: all_exhausted\nblend: [{path: a}, {path: b}]",
         r"(?s)with unit='tokens' none does.*mix\.yaml"),
        (NotIndexedError, f"blend: [{{path: a, proportion: 1}}, {inner}]", "stream"),
    ]:  # fmt: skip
        with row(node), pytest.raises(kind, match=words):
            train(mix(node))
    dataset = train(mix("unit: {field: txt}\nblend: [{path: a}, {path: b}]"))
    with pytest.raises(EncoderError, match=r"sample .*no field 'txt'.*did you mean 'text'"):
        next(iter(get_savable_loader(dataset)))


# Laws, and what the engine refuses


GLIDE = "{interpolation: linear, points: {0: 1, 9: 2}}"
REFUSED = f"""
Config  | blend: [{{path: a, min_share: 0.6}}, {{path: b, min_share: 0.6}}] | datasets sum to 1.2
Weight  | blend: [{{path: a, proportion: 1}}, {{path: b, repeat: 1}}] | to all streams or to none
Config  | {{epoch_size: 9, blend: [{{path: a, repeat: 1}}]}} | contradict
Config | {{scheme: uniform, blend: [{{path: a, weight: {GLIDE}}}, {{path: b, weight: 1}}]}} | notice
Weight  | blend: [{{path: a, weight: {{points: {{0: 1, 5: 0}}}}}}] | weights are 0 at slot 5
Config  | blend: [{{path: c}}, {{max_epochs: 2, blend: [{{path: a}}, {{path: b}}]}}] | has no epochs
Config  | blend: [{{path: c, repeat: 1}}, {{blend: [{{path: a}}, {{path: b}}]}}] | never ends
Config  | blend: [{{path: a, shuffle_over_epochs_multiplier: 2, repeat: 1}}] | a quota does
Config  | blend: [{{path: inner.yaml}}, {{path: c}}] | the outermost one
"""


def test_errors_of_the_engine_say_where_they_were_asked_for(mix):
    composed = "composition: {method: per_stream, global_batch_size: 4}\n"
    mix(f"{composed}blend: [{{path: a, proportion: 1}}, {{path: b, proportion: 1}}]", "inner.yaml")
    kinds = {"Config": ConfigError, "Weight": WeightError}
    for line in REFUSED.strip().splitlines():
        kind, node, words = (each.strip() for each in line.split(" | "))
        with row(line):
            told = fault(kinds[kind], mix(node), batch_size=4)
            assert words in told
            assert re.search(r"\n  asked for at \S+\.yaml:\d+ \(splits\.train\.blend", told)
    file = mix(f"{composed}blend: [{{path: a, proportion: 1}}, {{path: b, proportion: 99}}]")
    told = fault(ConfigError, file, batch_size=4)
    assert "gives 1 samples to an epoch and cannot fill one batch of 4" in told
    assert "batch_size" in fault(ConfigError, file)
