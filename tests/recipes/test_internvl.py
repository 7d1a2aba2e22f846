"""InternVL's and Eagle's JSON: shares of an epoch, against the rules of their loaders."""

from __future__ import annotations

import json
import logging
from collections import Counter
from math import sqrt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energize import get_train_dataset
from energize.data import fetching
from energize.errors import DatasetNotFoundError, MetadatasetError
from tests.recipes.files import Answers, annotations, answers, epoch

ROWS = {"ai2d": 20, "dvqa": 31, "geoqa+": 12}


@pytest.fixture
def meta(tmp_path):
    """Return a function that writes meta.json with a repeat_time of each dataset."""
    rows = {}
    for name, count in ROWS.items():
        images = tmp_path / "data" / name
        rows[name] = annotations(tmp_path / f"{name}.jsonl", count, images=images)

    def write(times, **keys):
        entries = {
            name: {
                "root": f"{tmp_path}/data/{name}/",
                "annotation": f"{tmp_path}/{name}.jsonl",
                "data_augment": False,
                "repeat_time": time,
                "length": ROWS[name],
                **keys,
            }
            for name, time in times.items()
        }
        file = tmp_path / "meta.json"
        file.write_text(json.dumps(entries, indent="\t"))
        return file, rows

    return write


def read(file, **options):
    return get_train_dataset(file, batch_size=1, task_encoder=Answers(), **options)


def lines_of(rows, time):
    """Return the lines that InternVL's loader keeps: `raw_data` in its words."""
    if time < 1:
        return rows[: int(len(rows) * time)]
    if time > 1:
        assert isinstance(time, int)
        return rows * time
    return rows


@pytest.mark.parametrize("times", [(1, 1.0, 1), (2, 0.5, 1), (0.15, 3, 0.34)])
def test_an_epoch_has_the_lines_that_internvl_keeps(meta, times):
    chosen = dict(zip(ROWS, times, strict=True))
    file, rows = meta(chosen)
    expected = sorted(
        answer
        for name, time in chosen.items()
        for answer in answers(lines_of(rows[name], time))
    )
    assert epoch(read(file), len(expected)) == expected


def test_resampling_draws_by_the_root_of_the_lengths(meta):
    file, rows = meta({"ai2d": 2, "dvqa": 0.5, "geoqa+": 1})
    dataset = read(file, recipe={"use_data_resampling": True})
    lengths = {
        "ai2d": len(lines_of(rows["ai2d"], 2)),
        "dvqa": len(lines_of(rows["dvqa"], 0.5)),
        "geoqa+": len(lines_of(rows["geoqa+"], 1)),
    }
    whole = sum(map(sqrt, lengths.values()))
    counts = Counter(answer.split()[0] for answer in epoch(dataset, 1000))
    for name, length in lengths.items():
        assert abs(counts[name] - 1000 * sqrt(length) / whole) < 2


def test_eagle_draws_a_part_by_key(meta, caplog):
    file, rows = meta({"ai2d": 1, "dvqa": 0.5}, weight=1, modality=["image"])
    with caplog.at_level(logging.INFO, "energize"):
        got = epoch(read(file), 35)
    parts = Counter(answer.split()[0] for answer in got)
    assert parts == {"ai2d": 20, "dvqa": int(31 * 0.5)}
    drawn = [answer for answer in got if answer.startswith("dvqa")]
    assert drawn != sorted(answers(rows["dvqa"][:15]))
    assert epoch(read(file), 35) == got
    assert "by the seed 10086" in caplog.text
    assert "weight is not read by Eagle's loader" in caplog.text


@pytest.mark.parametrize(
    ("time", "message"),
    [(1.5, "must be a whole number, got 1.5"), (0, "above 0"), (0.01, "none of 20")],
)
def test_other_repeat_times_are_faults(meta, time, message):
    file, _ = meta({"ai2d": time})
    with pytest.raises(MetadatasetError, match=message) as raised:
        read(file)
    assert "meta.json:6 (ai2d.repeat_time)" in str(raised.value)


def test_a_cluster_of_petrel_is_a_fault(meta):
    file, _ = meta({"ai2d": 1})
    entries = json.loads(file.read_text())
    entries["ai2d"]["root"] = "pnorm2:s3://data/ai2d/"
    file.write_text(json.dumps(entries, indent="\t"))
    with pytest.raises(MetadatasetError, match="the cluster 'pnorm2'") as raised:
        read(file)
    assert "meta.json:3 (ai2d.root)" in str(raised.value)
    assert "Write s3://data/ai2d/, and set AWS_ENDPOINT_URL" in str(raised.value)
    assert "InternVL reads it with the client of Petrel" in str(raised.value)


def test_images_are_read_from_a_store(meta, tmp_path):
    pytest.importorskip("fsspec")
    file, rows = meta({"ai2d": 1})
    for image in (tmp_path / "data" / "ai2d").iterdir():
        fetching.write(f"memory://data/ai2d/{image.name}", image.read_bytes())
    entries = json.loads(file.read_text())
    entries["ai2d"]["root"] = "memory://data/ai2d/"
    file.write_text(json.dumps(entries))
    assert epoch(read(file), 20) == sorted(answers(rows["ai2d"]))


def test_a_set_of_texts_may_have_no_root(tmp_path):
    row = eagle_row(0, [])
    (tmp_path / "texts.jsonl").write_text(json.dumps(row))
    entry = {"root": None, "annotation": f"{tmp_path}/texts.jsonl", "repeat_time": 1}
    (tmp_path / "meta.json").write_text(json.dumps({"texts": entry}))
    assert epoch(read(tmp_path / "meta.json"), 1) == ["eagle 0"]


def test_two_entries_of_one_name_are_a_fault(meta):
    file, _ = meta({"ai2d": 1})
    text = file.read_text()
    file.write_text(text[: text.rindex("}")] + "," + text[text.index("{") + 1 :])
    with pytest.raises(MetadatasetError, match="the key 'ai2d' is given twice"):
        read(file)


def test_two_recipes_of_one_name_are_a_fault(meta, tmp_path):
    first, _ = meta({"ai2d": 1})
    second = first.with_name("second.json")
    second.write_text(first.read_text())
    mix = [{"path": str(first), "weight": 1}, {"path": str(second), "weight": 1}]
    with pytest.raises(MetadatasetError, match="both have the name 'ai2d'") as raised:
        read(mix)
    assert "meta.json:4" in str(raised.value)
    assert "second.json:4" in str(raised.value)


def test_a_missing_annotation_file_is_named(meta, tmp_path):
    file, _ = meta({"ai2d": 1})
    (tmp_path / "ai2d.jsonl").unlink()
    with pytest.raises(
        DatasetNotFoundError, match="InternVL stops here, too"
    ) as raised:
        read(file)
    assert "meta.json:4 (ai2d.annotation)" in str(raised.value)


def eagle_row(number, images):
    """Return a row of Eagle with as many images, and the row that prepare.sh makes."""
    places = "".join(f"<image-{1 + image}>" for image in range(len(images)))
    answer = {"from": "gpt", "value": f"eagle {number}"}
    data = [{"type": "image", "image_list": images}] if images else []
    question = {"from": "human", "value": f"{places}What is this?"}
    return {"conversations": [question, answer], "data": data}


def prepared(row, root):
    """Return the row that Eagle's `prepare.sh` writes into Parquet."""
    images = [f"{root}/{name}" for media in row["data"] for name in media["image_list"]]
    question, answer = row["conversations"]
    text = question["value"]
    for number in range(1, len(images) + 1):
        tag = f"<image {number}>" if len(images) > 1 else ""
        text = text.replace(f"<image-{number}>", f"{tag}<frame-{number}>\n")
    turns = [{"from": "human", "value": text}, answer]
    return {
        "data": json.dumps([row["data"]]),
        "unified_frame_list": json.dumps(images),
        "num_tiles_list": json.dumps([1] * len(images)),
        "num_all_tiles": len(images),
        "label_length": 3,
        "length": 10 + 256 * len(images),
        "conversations": json.dumps(turns),
    }


class Conversations(Answers):
    """Batches are the answer, the number of images, and the number of places."""

    def batch(self, samples):
        return [
            (
                sample.turns[-1].text,
                len(sample.images),
                sample.turns[0].text.count("<image>"),
            )
            for sample in samples
        ]


def test_eagle_rows_have_their_images_and_length_columns(tmp_path):
    images = tmp_path / "images"
    annotations(tmp_path / "made.jsonl", 9, images=images)
    rows = [
        eagle_row(number, [f"made_{image}.jpg" for image in range(number % 3)])
        for number in range(9)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = pa.Table.from_pylist([prepared(row, images) for row in rows])
    pq.write_table(table, tmp_path / "rows.parquet", compression="zstd")
    expected = sorted((f"eagle {n}", n % 3, n % 3) for n in range(9))
    for name in ("rows.jsonl", "rows.parquet"):
        entry = {"annotation": f"{tmp_path}/{name}", "root": str(images), "weight": 1}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"eagle": entry}))
        dataset = get_train_dataset(file, batch_size=1, task_encoder=Conversations())
        assert epoch(dataset, 9) == expected
    [source] = dataset.sources
    lengths = [10 + 256 * (number % 3) for number in range(9)]
    assert source.column("length").values.tolist() == lengths
