"""Which processes there still are, and that those of tests end with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


def _running() -> Iterator[tuple[Path, list[str]]]:
    """The folder and the fields of each process, from its state on; none for
    zombies."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:  # it has ended since
                continue
            if fields[0] not in ("Z", "X"):
                yield path, fields


def in_group(group: int) -> set[int]:
    """The processes of a process group."""
    return {int(path.name) for path, fields in _running() if int(fields[2]) == group}


def children_of(pid: int) -> set[int]:
    """The child processes of a process that run."""
    return {int(path.name) for path, fields in _running() if int(fields[1]) == pid}


def workers_of(trainer: int, others: set[int]) -> set[int]:
    """The workers of a trainer that run, started in whatever way."""
    found = set()
    for child in children_of(trainer) - others:
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if _HELPERS[1] in command:
            found |= children_of(child)
        elif _HELPERS[0] not in command:
            found.add(child)
    return found
