"""Names for the sources of a mix that tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from energize.data.selection import PropertySource
from energize.data.source import Source
from energize.data.webdataset import WebdatasetSource


def source_labels(sources: Sequence[Source[Any]]) -> list[str]:
    """A name for each source, in their order, no two alike.

    It is the name of the source; for folders of one name with as many parent folders as tell them
    apart, for one folder with different splits with the split in brackets, and where that is equal
    too with a number.

    >>> from energize import ListSource
    >>> source_labels([ListSource("a", name="x"), ListSource("b", name="x")])
    ['x #1', 'x #2']
    """
    labels = _shortest([_place(source) for source in sources])
    labels = _with_details(labels, [_split(source) for source in sources])
    repeated = Counter(labels)
    seen: Counter[str] = Counter()
    for i, label in enumerate(labels):
        if repeated[label] > 1:
            seen[label] += 1
            labels[i] = f"{label} #{seen[label]}"
    return labels


def _place(source: Source[Any]) -> tuple[str, ...]:
    if isinstance(source, PropertySource):
        *above, name = _place(source.source)
        return *above, f"{name}/{source.selection.name}"
    return source.path.absolute().parts if isinstance(source, WebdatasetSource) else (source.name,)


def _split(source: Source[Any]) -> str:
    if isinstance(source, PropertySource):
        return _split(source.source)
    return source.split_part if isinstance(source, WebdatasetSource) else ""


def _shortest(places: Sequence[tuple[str, ...]]) -> list[str]:
    """For each place its shortest end that no other place has."""
    found: dict[tuple[str, ...], str] = {}
    waiting = set(places)
    length = 1
    while waiting:
        ends = Counter(place[-length:] for place in set(places))
        for place in list(waiting):
            if ends[place[-length:]] == 1 or length >= len(place):
                found[place] = "/".join(place[-length:]).replace("//", "/")
                waiting.remove(place)
        length += 1
    return [found[place] for place in places]


def _with_details(labels: Sequence[str], details: Sequence[str]) -> list[str]:
    """The labels with their details, where those of one label differ."""
    pairs = list(zip(labels, details, strict=True))
    different = Counter(label for label, _ in set(pairs))
    return [f"{label} [{detail}]" if different[label] > 1 else label for label, detail in pairs]
