"""A recipe: a mixture file of another project, and the metadataset it stands for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from energize.core.samples import CrudeSample
from energize.core.validation import KeyPath, short
from energize.data.files import absent, absolute, exists, joined, path_of, path_type
from energize.data.tables import open_table
from energize.errors import EnergizeError, nearest, some
from energize.inference.engine import inferred
from energize.inference.options import DataOptions, MediaOptions

BASE: Final = "base"
"""The option with the folder in which relative paths of a recipe begin."""

_TYPO = 0.9
"""Similarity from which on a key of a run is a misspelt one."""

_CLUSTER = re.compile(r"([\w-]+):(s3://.*)")
"""A path in a cluster of Petrel's configuration file."""

IMAGE_FOLDER: Final = "image_folder"
"""The option with the folder in which names of images in rows begin."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe as a metadataset.

    Attributes:
        format: The name of its format.
        document: The metadataset, as the content of a YAML file.
        notes: Sentences for the user: what the original does differently.
        renamed: The path of a value in the recipe, by its path in the document.
    """

    format: str
    document: dict[str, Any]
    notes: tuple[str, ...] = ()
    renamed: Mapping[KeyPath, KeyPath] = field(default_factory=dict)

    def with_splits_of(self, other: Recipe) -> Recipe:
        """Return the recipe with the splits of another one added.

        Args:
            other: A recipe of the same file, with other splits.
        """
        splits = {**self.document["splits"], **other.document["splits"]}
        return replace(
            self,
            document={**self.document, "splits": splits},
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
            renamed={**self.renamed, **other.renamed},
        )


class RecipeFault(NamedTuple):
    """A fault of a recipe: its path in the recipe, what to do, and the file."""

    path: KeyPath
    text: str
    missing: bool = False
    file: Path | None = None


class RecipeEntry(NamedTuple):
    """An entry of the mix of a recipe.

    Attributes:
        keys: The keys of the entry in the metadataset.
        path: The path of the entry in the recipe.
        renamed: The key in the recipe by key in the metadataset, if they differ.
    """

    keys: dict[str, Any]
    path: KeyPath
    renamed: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class RecipeText:
    """The content of a recipe, for the reader of its format.

    Attributes:
        format: The name of the format.
        value: The parsed content.
        options: Options of the command line of the original, by name.
        file: The file of the content; None for content without a file.
        faults: Receives the faults of the recipe.
        notes: Receives sentences for the user, each once.
    """

    format: str
    value: Any
    options: Mapping[str, Any]
    file: Path | None = None
    faults: list[RecipeFault] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)

    def fault(self, path: KeyPath, text: str, *, missing: bool = False) -> None:
        """Note a fault of a value.

        Args:
            path: The path of the value in the recipe.
            text: The fault, its remedy, and what the original does.
            missing: Whether the fault is a path that does not exist.
        """
        self.faults.append(RecipeFault(path, text, missing, self.file))

    def note(self, text: str) -> None:
        """Add a sentence for the user."""
        self.notes[text] = None

    def check_keys(
        self, path: KeyPath, entry: Mapping[str, Any], keys: Iterable[str], effect: str
    ) -> None:
        """Note a fault for each key that neither the original nor the reader reads.

        Args:
            path: The path of the entry.
            entry: The entry.
            keys: The keys of the format.
            effect: The effect of other keys in the original.
        """
        names = list(keys)
        for key in entry:
            if key not in names:
                hint = nearest(str(key), names) or f". Keys: {some(names)}"
                self.fault((*path, key), f"unknown key {short(key)}{hint} {effect}")

    def check_run_keys(self, keys: Iterable[str]) -> None:
        """Note the keys of a run that are for the trainer; a fault for near misses.

        Args:
            keys: The keys that the reader reads.
        """
        names = list(keys)
        training = [str(key) for key in self.value if key not in names]
        for key in training:
            for name in get_close_matches(key, names, 1, _TYPO):
                hint = f"did you mean {name!r}? {self.format} stops here, too"
                self.fault((key,), f"unknown key {short(key)}; {hint}")
        if training:
            self.note(f"keys for the trainer are not read here: {some(training)}")

    def is_entry(
        self, path: KeyPath, entry: Any, needed: Sequence[str], other: Sequence[str]
    ) -> bool:
        """Return whether an entry is a mapping with some keys; note its faults.

        Args:
            path: The path of the entry.
            entry: The entry.
            needed: The keys that it needs.
            other: The keys that it may have.
        """
        if not isinstance(entry, Mapping) or not entry.keys() >= {*needed}:
            expected = f"expected a mapping with {some(needed)}, got {short(entry)}"
            self.fault(path, f"{expected}. {self.format} stops here, too")
            return False
        effect = f"{self.format} ignores the key"
        self.check_keys(path, entry, (*needed, *other), effect)
        return True

    def absolute(self, name: str) -> str:
        """Return the absolute path of a relative path in the recipe."""
        base = path_of(os.fspath(self.options.get(BASE, ".")))
        return absolute(joined(base, name))

    @property
    def images(self) -> str | None:
        """The folder of the images that the program sets, as an absolute path."""
        folder = self.options.get(IMAGE_FOLDER)
        return None if folder is None else self.absolute(os.fspath(folder))

    def located(self, path: KeyPath, name: str) -> str:
        """Return the absolute path of a value; note a cluster, which is not a URL.

        Args:
            path: The path of the value in the recipe.
            name: The value.
        """
        cluster = _CLUSTER.fullmatch(name)
        if cluster is None:
            return self.absolute(name)
        self.fault(
            path,
            f"{short(name)} is in the cluster {cluster[1]!r} of petreloss.conf. Write "
            f"{cluster[2]}, and set AWS_ENDPOINT_URL and the keys of the cluster. "
            f"{self.format} reads it with the client of Petrel",
        )
        return cluster[2]

    def existing(self, path: KeyPath, name: str) -> Path | None:
        """Return the absolute path of a file of the recipe; note a missing file.

        Args:
            path: The path of the value in the recipe.
            name: The path of the file.
        """
        known = len(self.faults)
        location = path_of(self.located(path, name))
        if len(self.faults) > known:
            return None
        if exists(location):
            return location
        text = (
            f"{short(name)} {absent(location)}, looked for {location}. Relative paths "
            f"begin in the working directory, as in {self.format}; the recipe option "
            f"{BASE!r} sets another folder. "
        )
        if path_of(name).suffix or name.startswith(("/", ".")):
            text += f"{self.format} stops here, too"
        else:
            text += (
                f"{self.format} downloads a dataset of the Hub: run `hf download "
                f"--repo-type dataset {name} --local-dir DIR`, and write DIR"
            )
        self.fault(path, text, missing=True)
        return None

    def count(self, path: KeyPath, file: Path, part: str = "train") -> int | None:
        """Return the number of samples; note a fault if they cannot be read.

        Args:
            path: The path of the value in the recipe.
            file: A file of rows, or a folder.
            part: The split part of a folder.
        """
        try:
            if path_type(file) == "file":
                return open_table([file]).count
            images = MediaOptions(self.images)
            options = DataOptions(sample_type=CrudeSample, media=images)
            return inferred(file, part, options).source.count
        except EnergizeError as reason:
            self.fault(path, str(reason))
            return None

    def subset(
        self, path: KeyPath, part: str, count: int, total: int
    ) -> dict[str, Any]:
        """Return the `subset` of an entry: none if it takes all samples.

        Args:
            path: The path of the value that sets the number.
            part: "first", "end" or "random".
            count: Number of samples.
            total: Number of samples of the file.
        """
        if count < 1:
            self.fault(path, f"none of {total} samples is left. Remove the entry")
        if count >= total:
            return {}
        if part == "random":
            return {"subset": {"random": count}}
        bounds = [0, count] if part == "first" else [total - count, "end"]
        return {"subset": {"range": bounds}}

    def mix(
        self,
        key: str,
        entries: Sequence[RecipeEntry],
        around: KeyPath,
        *,
        part: str = "train",
        **settings: Any,
    ) -> Recipe:
        """Return the recipe of a list of entries.

        Args:
            key: The key of the list: "blend", "blend_epochized" or "concat".
            entries: The entries.
            around: The path of the list in the recipe.
            part: The name of the split.
            **settings: Further keys of the split.
        """
        top: KeyPath = ("splits", part)
        renamed: dict[KeyPath, KeyPath] = {top: around, (*top, key): around}
        for number, entry in enumerate(entries):
            renamed[*top, key, number] = entry.path
            for name, original in entry.renamed.items():
                renamed[*top, key, number, name] = (*entry.path, original)
        listed = [entry.keys for entry in entries]
        split = {**settings, key: listed}
        head = {"__module__": "energize", "__class__": "MetadatasetV2"}
        document = {**head, "splits": {part: split}}
        return Recipe(self.format, document, tuple(self.notes), renamed)


@dataclass(frozen=True, slots=True)
class RecipeFormat:
    """A format of mixture files.

    Attributes:
        name: The name, for messages.
        recognises: Whether parsed content has this format, by its required keys.
        read: Returns the recipe; faults are added to the text.
        options: The options of the format, with a description of each.
    """

    name: str
    recognises: Callable[[Any], bool]
    read: Callable[[RecipeText], Recipe]
    options: Mapping[str, str]

    def recipe(
        self,
        value: Any,
        options: Mapping[str, Any],
        faults: list[RecipeFault],
        file: Path | None = None,
    ) -> Recipe | None:
        """Return the recipe of parsed content.

        Args:
            value: The content.
            options: The options of the program.
            faults: Receives the faults.
            file: The file of the content.

        Returns:
            The recipe; None if it has faults.
        """
        text = RecipeText(self.name, value, options, file, faults)
        expected = {BASE: "the folder of relative paths", **self.options}
        for name in options:
            if name not in expected:
                listed = [f"{key} ({use})" for key, use in expected.items()]
                hint = nearest(name, list(expected)) or "."
                message = f"unknown recipe option {short(name)}{hint} Options of "
                text.fault((), f"{message}{self.name}: {', '.join(listed)}")
        if faults:
            return None
        try:
            recipe = self.read(text)
        except (TypeError, ValueError) as reason:
            text.fault(
                (), f"a value has a form that {self.name} does not take: {reason}"
            )
        return None if faults else recipe
