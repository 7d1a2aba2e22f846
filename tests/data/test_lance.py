"""Rows of Lance datasets, read by Lance, beside the same rows in a list."""

import pickle
from itertools import islice

import pytest

from energize import BlendDataset, ListSource, ShuffleDataset, get_loader
from energize.errors import DatasetError, DatasetNotFoundError
from energize.sources import LanceSource

lance = pytest.importorskip("lance")
pyarrow = pytest.importorskip("pyarrow")

ROWS = [
    {"text": f"text {row}", "tokens": row % 7, "image": bytes([row])}
    for row in range(40)
]


@pytest.fixture
def path(tmp_path):
    path = f"{tmp_path}/texts.lance"
    lance.write_dataset(pyarrow.Table.from_pylist(ROWS), path, max_rows_per_file=16)
    return path


def test_rows_of_a_lance_dataset(path):
    source = LanceSource(path)
    assert list(source) == ROWS
    assert source.column("tokens").values.tolist() == [row["tokens"] for row in ROWS]
    assert list(LanceSource(path, columns=["text"])[3]) == ["text"]


def test_a_run_reads_the_version_that_it_was_opened_with(path):
    source = LanceSource(path)
    lance.write_dataset(pyarrow.Table.from_pylist(ROWS[:2]), path, mode="append")
    again = pickle.loads(pickle.dumps(source))
    assert list(again) == ROWS
    assert len(LanceSource(path)) == 42


@pytest.mark.jobs
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_deliver_the_mix_that_one_process_does_and_resume(path, method):
    def mix():
        rows = ShuffleDataset(LanceSource(path))
        return BlendDataset((rows, 3), (ShuffleDataset(ListSource(ROWS[:5])), 1))

    whole = [mix()[position] for position in range(30)]
    options = {"num_workers": 2, "multiprocessing_context": method}
    loader = get_loader(mix(), **options)
    first = list(islice(loader, 11))
    state = loader.state_dict()
    loader.close()
    other = get_loader(mix(), num_workers=0)
    other.load_state_dict(state)
    assert first + list(islice(other, 19)) == whole


def test_what_is_no_lance_dataset_and_what_it_lacks(path, tmp_path):
    with pytest.raises(DatasetNotFoundError, match="is not a Lance dataset"):
        LanceSource(tmp_path / "missing.lance")
    with pytest.raises(DatasetError, match="version 9"):
        LanceSource(path, version=9)
    with pytest.raises(
        DatasetError, match=r"no column 'caption'\. Its columns are text"
    ):
        LanceSource(path, columns=["caption"])
