"""Files that others read: never written through a link, never half of them under their
names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from functools import partial

import pytest

from energize.data.writing import NewFiles, remove_leftovers, write_new
from energize.errors import ConfigError, PrepareError
from tests.support.refusals import check_refusals
from tests.support.tars import unprepared

TOKEN = "0123456789abcdef"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def written(paths, then):
    with NewFiles(PrepareError) as files:
        for path in paths:
            files.write(path, b"new")
        then(files)


def test_files_get_their_names_together_or_none(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text("old")
    with pytest.raises(PrepareError, match=r"b: cannot be written \(Is a directory"):
        written([tmp_path / "c", tmp_path / "b"], NewFiles.commit)
    assert names(tmp_path) == ["a", "b"]
    with pytest.raises(ZeroDivisionError):
        written([tmp_path / "a"], lambda files: 1 / 0)
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "old"
    written([tmp_path / "a", tmp_path / "c"], partial(NewFiles.commit, mode=0o640))
    assert [(tmp_path / name).read_text() for name in "ac"] == ["new", "new"]
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o640


def test_only_what_writers_left_is_removed(tmp_path):
    others = [
        "a.tmp",
        "a.energize-0.tmp",
        f"energize-{TOKEN}.tmp",
        f"a.energize-{TOKEN}",
    ]
    for name in [*others, f"a.energize-{TOKEN}.tmp", f"b.energize-{TOKEN}.tmp"]:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, of=tmp_path / "b")
    assert names(tmp_path) == sorted([*others, f"a.energize-{TOKEN}.tmp"])
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted(others)


def test_devices_and_pipes_are_written_to(tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(os.devnull)
    write_new(link, b"x", ConfigError)
    assert link.is_symlink()
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_new(pipe, b"hello", ConfigError)
    reader.join()
    assert got == [b"hello"]
    assert names(tmp_path) == ["link", "pipe"]


def test_what_is_wrong_is_told(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").symlink_to("/dev/full")
    rows = {
        "no/folder/a": ("No such file", "correct the path"),
        "file/a": ("Not a directory", "is a file"),
        "folder": ("Is a directory",),
        "x" * 240: ("name too long",),
        "a\0b": ("NUL",),
        "full": ("No space left", "Make room"),
    }
    check_refusals(None, {
        name: (partial(write_new, tmp_path / name, b"x", ConfigError), ConfigError,
               str(tmp_path), *told)
        for name, told in rows.items()
    })  # fmt: skip
    assert names(tmp_path) == ["file", "folder", "full"]


LOGGED = """
import json, os, sys
from energize.preparation import prepare
log = []
def logged(name):
    call = getattr(os, name)
    def with_log(*args, **kwargs):
        paths = [os.readlink(f"/proc/self/fd/{p}") if isinstance(p, int) else str(p) for p in args]
        log.append([name, *paths])
        return call(*args, **kwargs)
    setattr(os, name, with_log)
for name in ("fsync", "replace", "unlink"):
    logged(name)
for _ in range(2):
    del log[:]
    prepare(sys.argv[1], split_ratios={"train": 1}, workers=1, sqlite=True, overwrite=True)
print(json.dumps(log))
"""


def test_files_are_on_the_disk_before_they_get_names_and_the_last_one_last(tmp_path):
    folder = unprepared(tmp_path / "ds")
    ran = subprocess.run(
        [sys.executable, "-c", LOGGED, folder],
        capture_output=True,
        text=True,
        check=True,
    )
    log = [tuple(each) for each in json.loads(ran.stdout)]
    renamed = [call for call in log if call[0] == "replace"]
    finals = [final.removeprefix(f"{folder}/") for _, _, final in renamed]
    assert finals[-1] == ".nv-meta/.info.json"
    assert {"parts/d0.tar.idx", ".nv-meta/index.sqlite", ".nv-meta/split.yaml"} <= set(
        finals
    )
    first = log.index(renamed[0])
    for _, made, _ in renamed:
        assert log.index(("fsync", made)) < first
    meta, parts = str(folder / ".nv-meta"), str(folder / "parts")
    gone = log.index(("unlink", f"{meta}/.info.json"))
    assert gone < log.index(("fsync", meta)) < first
    last = log.index(renamed[-1])
    between = log[log.index(renamed[-2]) + 1 : last]
    assert {("fsync", meta), ("fsync", parts)} == set(between)
    assert log[last + 1] == ("fsync", meta)
