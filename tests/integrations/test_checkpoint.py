"""Loaders in torch.distributed.checkpoint, by one process."""

from __future__ import annotations

import pytest

from energize import FilterDataset, ListSource, ShuffleDataset, get_loader
from energize.integrations.checkpoint import CheckpointedLoaders
from tests.support.datasets import is_even
from tests.support.loading import take

checkpoint = pytest.importorskip("torch.distributed.checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

SOURCES = {
    "train": ShuffleDataset(ListSource(range(40), name="train")),
    "other": FilterDataset(ShuffleDataset(ListSource(range(40), name="o")), is_even),
}


def loaders():
    return {name: get_loader(source) for name, source in SOURCES.items()}


@pytest.mark.parametrize("together", [False, True])
def test_loaders_at_the_top_of_a_checkpoint_resume(tmp_path, together):
    saved = loaders()
    for number, loader in enumerate(saved.values()):
        take(loader, 3 + number)
    content = {"data": CheckpointedLoaders(**saved)} if together else dict(saved)
    checkpoint.save(content, checkpoint_id=tmp_path)
    rest = [take(loader, 50) for loader in saved.values()]
    resumed = loaders()
    content = {"data": CheckpointedLoaders(**resumed)} if together else dict(resumed)
    checkpoint.load(content, checkpoint_id=tmp_path)
    assert [take(loader, 50) for loader in resumed.values()] == rest


@pytest.mark.parametrize("name", SOURCES)
def test_a_loader_deeper_in_a_checkpoint_is_an_error(tmp_path, name):
    loader = get_loader(SOURCES[name])
    take(loader, 3)
    with pytest.raises(checkpoint.CheckpointException, match="at the top of the dict"):
        checkpoint.save({"app": {"loader": loader}}, checkpoint_id=tmp_path)
