"""Samples that fail in validation: no other one counts in their place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import torch

from energize import (
    Batch,
    BatchDataset,
    ConcatDataset,
    DataError,
    FailurePolicy,
    FilterDataset,
    LimitDataset,
    MapDataset,
    ShuffleBufferDataset,
    SkipSample,
    get_loader,
    get_val_dataset,
    is_padding,
    padding_rows,
    total_weight,
)
from energize.errors import SubstitutionError
from tests.support.datasets import numbers
from tests.support.loading import loader_of


def checked(number: int) -> int:
    if number in (3, 7):
        raise DataError(f"{number} is damaged")
    if number == 5:
        raise SkipSample("five")
    return number


def everything(item: Any) -> bool:
    return True


def column(rows: list[int]) -> dict[str, Any]:
    return {"x": torch.tensor(rows)}


def downwards(rows: list[int]) -> dict[str, Any]:
    rows = sorted(rows, reverse=True)
    return {"x": torch.tensor(rows), "__key__": [str(each) for each in rows]}


def joined(batches: list[list[int]]) -> list[int]:
    return [row for each in batches for row in each]


def keyed(number: int) -> dict[str, Any]:
    return {"n": number, "__key__": str(number)}


def by_keys(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return downwards([row["n"] for row in rows])


def plus_one(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "y": batch["x"] + 1}


GOOD = [0, 1, 2, 4, 6, 8, 9, 10]
SAMPLES = MapDataset(numbers(11), checked)
KEPT = FilterDataset(SAMPLES, everything)
BATCHES = BatchDataset(SAMPLES, 4, column)

DATASETS = {
    "samples": ConcatDataset(SAMPLES),
    "batches of one": ConcatDataset(BatchDataset(SAMPLES, 1, column)),
    "batches": ConcatDataset(BATCHES),
    "maps of batches": MapDataset(ConcatDataset(BATCHES), plus_one),
    "lists": ConcatDataset(BatchDataset(SAMPLES, 4, list)),
    "sorted": ConcatDataset(BatchDataset(MapDataset(SAMPLES, keyed), 4, by_keys)),
    "batches of batches": ConcatDataset(
        BatchDataset(BatchDataset(SAMPLES, 2, list), 2, joined)
    ),
    "a filter": ConcatDataset(KEPT),
    "batches of a filter": ConcatDataset(BatchDataset(KEPT, 4, column)),
    "maps of a filter": ConcatDataset(
        MapDataset(FilterDataset(numbers(11), everything), checked)
    ),
    "a filter of batches": FilterDataset(ConcatDataset(BATCHES), everything),
    "a buffer of batches": ShuffleBufferDataset(ConcatDataset(BATCHES), 3),
    "both": ConcatDataset(
        BatchDataset(KEPT, 4, column), BatchDataset(numbers(2, 20), 4, column)
    ),
}


def rows_of(item: Any) -> list[int]:
    return (
        torch.as_tensor(item["x"] if isinstance(item, dict) else item)
        .reshape(-1)
        .tolist()
    )


def counted(loader) -> list[int]:
    """The samples of a loop that count."""
    found: list[int] = []
    for item in loader:
        padded = loader.padding_rows
        if isinstance(item, dict):
            assert is_padding(item) == loader.padding
            assert loader.padding or padding_rows(item) == padded
        if not loader.padding:
            found += [
                each for row, each in enumerate(rows_of(item)) if row not in padded
            ]
    return found


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.jobs)])
@pytest.mark.parametrize("name", DATASETS)
def test_every_sample_that_does_not_fail_counts_once_on_any_ranks(name, workers):
    wanted = GOOD + ([20, 21] if name == "both" else [])
    for ranks in (1, 2, 3):
        found: list[int] = []
        samples = 0
        for rank in range(ranks):
            with loader_of(DATASETS[name], workers, rank, ranks, role="eval") as loader:
                first_loop = counted(loader)
                mine = counted(loader)
                assert mine == first_loop
                samples += loader.report().total.counts.samples
                assert loader.failures.count <= 2
            found += mine
        assert sorted(found) == wanted
        assert samples == len(wanted)


def test_a_limit_counts_slots_and_what_lies_beyond_it_does_not_fail():
    loader = loader_of(LimitDataset(BATCHES, 1), role="eval")
    assert counted(loader) == [0, 1, 2]
    assert (loader.failures.count, loader.report().total.counts.failed) == (1, 1)


def test_a_training_has_substitutes_and_no_padding():
    for loader in (loader_of(BATCHES), loader_of(ConcatDataset(BATCHES))):
        batches = list(loader)
        assert [padding_rows(each) for each in batches] == [[], [], []]
        assert loader.report().total.counts.samples == sum(
            len(each["x"]) for each in batches
        )


def test_a_loader_of_get_val_dataset_marks_the_batch_of_a_damaged_line(tmp_path):
    lines = [json.dumps({"text": f"t{n}"}) if n != 2 else "{bad}" for n in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    dataset = get_val_dataset(tmp_path / "a.jsonl", split_part="train", batch_size=1)
    loader = get_loader(dataset)
    for _ in range(2):
        found = [(batch.text[0], loader.padding, is_padding(batch)) for batch in loader]
        assert [text for text, *padding in found if not any(padding)] == [
            "t0",
            "t1",
            "t3",
            "t4",
        ]
        assert found[2][1:] == (True, True)
    assert loader.failures.count == 1


@dataclass
class Words(Batch):
    x: torch.Tensor


def words(rows: list[int]) -> Words:
    return Words(__key__=[str(row) for row in rows], x=torch.tensor(rows))


def test_a_batch_says_which_rows_are_padding_and_weighs_them_0():
    batches = list(get_loader(BatchDataset(SAMPLES, 4, words), role="eval"))
    assert [padding_rows(each) for each in batches] == [[3], [1, 3], []]
    weights = [each.sample_weights for each in batches]
    assert weights[0].tolist() == [1, 1, 1, 0]
    assert weights[1].tolist() == [1, 0, 1, 0]
    assert weights[2] is None
    assert [dict(**each).keys() for each in batches] == [{"x"}] * 3, (
        "what a model is called with"
    )
    assert total_weight(batches) == 8


def test_weights_that_a_batch_has_stay_but_for_rows_of_padding():
    def weighed(rows):
        return {
            "x": torch.tensor(rows),
            "sample_weights": torch.tensor([2.0] * len(rows)),
        }

    batches = list(get_loader(BatchDataset(SAMPLES, 4, weighed), role="eval"))
    assert batches[1]["sample_weights"].tolist() == [2, 0, 2, 0]
    plain = list(get_loader(BATCHES, role="eval"))
    assert [sorted(each) for each in plain] == [["__padding__", "x"]] * 2 + [["x"]]
    assert total_weight(plain) == 8


def test_a_batch_that_fails_as_a_whole_is_padding():
    def batch(rows):
        if 4 in rows:
            raise DataError("cannot be batched")
        return {"x": torch.tensor(rows)}

    loader = loader_of(BatchDataset(numbers(12), 4, batch), role="eval")
    found = [(rows_of(each), is_padding(each), padding_rows(each)) for each in loader]
    assert [each for _, *each in found] == [
        [False, []],
        [True, [0, 1, 2, 3]],
        [False, []],
    ]
    assert loader.report().total.counts.samples == 8


def test_a_validation_that_is_resumed_has_the_same_padding():
    dataset = BatchDataset(SAMPLES, 2, column).with_role("eval")
    first = get_loader(dataset)
    found = [padding_rows(each) for each in islice(first, 2)]
    second = get_loader(dataset)
    second.load_state_dict(first.state_dict())
    found += [padding_rows(each) for each in second]
    assert found == [[], [1], [1], [1], [], []]


@pytest.mark.parametrize("name", ["batches", "a filter of batches", "samples"])
def test_an_item_is_restored_with_its_padding(name):
    with get_loader(DATASETS[name], role="eval") as loader:
        for item in loader:
            again = loader.restore_sample(loader.restore_key)
            assert rows_of(again) == rows_of(item)
            if isinstance(item, dict):
                assert padding_rows(again) == padding_rows(item)


def test_no_loss_is_recorded_of_padding():
    loader = get_loader(BATCHES, role="eval")
    for batch in loader:
        losses = batch["x"].double()
        losses[padding_rows(batch)] = float("nan")
        loader.record_losses(losses)
    row = loader.report()["numbers0"]
    assert (row.losses.count, row.losses.mean, row.losses.not_finite) == (
        8,
        sum(GOOD) / 8,
        0,
    )


def test_where_nothing_can_be_read_there_is_nothing_to_fill_a_row_with():
    def fails(number):
        raise DataError("damaged")

    with pytest.raises(SubstitutionError, match="were all skipped or failed"):
        list(loader_of(MapDataset(numbers(4), fails), role="eval"))


def test_a_budget_of_0_ends_a_validation_at_a_damaged_sample():
    loader = get_loader(
        DATASETS["batches"], failures=FailurePolicy(budget=0), role="eval"
    )
    with pytest.raises(
        Exception, match="1 samples failed, and the failure budget is 0"
    ):
        list(loader)


def test_lists_and_numbers_have_no_place_for_marks_and_the_loader_knows():
    loader = get_loader(DATASETS["lists"], role="eval")
    assert [loader.padding_rows for _ in loader] == [[3], [1, 3], []]
    assert [padding_rows(batch) for batch in loader] == [[], [], []]
    single = get_loader(DATASETS["samples"], role="eval")
    assert [number for number, _ in enumerate(single) if single.padding] == [3, 5, 7]
