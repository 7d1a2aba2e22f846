"""`python -m tests.fuzz`: reads damaged files of every format, and tells what became of
them."""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fuzz.corpora import commands, mixes, parts, rows, saved, shards
from tests.fuzz.formats import Format
from tests.fuzz.hunting import Hunt, Outcome, Verdict

FORMATS: Sequence[Format] = [
    *(*shards.FORMATS, *rows.FORMATS, *mixes.FORMATS, *saved.FORMATS),
    *(*parts.FORMATS, *commands.FORMATS),
]


def chosen(words: Sequence[str]) -> list[Format]:
    """The formats whose names have one of these words in them, all without words."""
    return [
        form
        for form in FORMATS
        if not words or any(word in form.name for word in words)
    ]


def fuzzed(
    mutants: int, forms: Sequence[Format], folder: Path, seed: int = 0
) -> Iterator[Verdict]:
    """What becomes of so many mutants, shared out to formats: fewer of those that take
    long."""
    whole = sum(1 / form.cost for form in forms)
    for form in forms:
        hunt = Hunt(form, folder, seed)
        yield from map(hunt.verdict, range(math.ceil(mutants / (whole * form.cost))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 where a mutant ended as none may."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--mutants", type=int, default=30_000, help="of all formats together"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="of format names"
    )
    parser.add_argument(
        "--repeat", metavar="FORMAT:NUMBER", help="read one mutant again"
    )
    asked = parser.parse_args(arguments)
    name, _, number = (asked.repeat or "").rpartition(":")
    repeated = [form for form in FORMATS if form.name == name]
    if asked.mutants < 1 or not chosen(asked.only) or (asked.repeat and not repeated):
        parser.error(
            f"there are no mutants to read; formats: {', '.join(f.name for f in FORMATS)}"
        )
    logging.disable(logging.CRITICAL)
    try:
        return _run(asked, repeated, number)
    finally:
        logging.disable(logging.NOTSET)


def _run(asked: argparse.Namespace, repeated: list[Format], number: str) -> int:
    found: dict[str, Counter[Outcome]] = {}
    # Names of equal length, so that the same seed gives the same mutants where files
    # hold paths.
    with tempfile.TemporaryDirectory(prefix="energize-fuzz-") as made:
        if asked.repeat:
            verdict = Hunt(repeated[0], Path(made), asked.seed).verdict(int(number))
            print(f"{verdict}\n{verdict.text}")
            return int(verdict.bad)
        for verdict in fuzzed(
            asked.mutants, chosen(asked.only), Path(made), asked.seed
        ):
            if verdict.form not in found:
                print(verdict.form, file=sys.stderr, flush=True)
            found.setdefault(verdict.form, Counter())[verdict.outcome] += 1
            if verdict.bad:
                print(verdict, flush=True)
    for form, outcomes in found.items():
        counts = ", ".join(
            f"{count} {each}" for each, count in sorted(outcomes.items())
        )
        print(f"{form:30} {counts}")
    whole = sum(found.values(), Counter())
    failed = sum(count for each, count in whole.items() if each.isupper())
    print(f"{whole.total():,} mutants, {failed} failed")
    if failed:
        print(
            f"python -m tests.fuzz --seed {asked.seed} --repeat FORMAT:NUMBER reads one again."
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
