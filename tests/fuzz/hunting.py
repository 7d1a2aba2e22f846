"""Reads mutants in processes that may hang, crash or eat memory, and judges them."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from energize.core.limits import load_json, load_yaml
from energize.errors import EnergizeError
from tests.fuzz.formats import Corpus, Format, Seen
from tests.fuzz.judging import (
    BAD,
    MOST_MEMORY,
    Mutant,
    Outcome,
    judged,
    unchecked_damage,
)
from tests.fuzz.mutations import BINARY, TEXT, mutated
from tests.fuzz.trees import mutated_tree

SECONDS = 10.0
"""How long a mutant may take. One that takes longer is read once more, alone."""

_ADDRESSES = 6 * 1024**3
"""Bytes of addresses that a process may have beside those it began with."""

_BEGIN = 20
"""Letters that are left of a long path in messages, at least."""

_PARSERS: dict[str, Any] = {"json": load_json, "yaml": load_yaml}


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, the seconds and the bytes of memory that it took."""

    form: str
    number: int
    outcome: Outcome
    file: str
    change: str
    text: str
    seconds: float
    memory: int

    @property
    def bad(self) -> bool:
        """Whether it must not be."""
        return self.outcome in BAD


class Hunt:
    """The mutants of one format: the same ones for the same seed and corpus.

    `folder` is where the corpus is written, and copies of it are damaged.
    """

    def __init__(self, form: Format, folder: Path, seed: int = 0, seconds: float = SECONDS) -> None:
        self.form = form
        self.base = folder / "base" / form.corpus.name
        self.work = folder / "work"
        self._seed = seed
        self._seconds = seconds
        _written(form.corpus, self.base)
        self._files = {
            str(path.relative_to(self.base)): path.read_bytes()
            for path in sorted(self.base.rglob("*"))
            if path.is_file()
        }
        self._targets = sorted(
            str(path.relative_to(self.base)) for path in self.base.glob(form.files)
        )
        if not self._targets:
            raise ValueError(f"{form.name}: no file of the corpus matches {form.files}")

    def mutant(self, number: int) -> Mutant:
        """The mutant of this number."""
        rng = random.Random(f"{self._seed}/{self.form.name}/{number}")
        file = rng.choice(self._targets)
        old = self._files[file]
        others = [data for name, data in self._files.items() if name != file]
        kind = self.form.kind
        if kind in ("json", "yaml", "toml"):
            parsed = self._parsed(file, kind)
            new, change = mutated_tree(old, kind, parsed, rng, others)
        else:
            new, change = mutated(old, rng, others, TEXT if kind == "text" else BINARY)
        return Mutant(number, file, change, old, new)

    def verdicts(self, numbers: Sequence[int]) -> Iterator[Verdict]:
        """What becomes of these mutants, in their order."""
        todo = list(numbers)
        while todo:
            done = 0
            for verdict in self._of_process(todo):
                done += 1
                yield verdict
            todo = todo[done:]

    def kept(self, number: int, folder: Path) -> Path:
        """The folder of a mutant, written below another one."""
        mutant = self.mutant(number)
        place = folder / f"{self.form.name.replace(' ', '-')}-{number}"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.base, place, symlinks=True)
        (place / mutant.file).write_bytes(mutant.new)
        return place

    def _parsed(self, file: str, kind: str) -> Any:
        if kind == "toml":
            import tomllib

            return tomllib.loads(self._files[file].decode())
        return _PARSERS[kind](self._files[file].decode())

    def _of_process(self, numbers: Sequence[int]) -> Iterator[Verdict]:
        """Those that one process judges; when it dies or hangs, that is the verdict of the one
        that it was busy with, unless this was only slow.
        """
        process, receiver = self._started(numbers)
        try:
            for number in numbers:
                verdict = self._received(receiver, process)
                if isinstance(verdict, Verdict):
                    yield verdict
                    continue
                if verdict == Outcome.HANG and len(numbers) > 1:
                    process.kill()
                    yield from self._of_process([number])
                else:
                    yield self._ended(number, verdict, process)
                return
        finally:
            process.kill()
            process.join()
            receiver.close()

    def _started(self, numbers: Sequence[int]) -> tuple[Any, Connection]:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        arguments = (numbers, receiver, sender)
        process = context.Process(target=self._judge_all, args=arguments, daemon=True)
        process.start()
        sender.close()
        ready = self._received(receiver, process, starting=True)
        if ready != "ready":
            process.kill()
            raise RuntimeError(f"{self.form.name}: the undamaged corpus cannot be read: {ready}")
        return process, receiver

    def _received(self, receiver: Connection, process: Any, *, starting: bool = False) -> Any:
        """The next message, or how the process ended, HANG or CRASH."""
        if not receiver.poll(60 if starting else self._seconds):
            return Outcome.HANG
        try:
            return receiver.recv()
        except EOFError:
            process.join()
            return Outcome.CRASH

    def _ended(self, number: int, outcome: Outcome, process: Any) -> Verdict:
        mutant = self.mutant(number)
        text = f"more than {self._seconds} s"
        if outcome == Outcome.CRASH:
            code = process.exitcode
            text = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        return Verdict(
            self.form.name, number, outcome, mutant.file, mutant.change, text, self._seconds, 0
        )

    def _judge_all(self, numbers: Sequence[int], receiver: Connection, sender: Connection) -> None:
        """Runs in a process of its own, which ends when nobody is there to be told."""
        receiver.close()
        try:
            _quiet()
            self._copy()
            base = self.form.corpus.read(self.work)
            if self.form.corpus.fresh:
                self._copy()
            if base.reported or not base.items or base != self.form.corpus.read(self.work):
                raise ValueError(f"reading it twice differs, or fails: {base.reported}")
            _limit_addresses()
        except BaseException:
            sender.send(traceback.format_exc())
            return
        with suppress(BrokenPipeError):
            sender.send("ready")
            for number in numbers:
                sender.send(self._judge(number, base))

    def _copy(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.base, self.work, symlinks=True)

    def _judge(self, number: int, base: Seen) -> Verdict:
        mutant = self.mutant(number)
        place = self.work / mutant.file
        if self.form.corpus.fresh:
            self._copy()
        place.write_bytes(mutant.new)
        before = _forget_peak()
        start = time.perf_counter()
        try:
            found: Seen | BaseException = self.form.corpus.read(self.work)
        except BaseException as error:
            found = error
        seconds = time.perf_counter() - start
        memory = max(0, _peak() - before)
        names = (str(self.work), place.name, f"{str(self.work)[:_BEGIN]}...(")
        outcome, text = judged(self.form, mutant, base, found, names)
        if outcome == Outcome.SILENT and isinstance(found, Seen):
            outcome = self._unless_unchecked(mutant, base, found)
        if memory > MOST_MEMORY:
            outcome, text = Outcome.MEMORY, f"{memory / 1e6:.0f} MB; {text}"
        if not self.form.corpus.fresh:
            place.write_bytes(mutant.old)
        if outcome == Outcome.FOREIGN and isinstance(found, BaseException):
            text += "\n" + "".join(traceback.format_exception(found)[-14:])
        return Verdict(
            self.form.name, number, outcome, mutant.file, mutant.change, text, seconds, memory
        )

    def _unless_unchecked(self, mutant: Mutant, base: Seen, found: Seen) -> Outcome:
        """PAYLOAD where all that is strange comes of damage that no checksum covers."""
        known = set(base.items)
        for data in unchecked_damage(self.form, mutant):
            (self.work / mutant.file).write_bytes(data)
            with suppress(EnergizeError):
                known.update(self.form.corpus.read(self.work).items)
        return Outcome.PAYLOAD if known.issuperset(found.items) else Outcome.SILENT


def _written(corpus: Corpus, folder: Path) -> None:
    """Write a corpus, which several formats may have, once."""
    if not folder.exists():
        folder.mkdir(parents=True)
        try:
            corpus.write(folder)
        except BaseException:
            shutil.rmtree(folder)
            raise


def _quiet() -> None:
    """Nothing is printed, and nothing is left behind."""
    logging.disable(logging.CRITICAL)
    faulthandler.disable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_addresses() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _forget_peak() -> int:
    """Have the kernel count the peak anew; the memory in use now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0
