"""What global batches and device batches are made of."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import ConcatDataset, ListSource, MapDataset, QuotaDataset
from energize.core.trace import Reading
from energize.datasets.quota import ComposedDataset
from energize.errors import ConfigError, EncoderError
from energize.order.composition import BATCHING_METHODS, Composition
from energize.order.quota import Quota
from energize.report import plan
from tests.support.composing import composed, epoch_of, global_batches
from tests.support.datasets import noisy, numbers, skip_thirds
from tests.support.mosaicml_cases import BATCHES
from tests.support.tables import check_faults, row


def test_batches_of_an_epoch():
    for name, (method, counts, batch_size, ranks, batches, drawn, every) in BATCHES.items():
        with row(name):
            mixed = composed(counts, method, batch_size, ranks)
            assert mixed.batches == batches * ranks
            assert tuple(mixed.totals.tolist()) == drawn
            stream, nth = epoch_of(mixed)
            for each, total in enumerate(drawn):
                assert sorted(nth[stream == each].tolist()) == list(range(total))
            found = global_batches(mixed)
            assert len(found) == batches
            assert every is None or set(found) == {every}
    found = global_batches(composed((100, 100), "random", 8, 1))
    assert all(0 < batch[0] < 8 for batch in found[:6]), "they are mixed without shuffle"
    stratified = Counter(global_batches(composed((900, 100), "stratified", 8, 1)))
    assert stratified == {(7, 1): 100, (8, 0): 25}, "7.2 of 8"


def test_tiny_streams_in_stratified_batches():
    """MosaicML Streaming refuses streams with no whole sample in a batch, and would repeat the same
    rounded counts in all others.
    """
    for counts in [(1000, 1), (1000, 66), (5, 2000, 1), (3, 0, 500), (1,) * 40, (10**5, 1, 2, 3)]:
        for batch_size, ranks in [(8, 1), (2, 4), (1, 3)]:
            with row((counts[:4], batch_size, ranks)):
                mixed, size = composed(counts, "stratified", batch_size, ranks), batch_size * ranks
                found = np.array(global_batches(mixed, 3))
                assert found.sum(axis=0).tolist() == mixed.totals.tolist() == list(counts)
                so_far, steps = np.cumsum(found, axis=0)[:-1], np.arange(1, len(found)) * size
                ideal = np.outer(steps, counts) / sum(counts)
                assert np.abs(so_far - ideal).max(initial=0) <= 1.68
                few = [0 < 2 * count * size < sum(counts) for count in counts]
                assert mixed.rare == np.flatnonzero(few).tolist()
                least = min(count for count in counts if count)
                assert not composed(counts, "stratified", -(-sum(counts) // (2 * least)), 1).rare
    found = np.array(global_batches(composed((1580, 20), "stratified", 8, 1)))
    [batches] = np.nonzero(found[:, 1])  # it is spread over the epoch
    assert (found[:, 1].max(), len(batches)) == (1, 20)
    assert {8 <= gap <= 12 for gap in np.diff(batches).tolist()} == {True}


def test_stratified_streams_are_seen_by_every_rank():
    """In MosaicML Streaming ranks 0 and 1 read the first stream only, ranks 2 and 3 the second."""
    for counts in [(200, 200), (700, 100), (1500, 100)]:
        mixed = composed(counts, "stratified", 4, 4)
        stream, _ = epoch_of(mixed)
        of_rank = np.zeros((4, 2), dtype=np.int64)
        for batch, (first, end) in enumerate(
            zip(*mixed.bounds(np.arange(mixed.batches)), strict=True)
        ):
            of_rank[batch % 4] += np.bincount(stream[first:end], minlength=2)
        share = counts[1] / sum(counts)
        assert np.abs(of_rank[:, 1] / of_rank.sum(axis=1) - share).max() < 0.5 * share, counts


def test_batches_that_cannot_be_made():
    def composing(*arguments, **options):
        return lambda: composed(*arguments, **options)

    each = composing((7, 4, 7, 7, 7), "device_per_stream", 4, 4)
    faults = {
        "small": (composing((3, 3), "stratified", 8, 1), "6 samples of an epoch cannot fill one"),
        "dropped": (composing((3, 3), "random", 8, 1, drop_last=True), "cannot fill one global"),
        "global": (composing((1000, 6), "per_stream", 4, 2), "stream 1 gives 6...at most 6"),
        "device": (composing((8, 3), "device_per_stream", 4, 1), "stream 1 gives 3...at most 3"),
        "fewer": (composing((7, 9), "device_per_stream", 4, 4), "among 4 devices it gets none"),
        "none left": (each, "stream 1 fills 1 of 5 device batches"),
        "nothing": (composing((10, 0), "per_stream", 2, 1), "stream 1 gives 0 samples"),
        "unknown": (composing((10, 10), "stratfied", 2, 1), "did you mean 'stratified'"),
        "parts": (
            lambda: Composition(np.array([9, 9]), "random", 3, 8, key=1),
            "cannot be divided into device batches of 3",
        ),
    }
    check_faults(ConfigError, faults)


@given(
    method=st.sampled_from(BATCHING_METHODS),
    counts=st.lists(st.integers(60, 200), min_size=1, max_size=5),
    batch_size=st.integers(1, 4),
    ranks=st.integers(1, 4),
    drop_last=st.booleans(),
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
    assert (end == first)[:full].sum() == 0
    assert (end == first).sum() == mixed.idle
    for epoch in (0, 5):
        stream, nth = epoch_of(mixed, epoch)
        for each, total in enumerate(mixed.totals.tolist()):
            assert sorted(nth[stream == each].tolist()) == list(range(total))
            if mixed.early:
                assert (np.arange(total) - nth[stream == each]).max() < mixed.early
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
    assert epoch_of(per_stream, 0)[0].tolist() != epoch_of(per_stream, 1)[0].tolist()
    by_device = composed((90, 60), "device_per_stream", 3, 4)
    stream, _ = epoch_of(by_device)
    assert all(len(set(stream[k : k + 3].tolist())) == 1 for k in range(0, by_device.size, 3))
    assert Counter(global_batches(by_device)) == {(6, 6): 7, (9, 3): 5}


STREAMS = [(numbers(13), Quota(proportion=2)), (numbers(9, 100), Quota(proportion=1))]


def padded(**options):
    settings = {"batch_size": 1, "global_batch_size": 4, "pad": padding, **options}
    return ComposedDataset(*(numbers(5, start) for start in (0, 10)), **settings)


def test_padding_is_no_sample():
    batches = padded()
    assert (len(batches), batches.counts()) == (12, [5, 5])
    for epoch in range(3):
        positions = np.arange(12 * epoch, 12 * epoch + 12)
        marked = batches.padding(positions)
        assert marked.sum() == 2
        assert [isinstance(batch[0], str) for batch in batches.at(positions)] == marked.tolist()
        refs = batches.refs(positions)
        assert refs.item.tolist() == np.flatnonzero(~marked).tolist()
        found = sorted(zip(refs.source.tolist(), refs.index.tolist(), strict=True))
        assert found == [(source, index) for source in (0, 1) for index in range(5)]
    for n in range(30):
        drawn = np.bincount(batches.refs(np.arange(n)).source, minlength=2)
        assert batches.consumed(n).tolist() == drawn.tolist()
    shown = [len(batch.samples) for batch in plan(batches, 0, 12, world_size=4)]
    assert shown == [1 - int(each) for each in batches.padding(range(12))]
    assert padded(pad=noisy).describe() != batches.describe()
    assert padded(pad=noisy).samples.describe() == batches.samples.describe()


def test_padding_is_a_copy_of_what_came_or_of_its_substitute():
    options = {"batch_size": 1, "global_batch_size": 4, "shuffle": True}
    thirds = MapDataset(numbers(21), skip_thirds)
    batches = ComposedDataset(thirds, batching_method="in_turn", pad=padding, **options)
    for epoch in range(9):
        last = batches.at(np.arange(24 * epoch + 20, 24 * epoch + 24))
        assert last[:3] == [[padding(last[3][0])]] * 3
    batches = ComposedDataset(numbers(21), pad=skip_thirds, **options)
    positions, failed = np.arange(24 * 30), []
    items = batches.at(positions, Reading(report=lambda each: failed.append(str(each))))
    made = {items[at][0] for at in np.flatnonzero(batches.padding(positions)).tolist()}
    assert len(made) > 5
    assert all(number % 3 and number % 7 for number in made)
    assert {each.startswith("padding, a copy of numbers0") for each in failed} == {True}


def test_errors_of_padding():
    def breaks(_):
        raise KeyError("loss_weight")

    for argument, place in (("pad", "padding, a copy of numbers"), ("batcher", "item 8, which is")):
        batches = padded(**{argument: breaks})
        number = int(np.flatnonzero(batches.padding(range(12)))[0])
        said = f"breaks raised KeyError...at ...{place}"
        check_faults(EncoderError, {argument: (lambda b=batches, n=number: b[n], said)})
    remedies = (
        "10 samples leaves 2 ... too few for 4 devices...drop_last=True...pad=...another size"
    )
    faults = {
        "none": (lambda: padded(pad=None), remedies),
        "a list": (lambda: padded(pad=[0]), "ComposedDataset: pad is a function; got [0]"),
        "size": (lambda: ComposedDataset(ListSource("a"), batch_size=0), "batch_size is a whole"),
    }
    check_faults(ConfigError, faults)
    assert list(map(len, padded(pad=None, drop_last=True))) == [1] * 8
    assert list(map(len, padded(pad=None, batch_size=2))) == [2] * 4 + [1] * 2
    joined = ComposedDataset(ListSource("aaab"), batch_size=3, batcher="".join)
    assert ["".join(sorted(batch)) for batch in joined] in (["aaa", "b"], ["aab", "a"])


def test_what_is_left_out_and_what_is_rare_is_logged(caplog):
    ComposedDataset(STREAMS, batch_size=4, batching_method="stratified")
    assert not caplog.records
    several = ConcatDataset(*(numbers(2, 10 * i) for i in range(5)))
    batches = ComposedDataset(
        numbers(10, 500), numbers(9, 100), several, batch_size=4, batching_method="per_stream"
    )
    assert batches.counts() == [8, 8, 8]
    assert "others in each: 2 of 10 of stream 0 (numbers500), 1 of 9 of stream 1" in caplog.text
    assert "2 of 10 of stream 2 (numbers0, numbers10, numbers20 and 2 more)" in caplog.text
    seen = Counter(number for batch in batches.at(np.arange(len(batches) * 45)) for number in batch)
    assert {seen[number] for number in range(100, 109)} == {40}, "each comes equally often"
    caplog.clear()
    streams = [numbers(1000), numbers(3, 10_000), *(numbers(9, 20_000 + 9 * i) for i in range(9))]
    batches = ComposedDataset(streams, batch_size=8, batching_method="stratified", shuffle=True)
    [record] = caplog.records
    said = (
        "less than half a sample of the 1084...stream 1 (numbers10000) (3), stream 2 (numbers20000)"
    )
    assert all(part in record.getMessage() for part in said.split("..."))
    assert "10 streams in all. Batches of 181 would hold all" in record.getMessage()
    assert sorted(number for batch in batches for number in batch) == sorted(
        number for stream in streams for number in stream
    )
