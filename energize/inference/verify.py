"""Verification of inferred samples before the first is delivered."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from energize.core.description import digest
from energize.core.failures import Failed
from energize.core.ignored import log_once
from energize.core.lanes import is_first_rank
from energize.core.os_errors import convert_os_errors, is_url
from energize.core.samples import CrudeSample, sample_type_named
from energize.data.files import files_at
from energize.data.loose import LooseSource
from energize.data.rows import JsonSource, Row
from energize.data.writing import write_new
from energize.errors import DataError, DatasetError, EnergizeError
from energize.inference.engine import InferredPart
from energize.inference.options import DataOptions
from energize.inference.scene import FIRST, SPREAD
from energize.inference.tars import cache_folder
from energize.task.decode import SampleDecoder
from energize.task.images import without_notes
from energize.task.load import SampleLoader
from energize.task.types import text_fields, type_fault, type_faults

_MOST_FAILED = 2
"""One in this number of samples may be damaged; more is an error."""

_MOST_ROWS = 1_000_000
"""Number of rows with texts that are checked before delivery."""

_AT_ONCE = 4096

_log = logging.getLogger("energize")


@convert_os_errors
@without_notes()
def verify(part: InferredPart, options: DataOptions) -> None:
    """Check the first samples and some others, once for each version of the data.

    At most 64 samples are read, by the first rank. Samples that cannot be read or
    decoded, or lack a value, count as damage if most are good, and are left out later.

    Args:
        part: The inferred samples.
        options: The options of the entry. A wrong type in a field of its field map is a
            warning.

    Raises:
        DatasetError: If a field has a value of another type, or most samples are
            damaged.
    """
    source = part.source
    marker = cache_folder("verified", _version(part))
    if not is_first_rank() or not source.count or marker.exists():
        return
    numbers = _numbers(source.count)
    _plan(source, numbers)
    load = _loader(part)
    failed: list[str] = []
    raws = source.read(numbers)
    for number, raw in zip(numbers.tolist(), raws, strict=True):
        failed += _faults_of_sample(part, options, number, raw, load)
    if len(failed) * _MOST_FAILED > len(numbers):
        count = (
            f"{len(failed)} of {len(numbers)} samples cannot be made, the first one is "
        )
        raise DatasetError(_refusal(part, f"{count}{failed[0]}"))
    _check_texts(part, inferred_texts(part, options))
    with suppress(EnergizeError, OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        write_new(marker, part.spec.model_dump_json().encode(), DatasetError)


def _faults_of_sample(
    part: InferredPart,
    options: DataOptions,
    number: int,
    raw: Any,
    load: SampleLoader[Any],
) -> list[str]:
    """Return the damage of a sample; raise `DatasetError` for a value of another type.

    Wrong types of fields in the user's field map are a warning.
    """
    if isinstance(raw, Failed):
        return [f"{raw.where}: {raw.reason}"]
    location = part.source.where(number)
    try:
        sample = load(raw)
    except DataError as reason:
        return [f"{location}: {reason}"]
    faults = []
    for name, fault in type_faults(sample).items():
        text = f"{location}: {name!r}: {fault}"
        if _is_stated(name, options):
            log_once(part.spec.path, f"type of {name}", text, logging.WARNING)
        elif getattr(sample, name) is None:
            faults.append(text)
        else:
            raise DatasetError(_refusal(part, text))
    return faults


def inferred_texts(part: InferredPart, options: DataOptions) -> list[str]:
    """Return the text fields that are not in the user's field map."""
    if part.config.field_map is None:
        return []
    kind = sample_type_named(part.config.sample_module, part.config.sample_class)
    return [name for name in text_fields(kind) if not _is_stated(name, options)]


def _is_stated(name: str, options: DataOptions) -> bool:
    """Return whether the user's field map has a field, not a generated entry."""
    return options.inferred is None and name in (options.field_map or {})


def _check_texts(part: InferredPart, fields: Sequence[str]) -> None:
    """Raise `DatasetError` if a row of JSON has another type in a text field.

    Parquet and Arrow store the types of columns. A missing value is damage, which is
    counted when it is read; it is logged here.
    """
    spec = part.spec
    rows = getattr(part.source, "rows", None)
    columns = {
        name: spec.field_map[name]
        for name in fields
        if spec.field_map.get(name) in spec.column_names
    }
    if not isinstance(rows, JsonSource) or is_url(rows.location) or not columns:
        return
    kind = sample_type_named(part.config.sample_module, part.config.sample_class)
    missing: Counter[str] = Counter()
    for start in range(0, min(rows.count, _MOST_ROWS), _AT_ONCE):
        numbers = np.arange(start, min(start + _AT_ONCE, rows.count))
        for number, row in zip(numbers.tolist(), rows.read(numbers), strict=True):
            if not isinstance(row, Failed):
                missing.update(_missing_texts(part, kind, columns, number, row))
    for column in filter(missing.get, dict.fromkeys(columns.values())):
        _log.warning(
            "%s: %s of %s rows have no %r: they are left out when they are read, and "
            "count as damaged",
            spec.path,
            missing[column],
            rows.count,
            column,
        )


def _missing_texts(
    part: InferredPart,
    kind: Any,
    columns: Mapping[str, str],
    number: int,
    row: Row,
) -> Iterator[str]:
    """Yield the columns without text in a row; raise `DatasetError` for wrong types."""
    for name, column in columns.items():
        if column not in row:
            continue
        value = row[column]
        fault = type_fault(kind, name, value)
        if fault and value is None:
            yield column
        elif fault:
            text = f"{part.source.where(number)}: {name!r}: {fault}"
            raise DatasetError(_refusal(part, text))


def _plan(source: Any, numbers: Any) -> None:
    """Request samples in object storage together."""
    source.expect(numbers)
    if isinstance(source, LooseSource) and is_url(source.base):
        files = files_at(source.base)
        for row in source.rows.read(numbers):
            for path in [] if isinstance(row, Failed) else source.files_of(row):
                files.plan(path, [], [])


def _numbers(count: int) -> Any:
    spread = (
        np.linspace(FIRST, count - 1, SPREAD, dtype=np.int64) if count > FIRST else ()
    )
    return np.unique([*range(min(FIRST, count)), *spread])


def _loader(part: InferredPart) -> SampleLoader[Any]:
    config = part.config
    kind: Any = CrudeSample
    if config.field_map is not None:
        kind = sample_type_named(config.sample_module, config.sample_class)
    decoder = SampleDecoder(image_decode="torchrgb8").with_options(config.options)
    return SampleLoader(sample_type=kind, field_map=config.field_map, decoder=decoder)


def _refusal(part: InferredPart, fault: str) -> str:
    return (
        f"{part.spec.path}: {fault}. The inferred reading was {part.spec.override}. "
        "Correct the data, write the columns: sample_type: TYPE, field_map: {FIELD: "
        "COLUMN}, or set verify=False to skip this check"
    )


def _version(part: InferredPart) -> str:
    """Return a text that changes with the data and with their inference."""
    rows = getattr(part.source, "rows", part.source)
    files = [os.path.join(rows.location, name) for name in rows.shards if name]
    seen: list[Sequence[int]] = []
    for file in (*files, part.spec.path):
        with suppress(OSError, ValueError):
            if not is_url(file):
                stat = os.stat(file)
                seen.append((stat.st_size, stat.st_mtime_ns))
    facts = part.spec.facts(), part.spec.sample_type, part.spec.field_map
    return digest([part.spec.path, part.source.identity, *facts, seen])
