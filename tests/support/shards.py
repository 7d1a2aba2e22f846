"""Prepared folders of tar shards, made with the standard library only."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from energize.data.tar import index_path, split_name

Files = Iterable[tuple[str, bytes]]


def packed(files: Files, format: int = tarfile.USTAR_FORMAT, **options) -> bytes:  # noqa: A002
    """A tar of files, as bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, **options) as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def offsets(tar: bytes) -> list[int]:
    """The index of a tar as Energon writes it, found with `tarfile`."""
    entries, last = [], None
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        for member in opened:
            split = split_name(member.name) if member.isfile() else None
            if split is not None and split[0] != last:
                entries.append(member.offset)
                last = split[0]
        entries.append(opened.offset)
    return entries


def write_shard(path: Path, tar: bytes) -> int:
    """Write a tar and its index; returns the number of samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar)
    entries = offsets(tar)
    Path(index_path(str(path))).write_bytes(struct.pack(f"<{len(entries)}Q", *entries))
    return len(entries) - 1


def write_meta(
    folder: Path,
    counts: Mapping[str, int],
    splits: Mapping[str, Sequence[str]],
    exclude: Sequence[str] = (),
) -> None:
    """Write `.info.json` and `split.yaml` (JSON is YAML)."""
    meta = folder / ".nv-meta"
    meta.mkdir(parents=True, exist_ok=True)
    (meta / ".info.json").write_text(json.dumps({"shard_counts": dict(counts)}))
    content = {
        "split_parts": {part: list(shards) for part, shards in splits.items()},
        "exclude": list(exclude),
    }
    (meta / "split.yaml").write_text(json.dumps(content))


def payload(number: int, part: str) -> bytes:
    """What the part of a sample holds in `prepared` folders."""
    return f"{part} of {number};".encode() * (1 + number % 90)


def prepared(
    folder: Path,
    counts: Sequence[int] = (3, 5, 2),
    exclude: Sequence[str] = (),
    **options,
) -> Path:
    """A folder of shards `parts/d<i>.tar` with jpg and txt parts; all in train, the
    last in val."""
    shards, number = {}, 0
    for i, count in enumerate(counts):
        files = []
        for _ in range(count):
            files += [
                (f"{number:06d}.{part}", payload(number, part))
                for part in ("jpg", "txt")
            ]
            number += 1
        name = f"parts/d{i}.tar"
        shards[name] = write_shard(folder / name, packed(files, **options))
    write_meta(
        folder, shards, {"train": list(shards), "val": list(shards)[-1:]}, exclude
    )
    return folder
