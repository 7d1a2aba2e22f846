"""State files that nobody would have written: an error of ours that names the file, at once."""

from __future__ import annotations

import json
import os
import pickle
import resource
import time
import zipfile

import pytest
import torch
from typer.testing import CliRunner

from energize.cli.main import app
from energize.cli.state import read_states
from energize.errors import StateError
from tests.support.states import evens, mixed, resealed, saved

DEEP = '{"a":' * 50_000 + "1" + "}" * 50_000


@pytest.fixture(scope="module")
def state():
    return saved(mixed((evens(), 1), (evens(20, 100), 2)), 9, lanes=2)


def as_json(content):
    return json.dumps(content).encode()


FILES = {
    "nothing": lambda state: b"",
    "a brace": lambda state: b"{",
    "cut off": lambda state: as_json(state)[:-9],
    "deep": lambda state: DEEP.encode(),
    "deep beside it": lambda state: as_json(state)[:-1] + b',"more":' + DEEP.encode() + b"}",
    "digits": lambda state: b'{"version": ' + b"9" * 10**6 + b"}",
    "no UTF-8": lambda state: b'{"version": "\xff\xfe"}',
    "surrogates": lambda state: as_json(state | {"fingerprint": "\ud800\x00"}),
    "NaN": lambda state: as_json(state | {"version": float("nan")}),
    "version in digits": lambda state: as_json(state | {"version": 10**3000}),
    "a list": lambda state: b"[[[[[[]]]]]]",
    "another field": lambda state: as_json(state | {"more": 1}),
    "no check value": lambda state: as_json({n: v for n, v in state.items() if n != "check"}),
    "a number changed": lambda state: as_json(state).replace(b'"position\\":9', b'"position\\":8'),
    "a config that is none": lambda state: as_json(resealed(state, config='{"form":"full"}')),
    "a place that is none": lambda state: as_json(resealed(state, cursor='{"position":"x"}')),
    "places that are none": lambda state: as_json(
        resealed(state, cursor='{"position":1,"places":{"a":"[/b]"}}')
    ),
    "lanes without end": lambda state: as_json(
        resealed(state, cursor='{"lanes":1000000000,"position":1}')
    ),
    "a pickle": lambda state: pickle.dumps({"state": range(3)}),
    "an old pickle": lambda state: pickle.dumps(state, protocol=0)[:-5],
    "a zip": lambda state: b"PK\x03\x04" + b"\x00" * 99,
    "a tar": lambda state: b"x" * 2048,
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_none(what, state, tmp_path):
    file = tmp_path / "step.json"
    file.write_bytes(FILES[what](state))
    for command in (["state", "show", file], ["state", "diff", file, file], ["report", file]):
        done = CliRunner().invoke(app, [str(each) for each in command])
        assert isinstance(done.exception, SystemExit), (command, done.exception)
        assert done.exit_code in (1, 2), done.output
        assert "Error: " in done.stderr
        assert "step.json" in done.stderr


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StateError, match=r"pipe\.pt cannot be read: .*named pipe"):
        read_states([tmp_path / "pipe.pt"])
    with pytest.raises(StateError, match=r"folder\.pt has no files that end in"):
        read_states([tmp_path / "folder.pt"])
    with pytest.raises(StateError, match="cannot be read"):
        read_states([tmp_path])


def test_nothing_is_unpacked_that_is_too_large(state, tmp_path):
    """A zip of a few kilobytes that would be gigabytes, and a text of a hundred megabytes."""
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", b"\x00" * 2**26)
    large = tmp_path / "large.json"
    with large.open("wb") as out:
        out.write(b'{"version": 4, "dataset": "')
        out.truncate(2**28)
    torch.save(state | {"cursor": "9" * 2**26}, tmp_path / "texts.pt")
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for name, words in (
        ("bomb.pt", "is compressed, and no file of torch.save"),
        ("large.json", "core.limits.JSON_BYTES"),
        ("texts.pt", "core.limits.JSON_BYTES"),
    ):
        with pytest.raises(StateError, match=words):
            read_states([tmp_path / name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB
    assert time.process_time() - began < 5
