"""The tree of what a split reads: leaves, blends and stages; from a path to it; and its
shares.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from energize.core import limits
from energize.core.os_errors import is_url
from energize.core.samples import CrudeSample, Sample, is_own_module, sample_type_named
from energize.core.validation import MOST_FAULTS, KeyPath, short
from energize.data.files import absent, absolute, exists, found_at, joined, path_of
from energize.data.join import JoinedSource
from energize.data.jsonl import JsonlSource
from energize.data.loose import LooseSource
from energize.data.media import kind_by_name
from energize.data.nv_meta import CRUDE, SampleConfig, read_dataset_yaml
from energize.data.selection import (
    OTHERS,
    PropertySource,
    Selection,
    distinct_names,
    selections,
)
from energize.data.source import Subset, nested
from energize.data.webdataset import WebdatasetSource
from energize.datasets.stage_plan import Stage, StagePlan
from energize.errors import (
    ColumnError,
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    EnergizeError,
    MetadatasetError,
    UntrustedCodeError,
    WeightError,
    in_place_of,
    nearest,
    some,
)
from energize.inference.engine import FILES, InferredPart, is_loose, open_loose
from energize.inference.options import OF_SAMPLES, DataOptions
from energize.inference.verify import verify
from energize.metadataset.located import (
    Located,
    Problem,
    as_error,
    check_few,
    noted,
    place_noted,
)
from energize.metadataset.models import (
    KINDS,
    STAGE_FILE,
    SUBFLAVORS,
    AtTop,
    Composition,
    Concat,
    Folder,
    Join,
    Joined,
    JoinerName,
    Keys,
    MetadatasetFile,
    Packing,
    Passes,
    Stages,
    load,
    read_metadataset,
)
from energize.metadataset.models import Blend as BlendKeys
from energize.order import Schedule
from energize.order.quota import Quota, epoch_counts
from energize.order.timeline import WEIGHTLESS
from energize.order.weights import checked_weight, limited, tempered
from energize.task.encoder import Level

JSONL = ".jsonl"
DEFAULT = "default"
"""The name of the stage that fills the steps before the first one."""
FILESYSTEM = "filesystem://"

_SUFFIXES = (".yaml", ".yml")
_LISTED = 1000
_IN_BLEND = "an entry of a blend is one mixture"
_IN_STAGE = "a stage is one mixture"
_OF_BLENDS = {
    "scheme": None,
    "block_size": None,
    "stop": None,
    "temperature": 1,
    "unit": "samples",
}
"""Keys of blends by weights that are options of `BlendDataset`, and what they are left
out."""
_OF_ENTRIES = ("min_share", "max_share", "max_epochs")
_INHERITED = ("scheme", "block_size", "stop", "unit")
_OF_JOINS = ("shuffle_over_epochs_multiplier", "subset", "sample_weight")
"""What is said of a join as a whole, and of none of its parts."""

D = TypeVar("D")
_log = logging.getLogger("energize")

LeafSource = (
    WebdatasetSource | JsonlSource | LooseSource | JoinedSource | PropertySource[Any]
)
"""The sources that a leaf may be read from."""


@dataclass(frozen=True)
class Leaf:
    """One split part of one folder, prepared or loose, with the settings that all files
    on the way gave it; or a file of rows: a prepared `.jsonl` file has no split parts.

    `shuffle_over_epochs_multiplier`: epochs shuffled together; None = no shuffle, -1 =
    drawn with replacement. `aux`: stores that cookers read from, by name: paths of
    prepared folders and of `.jsonl` files, or `filesystem://` and a path, all absolute.
    `subset`: which of its samples, and `chosen`: which of these, by a property.
    `sample_weight`: how much its samples count in the loss, None where no file says.
    `packing` and `level`: how its samples are packed and its batches levelled, where it
    is the outermost. `told`: what was said of its samples, beside what the folder says.
    `place`: where it was written, for messages.
    """

    path: Path
    split_part: str
    subflavors: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dataset_config: str | None = None
    split_config: str | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    place: str = field(default="", compare=False)
    aux: Mapping[str, str] = field(default_factory=dict, hash=False)
    subset: Subset | None = None
    packing: Packing | None = None
    level: Level | None = None
    chosen: Selection | None = None
    sample_weight: float | None = None
    told: DataOptions = field(default_factory=DataOptions)
    called: str | None = field(default=None, compare=False)
    """What the list that it is an entry of calls it."""
    name: str | None = field(default=None, compare=False)
    """The name by which reports and weights know it: no other leaf of the mix has
    it."""
    unnamed: str | None = field(default=None, compare=False)
    """The name that it would have if no entry had one."""
    looked_at: dict[Any, InferredPart] = field(
        default_factory=dict, compare=False, repr=False
    )
    """What was found at loose paths: of one mix they are looked at once."""

    @cached_property
    def config(self) -> SampleConfig:
        """What the folder's dataset.yaml says of its samples, read once; or how they
        look, and what was said of them.
        """
        try:
            config = SampleConfig("energize", CRUDE)
            try:
                if not self.is_jsonl:
                    name = self.dataset_config or "dataset.yaml"
                    config = read_dataset_yaml(self.path, name, code=True)
            except DatasetError:
                if self.loose is None:
                    raise
            else:  # what has one is not asked what else is there
                vars(self).setdefault("loose", None)
            if self.loose is not None:
                return self.loose.config
            told = self.told
            if told.sample_type is None and told.field_map is None:
                return config
            return told.config(config, told.field_map)
        except EnergizeError as error:
            raise noted(error, self.place) from error

    @cached_property
    def loose(self) -> InferredPart | None:
        """What is found at the path if nobody prepared it."""
        if self.dataset_config or self.split_config or not is_loose(self.path):
            return None
        key = self.path, self.split_part, self.told
        if key not in self.looked_at:
            self.looked_at[key] = open_loose(self.path, self.split_part, self.told)
        return self.looked_at[key]

    def verify(self) -> None:
        """Raise `DatasetError` if loose samples are not what was inferred of them."""
        try:
            _ = self.config
            if self.loose is not None:
                verify(self.loose, self.told)
        except EnergizeError as error:
            raise noted(error, self.place) from error

    @cached_property
    def is_jsonl(self) -> bool:
        """Whether it is a prepared file of JSON lines, which has no split parts and no
        dataset.yaml.
        """
        return self.path.suffix == JSONL and not (
            self.path.is_dir() or is_loose(self.path)
        )

    @property
    def place_names(self) -> tuple[str, ...]:
        """The folders that its path leads through, and its own name last."""
        return self.path.absolute().parts

    @property
    def split_file(self) -> str | None:
        """The split file: as asked for, else as dataset.yaml says, None for the usual
        one.
        """
        asked: str | None = self.split_config or self.config.options.get("split_config")
        return asked

    @cached_property
    def labels(self) -> dict[str, Any]:
        """The subflavors of its samples, those of dataset.yaml too."""
        return {**self.config.subflavors, **self.subflavors}

    @cached_property
    def sample_type(self) -> type[Any]:
        """The type of samples that it names."""
        config = self.config
        try:
            if self.told.sample_type is not None:
                return cast("type[Any]", self.told.kind)
            if config.sample_class == CRUDE:
                return CrudeSample
            if config.factory is None:
                return sample_type_named(config.sample_module, config.sample_class)
            given = config.factory.get("sample_type")
            if given is not None:
                return sample_type_named(*given)
            factory = user_factory(config)
            found = getattr(factory, "__sample_type__", None)
            if isinstance(found, type):
                return found
            raise DatasetError(
                f"the factory {factory.__name__} has no __sample_type__: set it to the "
                "type of "
                "samples that it makes"
            )
        except EnergizeError as error:
            raise noted(error, self.place) from error

    def source(self, seed: int = 0, *, checksums: bool = False) -> LeafSource:
        """Return the raw samples as they are stored; of a join, tuples of them."""
        try:
            source = self._whole(seed, checksums)
            if self.subset is not None:
                source = source.part(*self.subset.bounds(source.stored_count))
            if self.chosen is not None:
                source = PropertySource(source, self.chosen)
            return source.labelled(self.name, self.unnamed)
        except EnergizeError as error:
            raise noted(error, self.place) from error

    def _whole(self, seed: int, checksums: bool) -> LeafSource:
        if self.loose is not None and not checksums:
            return self.loose.source.reseeded(seed)
        if self.is_jsonl:
            return JsonlSource(self.path, checksums=checksums, seed=seed)
        return WebdatasetSource(
            self.path,
            split_part=self.split_part,
            split_config=self.split_file,
            checksums=checksums,
            seed=seed,
        )

    @property
    def identity(self) -> Leaf:
        """Equal for leaves that read the same samples with the same settings."""
        return replace(self, path=self.path.resolve(), packing=None, level=None)


def user_factory(config: SampleConfig) -> type[Any]:
    """Return the factory that a dataset.yaml names, a class of a module of the program.

    Nothing is imported because a file names it. Raises `UntrustedCodeError` for a
    module that the program has not imported, `DatasetError` for what is no factory.
    """
    named = "dataset.yaml names the factory"
    hint = f", or trust_code=[{config.sample_module!r}]"
    found = _imported(named, config.sample_module, config.sample_class, hint)
    if not isinstance(found, type) or not hasattr(found, "load_sample"):
        raise DatasetError(
            f"{named} {short(config.sample_class)} of the module "
            f"{short(config.sample_module)}, "
            f"which {'has no such name' if found is None else 'is no factory there'}; "
            "a factory is "
            "a class that extends DefaultDecoderWebdatasetFactory or "
            "BaseWebdatasetFactory. A type "
            "of samples stands in sample_type"
        )
    return found


def _imported(named: str, module: str, name: str, hint: str = "") -> Any:
    """Return what a module of the program has by a name, None for nothing; it is not
    imported.
    """
    if module in sys.modules:
        return vars(sys.modules[module]).get(name)
    raise UntrustedCodeError(
        f"{named} {short(name)} of the module {short(module)}, which this program has "
        "not "
        "imported. Nothing is imported because a file asks for it: if you trust that "
        "module, write "
        f"`import {module}` in your program before this{hint}"
    )


@dataclass(frozen=True)
class JoinedPart:
    """A dataset of a join. `nonmatch`: what happens to samples that have no partner in
    it; `name`: the argument of the joiner, None for joins that are written as lists.
    """

    leaf: Leaf
    nonmatch: str = "error"
    name: str | None = None


@dataclass(frozen=True)
class JoinedLeaf(Leaf):
    """Samples of the first of its `parts`, each with those of the others that have its
    key.

    Path, split part and subflavors are those of the first. `joiner` makes one sample of
    those found. `cache`: the folder in which `prepare_metadataset` may have written
    what it found.
    """

    parts: tuple[JoinedPart, ...] = ()
    joiner: JoinerName | Callable[..., Any] = field(default=tuple, compare=True)
    cache: Path | None = field(default=None, compare=False)

    @property
    def place_names(self) -> tuple[str, ...]:
        """The folders that lead to the first part, and the names of all parts as
        one.
        """
        names = [part.leaf.path.name for part in self.parts]
        return *self.path.absolute().parts[:-1], "+".join(names)

    @cached_property
    def config(self) -> SampleConfig:
        """What the dataset.yaml of the first part says."""
        return self.parts[0].leaf.config

    def verify(self) -> None:
        """Do nothing: what is joined is prepared."""

    @cached_property
    def sample_type(self) -> type[Any]:
        """The type of the samples that the joiner makes; `Sample` where a function does
        not say.
        """
        found = self._joiner
        made: Any = found
        if not isinstance(found, type):
            made = getattr(found, "__annotations__", {}).get("return")
            if isinstance(made, str):  # annotations of a module that postpones them
                made = getattr(found, "__globals__", {}).get(made)
        return made if isinstance(made, type) and issubclass(made, Sample) else Sample

    @property
    def joined(self) -> Callable[..., Any]:
        """The function that joins samples: of a type of samples its `from_joined`.

        Nothing is imported because a file names it: a module is one that the program
        has imported, and modules of energize and of Megatron-Energon mean the types
        here. Raises `UntrustedCodeError` for another one, `MetadatasetError` for a name
        that is not there or is no joiner; both name the place in the file.
        """
        found = self._joiner
        if not isinstance(found, type):
            return found
        if not issubclass(found, Sample):
            raise MetadatasetError(
                f"{self.place}: the joiner {found.__name__} is no type of samples: it "
                "extends "
                "energize.Sample, or is a function"
            )
        return found.from_joined

    @property
    def _joiner(self) -> Callable[..., Any]:
        """The type or function that a file names."""
        joiner = self.joiner
        if not isinstance(joiner, JoinerName):
            return joiner
        if joiner.class_ and is_own_module(joiner.module):
            with place_noted(self.place):
                return sample_type_named(joiner.module, joiner.class_)
        name = joiner.class_ or joiner.function or ""
        named = f"{self.place}: the joiner is"
        found = _imported(named, joiner.module, name)
        if not (isinstance(found, type) if joiner.class_ else callable(found)):
            kind = "class" if joiner.class_ else "function"
            hint = (
                nearest(name, list(vars(sys.modules[joiner.module])))
                if found is None
                else ""
            )
            raise MetadatasetError(
                f"{named} {short(name)} of the module {short(joiner.module)}, which "
                f"has no {kind} "
                f"of that name{hint}"
            )
        return cast("Callable[..., Any]", found)

    def _whole(self, seed: int, checksums: bool) -> JoinedSource:
        parts = [
            cast("WebdatasetSource", p.leaf.source(checksums=checksums))
            for p in self.parts
        ]
        nonmatch = [each.nonmatch for each in self.parts[1:]]
        return JoinedSource(*parts, nonmatch=nonmatch, cache=self.cache, seed=seed)


@dataclass(frozen=True)
class Blend:
    """Nodes with their weights as given, not all of which are 0, and how they are
    mixed.

    `options` are those of `BlendDataset`; with `quotas`, one for each child, of
    `QuotaDataset`. `kind` is the key of the list: of `blend_epochized` and of `concat`
    quotas say what each child gives to an epoch, and in a `concat` the children follow
    one another. `packing` and `level`: how encoded samples are packed, and batches
    levelled, in the outermost one. `targets`: what each child weighs in the loss, at
    most `max_correction` times as much as it is drawn. `names` of children, where they
    are parts by a property, and what it is `called` in a blend around it.
    """

    children: tuple[tuple[Node, float | Fraction | Schedule], ...]
    place: str = field(default="", compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    quotas: tuple[Quota, ...] | None = None
    composition: Composition | None = None
    kind: str = "blend"
    packing: Packing | None = None
    level: Level | None = None
    targets: tuple[float | Fraction, ...] | None = None
    max_correction: float | None = None
    names: tuple[str | None, ...] = ()
    called: str | None = None

    @cached_property
    def child_names(self) -> list[str | None]:
        """What each child is called, where it is not by its sources."""
        return list(self.names) or [
            getattr(child, "called", None) for child, _ in self.children
        ]

    @cached_property
    def plain(self) -> bool:
        """Whether fixed weights say everything, so that its weights multiply with those
        around.
        """
        if self.options or self.quotas is not None:
            return False
        return not any(isinstance(weight, Schedule) for _, weight in self.children)

    @property
    def repeated(self) -> bool:
        """Whether it is for the program to say, not for the file, that it goes on for
        ever.
        """
        return self.plain or self.kind != "blend"


Node = Leaf | Blend


@dataclass(frozen=True, slots=True)
class Staged:
    """Stages of a run, each with the node it reads; only ever the outermost of what is
    read.
    """

    plan: StagePlan[Node]
    place: str = field(default="", compare=False)


# From a path to a tree: files followed, settings handed down


@dataclass(frozen=True, slots=True)
class Inherited:
    """What the files and entries around a node give it: to its `leaf`, and to its
    blends. `chain` is the files, with their splits.
    """

    leaf: Leaf
    options: Mapping[str, Any] = field(default_factory=dict)
    chain: tuple[tuple[Path, str], ...] = ()

    def inside(self, entry: Any) -> Inherited:
        """Return what an entry hands on of what it has inherited, with its own
        settings.
        """
        around = self.leaf
        given = (
            around.shuffle_over_epochs_multiplier,
            entry.shuffle_over_epochs_multiplier,
        )
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
        """Return the same for the subset that a node takes, with the weight that it
        gives.
        """
        own = getattr(keys, "sample_weight", None)
        around = self.leaf.sample_weight
        weight = (
            around if own is None else float(own) * (1.0 if around is None else around)
        )
        subset = self.leaf.subset
        inside = getattr(keys, "subset", None)
        if inside is not None:
            subset = nested(inside, subset)
        return replace(
            self, leaf=replace(self.leaf, subset=subset, sample_weight=weight)
        )


def combined_multiplier(outer: int | None, inner: int | None) -> int | None:
    """Return, of two levels of shuffling, none (None), else replacement (-1), else the
    product.
    """
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


def not_staged(node: Node | Staged, place: object, reason: str) -> Node:
    """Return the node asked for at `place`; raise `MetadatasetError` when it has
    stages.
    """
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
    """Return what `split_part` of a metadataset (a file, or a mapping with what one
    would say), or of a prepared folder, is made of.

    Paths in a file are relative to the folder the file is in. Settings of outer files
    win over those of inner ones; the outer `split_part` names the split of an inner
    file, unless the entry gives its own. A split with stages is `Staged`. Only
    metadataset files are read, no shard, and of `.nv-meta` the columns that `by` names.
    `asked` has settings that win over those of all files: those of an entry that names
    `source`. With `existing=False`, datasets and stores need not be there.

    Raises `MetadatasetError` with every fault of all files on the way
    (`DatasetNotFoundError` when nothing but paths that do not exist is wrong).

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
    node = cast("Node | Staged", _with_names(node))
    if not resolver.weighs:
        return node
    # A weight in the loss for every leaf where any has one: all batches have weights
    # then.
    weighed: Node | Staged = with_leaves(
        node,
        lambda leaf: (
            replace(leaf, sample_weight=1.0) if leaf.sample_weight is None else leaf
        ),
    )
    return weighed


_ENTRY = Folder.model_construct(path="")


class _Resolver:
    """Follows files, each read once. What is wrong in any of them is noted in
    `problems`, and None stands for what it is wrong with.
    """

    def __init__(self, file: Path, existing: bool) -> None:
        self._file = file
        self._existing = existing
        self.problems: list[Problem] = []
        self._read: dict[Path, MetadatasetFile | None] = {}
        self.weighs = False
        self._followed = 0

    def fault(self, place: str, text: str, *, not_found: bool = False) -> Leaf | None:
        """Note what is wrong at a place, and return None, which stands for what is
        there; raise what was noted when that is much.
        """
        self.problems.append(Problem(place, text, not_found=not_found))
        check_few(self._file, self.problems)
        return None

    def split(
        self, file: MetadatasetFile, outer: Inherited, place: str
    ) -> Node | Staged | None:
        """Return the split of a file that `outer` asks for, and that an entry at
        `place` names.
        """
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
        keys = file.splits[name]
        path = ("splits", name)
        inner = replace(outer, chain=(*outer.chain, link))
        if len(inner.chain) > limits.LEVELS:
            return self.fault(
                place, f"metadatasets include one another: {limits.over('LEVELS')}"
            )
        if isinstance(keys, Stages):
            return self._staged(file, keys, path, inner)
        return self._node(file, keys, path, inner)

    def _staged(
        self, file: MetadatasetFile, keys: Stages, path: KeyPath, outer: Inherited
    ) -> Staged | None:
        here = (*path, "stages")
        weight = outer.part(keys).leaf.sample_weight
        default = None
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
        self,
        file: MetadatasetFile,
        keys: Keys,
        path: KeyPath,
        outer: Inherited,
        reason: str,
    ) -> Node | None:
        """Return one of several nodes, which has no stages and, in a blend, is not
        packed or levelled.
        """
        node = self._node(file, keys, path, outer)
        if isinstance(node, Staged):
            return self.fault(
                file.text.place((*path, "path")), _has_stages(node, reason)
            )
        if node is None or reason == _IN_STAGE or (node.packing or node.level) is None:
            return node
        key = "level" if node.packing is None else "packing"
        text = (
            f"{key} is said here of what is mixed with others first; say it of the "
            "whole mix"
        )
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
            far = ":/" in keys.path
            there = (
                joined(base, keys.path) if far else base / os.path.expanduser(keys.path)
            )
            node = self.follow(there, keys, outer, place, aux)
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
        if (
            node is None
            or not isinstance(keys, AtTop)
            or (keys.packing or keys.level) is None
        ):
            return node
        if isinstance(node, Staged):
            text = "a split with stages has packing and level stage by stage"
            return self.fault(file.text.place(path), text)
        return replace(
            node, packing=keys.packing, level=cast("Level | None", keys.level)
        )

    def _listed(
        self, file: MetadatasetFile, keys: Any, path: KeyPath, outer: Inherited
    ) -> Blend:
        """Return what a blend, a blend_epochized or a concat reads."""
        if keys.subset is not None:
            self._check_relative(keys, file.text.place((*path, "subset")))
        here = (*path, keys.kind)
        options = options_of(keys, outer.options)
        inner = replace(
            outer.part(keys), options=_handed_on(keys, options, outer.options)
        )
        children: list[tuple[Node, Any, Quota | None]] = []
        for i, entry in enumerate(keys.entries):
            node = self._part(file, entry, (*here, i), inner, _IN_BLEND)
            if node is not None and entry.name is not None:
                node = _called(node, entry.name)
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
            tuple([quota for *_, quota in children if quota])
            if keys.by_quotas
            else None,
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
                _log.warning(
                    "%s: the order is that of the join; the multiplier here is not", at
                )
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
                self.fault(
                    at,
                    f"what is joined are prepared folders; {short(entry.path)} is none",
                )
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
            strange = [
                key for key in ("dataset_config", "split_config") if getattr(entry, key)
            ]
            if path.suffix.lower() not in FILES:
                strange += [
                    key for key in ("aux", *OF_SAMPLES) if getattr(entry, key, None)
                ]
            if strange:
                told = (
                    f"{strange[0]} is for prepared folders, and "
                    f"{short(entry.path)} "
                    "is none"
                )
                return self.fault(place, f"{told}; remove it")
        if folder or path.suffix.lower() in FILES:
            self.weighs |= inner.leaf.sample_weight is not None
            said = DataOptions(
                **{name: getattr(entry, name, None) for name in OF_SAMPLES}
            )
            return replace(
                inner.leaf, path=_tidied(path), place=place, aux=aux or {}, told=said
            )
        if path.suffix not in _SUFFIXES:
            hint = f"; {STAGE_FILE}" if path.suffix == ".toml" else in_place_of(path)
            if kind_by_name(path.name) is not None:
                hint = f"; files are read by their folder: give {path.parent}"
            text = f"expected a folder, {', '.join(FILES)} or a metadataset .yaml"
            return self.fault(place, f"{text}; got {short(entry.path)}{hint}")
        self._check_relative(entry, place)
        key = path.resolve()
        if (
            key not in self._read
        ):  # what is wrong is told once, where it is first included
            found: list[Problem] = []
            self._read[key] = load(path, found)
            nested_in = f" (included from {place})" if outer.chain else ""
            self.problems += [replace(p, message=p.message + nested_in) for p in found]
        metadataset = self._read[key]
        return None if metadataset is None else self.split(metadataset, inner, place)

    def _stores(
        self, file: MetadatasetFile, keys: Folder, path: KeyPath
    ) -> dict[str, str]:
        """Return the stores that `aux` names."""
        stores = {}
        for name, ref in (keys.aux or {}).items():
            try:
                stores[name] = resolved_store(
                    ref, file.file.parent, existing=self._existing
                )
            except (ConfigError, DatasetNotFoundError) as error:
                missing = isinstance(error, DatasetNotFoundError)
                self.fault(
                    file.text.place((*path, "aux", name)), str(error), not_found=missing
                )
        return stores

    def _check_relative(self, keys: Any, place: str) -> None:
        """Note a subset by numbers of samples where it is not a single dataset that has
        them.
        """
        if keys.subset is not None and keys.subset.samples is not None:
            text = (
                "which is only allowed for a leaf dataset; of others take percentages"
            )
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
    if (
        "scheme" in own or "unit" in keys.model_fields_set
    ):  # what they say together is said anew
        dropped = {"scheme", "block_size", "unit"}
    options = {
        **{name: each for name, each in around.items() if name not in dropped},
        **own,
    }
    return {"scheme": "block", **options} if "block_size" in options else options


def _handed_on(
    keys: Any, options: Mapping[str, Any], around: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Of the options of a blend, those that hold for the blends inside.

    Not a scheme that knows no weights: it gives each entry the same, also an entry that
    blends.
    """
    if keys.by_quotas:
        return around
    names = ("stop",) if options.get("scheme") in WEIGHTLESS else _INHERITED
    return {name: options[name] for name in names if name in options}


def _flattened(
    node: Blend, quota: Quota | None
) -> list[tuple[Node, Any, Quota | None]]:
    """Return the entries of a blend_epochized in another one, repetitions
    multiplied.
    """
    return [
        (
            _below(child, node.called),
            1,
            Quota(repeat=float(_passes(quota) * _passes(inner))),
        )
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
    """Return the plan of the stages at `path`: of each its keys, its path and what it
    reads.

    What `around` them has of settings is that of stages without their own. What is
    wrong with the plan is told to `fault`, each at the stage that it is about.
    """

    def stage(
        name: str, keys: Any, at: KeyPath, dataset: D, *steps: int | None
    ) -> Stage[D]:
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
        f"this has stages, at {node.place}. They belong to the split that training "
        "reads, and "
        f"{reason}; name a split without stages with `split_part`"
    )


# Mixing by a property


def _divided(
    node: Node | Staged,
    keys: Folder,
    options: Mapping[str, Any],
    place: str,
    *,
    existing: bool,
) -> Blend:
    """Return what `node` reads as a blend of the samples of each value of the property
    `keys.by`, mixed by the `options` of the blend; of several folders in proportion to
    how many samples they have of the value.

    Which values there are is looked up in `.nv-meta`; unless the folders are
    `existing`, the values that have weights are all that is known. Raises
    `ColumnError`.
    """
    by = str(keys.by)
    leaves: Sequence[Any] = [node]
    if isinstance(node, Blend) and not isinstance(keys, Folder):
        leaves = [child for child, _ in node.children]
    if not leaves or not all(
        isinstance(leaf, Leaf) and leaf.chosen is None for leaf in leaves
    ):
        raise ColumnError(
            f"the samples of all folders here are weighed by {short(by)}, and they are "
            "mixed by "
            "something else already; give 'by' to the single folders, or to a blend of "
            "folders"
        )
    if by.startswith(SUBFLAVORS):
        parts = _by_subflavor(leaves, by.removeprefix(SUBFLAVORS), keys)
    else:
        parts = _by_value(leaves, by, keys, existing=existing)
    inside = {
        name: options[name] for name in ("scheme", "block_size") if name in options
    }
    if inside.get("scheme") in WEIGHTLESS:
        inside.pop("scheme")
    if options.get("stop", "restart") != "restart" or options.get("unit") is not None:
        inside["stop"] = (
            "all_exhausted"  # the mix has epochs: each sample comes once in one
        )
    named = {
        Selection(by, value).name: each for value, each in (keys.weights or {}).items()
    }
    called = _names_of(leaves)
    children: list[Any] = []
    for name, found in parts.items():
        counted = tuple((leaf, float(count)) for leaf, count in found)
        folders = tuple(called[replace(leaf, chosen=None)] for leaf, _ in found)
        part = (
            found[0][0]
            if len(found) == 1
            else Blend(counted, place, inside, names=folders)
        )
        children.append((part, named.get(name, keys.other)))
    return Blend(tuple(children), place, options, names=tuple(parts))


Counted = dict[str, list[tuple[Leaf, int]]]
"""Leaves by the value of a property, each with how many samples it has."""


def _by_value(
    leaves: Sequence[Leaf], by: str, keys: Folder, *, existing: bool
) -> Counted:
    """Return the samples of each value of a column."""
    values = list(keys.weights or {})
    if not existing:
        named = [Selection(by, value) for value in values]
        return {
            each.name: [(replace(leaf, chosen=each), 1) for leaf in leaves]
            for each in named
        }
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
        parts[selection.name] = [
            (replace(leaf, chosen=selection), n) for leaf, n in pairs if n
        ]
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
            has = (
                short(value) if name in labels else "none" + nearest(name, list(labels))
            )
            raise ColumnError(
                f"{leaf.path} has {has} as the subflavor {short(name)}, and weights "
                "are given for "
                f"{', '.join(parts)}; give it one, or `other` for all that have none"
            )
        parts[value if value in parts else OTHERS].append((leaf, leaf.source().count))
    for value, found in parts.items():
        if not found and value != OTHERS:
            raise ColumnError(
                f"no folder has {short(value)} as the subflavor {short(name)}"
            )
    return {value: found for value, found in parts.items() if found}


# Paths


def resolved_store(ref: str, base: Path, *, existing: bool = True) -> str:
    """Return a reference to a store with its path made absolute, as
    `energize.data.stores.open_store` takes it.

    `ref` is the path of a prepared folder or of a `.jsonl` file, relative to the folder
    `base`, or `filesystem://` and the path of a plain folder, which serves whatever
    file it is asked for.

    Raises `DatasetNotFoundError` for what does not exist, unless it need not be
    `existing`, and `ConfigError` for what is no store.

    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> (base / "images").mkdir()
    >>> resolved_store("filesystem://images", base) == f"filesystem://{base}/images"
    True
    """
    plain = ref.startswith(FILESYSTEM)
    name = ref.removeprefix(FILESYSTEM)
    kinds = (
        f"a store is a prepared folder, a .jsonl file or {FILESYSTEM}FOLDER, on "
        "mounted disks"
    )
    if "\0" in ref or name.startswith((FILESYSTEM, "filesystem+")):
        raise ConfigError(f"{short(ref)} is of an unknown kind; {kinds}")
    path = path_of(absolute(joined(base, name)))
    if existing and not exists(path):  # Path.exists raises for some names
        raise DatasetNotFoundError(f"{short(ref)} {absent(path)}, looked for {path}")
    if path.is_file() and (plain or path.suffix != JSONL):
        raise ConfigError(f"{short(ref)} is a file; {kinds}")
    return f"{FILESYSTEM}{path}" if plain else str(path)


def _tidied(path: Path) -> Path:
    """Return the absolute path without `..` where that is the same folder; links keep
    their names.
    """
    if ".." not in path.parts:
        return path.absolute()
    tidy = Path(os.path.abspath(path))
    return tidy if tidy.exists() and tidy.samefile(path) else path.absolute()


def _not_found(path: Path, given: str) -> str:
    text = f"{short(given)} {absent(path)}, looked for {absolute(path)}"
    if "$" in given:
        return f"{text}; a variable is written ${{NAME}}"
    if not is_url(path) and not os.access(path.parent, os.R_OK | os.X_OK):
        return f"{text}, in a folder that does not exist or cannot be read"
    if absolute(path).startswith("http"):  # most of these servers list nothing
        return text
    there = [each.name for each in islice(path.parent.iterdir(), _LISTED)]
    near = nearest(path.name, [name for name in there if name != path.name])
    return text + (in_place_of(path_of(given)) or near)


# Names


def _names_of(leaves: Iterable[Leaf]) -> dict[Leaf, str]:
    """Return the names of leaves: those that they have, else the shortest ends of their
    paths.
    """
    distinct = list(dict.fromkeys(leaves))
    names = distinct_names(
        [leaf.place_names for leaf in distinct],
        [leaf.split_part for leaf in distinct],
        [leaf.name for leaf in distinct],
    )
    return dict(zip(distinct, names, strict=True))


def _called(node: Node, name: str) -> Node:
    """Return a node with a name in its list, in which every leaf has one in its own."""
    names = _names_of(every_leaf(node))
    node = with_leaves(
        node, lambda leaf: replace(leaf, called=leaf.called or names[leaf])
    )
    return replace(node, called=name)


def _below(node: Node, group: str | None) -> Node:
    """Return an entry of a list that is opened up into another one."""
    return replace(node, called="/".join(filter(None, (group, node.called))) or None)


def _with_names(node: Any) -> Any:
    """Return a tree whose leaves have the names by which reports and weights know
    them.
    """
    paths = _names_of(replace(leaf, chosen=None) for leaf in every_leaf(node))
    if isinstance(node, Staged):
        plan = node.plan.with_datasets(
            lambda stage: _in_full(stage.dataset, "", paths, {})
        )
        node = replace(node, plan=plan)
    else:
        node = _in_full(node, "", paths, {})
    names = _names_of(every_leaf(node))

    def named(leaf: Leaf) -> Leaf:
        unnamed = paths[replace(leaf, chosen=None)]
        if leaf.chosen is not None:
            unnamed = f"{unnamed}/{leaf.chosen.name}"
        return replace(leaf, name=names[leaf], unnamed=unnamed)

    return with_leaves(node, named)


def _in_full(
    node: Node, path: str, paths: Mapping[Leaf, str], places: dict[str, str]
) -> Any:
    """Return a tree whose leaves have the names that lead to them as one. `places` is
    where the names stand that were found so far.
    """
    if isinstance(node, Leaf):
        return replace(node, name=path or None)
    children = []
    for (child, weight), called in zip(node.children, node.child_names, strict=True):
        name = called
        if isinstance(child, Blend) and child.names and not called:  # by a property
            folders = {paths[replace(leaf, chosen=None)] for leaf in every_leaf(child)}
            name = folders.pop() if len(folders) == 1 else None
        full = "/".join(filter(None, (path, name)))
        if called and full in places:
            raise MetadatasetError(
                f"{places[full]} and {child.place}: both are named {full!r}. Names are "
                "unique "
                "within a mix: give one another name, or the file that has it"
            )
        places[full] = child.place
        named = _in_full(child, full, paths, places)
        children.append((named if node.names else replace(named, called=name), weight))
    return replace(node, children=tuple(children))


# Shares


class Share(NamedTuple):
    """A part of a tree, its share of what is drawn and, where target weights are given,
    its share of what counts in the loss; and its name, where it has one.
    """

    node: Node
    share: Fraction = Fraction(1)
    target: Fraction | None = None
    name: str | None = None


def leaves_of(node: Node) -> list[Leaf]:
    """Return the leaves below `node`, whatever their weights; of equal ones the
    first.
    """
    return list(
        {leaf.identity: leaf for leaf in reversed([*every_leaf(node)])}.values()
    )[::-1]


def every_leaf(node: Node | Staged) -> list[Leaf]:
    """Return the leaves below `node` in the order written."""
    if isinstance(node, Leaf):
        return [node]
    if isinstance(node, Staged):
        return [
            leaf for stage in node.plan.stages for leaf in every_leaf(stage.dataset)
        ]
    return [leaf for child, _ in node.children for leaf in every_leaf(child)]


def with_leaves(node: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """Return a tree with what `change` makes of its leaves."""
    if isinstance(node, Leaf):
        return change(node)
    if isinstance(node, Staged):
        return replace(
            node, plan=node.plan.with_datasets(lambda s: with_leaves(s.dataset, change))
        )
    children = tuple(
        [(with_leaves(child, change), weight) for child, weight in node.children]
    )
    return replace(node, children=children)


def leaves_with_weights(
    node: Node | Staged, step: int = 0
) -> list[tuple[Leaf, Fraction]]:
    """Return the leaves below `node` with the shares asked for them, in the order
    written.

    Shares are exact and sum to 1. Weights are normalised in each blend and multiplied
    on the way down; a float stands for the decimal it prints as. Leaves of one folder
    with equal settings become one with the summed share, whose `place` names all of
    them; the merge is logged. A leaf of share 0 is kept.

    Weights that change are taken at `step`, after temperature and limits; stop rules
    are not looked at. Quotas give the shares of an epoch; for others than proportions
    the sizes of the folders are read from their indexes.

    Raises `WeightError` for a `Blend` made by hand with weights that a file could not
    have; `ConfigError` for a blend without a size in one by quotas, and for stages,
    each of which has shares of its own.

    >>> from pathlib import Path
    >>> a, b = Leaf(Path("/data/a"), "train"), Leaf(Path("/data/b"), "train")
    >>> inner = Blend(((a, 1.0), (b, 3.0)))
    >>> for leaf, share in leaves_with_weights(Blend(((inner, 0.5), (a, 0.5)))):
    ...     print(leaf.path.name, share)
    a 5/8
    b 3/8
    """
    if isinstance(node, Staged):
        raise ConfigError(
            f"{node.place}: each stage has shares of its own; ask for those of one, "
            "which is "
            "plan.at(step).dataset of this node"
        )
    merged = _merged(shares_below(Share(node), lambda _: True, step))
    return [(cast("Leaf", part.node), part.share) for part in merged]


def plain_shares(node: Blend) -> list[Share]:
    """Return what plain blends in each other blend, with shares as
    `leaves_with_weights` has them; all have a target where any has one.
    """
    parts = shares_below(Share(node), lambda blend: blend.plain)
    if [part for part in parts if part.target is not None]:
        parts = [
            p._replace(target=p.share if p.target is None else p.target) for p in parts
        ]
    return _merged(parts)


def shares_below(
    around: Share, opened: Callable[[Blend], bool], step: int = 0
) -> list[Share]:
    """Return what is below the blends at the top of a node that are `opened`, leaf by
    leaf.
    """
    node, share, target, name = around
    if isinstance(node, Leaf) or not opened(node):
        return [around]
    shares = asked_shares(node, step)
    targets = shares if node.targets is None else _normalised(node.targets)
    targeted = node.targets is not None or target is not None
    base = share if target is None else target
    found = []
    rows = zip(node.children, shares, targets, node.child_names, strict=True)
    for (child, _), own, aimed, called in rows:
        full = "/".join(each for each in (name, called) if each) or None
        below = Share(child, share * own, base * aimed if targeted else None, full)
        found += shares_below(below, opened, step)
    return found


def asked_shares(node: Blend, step: int = 0) -> list[Fraction]:
    """Return the shares asked for the children of a blend at a step: exact, summing to
    1.
    """
    if node.quotas is not None:
        proportions = [quota.proportion for quota in node.quotas]
        if any(proportions) and None not in proportions:
            return _normalised(cast("list[float]", proportions))
        return _normalised(_counts(node, node.quotas))
    numbers: list[Any] = [
        w.value(step) if isinstance(w, Schedule) else w for _, w in node.children
    ]
    for number in numbers:
        checked_weight(number, node.place)
    if not any(numbers):
        when = "" if node.plain else f" at step {step}"
        raise WeightError(
            f"{node.place}: all weights are 0{when}, so nothing could ever be drawn"
        )
    options = node.options
    if {"temperature", "min_share", "max_share"} & options.keys():
        with place_noted(node.place):
            if "temperature" in options:
                numbers = tempered(numbers, options["temperature"])
            numbers = limited(
                numbers, options.get("min_share"), options.get("max_share")
            )
    if options.get("scheme") in WEIGHTLESS:
        numbers = [1 if number else 0 for number in numbers]
    return _normalised(numbers)


def _merged(parts: Iterable[Share]) -> list[Share]:
    """Equal leaves as one."""
    merged: dict[Leaf | int, Share] = {}
    for number, part in enumerate(parts):
        leaf = part.node
        key = leaf.identity if isinstance(leaf, Leaf) else number
        if not isinstance(leaf, Leaf) or key not in merged:
            merged[key] = part
            continue
        first, share, target, name = merged[key]
        share += part.share
        place = f"{first.place} and {leaf.place}"
        both = None if target is None or part.target is None else target + part.target
        merged[key] = Share(replace(first, place=place), share, both, name)
        text = (
            "%s [%s] stands twice with equal settings, at %s; its shares add up to %s"
        )
        _log.info(text, leaf.path, leaf.split_part, place, float(share))
    return list(merged.values())


def _counts(node: Blend, quotas: Sequence[Quota]) -> list[int]:
    sizes = [_size(child) for child, _ in node.children]
    with place_noted(node.place):
        counts: list[int] = epoch_counts(
            sizes, quotas, node.options.get("epoch_size")
        ).tolist()
    return counts


def _size(node: Node) -> int:
    """Return the samples of an epoch."""
    if isinstance(node, Leaf):
        return node.source().count
    if node.quotas is None:
        raise ConfigError(
            f"{node.place}: how many samples this weighted blend gives to an epoch is "
            "not known "
            "from its file, so there are no shares; build the dataset and count with "
            "`consumed`, "
            "or give proportions in the blend around it"
        )
    return sum(_counts(node, node.quotas))


def _normalised(weights: Sequence[Any]) -> list[Fraction]:
    """Numbers as shares of their sum; a float is the decimal that it prints as."""
    exact = [Fraction(str(weight)) for weight in weights]
    total = sum(exact)
    return [weight / total for weight in exact]
