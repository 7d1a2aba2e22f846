"""`python -m tests.fuzz`: reads damaged files of every format, and tells what became of them."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.fuzzing import FORMATS, Tally, chosen, fuzzed, shared_out, table
from tests.fuzz.hunting import Hunt, Verdict

_SHOWN = 3
"""Failing mutants of a format that are shown."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 where a mutant ended as none may."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mutants", type=int, default=30_000, help="of all formats together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="of format names")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), metavar="FOLDER")
    parser.add_argument("--repeat", metavar="FORMAT:NUMBER", help="read one mutant again")
    asked = parser.parse_args(arguments)
    if asked.mutants < 1 or not chosen(asked.only):
        parser.error("there are no mutants to read")
    # Names of equal length, so that the same seed gives the same mutants where files hold paths.
    with tempfile.TemporaryDirectory(prefix="energize-fuzz-") as folder:
        if asked.repeat:
            return _repeat(asked.repeat, asked.seed, Path(folder))
        return _fuzz(asked, Path(folder))


def _fuzz(asked: argparse.Namespace, folder: Path) -> int:
    begun = time.perf_counter()
    forms = chosen(asked.only)
    tallies: dict[str, Tally] = {}
    done = failed = 0

    for form, mutants in zip(forms, shared_out(asked.mutants, forms), strict=True):
        progress = _Progress(f"{done:,} of {asked.mutants:,} mutants, {failed} failed; {form.name}")
        try:
            tally, bad = fuzzed(
                form, mutants, folder, asked.seed, keep=asked.keep, on_progress=progress
            )
        except RuntimeError as error:  # of this format; others may be read all the same
            print(f"\r{error}", flush=True)
            failed += 1
            continue
        except KeyboardInterrupt:
            print(f"\rstopped; {form.name} and those after it are not in the table")
            break
        tallies[form.name] = tally
        done += tally.outcomes.total()
        failed += len(bad)
        for verdict in bad[:_SHOWN]:
            print(f"\r{_line(verdict)}", flush=True)
    seconds = time.perf_counter() - begun
    print(f"\r{table(tallies)}\n\n{done:,} mutants, {failed} failed, {seconds:.0f} s")
    if failed:
        print(f"They lie in {asked.keep}, each with the command that reads it again.")
    return int(failed > 0)


class _Progress:
    """A line at a terminal that changes, and elsewhere one for each format."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._changes = sys.stderr.isatty()
        if not self._changes:
            print(text, file=sys.stderr, flush=True)

    def __call__(self, done: int) -> None:
        if self._changes and done % 20 == 0:
            text = f"{self._text} {done:,}"
            print(f"\r{text:<90}", end="", file=sys.stderr, flush=True)


def _repeat(which: str, seed: int, folder: Path) -> int:
    name, _, number = which.rpartition(":")
    form = next((each for each in FORMATS if each.name == name), None)
    if form is None or not number.isdigit():
        print(f"{which!r} is no FORMAT:NUMBER; formats: {', '.join(f.name for f in FORMATS)}")
        return 2
    (verdict,) = Hunt(form, folder, seed).verdicts([int(number)])
    print(f"{_line(verdict)}\n{verdict.text}")
    return int(verdict.bad)


def _line(verdict: Verdict) -> str:
    what = f"{verdict.outcome}: {verdict.form}:{verdict.number}: {verdict.file}"
    return f"{what}: {verdict.change[:200]}: {verdict.text[:200]}"


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # both show what there is so far
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
