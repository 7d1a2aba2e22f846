"""Small prepared folders of texts whose keys are known, and what joins of them make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energize import Sample, prepare
from tests.support.tars import write_tar


@dataclass(kw_only=True, slots=True)
class Pair(Sample):
    """What the joins of these tests make."""

    text: str
    note: str | None = None

    @classmethod
    def from_joined(cls, *samples: Any, **named: Any) -> Pair:
        first, second = samples or (named["text"], named["note"])
        return cls.derive_from(first, text=first.text, note=second and second.text)


def pair(text: Any, note: Any) -> Pair:
    """A joiner that is a function."""
    return Pair.derive_from(text, text=text.text, note=note and note.text)


def no_sample(*_: Any) -> str:
    """A joiner that makes no sample."""
    return "nothing"


def texts(
    folder: Path,
    shards: Sequence[Sequence[str]],
    *,
    splits: Mapping[str, Sequence[int]] | None = None,
    prefix: str = "",
    sqlite: bool = True,
    sample_type: str = "TextSample",
    exclude: Sequence[str] = (),
) -> Path:
    """A prepared folder: for each shard the keys of its samples, whose text is `prefix`
    and the key. `splits` says which shards each split part has, by default all are in
    `train`.
    """
    for number, keys in enumerate(shards):
        files = [(f"{key}.txt", f"{prefix}{key}".encode()) for key in keys]
        write_tar(folder / f"s{number}.tar", files)
    parts = splits or {"train": range(len(shards))}
    patterns = {
        name: [f"s{number}.tar" for number in each] for name, each in parts.items()
    }
    options = {} if sample_type == "CrudeWebdataset" else {"field_map": {"text": "txt"}}
    prepare(
        folder,
        split_patterns={name: patterns[name] for name in parts},
        sample_type=sample_type,
        workers=1,
        sqlite=sqlite,
        **options,
    )
    if exclude:
        file = folder / ".nv-meta" / "split.yaml"
        listed = "".join(f"- {each}\n" for each in exclude)
        file.write_text(file.read_text().replace("exclude: []", f"exclude:\n{listed}"))
    return folder


def keys(*numbers: int) -> list[str]:
    """Keys as numbers of four digits."""
    return [f"{number:04d}" for number in numbers]
