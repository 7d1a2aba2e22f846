"""The shares of tokens that a mix of short and long texts has, by samples and by
tokens.

    python -m benchmarks.token_shares [--energon PYTHON] [--texts 20000]

Three folders of texts of log-normal lengths, whose medians lie ten-fold apart, are to
have one half, three tenths and two tenths of all tokens. They are read as they come,
and packed, by Megatron-Energon, whose weights count samples, and by energize by
samples, by tokens that the index knows (`unit: tokens`), and by tokens as texts have
them when they are encoded (`unit: {field: tokens}`). `off` is how far the share of a
folder is from the one that was asked for, at most; `worst` the same in the worst prefix
after the first 1,000 texts. `us/text` is CPU time after the first item, `first` how
many seconds it takes the loader to give that. `--energon` is the interpreter of an
environment that has Megatron-Energon.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.comparing import OWN, failure, run_module
from energize import prepare, write_shards
from energize.preparation import prepare_columns

__all__ = ["Mixed", "folders", "main", "mixed", "text_lengths"]

_PEER = "megatron.energon"
MEDIANS = {"a": 400, "b": 40, "c": 126}
"""Tokens of a text, by the letter that it is made of."""

ASKED = {"a": 0.5, "b": 0.3, "c": 0.2}
_CAPACITY = 4096
_BUFFER = 200
_BEGINNING = 1000

UNITS = {
    "samples": "",
    "tokens, index": "unit: tokens",
    "tokens, encoded": "unit: {field: tokens}",
}
"""What shares count, and the line of the metadataset that says so."""


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Tokens of each folder in what came."""

    library: str
    unit: str
    packed: bool
    texts: int
    shares: tuple[float, ...]
    off: float
    worst: float
    microseconds: float
    first_after: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write it to the JSON file when one is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--texts", type=int, default=20_000, help="how many are read")
    parser.add_argument(
        "--folder", type=int, default=5_000, help="texts of each folder"
    )
    parser.add_argument(
        "--energon", help="the Python interpreter that has Megatron-Energon"
    )
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args(arguments)
    asked = ", ".join(f"{share:g}" for share in ASKED.values())
    print(
        f"asked: {asked} of tokens; medians of {', '.join(map(str, MEDIANS.values()))} "
        "tokens\n"
    )
    print(f"{'library':<17} {'unit':<16} {'packed':<7}", end="")
    print(f"{'shares':<25} {'off':>8} {'worst':>8} {'us/text':>8} {'first':>6}")
    found = []
    for each in mixed(options.texts, options.folder, options.energon):
        found.append(each)
        shares = ", ".join(f"{share:.5f}" for share in each.shares)
        print(
            f"{each.library:<17} {each.unit:<16} {'yes' if each.packed else 'no':<7}",
            end="",
        )
        print(f"{shares:<25} {each.off:>8.5f} {each.worst:>8.5f} ", end="")
        print(f"{each.microseconds:>8.1f} {each.first_after:>6.2f}")
    if options.json:
        options.json.write_text(json.dumps(list(map(asdict, found)), indent=1) + "\n")


def mixed(texts: int, per_folder: int, energon: str | None) -> Iterator[Mixed]:
    """What came of each way to mix the folders, as texts and as packs."""
    ways = [(OWN, sys.executable, unit) for unit in UNITS]
    if energon:
        ways.insert(0, (_PEER, energon, "samples"))
    with tempfile.TemporaryDirectory() as folder:
        folders(Path(folder), per_folder)
        for buffer in (0, _BUFFER):
            for library, python, unit in ways:
                path = str(_metadataset(Path(folder), unit))
                more = str(texts), str(_CAPACITY), str(buffer)
                done = run_module(
                    python, "benchmarks.programs.token_shares", library, path, *more
                )
                if done.returncode:
                    raise failure(done)
                yield _mixed(
                    library,
                    unit,
                    bool(buffer),
                    json.loads(done.stdout.splitlines()[-1]),
                )


def text_lengths(letter: str, count: int) -> list[int]:
    """Lengths in tokens, from 1 to below the capacity of a pack."""
    drawn = np.random.default_rng(ord(letter)).lognormal(
        np.log(MEDIANS[letter]), 0.7, count
    )
    lengths: list[int] = np.clip(drawn, 1, _CAPACITY - 1).astype(int).tolist()
    return lengths


def folders(root: Path, count: int) -> None:
    """A prepared folder for each letter, with a column of tokens."""
    for letter in MEDIANS:
        lengths = text_lengths(letter, count)
        texts = (
            {"__key__": f"{i:06d}", "txt": letter * n} for i, n in enumerate(lengths)
        )
        write_shards(texts, root / letter, samples_per_shard=-(-count // 4))
        prepare(
            root / letter,
            split_ratios={"train": 1},
            sample_type="TextSample",
            field_map={"text": "txt"},
        )
        prepare_columns(root / letter, {"tokens": "size:txt"})


def _metadataset(root: Path, unit: str) -> Path:
    """A file that mixes the folders, in words of Megatron-Energon but for the unit."""
    path = root / f"{unit.replace(', ', '-')}.yaml"
    module = "energize" if UNITS[unit] else _PEER
    lines = [f"__module__: {module}", "__class__: MetadatasetV2", "splits:", "  train:"]
    lines += [f"    {UNITS[unit]}"] if UNITS[unit] else []
    lines += ["    blend:"]
    lines += [
        f"      - {{path: {letter}, weight: {share}}}"
        for letter, share in ASKED.items()
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def _mixed(library: str, unit: str, packed: bool, found: dict[str, Any]) -> Mixed:
    came = np.array(found["came"], dtype=np.float64)
    shares = came[:, 1:] / came[:, 1:].sum(axis=1, keepdims=True)
    off = np.abs(shares - list(ASKED.values())).max(axis=1)
    later = came[:, 0] >= _BEGINNING
    return Mixed(
        library=library,
        unit=unit,
        packed=packed,
        texts=int(came[-1, 0]),
        shares=tuple(shares[-1].tolist()),
        off=float(off[-1]),
        worst=float(off[later].max()),
        microseconds=1e6 / found["texts_per_second"],
        first_after=found["first_after"],
    )


if __name__ == "__main__":
    main()
