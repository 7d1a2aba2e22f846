"""Folders and files that nobody prepared: each is an indexed dataset, and bad input is
told."""

from __future__ import annotations

import base64
import csv
import errno
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from energize import (
    ConversationSample,
    CrudeSample,
    Sample,
    Turn,
    convert,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from energize.data.files import Documents
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    MetadatasetError,
    NotPreparedError,
    PrepareError,
    ShardError,
    SplitError,
)
from energize.testing import check_laws
from tests.support.images import encoded, picture
from tests.support.mds import write_mds
from tests.support.metadatasets import written
from tests.support.refusals import check_refusals
from tests.support.shards import packed
from tests.support.tars import write_tar

JPEG = encoded(picture(8, 6), "JPEG")
N = 7


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))


def files(root, names, data=JPEG):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def table(path, rows):
    """Rows as the kind of file that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def described(root, suffix):
    """Images with a table in each of two folders."""
    for folder in ("", "more/"):
        files(root, [f"{folder}{i}.v1.jpg" for i in range(N)])
        rows = [
            {"file_name": f"{i}.v1.jpg", "text": f"{folder}{i}", "n": i}
            for i in range(N)
        ]
        table(root / f"{folder}metadata{suffix}", rows)
    return root


def classes(root):
    return files(
        root, [f"{label}/{i}.jpg" for label in ("dog", "cat") for i in range(N)]
    )


def beside(root):
    files(root, [f"{i}.jpg" for i in range(N)])
    for i in range(N):
        (root / f"{i}.txt").write_text(f"caption {i}")
    return root


def llava(path):
    files(path.parent, [f"images/{i}.jpg" for i in range(N + 1)])
    said = [
        {"from": "human", "value": "<image>, <image>?"},
        {"from": "gpt", "value": "Yes."},
    ]
    rows = [{"image": [f"images/{i}.jpg", f"images/{i + 1}.jpg"]} for i in range(N)]
    return table(path, [{"id": "x", **row, "conversations": said} for row in rows] + [
        {"id": "text", "conversations": [{"from": "human", "value": "Hi"}]}
    ])  # fmt: skip


def share(path):
    files(path.parent, [f"images/{i}.jpg" for i in range(N)])
    content = [{"type": "image"}, {"type": "text", "text": "What?"}]
    said = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "That."},
    ]
    return table(
        path, [{"messages": said, "images": [f"images/{i}.jpg"]} for i in range(N)]
    )


def structs(root):
    image = {"bytes": JPEG, "path": None}
    rows = [{"image": image, "text": f"row {i}", "n": i} for i in range(N)]
    table(root / "train-00000-of-00001.parquet", rows)
    table(root / "test-00000-of-00001.parquet", rows[:2])
    return root


def saved(root):
    """What `save_to_disk` writes, in batches of 3 rows."""
    root.mkdir(parents=True)
    for i in range(2):
        rows = [
            {"image": {"bytes": JPEG, "path": "a.jpg"}, "text": f"{i}/{j}"}
            for j in range(N)
        ]
        batches = pa.Table.from_pylist(rows).to_batches(3)
        with pa.ipc.new_stream(
            str(root / f"data-0000{i}-of-00002.arrow"), batches[0].schema
        ) as s:
            for batch in batches:
                s.write_batch(batch)
    (root / "state.json").write_text("{}")
    (root / "dataset_info.json").write_text("{}")
    return root


def mds(root):
    columns = {"image": "jpeg", "text": "str", "n": "int"}
    rows = [{"image": picture(8, 6), "text": f"{i}", "n": i} for i in range(N)]
    write_mds(root, rows, columns)
    return root


def tars(root):
    root.mkdir()
    for shard in range(2):
        parts = [
            (f"{shard}{i}.{part}", d) for i in range(N) for part, d in PARTS.items()
        ]
        (root / f"{shard}.tar").write_bytes(packed(parts))
    return root


def beside_json(root):
    files(root, [f"{i}.jpg" for i in range(N)])
    for i in range(N):
        (root / f"{i}.json").write_text(json.dumps({"text": f"caption {i}", "n": i}))
    return root


def one_tar(path):
    return write_tar(
        path, [(f"{i}.{part}", d) for i in range(N) for part, d in PARTS.items()]
    )


def labelled(root):
    """What `save_to_disk` writes of classes: numbers, and names beside the schema."""
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": label}
    image = {"bytes": JPEG, "path": None}
    made = pa.Table.from_pylist(
        [{"image": image, "label": i % 2} for i in range(N - 1)]
    )
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    made = made.replace_schema_metadata(told)
    root.mkdir()
    with pa.ipc.new_stream(
        str(root / "data-00000-of-00001.arrow"), made.schema
    ) as stream:
        stream.write_table(made)
    return root


PARTS = {"jpg": JPEG, "txt": b"a caption"}
JOINER = {"__module__": "energize", "__class__": "CaptioningSample"}
KINDS = {
    "csv": (partial(described, suffix=".csv"), "caption", "more/6"),
    "jsonl": (partial(described, suffix=".jsonl"), "caption", "more/6"),
    "parquet": (partial(described, suffix=".parquet"), "caption", "more/6"),
    "classes": (classes, "label_name", "dog"),
    "beside": (beside, "caption", "caption 6"),
    "plain": (lambda root: files(root, [f"{i}.jpg" for i in range(N)]), "__key__", "6"),
    "llava.jsonl": (llava, "turns", [Turn("user", "Hi")]),
    "llava.json": (llava, "turns", [Turn("user", "Hi")]),
    "share.jsonl": (
        share,
        "turns",
        [Turn("user", "<image>What?"), Turn("assistant", "That.")],
    ),
    "structs": (structs, "caption", "row 6"),
    "saved": (saved, "caption", "1/6"),
    "mds": (mds, "caption", "6"),
    "tars": (tars, "caption", "a caption"),
    "json beside": (beside_json, "caption", "caption 6"),
    "one.tar": (one_tar, "caption", "a caption"),
    "labelled": (labelled, "label_name", "dog"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_an_indexed_dataset_however_it_is_read(
    kind, tmp_path, monkeypatch
):
    make, field, last = KINDS[kind]
    (tmp_path / "here").mkdir()
    path = make(tmp_path / "here" / kind)
    stored = get_val_dataset(path, split_part="train", batch_size=None)
    items = list(stored)
    assert getattr(items[-1], field) == last
    assert [item.__key__ for item in items] == [
        stored[i].__key__ for i in range(len(stored))
    ]
    assert len({item.__key__ for item in items}) == len(items)
    images = [each.images if field == "turns" else [each.image] for each in items]
    assert {tuple(image.shape) for each in images for image in each} == {(3, 6, 8)}
    dataset = get_train_dataset(path, batch_size=3)
    check_laws(dataset, epochs=1, items=4)
    (tmp_path / "mix.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\n"
        f"splits: {{train: {{path: {path.relative_to(tmp_path)}}}}}\n"
    )
    assert (
        get_train_dataset(tmp_path / "mix.yaml", batch_size=3).describe()
        == dataset.describe()
    )
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = get_train_dataset(tmp_path / "there" / path.name, batch_size=3)
    assert moved.describe() == dataset.describe()


def test_loose_and_prepared_are_mixed_by_weight_and_by_columns(tmp_path):
    described(tmp_path / "csv", ".csv")
    saved(tmp_path / "saved")
    write_shards(({"__key__": f"{i}", **PARTS} for i in range(9)), tmp_path / "tars")
    prepare(
        tmp_path / "tars",
        split_ratios={"train": 1},
        sample_type="CaptioningSample",
        workers=1,
    )
    low = {"path": "csv", "by": "n", "weights": {"0..5": 3, "5..": 1}, "weight": 2}
    part = {
        "path": "saved",
        "subset": {"range": [0, 4]},
        "sample_weight": 2,
        "weight": 1,
    }
    blend = [low, part, {"path": "tars", "weight": 1}]
    mix = written(tmp_path / "mix.yaml", {"blend": blend})
    dataset = get_train_dataset(mix, batch_size=4)
    check_laws(dataset, epochs=1, items=6)
    names = [source.name for source in dataset.sources]
    taken = dict(zip(names, dataset.consumed(80).tolist(), strict=True))
    assert taken == {"csv/0..5": 120, "csv/5..": 40, "saved": 80, "tars": 80}


@pytest.mark.jobs
def test_a_run_with_workers_goes_on_where_it_was(tmp_path):
    dataset = get_train_dataset(described(tmp_path / "csv", ".csv"), batch_size=3)
    keys = [each.__key__ for each in islice(get_loader(dataset), 12)]
    loader = get_loader(dataset, num_workers=2)
    assert [each.__key__ for each in islice(loader, 5)] == keys[:5]
    later = get_loader(dataset, num_workers=1)
    later.load_state_dict(loader.state_dict())
    assert [each.__key__ for each in islice(later, 7)] == keys[5:]


def told(path, caplog, **settings):
    """What is logged of a dataset when it is opened."""
    caplog.clear()
    get_train_dataset(path, batch_size=1, **settings)
    return caplog.text


def test_what_is_guessed_and_left_out_is_told_once(tmp_path, caplog, monkeypatch):
    root = described(tmp_path / "photos", ".csv")
    with (root / "metadata.csv").open("a") as file:
        file.write("gone.jpg,x,1\n3.v1.jpg,again,1\n")
    files(root, ["alone.jpg", ".hidden.jpg"])
    with monkeypatch.context() as later:
        later.setenv("RANK", "1")
        later.setenv("WORLD_SIZE", "2")
        assert told(root, caplog) == ""  # the first rank says it
    text = told(root, caplog)
    for words in (
        "photos: 15 samples as CaptioningSample(image=file_name, caption=text); rows of metadata",
        "Not in samples: 'n'.",
        "1 row left out, whose file is not in this folder: gone.jpg (metadata.csv, line 9)",
        "Files left out: 'alone.jpg': no row names it",
        "of the file of another sample: 1 sample, 3.v1.jpg (metadata.csv, line 10)",
        'write sample_type: CaptioningSample, field_map: {"image": "file_name", "caption": "text"}',
    ):
        assert words in text
    assert told(root, caplog) == ""
    keys = {
        each.__key__
        for each in get_val_dataset(root, split_part="train", batch_size=None)
    }
    assert {"3_v1", "3_v1~2", "more/3_v1"} <= keys
    with pytest.raises(
        DatasetError, match=r"whose file is not in this folder.*\(strict\)"
    ):
        get_train_dataset(root, batch_size=1, strict=True)
    (beside(tmp_path / "texts") / "6.jpg").unlink()
    (tmp_path / "texts" / "5.txt").unlink()
    text = told(tmp_path / "texts", caplog)
    assert "'5.jpg': images without .txt beside them" in text
    assert "'6.txt': captions without an image beside them" in text


def test_what_lies_beside_classes_and_split_parts_is_told(tmp_path, caplog):
    root = classes(tmp_path / "pets")
    labels = [
        each.label
        for each in get_val_dataset(root, split_part="train", batch_size=None)
    ]
    files(root, ["stray.jpg"])
    assert "'stray.jpg': images beside the folders of classes" in told(root, caplog)
    found = get_val_dataset(root, split_part="train", batch_size=None)
    assert [each.label for each in found] == labels
    files(root, ["train/0.jpg", "test/0.jpg"])
    assert "): beside the split parts" in told(root, caplog)
    with pytest.raises(DatasetError, match=r"beside the split parts.*\(strict\)"):
        get_train_dataset(root, batch_size=1, strict=True)


@pytest.mark.parametrize("parted", [",", ";", "\t"])
def test_columns_are_parted_by_what_the_first_line_has(tmp_path, parted):
    files(tmp_path, ["0.jpg"])
    (tmp_path / "metadata.csv").write_text(
        f'file_name{parted}text\n0.jpg{parted}"a, b; c"\n'
    )
    [sample] = get_val_dataset(tmp_path, split_part="train", batch_size=None)
    assert sample.caption == "a, b; c"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_files_of_other_columns_are_told(suffix, tmp_path):
    table(tmp_path / f"0{suffix}", [{"text": "a", "n": 1}])
    table(tmp_path / f"1{suffix}", [{"caption": "b"}])
    words = rf"the column 'text' of 'text' is missing in \S*1\{suffix}. Write all"
    with pytest.raises(DatasetError, match=words):
        get_train_dataset(tmp_path, batch_size=1)
    for name in "ab":
        (tmp_path / f"{'ab'.index(name)}{suffix}").rename(tmp_path / f"{name}{suffix}")
    words = rf"can be read in 2 ways.*rows of a\{suffix} .*rows of b\{suffix} "
    with pytest.raises(DatasetError, match=f"(?s){words}"):
        get_train_dataset(tmp_path, batch_size=1)
    given = {"field_map": {"text": "text,caption"}, "split_part": "train"}
    found = get_val_dataset(tmp_path, batch_size=None, **given)
    assert [each.text for each in found] == ["a", "b"]


def test_what_datasets_write_beside_split_parts_is_nothing_left_out(tmp_path):
    for part in ("train", "test"):
        saved(tmp_path / "all" / part)
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert get_train_dataset(tmp_path / "all", batch_size=1, strict=True)


def test_images_in_lists_beside_a_text_are_kept(tmp_path):
    path = table(
        tmp_path / "a.parquet",
        [{"images": [{"bytes": JPEG, "path": None}], "text": "a"}],
    )
    assert get_train_dataset(path, batch_size=None)[0]["images.0.jpg"].shape == (
        3,
        6,
        8,
    )


PNG = encoded(picture(8, 6), "PNG")
PIECES = {
    "image": {"type": "image", "image": "0.jpg"},
    "url": {"type": "image_url", "image_url": {"url": "0.jpg"}},
    "of transformers": {"type": "image", "path": "0.jpg"},
    "data": {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"},
    },
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_turns_name_their_images(name, tmp_path):
    files(tmp_path / "in", ["0.jpg"])
    (tmp_path / "rows").mkdir()
    content = [PIECES[name], {"type": "text", "text": "What?"}]
    said = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "That."},
    ]
    path = table(tmp_path / "rows" / "chat.jsonl", [{"messages": said}] * 3)
    given = {"split_part": "train", "batch_size": None, "image_folder": tmp_path / "in"}
    samples = list(get_val_dataset(path, **given))
    assert [len(each.images) for each in samples] == [1, 1, 1]
    assert samples[0].turns[0] == Turn("user", "<image>What?")
    if name != "data":
        with pytest.raises(
            DatasetNotFoundError,
            match=r"'images' of chat.jsonl names '0.jpg'.*image_folder: ",
        ):
            get_train_dataset(path, batch_size=1)
    convert(path, tmp_path / "tars", image_folder=tmp_path / "in")
    converted = list(
        get_val_dataset(tmp_path / "tars", split_part="train", batch_size=None)
    )
    assert [each.turns for each in converted] == [each.turns for each in samples]
    assert all(map(torch.equal, converted[2].images, samples[2].images))


@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_with_an_array_of_rows_is_read(indent, tmp_path):
    mark, path = "\ufeff", tmp_path / "a.json"
    for made in (
        {"version": 1, "data": [{"text": "a"}, {"text": "b"}]},
        [{"text": "a"}] * 2,
    ):
        path.write_text(f"{mark}{json.dumps(made, indent=indent)}")
        assert len(get_train_dataset(path, batch_size=1)) == 2
    path.write_text(json.dumps({"text": "a", "boxes": [{"x": 1}]}, indent=indent))
    assert get_train_dataset(path, batch_size=None)[0].text == "a"


def test_a_name_of_two_lines_and_a_caption_with_a_mark_of_utf_8(tmp_path):
    files(tmp_path, ["a\nb.jpg"])
    (tmp_path / "a\nb.TXT").write_text("\ufeffa cat")
    [sample] = get_val_dataset(tmp_path, split_part="train", batch_size=None)
    assert sample.caption == "a cat"


def test_samples_that_fail_alike_are_told_once(tmp_path, caplog):
    files(tmp_path, ["0.jpg", "1.jpg", "2.jpg"], b"none") and files(tmp_path, ["3.jpg"])
    with pytest.raises(
        DatasetError, match=r"3 of 4 samples cannot be made, the first one is "
    ):
        get_train_dataset(tmp_path, batch_size=None)
    for sample in get_train_dataset(tmp_path, batch_size=None, verify=False).at(
        range(40)
    ):
        assert sample.__key__ == "3"
    assert caplog.text.count("same failure are left out") == 1


@pytest.mark.parametrize("name", ["title", "caption", "text", "description"])
def test_columns_of_captions_are_captions(tmp_path, name):
    table(
        tmp_path / "a.parquet",
        [{"image": {"bytes": JPEG, "path": None}, name: "a cat"}],
    )
    [sample] = get_val_dataset(tmp_path, split_part="train", batch_size=None)
    assert sample.caption == "a cat"


def test_types_and_field_maps_may_be_told(tmp_path):
    root = described(tmp_path / "photos", ".csv")
    get = partial(get_val_dataset, root, split_part="train", batch_size=None)
    assert get(field_map={"caption": "n"})[3].caption == 3
    assert get(field_map={"text": "text"}, sample_type="TextSample")[3].text == "3"
    assert get(field_map={"text": "json[text]"})[3].text == "3"
    crude = get(sample_type=CrudeSample)[3]
    assert crude["json"] == {"file_name": "3.v1.jpg", "text": "3", "n": 3}
    assert (
        get(sample_type=Scored, field_map={"score": "n", "image": "file_name"})[4].score
        == 4
    )
    line = {
        "path": "photos",
        "sample_type": "TextSample",
        "field_map": {"text": "text"},
    }
    mix = written(tmp_path / "mix.yaml", line)
    assert get_train_dataset(mix, batch_size=None)[0].text
    chat = llava(tmp_path / "rows" / "chat.jsonl")
    (tmp_path / "rows" / "images").rename(tmp_path / "images")
    with pytest.raises(ConfigError, match="image_folder='else' is not a folder"):
        get_train_dataset(root, batch_size=1, image_folder="else")
    get_train_dataset(os.path.relpath(root), batch_size=1, image_folder=root)
    with pytest.raises(
        DatasetNotFoundError, match="Write their folder: image_folder: "
    ):
        get_train_dataset(chat, batch_size=1)
    line = {"path": "rows/chat.jsonl", "image_folder": "."}
    assert get_train_dataset(written(mix, line), batch_size=None)[0].turns


def test_a_folder_of_one_tar_and_that_tar_have_an_index_each(tmp_path):
    folder = tmp_path / "in"
    write_tar(folder / "0.tar", [("0.txt", b"zero"), ("1.txt", b"one")])
    read = partial(get_val_dataset, split_part="train", batch_size=None)
    for order in ((folder, folder / "0.tar"), (folder / "0.tar", folder)):
        shutil.rmtree(tmp_path / ".cache", ignore_errors=True)
        for path in (*order, *order):
            assert [each.text for each in read(path)] == ["zero", "one"]


def test_a_cache_folder_that_cannot_be_written_is_explained(tmp_path, monkeypatch):
    write_tar(tmp_path / "in" / "0.tar", [("0.txt", b"zero")])
    (tmp_path / "file").write_bytes(b"")

    def refusal():
        with pytest.raises(DatasetError) as error:
            get_val_dataset(tmp_path / "in", split_part="train", batch_size=None)
        words = f"{tmp_path / 'in'}: the index of tars that are not prepared cannot be written"
        assert words in str(error.value)
        assert "Set XDG_CACHE_HOME" in str(error.value)
        assert f"energize prepare {tmp_path / 'in'}" in str(error.value)
        return str(error.value)

    for cache in ("/proc/none", str(tmp_path / "file")):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert cache in refusal()
    # Without a home, no folder `~` is made.
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", str)
    monkeypatch.chdir(tmp_path)
    refusal()
    assert not (tmp_path / "~").exists()
    # A full disk is told while the index is written, and not as a fault of the data.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def full(*_, **__):
        raise PrepareError("no") from OSError(
            errno.ENOSPC, "No space left on device", "x.idx"
        )

    monkeypatch.setattr("energize.inference.tars.prepare", full)
    assert "No space left on device" in refusal()
    assert not [each for each in (tmp_path / "cache").rglob("*") if each.is_file()]


def test_types_of_tars_may_be_told(tmp_path):
    write_shards(
        [{"__key__": str(n), "txt": f"{n}", "cls": f"{n}"} for n in range(4)], tmp_path
    )
    get = partial(get_val_dataset, tmp_path, split_part="train", batch_size=None)
    assert get(sample_type=CrudeSample)[3]["txt"] == "3"
    told = {"sample_type": Scored, "field_map": {"image": "txt", "score": "cls"}}
    assert get(**told)[2] == Scored.derive_from(get(**told)[2], image="2", score=2)
    with pytest.raises(ConfigError, match="CrudeSample has no fields"):
        get(sample_type=CrudeSample, field_map={"text": "txt"})
    with pytest.raises(ConfigError, match="no image, score, and Scored needs"):
        get(sample_type=Scored)
    convert(tmp_path, tmp_path.with_name("out"), sample_type="CrudeWebdataset")


@dataclass(kw_only=True)
class Scored(Sample):
    image: Any
    score: float


def test_splits_are_folders_or_files(tmp_path):
    for split, number in (("train", 3), ("validation", 2)):
        files(tmp_path / "photos" / split, [f"{i}.jpg" for i in range(number)])
    assert len(get_train_dataset(tmp_path / "photos", batch_size=1)) == 3
    assert len(get_val_dataset(tmp_path / "photos", batch_size=1)) == 2
    rows = structs(tmp_path / "rows")
    assert len(get_val_dataset(rows, split_part="test", batch_size=1)) == 2
    part = {"range": ["50%", "100%"]}
    assert (
        len(get_val_dataset(rows, split_part="train", subset=part, batch_size=1)) == 4
    )


def test_a_file_that_is_gone_or_bad_takes_its_sample_with_it(tmp_path, caplog):
    root = described(tmp_path / "photos", ".jsonl")
    dataset = get_train_dataset(root, batch_size=None)
    (root / "3.v1.jpg").unlink()
    (root / "4.v1.jpg").write_bytes(b"nothing")
    found = {each.__key__ for each in dataset.at(range(2 * N))}
    assert not found & {"3_v1", "4_v1"}
    assert "metadata.jsonl, line 4, sample '3_v1': DataError: " in caplog.text
    assert "3.v1.jpg: cannot be read (No such file or directory)" in caplog.text
    assert "metadata.jsonl, line 5, sample '4_v1'" in caplog.text


def test_a_file_that_is_written_anew_is_told(tmp_path, caplog):
    root = described(tmp_path / "photos", ".csv")
    dataset = get_train_dataset(root, batch_size=None)
    soon = time.time() + 9
    os.utime(root / "3.v1.jpg", (soon, soon))
    assert len([*dataset.at(range(2 * N))]) == 2 * N
    assert "3.v1.jpg has changed since the dataset was opened" in caplog.text


def test_one_rank_looks_for_all_that_share_their_reading(tmp_path):
    root = described(tmp_path / "photos", ".csv")
    with Documents().used() as documents:
        first = get_train_dataset(root, batch_size=None)
    files(root, ["7.v1.jpg"])
    with Documents(documents.texts).used():
        assert get_train_dataset(root, batch_size=None, strict=True) == first
    with pytest.raises(DatasetError, match=r"'7\.v1\.jpg': no row names it"):
        get_train_dataset(root, batch_size=None, strict=True)


TURNS = [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "Yes."}]
WRONG = {
    "no image": (
        {"conversations": TURNS},
        "0 images, but its turns have 1 placeholders <image>",
    ),
    "no placeholder": (
        {"images": ["0.jpg"], "conversations": TURNS[1:]},
        "the turns []",
    ),
    "one name": (
        {"images": ["0.jpg"] * 2, "conversations": TURNS * 2},
        "two files under one name",
    ),
    "leads out": ({"images": ["../0.jpg"], "conversations": TURNS}, "is outside of"),
    "gone": ({"images": ["9.jpg"], "conversations": TURNS}, "9.jpg: cannot be read"),
    "no turns": (
        {"conversations": "Hi"},
        "a conversation must be a list of turns, got 'Hi'",
    ),
    "no role": (
        {"conversations": [{"text": "Hi"}]},
        "turn 0",
    ),
    "calls": (
        {"conversations": [{"from": "gpt", "value": "", "tool_calls": [{"id": "f"}]}]},
        "'tool_calls': [{'id': 'f'}]}: a tool, or a call of one, must have a 'name', got {'id': 'f'}",
    ),
    "less than nothing to be learned": (
        {"conversations": [TURNS[1] | {"weight": 1}, TURNS[1] | {"weight": -1}]},
        "the keys for learning the turn are unclear: {'weight': -1}",
    ),
    "no JSON": (None, "not JSON"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_conversation_that_does_not_fit_is_told_by_file_line_and_sample(
    name, tmp_path, caplog
):
    row, words = WRONG[name]
    files(tmp_path, ["0.jpg"])
    good = json.dumps({"id": 0, "image": "0.jpg", "conversations": TURNS})
    (tmp_path / "chat.jsonl").write_text(
        f"{good}\n\n{json.dumps(row) if row else '{x'}\n"
    )
    dataset = get_train_dataset(
        tmp_path / "chat.jsonl", batch_size=None, sample_type="ConversationSample"
    )
    assert {each.__key__ for each in dataset.at(range(4))} == {"000000"}
    assert "chat.jsonl, line 3" in caplog.text
    assert row is None or "sample '000001'" in caplog.text
    assert words in caplog.text


def test_the_turns_of_a_conversation_know_their_places():
    said = [
        {"from": "human", "value": "A <image> and <video>"},
        {"role": "tool", "content": "B"},
    ]
    sample = ConversationSample(__key__="0", turns=said, images=[1], videos=[2])
    assert sample.turns == [Turn("user", "A <image> and <video>"), Turn("tool", "B")]
    assert [tuple(each) for each in sample.places] == [
        (0, 2, "<image>"),
        (0, 14, "<video>"),
    ]
    assert [each["type"] for each in sample.messages[0]["content"]] == [
        "text",
        "image",
        "text",
        "video",
    ]


def test_what_is_refused(tmp_path, monkeypatch):
    get = partial(get_train_dataset, batch_size=1)

    def photos(name, text, **settings):
        data = text if isinstance(text, bytes) else text.encode()
        (files(tmp_path / name, ["a.jpg"]) / "metadata.csv").write_bytes(data)
        return partial(get, tmp_path / name, **settings)

    two = files(tmp_path / "two", ["a.jpg", "a.png", "a.txt"])
    both = files(tmp_path / "both", ["a.jpg"])
    for suffix in (".csv", ".jsonl"):
        table(both / f"metadata{suffix}", [{"file_name": "a.jpg"}])
    closed = files(tmp_path / "closed", ["a.jpg", "in/b.jpg"])
    nothing = files(tmp_path / "nothing", ["a.doc", "b.doc"])
    (tmp_path / "empty").mkdir()
    table(tmp_path / "bad.parquet", [{"a": 1}]).write_bytes(b"PAR1 no")
    write_shards([{"__key__": "a", **PARTS}], tmp_path / "tars" / "in")
    csv_of = "file_name,text\na.jpg,b\n"
    join = {"join": [{"path": "both"}, {"path": "both"}], "joiner": JOINER}
    unprepared, wrong, config = NotPreparedError, DatasetError, ConfigError
    a_mix = partial(get, written(tmp_path / "mix.yaml", {"path": "c"}), strict=True)
    rows = {
        "empty": (partial(get, tmp_path / "empty"), unprepared, "files are none", "energize pr"),
        "nothing": (partial(get, nothing), unprepared, "its files are 2 .doc", "has no images"),
        "two images": (partial(get, two), wrong, "a.jpg and a.png are two images under one name"),
        "two tables": (partial(get, both), wrong, "metadata.csv and metadata.jsonl describe"),
        "columns": (photos("c", "name,title\nb,c\n"), wrong, "no column file_name", "'title'"),
        "row": (photos("r", "file_name,text\na.jpg,b,c\n"), wrong, "metadata.csv, line 2: a row"),
        "bytes": (photos("b", b"file_name\n\xff"), wrong, "is not a CSV file in UTF-8"),
        "none left": (photos("n", "file_name\nb.jpg\n"), wrong, "no sample is left", "b.jpg (met"),
        "no field": (photos("f", csv_of, field_map={"title": "text"}), config, "'title'"),
        "no column": (photos("g", csv_of, field_map={"caption": "txet"}), config, "mean 'text'"),
        "no caption": (photos("h", "file_name\na.jpg\n", sample_type="CaptioningSample"), config,
            "no caption, which CaptioningSample needs. Its columns are 'file_name'"),
        "no type": (photos("t", csv_of, sample_type="Captions"), wrong, "'Captions' of 'energize'"),
        "checksums": (photos("k", csv_of, checksums=True), unprepared, "energize prepare"),
        "val": (lambda: get_val_dataset(both, batch_size=1), SplitError, "part 'val'", "subset="),
        "a mix": (a_mix, MetadatasetError, "strict needs a prepared", "mix.yaml' is not a prepared"),
        "join": (partial(get, written(tmp_path / "join.yaml", join)), MetadatasetError, "joined"),
        "parquet": (partial(get, tmp_path / "bad.parquet"), ShardError, "be read as Parquet"),
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "av", None)
    clips = files(tmp_path / "clips", ["a.mp4"], b"")
    rows["videos"] = (partial(get, clips), ConfigError, "pip install 'energize[av]'")
    if os.geteuid():
        (closed / "in").chmod(0)
        rows["closed"] = (
            partial(get, closed),
            DatasetError,
            "closed has folders that cannot be read: in",
        )
    check_refusals(rows)
