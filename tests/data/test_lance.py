"""Rows of Lance datasets, read by Lance, beside the same rows in a list."""

import io
import pickle
from itertools import islice

import pytest
import yaml
from PIL import Image

from energize import (
    BlendDataset,
    DefaultTaskEncoder,
    ListSource,
    ShuffleDataset,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
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


# Paths of mixes


class Captions(DefaultTaskEncoder):
    """Batches are captions and the heights of images."""

    def batch(self, samples):
        return [(sample.caption, sample.image.shape[1]) for sample in samples]


def pairs(first, stop):
    """Return rows of images, each of another height, and captions."""
    rows = []
    for number in range(first, stop):
        file = io.BytesIO()
        Image.new("RGB", (8, 1 + number)).save(file, "PNG")
        rows.append({"image": file.getvalue(), "caption": f"text {number}"})
    return rows


def expected(numbers):
    return [(f"text {number}", 1 + number) for number in numbers]


def write(path, rows, *, blob=False):
    """Write a Lance dataset, with images in its blob encoding or not."""
    encoding = {"lance-encoding:blob": "true"} if blob else None
    image = pyarrow.field("image", pyarrow.large_binary(), metadata=encoding)
    schema = pyarrow.schema([image, ("caption", pyarrow.string())])
    lance.write_dataset(pyarrow.Table.from_pylist(rows, schema=schema), str(path))


def answers(dataset):
    return [pair for batch in dataset.at(range(len(dataset))) for pair in batch]


OPTIONS = {"batch_size": 1, "task_encoder": Captions()}


@pytest.mark.parametrize("blob", [False, True])
def test_a_lance_folder_is_a_table(tmp_path, blob):
    write(tmp_path / "pairs.lance", pairs(0, 12), blob=blob)
    dataset = get_train_dataset(f"{tmp_path}/pairs.lance/", **OPTIONS)
    assert sorted(answers(dataset)) == sorted(expected(range(12)))
    part = {"split_part": "train", "subset": {"range": [4, 9]}}
    ordered = get_val_dataset(tmp_path / "pairs.lance", **part, **OPTIONS)
    assert answers(ordered) == expected(range(4, 9))


def test_null_blobs_are_null(tmp_path):
    rows = pairs(0, 3)
    rows[1]["image"] = None
    write(tmp_path / "pairs.lance", rows, blob=True)
    assert list(LanceSource(tmp_path / "pairs.lance")) == rows


def mix_of(folder):
    """Write a mix of a Lance folder and a folder with one for each split part."""
    write(folder / "pairs.lance", pairs(0, 12))
    (folder / "parts").mkdir()
    write(folder / "parts" / "train.lance", pairs(12, 20))
    write(folder / "parts" / "val.lance", pairs(20, 25))
    entries = [{"path": "./pairs.lance", "weight": 1}, {"path": "parts", "weight": 1}]
    splits = {"train": {"blend": entries}, "val": {"path": "parts"}}
    head = {"__module__": "energize", "__class__": "MetadatasetV2"}
    (folder / "mix.yaml").write_text(yaml.safe_dump({**head, "splits": splits}))
    return folder / "mix.yaml"


def test_lance_folders_in_a_mix_and_as_split_parts(tmp_path):
    mix = mix_of(tmp_path)
    dataset = get_train_dataset(mix, **OPTIONS)
    got = {pair for batch in dataset.at(range(24)) for pair in batch}
    assert got == {*expected(range(20))}
    assert answers(get_val_dataset(mix, **OPTIONS)) == expected(range(20, 25))


def test_several_lance_folders_and_other_folders_are_named(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / f"{name}.lance", pairs(0, 2))
    with pytest.raises(
        DatasetError, match=r"one\.lance and .*two\.lance .* not read as"
    ):
        get_train_dataset(tmp_path, **OPTIONS)
    (tmp_path / "other.lance").mkdir()
    with pytest.raises(DatasetNotFoundError, match=r"other\.lance is not a Lance data"):
        get_train_dataset(tmp_path / "other.lance", **OPTIONS)


@pytest.mark.jobs
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_a_mix_of_lance_folders_and_resume(tmp_path, method):
    dataset = get_train_dataset(mix_of(tmp_path), **OPTIONS)
    whole = [dataset[position] for position in range(30)]
    options = {"num_workers": 2, "multiprocessing_context": method}
    loader = get_loader(dataset, **options)
    first = list(islice(loader, 11))
    other = get_loader(dataset, num_workers=0)
    other.load_state_dict(loader.state_dict())
    loader.close()
    assert first + list(islice(other, 19)) == whole
