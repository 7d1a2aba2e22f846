"""From a path to the tree of what is read: nested files followed, inherited settings applied."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, cast

from energize.core import limits
from energize.core.validation import MOST_FAULTS, KeyPath, short
from energize.data.files import absent, absolute, exists, found_at, is_url, joined, path_of
from energize.data.media import kind_by_name
from energize.data.selection import OTHERS, Selection, selections
from energize.data.source import nested
from energize.datasets.stages import Stage, StagePlan
from energize.errors import (
    ColumnError,
    ConfigError,
    DatasetNotFoundError,
    EnergizeError,
    MetadatasetError,
    in_place_of,
    nearest,
    some,
)
from energize.metadataset.located import Located, Problem, as_error, check_few
from energize.metadataset.models import (
    KINDS,
    STAGE_FILE,
    SUBFLAVORS,
    AtTop,
    Concat,
    Folder,
    Join,
    Joined,
    Keys,
    MetadatasetFile,
    Passes,
    Stages,
    load,
    read_metadataset,
)
from energize.metadataset.models import Blend as BlendKeys
from energize.metadataset.nodes import (
    JSONL,
    Blend,
    JoinedLeaf,
    JoinedPart,
    Leaf,
    Node,
    Staged,
    with_leaves,
)
from energize.order.quota import Quota
from energize.order.timeline import WEIGHTLESS
from energize.preparation.loose import FILES, OF_SAMPLES, Told, is_loose
from energize.task.encoder import Level

DEFAULT = "default"
"""The name of the stage that fills the steps before the first one."""
FILESYSTEM = "filesystem://"

_SUFFIXES = (".yaml", ".yml")
_LISTED = 1000
_IN_BLEND = "an entry of a blend is one mixture"
_IN_STAGE = "a stage is one mixture"
_OF_BLENDS = {"scheme": None, "block_size": None, "stop": None, "temperature": 1, "unit": "samples"}
"""Keys of blends by weights that are options of `BlendDataset`, and what they are left out."""
_OF_ENTRIES = ("min_share", "max_share", "max_epochs")
_INHERITED = ("scheme", "block_size", "stop", "unit")
_OF_JOINS = ("shuffle_over_epochs_multiplier", "subset", "sample_weight")
"""What is said of a join as a whole, and of none of its parts."""

D = TypeVar("D")
Counted = dict[str, list[tuple[Leaf, int]]]
"""Leaves by the value of a property, each with how many samples it has."""

_log = logging.getLogger("energize")


@dataclass(frozen=True, slots=True)
class Inherited:
    """What the files and entries around a node give it: to its `leaf`, and to its blends. `chain`
    is the files, with their splits.
    """

    leaf: Leaf
    options: Mapping[str, Any] = field(default_factory=dict)
    chain: tuple[tuple[Path, str], ...] = ()

    def inside(self, entry: Any) -> Inherited:
        """Return what an entry hands on of what it has inherited, with its own settings."""
        around = self.leaf
        given = around.shuffle_over_epochs_multiplier, entry.shuffle_over_epochs_multiplier
        leaf = replace(
            around,
            split_part=entry.split_part or around.split_part,
            subflavors={**(entry.subflavors or {}), **around.subflavors},
            shuffle_over_epochs_multiplier=combined_multiplier(*given),
            dataset_config=entry.dataset_config,
            split_config=entry.split_config,
        )
        return replace(self, leaf=leaf).part(entry)

    def part(self, keys: Any) -> Inherited:
        """Return the same for the subset that a node takes, with the weight that it gives."""
        own, around = getattr(keys, "sample_weight", None), self.leaf.sample_weight
        weight = around if own is None else float(own) * (1.0 if around is None else around)
        subset, inside = self.leaf.subset, getattr(keys, "subset", None)
        if inside is not None:
            subset = nested(inside, subset)
        return replace(self, leaf=replace(self.leaf, subset=subset, sample_weight=weight))


def combined_multiplier(outer: int | None, inner: int | None) -> int | None:
    """Return, of two levels of shuffling, none (None), else replacement (-1), else the product."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


def not_staged(node: Node | Staged, place: str, reason: str) -> Node:
    """Return the node asked for at `place`; raise `MetadatasetError` when it has stages."""
    if isinstance(node, Staged):
        raise MetadatasetError(f"{place}: {_has_stages(node, reason)}")
    return node


def resolve(
    source: str | os.PathLike[str] | MetadatasetFile | Mapping[str, Any],
    split_part: str,
    asked: Folder | None = None,
    *,
    existing: bool = True,
) -> Node | Staged:
    """Return what `split_part` of a metadataset (a file, or a mapping with what one would say), or
    of a prepared folder, is made of.

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
        source = read_metadataset(source)
    outer = Inherited(Leaf(Path(), split_part))
    file = source.file if isinstance(source, MetadatasetFile) else path_of(source)
    resolver = _Resolver(file, existing)
    entry = (asked or _ENTRY).model_copy(update={"path": str(file)})
    if isinstance(source, MetadatasetFile):
        node = resolver.split(source, outer.inside(entry), str(file))
    else:
        node = resolver.follow(file, entry, outer, str(file))
    if node is None or resolver.problems:
        raise as_error(file, resolver.problems)
    if not resolver.weighs:
        return node
    # A weight in the loss for every leaf where any has one: all batches have weights then.
    weighed: Node | Staged = with_leaves(
        node, lambda leaf: replace(leaf, sample_weight=1.0) if leaf.sample_weight is None else leaf
    )
    return weighed


_ENTRY = Folder.model_construct(path="")


class _Resolver:
    """Follows files, each read once. What is wrong in any of them is noted in `problems`, and None
    stands for what it is wrong with.
    """

    def __init__(self, file: Path, existing: bool) -> None:
        self._file, self._existing = file, existing
        self.problems: list[Problem] = []
        self._read: dict[Path, MetadatasetFile | None] = {}
        self.weighs, self._followed = False, 0

    def fault(self, place: str, text: str, *, not_found: bool = False) -> Leaf | None:
        """Note what is wrong at a place, and return None, which stands for what is there; raise
        what was noted when that is much.
        """
        self.problems.append(Problem(place, text, not_found=not_found))
        check_few(self._file, self.problems)
        return None

    def split(self, file: MetadatasetFile, outer: Inherited, place: str) -> Node | Staged | None:
        """Return the split of a file that `outer` asks for, and that an entry at `place` names."""
        name = outer.leaf.split_part
        link = (file.file.resolve(), name)
        if link in outer.chain:
            links = [*outer.chain[outer.chain.index(link) :], link]
            circle = " -> ".join(f"{path} [{split}]" for path, split in links)
            return self.fault(place, f"metadatasets include each other: {circle}")
        if name not in file.splits:
            hint = nearest(name, list(file.splits)) or "."
            text = f"no split {short(name)}{hint} Splits here: {some(file.splits)}"
            text += f" (included from {place})" if outer.chain else ""
            return self.fault(file.text.place(("splits",)), text)
        keys, path = file.splits[name], ("splits", name)
        inner = replace(outer, chain=(*outer.chain, link))
        if len(inner.chain) > limits.LEVELS:
            return self.fault(place, f"metadatasets include one another: {limits.over('LEVELS')}")
        if isinstance(keys, Stages):
            return self._staged(file, keys, path, inner)
        return self._node(file, keys, path, inner)

    def _staged(
        self, file: MetadatasetFile, keys: Stages, path: KeyPath, outer: Inherited
    ) -> Staged | None:
        here = (*path, "stages")
        weight, default = outer.part(keys).leaf.sample_weight, None
        inner = replace(outer, leaf=replace(outer.leaf, sample_weight=weight))
        if isinstance(keys, tuple(KINDS.values())):
            default = path, self._part(file, keys, path, outer, _IN_STAGE)
        stages = [
            (each, (*here, i), self._part(file, each, (*here, i), inner, _IN_STAGE))
            for i, each in enumerate(keys.stages)
        ]
        plan = plan_of(file.text, here, keys, stages, default=default, fault=self.fault)
        if plan is None or self.problems:
            return None
        return Staged(cast("StagePlan[Node]", plan), file.text.place(here))

    def _part(
        self, file: MetadatasetFile, keys: Keys, path: KeyPath, outer: Inherited, reason: str
    ) -> Node | None:
        """Return one of several nodes, which has no stages and, in a blend, is not packed or
        levelled.
        """
        node = self._node(file, keys, path, outer)
        if isinstance(node, Staged):
            return self.fault(file.text.place((*path, "path")), _has_stages(node, reason))
        if node is None or reason == _IN_STAGE or (node.packing or node.level) is None:
            return node
        key = "level" if node.packing is None else "packing"
        text = f"{key} is said here of what is mixed with others first; say it of the whole mix"
        return self.fault(file.text.place((*path, "path")), text)

    def _node(
        self, file: MetadatasetFile, keys: Any, path: KeyPath, outer: Inherited
    ) -> Node | Staged | None:
        node: Node | Staged | None
        if isinstance(keys, Folder):
            place = file.text.place((*path, "path"))
            aux = self._stores(file, keys, path)
            base = file.file.parent
            if keys.image_folder is not None:
                images = {"image_folder": str(joined(base, keys.image_folder))}
                keys = keys.model_copy(update=images)
            node = self.follow(base / keys.path, keys, outer, place, aux)
        elif isinstance(keys, Join):
            node = self._joined(file, keys, path, outer)
        else:
            node = self._listed(file, keys, path, outer)
        if node is not None and getattr(keys, "by", None) is not None:
            place = file.text.place((*path, "by"))
            options = options_of(keys, outer.options)
            try:
                node = _divided(node, keys, options, place, existing=self._existing)
            except EnergizeError as reason:
                return self.fault(place, str(reason))
        if node is None or not isinstance(keys, AtTop) or (keys.packing or keys.level) is None:
            return node
        if isinstance(node, Staged):
            text = "a split with stages has packing and level stage by stage"
            return self.fault(file.text.place(path), text)
        return replace(node, packing=keys.packing, level=cast("Level | None", keys.level))

    def _listed(self, file: MetadatasetFile, keys: Any, path: KeyPath, outer: Inherited) -> Blend:
        """Return what a blend, a blend_epochized or a concat reads."""
        if keys.subset is not None:
            self._check_relative(keys, file.text.place((*path, "subset")))
        here = (*path, keys.kind)
        options = options_of(keys, outer.options)
        inner = replace(outer.part(keys), options=_handed_on(keys, options, outer.options))
        children: list[tuple[Node, Any, Quota | None]] = []
        for i, entry in enumerate(keys.entries):
            node = self._part(file, entry, (*here, i), inner, _IN_BLEND)
            quota = entry.quota if keys.by_quotas else None
            if isinstance(node, Blend) and node.kind == keys.kind == Passes.kind:
                children += _flattened(node, quota)
            elif node is not None:
                children.append((node, getattr(entry, "weight", 1), quota))
        targets = getattr(keys, "targets", None)
        self.weighs |= targets is not None
        return Blend(
            tuple([(node, weight) for node, weight, _ in children]),
            file.text.place(here),
            options,
            tuple([quota for *_, quota in children if quota]) if keys.by_quotas else None,
            getattr(keys, "composition", None),
            keys.kind,
            targets=targets,
            max_correction=getattr(keys, "max_correction", None),
        )

    def _joined(
        self, file: MetadatasetFile, keys: Join, path: KeyPath, outer: Inherited
    ) -> JoinedLeaf | None:
        inner = outer.inside(keys)
        unsaid = {name: getattr(Leaf, name) for name in _OF_JOINS}
        around = replace(inner, leaf=replace(inner.leaf, **unsaid))
        parts: list[JoinedPart] = []
        for name, entry in keys.entries:
            at = file.text.place((*path, "join", name, "path"))
            if entry.shuffle_over_epochs_multiplier != 1:
                _log.warning("%s: the order is that of the join; the multiplier here is not", at)
            configs = {
                "dataset_config": entry.dataset_config or keys.dataset_config,
                "split_config": entry.split_config or keys.split_config,
            }
            given = entry.model_copy(update=configs)
            leaf = self.follow(joined(file.file.parent, entry.path), given, around, at)
            if isinstance(leaf, Leaf) and not (leaf.is_jsonl or is_loose(leaf.path)):
                named = name if isinstance(name, str) else None
                parts.append(JoinedPart(leaf, entry.nonmatch, named))
            elif leaf is not None:
                self.fault(at, f"what is joined are prepared folders; {short(entry.path)} is none")
        if len(parts) < len(keys.entries):
            return None
        self.weighs |= inner.leaf.sample_weight is not None
        own = {each.name: getattr(parts[0].leaf, each.name) for each in fields(Leaf)}
        own |= {name: getattr(inner.leaf, name) for name in _OF_JOINS}
        own["place"] = file.text.place((*path, "join"))
        cache = file.file.with_name(f"{file.file.name}.cache")
        return JoinedLeaf(**own, parts=tuple(parts), joiner=keys.joiner, cache=cache)

    def follow(
        self,
        path: Path,
        entry: Folder | Joined,
        outer: Inherited,
        place: str,
        aux: Mapping[str, str] | None = None,
    ) -> Node | Staged | None:
        """Return what the entry at `place` refers to, its path being `path`."""
        self._followed += 1
        if self._followed > limits.YAML_VALUES:
            included = f"with all files that it includes, {limits.over('YAML_VALUES')}"
            raise MetadatasetError(f"{place}: {included}")
        inner = outer.inside(entry)
        there = found_at(path)  # Path.exists raises in folders that may not be entered
        if not there and (self._existing or path.suffix in _SUFFIXES):
            return self.fault(place, _not_found(path, entry.path), not_found=True)
        folder = there != "file"
        if not folder:
            strange = [key for key in ("dataset_config", "split_config") if getattr(entry, key)]
            if path.suffix not in FILES:
                strange += [key for key in ("aux", *OF_SAMPLES) if getattr(entry, key, None)]
            if strange:
                told = f"{strange[0]} is for prepared folders, and {short(entry.path)} is none"
                return self.fault(place, f"{told}; remove it")
        if folder or path.suffix in FILES:
            self.weighs |= inner.leaf.sample_weight is not None
            said = Told(**{name: getattr(entry, name, None) for name in OF_SAMPLES})
            return replace(inner.leaf, path=_tidied(path), place=place, aux=aux or {}, told=said)
        if path.suffix not in _SUFFIXES:
            hint = f"; {STAGE_FILE}" if path.suffix == ".toml" else in_place_of(path)
            if kind_by_name(path.name) is not None or path.suffix == ".csv":
                hint = f"; files are read by their folder: give {path.parent}"
            text = f"expected a folder, {', '.join(FILES)} or a metadataset .yaml"
            return self.fault(place, f"{text}; got {short(entry.path)}{hint}")
        self._check_relative(entry, place)
        key = path.resolve()
        if key not in self._read:  # what is wrong is told once, where it is first included
            found: list[Problem] = []
            self._read[key] = load(path, found)
            nested_in = f" (included from {place})" if outer.chain else ""
            self.problems += [replace(p, message=p.message + nested_in) for p in found]
        metadataset = self._read[key]
        return None if metadataset is None else self.split(metadataset, inner, place)

    def _stores(self, file: MetadatasetFile, keys: Folder, path: KeyPath) -> dict[str, str]:
        """Return the stores that `aux` names."""
        stores = {}
        for name, ref in (keys.aux or {}).items():
            try:
                stores[name] = resolved_store(ref, file.file.parent, existing=self._existing)
            except (ConfigError, DatasetNotFoundError) as error:
                missing = isinstance(error, DatasetNotFoundError)
                self.fault(file.text.place((*path, "aux", name)), str(error), not_found=missing)
        return stores

    def _check_relative(self, keys: Any, place: str) -> None:
        """Note a subset by numbers of samples where it is not a single dataset that has them."""
        if keys.subset is not None and keys.subset.samples is not None:
            text = "which is only allowed for a leaf dataset; of others take percentages"
            self.fault(place, f"the subset {keys.subset} counts samples, {text}")


# Options of blends


def options_of(keys: Any, around: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node says beside weights or quotas, as options of `BlendDataset` or
    `QuotaDataset`; `around` is what it has from the blends around it.
    """
    if isinstance(keys, Passes | Concat):
        return {}
    own: dict[str, Any] = {}
    if isinstance(keys, BlendKeys) and keys.by_quotas:
        own = {name: getattr(keys, name) for name in ("epoch_size", "sampling_method")}
        return {name: value for name, value in own.items() if value is not None}
    if isinstance(keys, BlendKeys):
        for name, default in _OF_BLENDS.items():
            if getattr(keys, name) not in (None, default):
                own[name] = getattr(keys, name)
        for name in _OF_ENTRIES:
            values = [*map(attrgetter(name), keys.blend)]
            if values.count(None) < len(values):
                own[name] = values
    dropped = {"unit"} if "block_size" in own else set()
    if "scheme" in own or "unit" in keys.model_fields_set:  # what they say together is said anew
        dropped = {"scheme", "block_size", "unit"}
    options = {**{name: each for name, each in around.items() if name not in dropped}, **own}
    return {"scheme": "block", **options} if "block_size" in options else options


def _handed_on(
    keys: Any, options: Mapping[str, Any], around: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Of the options of a blend, those that hold for the blends inside.

    Not a scheme that knows no weights: it gives each entry the same, also an entry that blends.
    """
    if keys.by_quotas:
        return around
    names = ("stop",) if options.get("scheme") in WEIGHTLESS else _INHERITED
    return {name: options[name] for name in names if name in options}


def _flattened(node: Blend, quota: Quota | None) -> list[tuple[Node, Any, Quota | None]]:
    """Return the entries of a blend_epochized in another one, repetitions multiplied."""
    return [
        (child, 1, Quota(repeat=float(_passes(quota) * _passes(inner))))
        for (child, _), inner in zip(node.children, node.quotas or (), strict=True)
    ]


def _passes(quota: Quota | None) -> Fraction:
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
    """Return the plan of the stages at `path`: of each its keys, its path and what it reads.

    What `around` them has of settings is that of stages without their own. What is wrong with the
    plan is told to `fault`, each at the stage that it is about.
    """

    def stage(name: str, keys: Any, at: KeyPath, dataset: D, *steps: int | None) -> Stage[D]:
        return Stage(
            name,
            *steps,  # type: ignore[arg-type]  # the first is given, or has a default
            dataset=dataset,
            place=text.place(at),
            seq_len=keys.seq_len or around.seq_len,
            seed=around.seed if keys.seed is None else keys.seed,
            items_per_step=keys.items_per_step or around.items_per_step or 1,
            batch=(around.batch or {}) | (keys.batch or {}),
        )

    first = None if default is None else stage(DEFAULT, around, *default)
    listed = [
        stage(keys.name, keys, at, dataset, keys.start_step, keys.end_step)
        for keys, at, dataset in stages
    ]
    try:
        return StagePlan(listed, around.steps, first)
    except ConfigError as error:
        places = [each.place for each in [*listed, *([first] if first else [])]]
        for line in str(error).splitlines()[:MOST_FAULTS]:
            named = (each for each in places if line.startswith(f"{each}: "))
            place = next(named, text.place(path))
            fault(place, line.removeprefix(f"{place}: "))
        return None


def _has_stages(node: Staged, reason: str) -> str:
    return (
        f"this has stages, at {node.place}. They belong to the split that training reads, and "
        f"{reason}; name a split without stages with `split_part`"
    )


# Mixing by a property


def _divided(
    node: Node | Staged, keys: Folder, options: Mapping[str, Any], place: str, *, existing: bool
) -> Blend:
    """Return what `node` reads as a blend of the samples of each value of the property `keys.by`,
    mixed by the `options` of the blend; of several folders in proportion to how many samples they
    have of the value.

    Which values there are is looked up in `.nv-meta`; unless the folders are `existing`, the values
    that have weights are all that is known. Raises `ColumnError`.
    """
    by = str(keys.by)
    leaves: Sequence[Any] = [node]
    if isinstance(node, Blend) and not isinstance(keys, Folder):
        leaves = [child for child, _ in node.children]
    if not leaves or not all(isinstance(leaf, Leaf) and leaf.chosen is None for leaf in leaves):
        raise ColumnError(
            f"the samples of all folders here are weighed by {short(by)}, and they are mixed by "
            "something else already; give 'by' to the single folders, or to a blend of folders"
        )
    if by.startswith(SUBFLAVORS):
        parts = _by_subflavor(leaves, by.removeprefix(SUBFLAVORS), keys)
    else:
        parts = _by_value(leaves, by, keys, existing=existing)
    inside = {name: options[name] for name in ("scheme", "block_size") if name in options}
    if inside.get("scheme") in WEIGHTLESS:
        inside.pop("scheme")
    if options.get("stop", "restart") != "restart" or options.get("unit") is not None:
        inside["stop"] = "all_exhausted"  # the mix has epochs: each sample comes once in one
    named = {Selection(by, value).name: each for value, each in (keys.weights or {}).items()}
    children: list[Any] = []
    for name, found in parts.items():
        counted = tuple((leaf, float(count)) for leaf, count in found)
        folders = tuple(leaf.path.name for leaf, _ in found)
        part = found[0][0] if len(found) == 1 else Blend(counted, place, inside, names=folders)
        children.append((part, named.get(name, keys.other)))
    called = leaves[0].path.name if len(leaves) == 1 else None
    return Blend(tuple(children), place, options, names=tuple(parts), called=called)


def _by_value(leaves: Sequence[Leaf], by: str, keys: Folder, *, existing: bool) -> Counted:
    """Return the samples of each value of a column."""
    values = list(keys.weights or {})
    if not existing:
        named = [Selection(by, value) for value in values]
        return {each.name: [(replace(leaf, chosen=each), 1) for leaf in leaves] for each in named}
    sources = [leaf.source() for leaf in leaves]
    try:
        named = selections(sources, by, values, other=keys.other is not None)
    except ColumnError as reason:
        labelled = any(by in leaf.labels for leaf in leaves)
        hint = f". Or do you mean by: {SUBFLAVORS}{by}?" if labelled else ""
        raise ColumnError(f"{reason}{hint}") from None
    parts = {}
    for selection in named:
        counts = [len(selection.rows(source.column(by))) for source in sources]
        pairs = zip(leaves, counts, strict=True)
        parts[selection.name] = [(replace(leaf, chosen=selection), n) for leaf, n in pairs if n]
    return parts


def _by_subflavor(leaves: Sequence[Leaf], name: str, keys: Folder) -> Counted:
    """Whole folders by a label that they have."""
    parts: Counted = {Selection(name, value).name: [] for value in keys.weights or {}}
    if keys.other is not None:
        parts[OTHERS] = []
    for leaf in leaves:
        labels = leaf.labels
        value = Selection(name, labels[name]).name if name in labels else OTHERS
        if value not in parts and OTHERS not in parts:
            has = short(value) if name in labels else "none" + nearest(name, list(labels))
            raise ColumnError(
                f"{leaf.path} has {has} as the subflavor {short(name)}, and weights are given for "
                f"{', '.join(parts)}; give it one, or `other` for all that have none"
            )
        parts[value if value in parts else OTHERS].append((leaf, leaf.source().count))
    for value, found in parts.items():
        if not found and value != OTHERS:
            raise ColumnError(f"no folder has {short(value)} as the subflavor {short(name)}")
    return {value: found for value, found in parts.items() if found}


# Paths


def resolved_store(ref: str, base: Path, *, existing: bool = True) -> str:
    """Return a reference to a store with its path made absolute, as
    `energize.data.stores.open_store` takes it.

    `ref` is the path of a prepared folder or of a `.jsonl` file, relative to the folder `base`, or
    `filesystem://` and the path of a plain folder, which serves whatever file it is asked for.

    Raises `DatasetNotFoundError` for what does not exist, unless it need not be `existing`, and
    `ConfigError` for what is no store.

    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> (base / "images").mkdir()
    >>> resolved_store("filesystem://images", base) == f"filesystem://{base}/images"
    True
    """
    plain, name = ref.startswith(FILESYSTEM), ref.removeprefix(FILESYSTEM)
    kinds = f"a store is a prepared folder, a .jsonl file or {FILESYSTEM}FOLDER, on mounted disks"
    if "\0" in ref or name.startswith((FILESYSTEM, "filesystem+")):
        raise ConfigError(f"{short(ref)} is of an unknown kind; {kinds}")
    path = path_of(absolute(joined(base, name)))
    if existing and not exists(path):  # Path.exists raises for some names
        raise DatasetNotFoundError(f"{short(ref)} {absent(path)}, looked for {path}")
    if path.is_file() and (plain or path.suffix != JSONL):
        raise ConfigError(f"{short(ref)} is a file; {kinds}")
    return f"{FILESYSTEM}{path}" if plain else str(path)


def _tidied(path: Path) -> Path:
    """Return the absolute path without `..` where that is the same folder; links keep their
    names.
    """
    if ".." not in path.parts:
        return path.absolute()
    tidy = Path(os.path.abspath(path))
    return tidy if tidy.exists() and tidy.samefile(path) else path.absolute()


def _not_found(path: Path, given: str) -> str:
    text = f"{short(given)} {absent(path)}, looked for {absolute(path)}"
    if given.startswith("~"):
        return f"{text}; ~ is not expanded, write ${{HOME}}{given[1:]}"
    if "$" in given:
        return f"{text}; a variable is written ${{NAME}}"
    if not is_url(path) and not os.access(path.parent, os.R_OK | os.X_OK):
        return f"{text}, in a folder that does not exist or cannot be read"
    there = [each.name for each in islice(path.parent.iterdir(), _LISTED)]
    near = nearest(path.name, [name for name in there if name != path.name])
    return text + (in_place_of(path_of(given)) or near)
