"""Limits: raised by name, told by name, and written down."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import energize
from energize import (
    BatchDataset,
    ConfigError,
    DataError,
    EnergizeError,
    ListSource,
    concat_pad,
    generic_batch,
    get_loader,
)
from energize.core import limits
from energize.core.checks import check_processes
from energize.data.mds import unpacked
from energize.data.nv_meta import expand
from energize.encoders import batch_pad_stack, batch_stack, generic_concat
from energize.errors import DecodeError, ShardError
from energize.preparation.workers import map_in_order
from energize.sources import JsonSource, ParquetSource
from tests.support.loading import loader_of
from tests.support.refusals import check_refusals
from tests.support.rows import write_lines, write_parquet

ROOT = Path(__file__).parent.parent
SIZES = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def written(number):
    count, _, unit = number.replace(",", "").partition(" ")
    return int(count) * SIZES[unit] if unit else int(count)


def test_the_page_names_every_limit_and_an_error_says_how_to_raise_it(monkeypatch):
    page = (ROOT / "docs" / "limits.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert {name for name, _ in rows} == {
        name
        for name, value in vars(limits).items()
        if name[0] != "_" and type(value) is int
    }
    for name, number in rows:
        assert getattr(limits, name) == written(number.strip()), name
        assert f"energize.core.limits.{name}" in limits.over(name)
        monkeypatch.setattr(limits, name, 7)
        assert "more than 7." in limits.over(name)


def test_limits_are_those_that_a_program_sets(monkeypatch):
    monkeypatch.setattr(limits, "NAMES", 10)
    assert len(expand(["{0..9}"])) == 10
    with pytest.raises(ValueError, match="too many names, more than 10"):
        expand(["{0..9}", "{0..1}"])
    monkeypatch.setattr(limits, "BATCH_ITEMS", 3)
    assert len(BatchDataset(ListSource("abcd"), 3, list)[0]) == 3
    with pytest.raises(
        ConfigError, match="batch_size: a batch has too many items, 4, more than 3"
    ):
        BatchDataset(ListSource("abcd"), 4, list)


def test_no_more_processes_are_started_than_cores_can_serve(monkeypatch):
    """Where too many would begin, nothing begins."""
    most, told = (
        limits.PROCESSES * os.cpu_count(),
        "too many processes for a core, 17, more than",
    )
    with pytest.raises(
        ConfigError, match=f"num_workers={most + 1} on a machine of .*: .*{told}"
    ):
        next(iter(get_loader(ListSource("abc"), num_workers=most + 1)))
    with pytest.raises(ConfigError, match=r"^workers=1000000 .*PROCESSES"):
        next(map_in_order(str, range(10**6), 10**6))
    monkeypatch.setattr(limits, "PROCESSES", 10**6)
    check_processes(10**6, "workers")


def test_what_few_bytes_are_decoded_to_is_counted_before_it_is_made(
    tmp_path, monkeypatch
):
    write_parquet(tmp_path / "rows.parquet", [{"n": 0}] * 20_000)
    write_parquet(tmp_path / "words.parquet", [{"text": "x" * 1000}] * 1000)
    lines = write_lines(tmp_path / "lines.jsonl", [{"a": [[]] * 1000}])
    packed = zlib.compress(bytes(200_000))
    monkeypatch.setattr(limits, "DECODED_BYTES", 100_000)
    over = "too large when it is decoded, in bytes, "
    row = np.zeros(1, dtype=np.int64)
    check_refusals({
        "rows": (lambda: ParquetSource(tmp_path / "rows.parquet")[0], ShardError, over),
        "words": (lambda: ParquetSource(tmp_path / "words.parquet")[0], ShardError, over),
        "a shard": (lambda: unpacked(packed, "gz", 200_000, "x"), ShardError, f"{over}200000"),
        "a line": (lambda: _raised(JsonSource(lines).read(row)), DataError, over),
    })  # fmt: skip


def test_what_a_batch_takes_is_counted_before_it_is_made(monkeypatch):
    """All its tensors together, padded, whatever joins them; a batch too large ends the
    run."""
    monkeypatch.setattr(limits, "BATCH_BYTES", 250_000)
    one, many = torch.zeros(1), torch.zeros(30_000)
    over, twice = (
        "a batch has too many bytes, padded, ",
        {"a": many[:25_000], "b": many[:25_000]},
    )
    dataset = BatchDataset(ListSource([twice] * 8), 2, generic_batch)
    check_refusals({
        "padding": (lambda: batch_pad_stack([one, many, one]), DecodeError, f"{over}360000"),
        "stacked": (lambda: batch_stack([many] * 3), DecodeError, f"{over}360000"),
        "joined": (lambda: concat_pad([many, many, many]), DecodeError, f"{over}360000"),
        "fields": (lambda: generic_batch([twice] * 2), DecodeError, f"{over}400000"),
        "batches": (lambda: generic_concat([twice] * 2), DecodeError, f"{over}400000"),
        "a run": (lambda: next(iter(loader_of(dataset))), DecodeError, f"{over}400000"),
    })  # fmt: skip
    assert len(batch_pad_stack([many] * 2)) == 2
    assert (
        len(
            next(iter(loader_of(BatchDataset(ListSource([twice]), 1, generic_batch))))[
                "a"
            ]
        )
        == 1
    )


def _raised(items):
    raise items[0].reason


def test_messages_cannot_act_on_terminals():
    for letters in ("\x1b[31m", "\x9b2J", "\u202e", "\udcff"):
        seen = ascii(letters)[1:-1]
        assert str(EnergizeError(f"key {letters}\n\tat x")) == f"key {seen}\n\tat x"


def test_messages_have_an_end():
    assert len(str(DataError("x" * 10**7))) <= 30_000
    assert len(str(DataError("x " * 10**7))) <= 30_000
    assert len(str(DataError("\x00 " * 10**6))) <= 30_000
    assert str(DataError("a" * 10**6 + " tail")).endswith("a tail")
    again = DataError(str(DataError("\x1b" * 5000)))
    assert str(DataError(str(again))) == str(again)


def patterns():
    """All patterns of regular expressions in the library, with where they stand."""
    for file in sorted(Path(energize.__file__).parent.rglob("*.py")):
        if file.parts[-2:] == ("energon", "factories.py"):
            continue  # Energon's own, there for programs that import them: no name is given to them
        for found in re.finditer(
            r're\.(?:compile|fullmatch)\(\s*r?b?"((?:[^"\\]|\\.)*)"', file.read_text()
        ):
            yield pytest.param(found[1], id=f"{file.stem}-{found[1][:30]}")


@pytest.mark.parametrize("pattern", list(patterns()))
def test_no_pattern_takes_for_ever(pattern):
    """Each against long texts that nearly fit: the time has to grow with the length
    alone."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        pytest.skip("made of several pieces")
    units = [
        "1",
        "a",
        " ",
        "1_",
        "[a]",
        "a.",
        "a ",
        ".",
        "-",
        "/",
        "${",
        "\\",
        "1:",
        "..",
        "'",
    ]
    for unit in units:
        for end in ("", "!", "[", "x", "\n"):
            for match in (compiled.fullmatch, compiled.match):
                match(unit * 10_000 + end)
