"""Quotas: what each stream gives to an epoch, and which of its samples."""

from __future__ import annotations

from energize import ListSource
from energize.datasets.quota import QuotaDataset
from energize.errors import ConfigError, EmptyDatasetError, WeightError
from energize.order.quota import Quota, epoch_counts, epoch_size_in_samples
from tests.support.datasets import numbers
from tests.support.mosaicml_cases import NONE, chosen, proportions, repeats
from tests.support.tables import check_faults


def test_quotas_that_cannot_be_used():
    def counting(quotas, epoch_size=None):
        return lambda: epoch_counts([100, 200], quotas(), epoch_size)

    nan, inf = float("nan"), float("inf")
    kinds = [Quota(proportion=1), Quota(choose=1)]
    whole = "whole number >= 0 or a text like '10k', got "
    faults = {
        "choose 2.7": (counting(lambda: chosen(2.7, 1)), f"{whole}2.7"),
        "a text": (counting(lambda: chosen("some", 1)), f"{whole}'some'"),
        "a part": (counting(lambda: chosen("1.2345k", 1)), f"{whole}'1.2345k'"),
        "mixed": (
            counting(lambda: kinds),
            "stream 0 has a proportion, but stream 1 has choose",
        ),
        "and none": (counting(lambda: [NONE, kinds[0]]), "but stream 0 has no quota"),
        "two": (
            lambda: Quota(proportion=1, choose=2),
            "exactly one of...got proportion=1, choose=2",
        ),
        "all zero": (counting(lambda: proportions(0, 0)), "all 2 weights are 0"),
        "NaN": (counting(lambda: proportions(nan, 1)), "proportion is finite"),
        "infinite": (counting(lambda: proportions(inf, 1)), "got inf"),
        "repeat 0": (
            counting(lambda: repeats(0, 0)),
            "the quotas are 0 for all 2 streams",
        ),
        "negative": (counting(lambda: repeats(-1, 1)), "not negative, got -1"),
        "repeat '2'": (
            counting(lambda: repeats("2", 1)),
            "repeat is a number, got '2'",
        ),
    }
    check_faults(WeightError, faults)
    faults = {
        "choose": (
            counting(lambda: chosen(2, 1), 10),
            "epoch_size=10 and choose of stream 0",
        ),
        "repeat": (counting(lambda: [NONE, Quota(repeat=1)], 10), "repeat of stream 1"),
        "too much": (counting(lambda: chosen(2**62, 1)), "is too long"),
    }
    sizes = [
        0,
        -1,
        1.5,
        True,
        "",
        "k",
        "1.0001k",
        "10q",
        "0",
        "1/0",
        2**62,
        "1e999999999",
        "nan",
    ]
    for size in sizes:
        faults[f"{size!r}"] = (
            lambda s=size: epoch_size_in_samples(s),
            "epoch_size must be a number of samples",
        )
    check_faults(ConfigError, faults)
    empty = {
        "empty": (lambda: epoch_counts([3, 0], [NONE, NONE]), "stream 1 has no samples")
    }
    check_faults(EmptyDatasetError, empty)


def test_what_datasets_say_of_their_quotas(caplog):
    QuotaDataset((numbers(1000), Quota()), (numbers(3, 5000), Quota(repeat=0.1)))
    assert "repeat=0.1" in caplog.text
    assert "of stream 1 (numbers5000) comes to no sample" in caplog.text
    data = numbers(10)
    one, same, other = (QuotaDataset((data, Quota(choose=n))) for n in (3, 3, 4))
    assert one == same != other
    assert one.describe()["quotas"] == [
        {"proportion": None, "repeat": None, "choose": 3}
    ]
    streams = (ListSource("ab"), Quota(proportion=1)), (ListSource("abc"), Quota())
    said = "stream 0 (list #1) has a proportion, but stream 1 (list #2) has"
    check_faults(WeightError, {"names": (lambda: QuotaDataset(*streams), said)})
