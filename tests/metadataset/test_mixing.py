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
)
from energize.errors import ColumnError
from energize.loader.loader import get_savable_loader
from energize.metadataset import leaves_with_weights, resolve
from tests.metadataset.conftest import Keys, train
from tests.support.tables import row


def drawn(dataset, count, start=0):
    """How often each folder comes among `count` items from `start` on."""
    sources = dataset.refs(np.arange(start, start + count)).source
    return dict(Counter(dataset.sources[number].name for number in sources))


def seen(dataset, epoch=0):
    """How often each sample of each folder comes in an epoch."""
    refs = dataset.refs(np.arange(epoch * dataset.size, (epoch + 1) * dataset.size))
    counts = {
        source.name: np.zeros(source.count, dtype=int) for source in dataset.sources
    }
    for number, index in zip(refs.source, refs.index, strict=True):
        counts[dataset.sources[number].name][index] += 1
    return counts


def asked(file, **options):
    node = resolve(file, "train")
    return {
        leaf.path.name: float(share)
        for leaf, share in leaves_with_weights(node, **options)
    }


def fault(kind, file, **options):
    with pytest.raises(kind) as caught:
        train(file, **options)
    return str(caught.value)


# By weights


def test_a_blend_that_never_ends_is_not_read_once(mix):
    told = fault(ConfigError, mix("blend: [{path: a}, {path: b}]"), repeat=False)
    assert "never ends" in told


def test_weights_by_size(mix):
    """p_i is n_i ** (1 / T) over the sum: of samples in the file, also below blends."""
    inner = "{blend: [{path: b, weight: 5}, {path: c, weight: 1}]}"
    sizes = {"a": 60, "b": 30, "c": 9}
    for options, power in [
        ("weights: size", 1),
        ("weights: sqrt_size", 1 / 2),
        ("weights: size, temperature: 5", 1 / 5),
        ("weights: size, exponent: 0.7", 0.7),
        ("weights: sqrt_size, scheme: exact", 1 / 2),
    ]:
        total = sum(size**power for size in sizes.values())
        shares = {name: size**power / total for name, size in sizes.items()}
        file = mix(f"{{{options}, blend: [{{path: a}}, {{path: b}}, {{path: c}}]}}")
        assert asked(file) == pytest.approx(shares), options
        counts = drawn(train(file), 10_000)
        for name, share in shares.items():
            assert abs(counts[name] - 10_000 * share) < 4, (options, name)
    file = mix(f"{{weights: size, blend: [{{path: a}}, {inner}]}}")
    assert asked(file) == pytest.approx({"a": 60 / 99, "b": 32.5 / 99, "c": 6.5 / 99})
    ranged = "{weights: size, blend: [{path: a, subset: {range: [0, 9]}}, {path: c}]}"
    assert drawn(train(mix(ranged)), 100) == {"a": 50, "c": 50}
    by_batch = "{weights: size, blend: [{path: a}, {path: images}]}"
    assert asked(mix(by_batch)) == pytest.approx({"a": 60 / 90, "images": 30 / 90})
    ends = (
        "{weights: size, blend: [{path: a}, {stop: all_exhausted, blend: [{path: b}]}]}"
    )
    assert "the shares are unknown" in fault(ConfigError, mix(ends))


# By quotas


def test_shares_that_are_asked_for(mix):
    inner = "{blend: [{path: b, weight: 9}, {path: c, weight: 1}], weight: 1}"
    for options in ("", "scheme: random", "exponent: 0", "temperature: 2"):
        found = asked(mix(f"{options}\nblend:\n- {{path: a, weight: 1}}\n- {inner}"))
        assert found == pytest.approx({"a": 0.5, "b": 0.45, "c": 0.05})
    file = mix(
        "scheme: round_robin\nblend: [{path: a}, {blend: [{path: b}, {path: c}]}]"
    )
    assert asked(file) == {"a": 0.5, "b": 0.25, "c": 0.25}
    file = mix(
        "blend: [{path: a}, {blend: [{path: b, repeat: 1}, {path: c, choose: 10}]}]"
    )
    assert asked(file) == {"a": 0.5, "b": 0.375, "c": 0.125}
    ends = "stop: all_exhausted, blend: [{path: a}, {path: b}]"
    with pytest.raises(ConfigError, match="the shares are unknown"):
        asked(mix(f"blend: [{{path: c, repeat: 1}}, {{{ends}}}]"))
    file = mix(f"blend: [{{path: c, proportion: 1}}, {{{ends}, proportion: 2}}]")
    assert asked(file) == dict.fromkeys("cab", pytest.approx(1 / 3))


def test_global_batches_are_composed(mix):
    for said in (
        None,
        False,
        True,
    ):  # 10 samples in global batches of 4: what the file says wins
        for drop in (False, True):
            table = {"method": "random", "global_batch_size": 4}
            table |= {} if said is None else {"drop_last": said}
            file = mix(
                {"epoch_size": 10, "composition": table, "blend": [{"path": "a"}]}
            )
            drops = drop if said is None else said
            dataset = train(file, 2, batch_drop_last=drop)
            assert dataset.size == (4 if drops else 6)
            assert len(dataset.refs(np.arange(dataset.size))) == (8 if drops else 10)


# By passes, and one after the other


def test_passes_in_passes_are_multiplied(mix):
    mix(
        "blend_epochized: [{path: b, repetitions: 0.3}, {path: c, repetitions: 2}]",
        "inner.yaml",
    )
    file = mix("blend_epochized: [{path: inner.yaml, repetitions: 3}, {path: a}]")
    assert [quota.repeat for quota in resolve(file, "train").quotas] == [0.9, 6.0, None]
    inline = (
        "{repetitions: 3, blend_epochized: [{path: b, repetitions: 0.3}, {path: c, "
    )
    inline = mix(f"blend_epochized: [{inline}repetitions: 2}}]}}, {{path: a}}]")
    assert train(inline, repeat=False) == train(file, repeat=False)


def test_passes_without_shuffling_and_those_that_cannot_be(mix, caplog):
    still = "shuffle_over_epochs_multiplier: null"
    file = mix(
        f"blend_epochized: [{{path: c, repetitions: 2, {still}}}, {{path: b, {still}}}]"
    )
    keys = [sample.__key__ for sample in train(file, repeat=False)]
    assert keys == [f"2{i:03d}" for i in range(9)] * 2 + [
        f"1{i:03d}" for i in range(30)
    ]
    one = f"{{path: c, {still}}}"
    drawn_anew = "{path: c, shuffle_over_epochs_multiplier: -1}"
    endless = "{blend: [{path: a}, {path: c}]}"
    for node, words in [
        (f"blend_epochized: [{one}, {{path: b}}]", "of a blend by quotas, or for none"),
        (
            f"blend_epochized: [{drawn_anew}, {{path: b}}]",
            "no effect in a blend by quotas",
        ),
        (
            f"blend_epochized: [{endless}, {{path: b}}]",
            r"(?s)requested at .*yaml:\d+ \(splits.tr",
        ),
        (
            "blend_epochized: [{path: a, repetitions: 0}]",
            r"(?s)quotas are 0 for all.*requested at",
        ),
        (
            f"concat: [{endless}, {{path: b}}]",
            r"(?s)never ends.*requested at .*\(splits.train",
        ),
    ]:
        with row(node), pytest.raises(ConfigError, match=words):
            train(mix(node))
    caplog.set_level("INFO", "energize")
    dataset = train(mix("blend_epochized: [{path: c}]"), shuffle_buffer_size=10)
    assert dataset == train(mix("blend_epochized: [{path: c}]"))
    assert "shuffle_buffer_size=10 has no effect in a blend by quotas" in caplog.text


# Batches of several encoders


ENCODERS = {TextSample: Keys(), ImageClassificationSample: Keys()}


def test_batches_of_several_encoders_are_mixed_as_the_blend_says(mix):
    inner = "{weight: 3, blend: [{path: a, weight: 1}, {path: b, weight: 1}]}"
    file = mix(f"scheme: exact\nblend: [{{path: images, weight: 1}}, {inner}]")
    dataset = train(file, batch_size=4, task_encoder=ENCODERS)
    kinds = [drawn(dataset, 1, k) for k in range(40)]
    assert kinds.count({"images": 4}) == 10
    assert kinds.count({"a": 2, "b": 2}) == 30
    ends = mix("stop: all_exhausted\nblend: [{path: images}, {path: a}]")
    dataset = train(ends, batch_size=7, task_encoder=ENCODERS)
    images = len(train(mix("path: images"), repeat=False))
    assert dataset.size == -(-images // 7) + -(-60 // 7)
    assert all(set(counts) == {1} for counts in seen(dataset).values())
    quotas = mix("blend: [{path: a, repeat: 2}, {path: images, repeat: 2}]")
    told = fault(ConfigError, quotas, batch_size=4, task_encoder=ENCODERS)
    assert "several task encoders" in told
    wrong = {TextSample: Keys(), CaptioningSample: Keys()}
    assert "CaptioningSample" in fault(
        ConfigError, file, batch_size=4, task_encoder=wrong
    )


# By what samples cost


def test_units_that_cannot_be(mix):
    inner = "{proportion: 1, unit: {field: text}, blend: [{path: b}, {path: c}]}"
    for kind, node, words in [
        (ColumnError, "unit: tokens\nblend: [{path: crude}]", r"(?s)no column.*--colum.*mix\.yaml"),
        (ConfigError, "unit: tokens\nstop: all_exhausted\nblend: [{path: a}, {path: b}]",
         r"(?s)with unit='tokens' never ends.*mix\.yaml"),
        (NotIndexedError, f"blend: [{{path: a, proportion: 1}}, {inner}]", "stream"),
    ]:  # fmt: skip
        with row(node), pytest.raises(kind, match=words):
            train(mix(node))
    dataset = train(mix("unit: {field: txt}\nblend: [{path: a}, {path: b}]"))
    with pytest.raises(
        EncoderError, match=r"sample .*no field 'txt'.*did you mean 'text'"
    ):
        next(iter(get_savable_loader(dataset)))


# Laws, and what the engine refuses


GLIDE = "{interpolation: linear, points: {0: 1, 9: 2}}"
ZERO = "{path: b, weight: 0, target_weight: 1}"
REFUSED = f"""
Weight  | blend: [{{path: a, weight: 0}}, {{path: b, weight: 0.0}}] | all weights are 0
Weight  | blend: [{{path: a, weight: 1, target_weight: 1}}, {ZERO}] | target weight, but its weight is 0
Config  | {{max_correction: 2, blend: [{{path: a}}, {{path: b}}]}} | max_correction needs target_weights
Config  | {{unit: tokens, scheme: exact, blend: [{{path: a}}, {{path: b}}]}} | Remove one of them
Config  | {{unit: tokens, block_size: 5, blend: [{{path: a}}, {{path: b}}]}} | Remove one of them
Config  | blend: [{{path: a, min_share: 0.6}}, {{path: b, min_share: 0.6}}] | datasets sum to 1.2
Weight  | blend: [{{path: a, proportion: 1}}, {{path: b, repeat: 1}}] | for all streams or for none
Config  | {{epoch_size: 9, blend: [{{path: a, repeat: 1}}]}} | contradict
Config | {{scheme: uniform, blend: [{{path: a, weight: {GLIDE}}}, {{path: b, weight: 1}}]}} | ignores weights
Weight  | blend: [{{path: a, weight: {{points: {{0: 1, 5: 0}}}}}}] | weights are 0 at slot 5
Config  | blend: [{{path: c}}, {{max_epochs: 2, blend: [{{path: a}}, {{path: b}}]}}] | has no epochs
Config  | blend: [{{path: c, repeat: 1}}, {{blend: [{{path: a}}, {{path: b}}]}}] | never ends
Config  | blend: [{{path: a, shuffle_over_epochs_multiplier: 2, repeat: 1}}] | no effect in a blend by quotas
Config  | blend: [{{path: inner.yaml}}, {{path: c}}] | in the outermost blend
"""


def test_errors_of_the_engine_say_where_they_were_asked_for(mix):
    composed = "composition: {method: per_stream, global_batch_size: 4}\n"
    mix(
        f"{composed}blend: [{{path: a, proportion: 1}}, {{path: b, proportion: 1}}]",
        "inner.yaml",
    )
    kinds = {"Config": ConfigError, "Weight": WeightError}
    for line in REFUSED.strip().splitlines():
        kind, node, words = (each.strip() for each in line.split(" | "))
        with row(line):
            told = fault(kinds[kind], mix(node), batch_size=4)
            assert words in told
            assert re.search(r"\S+\.yaml:\d+ \(splits\.train\.blend", told)
    file = mix(
        f"{composed}blend: [{{path: a, proportion: 1}}, {{path: b, proportion: 99}}]"
    )
    told = fault(ConfigError, file, batch_size=4)
    assert "gives 1 samples to an epoch and cannot fill one batch of 4" in told
    assert "batch_size" in fault(ConfigError, file)
