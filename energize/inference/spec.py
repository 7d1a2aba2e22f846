"""The result of an inference: a description to read, write and compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["used", "metadata", "left out"]


class Use(BaseModel):
    """The use of a file, a group of similar files, or a column.

    `used` is part of samples; `metadata` is not, but can be named in `by` and in a
    field map; `left out` is not read.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    status: Status
    role: str = ""
    why: str = ""
    count: int = 1
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        title = f"{self.count:,} {self.name}" if self.count > 1 else repr(self.name)
        shown = ", ".join(self.examples) + (
            ", ..." if self.count > len(self.examples) else ""
        )
        location = f" ({shown})" if self.count > 1 and self.examples else ""
        return f"{title}{location}{f': {self.why}' if self.why else ''}"


class DataSpec(BaseModel):
    """The inferred contents of a path.

    Attributes:
        path: The folder or file.
        format: One of the formats of `energize.inference.formats`, `tars` or `mds`.
        argument: Evidence for the format.
        split_part: The described split part.
        splits: Samples of each split part. None for parts that were not counted.
        sample_type: Name of the sample type.
        field_map: Columns or parts of each field.
        classes: Names of classes in the order of their numbers.
        media_paths: Locations of the files that rows name, below the image folder.
        files: Use of every file; similar files are grouped.
        columns: Use of every column.
        notes: Other decisions and omissions.
        other_parts: Other split parts, each with its number of rows or files.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    format: str
    argument: str
    split_part: str
    splits: dict[str, int | None]
    sample_type: str
    field_map: dict[str, str]
    classes: tuple[str, ...] = ()
    media_paths: tuple[str, ...] = ()
    files: tuple[Use, ...] = ()
    columns: tuple[Use, ...] = ()
    notes: tuple[str, ...] = ()
    other_parts: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """The number of samples of the described split part."""
        return self.splits[self.split_part] or 0

    @property
    def left_out(self) -> list[Use]:
        """Files that are not read."""
        return [use for use in self.files if use.status == "left out"]

    @property
    def unused(self) -> list[Use]:
        """Columns that are in no sample."""
        return [use for use in self.columns if use.status != "used"]

    @property
    def column_names(self) -> frozenset[str]:
        """The names of all columns."""
        return frozenset(use.name for use in self.columns)

    @property
    def override(self) -> str:
        """The keys of an entry that state the inferred properties."""
        field_map = json.dumps(self.field_map, ensure_ascii=False)
        return f"sample_type: {self.sample_type}" + (
            f", field_map: {field_map}" if self.field_map else ""
        )

    @property
    def is_doubtful(self) -> bool:
        """Whether something is unused, left out or decided."""
        return bool(
            self.unused
            or self.left_out
            or self.notes
            or self.sample_type == "CrudeSample"
        )

    def summary(self) -> str:
        """Return the result in a few sentences."""
        fields = ", ".join(f"{name}={text}" for name, text in self.field_map.items())
        text = (
            f"{self.samples:,} samples as {self.sample_type}({fields}); {self.argument}"
        )
        if self.unused:
            text += f". Not in samples: {_listed(self.unused)}"
        if self.left_out:
            text += f". Files left out: {_listed(self.left_out)}"
        if self.other_parts:
            text += f". Other split parts: {', '.join(self.other_parts)}"
        for note in self.notes:
            text += f". Note: {note}"
        return f"{text}. To change it, write {self.override}"

    def comments(self) -> list[str]:
        """Return the result as lines: one for each relevant file, column and note."""
        lines = [f"{self.samples:,} samples: {self.argument}"]
        for kind_name, uses in (("file", self.files), ("column", self.columns)):
            lines += [f"{kind_name} {use}: {use.role or use.status}" for use in uses]
        return lines + [f"note: {note}" for note in self.notes]

    def entry(self) -> dict[str, Any]:
        """Return the keys of an entry that state the inferred properties."""
        entry: dict[str, Any] = {"format": self.format, "sample_type": self.sample_type}
        if self.field_map:
            entry["field_map"] = self.field_map
        return entry | {"inferred": self.facts()}

    def facts(self) -> dict[str, Any]:
        """Return the facts that an entry stores to detect changed data."""
        files = {use.name: use.count for use in self.files if use.status == "used"}
        columns = {use.name: use.role or use.status for use in self.columns}
        facts = {
            "format": self.format,
            "samples": self.samples,
            "files": files,
            "columns": columns,
        }
        return facts | ({"classes": [*self.classes]} if self.classes else {})

    def differences(self, facts: Mapping[str, Any]) -> list[str]:
        """Return the differences from the facts of an earlier inference."""
        differences = []
        current = self.facts()
        for name in ("files", "columns"):
            earlier = facts.get(name) or {}
            later = current[name]
            for key in dict.fromkeys([*earlier, *later]):
                if earlier.get(key) != later.get(key):
                    subject = f"{name[:-1]} {key!r}"
                    old = earlier.get(key, "missing")
                    new = later.get(key, "missing")
                    differences.append(f"{subject} was {old!r} and is {new!r}")
        for name in ("format", "samples", "classes"):
            if name in facts and facts[name] != current.get(name):
                differences.append(
                    f"{name} was {facts[name]!r:.80} and is {current.get(name)!r:.80}"
                )
        return differences


def _listed(uses: Iterable[Use]) -> str:
    return "; ".join(map(str, uses))
