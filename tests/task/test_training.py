"""A model on weighted data is the same on any topology: DDP over four real ranks,
gloo."""

from __future__ import annotations

import json

import pytest
import torch

from tests.support.launching import launched
from tests.support.weighted_training import (
    GLOBAL,
    MICRO,
    STEPS,
    Model,
    batches,
    epochs,
    levelled,
    loader_over,
    stream,
    trained,
)

pytestmark = pytest.mark.jobs


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> dict:
    """What four ranks made of the model."""
    out = tmp_path_factory.mktemp("weights") / "out.json"
    launched("tests.support.weights_program", out, ranks=4)
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """In one process, a global batch at a time."""
    with loader_over(batches(GLOBAL)) as loader:
        return trained(loader, STEPS)


def alike(one, other, *, apart: float = 1e-6) -> bool:
    return torch.allclose(
        torch.tensor(one), torch.tensor(other), rtol=10 * apart, atol=apart
    )


def test_four_ranks_give_the_parameters_of_one_process(ranks, alone):
    assert ranks["alike"]
    assert alike(ranks["plain"], alone)


def test_level_ranks_give_the_parameters_of_one_process(ranks, alone):
    assert alike(ranks["level"], alone)


@pytest.mark.parametrize("dataset", [batches, levelled])
def test_accumulation_gives_the_parameters_of_one_batch(dataset, alone):
    with loader_over(dataset(MICRO)) as loader:
        assert alike(trained(loader, STEPS, accumulation=GLOBAL // MICRO), alone)


def test_means_of_means_would_be_others(alone):
    with loader_over(batches(MICRO)) as loader:
        other = trained(loader, STEPS, accumulation=GLOBAL // MICRO, weighed=False)
    assert not alike(other, alone, apart=1e-3)


def test_padding_of_epochs_that_ranks_do_not_divide_counts_nothing(ranks):
    """37 samples are 4 global batches of 8 and one of 5, of which ranks get 2, 2, 1 and
    padding."""
    with loader_over(epochs(GLOBAL)) as loader:
        assert alike(ranks["padded"], trained(loader, 20))


def test_a_stream_of_packs(ranks):
    with loader_over(stream(MICRO), lanes=4) as loader:
        assert alike(ranks["stream"], trained(loader, 20, accumulation=4))


def test_resumed_on_one_rank_with_accumulation(ranks):
    model = Model()
    model.load_state_dict(
        {name: torch.tensor(each) for name, each in ranks["model"].items()}
    )
    with loader_over(batches(MICRO)) as loader:
        loader.load_state_dict(ranks["state"])
        resumed = trained(loader, 13, accumulation=4, model=model)
    with loader_over(batches(GLOBAL)) as loader:
        assert alike(resumed, trained(loader, 20))
