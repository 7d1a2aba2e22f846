"""The judge finds each thing that must not be: a fuzzer that could not fail would say nothing."""

from __future__ import annotations

import os
import shutil
import signal
import tarfile
import time

import pytest

from energize.data import tar, webdataset
from energize.errors import DataError, EnergizeError
from tests.fuzz.__main__ import main
from tests.fuzz.corpora import shards
from tests.fuzz.formats import Corpus, Format, Seen, everything, told
from tests.fuzz.fuzzing import FORMATS, Tally, chosen, fuzzed, shared_out, table
from tests.fuzz.hunting import Hunt
from tests.fuzz.judging import BAD, Outcome

TEXT = b"0123456789" * 3


def _crash(_):
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(_):
    time.sleep(60)


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
    "crash": (_crash, Outcome.CRASH),
    "hang": (_hang, Outcome.HANG),
    "reported": (lambda text: Seen((told(TEXT),), ("text.bin: bad",)), Outcome.SUBSTITUTE),
    "reported unnamed": (lambda text: Seen((told(TEXT),), ("bad",)), Outcome.UNNAMED),
    "reported, wrong too": (lambda text: Seen((told(text),), ("text.bin",)), Outcome.SILENT),
}


def _corpus(read):
    """A file, which is read as `read` says once it is damaged."""

    def reading(folder):
        text = (folder / "text.bin").read_bytes()
        return Seen((told(text),)) if text == TEXT else read(text)

    return Corpus("text", lambda folder: (folder / "text.bin").write_bytes(TEXT), reading)


@pytest.mark.parametrize("name", list(ENDINGS))
def test_every_ending_is_told_from_the_others(tmp_path, name):
    read, expected = ENDINGS[name]
    hangs = expected == Outcome.HANG
    hunt = Hunt(Format("text", _corpus(read), "text.bin"), tmp_path, seconds=1 if hangs else 60)
    count = 1 if hangs or name == "memory" else 2
    assert [each.outcome for each in hunt.verdicts(range(count))] == [expected] * count


def test_what_no_checksum_covers_and_what_has_another_meaning_is_told_apart(tmp_path):
    corpus = _corpus(lambda text: Seen((told(text),), (), str(text)))
    forms = {
        Outcome.PAYLOAD: Format("text", corpus, "*", unchecked=everything),
        Outcome.DESCRIPTION: Format("text", corpus, "*", describes=True),
        Outcome.SILENT: Format("text", corpus, "*", unchecked=lambda old, new: [(99, 100)]),
    }
    for expected, form in forms.items():
        assert {each.outcome for each in Hunt(form, tmp_path).verdicts(range(9))} == {expected}


def test_data_with_an_unchecked_fault_and_a_missed_one_are_silently_wrong(tmp_path):
    """That some of the damage could not be found excuses no more than what comes of it."""
    form = Format("text", _corpus(lambda text: Seen((told(text),))), "*",
                  unchecked=lambda old, new: [(0, 15)])  # fmt: skip
    hunt = Hunt(form, tmp_path)
    found = {}
    for verdict in hunt.verdicts(range(80)):
        mutant = hunt.mutant(verdict.number)
        if len(mutant.new) == len(TEXT):
            at = [n for n in range(len(TEXT)) if mutant.new[n] != TEXT[n]]
            found.setdefault(max(at) < 15, set()).add(verdict.outcome)
    assert found == {True: {Outcome.PAYLOAD}, False: {Outcome.SILENT}}


def test_headers_whose_checksums_nobody_compares_are_found(tmp_path, monkeypatch):
    (form,) = (each for each in shards.FORMATS if each.name == "tar of Energon")
    hunt = Hunt(form, tmp_path)
    assert not [each for each in hunt.verdicts(range(40)) if each.bad]
    monkeypatch.setattr(webdataset, "plain_header", lambda *_: None)
    monkeypatch.setattr(tar, "plain_header", lambda *_: None)
    monkeypatch.setattr(tarfile, "calc_chksums", lambda block: (tarfile.nti(block[148:156]),))
    found = {each.outcome for each in hunt.verdicts(range(40)) if each.bad}
    assert Outcome.SILENT in found


def test_a_corpus_that_cannot_be_read_is_no_success(tmp_path):
    corpus = Corpus("bad", _corpus(None).write, _raise(DataError("text.bin")))
    with pytest.raises(RuntimeError, match=r"undamaged corpus cannot be read(.|\n)*DataError"):
        list(Hunt(Format("bad", corpus, "*"), tmp_path).verdicts([0]))
    with pytest.raises(ValueError, match="no file of the corpus matches"):
        Hunt(Format("bad", corpus, "*.none"), tmp_path)


def test_failing_mutants_are_kept_with_what_repeats_them(tmp_path):
    form = Format("some text", _corpus(_raise(KeyError("x"))), "*")
    tally, bad = fuzzed(form, 3, tmp_path / "work", keep=tmp_path / "kept")
    assert (len(bad), tally.outcomes.total()) == (3, 3)
    text = (tmp_path / "kept" / "some-text-2" / "FAULT.txt").read_text()
    assert "FOREIGN ERROR: text.bin: " in text
    assert "python -m tests.fuzz --seed 0 --repeat 'some text:2'" in text
    kept = (tmp_path / "kept" / "some-text-2" / "text.bin").read_bytes()
    assert kept == Hunt(form, tmp_path / "again").mutant(2).new != TEXT
    assert "FOREIGN ERROR" in table({"some text": tally})
    shutil.rmtree(tmp_path)


def test_the_command_shows_a_table_and_reads_one_mutant_again(tmp_path, capsys, monkeypatch):
    keep = ["--keep", str(tmp_path / "kept")]
    assert main(["--mutants", "4", "--only", "shards.json", *keep]) == 0
    out = capsys.readouterr().out
    assert "together" in out
    assert "4 mutants, 0 failed" in out
    assert main(["--repeat", "shards.json:3"]) == 0
    assert "shards.json:3: .nv-meta/shards.json: " in capsys.readouterr().out
    assert main(["--repeat", "shards:3"]) == 2
    monkeypatch.setattr("tests.fuzz.judging.EnergizeError", KeyError)  # no error is ours now
    assert main(["--mutants", "4", "--only", "shards.json", *keep]) == 1
    assert "FOREIGN ERROR: shards.json:" in capsys.readouterr().out
    assert list((tmp_path / "kept").glob("shards.json-*/FAULT.txt"))


def test_mutants_are_shared_out_to_formats_of_different_names():
    assert len({form.name for form in FORMATS}) == len(FORMATS)
    for mutants in (1, 1000, 30_000):
        counts = shared_out(mutants, FORMATS)
        assert min(counts) > 0
        assert mutants <= sum(counts) <= mutants + len(FORMATS)
    assert [form.name for form in chosen(["tar.crc"])] == ["tar.crc"]
    assert Tally().outcomes.total() == 0
    assert set(BAD) < set(Outcome)
