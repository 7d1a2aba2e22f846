"""The judge finds each thing that must not be: a fuzzer that could not fail would say
nothing. And a short run of the fuzzer over all formats; `make fuzz` is the long one.
"""

from __future__ import annotations

import os
import random
import signal
import tarfile
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.data.tar import plain_header
from energize.errors import DataError, EnergizeError
from tests.fuzz.__main__ import chosen, fuzzed, main
from tests.fuzz.formats import Corpus, Format, Seen, everything, told
from tests.fuzz.hunting import Hunt, Outcome
from tests.fuzz.mutations import changed_bytes, mutated
from tests.support.shards import packed

pytestmark = pytest.mark.jobs  # they start processes, and wait for some

TEXT = b"0123456789" * 3


def _fill(text):
    held = bytearray(1300 * 1024 * 1024)
    held[::4096] = b"x" * len(held[::4096])
    return Seen((told(text),))


def _raise(error):
    def read(_):
        raise error

    return read


ENDINGS = {
    "wrong": (lambda text: Seen((told(text),)), Outcome.SILENT),
    "equal": (lambda text: Seen((told(TEXT),)), Outcome.EQUAL),
    "python's": (_raise(KeyError("x")), Outcome.FOREIGN),
    "exit": (_raise(SystemExit(1)), Outcome.FOREIGN),
    "ours": (_raise(EnergizeError("text.bin is damaged")), Outcome.OWN_ERROR),
    "unnamed": (_raise(EnergizeError("it is damaged")), Outcome.UNNAMED),
    "memory": (_fill, Outcome.MEMORY),
    "memory error": (_raise(MemoryError()), Outcome.MEMORY),
    "crash": (lambda _: os.kill(os.getpid(), signal.SIGSEGV), Outcome.CRASH),
    "hang": (lambda _: time.sleep(60), Outcome.HANG),
    "reported": (
        lambda text: Seen((told(TEXT),), ("text.bin: bad",)),
        Outcome.SUBSTITUTE,
    ),
    "reported unnamed": (lambda text: Seen((told(TEXT),), ("bad",)), Outcome.UNNAMED),
    "reported, wrong too": (
        lambda text: Seen((told(text),), ("text.bin",)),
        Outcome.SILENT,
    ),
}


def _corpus(read):
    """A file, which is read as `read` says once it is damaged."""

    def reading(folder):
        text = (folder / "text.bin").read_bytes()
        return Seen((told(text),)) if text == TEXT else read(text)

    return Corpus(
        "text", lambda folder: (folder / "text.bin").write_bytes(TEXT), reading
    )


@pytest.mark.parametrize("name", ENDINGS)
def test_every_ending_is_told_from_the_others(tmp_path, name):
    read, expected = ENDINGS[name]
    seconds = 1 if expected == Outcome.HANG else 60
    hunt = Hunt(Format("text", _corpus(read), "text.bin"), tmp_path, seconds=seconds)
    assert hunt.verdict(0).outcome == expected


def test_what_no_checksum_covers_and_what_has_another_meaning_is_told_apart(tmp_path):
    corpus = _corpus(lambda text: Seen((told(text),), (), str(text)))
    forms = {
        Outcome.PAYLOAD: Format("text", corpus, "*", unchecked=everything),
        Outcome.DESCRIPTION: Format("text", corpus, "*", describes=True),
        Outcome.SILENT: Format(
            "text", corpus, "*", unchecked=lambda old, new: [(99, 100)]
        ),
    }
    for expected, form in forms.items():
        hunt = Hunt(form, tmp_path)
        assert {hunt.verdict(number).outcome for number in range(9)} == {expected}


def test_data_with_an_unchecked_fault_and_a_missed_one_are_silently_wrong(tmp_path):
    """That some of the damage could not be found excuses no more than what comes of
    it."""
    corpus = _corpus(lambda text: Seen((told(text),)))
    hunt = Hunt(
        Format("text", corpus, "*", unchecked=lambda old, new: [(0, 15)]), tmp_path
    )
    found = {}
    for verdict in map(hunt.verdict, range(30)):
        mutant = verdict.mutant
        if len(mutant.new) == len(TEXT):
            last = max(changed_bytes(mutant.old, mutant.new))
            found.setdefault(last < 15, set()).add(verdict.outcome)
    assert found == {True: {Outcome.PAYLOAD}, False: {Outcome.SILENT}}


def test_a_corpus_that_cannot_be_read_is_no_success(tmp_path):
    corpus = Corpus("bad", _corpus(None).write, _raise(DataError("text.bin")))
    with pytest.raises(DataError):
        Hunt(Format("bad", corpus, "*"), tmp_path)
    with pytest.raises(ValueError, match="no file of the corpus matches"):
        Hunt(Format("bad", corpus, "*.none"), tmp_path)


def test_the_command_shows_a_table_and_reads_one_mutant_again(capsys, monkeypatch):
    assert main(["--mutants", "4", "--only", "shards.json"]) == 0
    assert "4 mutants, 0 failed" in capsys.readouterr().out
    assert main(["--repeat", "shards.json:3"]) == 0
    assert "shards.json:3: .nv-meta/shards.json: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--repeat", "shards:3"])
    monkeypatch.setattr(
        "tests.support.trying.EnergizeError", KeyError
    )  # no error is ours now
    assert main(["--mutants", "4", "--only", "shards.json"]) == 1
    shown = capsys.readouterr().out
    assert "FOREIGN ERROR: shards.json:" in shown
    assert "--repeat FORMAT:NUMBER reads one again" in shown


@given(st.binary(max_size=3000), st.integers(0, 999), st.booleans())
def test_bytes_are_other_ones_and_the_same_for_a_seed(data, seed, text):
    found = mutated(data, random.Random(seed), [b"other"], text=text)
    assert found == mutated(data, random.Random(seed), [b"other"], text=text)
    assert found[0] != data
    assert changed_bytes(data, found[0])


@pytest.mark.jobs
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutants", [50, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_damaged_file_is_read_without_a_word(tmp_path, mutants):
    found = list(fuzzed(mutants, chosen([]), tmp_path))
    assert not [str(each) for each in found if each.bad]
    outcomes = Counter((each.form, each.outcome) for each in found)
    for form in ("tar with checksums", "MDS hashed"):
        assert not outcomes[form, Outcome.PAYLOAD]


@pytest.mark.parametrize("seed", range(3))
def test_the_fast_way_of_reading_headers_finds_what_the_standard_library_finds(seed):
    """Or says nothing: on every damaged tar, as on sound ones."""
    files = [
        (f"{n:04d}.{part}", b"x" * n * 300) for n in range(4) for part in ("txt", "cls")
    ]
    whole = packed(files)[: 8 * 1024]
    rng, read = random.Random(seed), 0
    for _ in range(400):
        data, _ = mutated(whole, rng, [])
        for at in range(0, len(data) - 511, 512):
            found = plain_header(data, at)
            if found is not None:
                read += 1
                info = tarfile.TarInfo.frombuf(
                    data[at : at + 512], "utf-8", "surrogateescape"
                )
                assert found == (info.name, info.size)
                assert info.type == tarfile.REGTYPE
    assert read > 20
