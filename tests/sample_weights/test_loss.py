"""Weighted means over global batches, in one process; over ranks see test_training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    ConfigError,
    TextSample,
    WeightError,
    effective_sample_size,
    total_weight,
    weighted_mean,
)
from energize.core.padding import marked
from energize.task.collate import Batch

LOSS = torch.tensor([1.0, 2.0, 4.0])
WEIGHTS = torch.tensor([3.0, 1.0, 0.0])


def test_the_mean_of_one_batch():
    assert weighted_mean(LOSS, WEIGHTS).item() == 1.25
    assert weighted_mean(LOSS).item() == pytest.approx(7 / 3)
    assert weighted_mean(LOSS, WEIGHTS.double()).dtype == torch.float64
    assert weighted_mean(LOSS.half(), WEIGHTS).dtype == torch.float32
    assert weighted_mean(LOSS, WEIGHTS, total=8).item() == 0.625


def test_any_division_into_micro_batches_has_the_gradient_of_the_whole():
    losses = torch.rand(12, requires_grad=True)
    weights = torch.rand(12)
    weighted_mean(losses, weights).backward()
    whole, losses.grad = losses.grad.clone(), None
    parts = [slice(0, 1), slice(1, 8), slice(8, 8), slice(8, 12)]
    total = total_weight([weights[part] for part in parts])
    for part in parts:
        weighted_mean(losses[part], weights[part], total=total).backward()
    assert torch.allclose(losses.grad, whole)
    assert torch.allclose(whole, weights / weights.sum())


def test_weights_that_are_all_zero_give_zero_and_a_graph():
    loss = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
    mean = weighted_mean(loss, torch.zeros(3))
    assert mean.item() == 0.0
    mean.backward()
    assert loss.grad.tolist() == [0.0, 0.0, 0.0]
    assert weighted_mean(loss, torch.tensor([2.0, 0.0, 0.0])).item() == 1.0
    assert weighted_mean(LOSS, WEIGHTS, total=0.0).item() == 0.0


def test_a_loss_for_each_token():
    losses, lengths = torch.arange(6.0), torch.tensor([1, 2, 3])
    spread = torch.repeat_interleave(WEIGHTS, lengths)
    assert weighted_mean(losses, spread).item() == pytest.approx((1 + 2) / 5)


def test_shapes_and_types_are_checked():
    with pytest.raises(ConfigError, match=r"\(3, 2\) and the weights have \(3,\).*='none'"):
        weighted_mean(torch.zeros(3, 2), WEIGHTS)
    with pytest.raises(ConfigError, match="takes tensors, a loss and its weights; got a float"):
        weighted_mean(1.0, WEIGHTS)
    with pytest.raises(ConfigError, match="and a list"):
        weighted_mean(LOSS, [1.0, 2.0, 3.0])


class TestTotal:
    def test_of_weights_and_of_batches(self):
        plain = Batch(__key__=["a", "b"])
        heavy = Batch(__key__=["c"], sample_weights=torch.tensor([0.25]))
        assert total_weight(WEIGHTS).item() == 4.0
        assert total_weight([WEIGHTS, WEIGHTS]).item() == 8.0
        assert total_weight(heavy).item() == 0.25
        assert total_weight([plain, heavy]).item() == 2.25
        assert total_weight([marked(plain), heavy]).item() == 0.25
        assert total_weight(marked({"x": torch.zeros(3)})).item() == 0.0
        assert total_weight({"x": torch.zeros(3)}).item() == 3.0
        assert total_weight([WEIGHTS]).dtype == torch.float64

    def test_of_what_has_no_weights(self):
        with pytest.raises(ConfigError, match="there are no weights"):
            total_weight([])
        with pytest.raises(ConfigError, match="give the batches themselves"):
            total_weight([None, WEIGHTS])
        with pytest.raises(WeightError, match="how many samples"):
            total_weight(TextSample(__key__="a", text="b"))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20))
def test_the_effective_sample_size_is_between_one_and_all(weights):
    size = effective_sample_size(weights)
    if not any(each**2 for each in weights):
        assert size == 0
    else:
        assert 1 - 1e-9 <= size <= len(weights) * (1 + 1e-9)
        equal = effective_sample_size(np.ones(len(weights)))
        assert equal == len(weights)
    assert size == pytest.approx(effective_sample_size(torch.tensor(weights, dtype=torch.float64)))
