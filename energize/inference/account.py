"""What is done with every file and every column, for the spec."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from energize.core.progress import counted
from energize.core.samples import CrudeSample
from energize.inference.candidates import Candidate, Reading
from energize.inference.columns import ColumnProfile
from energize.inference.folders import class_folders, class_names
from energize.inference.kinds import Roles
from energize.inference.scene import Scene, by_file_name, classes_of
from energize.inference.spec import DataSpec, Use
from energize.inference.splits import SplitAssignment
from energize.task.field_maps import parse_field

_SHOWN = 3


def account_of(
    scene: Scene,
    split_part: str,
    candidate: Candidate,
    reading: Reading,
    kind: Any,
    field_map: Mapping[str, str],
    source: Any,
) -> DataSpec:
    """Return the spec of a reading, with the use of every file and every column."""
    top = scene.around or scene
    prefix = f"{scene.prefix}/" if scene.prefix else ""
    claimed = {**reading.claims, **candidate.claims}
    claims = {f"{prefix}{name}": role for name, role in claimed.items()}
    unread = {
        f"{prefix}{name}": why
        for why, names in reading.left_out.items()
        for name in names
    }
    media_paths = tuple(getattr(source, "media_paths", ()))
    notes = _notes(scene, candidate, reading, kind, media_paths)
    parts = {part: counted(rows, "row") for part, rows in reading.row_parts.items()}
    parts |= {
        part: counted(len(names), "file") for part, names in top.splits.parts.items()
    }
    splits: dict[str, int | None] = dict.fromkeys(parts)
    own = (
        top.splits if top.splits.parts else SplitAssignment(dict.fromkeys(parts, ()))
    ).meant(split_part)
    labels = next(iter(classes_of(reading.rows).values()), [])
    if candidate.format == "classes":
        labels = class_names(scene)
    return DataSpec(
        path=str(scene.path),
        format=candidate.format,
        argument=candidate.argument,
        split_part=split_part,
        splits={**splits, split_part: source.count},
        sample_type=kind.__name__,
        field_map=dict(field_map) if kind is not CrudeSample else {},
        classes=tuple(labels),
        media_paths=media_paths,
        files=tuple(_files(top, claims, unread)),
        columns=tuple(_columns(reading, field_map, crude=kind is CrudeSample)),
        notes=tuple(notes),
        other_parts=tuple(
            f"{part} ({count})" for part, count in parts.items() if part != own
        ),
    )


def _notes(
    scene: Scene,
    candidate: Candidate,
    reading: Reading,
    kind: Any,
    media_paths: Sequence[str],
) -> list[str]:
    """Return what a user should know of a reading."""
    splits = (scene.around or scene).splits
    notes = [*reading.notes]
    roles = Roles(reading.columns, reading.first)
    options = ", ".join(column.name for column in roles.options())
    if kind is CrudeSample and options:
        notes.append(
            f"columns {options} may be choices: sample_type: MultiChoiceVQASample, "
            f"field_map: {{choices: 'items({options})', ...}}"
        )
    if candidate.format not in ("classes", "mds", "tars"):
        folders = class_folders(scene)
        if folders:
            shown = ", ".join(folders[:_SHOWN])
            notes.append(f"names of folders are not used: {shown}")
    if splits.lists:
        notes.append(f"split parts are those that {', '.join(splits.lists)} list")
    moved = [
        posixpath.dirname(path) or "." for path in media_paths if by_file_name(path)
    ]
    if moved:
        notes.append(
            f"files are found by their names in {', '.join(moved)}, not in the folders "
            "that rows name"
        )
    return [*notes, *splits.notes]


def _files(
    scene: Scene, claims: dict[str, str], unread: dict[str, str]
) -> Iterable[Use]:
    """Yield the use of every file, alike ones together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    of_part = {
        name: part for part, names in scene.splits.parts.items() for name in names
    }
    for name, kind in scene.inventory.kinds.items():
        if name in unread:
            use = "left out", "", unread[name]
        elif name in claims:
            use = "used", claims[name], ""
        elif name in scene.splits.lists:
            use = "used", "list of a split part", ""
        elif kind == "document":
            use = "metadata", "document", ""
        elif name in of_part:
            use = "metadata", f"of split part {of_part[name]}", ""
        else:
            use = "left out", "", _why(kind)
        suffix = posixpath.splitext(name)[1].lower()
        groups.setdefault((*use, suffix), []).append(name)
    for reason, names in scene.inventory.aside.items():
        groups.setdefault(("metadata", reason, "", ""), []).extend(names)
    for (status, role, why, suffix), names in groups.items():
        shown = tuple(names[:_SHOWN])
        if len(names) == 1:
            called = names[0]
        elif suffix:
            called = f"*{suffix}"
        else:
            called = "files"
        count = len(names)
        yield Use(
            name=called, status=status, role=role, why=why, count=count, examples=shown
        )


_REASONS = {
    "archive": "it is packed; unpack it",
    "annotation": "no format reads it",
    "other": "not of a known kind",
    "table": "no other file refers to it",
    "text": "it belongs to no image",
    "image": "beside the split parts",
    "av": "beside the split parts",
}


def _why(kind: str) -> str:
    return _REASONS.get(kind, "")


def _columns(
    reading: Reading, field_map: Mapping[str, str], *, crude: bool
) -> Iterable[Use]:
    """Yield the use of every column; of columns in others only if one of them is
    used.
    """
    fields: dict[str, set[str]] = {}
    for name, text in field_map.items():
        for access in parse_field(text):
            fields.setdefault(str(access), set()).add(name)
            fields.setdefault(access.part, set()).add(name)
    used = {source: ", ".join(sorted(names)) for source, names in fields.items()}
    opened = {name.partition("[")[0] for name in used if "[" in name}
    for name, column in reading.columns.items():
        inside = (
            column.is_nested
            and name.count("[") == 1
            and name.partition("[")[0] in opened
        )
        if column.is_nested and (not inside or name in used):
            continue
        if crude or name in used:
            yield Use(name=name, status="used", role=used.get(name, "as it is"))
        else:
            yield Use(name=name, status="metadata", why=_why_unused(column))


def _why_unused(column: ColumnProfile) -> str:
    return "not recognised" if column.tells else ""
