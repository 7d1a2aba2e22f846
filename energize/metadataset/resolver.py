"""Resolve a path to a mix: follow files, and combine settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from energize.core import limits
from energize.core.checks import real_number
from energize.core.validation import MOST_FAULTS, KeyPath, short
from energize.data.files import joined, path_of, path_type
from energize.data.media import kind_by_name
from energize.data.source import Subset, nested
from energize.datasets.align import Alignment
from energize.datasets.stage_plan import Stage, StagePlan
from energize.errors import (
    ConfigError,
    DatasetNotFoundError,
    EnergizeError,
    MetadatasetError,
    in_place_of,
    nearest,
    some,
)
from energize.inference.engine import FILES, InferredPart, is_loose
from energize.inference.options import OF_SAMPLES
from energize.metadataset.documents import (
    STAGE_FILE,
    MetadatasetFile,
    load,
    read_metadataset,
)
from energize.metadataset.leaves import named_entry, with_names
from energize.metadataset.located import Located, Problem, as_error, check_few
from energize.metadataset.models import (
    BLEND_DEFAULTS,
    ENERGIZE,
    KINDS,
    AtTop,
    BlendKeys,
    FolderKeys,
    JoinedKeys,
    JoinKeys,
    Keys,
    ListKeys,
    PassesKeys,
    StagesKeys,
)
from energize.metadataset.nodes import (
    AT_TOP,
    Blend,
    Concat,
    Folder,
    Join,
    Leaf,
    Mix,
    MixNode,
    Passes,
    Stages,
    with_leaves,
)
from energize.metadataset.paths import not_found_message, resolved_store
from energize.metadataset.properties import divided
from energize.order.quota import Quota
from energize.order.timeline import WEIGHTLESS
from energize.recipes.formats import is_recipe
from energize.recipes.llava import brace_list
from energize.recipes.recipe import IMAGE_FOLDER
from energize.task.encoder import Level

D = TypeVar("D")
_log = logging.getLogger("energize")

MixPath: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]
"""A prepared folder, a file, or loose data; a mapping with the content of a metadataset
file; a list of paths, or a dict of paths and weights or of split parts and paths."""

DEFAULT_STAGE = "default"
"""The name of the stage of the steps before the first stage."""

_SUFFIXES = (".yaml", ".yml")
_PATH = (str, os.PathLike)
_CONFIGS = ("dataset_config", "split_config")
_OPTIONS = "recipe"
_IN_BLEND = "an entry of a blend is one mixture"
_IN_STAGE = "a stage is one mixture"
_INHERITED = ("scheme", "block_size", "stop", "unit")
_ENTRY_KEYS = ("weight", "min_share", "max_share", "max_epochs", "target_weight")
_JOIN_SETTINGS = ("shuffle_over_epochs_multiplier", "subset", "sample_weight")
_NO_SETTINGS = FolderKeys.model_construct(path="")
_FOLDER = Folder.model_construct(path=Path())
_MIXES: Mapping[str, type[Mix]] = {mix.list_key: mix for mix in (Blend, Passes, Concat)}


@dataclass(frozen=True, slots=True)
class Inherited:
    """Settings that the files and entries around a node give it.

    `blends` are options of the blends inside; `chain` are the files, with their splits.
    """

    split_part: str
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    shuffle_over_epochs_multiplier: int | None = 1
    subset: Subset | None = None
    sample_weight: float | None = None
    blends: Mapping[str, Any] = field(default_factory=dict)
    chain: tuple[tuple[Path, str], ...] = ()

    def inside(self, entry: Any) -> Inherited:
        """Return the settings inside an entry, combined with its own."""
        multiplier = combined_multiplier(
            self.shuffle_over_epochs_multiplier, entry.shuffle_over_epochs_multiplier
        )
        return replace(
            self,
            split_part=entry.split_part or self.split_part,
            subflavors={**(entry.subflavors or {}), **self.subflavors},
            shuffle_over_epochs_multiplier=multiplier,
            **self._combined(entry),
        )

    def part(self, keys: Any) -> Inherited:
        """Return the settings inside a list, with its subset and its sample weight."""
        return replace(self, **self._combined(keys))

    def _combined(self, keys: Any) -> dict[str, Any]:
        weight = self.sample_weight
        inner_weight = getattr(keys, "sample_weight", None)
        if inner_weight is not None:
            weight = float(inner_weight) * (1.0 if weight is None else weight)
        subset = self.subset
        inner_subset = getattr(keys, "subset", None)
        if inner_subset is not None:
            subset = nested(inner_subset, subset)
        return {"subset": subset, "sample_weight": weight}

    def leaf_settings(self) -> dict[str, Any]:
        """Return the settings as fields of a leaf."""
        return {
            "split_part": self.split_part,
            "subflavors": self.subflavors,
            "shuffle_over_epochs_multiplier": self.shuffle_over_epochs_multiplier,
            "subset": self.subset,
            "sample_weight": self.sample_weight,
        }


def combined_multiplier(outer: int | None, inner: int | None) -> int | None:
    """Combine two levels of shuffling.

    None (no shuffle) wins over -1 (replacement), which wins over the product.

    Args:
        outer: The multiplier around.
        inner: The multiplier inside.
    """
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


def not_staged(node: MixNode | Stages, location: object, reason: str) -> MixNode:
    """Return a node without stages.

    Raises:
        MetadatasetError: If it has stages.
    """
    if isinstance(node, Stages):
        raise MetadatasetError(f"{location}: {_has_stages(node, reason)}")
    return node


def resolve(
    path: MixPath | MetadatasetFile,
    split_part: str,
    settings: FolderKeys | None = None,
    *,
    existing: bool = True,
) -> MixNode | Stages:
    """Resolve a split part of a mix: follow its files and combine their settings.

    Paths in a file are relative to the folder the file is in. Settings of outer files
    win over those of inner ones; the outer `split_part` names the split of an inner
    file, unless the entry has its own. Only metadataset files are read, no shard, and
    of `.nv-meta` the columns that `by` names.

    Args:
        path: The mix.
        split_part: The split part, or the split of a metadataset.
        settings: Settings that win over those of all files, as an entry that names
            `path` would have them.
        existing: Whether datasets and stores have to exist.

    Returns:
        The resolved mix; `Stages` of a split with stages.

    Raises:
        MetadatasetError: With every fault of all files on the way.
        DatasetNotFoundError: If all faults are paths that do not exist.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "captions"
    >>> folder.mkdir()
    >>> leaf = resolve(folder, "train")
    >>> leaf.path.name, leaf.split_part
    ('captions', 'train')
    """
    mix = path if isinstance(path, MetadatasetFile) else as_mix(path, split_part)
    if isinstance(mix, Mapping):
        mix = read_metadataset(mix, recipe_options(settings or _NO_SETTINGS))
    file = mix.file if isinstance(mix, MetadatasetFile) else path_of(mix)
    resolver = _Resolver(file, existing)
    entry = (settings or _NO_SETTINGS).model_copy(update={"path": str(file)})
    outer = Inherited(split_part)
    if isinstance(mix, MetadatasetFile):
        node = resolver.split(mix, outer.inside(entry), str(file))
    else:
        node = resolver.follow(file, entry, outer, str(file))
    if node is None or resolver.problems:
        raise as_error(file, resolver.problems)
    node = cast("MixNode | Stages", with_names(node))
    if not resolver.weighs:
        return node
    # All batches have loss weights if some leaf has one.
    weighed: MixNode | Stages = with_leaves(node, _weighed)
    return weighed


def _weighed(leaf: Leaf) -> Leaf:
    return (
        leaf.model_copy(update={"sample_weight": 1.0})
        if leaf.sample_weight is None
        else leaf
    )


def as_mix(path: Any, split_part: str) -> Any:
    """Return the argument `path` as a path, or as a mapping of a metadataset.

    Args:
        path: A path or a mapping, which are returned; a list of paths or entries, a
            dict of paths and weights, or a dict of split parts and paths.
        split_part: The split part of the mapping, or that is taken of the dict.

    Raises:
        ConfigError: For another argument.

    >>> mix = as_mix({"photos/": 0.6, "texts/": 0.4}, "train")
    >>> mix["splits"]["train"]["blend"][0]
    {'path': 'photos/', 'weight': 0.6}
    >>> as_mix({"train": "photos/", "val": "texts/"}, "val")
    'texts/'
    """
    if isinstance(path, Mapping):
        if split_part in path and path.keys() <= {"train", "val"}:
            return as_mix(path[split_part], split_part)
        if None in map(real_number, path.values()):
            return path
        path = [{"path": name, "weight": weight} for name, weight in path.items()]
    if isinstance(path, _PATH):
        return brace_list(os.fspath(path)) or path
    entries = _blend_entries(path) if isinstance(path, list | tuple) else None
    if entries:
        head = {"__module__": ENERGIZE, "__class__": "MetadatasetV2"}
        return {**head, "splits": {split_part: {"blend": entries}}}
    raise ConfigError(
        "expected the path of a folder or a metadataset, got a "
        f"{type(path).__name__}. Make batches of a dataset with "
        "BatchDataset(dataset, 32, generic_batch) or "
        "encoder.build_batch(encoder.build_encode_sample(dataset), batch_size=32)"
    )


def _blend_entries(paths: Sequence[Any]) -> list[Any] | None:
    """Return paths and entries as the entries of a blend; None for other values."""
    entries: list[Any] = []
    for entry in paths:
        if isinstance(entry, _PATH):
            entries.append({"path": entry, "weight": 1})
        elif isinstance(entry, Mapping):
            entries.append(entry)
        else:
            return None
    return entries


class _Resolver:
    """Follows files, and reads each once.

    Faults are added to `problems`, and None is returned in place of a faulty node.
    """

    def __init__(self, file: Path, existing: bool) -> None:
        self._file = file
        self._existing = existing
        self.problems: list[Problem] = []
        self.weighs = False
        self._files: dict[tuple[Path, str], MetadatasetFile | None] = {}
        self._inferred_parts: dict[Any, InferredPart] = {}
        self._followed = 0

    def fault(
        self, location: str, text: str, *, not_found: bool = False
    ) -> Folder | None:
        """Note a fault, and return None; raise all faults if there are many."""
        self.problems.append(Problem(location, text, not_found=not_found))
        check_few(self._file, self.problems)
        return None

    # Files

    def follow(
        self,
        path: Path,
        entry: FolderKeys | JoinedKeys,
        outer: Inherited,
        location: str,
        aux: Mapping[str, str] | None = None,
    ) -> MixNode | Stages | None:
        """Return the node at the path of the entry at `location`."""
        self._count_followed(location)
        inner = outer.inside(entry)
        present = path_type(
            path
        )  # Path.exists raises in folders that may not be entered
        if not present and (self._existing or path.suffix in _SUFFIXES):
            message = not_found_message(path, entry.path)
            return self.fault(location, message, not_found=True)
        is_rows = path.suffix.lower() in FILES and not (
            present == "file" and is_recipe(path)
        )
        if present == "file" and not is_rows:
            return self._included(path, entry, outer, location)
        of_file = _CONFIGS if present == "file" else ()
        key = _foreign_key(entry, (*of_file, _OPTIONS))
        if key is not None:
            return self.fault(location, _foreign_message(key, entry))
        return self._folder(path, entry, inner, location, aux)

    def _included(
        self,
        path: Path,
        entry: FolderKeys | JoinedKeys,
        outer: Inherited,
        location: str,
    ) -> MixNode | Stages | None:
        """Return the node of a metadataset or a recipe."""
        if path.suffix not in (*_SUFFIXES, ".json"):
            return self.fault(location, _unreadable(path, entry.path))
        self._check_relative(entry, location)
        file = self._read(path, entry, location, included=bool(outer.chain))
        if file is None:
            return None
        names = [*_CONFIGS, "aux", *OF_SAMPLES, _OPTIONS]
        if file.recipe is not None:
            names = [name for name in names if name not in (IMAGE_FOLDER, _OPTIONS)]
        key = _foreign_key(entry, names)
        if key is not None:
            return self.fault(location, _foreign_message(key, entry))
        return self.split(file, outer.inside(entry), location)

    def _count_followed(self, location: str) -> None:
        """Count a path; raise `MetadatasetError` above the limit of one file."""
        self._followed += 1
        if self._followed > limits.YAML_VALUES:
            included = f"with all files that it includes, {limits.over('YAML_VALUES')}"
            raise MetadatasetError(f"{location}: {included}")

    def _folder(
        self,
        path: Path,
        entry: FolderKeys | JoinedKeys,
        inner: Inherited,
        location: str,
        aux: Mapping[str, str] | None,
    ) -> Folder:
        self.weighs |= inner.sample_weight is not None
        fields = _fields(entry, FolderKeys) | inner.leaf_settings()
        fields |= {
            "path": _tidied(path),
            "aux": aux or {},
            "location": location,
            "inferred_parts": self._inferred_parts,
        }
        return _FOLDER.model_copy(update=fields)

    def _read(
        self,
        path: Path,
        entry: FolderKeys | JoinedKeys,
        location: str,
        *,
        included: bool,
    ) -> MetadatasetFile | None:
        """Return a metadataset file; its faults are noted at its first inclusion."""
        options = recipe_options(entry)
        key = path.resolve(), str(options)
        if key not in self._files:
            faulty: list[Problem] = []
            self._files[key] = load(path, faulty, options)
            suffix = f" (included from {location})" if included else ""
            self.problems += [replace(p, message=p.message + suffix) for p in faulty]
        return self._files[key]

    def split(
        self, file: MetadatasetFile, outer: Inherited, location: str
    ) -> MixNode | Stages | None:
        """Return the split of a file that the entry at `location` names."""
        name = outer.split_part
        link = (file.file.resolve(), name)
        if link in outer.chain:
            links = [*outer.chain[outer.chain.index(link) :], link]
            circle = " -> ".join(f"{path} [{split}]" for path, split in links)
            return self.fault(location, f"metadatasets include each other: {circle}")
        if name not in file.splits:
            hint = nearest(name, list(file.splits)) or "."
            text = f"no split {short(name)}{hint} Splits here: {some(file.splits)}"
            text += f" (included from {location})" if outer.chain else ""
            return self.fault(file.text.place(("splits",)), text)
        inner = replace(outer, chain=(*outer.chain, link))
        if len(inner.chain) > limits.LEVELS:
            message = f"metadatasets include one another: {limits.over('LEVELS')}"
            return self.fault(location, message)
        keys = file.splits[name]
        if isinstance(keys, StagesKeys):
            return self._stages(file, keys, ("splits", name), inner)
        return self._node(file, keys, ("splits", name), inner)

    # Nodes

    def _node(
        self, file: MetadatasetFile, keys: Any, path: KeyPath, outer: Inherited
    ) -> MixNode | Stages | None:
        """Return the node of some keys at a path in a file."""
        node: MixNode | Stages | None
        if isinstance(keys, FolderKeys):
            node = self._entry(file, keys, path, outer)
        elif isinstance(keys, JoinKeys):
            node = self._join(file, keys, path, outer)
        else:
            node = self._list(file, keys, path, outer)
        if node is not None and getattr(keys, "by", None) is not None:
            node = self._by_property(file, node, keys, path, outer)
        if node is not None and isinstance(keys, AtTop):
            node = self._at_top(file, node, keys, path)
        return node

    def _entry(
        self, file: MetadatasetFile, keys: FolderKeys, path: KeyPath, outer: Inherited
    ) -> MixNode | Stages | None:
        """Return the node that an entry with a path names."""
        aux = self._stores(file, keys, path)
        base = file.file.parent
        if keys.image_folder is not None:
            images = {"image_folder": str(joined(base, keys.image_folder))}
            keys = keys.model_copy(update=images)
        target = (
            joined(base, keys.path)
            if ":/" in keys.path
            else base / os.path.expanduser(keys.path)
        )
        location = file.text.place((*path, "path"))
        return self.follow(target, keys, outer, location, aux)

    def _by_property(
        self,
        file: MetadatasetFile,
        node: MixNode | Stages,
        keys: Any,
        path: KeyPath,
        outer: Inherited,
    ) -> MixNode | None:
        location = file.text.place((*path, "by"))
        options = blend_options(keys, outer.blends)
        try:
            return divided(node, keys, options, location, existing=self._existing)
        except EnergizeError as reason:
            return self.fault(location, str(reason))

    def _at_top(
        self, file: MetadatasetFile, node: MixNode | Stages, keys: AtTop, path: KeyPath
    ) -> MixNode | Stages | None:
        """Return a split or stage with its packing and level."""
        given = {name: getattr(keys, name) for name in AT_TOP}
        if keys.align is None and not any(v is not None for v in given.values()):
            return node
        if isinstance(node, Stages):
            text = (
                "a split with stages has packing, batch_budget, level and align by "
                "stage"
            )
            return self.fault(file.text.place(path), text)
        # Validators have made arguments of the keys.
        level = cast("Level | None", keys.level)
        try:
            if keys.align is not None:
                given["level"] = Level.aligned(level, cast("Alignment", keys.align))
            elif level is not None:
                level.check_size()
        except ConfigError as reason:
            name = "level" if keys.align is None else "align"
            return self.fault(file.text.place((*path, name)), str(reason))
        return node.model_copy(update=given)

    def _part(
        self,
        file: MetadatasetFile,
        keys: Keys,
        path: KeyPath,
        outer: Inherited,
        reason: str,
    ) -> MixNode | None:
        """Return one of several nodes, which has no stages and, in a blend, is not
        packed or levelled.
        """
        node = self._node(file, keys, path, outer)
        if isinstance(node, Stages):
            location = file.text.place((*path, "path"))
            return self.fault(location, _has_stages(node, reason))
        if node is None or reason == _IN_STAGE:
            return node
        key = next((name for name in AT_TOP if getattr(node, name) is not None), None)
        if key is None:
            return node
        if key == "level":
            key = cast("Level", node.level).keys
        text = (
            f"{key} is set here for samples that are mixed first. Set it for the "
            "whole mix"
        )
        return self.fault(file.text.place((*path, "path")), text)

    def _list(
        self, file: MetadatasetFile, keys: Any, path: KeyPath, outer: Inherited
    ) -> Mix:
        """Return the node of a blend, a blend_epochized or a concat."""
        if keys.subset is not None:
            self._check_relative(keys, file.text.place((*path, "subset")))
        path = (*path, keys.list_key)
        options = blend_options(keys, outer.blends)
        handed = _handed_on(keys, options, outer.blends)
        inner = replace(outer.part(keys), blends=handed)
        children: list[MixNode] = []
        for i, entry in enumerate(keys.entries):
            node = self._part(file, entry, (*path, i), inner, _IN_BLEND)
            if node is None:
                continue
            node = node.model_copy(update=_entry_fields(entry, keys))
            if entry.name is not None:
                node = named_entry(node, entry.name)
            if isinstance(node, Passes) and isinstance(keys, PassesKeys):
                children += _flattened(node)
            else:
                children.append(node)
        node_type = _MIXES[keys.list_key]
        fields = _fields(keys, node_type) | options
        fields |= {"children": children, "location": file.text.place(path)}
        mix = node_type.model_construct(**fields)
        self.weighs |= mix.targets is not None
        return mix

    def _join(
        self, file: MetadatasetFile, keys: JoinKeys, path: KeyPath, outer: Inherited
    ) -> Join | None:
        inner = outer.inside(keys)
        whole = inner.leaf_settings()
        around = replace(
            inner, shuffle_over_epochs_multiplier=1, subset=None, sample_weight=None
        )
        parts: list[Folder] = []
        for name, entry in keys.entries:
            part = self._joined(file, keys, (*path, "join", name), entry, around)
            if part is not None:
                label = name if isinstance(name, str) else None
                parts.append(
                    part.model_copy(
                        update={"entry_name": label, "nonmatch": entry.nonmatch}
                    )
                )
        if len(parts) < len(keys.entries):
            return None
        self.weighs |= inner.sample_weight is not None
        first = parts[0]
        return Join.model_construct(
            path=first.path,
            split_part=first.split_part,
            subflavors=first.subflavors,
            dataset_config=first.dataset_config,
            split_config=first.split_config,
            **{name: whole[name] for name in _JOIN_SETTINGS},
            join=parts,
            joiner=keys.joiner,
            cache=file.file.with_name(f"{file.file.name}.cache"),
            location=file.text.place((*path, "join")),
        )

    def _joined(
        self,
        file: MetadatasetFile,
        keys: JoinKeys,
        path: KeyPath,
        entry: JoinedKeys,
        outer: Inherited,
    ) -> Folder | None:
        """Return one of the folders of a join."""
        location = file.text.place((*path, "path"))
        if entry.shuffle_over_epochs_multiplier != 1:
            _log.warning(
                "%s: the multiplier of the join sets the order, and the multiplier "
                "here is ignored",
                location,
            )
        configs = {
            "dataset_config": entry.dataset_config or keys.dataset_config,
            "split_config": entry.split_config or keys.split_config,
        }
        entry = entry.model_copy(update=configs)
        target = joined(file.file.parent, entry.path)
        node = self.follow(target, entry, outer, location)
        if node is None:
            return None
        if isinstance(node, Folder) and not (node.is_jsonl or is_loose(node.path)):
            return node
        message = (
            f"a join needs prepared folders, and {short(entry.path)} is not a "
            "prepared folder"
        )
        return self.fault(location, message)

    def _stages(
        self,
        file: MetadatasetFile,
        keys: StagesKeys,
        path: KeyPath,
        outer: Inherited,
    ) -> Stages | None:
        default = None
        inner = replace(outer, sample_weight=outer.part(keys).sample_weight)
        if isinstance(keys, tuple(KINDS.values())):
            default = path, self._part(file, keys, path, outer, _IN_STAGE)
        path = (*path, "stages")
        stages = []
        for i, stage in enumerate(keys.stages):
            node = self._part(file, stage, (*path, i), inner, _IN_STAGE)
            stages.append((stage, (*path, i), node))
        plan = plan_of(file.text, path, keys, stages, default=default, fault=self.fault)
        if plan is None or self.problems:
            return None
        return Stages.model_construct(plan=plan, location=file.text.place(path))

    def _stores(
        self, file: MetadatasetFile, keys: FolderKeys, path: KeyPath
    ) -> dict[str, str]:
        """Return the stores of `aux` with absolute paths."""
        stores = {}
        for name, ref in (keys.aux or {}).items():
            try:
                stores[name] = resolved_store(
                    ref, file.file.parent, existing=self._existing
                )
            except (ConfigError, DatasetNotFoundError) as error:
                missing = isinstance(error, DatasetNotFoundError)
                location = file.text.place((*path, "aux", name))
                self.fault(location, str(error), not_found=missing)
        return stores

    def _check_relative(self, keys: Any, location: str) -> None:
        """Note a subset by numbers of samples, or random, of more than one dataset."""
        subset = keys.subset
        if subset is None:
            return
        if subset.samples is not None or subset.drawn is not None:
            text = "which is only allowed for a leaf dataset. Use percentages"
            self.fault(location, f"the subset {subset} counts samples, {text}")


def _fields(keys: Keys, model: type[Keys]) -> dict[str, Any]:
    """Return the values of those keys that a kind of node has."""
    return {name: getattr(keys, name) for name in _common_fields(type(keys), model)}


@cache
def _common_fields(keys: type[Keys], model: type[Keys]) -> tuple[str, ...]:
    return tuple(keys.model_fields.keys() & model.model_fields.keys())


def _entry_fields(entry: Any, keys: ListKeys) -> dict[str, Any]:
    """Return the fields that an entry sets for its node in the list around it."""
    fields: dict[str, Any] = {"quota": entry.quota if keys.by_quotas else None}
    for name in _ENTRY_KEYS:
        if hasattr(entry, name):
            fields[name] = getattr(entry, name)
    return fields


def recipe_options(entry: FolderKeys | JoinedKeys) -> dict[str, Any]:
    """Return the options of a recipe that an entry names."""
    if not isinstance(entry, FolderKeys):
        return {}
    options = dict(entry.recipe or {})
    if entry.image_folder is not None:
        options[IMAGE_FOLDER] = entry.image_folder
    return options


def _foreign_key(entry: FolderKeys | JoinedKeys, names: Iterable[str]) -> str | None:
    """Return a key of an entry that has no meaning for its path, among some keys."""
    return next((name for name in names if getattr(entry, name, None)), None)


def _foreign_message(key: str, entry: FolderKeys | JoinedKeys) -> str:
    needed = "mixture file of another project" if key == _OPTIONS else "prepared folder"
    return (
        f"{key} needs a {needed}, and {short(entry.path)} is not a {needed}. Remove it"
    )


def _unreadable(path: Path, text: str) -> str:
    """Return the message for a file that is not read by its path."""
    hint = f", but {STAGE_FILE}" if path.suffix == ".toml" else in_place_of(path)
    if kind_by_name(path.name) is not None:
        hint = f". Pass the folder of the file, {path.parent}"
    expected = f"expected a folder, {', '.join(FILES)} or a metadataset .yaml"
    return f"{expected}, got {short(text)}{hint}"


def _tidied(path: Path) -> Path:
    """Return the absolute path, without `..` if the folder stays the same."""
    if ".." not in path.parts:
        return path.absolute()
    tidy = Path(os.path.abspath(path))
    return tidy if tidy.exists() and tidy.samefile(path) else path.absolute()


# Options of blends


def blend_options(keys: Any, around: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a blend by weights, with those of the blends around it.

    Args:
        keys: The keys of a node.
        around: The options that hold for blends inside others.

    Returns:
        Values of fields of `Blend`; none for a list by quotas.
    """
    if isinstance(keys, ListKeys) and keys.by_quotas:
        return {}
    options = dict(around)
    changes = _changed_options(keys) if isinstance(keys, BlendKeys) else {}
    if "scheme" in changes or "unit" in keys.model_fields_set:
        options = {"stop": around["stop"]} if "stop" in around else {}
    elif "block_size" in changes:
        options.pop("unit", None)
    options |= changes
    if "block_size" in options:
        options.setdefault("scheme", "block")
    return options


def _changed_options(keys: BlendKeys) -> dict[str, Any]:
    """Return the options of a blend that differ from their defaults."""
    values = {name: getattr(keys, name) for name in BLEND_DEFAULTS}
    return {
        name: value
        for name, value in values.items()
        if value not in (None, BLEND_DEFAULTS[name])
    }


def _handed_on(
    keys: ListKeys, options: Mapping[str, Any], around: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the options of a blend that its inner blends inherit.

    A scheme without weights is not inherited: it gives each entry the same share,
    including entries that are blends.
    """
    if keys.by_quotas:
        return around
    names = ("stop",) if options.get("scheme") in WEIGHTLESS else _INHERITED
    return {name: options[name] for name in names if name in options}


def _flattened(node: Passes) -> list[MixNode]:
    """Return the entries of a nested blend_epochized with multiplied repetitions."""
    children = []
    outer = _repetitions(node.quota)
    for child in node.children:
        names = [name for name in (node.entry_name, child.entry_name) if name]
        quota = Quota(repeat=float(outer * _repetitions(child.quota)))
        label = "/".join(names) or None
        children.append(child.model_copy(update={"quota": quota, "entry_name": label}))
    return children


def _repetitions(quota: Quota | None) -> Fraction:
    return Fraction(str(1 if quota is None or quota.repeat is None else quota.repeat))


# Stages


def plan_of(
    text: Located,
    path: KeyPath,
    around: Any,
    stages: Sequence[tuple[Any, KeyPath, D]],
    *,
    default: tuple[KeyPath, D] | None,
    fault: Callable[[str, str], Any],
) -> StagePlan[D] | None:
    """Return the plan of the stages of a file; None if it has faults.

    Args:
        text: The file.
        path: The path of the stages in the file.
        around: Settings of stages without their own.
        stages: The keys of each stage, its path, and its dataset.
        default: The path and the dataset of the steps before the first stage.
        fault: Receives the location and the text of each fault.
    """

    def stage(
        name: str, keys: Any, at: KeyPath, dataset: D, *steps: int | None
    ) -> Stage[D]:
        return Stage(
            name,
            *steps,  # type: ignore[arg-type]  # the first is given, or has a default
            dataset=dataset,
            location=text.place(at),
            seq_len=keys.seq_len or around.seq_len,
            seed=around.seed if keys.seed is None else keys.seed,
            items_per_step=keys.items_per_step or around.items_per_step or 1,
            batch=(around.batch or {}) | (keys.batch or {}),
        )

    first = None if default is None else stage(DEFAULT_STAGE, around, *default)
    listed = [
        stage(keys.name, keys, at, dataset, keys.start_step, keys.end_step)
        for keys, at, dataset in stages
    ]
    try:
        return StagePlan(listed, around.steps, first)
    except ConfigError as error:
        locations = [stage.location for stage in [*listed, *([first] if first else [])]]
        for line in str(error).splitlines()[:MOST_FAULTS]:
            matches = (name for name in locations if line.startswith(f"{name}: "))
            location = next(matches, text.place(path))
            fault(location, line.removeprefix(f"{location}: "))
        return None


def _has_stages(node: Stages, reason: str) -> str:
    return (
        f"this has stages, at {node.location}. Stages must be in the split that "
        f"training reads, and {reason}. Set `split_part` to a split without stages"
    )
