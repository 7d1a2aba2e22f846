"""Writing new shards: what stands in them, and that nothing stays when something is wrong."""

import io
import json
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from energize import WebdatasetSource, write_shards
from energize.errors import ConfigError, PrepareError
from energize.preparation import prepare
from tests.support.tars import contents

PIXELS = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


def texts(count):
    return [{"__key__": f"{number:04d}", "txt": f"text {number}"} for number in range(count)]


def encoded(image, kind):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def members(shard):
    with tarfile.open(shard) as tar:
        return tar.getnames()


def source(folder):
    prepare(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)
    return WebdatasetSource(folder)


def test_parts_are_bytes_text_images_and_json(tmp_path):
    image = Image.fromarray(PIXELS)
    jpeg = encoded(image, "JPEG")
    parts = {
        "jpg": jpeg,
        "png": image,
        "seg.png": PIXELS[..., 0],
        "txt": "größer",
        "json": {"boxes": [[1, 2], [3, 4]]},
        "cls": 7,
        "bin": memoryview(b"\x00\x01"),
        "_note": object(),
    }
    write_shards([{"__key__": "a"} | parts], tmp_path / "ds")
    found = source(tmp_path / "ds")[0]
    assert found["__key__"] == "a"
    assert found["jpg"] == jpeg
    assert found["txt"].decode() == "größer"
    assert json.loads(found["json"]) == parts["json"]
    assert (found["cls"], found["bin"]) == (b"7", b"\x00\x01")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found["png"]))), PIXELS)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found["seg.png"]))), PIXELS[..., 0])
    assert "_note" not in found


@given(count=st.integers(1, 30), per_shard=st.integers(1, 12))
@settings(max_examples=30)
def test_every_sample_is_in_one_shard_in_its_order(tmp_path_factory, count, per_shard):
    folder = tmp_path_factory.mktemp("shards") / "50%d new"
    shards = write_shards(iter(texts(count)), folder, samples_per_shard=per_shard)
    assert shards == sorted(folder.iterdir())
    sizes = [len(members(shard)) for shard in shards]
    assert sizes[:-1] == [per_shard] * (count // per_shard - (count % per_shard == 0))
    assert 1 <= sizes[-1] <= per_shard
    found = source(folder)
    assert [found[i]["txt"].decode() for i in range(count)] == [f"text {i}" for i in range(count)]


def test_webdataset_reads_the_same_samples(tmp_path):
    shards = write_shards(texts(5), tmp_path / "ds", samples_per_shard=2)
    found = webdataset.WebDataset([str(shard) for shard in shards], shardshuffle=False)
    assert [(each["__key__"], each["txt"].decode()) for each in found] == [
        (each["__key__"], each["txt"]) for each in texts(5)
    ]


def test_the_same_samples_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_shards(texts(5), tmp_path / name, samples_per_shard=2, pattern="%02d.tar")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert list(contents(tmp_path / "one")) == ["00.tar", "01.tar", "02.tar"]


def test_keys_of_any_length_and_script(tmp_path):
    keys = ["k" * 300, "写真", "a b", "%s"]
    write_shards([{"__key__": key, "txt": key} for key in keys], tmp_path / "ds")
    found = source(tmp_path / "ds")
    assert [found[i]["__key__"] for i in range(4)] == keys
    assert [found[i]["txt"].decode() for i in range(4)] == keys


WRONG = {
    "no key": ({"txt": "x"}, r"sample 1: '__key__' is a text .*got None, beside txt"),
    "a number as key": ({"__key__": 3, "txt": "x"}, r"sample 1: '__key__' is a text .*got 3"),
    "an empty key": ({"__key__": "", "txt": "x"}, r"sample 1: '__key__' is a text .*got ''"),
    "a key that was there": ({"__key__": "0000", "txt": "x"}, "sample 1: its key '0000' occurs"),
    "a dot in a key": ({"__key__": "v1.5", "txt": "x"}, "'v1.5' holds a dot.*write '_'"),
    "a slash in a key": ({"__key__": "a/b", "txt": "x"}, "'a/b' holds a dot, a slash"),
    "a line end in a key": ({"__key__": "a\n", "txt": "x"}, "holds .* what cannot be printed"),
    "no dict": (("b", "x"), "sample 1 is a dict .*got tuple"),
    "no parts": ({"__key__": "b", "__url__": "x"}, "sample 1, 'b' has no parts"),
    "a part that is a path": ({"__key__": "b", "a/b": b""}, "sample 1, 'b': .*got 'a/b'"),
    "the path of an image": ({"__key__": "b", "jpg": "b.jpg"}, "'jpg' is the text 'b.jpg'; give"),
    "an object": ({"__key__": "b", "jpg": object()}, "sample 1, 'b': part 'jpg', object, cannot"),
    "no handler": ({"__key__": "b", "xyz": 5}, "part 'xyz', int, .*no handler found for xyz"),
    "a set as JSON": ({"__key__": "b", "json": {"a": {1}}}, "part 'json', dict, .*serializable"),
    "pixels with alpha": ({"__key__": "b", "jpg": Image.new("RGBA", (2, 2))}, "RGBA as JPEG"),
}


@pytest.mark.parametrize("there", [False, True], ids=["new folder", "empty folder"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_samples_are_named_and_leave_nothing(tmp_path, case, there):
    wrong, message = WRONG[case]
    if there:
        (tmp_path / "ds").mkdir()
    with pytest.raises(PrepareError, match=message):
        write_shards([*texts(1), wrong], tmp_path / "ds", samples_per_shard=1)
    assert [path.name for path in tmp_path.rglob("*")] == ["ds"] * there


def test_an_error_of_the_samples_stays_what_it_is(tmp_path):
    def failing():
        yield from texts(3)
        open(tmp_path / "missing.jpg")  # noqa: SIM115

    with pytest.raises(FileNotFoundError, match=r"missing\.jpg"):
        write_shards(failing(), tmp_path / "ds", samples_per_shard=2)
    assert not list(tmp_path.iterdir())


def test_no_samples(tmp_path):
    with pytest.raises(PrepareError, match="there are no samples"):
        write_shards([], tmp_path / "ds")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["shard-000000.tar", "a.tar.tmp", "notes.txt"])
def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(PrepareError, match=f"not empty: there is {name}"):
        write_shards(texts(2), tmp_path)
    assert contents(tmp_path) == {name: b"mine"}


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "ds").write_text("mine")
    with pytest.raises(PrepareError, match="ds cannot be written: File exists"):
        write_shards(texts(2), tmp_path / "ds")
    assert contents(tmp_path) == {"ds": b"mine"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples_per_shard": 0}, "samples_per_shard is a whole number, 1 or more; got 0"),
        ({"pattern": "shard.tar"}, "pattern names a shard by its number"),
        ({"pattern": "%d.zip"}, r"ends with \.tar.*got '%d\.zip'"),
        ({"pattern": "a/%d.tar"}, "got 'a/%d.tar'"),
        ({"pattern": "%d-%d.tar"}, "got '%d-%d.tar'"),
    ],
)
def test_wrong_parameters(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        write_shards(texts(2), tmp_path / "ds", **options)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_a_path(tmp_path):
    with pytest.raises(ConfigError, match="comes after the samples; got a list"):
        write_shards(str(tmp_path), texts(2))


def run_writing(
    folder, setup="", samples="({'__key__': str(i), 'bin': bytes(999)} for i in range(99))"
):
    script = (
        "import os, resource, signal, sys, time\nfrom energize import write_shards\n"
        f"{setup}\nwrite_shards({samples}, {str(folder)!r}, samples_per_shard=10)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("limit", [0, 20_479], ids="{} bytes".format)
def test_a_full_disk(tmp_path, limit):
    # A limit on file sizes makes writing fail as a full disk does.
    process = run_writing(
        tmp_path / "ds",
        f"import webdataset; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))",
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "PrepareError" in errors.splitlines()[-1]
    assert "shard-000000.tar" in errors.splitlines()[-1]
    assert "cannot be written: File too large" in errors.splitlines()[-1]
    assert not list(tmp_path.iterdir())


WAITING = (
    "def waiting():\n"
    "    for i in range(20):\n"
    "        yield {'__key__': str(i), 'txt': 'x'}\n"
    "    print('waiting', flush=True)\n"
    "    sys.stdin.read()\n"
)


def test_a_killed_process_leaves_no_shard_and_frees_the_folder(tmp_path):
    process = run_writing(tmp_path / "ds", WAITING, "waiting()")
    assert process.stdout.readline() == "waiting\n"
    with pytest.raises(PrepareError, match="by another process"):
        write_shards(texts(2), tmp_path / "ds")
    process.kill()
    process.communicate(timeout=60)
    left = list((tmp_path / "ds").iterdir())
    assert left
    assert all(path.suffix == ".tmp" for path in left)
    write_shards(texts(2), tmp_path / "ds")
    assert [path.name for path in (tmp_path / "ds").iterdir()] == ["shard-000000.tar"]


def test_an_interrupt_leaves_nothing(tmp_path):
    process = run_writing(tmp_path / "ds", WAITING, "waiting()")
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(2)
    process.communicate(timeout=60)
    assert process.returncode == -2
    assert not list(tmp_path.iterdir())
