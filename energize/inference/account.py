"""The use of every file and every column of a reading, for the spec."""

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
    account = reading.account
    claimed = {**account.claims, **candidate.claims}
    claims = {f"{prefix}{name}": role for name, role in claimed.items()}
    unread = {
        f"{prefix}{name}": reason
        for reason, names in account.left_out.items()
        for name in names
    }
    media_paths = tuple(getattr(source, "media_paths", ()))
    counts = _part_counts(top, reading)
    assignment = top.splits
    if not assignment.parts:
        assignment = SplitAssignment(dict.fromkeys(counts, ()))
    part = assignment.find_part(split_part)
    splits: dict[str, int | None] = dict.fromkeys(counts)
    is_crude = kind is CrudeSample
    return DataSpec(
        path=str(scene.path),
        format=candidate.format,
        argument=candidate.argument,
        split_part=split_part,
        splits={**splits, split_part: source.count},
        sample_type=kind.__name__,
        field_map={} if is_crude else dict(field_map),
        classes=tuple(_class_labels(scene, candidate, reading)),
        media_paths=media_paths,
        files=tuple(_files(top, claims, unread)),
        columns=tuple(_columns(reading, field_map, crude=is_crude)),
        notes=tuple(_notes(scene, candidate, reading, kind, media_paths)),
        other_parts=tuple(
            f"{name} ({count})" for name, count in counts.items() if name != part
        ),
    )


def _part_counts(scene: Scene, reading: Reading) -> dict[str, str]:
    """Return the number of rows or files of each split part, as text."""
    rows = {part: counted(count, "row") for part, count in reading.row_parts.items()}
    files = {
        part: counted(len(names), "file") for part, names in scene.splits.parts.items()
    }
    return rows | files


def _class_labels(
    scene: Scene, candidate: Candidate, reading: Reading
) -> Sequence[str]:
    """Return the names of classes by their numbers."""
    if candidate.format == "classes":
        return class_names(scene)
    return next(iter(classes_of(reading.rows).values()), [])


def _notes(
    scene: Scene,
    candidate: Candidate,
    reading: Reading,
    kind: Any,
    media_paths: Sequence[str],
) -> list[str]:
    """Return the remarks on a reading for the user."""
    splits = (scene.around or scene).splits
    notes = [*reading.account.notes]
    roles = Roles(reading.columns, reading.first)
    options = ", ".join(column.name for column in roles.options())
    if kind is CrudeSample and options:
        notes.append(
            f"columns {options} may be choices. Write sample_type: "
            f"MultiChoiceVQASample, field_map: "
            f"{{choices: 'items({options})', ...}}"
        )
    folders = _unused_folders(scene, candidate)
    if folders:
        notes.append(f"names of folders are not used: {', '.join(folders[:_SHOWN])}")
    if splits.lists:
        notes.append(f"split parts are those that {', '.join(splits.lists)} list")
    moved = _folders_of_moved(media_paths)
    if moved:
        notes.append(
            f"files are found by their names in {', '.join(moved)}, not in the folders "
            "that rows name"
        )
    return [*notes, *splits.notes]


def _unused_folders(scene: Scene, candidate: Candidate) -> list[str]:
    """Return the names of folders that may mean something and are not used."""
    if candidate.format in ("classes", "mds", "tars"):
        return []
    return class_folders(scene)


def _folders_of_moved(templates: Sequence[str]) -> list[str]:
    """Return the folders in which files are located by their names only."""
    return [posixpath.dirname(path) or "." for path in templates if by_file_name(path)]


def _files(
    scene: Scene, claims: dict[str, str], unread: dict[str, str]
) -> Iterable[Use]:
    """Yield the use of every file; files of one use and extension are one entry."""
    groups: dict[tuple[str, ...], list[str]] = {}
    part_of_file = {
        name: part for part, names in scene.splits.parts.items() for name in names
    }
    for name in scene.inventory.kinds:
        use = _use_of_file(scene, name, claims, unread, part_of_file)
        suffix = posixpath.splitext(name)[1].lower()
        groups.setdefault((*use, suffix), []).append(name)
    for reason, names in scene.inventory.aside.items():
        groups.setdefault(("metadata", reason, "", ""), []).extend(names)
    for (status, role, why, suffix), names in groups.items():
        title = f"*{suffix}" if suffix else "files"
        yield Use(
            name=names[0] if len(names) == 1 else title,
            status=status,
            role=role,
            why=why,
            count=len(names),
            examples=tuple(names[:_SHOWN]),
        )


def _use_of_file(
    scene: Scene,
    name: str,
    claims: Mapping[str, str],
    unread: Mapping[str, str],
    part_of_file: Mapping[str, str],
) -> tuple[str, str, str]:
    """Return the status and the role of a file, and the reason why it is unused."""
    kind = scene.inventory.kinds[name]
    if name in unread:
        return "left out", "", unread[name]
    if name in claims:
        return "used", claims[name], ""
    if name in scene.splits.lists:
        return "used", "list of a split part", ""
    if kind == "document":
        return "metadata", "document", ""
    if name in part_of_file:
        return "metadata", f"of split part {part_of_file[name]}", ""
    return "left out", "", _REASONS.get(kind, "")


_REASONS = {
    "archive": "it is packed; unpack it",
    "annotation": "no format reads it",
    "other": "not of a known kind",
    "table": "no other file refers to it",
    "text": "it belongs to no image",
    "image": "beside the split parts",
    "av": "beside the split parts",
}


def _columns(
    reading: Reading, field_map: Mapping[str, str], *, crude: bool
) -> Iterable[Use]:
    """Yield the use of every column; of inner columns only if a sibling is used."""
    used = _roles_of_columns(field_map)
    opened = {name.partition("[")[0] for name in used if "[" in name}
    for name, column in reading.columns.items():
        if column.is_nested:
            parent, _, keys = name.partition("[")
            if "[" in keys or parent not in opened or name in used:
                continue
        if crude or name in used:
            yield Use(name=name, status="used", role=used.get(name, "as it is"))
        else:
            yield Use(name=name, status="metadata", why=_why_unused(column))


def _roles_of_columns(field_map: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that are read from each column or part."""
    fields: dict[str, set[str]] = {}
    for name, text in field_map.items():
        for access in parse_field(text):
            fields.setdefault(str(access), set()).add(name)
            fields.setdefault(access.part, set()).add(name)
    return {source: ", ".join(sorted(names)) for source, names in fields.items()}


def _why_unused(column: ColumnProfile) -> str:
    return "not recognised" if column.has_content else ""
