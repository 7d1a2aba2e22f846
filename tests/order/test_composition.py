"""What global batches and device batches are made of."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    ConcatDataset,
    ListSource,
    MapDataset,
    QuotaDataset,
    Stage,
    StagedDataset,
    StagePlan,
)
from energize.core.reading import Reading
from energize.datasets.quota import ComposedDataset, ComposedSamples
from energize.errors import ConfigError, EncoderError
from energize.order.quota import BATCHING_METHODS, Composition, Quota
from energize.preview import plan
from energize.testing import check_exactly_once, check_laws, check_topology
from tests.support.composing import composed, epoch_of, global_batches
from tests.support.datasets import noisy, numbers, skip_thirds
from tests.support.mosaicml_cases import BATCHES

MIXING = [method for method in BATCHING_METHODS if method != "in_turn"]


@pytest.mark.parametrize("row", BATCHES)
def test_batches_of_an_epoch(row):
    method, counts, batch_size, ranks, batches, drawn, every = BATCHES[row]
    mixed = composed(counts, method, batch_size, ranks)
    assert mixed.batches == batches * ranks
    assert tuple(mixed.totals.tolist()) == drawn
    stream, nth = epoch_of(mixed)
    for each, total in enumerate(drawn):
        assert sorted(nth[stream == each].tolist()) == list(range(total))
    found = global_batches(mixed)
    assert len(found) == batches
    if every is not None:
        assert set(found) == {every}


def test_random_mixes_without_shuffle():
    """In MosaicML Streaming all batches of one stream come first."""
    found = global_batches(composed((100, 100), "random", 8, 1))
    assert len({batch[0] for batch in found}) > 2
    assert all(0 < batch[0] < 8 for batch in found[:6])


def test_stratified_error_diffusion():
    """7.2 of 8, so one batch of five has none of the second stream."""
    assert Counter(global_batches(composed((900, 100), "stratified", 8, 1))) == {
        (7, 1): 100,
        (8, 0): 25,
    }


TINY = [(1000, 1), (1000, 66), (5, 2000, 1), (3, 0, 500), (1,) * 40, (10**6, 1, 2, 3)]


@pytest.mark.parametrize("counts", TINY)
@pytest.mark.parametrize(("batch_size", "ranks"), [(8, 1), (2, 4), (1, 3)])
def test_tiny_streams_in_stratified_batches(counts, batch_size, ranks):
    """MosaicML Streaming refuses streams with no whole sample in a batch, and would repeat the same
    rounded counts in all others.
    """
    mixed = composed(counts, "stratified", batch_size, ranks)
    assert mixed.totals.tolist() == list(counts)
    for epoch in (0, 3):
        found = np.array(global_batches(mixed, epoch))
        assert found.sum(axis=0).tolist() == list(counts)
        so_far = np.cumsum(found, axis=0)[:-1]
        steps = np.arange(1, len(found)) * batch_size * ranks
        assert np.abs(so_far - np.outer(steps, counts) / sum(counts)).max(initial=0) <= 1.68
    size = batch_size * ranks
    rare = [i for i, count in enumerate(counts) if 0 < 2 * count * size < sum(counts)]
    assert mixed.rare == rare
    least = min(count for count in counts if count)
    whole = composed(counts, "stratified", -(-sum(counts) // (2 * least)), 1)
    assert whole.rare == []


def test_a_tiny_stream_is_spread_over_the_epoch():
    found = np.array(global_batches(composed((1580, 20), "stratified", 8, 1)))
    [batches] = np.nonzero(found[:, 1])
    assert found[:, 1].max() == 1
    assert len(batches) == 20
    assert np.diff(batches).min() >= 8
    assert np.diff(batches).max() <= 12


def test_stratified_streams_are_seen_by_every_rank():
    """In MosaicML Streaming ranks 0 and 1 read the first stream only, ranks 2 and 3 the second."""
    for counts in [(200, 200), (700, 100), (1500, 100)]:
        mixed = composed(counts, "stratified", 4, 4)
        stream, _ = epoch_of(mixed)
        first, end = mixed.bounds(np.arange(mixed.batches))
        of_rank = np.zeros((4, 2), dtype=np.int64)
        for batch, (start, stop) in enumerate(zip(first.tolist(), end.tolist(), strict=True)):
            of_rank[batch % 4] += np.bincount(stream[start:stop], minlength=2)
        share = counts[1] / sum(counts)
        assert np.abs(of_rank[:, 1] / of_rank.sum(axis=1) - share).max() < 0.5 * share


FAULTS = {
    "a batch larger than the epoch": (
        "stratified",
        (3, 3),
        8,
        1,
        "6 samples of an epoch cannot fill one global batch of 8",
    ),
    "no global batch of a stream": (
        "per_stream",
        (1000, 6),
        4,
        2,
        "cannot fill one global batch of 8.* at most 6",
    ),
    "no device batch of a stream": (
        "device_per_stream",
        (8, 3),
        4,
        1,
        "one device batch of 4.* at most 3",
    ),
    "fewer than ranks": ("device_per_stream", (7, 9), 4, 4, "are fewer than the 4"),
    "none left": (
        "device_per_stream",
        (7, 4, 7, 7, 7),
        4,
        4,
        "stream 1 fills 1 of 5 device batches",
    ),
    "nothing of a stream, per_stream": ("per_stream", (10, 0), 2, 1, "stream 1 gives no samples"),
    "nothing of a stream, device_per_stream": (
        "device_per_stream",
        (0, 10),
        2,
        1,
        "stream 0 gives no samples",
    ),
    "unknown": ("stratfied", (10, 10), 2, 1, "did you mean 'stratified'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_batches_that_cannot_be_made(fault):
    method, counts, batch_size, ranks, message = FAULTS[fault]
    with pytest.raises(ConfigError, match=message):
        composed(counts, method, batch_size, ranks)


def test_batches_divide_into_device_batches():
    with pytest.raises(ConfigError, match="cannot be divided into device batches of 3"):
        Composition(np.array([9, 9]), "random", 3, 8, key=1)


counts_of_streams = st.lists(st.integers(1, 300), min_size=1, max_size=12)


@given(counts_of_streams, st.integers(1, 40), st.integers(0, 3), st.booleans())
def test_stratified_is_within_the_bound_of_exact_after_every_batch(counts, batch, epoch, drop_last):
    if sum(counts) < batch:
        return
    mixed = composed(counts, "stratified", batch, 1, drop_last=drop_last)
    assert drop_last or mixed.totals.tolist() == counts
    assert (mixed.totals <= counts).all()
    total = np.cumsum(global_batches(mixed, epoch), axis=0)
    if not drop_last:
        assert total[-1].tolist() == counts
        total = total[:-1]
    ideal = np.outer(np.arange(1, len(total) + 1) * batch, counts) / sum(counts)
    assert np.abs(total - ideal).max(initial=0) <= 1.68


@given(
    st.sampled_from(list(BATCHING_METHODS)),
    st.lists(st.integers(60, 200), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_rank_makes_the_same_number_of_steps(method, counts, batch_size, ranks, drop_last):
    mixed = composed(counts, method, batch_size, ranks, drop_last=drop_last)
    assert mixed.batches % ranks == 0
    first, end = mixed.bounds(np.arange(mixed.batches))
    assert first[0] == 0
    assert (first[1:] == end[:-1]).all()
    assert end[-1] == mixed.size == mixed.totals.sum() <= sum(counts)
    full = mixed.size // mixed.global_batch_size * ranks
    assert (end - first)[:full].tolist() == [batch_size] * full
    assert np.ptp((end - first)[full:]) <= 1 if full < mixed.batches else True
    empty = np.flatnonzero(end == first)
    assert len(empty) == mixed.idle
    assert (empty >= full).all()
    for epoch in (0, 5):
        stream, nth = epoch_of(mixed, epoch)
        for each, total in enumerate(mixed.totals.tolist()):
            assert sorted(nth[stream == each].tolist()) == list(range(total))
        for n in (0, mixed.size // 3, mixed.size):
            drawn = np.bincount(stream[:n], minlength=len(counts))
            assert mixed.counts(epoch, n).tolist() == drawn.tolist()


def padding(number: int) -> str:
    return f"padding, a copy of {number}"


@given(
    st.sampled_from([method for method in BATCHING_METHODS if method != "device_per_stream"]),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.integers(1, 16),
    st.fixed_dictionaries(
        {
            "sampling_method": st.sampled_from(["balanced", "fixed"]),
            "shuffle": st.booleans(),
            "drop_last": st.booleans(),
        }
    ),
)
def test_epochs_are_the_same_on_any_division(method, sizes, size, options):
    """Padding taken out; it is where a device would get nothing, and there only."""
    streams = [numbers(each, 100 * stream) for stream, each in enumerate(sizes)]

    def divided(devices):
        return ComposedDataset(
            [(stream, Quota(repeat=1.5)) for stream in streams],
            batch_size=size // devices,
            global_batch_size=size,
            batching_method=method,
            pad=padding,
            **options,
        )

    divisions = [devices for devices in range(1, size + 1) if size % devices == 0]
    try:
        whole = divided(1)
    except ConfigError:
        for devices in divisions:
            with pytest.raises(ConfigError):
                divided(devices)
        return
    asked = QuotaDataset([(stream, Quota(repeat=1.5)) for stream in streams]).size
    if method != "per_stream":
        assert len(whole) == (asked // size if options["drop_last"] else -(-asked // size))
    expected = whole.at(np.arange(3 * len(whole)))
    for devices in divisions:
        batches = divided(devices)
        assert batches.counts() == whole.counts()
        assert len(batches) == len(whole) * devices
        items = batches.at(np.arange(3 * len(batches)))
        for k, samples in enumerate(expected):
            parts = items[k * devices : (k + 1) * devices]
            padded = [device for device, part in enumerate(parts) if isinstance(part[0], str)]
            drawn = [part for device, part in enumerate(parts) if device not in padded]
            assert list(chain.from_iterable(drawn)) == samples
            assert len(padded) == max(0, devices - len(samples))
            for device in padded:
                assert parts[device] == [padding(samples[device % len(samples)])]


def test_purity_of_batches():
    per_stream = composed((90, 60), "per_stream", 3, 4)
    assert all(0 in batch for batch in global_batches(per_stream))
    by_device = composed((90, 60), "device_per_stream", 3, 4)
    stream, _ = epoch_of(by_device)
    assert all(len(set(stream[k : k + 3].tolist())) == 1 for k in range(0, by_device.size, 3))
    assert Counter(global_batches(by_device)) == {(6, 6): 7, (9, 3): 5}


def test_epochs_differ():
    for method in MIXING:
        mixed = composed((96, 64), method, 4, 2)
        assert epoch_of(mixed, 0)[0].tolist() != epoch_of(mixed, 1)[0].tolist()


def test_any_position_costs_the_same():
    mixed = composed((9000, 1000), "stratified", 8, 8)
    far = np.array([10**12], dtype=np.int64)
    stream, nth = mixed.locate(far, np.array([77]))
    assert stream[0] in (0, 1)
    assert 0 <= nth[0] < 9000


STREAMS = [(numbers(13), Quota(proportion=2)), (numbers(9, 100), Quota(proportion=1))]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("method", list(BATCHING_METHODS))
def test_laws(method, shuffle):
    batches = ComposedDataset(
        STREAMS,
        batch_size=2,
        global_batch_size=4,
        batching_method=method,
        epoch_size=22,
        shuffle=shuffle,
    )
    check_laws(batches, epochs=2)
    check_topology(batches, epochs=2)

    def promised(source, _):
        count, size = batches.counts()[source], (13, 9)[source]
        return count // size, -(-count // size)

    for epoch in (0, 1, 1000):
        check_exactly_once(batches, promised, epoch=epoch)
    for n in (0, 1, 5, len(batches), 2 * len(batches) + 1):
        drawn = np.bincount(batches.refs(np.arange(n)).source, minlength=2)
        assert batches.consumed(n).tolist() == drawn.tolist()
    samples = [sample for batch in batches for sample in batch]
    assert samples == list(batches.inputs[0])


def padded(**options):
    return ComposedDataset(
        *(numbers(5, start) for start in (0, 10)),
        **{"batch_size": 1, "global_batch_size": 4, "pad": padding, **options},
    )


def test_padding_is_no_sample():
    batches = padded()
    assert len(batches) == 12
    assert batches.counts() == [5, 5]
    for epoch in range(3):
        positions = np.arange(12 * epoch, 12 * epoch + 12)
        marked = batches.padding(positions)
        assert marked.sum() == 2
        assert [isinstance(batch[0], str) for batch in batches.at(positions)] == marked.tolist()
        refs = batches.refs(positions)
        assert refs.item.tolist() == np.flatnonzero(~marked).tolist()
        assert sorted(zip(refs.source.tolist(), refs.index.tolist(), strict=True)) == [
            (source, index) for source in (0, 1) for index in range(5)
        ]
    for n in range(30):
        drawn = np.bincount(batches.refs(np.arange(n)).source, minlength=2)
        assert batches.consumed(n).tolist() == drawn.tolist()
    shown = [len(batch.samples) for batch in plan(batches, 0, 12, world_size=4)]
    assert shown == [1 - int(each) for each in batches.padding(range(12))]


def test_padding_is_a_part_of_the_description():
    batches = padded()
    again = pickle.loads(pickle.dumps(batches))
    assert list(again) == list(batches)
    assert again.describe() == batches.describe()
    other = padded(pad=noisy)
    assert other.describe() != batches.describe()
    assert other.samples.describe() == batches.samples.describe()


def test_padding_is_a_copy_of_what_came():
    """Also where a sample that failed has a substitute."""
    batches = ComposedDataset(
        MapDataset(numbers(21), skip_thirds),
        batch_size=1,
        global_batch_size=4,
        batching_method="in_turn",
        shuffle=True,
        pad=padding,
    )
    for epoch in range(9):
        last = batches.at(np.arange(24 * epoch + 20, 24 * epoch + 24))
        assert last[:3] == [[padding(last[3][0])]] * 3


def test_padding_that_fails_has_a_substitute():
    batches = ComposedDataset(
        numbers(21), batch_size=1, global_batch_size=4, shuffle=True, pad=skip_thirds
    )
    positions = np.arange(24 * 30)
    failed: list[str] = []
    items = batches.at(positions, Reading(report=lambda each: failed.append(str(each))))
    made = [item[0] for item, each in zip(items, batches.padding(positions), strict=True) if each]
    assert all(number % 3 and number % 7 for number in made)
    assert len({str(number) for number in made}) > 5
    assert failed
    assert all(each.startswith("padding, a copy of numbers0") for each in failed)


@pytest.mark.parametrize("argument", ["pad", "batcher"])
def test_errors_about_padding_say_where(argument):
    def breaks(_):
        raise KeyError("loss_weight")

    batches = padded(**{argument: breaks})
    number = int(np.flatnonzero(batches.padding(range(12)))[0])
    place = r"padding, a copy of numbers\d+" if argument == "pad" else "item 8, which is padding"
    with pytest.raises(EncoderError, match=f"breaks raised KeyError(.|\n)*at .*{place}"):
        batches[number]


def test_a_last_batch_that_needs_padding():
    with pytest.raises(
        ConfigError, match=r"10 samples leaves 2 .* too few for 4 devices"
    ) as caught:
        padded(pad=None)
    assert all(remedy in str(caught.value) for remedy in ("drop_last=True", "pad=", "another size"))
    assert list(map(len, padded(pad=None, drop_last=True))) == [1] * 8
    assert list(map(len, padded(pad=None, batch_size=2))) == [2] * 4 + [1] * 2
    with pytest.raises(ConfigError, match=r"ComposedDataset: pad is a function .* got \[0\]"):
        padded(pad=[0])


def test_a_stage_goes_on_in_composed_batches():
    batches = ComposedDataset(numbers(8), batch_size=2, shuffle=True)
    plan = StagePlan(
        [Stage("a", 0, 3, dataset=batches), Stage("b", 3, 8, dataset=MapDataset(batches, tuple))]
    )
    expected = batches.at(range(8))
    assert list(StagedDataset(plan)) == [*expected[:3], *map(tuple, expected[3:])]


def test_left_out_samples_are_logged_and_change(caplog):
    batches = ComposedDataset(
        (numbers(10), Quota()),
        (numbers(9, 100), Quota()),
        batch_size=4,
        batching_method="per_stream",
    )
    assert batches.counts() == [8, 8]
    assert (
        "others in each: 2 of 10 of stream 0 (numbers0), 1 of 9 of stream 1 (numbers100)"
        in caplog.text
    )
    seen = Counter(number for batch in batches.at(np.arange(len(batches) * 45)) for number in batch)
    assert set(seen.values()) == {36, 40}, "in 45 epochs every sample comes equally often"


def test_streams_are_named_by_what_they_read(caplog):
    several = ConcatDataset(*(numbers(2, 10 * i) for i in range(5)))
    streams = (numbers(9, name="web"), several)
    options = {"batching_method": "per_stream"}
    ComposedDataset(*streams, batch_size=4, **options)
    assert "2 of 10 of stream 1 (numbers0, numbers10, numbers20 and 2 more)" in caplog.text
    with pytest.raises(ConfigError, match=r"stream 0 \(web0\) gives 9 "):
        ComposedDataset(*streams, batch_size=10, **options)


def test_tiny_streams_are_logged_once_and_come_as_often_as_asked(caplog):
    streams = [numbers(1000), numbers(3, 10_000), *(numbers(9, 20_000 + 9 * i) for i in range(9))]
    batches = ComposedDataset(streams, batch_size=8, batching_method="stratified", shuffle=True)
    [record] = caplog.records
    said = record.getMessage()
    assert "'stratified' batches of 8 hold less than half a sample of the 1084" in said
    assert "stream 1 (numbers10000) (3), stream 2 (numbers20000) (9)" in said
    assert "10 streams in all. Batches of 181 would hold all" in said
    assert batches.counts() == [1000, 3, *[9] * 9]
    seen = Counter(number for batch in batches for number in batch)
    assert set(seen.values()) == {1}
    assert len(seen) == 1084
    check_laws(batches, epochs=1)


def test_nothing_is_logged_when_nothing_is_left_out(caplog):
    ComposedDataset(STREAMS, batch_size=4, batching_method="stratified")
    assert not caplog.records


def test_batcher_and_sizes():
    batches = ComposedDataset(ListSource("aaab"), batch_size=3, batcher="".join)
    assert ["".join(sorted(batch)) for batch in batches] in (["aaa", "b"], ["aab", "a"])
    assert len(ComposedDataset(ListSource("aaab"), batch_size=3, drop_last=True)) == 1
    with pytest.raises(ConfigError, match="batch_size is a whole number, 1 or more; got 0"):
        ComposedDataset(ListSource("ab"), batch_size=0)


def test_a_description_does_not_say_how_batches_are_divided():
    def described(method, batch_size):
        samples = ComposedSamples(
            STREAMS, batch_size=batch_size, global_batch_size=4, batching_method=method
        )
        return samples.describe()

    assert described("stratified", 2) == described("stratified", 4)
    assert described("device_per_stream", 1) != described("device_per_stream", 2)
