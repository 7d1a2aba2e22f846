"""Lengths of samples: of tables by key, of typed samples, of images, and of loose data."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from energize import (
    CaptioningSample,
    ConversationSample,
    CrudeSample,
    TextSample,
    WebdatasetSource,
    convert,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from energize.data.jsonl import JsonlSource
from energize.errors import (
    ColumnError,
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    PrepareError,
)
from energize.experimental import measure_columns
from energize.packing import ImageTokenRule, image_tokens
from energize.preparation import prepare_columns
from energize.preparation.index import prepare_jsonl
from energize.preparation.tasks import JobPart
from energize.preparation.verify import check_folder
from tests.support.images import encoded, picture

RULE = ImageTokenRule("Qwen2VLProcessor", image_tokens.qwen_vl)


def texts(folder, keys, per_shard=3):
    rows = [{"__key__": key, "txt": f"word {key}"} for key in keys]
    write_shards(rows, folder, samples_per_shard=per_shard)
    prepare(folder, split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    return folder


def table(path, columns):
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.table(columns), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


@settings(max_examples=15, deadline=None)
@given(
    data=st.data(),
    count=st.integers(1, 12),
    suffix=st.sampled_from([".parquet", ".csv"]),
    has_default=st.booleans(),
)
def test_values_by_key_equal_those_of_a_dict(
    tmp_path_factory, data, count, suffix, has_default
):
    """Keys in any order; missing, repeated and further ones."""
    path = tmp_path_factory.mktemp("by_key")
    keys = [f"{number:03d}" for number in range(count)]
    folder = texts(path / "f", keys, per_shard=data.draw(st.integers(1, 5)))
    known = st.sampled_from([*keys, "x1", "x2", "x3", "x4"])
    rows = data.draw(st.lists(st.tuples(known, st.integers(1, 99)), min_size=1))
    names = [key for key, _ in rows]
    values = [value for _, value in rows]
    file = table(path / f"n{suffix}", {"tokens": values, "id": names})
    how = {"n": f"{file}:tokens:id"}
    expected = {key: value for key, value in rows if names.count(key) == 1}
    missing = [key for key in keys if key not in names]
    repeated = [key for key in keys if names.count(key) > 1]
    options = {"defaults": {"n": 7}} if has_default else {}
    tasks = {"tasks": 2} if data.draw(st.booleans()) else {}
    if not expected.keys() & {*keys}:
        with pytest.raises(PrepareError, match="Correct the measure"):
            prepare_columns(folder, how, workers=1, **options, **tasks)
        return
    if (missing or repeated) and not has_default:
        with pytest.raises(PrepareError, match=r"--column-default n=0") as error:
            prepare_columns(folder, how, workers=1, **options, **tasks)
        text = str(error.value)
        assert f"{len(missing) + len(repeated)} of {count} samples" in text
        for reason, of in (("missing in", missing), ("in several rows", repeated)):
            assert (reason in text) == bool(of)
            assert all(repr(key) in text for key in of[:3])
        return
    report = prepare_columns(folder, how, workers=1, **options, **tasks)
    column = WebdatasetSource(folder).column("n").values.tolist()
    assert column == [expected.get(key, 7) for key in keys]
    unused = [*dict.fromkeys(name for name in names if name not in keys)]
    notes = [note for note in report.notes if "are of no sample" in note]
    assert len(notes) == bool(unused)
    assert all(f"n': {len(unused)} keys" in note for note in notes)
    assert all(repr(unused[0]) in note for note in notes)


def test_tables_of_all_forms_and_their_refusals(tmp_path):
    folder = texts(tmp_path / "f", ["7", "8", "9"])
    lines = tmp_path / "n.jsonl"
    rows = [{"__key__": str(key), "n": key, "w": "ab"[key % 2]} for key in (9, 7, 8)]
    lines.write_text("\n".join(map(json.dumps, rows)))
    whole = table(tmp_path / "n.parquet", {"key": [9, 7, 8], "n": [9.5, 7, 8]})
    report = prepare_columns(
        folder, {"a": f"{lines}:n", "w": f"{lines}:w", "b": f"{whole}:n"}, workers=2
    )
    assert report.notes == ()
    source = WebdatasetSource(folder)
    assert source.column("a").values.tolist() == [7, 8, 9]
    assert source.column("b").values.tolist() == [7, 8, 9.5]
    assert source.column("w").categories == ("a", "b")
    assert check_folder(folder, workers=1).faults == ()
    nulls = table(tmp_path / "x.parquet", {"id": ["7", "8"], "n": [None, 3]})
    delimited = table(tmp_path / "x.csv", {"key": ["7"], "n": [3]})
    mixed = tmp_path / "m.jsonl"
    mixed.write_text(
        '{"key": "7", "n": 1}\n{"key": "8", "n": "a"}\n{"key": "9", "n": 0}\n'
    )
    for how, error, match in (
        (f"{nulls}:n", ConfigError, "no column __key__ or key with"),
        (f"{nulls}:n:idd", ConfigError, "no column 'idd'; did you mean 'id'"),
        (f"{nulls}:m:id", ConfigError, "no column 'm'"),
        (f"{nulls}:n:id", PrepareError, "2 of 3 .*key is missing.*value is null"),
        (f"{nulls}:id:n", PrepareError, "row 0: keys must be words or whole"),
        (f"{mixed}:n", PrepareError, "all samples have numbers, or all have words"),
        (f"{delimited}:m", ConfigError, r"Its columns are 'key', 'n'$"),
        (f"{tmp_path}/none.csv:n", DatasetNotFoundError, "does not exist"),
    ):
        with pytest.raises(error, match=f"(?s){match}"):
            prepare_columns(folder, {"x": how}, workers=1)
    filled = prepare_columns(
        folder, {"x": f"{nulls}:n:id"}, defaults={"x": 5}, workers=1
    )
    assert filled.columns["x"].values.tolist() == [5, 3, 5]


def test_a_changed_table_is_read_again_by_tasks(tmp_path):
    folder = texts(tmp_path / "f", ["a", "b", "c", "d"], per_shard=1)
    file = table(tmp_path / "n.parquet", {"key": [*"abcd"], "n": [1, 2, 3, 4]})
    how = {"n": f"{file}:n"}
    for task in (0, 1):
        prepare_columns(folder, how, workers=1, tasks=2, task=task)
    table(file, {"key": [*"abcd"], "n": [5, 2, 3, 4]})
    with pytest.raises(PrepareError, match="ran with others than now: 'sources'"):
        prepare_columns(folder, how, workers=1, tasks=2, merge=True)
    prepare_columns(folder, how, workers=1, tasks=2)
    assert WebdatasetSource(folder).column("n").values.tolist() == [5, 2, 3, 4]


def test_lengths_are_whole_and_above_0(tmp_path):
    folder = texts(tmp_path / "f", ["a", "b", "c", "d"])
    file = table(
        tmp_path / "n.parquet", {"key": [*"abcd"], "n": [3, 0, -2, 5], "x": [1.5] * 4}
    )
    for how in (f"{file}:n", lambda raw: {"b": 0, "c": -2}.get(raw["__key__"], 3)):
        with pytest.raises(PrepareError, match=r"2 of 4 .*whole number above 0.*'c'"):
            prepare_columns(folder, {"n": how}, lengths=["n"], workers=1)
        report = prepare_columns(
            folder, {"n": how}, lengths=["n"], defaults={"n": 9}, workers=1
        )
        assert report.columns["n"].values.tolist()[1:3] == [9, 9]
        assert "2 of 4 samples have no value and were given 9" in report.notes[0]
    with pytest.raises(PrepareError, match="4 of 4 samples"):
        prepare_columns(folder, {"x": f"{file}:x"}, lengths=["x"], workers=1)
    with pytest.raises(ConfigError, match="a length is set for 'm'"):
        prepare_columns(folder, {"n": "size:txt"}, lengths=["m"], workers=1)


class Words:
    """Counts words; built once in each process."""

    built = 0

    def __init__(self):
        Words.built += 1

    def __call__(self, sample: TextSample) -> int:
        return len(sample.text.split())


def of_caption(sample: CaptioningSample) -> int:
    return len(sample.caption)


def of_crude(sample: CrudeSample) -> str:
    return sample["txt"]


def unresolved(sample: Nowhere) -> int:  # noqa: F821
    return 1


def no_call(raw) -> int:
    raise KeyError(raw["__key__"])


class NoCall:
    pass


def test_functions_of_typed_samples(tmp_path):
    folder = texts(tmp_path / "f", ["a", "b", "c"], per_shard=1)
    Words.built = 0
    report = prepare_columns(folder, {"n": Words, "w": of_crude}, workers=1)
    assert report.columns["n"].values.tolist() == [2, 2, 2]
    assert report.columns["w"].categories == ("word a", "word b", "word c")
    assert Words.built == 1
    assert (
        prepare_columns(folder, {"n": Words()}, workers=2).columns["n"].values[0] == 2
    )
    for how, error, match in (
        (of_caption, ConfigError, "takes a CaptioningSample, but .* are TextSample"),
        (unresolved, ConfigError, "'Nowhere' is not defined"),
        (NoCall, ConfigError, "NoCall has no __call__"),
        (no_call, PrepareError, "sample 'a': it raised KeyError: 'a'"),
    ):
        with pytest.raises(error, match=match):
            prepare_columns(folder, {"n": how}, workers=1)
    new = tmp_path / "g"
    write_shards([{"__key__": "a", "txt": "a"}], new)
    with pytest.raises(ConfigError, match="the folder has to be prepared first"):
        prepare(new, split_ratios={"train": 1}, columns={"n": Words}, workers=1)
    options = {"split_ratios": {"train": 1}, "workers": 1}
    prepare(new, columns={"n": "size:txt"}, lengths=["n"], **options)
    with pytest.raises(ConfigError, match=r"takes a TextSample, but .*dataset.yaml"):
        prepare_columns(new, {"n": Words}, workers=1)


def turned(width, height):
    """A photo that is turned by its EXIF data."""
    image = Image.new("RGB", (width, height))
    exif = image.getexif()
    exif[0x0112] = 6
    import io

    with io.BytesIO() as stream:
        image.save(stream, "JPEG", exif=exif)
        return stream.getvalue()


def talks(folder, counts, sizes):
    """Conversations with as many images as `counts` says."""
    (folder / "images").mkdir(parents=True)
    lines = []
    at = iter(sizes)
    for number, count in enumerate(counts):
        names = [f"images/{number}_{image}.png" for image in range(count)]
        for name in names:
            (folder / name).write_bytes(encoded(picture(*next(at)), "PNG"))
        text = "<image>" * count + "what ?"
        turns = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "a b c" + " d" * number},
        ]
        lines.append(
            json.dumps({"id": f"t{number}", "images": names, "messages": turns})
        )
    (folder / "talks.jsonl").write_text("\n".join(lines))
    return folder


def words_of_talk(sample: ConversationSample) -> int:
    return sum(len(turn.text.split()) for turn in sample.turns)


COUNTS = [0, 8, 1, 3, 0, 2]
SIZES = [(30 + 17 * number, 200 - 11 * number) for number in range(sum(COUNTS))]


def expected_tokens(rule=RULE):
    at = iter(SIZES)
    return [rule.of_sample([next(at) for _ in range(count)]) for count in COUNTS]


def test_image_tokens_of_conversations_with_0_to_8_images(tmp_path):
    folder = talks(tmp_path / "talks", COUNTS, SIZES)
    columns = {"vision": RULE, "images": "image:count", "words": words_of_talk}
    report = measure_columns(folder, columns, job=JobPart(workers=2))
    assert report.notes == (
        "column 'images' replaces the field 'images' of the rows as a column",
    )
    expected = expected_tokens()
    assert expected[0] == 0
    assert report.columns["vision"].values.tolist() == expected
    assert report.columns["images"].values.tolist() == COUNTS
    dataset = get_train_dataset(folder, batch_size=None)
    source = dataset.sources[0]
    assert {"vision", "images", "words"} <= {*source.column_names}
    assert source.column("vision").values.tolist() == expected
    samples = [dataset[k] for k in range(len(COUNTS))]
    counted = sorted(words_of_talk(sample) for sample in samples)
    assert sorted(source.column("words").values.tolist()) == counted
    shards = tmp_path / "shards"
    convert(folder, shards, workers=1)
    assert WebdatasetSource(shards).column("vision").values.tolist() == expected
    prepare_columns(shards, {"again": RULE}, workers=1)
    assert WebdatasetSource(shards).column("again").values.tolist() == expected
    assert check_folder(shards, workers=1).faults == ()


def test_turned_photos_have_the_size_that_a_run_reads(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(turned(60, 20))
    (folder / "b.jpg").write_bytes(encoded(picture(60, 20), "JPEG"))
    columns = {"w": "image:width", "h": "image:height", "p": "image:pixels"}
    report = measure_columns(folder, columns, job=JobPart(workers=1))
    assert report.columns["w"].values.tolist() == [20, 60]
    assert report.columns["h"].values.tolist() == [60, 20]
    [sample] = [
        sample
        for sample in get_val_dataset(folder, split_part="train", batch_size=None)
        if sample.__key__ == "a"
    ]
    assert sample.image.shape[-2:] == (60, 20)


def test_header_only(tmp_path, monkeypatch):
    folder = talks(tmp_path / "talks", COUNTS, SIZES)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    report = measure_columns(
        folder, {"vision": RULE, "w": "image:count"}, job=JobPart(workers=1)
    )
    assert report.columns["vision"].values.tolist() == expected_tokens()


ROWS = [{"text": "a " * (number % 5 + 1), "n": number} for number in range(23)]


def rows_in(path, rows=ROWS):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        table(path, {name: [row[name] for row in rows] for name in rows[0]})
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


def words_of(sample: TextSample) -> int:
    return len(sample.text.split())


@pytest.mark.parametrize(
    "name", ["t.jsonl", "t.parquet", "t.csv", "f/t.jsonl", "f/t.csv"]
)
def test_columns_of_loose_data_are_read_back_and_refused_when_rows_change(
    tmp_path, name, monkeypatch
):
    monkeypatch.setattr("energize.inference.measuring._SAMPLES", 4)
    file = rows_in(tmp_path / "data" / name)
    path = file.parent if "/" in name else file
    for options in ({"workers": 2}, {"workers": 1, "tasks": 3}):
        report = measure_columns(path, {"words": words_of}, job=JobPart(**options))
        assert report.samples == len(ROWS)
        source = get_train_dataset(path, batch_size=None).sources[0]
        expected = [number % 5 + 1 for number in range(23)]
        assert source.column("words").values.tolist() == expected
        assert source.column("n").values.tolist() == [*range(23)]
    measure_columns(path, {"bytes": "size:json"}, job=JobPart(workers=1))
    moved = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "data", moved)
    copied = moved / path.relative_to(tmp_path / "data")
    source = get_train_dataset(copied, batch_size=None).sources[0]
    assert source.column("words").values.tolist() == expected
    assert len(source.column("bytes")) == 23
    with pytest.raises(ColumnError, match=r"energize prepare .* --column wordz=HOW"):
        source.column("wordz")
    assert len(source.column("n")) == 23
    for rows in (ROWS[:-1], [*ROWS[:-1], {"text": "b b b b b", "n": 22}]):
        rows_in(file, rows)
        source = get_train_dataset(path, batch_size=None).sources[0]
        with pytest.raises(DatasetError, match=r"other rows .* --column words="):
            source.column("words")
        assert len(source.column("n")) == len(rows)
    measure_columns(path, {"words": words_of}, job=JobPart(workers=1))
    source = get_train_dataset(path, batch_size=None).sources[0]
    assert source.column("words").values.tolist() == [*expected[:-1], 5]
    assert "bytes" not in source.column_names
    stray = [entry for entry in path.parent.rglob("*.npy") if "columns" in str(entry)]
    assert len(stray) == 1


def test_columns_of_split_parts_and_of_an_indexed_file(tmp_path):
    folder = tmp_path / "f"
    rows_in(folder / "train.jsonl")
    rows_in(folder / "val.jsonl", ROWS[:3])
    keys = [f"{number:06d}" for number in range(23)]
    values = [*range(100, 123)]
    file = table(tmp_path / "n.parquet", {"key": keys[::-1], "v": values[::-1]})
    measure_columns(
        folder, {"words": words_of, "v": f"{file}:v"}, job=JobPart(workers=1)
    )
    train = get_train_dataset(folder, batch_size=None).sources[0]
    val = get_val_dataset(folder, batch_size=None).sources[0]
    assert train.column("words").values.tolist() == [k % 5 + 1 for k in range(23)]
    assert val.column("words").values.tolist() == [1, 2, 3]
    assert train.column("v").values.tolist() == values
    assert val.column("v").values.tolist() == values[:3]
    path = rows_in(tmp_path / "x.jsonl")
    prepare_jsonl(path)
    measure_columns(path, {"size": "len:json[text]"}, job=JobPart(workers=1))
    source = JsonlSource(path)
    assert source.column("size").values.tolist() == [2 * (k % 5 + 1) for k in range(23)]
    assert source.replace(window=(2, 5)).column("size").values.tolist() == [6, 8, 10]
    rows_in(path, [*ROWS[:-1], {"text": "b", "n": 0}])
    prepare_jsonl(path)
    with pytest.raises(DatasetError, match="other rows"):
        JsonlSource(path).column("size")


def test_loose_samples_that_cannot_be_read_and_tars(tmp_path):
    folder = talks(tmp_path / "talks", COUNTS, SIZES)
    os.remove(folder / "images/3_1.png")
    with pytest.raises(PrepareError, match=r"1 of 6 samples have no value.*3_1.png"):
        measure_columns(folder, {"vision": RULE}, job=JobPart(workers=1))
    report = measure_columns(
        folder, {"vision": RULE}, defaults={"vision": 0}, job=JobPart(workers=1)
    )
    assert report.columns["vision"].values[3] == 0
    shards = tmp_path / "tars"
    write_shards([{"__key__": "a", "txt": "a"}], shards)
    with pytest.raises(DatasetError, match="energize prepare"):
        measure_columns(shards, {"n": "size:txt"}, job=JobPart(workers=1))
    prepare(shards, split_ratios={"train": 1}, workers=1)
    assert (
        measure_columns(shards, {"n": "size:txt"}, job=JobPart(workers=1)).samples == 1
    )


def test_columns_of_another_version_of_a_prepared_folder_are_refused(tmp_path):
    folder = texts(tmp_path / "f", [*"abcdef"])
    prepare_columns(folder, {"n": "size:txt"}, workers=1)
    [first, *_] = sorted(folder.glob("*.tar"))
    first.unlink()
    options = {"split_ratios": {"train": 1}, "overwrite": True, "workers": 1}
    columns = folder / ".nv-meta" / "columns"
    kept = {file: file.read_bytes() for file in columns.iterdir()}
    prepare(folder, **options)
    columns.mkdir(exist_ok=True)
    for file, data in kept.items():
        file.write_bytes(data)
    with pytest.raises(
        DatasetError, match=r"do not match the current shards.*--column"
    ):
        WebdatasetSource(folder).column("n")


@pytest.mark.jobs
def test_the_command_with_a_processor(tmp_path):
    """A tokenizer in processes, a table, and the rule of a saved processor."""
    transformers = pytest.importorskip("transformers")
    from tests.support.processors import tokenizer

    folder = talks(tmp_path / "talks", COUNTS, SIZES)
    processor = transformers.LlavaProcessor(
        transformers.SiglipImageProcessorPil(size={"height": 24, "width": 16}),
        tokenizer(None),
        patch_size=4,
        vision_feature_select_strategy="full",
    )
    processor.save_pretrained(tmp_path / "llava")
    (tmp_path / "tools.py").write_text(
        textwrap.dedent(
            """
            import transformers
            from energize import ConversationSample
            from energize.packing import image_token_rule

            FOLDER = "llava"

            class Tokens:
                def __init__(self):
                    self.tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)

                def __call__(self, sample: ConversationSample) -> int:
                    texts = [turn.text for turn in sample.turns]
                    ids = self.tokenizer(texts)["input_ids"]
                    return sum(map(len, ids))

            rule = image_token_rule(transformers.AutoProcessor.from_pretrained(FOLDER))
            """
        )
    )
    table(tmp_path / "lengths.csv", {"key": ["t0", "t1"], "tokens": [4, 5]})
    command = [sys.executable, "-m", "energize", "prepare", str(folder)]
    options = [
        *("--length", "tokens=tools.py:Tokens"),
        *("--column", "vision=tools.py:rule"),
        *("--column", "same=image:tokens:llava"),
        *("--num-workers", "2", "--tasks", "2"),
    ]
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["", *sys.path])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    source = get_train_dataset(folder, batch_size=None).sources[0]
    expected = [24 * count for count in COUNTS]
    assert source.column("vision").values.tolist() == expected
    assert source.column("same").values.tolist() == expected
    made = tokenizer(None)
    lines = [json.loads(line) for line in (folder / "talks.jsonl").open()]
    tokens = [
        sum(len(made(turn["content"])["input_ids"]) for turn in line["messages"])
        for line in lines
    ]
    assert source.column("tokens").values.tolist() == tokens
    assert np.all(source.column("tokens").values > 0)


def test_a_default_of_a_length_is_a_length(tmp_path):
    folder = texts(tmp_path / "f", ["a", "b", "c"], per_shard=3)
    how = {"n": f"{table(tmp_path / 'n.csv', {'id': ['a'], 'n': [4]})}:n:id"}
    with pytest.raises(PrepareError, match="--column-default n=1, or"):
        prepare_columns(folder, how, lengths=["n"], workers=1)
    for default in (0, "-2", 1.5):
        with pytest.raises(ConfigError, match="must be a whole number above 0"):
            prepare_columns(
                folder, how, lengths=["n"], defaults={"n": default}, workers=1
            )
    prepare_columns(folder, how, lengths=["n"], defaults={"n": 1}, workers=1)
    assert WebdatasetSource(folder).column("n").values.tolist() == [4, 1, 1]
