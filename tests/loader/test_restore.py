"""A restore key gives the very same item again, whatever it is and wherever it is asked
for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from energize import (
    Batch,
    BatchDataset,
    BlendDataset,
    EmptyDatasetError,
    FilterDataset,
    ListSource,
    MapDataset,
    TextSample,
    WorkerConfig,
    energon,
    get_train_dataset,
    restore_sample,
)
from energize.errors import (
    EncoderError,
    RestoreKeyError,
    SubstitutionError,
    log_exception,
    reraise_exception,
)
from energize.testing import fingerprint
from tests.loader.test_delivery import trees
from tests.support.datasets import numbers, shuffled
from tests.support.loading import loader_of
from tests.support.prepared import captions
from tests.support.trees import not_each_third

ITEMS = 30


def delivered(loader: Any, count: int) -> list[tuple[Any, str]]:
    """Items with their keys, over the ends of epochs: (key, fingerprint)."""
    found: list[tuple[Any, str]] = []
    while len(found) < count:
        before = len(found)
        for item in islice(iter(loader), count - before):
            if not loader.padding:
                found.append((loader.restore_key, fingerprint(item)))
        if len(found) == before:
            break
    return found


def check_restored(tree, loader, found) -> None:
    for key, want in found:
        kept = json.loads(json.dumps(key))
        assert fingerprint(restore_sample(tree, kept)) == want
        assert fingerprint(loader.restore_sample(tuple(kept))) == want


@pytest.mark.jobs
@settings(max_examples=12, deadline=None)
@given(tree=trees(), lanes=st.sampled_from([2, 4]))
def test_any_item_that_workers_made(tree, lanes):
    try:
        with loader_of(tree, workers=2, lanes=lanes) as loader:
            found = delivered(loader, ITEMS)
            check_restored(tree, loader, found)
    except (EmptyDatasetError, SubstitutionError):
        assume(False)
    if loader_of(tree, lanes=lanes).dataset.indexed:
        assert [key for key, _ in found] == [
            key for key, _ in delivered(loader_of(tree), ITEMS)
        ]


# Items that carry their keys


@dataclass
class Texts(Batch):
    text: list[str]


def texts(count: int = 20) -> ListSource[TextSample]:
    samples = [
        TextSample(
            __key__=str(i), __restore_key__=("Webdataset", "0.tar", i), text=f"text {i}"
        )
        for i in range(count)
    ]
    return ListSource(samples, name="texts")


def long_enough(sample: TextSample) -> bool:
    return int(sample.__key__) % 3 != 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("streams", [False, True])
def test_samples_batches_and_dicts_carry_their_keys(workers, streams):
    source = FilterDataset(texts(), long_enough) if streams else texts()
    as_dict = MapDataset(
        source, lambda s: {"__restore_key__": s.__restore_key__, "text": s.text}
    )
    for dataset in (source, BatchDataset(source, 3, Texts.from_samples), as_dict):
        with loader_of(dataset, workers) as loader:
            for item in loader:
                get = (
                    item.get
                    if isinstance(item, dict)
                    else lambda name, at=item: getattr(at, name)
                )
                assert get("__restore_key__") == loader.restore_key
                stored = get("__stored_key__")
                stored = stored if isinstance(stored, list) else [stored]
                assert {key[:2] for key in stored} == {("Webdataset", "0.tar")}
                assert loader.restore_sample(loader.restore_key) == item
                assert restore_sample(dataset, list(loader.restore_key)) == item


# Stored samples


def test_a_sample_that_two_sources_may_have(tmp_path):
    one, other = (captions(tmp_path / name, 4) for name in ("one", "other"))
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {
        "batch_size": None,
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
    }
    datasets = [
        get_train_dataset(p, worker_config=config, **options) for p in (one, other)
    ]
    mix = BlendDataset((datasets[0], 1), (datasets[1], 1))
    sample = next(iter(loader_of(mix)))
    with pytest.raises(RestoreKeyError, match=r"several sources: .*one, .*other"):
        restore_sample(mix, sample.__stored_key__)
    assert restore_sample(datasets[0], sample.__stored_key__).caption is not None


# What is no key of the dataset


STREAM = FilterDataset(numbers(9), not_each_third)


@pytest.mark.parametrize(
    ("dataset", "key", "message"),
    [
        (numbers(5), None, r"restore key must be .*got nothing"),
        (numbers(5), (), "got ()"),
        (numbers(5), "energize", "got 'energize'"),
        (numbers(5), ("energize",), "got"),
        (numbers(5), ("Webdatasets", "a", 1), "Webdatasets"),
        (numbers(5), ("energize", -1), "restore key must be"),
        (numbers(5), ("energize", True), "restore key must be"),
        (numbers(5), ("energize", 2**62), "restore key must be"),
        (
            numbers(5),
            ("energize", 0, 1, "null"),
            "this (ListSource|SequenceSource) is indexed",
        ),
        (
            numbers(5),
            ("Webdataset", "a.tar", 1),
            "the 1 sources of this dataset have no sample",
        ),
        (numbers(5), ("Webdataset", 3, 1), "restore key must be"),
        (STREAM, ("energize", 3), "this FilterDataset is a stream"),
        (STREAM, ("energize", 1, 1, "null"), "lane < lanes"),
        (STREAM, ("energize", 0, 2**20, "null"), "lane < lanes"),
        (STREAM, ("energize", 0, 1, "{"), "not JSON"),
        (STREAM, ("energize", 0, 1, None), "state as JSON"),
        (STREAM, ("energize", 0, 1, "[" * 100_000), "not JSON"),
        (STREAM, ("energize", 0, 1, "[]"), "list, not an object"),
        (STREAM, ("energize", 0, 1, '{"epoch": 0}'), "of another dataset: .*'taken'"),
    ],
)
def test_a_wrong_key_is_an_error_that_says_so(dataset, key, message):
    with pytest.raises(RestoreKeyError, match=f"(?s){message}"):
        restore_sample(dataset, key)


# What becomes of exceptions


def fails_on_odd(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def test_substitutes_come_again_as_the_loader_decided():
    dataset = MapDataset(shuffled(20), fails_on_odd)
    loader = loader_of(dataset, on_error="skip")
    found = delivered(loader, 20)
    for key, want in found:
        assert fingerprint(loader.restore_sample(key)) == want
    failing = [key for key, _ in found if int(shuffled(20)[key[1]]) % 2]
    assert failing
    with pytest.raises(EncoderError, match="is odd"):
        restore_sample(dataset, failing[0])
    config = energon.WorkerConfig(
        num_workers=0,
        global_error_handler=log_exception,
        restore_error_handler=reraise_exception,
    )
    strict = energon.get_loader(dataset, worker_config=config)
    assert len(list(strict)) == 20
    with pytest.raises(ValueError, match="is odd"):
        strict.restore_sample(failing[0])
