"""Blends that count passes, and datasets that follow one another."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import (
    ConfigError,
    MetadatasetError,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energize.metadataset import leaves_with_weights, resolve
from energize.testing import check_laws
from tests.support.joining import keys, texts
from tests.support.metadatasets import written

ENERGON = "megatron.energon"
SIZES = {"a": 10, "b": 7, "c": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("epochized")
    for number, (name, size) in enumerate(SIZES.items()):
        texts(folder / name, [keys(*range(100 * number, 100 * number + size))])
    return folder


def mix(folder, module=ENERGON, name="mix.yaml", **node):
    return written(folder / name, node, module)


def train(file, **options):
    return get_train_dataset(file, batch_size=None, **options)


def epochs(dataset, count, size):
    """How often each sample comes, in each of several epochs."""
    items = [sample.__key__ for sample in dataset.at(range(count * size))]
    return [Counter(items[i * size : (i + 1) * size]) for i in range(count)]


def entry(name, repetitions):
    return {"path": name, "repetitions": repetitions}


@pytest.mark.parametrize("module", [ENERGON, "energize"])
def test_fractions_are_right_in_every_epoch(folder, module):
    file = mix(folder, module, blend_epochized=[entry("a", 1.5), entry("b", 2), entry("c", 1)])
    dataset = train(file, repeat=False)
    size = 15 + 14 + 3
    assert dataset.size == size
    for epoch in epochs(dataset, 6, size):
        of_a = [epoch[key] for key in keys(*range(10))]
        assert sorted(of_a) == [1] * 5 + [2] * 5
        assert all(epoch[key] == 2 for key in keys(*range(100, 107)))
        assert all(epoch[key] == 1 for key in keys(*range(200, 203)))
    together = sum(epochs(dataset, 6, size), Counter())
    assert {together[key] for key in keys(*range(10))} == {9}


def test_repetitions_in_each_other_are_multiplied(folder):
    inner = mix(folder, name="inner.yaml", blend_epochized=[entry("a", 0.3), entry("b", 2)])
    file = mix(folder, blend_epochized=[entry(inner.name, 3), entry("c", 1)])
    assert [q.repeat for q in resolve(file, "train").quotas] == [0.9, 6.0, None]
    dataset = train(file, repeat=False)
    assert dataset.size == 9 + 42 + 3
    for epoch in epochs(dataset, 3, 54):
        assert sorted(epoch[key] for key in keys(*range(10))) == [0] + [1] * 9
    inline = {"repetitions": 3, "blend_epochized": [entry("a", 0.3), entry("b", 2)]}
    assert train(mix(folder, blend_epochized=[inline, entry("c", 1)]), repeat=False) == dataset


def test_it_goes_on_for_ever_unless_asked_otherwise(folder):
    file = mix(folder, blend_epochized=[entry("a", 1), entry("c", 2)])
    once = [sample.__key__ for sample in get_loader(train(file, repeat=False))]
    assert sorted(once) == sorted(keys(*range(10)) + 2 * keys(*range(200, 203)))
    batches = iter(get_loader(get_train_dataset(file, batch_size=5)))
    found = [key for _ in range(16) for key in next(batches).__key__]
    assert Counter(found) == Counter(once * 5)
    assert len(get_train_dataset(file, batch_size=5)) * 5 >= len(once)


def test_it_goes_on_where_it_was_saved(folder):
    file = mix(folder, blend_epochized=[entry("a", 1.5), entry("b", 1)])
    loader = get_savable_loader(get_train_dataset(file, batch_size=3))
    batches = iter(loader)
    for _ in range(11):
        next(batches)
    state = loader.save_state_rank()
    rest = [next(batches).__key__ for _ in range(9)]
    again = get_savable_loader(get_train_dataset(file, batch_size=3))
    again.restore_state_rank(state)
    batches = iter(again)
    assert [next(batches).__key__ for _ in range(9)] == rest


def test_arguments_of_orders_are_accepted(folder, caplog):
    caplog.set_level("INFO", "energize")
    file = mix(folder, blend_epochized=[entry("a", 1), entry("b", 1)])
    dataset = train(file, shuffle_buffer_size=10, max_samples_per_sequence=5)
    assert sum(epochs(dataset, 1, 17)[0].values()) == 17
    assert "max_samples_per_sequence=5 says in which order" in caplog.text


def test_without_shuffling(folder):
    still = {"shuffle_over_epochs_multiplier": None}
    entries = [entry("c", 2) | still, entry("b", 1) | still]
    dataset = train(mix(folder, blend_epochized=entries), repeat=False)
    wanted = keys(*range(200, 203)) * 2 + keys(*range(100, 107))
    assert [sample.__key__ for sample in dataset] == wanted
    file = mix(folder, blend_epochized=[entry("c", 2) | still, entry("b", 1)])
    with pytest.raises(ConfigError, match="shuffles all of them or none"):
        train(file)
    drawn = entry("c", 1) | {"shuffle_over_epochs_multiplier": -1}
    with pytest.raises(ConfigError, match="a quota does"):
        train(mix(folder, blend_epochized=[drawn, entry("b", 1)]))


def test_shares_are_those_of_an_epoch(folder):
    file = mix(folder, blend_epochized=[entry("a", 1.5), entry("b", 2), entry("c", 0)])
    shares = [share for _, share in leaves_with_weights(resolve(file, "train"))]
    assert shares == [Fraction(15, 29), Fraction(14, 29), 0]


def test_in_a_blend_by_weights(folder):
    counted = {"weight": 1, "blend_epochized": [entry("a", 1), entry("b", 1)]}
    file = mix(folder, blend=[counted, {"path": "c", "weight": 1}])
    items = [sample.__key__ for sample in train(file).at(range(68))]
    others = Counter(key for key in items if key < "0200")
    assert others.total() == 34
    assert set(others.values()) == {2}


def test_blends_without_end_cannot_be_counted(folder):
    weighted = {"blend": [{"path": "a", "weight": 1}, {"path": "b", "weight": 1}]}
    file = mix(folder, blend_epochized=[weighted, entry("c", 1)])
    with pytest.raises(ConfigError, match=r"(?s)asked for at .*mix\.yaml:\d+ \(splits\.train"):
        train(file)


def test_validation_reads_each_once(folder):
    file = mix(folder, blend_epochized=[entry("a", 3), entry("c", 0.5)])
    dataset = get_val_dataset(file, split_part="train", batch_size=None)
    assert [sample.__key__ for sample in dataset] == keys(*range(10), *range(200, 203))


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ({"blend_epochized": [entry("a", -1)]}, "repetitions): expected a finite number, 0 or"),
        ({"blend_epochized": [{"path": "a", "weight": 2}]}, "weight' has no place here; it is for"),
        ({"blend": [entry("a", 2)]}, "repetitions' has no place here; it is for an entry of 'ble"),
        ({"blend_epochized": []}, "expected a list of one or more datasets or blends, each with"),
        ({"blend": [{"path": "a"}], "blend_epochized": [{"path": "a"}]},
         "both 'blend' and 'blend_epochized' are given"),
        ({"blend_epochized": [{"path": "a"}], "scheme": "exact"}, "unknown key 'scheme' in a"),
        ({"concat": [{"path": "a"}]}, "unknown key 'concat' in a megatron.energon file"),
    ],
)  # fmt: skip
def test_what_a_wrong_blend_gets(folder, node, told):
    with pytest.raises(MetadatasetError) as caught:
        resolve(mix(folder, name="wrong.yaml", **node), "train")
    assert told in str(caught.value)


def test_all_repetitions_0(folder):
    with pytest.raises(ConfigError, match=r"(?s)no sample of any.*asked for at .*mix\.yaml"):
        train(mix(folder, blend_epochized=[entry("a", 0)]))


@settings(max_examples=25, deadline=None)
@given(
    passes=st.lists(
        st.decimals(0, 4, places=2, allow_nan=False).map(float), min_size=1, max_size=3
    ).filter(lambda each: round(each[0] * 10, 3) > 0.5)
)
def test_any_repetitions(folder, passes):
    named = list(zip(SIZES, passes, strict=False))
    file = mix(folder, blend_epochized=[entry(name, count) for name, count in named])
    dataset = train(file, repeat=False)
    for epoch in epochs(dataset, 2, dataset.size):
        for number, (name, count) in enumerate(named):
            got = [epoch[key] for key in keys(*range(100 * number, 100 * number + SIZES[name]))]
            asked = Fraction(str(count)) * SIZES[name]
            assert abs(sum(got) - asked) <= Fraction(1, 2)
            assert max(got) - min(got) <= 1


def test_concat_reads_one_after_the_other(folder):
    weighted = {
        "stop": "all_exhausted",
        "blend": [{"path": "b", "weight": 1}, {"path": "c", "weight": 1}],
    }
    file = mix(folder, "energize", concat=[{"path": "a"}, weighted])
    dataset = train(file, repeat=False)
    assert dataset.size == 20
    first, second = epochs(dataset, 2, 20)
    assert first == second
    items = [sample.__key__ for sample in dataset.at(range(40))]
    for start in (0, 20):
        assert sorted(items[start : start + 10]) == keys(*range(10))
        assert set(items[start + 10 : start + 20]) == {*keys(*range(100, 107), *range(200, 203))}
    assert items[:10] != items[20:30]  # shuffled anew
    endless = train(file)
    assert [sample.__key__ for sample in endless.at(range(40))] == items
    shares = [share for _, share in leaves_with_weights(resolve(
        mix(folder, "energize", concat=[{"path": "a"}, {"path": "b"}]), "train"))]  # fmt: skip
    assert shares == [Fraction(10, 17), Fraction(7, 17)]
    check_laws(dataset)


def test_concat_inside_of_others(folder):
    inner = {"concat": [{"path": "a"}, {"path": "c"}]}
    file = mix(folder, "energize", blend=[inner | {"weight": 1}, {"path": "b", "weight": 1}])
    items = [sample.__key__ for sample in train(file).at(range(52))]
    of_inner = [key for key in items if not "0100" <= key < "0200"]
    assert sorted(of_inner[:13]) == keys(*range(10), *range(200, 203))
    assert sorted(of_inner[:10]) == keys(*range(10))
    file = mix(folder, "energize", blend_epochized=[inner | {"repetitions": 2}])
    assert train(file, repeat=False).size == 26


def test_concat_of_what_never_ends(folder):
    endless = {"blend": [{"path": "a", "weight": 1}, {"path": "b", "weight": 1}]}
    file = mix(folder, "energize", concat=[endless, {"path": "c"}])
    with pytest.raises(ConfigError, match=r"(?s)never ends.*asked for at .*mix\.yaml:\d+ \(splits"):
        train(file)
