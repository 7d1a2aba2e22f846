"""Writing new shards: what stands in them, and that nothing stays when something is
wrong."""

import re
import resource
import subprocess
import sys
from functools import partial

import pytest
from PIL import Image

from energize import prepare, write_shards
from energize.errors import ConfigError, PrepareError
from energize.preparation import prepare_columns
from tests.support.refusals import check_refusals
from tests.support.tars import contents
from tests.support.trying import tried


def texts(count):
    return [
        {"__key__": f"{number:04d}", "txt": f"text {number}"} for number in range(count)
    ]


WRONG = (
    ({"txt": "x"}, "sample 1: '__key__' is .*got None, beside 'txt'"),
    ({"__key__": "0000", "txt": "x"}, "sample 1: its key '0000' occurs"),
    ({"__key__": "v1.5", "txt": "x"}, "'v1.5' has a dot.*Use '_'"),
    (("b", "x"), "sample 1 is a tuple"),
    ({"__key__": "b", "__url__": "x"}, "sample 1, 'b' has no parts"),
    ({"__key__": "b", "a/b": b""}, "sample 1, 'b': .*got 'a/b'"),
    ({"__key__": "b", "jpg": "b.jpg"}, "'jpg' is the text 'b.jpg'. Pass"),
    ({"__key__": "b", "xyz": 5}, "part 'xyz', int, .*no handler found for xyz"),
    ({"__key__": "b", "jpg": Image.new("RGBA", (2, 2))}, "RGBA as JPEG"),
)


def test_wrong_samples_are_named_and_leave_nothing(tmp_path):
    for there in (False, True):
        if there:
            (tmp_path / "ds").mkdir()
        for wrong, message in WRONG:
            with pytest.raises(PrepareError, match=message):
                write_shards([*texts(1), wrong], tmp_path / "ds", samples_per_shard=1)
            assert [path.name for path in tmp_path.rglob("*")] == ["ds"] * there, (
                message
            )
        with pytest.raises(PrepareError, match="no samples to write"):
            write_shards([], tmp_path / "ds")

    def failing():
        yield from texts(3)
        open(tmp_path / "missing.jpg")  # noqa: SIM115

    with pytest.raises(FileNotFoundError, match=r"missing\.jpg"):
        write_shards(failing(), tmp_path / "new", samples_per_shard=2)
    assert [path.name for path in tmp_path.rglob("*")] == ["ds"]


def test_wrong_folders_and_parameters(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    new = partial(write_shards, texts(2), tmp_path / "ds")
    check_refusals(ConfigError, {
        "full": (partial(write_shards, texts(2), tmp_path), PrepareError, "it has notes.txt"),
        "file": (partial(write_shards, texts(2), tmp_path / "notes.txt"), PrepareError, "exists"),
        "count": (partial(new, samples_per_shard=0), "must be a whole number >= 1, got 0"),
        "one name": (partial(new, pattern="shard.tar"), "pattern must have the number of the shard"),
        "folder": (partial(new, pattern="a/%d.tar"), "got 'a/%d.tar'"),
    })  # fmt: skip
    assert contents(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.jobs
def test_a_full_disk(tmp_path):
    samples = [{"__key__": str(i), "bin": bytes(999)} for i in range(99)]

    def written(limit):  # a limit on file sizes makes writing fail as a full disk does
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return write_shards(samples, tmp_path / "ds", samples_per_shard=10)

    for limit in (0, 20_479):
        told = tried(partial(written, limit)).message
        assert "shard-000000.tar: cannot be written (File too large" in told
        assert not list(tmp_path.iterdir())
    write_shards(({"__key__": str(i), "txt": ""} for i in range(3000)), tmp_path / "ds")
    prepare(tmp_path / "ds", split_ratios={"train": 1}, sqlite=False, workers=1)

    def measured():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        return prepare_columns(tmp_path / "ds", {"n": "size:txt"}, workers=1)

    assert re.search(
        r"n\.\w+\.npy: cannot be written \(File too large", tried(measured).message
    )


WAITING = """
import sys
from energize import prepare, write_shards
from energize.preparation import prepare_columns

def waiting():
    for i in range(20):
        yield {"__key__": str(i), "txt": "x"}
    print("waiting", flush=True)
    sys.stdin.read()

write_shards(waiting(), sys.argv[1], samples_per_shard=10)
"""


def waiting_process(folder):
    command = [sys.executable, "-c", WAITING, str(folder)]
    piped = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, text=True, **piped)
    assert process.stdout.readline() == "waiting\n"
    return process


@pytest.mark.jobs
@pytest.mark.parametrize("number", [2, 15, 9], ids=["interrupt", "terminate", "kill"])
def test_a_process_that_ends_leaves_no_shard_and_frees_the_folder(tmp_path, number):
    process = waiting_process(tmp_path / "ds")
    with pytest.raises(PrepareError, match="by another process"):
        write_shards(texts(2), tmp_path / "ds")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode in (-number, 128 + number)
    left = {path.suffix for path in tmp_path.rglob("*")}
    assert left == ({"", ".tmp"} if number == 9 else set())
    write_shards(texts(2), tmp_path / "ds")
    assert [path.name for path in (tmp_path / "ds").iterdir()] == ["shard-000000.tar"]
