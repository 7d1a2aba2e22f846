"""From a path to the tree of what is read: nested files followed, inherited settings applied."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from energize.errors import MetadatasetError, nearest
from energize.metadataset.keys import Composed, ScheduleTable, Spec
from energize.metadataset.located import KeyPath
from energize.metadataset.mixing import inherited_options, options_of
from energize.metadataset.plans import FaultyError, plan_of
from energize.metadataset.problems import Problem, as_error, place_noted, shown
from energize.metadataset.reading import STAGE_FILE, Metadataset, load
from energize.order import Schedule
from energize.order.epochs.quotas import Quota
from energize.order.stages.plan import Stage, StagePlan
from energize.samples.crude import CrudeSample
from energize.samples.registry import sample_type_named
from energize.storage.nv_meta import CRUDE, DatasetConfig, read_dataset_yaml

_SUFFIXES = (".yaml", ".yml")
_LISTED = 1000
_IN_BLEND = "an entry of a blend is one mixture"
_IN_STAGE = "a stage is one mixture"


@dataclass(frozen=True)
class Leaf:
    """One split part of one prepared folder, with the settings that all files on the way gave it.

    `shuffle_over_epochs_multiplier`: epochs shuffled together; None = no shuffle, -1 = drawn with
    replacement. `place`: where it was written, for messages.
    """

    path: Path
    split_part: str
    subflavors: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dataset_config: str | None = None
    split_config: str | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    place: str = field(default="", compare=False)

    @cached_property
    def config(self) -> DatasetConfig:
        """What the folder's dataset.yaml says of its samples; read once."""
        with place_noted(self.place):
            return read_dataset_yaml(self.path, self.dataset_config or "dataset.yaml")

    @cached_property
    def sample_type(self) -> type[Any]:
        """The type of samples that it names."""
        with place_noted(self.place):
            if self.config.sample_class == CRUDE:
                return CrudeSample
            return sample_type_named(self.config.sample_module, self.config.sample_class)


@dataclass(frozen=True, slots=True)
class Blend:
    """Nodes with their weights as given, not all of which are 0, and how they are mixed.

    `options` are those of `BlendDataset`; with `quotas`, one for each child, of `QuotaDataset`.
    """

    children: tuple[tuple[Node, float | Fraction | Schedule], ...]
    place: str = field(default="", compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    quotas: tuple[Quota, ...] | None = None
    composition: Composed | None = None

    @property
    def plain(self) -> bool:
        """Whether fixed weights say everything, so that its weights multiply with those around."""
        fixed = not any(isinstance(weight, Schedule) for _, weight in self.children)
        return fixed and not self.options and self.quotas is None


Node = Leaf | Blend


@dataclass(frozen=True, slots=True)
class Staged:
    """Stages of a run, each with the node it reads; only ever the outermost of what is read."""

    plan: StagePlan[Node]
    place: str = field(default="", compare=False)


def not_staged(node: Node | Staged, place: str, reason: str) -> Node:
    """The node asked for at `place`; a `MetadatasetError` with the `reason` when it has stages."""
    if isinstance(node, Staged):
        raise MetadatasetError(f"{place}: {_has_stages(node, reason)}")
    return node


def resolve(source: str | os.PathLike[str] | Metadataset, split_part: str) -> Node | Staged:
    """What `split_part` of a metadataset, or of a prepared folder, is made of.

    Paths in a file are relative to the folder the file is in. Settings of outer files win over
    those of inner ones; the outer `split_part` names the split of an inner file, unless the entry
    gives its own. A split with stages is `Staged`. Only metadataset files are read, no shard and no
    `.nv-meta`.

    Raises `MetadatasetError` with every fault of all files on the way (`DatasetNotFoundError` when
    nothing but paths that do not exist is wrong).

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "captions"
    >>> folder.mkdir()
    >>> leaf = resolve(folder, "train")
    >>> leaf.path.name, leaf.split_part
    ('captions', 'train')
    """
    resolver = _Resolver()
    outer = _Inherited(split_part)
    file = source.file if isinstance(source, Metadataset) else Path(source)
    try:
        if isinstance(source, Metadataset):
            node = resolver.split(source, outer)
        else:
            node = resolver.path(file, Spec(path=str(file)), outer, str(file))
    except FaultyError as error:
        raise as_error(file, [*resolver.problems, *error.problems]) from None
    if resolver.problems:
        raise as_error(file, resolver.problems)
    return node


@dataclass(frozen=True, slots=True)
class _Inherited:
    """What the files and entries around a node give it; `chain` is the files, with their splits."""

    split_part: str
    options: Mapping[str, Any] = field(default_factory=dict)
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    multiplier: int | None = 1
    chain: tuple[tuple[Path, str], ...] = ()
    place: str = ""

    def with_entry(self, spec: Spec) -> _Inherited:
        return replace(
            self,
            split_part=spec.split_part or self.split_part,
            subflavors={**spec.own_subflavors, **self.subflavors},
            multiplier=combined_multiplier(self.multiplier, spec.shuffle_over_epochs_multiplier),
        )


def combined_multiplier(outer: int | None, inner: int | None) -> int | None:
    """Of two levels of shuffling: none (None) wins, then replacement (-1), else the product."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


class _Resolver:
    """Follows files, each read once, and collects what is wrong in any of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._read: dict[Path, Metadataset | None] = {}

    def split(self, metadataset: Metadataset, outer: _Inherited) -> Node | Staged:
        """The split of `metadataset` that `outer` asks for."""
        name = outer.split_part
        link = (metadataset.file.resolve(), name)
        if link in outer.chain:
            links = [*outer.chain[outer.chain.index(link) :], link]
            circle = " -> ".join(f"{file} [{split}]" for file, split in links)
            raise FaultyError(Problem(outer.place, f"metadatasets include each other: {circle}"))
        if name not in metadataset.splits:
            known = list(metadataset.splits)
            hint = nearest(name, known) or "."
            text = f"no split {name!r}{hint} Splits here: {', '.join(known)}"
            fault = Problem(metadataset.place(("splits",)), text)
            raise FaultyError(fault.included_from(outer.place) if outer.chain else fault)
        inner = replace(outer, chain=(*outer.chain, link))
        spec = metadataset.splits[name]
        if spec.stages:
            return self._staged(metadataset, spec, ("splits", name), inner)
        return self._node(metadataset, spec, ("splits", name), inner)

    def _staged(
        self, metadataset: Metadataset, spec: Spec, path: KeyPath, outer: _Inherited
    ) -> Staged:
        def part(each: Spec, at: KeyPath) -> Node | None:
            return self._part(metadataset, each, at, outer, _IN_STAGE)

        here = (*path, "stages")
        default = (spec, path) if spec.path or spec.entries else None
        stages = [(each, (*here, i)) for i, each in enumerate(spec.stages)]
        plan = plan_of(metadataset.text, here, spec, stages, default=default, read=part)
        return Staged(plan.with_datasets(_found), metadataset.place(here))

    def _node(
        self, metadataset: Metadataset, spec: Spec, path: KeyPath, outer: _Inherited
    ) -> Node | Staged:
        if not spec.entries:
            place = metadataset.place((*path, "path"))
            return self.path(metadataset.file.parent / spec.path, spec, outer, place)
        here = (*path, "blend" if spec.blend else "datasets")
        options = options_of(spec, outer.options)
        inner = replace(outer, options=inherited_options(spec, options, outer.options))
        weights = [
            each.weight.schedule() if isinstance(each.weight, ScheduleTable) else each.weight
            for each in spec.entries
        ]
        parts = [
            self._part(metadataset, entry, (*here, i), inner, _IN_BLEND)
            for i, entry in enumerate(spec.entries)
        ]
        children = [(part, w) for part, w in zip(parts, weights, strict=True) if part is not None]
        quotas = tuple(entry.quota() for entry in spec.entries) if spec.by_quotas else None
        place = metadataset.place(here)
        return Blend(tuple(children), place, options, quotas, spec.composition)

    def _part(
        self, metadataset: Metadataset, spec: Spec, path: KeyPath, outer: _Inherited, reason: str
    ) -> Node | None:
        """One of several nodes; None for one of which nothing can be made, which is noted."""
        try:
            node = self._node(metadataset, spec, path, outer)
        except FaultyError as error:
            self.problems += error.problems
            return None
        if isinstance(node, Staged):
            text = _has_stages(node, reason)
            self.problems.append(Problem(metadataset.place((*path, "path")), text))
            return None
        return node

    def path(self, path: Path, spec: Spec, outer: _Inherited, place: str) -> Node | Staged:
        """What the entry `spec` at `place` refers to, its path being `path`."""
        inner = replace(outer.with_entry(spec), place=place)
        if not os.path.exists(path):  # Path.exists raises in folders that may not be entered
            raise FaultyError(Problem(place, _not_found(path, spec.path), not_found=True))
        if path.is_dir():
            return Leaf(
                path=_tidied(path),
                split_part=inner.split_part,
                subflavors=inner.subflavors,
                dataset_config=spec.dataset_config,
                split_config=spec.split_config,
                shuffle_over_epochs_multiplier=inner.multiplier,
                place=place,
            )
        if path.suffix not in _SUFFIXES:
            text = f"expected a prepared folder or a metadataset .yaml; got {shown(spec.path)}"
            text += f"; {STAGE_FILE}" if path.suffix == ".toml" else ""
            raise FaultyError(Problem(place, text))
        for key in ("dataset_config", "split_config"):
            if getattr(spec, key) is not None:
                text = (
                    f"{key} is for prepared folders, and {spec.path!r} is a metadataset; remove it"
                )
                raise FaultyError(Problem(place, text))
        return self.split(self._loaded(path, place if outer.chain else ""), inner)

    def _loaded(self, file: Path, place: str) -> Metadataset:
        key = file.resolve()
        found: list[Problem] = []
        if key not in self._read:
            self._read[key] = load(file, found)
        metadataset = self._read[key]
        if metadataset is None:  # told of once, where it is first included
            raise FaultyError(*(each.included_from(place) if place else each for each in found))
        return metadataset


def _found(stage: Stage[Node | None]) -> Node:
    """What a stage reads, when something can be made of it; a `FaultyError` else."""
    if stage.dataset is None:
        raise FaultyError
    return stage.dataset


def _has_stages(node: Staged, reason: str) -> str:
    return (
        f"this has stages, at {node.place}. They belong to the split that training reads, and "
        f"{reason}; name a split without stages with `split_part`"
    )


def _tidied(path: Path) -> Path:
    """The absolute path without `..` where that is the same folder; links keep their names."""
    short = Path(os.path.abspath(path))
    return short if short.exists() and short.samefile(path) else path.absolute()


def _not_found(path: Path, given: str) -> str:
    if "://" in given:
        return f"{given!r} is remote; this version reads local folders, so mount it or copy it"
    text = f"{given!r} does not exist, looked for {os.path.abspath(path)}"
    if "$" in given or given.startswith("~"):
        return f"{text}; variables and ~ are not expanded, write the path out"
    folder = path.parent
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"{text}, in a folder that does not exist or cannot be read"
    return text + nearest(path.name, [each.name for each in islice(folder.iterdir(), _LISTED)])
