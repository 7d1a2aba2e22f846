"""Sources whose files were replaced between saving a state and loading it.

No order depends on what is in the files, so they are no part of the digest of a state: what is
known of them stands beside it, and a difference counts only where it is known then and now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from energize.core.dataset import Dataset
from energize.core.description import digest
from energize.core.stream import State
from energize.errors import StateError

FIELD = "records"
"""What it is called in the details of a state."""

_KEY, _DIGITS = 6, 4
_MOST, _SHORT = 256, 2
"""Up to so many sources are known by their identity; of more there are `_SHORT` digits in turn."""

Kept = dict[str, str] | str


def kept_records(dataset: Dataset[Any]) -> dict[str, Kept]:
    """What a state keeps of the files of the sources: nothing where nothing is known of them."""
    sources, records = dataset.sources, _records(dataset)
    if not any(records):
        return {}
    if len(sources) > _MOST:
        return {FIELD: "".join((each or "." * _SHORT)[:_SHORT] for each in records)}
    return {FIELD: _by_identity(sources, records)}


def replaced_sources(dataset: Dataset[Any], details: State, *, same_mix: bool) -> list[Any]:
    """The sources of a dataset whose files are known to be others than those of a saved state.

    Of a mix of very many only where it is the same one. Raises `StateError` for damaged details.
    """
    saved = details.get(FIELD)
    if saved is None:
        return []
    sources, records = dataset.sources, _records(dataset)
    if isinstance(saved, dict) and all(isinstance(each, str) for each in saved.values()):
        now = _by_identity(sources, records)
        keys = [_key(source) for source in sources]
        return [
            source
            for source, key in zip(sources, keys, strict=True)
            if key in saved and key in now and saved[key] != now[key]
        ]
    if not isinstance(saved, str):
        raise StateError(f"the saved state's 'details' are damaged: {FIELD} is {str(saved)[:80]}")
    if not same_mix or len(saved) != _SHORT * len(sources):
        return []
    then = [saved[at : at + _SHORT] for at in range(0, len(saved), _SHORT)]
    return [
        source
        for source, was, record in zip(sources, then, records, strict=True)
        if record is not None and was[0] != "." and was != record[:_SHORT]
    ]


def told(sources: Sequence[Any]) -> list[str]:
    """A line for each source that was replaced."""
    lines = [
        f"{source.name!r}: its shards are others than when the state was saved"
        for source in sources
    ]
    return list(dict.fromkeys(lines))


def _records(dataset: Dataset[Any]) -> list[str | None]:
    """Of each source; a stream that is no `Source` has none."""
    return [getattr(source, "record", None) for source in dataset.sources]


def _by_identity(sources: Sequence[Any], records: Sequence[str | None]) -> dict[str, str]:
    """What is known of the files, by the identity of the source; of copies in several places that
    of all of them, and nothing where it is not known of all.
    """
    found: dict[str, set[str | None]] = {}
    for source, record in zip(sources, records, strict=True):
        found.setdefault(_key(source), set()).add(record)
    return {key: _one(each) for key, each in found.items() if None not in each}


def _key(source: Any) -> str:
    return digest(getattr(source, "identity", source.name))[:_KEY]


def _one(records: set[str | None]) -> str:
    [*each] = map(str, records)
    return (each[0] if len(each) == 1 else digest(sorted(each)))[:_DIGITS]
