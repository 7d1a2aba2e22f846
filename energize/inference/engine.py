"""Inference of the samples at a path: format, split parts, sample type and fields.

`inferred` takes the strongest candidate of all formats, chooses a sample type for its
columns, and describes the result by a spec. Ambiguity raises an error that lists all
readings.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from energize.core.ignored import log_once
from energize.core.lanes import is_first_rank
from energize.core.os_errors import convert_os_errors
from energize.core.progress import counted
from energize.core.records import required_fields, type_fields
from energize.core.samples import SAMPLE_TYPES, CrudeSample
from energize.data.files import absolute, exists, path_of
from energize.data.jsonl import jsonl_index_path
from energize.data.loose import LooseSource
from energize.data.nv_meta import META_FOLDER, SampleConfig, is_prepared
from energize.data.tables import EXTENSIONS, ChosenRows
from energize.data.webdataset import WebdatasetSource
from energize.errors import (
    ConfigError,
    DatasetError,
    EnergizeError,
    NotPreparedError,
    SplitError,
    nearest,
    some,
)
from energize.inference.account import account_of
from energize.inference.candidates import Candidate, Reading
from energize.inference.fields import parts_of, translated
from energize.inference.formats import FORMATS
from energize.inference.kinds import CRUDE_CHOICE, Choice, choose, fill, why_mixed
from energize.inference.options import DataOptions
from energize.inference.row_parts import RowParts, state_parts
from energize.inference.scene import (
    Scene,
    check_folder,
    classes_of,
    files_without,
    listed,
)
from energize.inference.spec import DataSpec
from energize.inference.tars import open_tars, read_tars
from energize.inference.words import PARTS, parts_in
from energize.task.field_maps import check_field_map, parse_field

_log = logging.getLogger("energize")
_TAR = ".tar"
FILES = (*EXTENSIONS, _TAR)
"""Extensions of files that are opened by their paths."""

_MAIN = ("train", "val", "dev")
"""Names of the split part that determines the sample type, by priority."""

_AS_OTHERS = (
    "The other split parts have this format. To read this one by itself, write its "
    "files: files: ['PATTERN', ...]"
)

_MARGIN = 2
"""Difference of strength from which a contradicting candidate is ignored."""


class InferredPart(NamedTuple):
    """The raw samples at a path, their sample type and fields, and the spec."""

    source: LooseSource | WebdatasetSource
    config: SampleConfig
    spec: DataSpec


def is_loose(path: Path) -> bool:
    """Return whether a path has data that are not prepared."""
    above = (path.parent, path.parent.parent)
    if path.suffix.lower() in FILES and path.is_file():
        if path.suffix == _TAR:
            return not any(map(is_prepared, above))
        return path.suffix != ".jsonl" or not exists(jsonl_index_path(str(path)))
    if is_prepared(
        path
    ):  # asked first: a plain web server cannot say what else is there
        return False
    return (
        path.is_dir()
        and not exists(path / META_FOLDER)
        and not any(map(is_prepared, above))
    )


@convert_os_errors
def split_parts(path: Path, options: DataOptions | None = None) -> list[str]:
    """Return the split parts of a loose folder or file."""
    scene = Scene(path, options or DataOptions())
    if scene.splits.doubt:
        raise SplitError(f"{path}: {scene.splits.doubt}")
    parts = [*scene.splits.parts]
    if not parts and not scene.inventory.of_kind("tar"):
        reading = _decided(scene)[1]
        stated = state_parts(scene, reading.rows, reading.columns)
        parts = [] if stated is None else [*stated.counts]
    return parts or ["train"]


@convert_os_errors
def open_loose(path: Path, split_part: str, options: DataOptions) -> InferredPart:
    """Return the inferred samples of a split part, and log the summary once, on rank 0.

    Args:
        path: A folder, or a file of samples.
        split_part: The name of the split part, or a synonym.
        options: The options of the entry.

    Returns:
        The result of `inferred`.

    Raises:
        DatasetError: If the data differ from what the entry states; with
            `options.strict`, if files are left out. Errors of `inferred` are passed on.
    """
    part = inferred(path, split_part, options)
    _check_options(path, options, part.spec)
    return part


def inferred(path: Path, split_part: str, options: DataOptions) -> InferredPart:
    """Return the samples of a split part of a loose folder or file.

    Args:
        path: A folder, or a file of samples.
        split_part: The name of the split part, or a synonym.
        options: The options of the entry, which override what is inferred.

    Returns:
        The source, the type with its field map, and the spec.

    Raises:
        NotPreparedError: If the path has no samples.
        SplitError: If the split part does not exist, or names are ambiguous.
        DatasetError: If files contradict one another or the options.
        ConfigError: If a type or a field map does not fit the data.
    """
    scene = Scene(path, options)
    check_folder(scene)
    by_column = not scene.splits.parts and not scene.splits.doubt
    part = None if by_column else scene.splits.part_named(split_part, path)
    if scene.inventory.of_kind("tar"):
        scene.splits.part_named(split_part, path)
        inferred_part = _of_tars(scene.of_part(part), split_part)
    else:
        parts = scene.splits.parts
        main = None if part is None else next(n for n in (*_MAIN, *parts) if n in parts)
        candidate, reading = _decided(scene.of_part(main))
        choice = _choice(scene, reading)
        part_scene = scene.of_part(part)
        if part != main:
            candidate, reading = _decided(part_scene, like=candidate.format)
        _check_rows(part_scene, part, candidate, reading)
        inferred_part = _opened(
            part_scene, split_part, candidate, reading, choice, by_column=by_column
        )
    decoding = {
        "orient": True,
        **({"guess_content": True} if inferred_part.spec.format == "tars" else {}),
    }
    return inferred_part._replace(
        config=replace(inferred_part.config, options=decoding)
    )


def _decided(scene: Scene, like: str | None = None) -> tuple[Candidate, Reading]:
    """Return the strongest candidate, and its rows."""
    candidates = _candidates(scene, like)
    if not candidates:
        raise scene.why_unread(*scene.inventory.kinds) or _nothing_to_read(scene)
    best = max(candidates, key=lambda candidate: candidate.strength)
    rivals = [candidate for candidate in candidates if _rivals(best, candidate)]
    if rivals:
        readings = [best, *rivals]
        lines = "\n".join(
            f"  {reading.argument}: {reading.line}" for reading in readings
        )
        raise DatasetError(
            f"{scene.root} can be read in {len(readings)} ways. Write the line of the "
            f"correct one:\n{lines}"
        )
    if best.problem is not None:
        text = str(best.problem)
        if not text.startswith(f"{scene.root}/"):
            text = f"{scene.root}: {text}"
        raise type(best.problem)(text)
    return best, best.read()


def _candidates(scene: Scene, like: str | None) -> list[Candidate]:
    """Return the candidates of all formats, or of the format that is required."""
    candidates = [candidate for make in FORMATS for candidate in make(scene)]
    required = scene.options.format or like
    if required is None:
        return candidates
    matching = [match for match in candidates if match.format == required]
    if not matching:
        hint = (
            "Set another format, or remove it" if scene.options.format else _AS_OTHERS
        )
        raise DatasetError(
            f"{scene.root} has no data of the format {required!r}. {hint}"
        )
    return matching


def _rivals(best: Candidate, other: Candidate) -> bool:
    """Return whether a candidate is about as strong as the best, and contradicts it."""
    margin = best.strength - other.strength
    if other is best or margin >= _MARGIN:
        return False
    return margin == 0 or not {*other.claims} <= {*best.claims}


def _nothing_to_read(scene: Scene) -> NotPreparedError:
    suffixes = [
        posixpath.splitext(name)[1].lower() or "others"
        for name in scene.inventory.kinds
    ]
    counts = ", ".join(
        f"{count} {suffix}" for suffix, count in Counter(suffixes).items()
    )
    archives = scene.inventory.of_kind("archive")
    packed = f" Unpack {listed(archives)} first." if archives else ""
    return NotPreparedError(
        f"{scene.path} is not a prepared dataset: it has no .nv-meta/.info.json, and "
        "no images, videos, tables, MDS or tars: its files are "
        f"{counts or 'none'}.{packed} Put texts in a column of a .jsonl, .csv or "
        ".parquet file. Prepare a folder of shards with: energize "
        f"prepare {scene.path}"
    )


# Of which type samples are.


def _choice(scene: Scene, reading: Reading) -> Choice:
    """Return the sample type and its fields: the stated ones, or else inferred ones."""
    options = scene.options
    fields = dict(options.field_map or {})
    if options.kind is CrudeSample:
        if fields:
            raise ConfigError("CrudeSample has no fields. Remove field_map")
        return CRUDE_CHOICE
    if options.kind is not None and options.inferred is not None:
        return Choice(options.kind.__name__, fields)
    if options.kind is not None:
        return _filled_type(options.kind, fields, reading)
    mixed = "" if fields else why_mixed(reading.columns, reading.first)
    if mixed:
        raise DatasetError(f"{scene.path}: {mixed}")
    taken = [str(access) for text in fields.values() for access in parse_field(text)]
    choice = choose(reading.columns, reading.first, [*fields], taken)
    if choice.is_crude and fields:
        raise ConfigError(
            f"{scene.path}: no usual type of samples has the fields "
            f"{some(fields)}{nearest(min(fields), _usual_fields()) or '.'} "
            "Correct them, or set sample_type"
        )
    return replace(choice, field_map={**choice.field_map, **fields})


def _filled_type(
    kind: type[Any], fields: Mapping[str, str], reading: Reading
) -> Choice:
    """Return a type with the user's fields, and columns for its other fields."""
    choice = fill(kind.__name__, reading.columns, reading.first, [*fields])
    used = {access.part for text in fields.values() for access in parse_field(text)}
    free = reading.columns.keys() - used
    usual = {name: name for name in type_fields(kind) if name in free}
    return replace(choice, field_map={**usual, **choice.field_map, **fields})


def _usual_fields() -> list[str]:
    """Return the names of the fields of all sample types."""
    kinds = [kind for kind in SAMPLE_TYPES.values() if kind is not CrudeSample]
    return [*dict.fromkeys(name for kind in kinds for name in type_fields(kind))]


def _opened(
    scene: Scene,
    split_part: str,
    candidate: Candidate,
    reading: Reading,
    choice: Choice,
    *,
    by_column: bool,
) -> InferredPart:
    """Return the source of rows, with the parts and fields of its columns."""
    kind = scene.options.kind or SAMPLE_TYPES[choice.sample_type]
    labels = {
        n: names
        for n, names in classes_of(reading.rows).items()
        if n in reading.columns
    }
    field_map = dict(choice.field_map)
    if field_map.get("label", "") in labels:
        field_map.setdefault("label_name", f"{field_map['label']}_name")
    if by_column:
        reading = _of_split(scene, split_part, reading)
    field_map, reading = _divided(field_map, reading)
    _check_media_path(scene, reading)
    media, access = parts_of(reading, kind)
    paths = dict.fromkeys(
        p for column in reading.columns.values() for p in column.paths
    )
    _check_files(scene, reading, field_map)
    source = LooseSource(
        scene.path,
        reading.rows,
        {**reading.files, **media},
        scene.base,
        split_part,
        labels,
        [] if [*paths] == ["{}"] else [*paths],
    )
    fields = _checked(scene, kind, field_map, access, reading)
    config = DataOptions(kind).config(SampleConfig("", ""), fields)
    spec = account_of(
        scene, split_part, candidate, reading, kind, choice.field_map, source
    )
    return InferredPart(source, config, spec)


def _check_media_path(scene: Scene, reading: Reading) -> None:
    """Raise `ConfigError` if `media_path` uses a column that rows do not have."""
    path = scene.options.media.path
    if path is None or any(column.paths for column in reading.columns.values()):
        return
    raise ConfigError(
        f"{scene.path}: media_path={path!r} names none of the columns "
        f"{some(reading.columns)}. Write the column of the file names"
    )


def _check_files(scene: Scene, reading: Reading, field_map: dict[str, str]) -> None:
    """Raise `DatasetError` if some files of rows lack a used column."""
    for field, name in field_map.items():
        lacking = files_without(reading.rows, name) if name in reading.columns else []
        if lacking and field not in (scene.options.field_map or {}):
            raise DatasetError(
                f"{scene.path}: the column {name!r} of {field!r} is missing in "
                f"{listed(lacking)}. Write all columns of the field, field_map: "
                f"{{{field}: '{name},OTHER'}}"
            )


def _checked(
    scene: Scene,
    kind: Any,
    field_map: dict[str, str],
    access: dict[str, str],
    reading: Reading,
) -> dict[str, str] | None:
    """Return the field map by parts, None for crude samples."""
    if kind is CrudeSample:
        return None
    fields = {
        n: translated(scene.path, text, access, reading)
        for n, text in field_map.items()
    }
    try:
        check_field_map(kind, fields)
    except ConfigError as reason:
        raise ConfigError(
            f"{scene.path}: {reason}. Its columns are {some(reading.columns)}. Write "
            "a field_map of these, or another sample_type"
        ) from reason
    return fields


def _of_split(scene: Scene, split_part: str, reading: Reading) -> Reading:
    """Return the rows of a split part if a column states the parts."""
    stated = state_parts(scene, reading.rows, reading.columns)
    if stated is None:
        scene.splits.part_named(split_part, scene.path)
        return reading
    part = stated.splits.part_named(split_part, scene.path)
    is_chosen = np.array([part_of_row == part for part_of_row in stated.of_row])
    stops = np.cumsum(reading.rows.counts)[:-1]
    numbers = [
        np.flatnonzero(part_of_row) for part_of_row in np.split(is_chosen, stops)
    ]
    rows = ChosenRows(reading.rows, numbers)
    chosen = replace(reading, rows=rows, row_parts=stated.counts)
    return chosen.with_notes(*stated.notes)


def _check_rows(
    scene: Scene, part: str | None, candidate: Candidate, reading: Reading
) -> None:
    """Raise `SplitError` if rows of the training part state that they are held out."""
    if part is None or parts_in(part) != ["train"]:
        return
    try:
        stated = state_parts(scene, reading.rows, reading.columns)
    except SplitError:
        return  # the names of files are clear, so numbers in a column need not be
    held_out = [] if stated is None else _held_out_rows(stated)
    if stated is None or not held_out:
        return
    values = [str(value) for value in reading.columns[stated.column].values]
    mapping = {
        value: name for value in dict.fromkeys(values) for name in parts_in(value)
    }
    line = json.dumps({stated.column: mapping})
    raise SplitError(
        f"{scene.path}: file names assign {listed(candidate.claims)} to the split part "
        f"{part!r}, but their column {stated.column!r} has rows of "
        f"{', '.join(held_out)}. Write split_by: {line} to use the rows, or split_by: "
        "{} to use the names"
    )


def _held_out_rows(stated: RowParts) -> list[str]:
    """Return the held-out parts that rows state, with their numbers of rows."""
    return [
        f"{name} ({counted(count, 'row')})"
        for name, count in stated.counts.items()
        if name != "train" and name in PARTS
    ]


def _divided(
    field_map: dict[str, str], reading: Reading
) -> tuple[dict[str, str], Reading]:
    """Return rows with one caption or question each, from columns of lists."""
    columns = reading.columns
    forms = {
        name: columns[text].form for name, text in field_map.items() if text in columns
    }
    if forms.get("context") == forms.get("answers") == "texts":
        fields = ["context", "answers"]
        note = (
            "each of the questions in {!r}, with its answer in {!r}, is a sample of "
            "its own"
        )
    elif forms.get("caption") == "texts":
        fields = ["caption"]
        note = "each of the texts in {!r} is a sample of its own"
    else:
        return field_map, reading
    lists = [field_map[name] for name in fields]
    rows = ChosenRows.dividing(reading.rows, lists)
    alone = [
        replace(columns[text], name=name, form="text")
        for text, name in zip(lists, rows.piece_names, strict=True)
    ]
    pieces = dict(zip(fields, rows.piece_names, strict=True))
    columns = {**columns, **{column.name: column for column in alone}}
    divided = replace(reading, rows=rows, columns=columns)
    return {**field_map, **pieces}, divided.with_notes(note.format(*lists))


@convert_os_errors
def infer(
    path: str | os.PathLike[str], *, split_part: str | None = None, **options: Any
) -> DataSpec:
    """Infer the format, split parts, sample type and fields of loose data.

    Samples are neither verified nor decoded; `get_train_dataset` does both.

    Args:
        path: A loose folder or file of samples.
        split_part: The split part to describe. By default the training part, or the
            only one.
        **options: `sample_type`, `field_map`, `image_folder`, `format`, `files`,
            `media_path` and `split_by`, as in an entry of a metadataset, to override
            what is inferred.

    Returns:
        The spec, with the number of samples of each split part.

    Raises:
        DatasetError: If data are ambiguous, or no format reads them. The message lists
            the readings and the line to write for each.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for label in ("cat", "dog"):
        ...     (folder / label).mkdir()
        ...     Image.new("RGB", (8, 6)).save(folder / label / "0.jpg")
        >>> spec = infer(folder)
        >>> spec.format, spec.sample_type, spec.classes, spec.splits
        ('classes', 'ImageClassificationSample', ('cat', 'dog'), {'train': 2})
    """
    sample_type = options.get("sample_type")
    if isinstance(sample_type, str):
        options["sample_type"] = ("energize", sample_type)
    parts = infer_parts(path, DataOptions.of_entry(**options), split_part)
    main = split_part or (
        "train" if "train" in parts.specs else next(iter(parts.specs))
    )
    counts = {part: spec.samples for part, spec in parts.specs.items() if part != main}
    spec = parts.specs[main]
    splits = {main: spec.samples, **counts, **dict.fromkeys(parts.unread)}
    notes = (*spec.notes, *parts.notes)
    return spec.model_copy(update={"splits": splits, "notes": notes})


class PartSpecs(NamedTuple):
    """The specs of the split parts that can be read, and why the other parts cannot."""

    specs: dict[str, DataSpec]
    unread: dict[str, str]

    @property
    def notes(self) -> list[str]:
        """A note for each split part that cannot be read."""
        return [
            f"split part {part!r} is left out: {why}"
            for part, why in self.unread.items()
        ]


@convert_os_errors
def infer_parts(
    path: str | os.PathLike[str], options: DataOptions, split_part: str | None = None
) -> PartSpecs:
    """Infer all split parts of loose data that can be read.

    A part that cannot be read, such as a test part without labels, is left out.

    Args:
        path: A loose folder or file of samples.
        options: The options of the entry.
        split_part: A part that must be read. By default the training part, if any.

    Returns:
        The specs by split part, and the reason for each part that is left out.

    Raises:
        ConfigError: If the path is not loose data.
        DatasetError: If the required part cannot be read.
    """
    location = path_of(absolute(path))
    if not is_loose(location):
        raise ConfigError(f"{location} is not loose data: it is prepared or missing")
    parts = split_parts(location, options)
    needed = split_part or ("train" if "train" in parts else None)
    specs: dict[str, DataSpec] = {}
    reasons: dict[str, EnergizeError] = {}
    for part in dict.fromkeys([*parts, *([needed] if needed else [])]):
        try:
            specs[part] = inferred(location, part, options).spec
        except EnergizeError as reason:
            if part == needed:
                raise
            reasons[part] = reason
    if not specs:
        raise next(iter(reasons.values()))
    return PartSpecs(specs, {part: str(reason) for part, reason in reasons.items()})


# Tars.


def _of_tars(scene: Scene, split_part: str) -> InferredPart:
    """Return the samples of tars."""
    options = scene.options
    source = open_tars(scene)
    reading = read_tars(source)
    choice = _choice(scene, reading)
    kind = options.kind or SAMPLE_TYPES[choice.sample_type]
    if choice.sample_type == "ImageSample" and options.kind is None:
        _check_folders_of_tars(scene, source, len(reading.first))
    fields = None
    if kind is not CrudeSample:
        fields = _fields_of_tars(scene, kind, choice, reading)
    config = DataOptions(kind).config(SampleConfig("", ""), fields)
    config = options.config(config, fields)
    claims = dict.fromkeys(scene.names("tar"), "tar")
    candidate = Candidate("tars", 0, "tars", claims, lambda: reading)
    spec = account_of(
        scene, split_part, candidate, reading, kind, choice.field_map, source
    )
    return InferredPart(source, config, spec)


def _check_folders_of_tars(scene: Scene, source: WebdatasetSource, count: int) -> None:
    """Raise `DatasetError` if the keys of `count` samples are in several folders."""
    numbers = np.linspace(0, source.count - 1, count, dtype=np.int64)
    keys = [str(key).rpartition("/")[0] for key in source.keys(numbers)]
    folders = [*dict.fromkeys(keys)]
    if len(folders) > 1:
        raise DatasetError(
            f"{scene.path}: images of the tars are in folders that may be classes: "
            f"{some(folders)}. Write sample_type: ImageSample to read the images alone,"
            " or unpack the tars to read the folders as classes"
        )


def _fields_of_tars(
    scene: Scene, kind: Any, choice: Choice, reading: Reading
) -> dict[str, str]:
    """Return the field map by parts of tars; raise `ConfigError` for missing fields."""
    fields = {
        name: translated(scene.path, text, reading.parts, reading)
        for name, text in choice.field_map.items()
    }
    missing = [
        name for name in required_fields(kind) if name not in fields and name[:1] != "_"
    ]
    if missing:
        raise ConfigError(
            f"{scene.path}: field_map has no {', '.join(missing)}, and {kind.__name__} "
            f"needs it. The parts of the samples are {some(reading.columns)}"
        )
    check_field_map(kind, fields)
    return fields


# What is said of it.


def _check_options(path: Path, options: DataOptions, spec: DataSpec) -> None:
    """Raise `DatasetError` for data unlike the options; log the summary on rank 0."""
    if options.inferred is not None and (changes := spec.differences(options.inferred)):
        raise DatasetError(
            f"{path} has changed since its entry was written: "
            f"{'; '.join(changes)}. Correct the data, or write the entry again with: "
            "energize init"
        )
    if options.strict and (spec.left_out or spec.notes):
        raise DatasetError(f"{path}: {spec.summary()} (strict)")
    if is_first_rank():
        written = options.inferred is not None
        seen = not written and (options.sample_type is None or spec.is_doubtful)
        level = logging.WARNING if seen else logging.INFO
        text = spec.summary()
        log_once(str(path), text, text, level)
