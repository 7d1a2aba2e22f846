"""From a path to the tree of what is read: nested files followed, inherited settings applied."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from energize.data.files import exists
from energize.data.source import nested
from energize.errors import ConfigError, DatasetNotFoundError, MetadatasetError, nearest
from energize.metadataset.inheriting import Inherited, all_weighed
from energize.metadataset.keys import Spec
from energize.metadataset.located import KeyPath
from energize.metadataset.mixing import EPOCHIZED, flattened, inherited_options, options_of
from energize.metadataset.nodes import JSONL, Blend, JoinedLeaf, JoinedPart, Leaf, Node, Staged
from energize.metadataset.plans import FaultyError, plan_of
from energize.metadataset.problems import Problem, as_error, check_few, cut, shown, shown_path
from energize.metadataset.properties import divided
from energize.metadataset.reading import STAGE_FILE, MetadatasetFile, given, load
from energize.metadataset.resolving_joins import joined_leaf
from energize.metadataset.stores import resolved_store
from energize.metadataset.tables import ScheduleTable
from energize.order.stages import Stage

__all__ = [
    "Blend",
    "JoinedLeaf",
    "JoinedPart",
    "Leaf",
    "Node",
    "Staged",
    "not_staged",
    "resolve",
]

_SUFFIXES = (".yaml", ".yml")
_LISTED = 1000
_IN_BLEND = "an entry of a blend is one mixture"
_IN_STAGE = "a stage is one mixture"
_FOLDERS_ONLY = ("dataset_config", "split_config", "aux")


def not_staged(node: Node | Staged, place: str, reason: str) -> Node:
    """The node asked for at `place`; a `MetadatasetError` with the `reason` when it has stages."""
    if isinstance(node, Staged):
        raise MetadatasetError(f"{place}: {_has_stages(node, reason)}")
    return node


def resolve(
    source: str | os.PathLike[str] | MetadatasetFile | Mapping[str, Any],
    split_part: str,
    asked: Spec | None = None,
    *,
    existing: bool = True,
) -> Node | Staged:
    """What `split_part` of a metadataset (a file, or a mapping with what one would say), or of a
    prepared folder, is made of.

    Paths in a file are relative to the folder the file is in. Settings of outer files win over
    those of inner ones; the outer `split_part` names the split of an inner file, unless the entry
    gives its own. A split with stages is `Staged`. Only metadataset files are read, no shard, and
    of `.nv-meta` the columns that `by` names. `asked` has settings that win over those of all
    files: those of an entry that names `source`. With `existing=False`, datasets and stores need
    not be there.

    Raises `MetadatasetError` with every fault of all files on the way (`DatasetNotFoundError` when
    nothing but paths that do not exist is wrong).

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "captions"
    >>> folder.mkdir()
    >>> leaf = resolve(folder, "train")
    >>> leaf.path.name, leaf.split_part
    ('captions', 'train')
    """
    if isinstance(source, Mapping):
        source = given(source)
    outer, asked = Inherited(split_part), asked or Spec(path="")
    file = source.file if isinstance(source, MetadatasetFile) else Path(source)
    resolver = _Resolver(file, existing)
    try:
        if isinstance(source, MetadatasetFile):
            node = resolver.split(source, outer.with_entry(asked))
        else:
            node = resolver.path(file, replace(asked, path=str(file)), outer, str(file))
    except FaultyError as error:
        raise as_error(file, [*resolver.problems, *error.problems]) from None
    if resolver.problems:
        raise as_error(file, resolver.problems)
    return all_weighed(node)


class _Resolver:
    """Follows files, each read once, and collects what is wrong in any of them."""

    def __init__(self, file: Path, existing: bool) -> None:
        self._file, self._existing = file, existing
        self.problems: list[Problem] = []
        self._read: dict[Path, MetadatasetFile | None] = {}

    def split(self, metadataset: MetadatasetFile, outer: Inherited) -> Node | Staged:
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
            text = f"no split {shown(name)}{hint} Splits here: {cut(', '.join(known))}"
            fault = Problem(metadataset.place(("splits",)), text)
            raise FaultyError(fault.included_from(outer.place) if outer.chain else fault)
        inner = replace(outer, chain=(*outer.chain, link))
        spec = metadataset.splits[name]
        if spec.stages:
            return self._staged(metadataset, spec, ("splits", name), inner)
        return self._node(metadataset, spec, ("splits", name), inner)

    def _staged(
        self, metadataset: MetadatasetFile, spec: Spec, path: KeyPath, outer: Inherited
    ) -> Staged:
        def part(each: Spec, at: KeyPath) -> Node | None:
            around = outer if each is spec else outer.weighed(spec)
            return self._part(metadataset, each, at, around, _IN_STAGE)

        here = (*path, "stages")
        default = (spec, path) if spec.path or spec.entries or spec.join else None
        stages = [(each, (*here, i)) for i, each in enumerate(spec.stages)]
        plan = plan_of(metadataset.text, here, spec, stages, default=default, read=part)
        return Staged(plan.with_datasets(_found), metadataset.place(here))

    def _node(
        self, metadataset: MetadatasetFile, spec: Spec, path: KeyPath, outer: Inherited
    ) -> Node | Staged:
        node = self._listed(metadataset, spec, path, outer)
        if spec.by is not None:
            node = self._divided(node, spec, metadataset.place((*path, "by")), outer)
        if spec.packing is None and spec.level is None:
            return node
        if isinstance(node, Staged):
            done = ("level", "levelled") if spec.packing is None else ("packing", "packed")
            place = metadataset.place((*path, done[0]))
            text = f"a split with stages is {done[1]} stage by stage"
            raise FaultyError(Problem(place, text))
        return replace(node, packing=spec.packing, level=spec.level)

    def _listed(
        self, metadataset: MetadatasetFile, spec: Spec, path: KeyPath, outer: Inherited
    ) -> Node | Staged:
        if spec.kind == "path":
            place = metadataset.place((*path, "path"))
            aux = self._stores(metadataset, spec, path)
            return self.path(metadataset.file.parent / spec.path, spec, outer, place, aux)
        if spec.kind == "join":
            return joined_leaf(metadataset, spec, path, outer, self.path)
        self._check_relative(spec, metadataset.place((*path, "subset")))
        here = (*path, spec.kind)
        options = options_of(spec, outer.options)
        inner = replace(
            outer,
            options=inherited_options(spec, options, outer.options),
            subset=nested(spec.subset, outer.subset),
        ).weighed(spec)
        parts = [
            self._part(metadataset, entry, (*here, i), inner, _IN_BLEND)
            for i, entry in enumerate(spec.entries)
        ]
        children = [
            (part, _weight(entry), entry.quota())
            for part, entry in zip(parts, spec.entries, strict=True)
            if part is not None
        ]
        if spec.kind == EPOCHIZED:
            children = [each for child in children for each in flattened(*child)]
        return Blend(
            tuple((part, weight) for part, weight, _ in children),
            metadataset.place(here),
            options,
            tuple(quota for _, _, quota in children) if spec.by_quotas else None,
            spec.composition,
            "blend" if spec.datasets else spec.kind,
            targets=spec.targets,
            max_correction=spec.max_correction,
        )

    def _divided(self, node: Node | Staged, spec: Spec, place: str, outer: Inherited) -> Node:
        """What a node reads, mixed by a property."""
        if isinstance(node, Staged):
            raise FaultyError(Problem(place, _has_stages(node, "a property is that of a mixture")))
        options = options_of(spec, outer.options)
        return divided(node, spec, options, place, existing=self._existing)

    def _check_relative(self, spec: Spec, place: str) -> None:
        """Note a subset by numbers of samples where it is not a single dataset that has them."""
        if spec.subset is not None and spec.subset.samples is not None:
            text = (
                f"the subset {spec.subset} counts samples, which is only allowed for a leaf "
                "dataset; of a blend or a metadataset take percentages"
            )
            self._note(Problem(place, text))

    def _note(self, *problems: Problem) -> None:
        """Keep what is wrong; raise what was noted when that is much."""
        self.problems += problems
        check_few(self._file, self.problems)

    def _part(
        self,
        metadataset: MetadatasetFile,
        spec: Spec,
        path: KeyPath,
        outer: Inherited,
        reason: str,
    ) -> Node | None:
        """One of several nodes; None for one of which nothing can be made, which is noted."""
        try:
            node = self._node(metadataset, spec, path, outer)
        except FaultyError as error:
            self._note(*error.problems)
            return None
        if isinstance(node, Staged):
            text = _has_stages(node, reason)
            self._note(Problem(metadataset.place((*path, "path")), text))
            return None
        if (node.packing is not None or node.level is not None) and reason != _IN_STAGE:
            does, name = "packs its samples", "packing"
            if node.packing is None:
                does, name = "levels its batches", "level"
            text = (
                f"this file {does}, and here they are mixed with others first; give {name} to the "
                "split that mixes them, and remove it there"
            )
            self._note(Problem(metadataset.place((*path, "path")), text))
            return None
        return node

    def _stores(self, metadataset: MetadatasetFile, spec: Spec, path: KeyPath) -> Mapping[str, str]:
        """The stores that `aux` names; what is wrong with them is noted."""
        stores = {}
        for name, ref in (spec.aux or {}).items():
            try:
                stores[name] = resolved_store(ref, metadataset.file.parent, existing=self._existing)
            except (ConfigError, DatasetNotFoundError) as fault:
                missing = isinstance(fault, DatasetNotFoundError)
                place = metadataset.place((*path, "aux", name))
                self._note(Problem(place, str(fault), not_found=missing))
        return stores

    def path(
        self,
        path: Path,
        spec: Spec,
        outer: Inherited,
        place: str,
        aux: Mapping[str, str] | None = None,
    ) -> Node | Staged:
        """What the entry `spec` at `place` refers to, its path being `path`."""
        inner = replace(outer.with_entry(spec), place=place)
        there = exists(path)  # Path.exists raises in folders that may not be entered
        if not there and (self._existing or path.suffix in _SUFFIXES):
            raise FaultyError(Problem(place, _not_found(path, spec.path), not_found=True))
        if not there or path.is_dir() or path.suffix == JSONL:
            if path.suffix == JSONL and not path.is_dir():
                _check_folders_only(spec, ("dataset_config", "split_config"), place, "a file")
            return Leaf(
                path=_tidied(path),
                split_part=inner.split_part,
                subflavors=inner.subflavors,
                dataset_config=spec.dataset_config,
                split_config=spec.split_config,
                shuffle_over_epochs_multiplier=inner.multiplier,
                place=place,
                aux={} if aux is None else aux,
                subset=inner.subset,
                sample_weight=inner.sample_weight,
            )
        if path.suffix not in _SUFFIXES:
            text = "expected a prepared folder, a .jsonl file or a metadataset .yaml; got "
            text += shown(spec.path)
            text += f"; {STAGE_FILE}" if path.suffix == ".toml" else ""
            raise FaultyError(Problem(place, text))
        self._check_relative(spec, place)
        _check_folders_only(spec, _FOLDERS_ONLY, place, "a metadataset")
        return self.split(self._loaded(path, place if outer.chain else ""), inner)

    def _loaded(self, file: Path, place: str) -> MetadatasetFile:
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


def _check_folders_only(spec: Spec, keys: Sequence[str], place: str, what: str) -> None:
    """Refuse keys of folders for a path that is something else."""
    for key in keys:
        if getattr(spec, key) is not None:
            text = f"{key} is for prepared folders, and {shown(spec.path)} is {what}; remove it"
            raise FaultyError(Problem(place, text))


def _weight(entry: Spec) -> Any:
    """The weight of an entry, as what a blend takes."""
    weight = entry.weight
    return weight.schedule() if isinstance(weight, ScheduleTable) else weight


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
    if re.match(r"(?!file:)\w[\w+.-]+:/", given):  # a `Path` has one of the two slashes
        return f"{shown(given)} is remote; this version reads local folders, so mount it or copy it"
    text = f"{shown(given)} does not exist, looked for {shown_path(path)}"
    if given.startswith("~"):
        return f"{text}; ~ is not expanded, write ${{HOME}}{given[1:]}"
    if "$" in given:
        return f"{text}; a variable is written ${{NAME}}"
    folder = path.parent
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"{text}, in a folder that does not exist or cannot be read"
    return text + nearest(path.name, [each.name for each in islice(folder.iterdir(), _LISTED)])
