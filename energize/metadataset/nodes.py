"""The tree of what a split reads, its sources, and the shares that it asks for them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from energize.core.samples import CrudeSample, Sample, is_own_module, sample_type_named
from energize.core.validation import short
from energize.data.join import JoinedSource
from energize.data.jsonl import JsonlSource
from energize.data.loose import LooseSource
from energize.data.nv_meta import CRUDE, DatasetConfig, read_dataset_yaml
from energize.data.selection import PropertySource, Selection
from energize.data.source import Subset
from energize.data.webdataset import WebdatasetSource
from energize.datasets.stages import StagePlan
from energize.errors import (
    ConfigError,
    DatasetError,
    EnergizeError,
    MetadatasetError,
    UntrustedCodeError,
    WeightError,
    nearest,
)
from energize.metadataset.located import noted, place_noted
from energize.metadataset.models import Composition, JoinerName, Packing
from energize.order import Schedule
from energize.order.quota import Quota, epoch_counts
from energize.order.timeline import WEIGHTLESS
from energize.order.weights import checked_weight, limited, tempered
from energize.preparation.loose import Found, Told, is_loose, look_at
from energize.task.encoder import Level

JSONL = ".jsonl"

_log = logging.getLogger("energize")

LeafSource = WebdatasetSource | JsonlSource | LooseSource | JoinedSource | PropertySource[Any]
"""The sources that a leaf may be read from."""


@dataclass(frozen=True)
class Leaf:
    """One split part of one folder, prepared or loose, with the settings that all files on the way
    gave it; or a file of rows: a prepared `.jsonl` file has no split parts.

    `shuffle_over_epochs_multiplier`: epochs shuffled together; None = no shuffle, -1 = drawn with
    replacement. `aux`: stores that cookers read from, by name: paths of prepared folders and of
    `.jsonl` files, or `filesystem://` and a path, all absolute. `subset`: which of its samples, and
    `chosen`: which of these, by a property. `sample_weight`: how much its samples count in the
    loss, None where no file says. `packing` and `level`: how its samples are packed and its batches
    levelled, where it is the outermost. `told`: what was said of its samples, beside what the
    folder says. `place`: where it was written, for messages.
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
    told: Told = field(default_factory=Told)
    looked_at: dict[Any, Found] = field(default_factory=dict, compare=False, repr=False)
    """What was found at loose paths: of one mix they are looked at once."""

    @cached_property
    def config(self) -> DatasetConfig:
        """What the folder's dataset.yaml says of its samples, read once; or how they look, and what
        was said of them.
        """
        try:
            config = DatasetConfig("energize", CRUDE)
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
    def loose(self) -> Found | None:
        """What is found at the path if nobody prepared it."""
        if self.dataset_config or self.split_config or not is_loose(self.path):
            return None
        key = self.path, self.split_part, self.told
        if key not in self.looked_at:
            self.looked_at[key] = look_at(self.path, self.split_part, self.told)
        return self.looked_at[key]

    @cached_property
    def is_jsonl(self) -> bool:
        """Whether it is a prepared file of JSON lines, which has no split parts and no
        dataset.yaml.
        """
        return self.path.suffix == JSONL and not (self.path.is_dir() or is_loose(self.path))

    @property
    def split_file(self) -> str | None:
        """The split file: as asked for, else as dataset.yaml says, None for the usual one."""
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
                f"the factory {factory.__name__} has no __sample_type__: set it to the type of "
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
            return source if self.chosen is None else PropertySource(source, self.chosen)
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


def user_factory(config: DatasetConfig) -> type[Any]:
    """Return the factory that a dataset.yaml names, a class of a module of the program.

    Nothing is imported because a file names it. Raises `UntrustedCodeError` for a module that the
    program has not imported, `DatasetError` for what is no factory.
    """
    named = "dataset.yaml names the factory"
    hint = f", or trust_code=[{config.sample_module!r}]"
    found = _imported(named, config.sample_module, config.sample_class, hint)
    if not isinstance(found, type) or not hasattr(found, "load_sample"):
        raise DatasetError(
            f"{named} {short(config.sample_class)} of the module {short(config.sample_module)}, "
            f"which {'has no such name' if found is None else 'is no factory there'}; a factory is "
            "a class that extends DefaultDecoderWebdatasetFactory or BaseWebdatasetFactory. A type "
            "of samples stands in sample_type"
        )
    return found


def _imported(named: str, module: str, name: str, hint: str = "") -> Any:
    """Return what a module of the program has by a name, None for nothing; it is not imported."""
    if module in sys.modules:
        return vars(sys.modules[module]).get(name)
    raise UntrustedCodeError(
        f"{named} {short(name)} of the module {short(module)}, which this program has not "
        "imported. Nothing is imported because a file asks for it: if you trust that module, write "
        f"`import {module}` in your program before this{hint}"
    )


@dataclass(frozen=True)
class JoinedPart:
    """A dataset of a join. `nonmatch`: what happens to samples that have no partner in it; `name`:
    the argument of the joiner, None for joins that are written as lists.
    """

    leaf: Leaf
    nonmatch: str = "error"
    name: str | None = None


@dataclass(frozen=True)
class JoinedLeaf(Leaf):
    """Samples of the first of its `parts`, each with those of the others that have its key.

    Path, split part and subflavors are those of the first. `joiner` makes one sample of those
    found. `cache`: the folder in which `prepare_metadataset` may have written what it found.
    """

    parts: tuple[JoinedPart, ...] = ()
    joiner: JoinerName | Callable[..., Any] = field(default=tuple, compare=True)
    cache: Path | None = field(default=None, compare=False)

    @cached_property
    def config(self) -> DatasetConfig:
        """What the dataset.yaml of the first part says."""
        return self.parts[0].leaf.config

    @cached_property
    def sample_type(self) -> type[Any]:
        """The type of the samples that the joiner makes; `Sample` where a function does not say."""
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

        Nothing is imported because a file names it: a module is one that the program has imported,
        and modules of energize and of Megatron-Energon mean the types here. Raises
        `UntrustedCodeError` for another one, `MetadatasetError` for a name that is not there or is
        no joiner; both name the place in the file.
        """
        found = self._joiner
        if not isinstance(found, type):
            return found
        if not issubclass(found, Sample):
            raise MetadatasetError(
                f"{self.place}: the joiner {found.__name__} is no type of samples: it extends "
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
        name, named = joiner.class_ or joiner.function or "", f"{self.place}: the joiner is"
        found = _imported(named, joiner.module, name)
        if not (isinstance(found, type) if joiner.class_ else callable(found)):
            kind = "class" if joiner.class_ else "function"
            hint = nearest(name, list(vars(sys.modules[joiner.module]))) if found is None else ""
            raise MetadatasetError(
                f"{named} {short(name)} of the module {short(joiner.module)}, which has no {kind} "
                f"of that name{hint}"
            )
        return cast("Callable[..., Any]", found)

    def _whole(self, seed: int, checksums: bool) -> JoinedSource:
        parts = [cast("WebdatasetSource", p.leaf.source(checksums=checksums)) for p in self.parts]
        nonmatch = [each.nonmatch for each in self.parts[1:]]
        return JoinedSource(*parts, nonmatch=nonmatch, cache=self.cache, seed=seed)


@dataclass(frozen=True)
class Blend:
    """Nodes with their weights as given, not all of which are 0, and how they are mixed.

    `options` are those of `BlendDataset`; with `quotas`, one for each child, of `QuotaDataset`.
    `kind` is the key of the list: of `blend_epochized` and of `concat` quotas say what each child
    gives to an epoch, and in a `concat` the children follow one another. `packing` and `level`: how
    encoded samples are packed, and batches levelled, in the outermost one. `targets`: what each
    child weighs in the loss, at most `max_correction` times as much as it is drawn. `names` of
    children, where they are parts by a property, and what it is `called` in a blend around it.
    """

    children: tuple[tuple[Node, float | Fraction | Schedule], ...]
    place: str = field(default="", compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    quotas: tuple[Quota, ...] | None = None
    composition: Composition | None = None
    kind: str = "blend"
    packing: Packing | None = None
    level: Level | None = None
    targets: tuple[float, ...] | None = None
    max_correction: float | None = None
    names: tuple[str | None, ...] = ()
    called: str | None = None

    @cached_property
    def child_names(self) -> list[str | None]:
        """What each child is called, where it is not by its sources."""
        return list(self.names) or [getattr(child, "called", None) for child, _ in self.children]

    @cached_property
    def plain(self) -> bool:
        """Whether fixed weights say everything, so that its weights multiply with those around."""
        if self.options or self.quotas is not None:
            return False
        return not any(isinstance(weight, Schedule) for _, weight in self.children)

    @property
    def repeated(self) -> bool:
        """Whether it is for the program to say, not for the file, that it goes on for ever."""
        return self.plain or self.kind != "blend"


Node = Leaf | Blend


@dataclass(frozen=True, slots=True)
class Staged:
    """Stages of a run, each with the node it reads; only ever the outermost of what is read."""

    plan: StagePlan[Node]
    place: str = field(default="", compare=False)


# Shares


class Share(NamedTuple):
    """A part of a tree, its share of what is drawn and, where target weights are given, its share
    of what counts in the loss; and its name, where it has one.
    """

    node: Node
    share: Fraction = Fraction(1)
    target: Fraction | None = None
    name: str | None = None


def leaves_of(node: Node) -> list[Leaf]:
    """Return the leaves below `node`, whatever their weights; of equal ones the first."""
    return list({leaf.identity: leaf for leaf in reversed([*every_leaf(node)])}.values())[::-1]


def every_leaf(node: Node | Staged) -> list[Leaf]:
    """Return the leaves below `node` in the order written."""
    if isinstance(node, Leaf):
        return [node]
    if isinstance(node, Staged):
        return [leaf for stage in node.plan.stages for leaf in every_leaf(stage.dataset)]
    return [leaf for child, _ in node.children for leaf in every_leaf(child)]


def with_leaves(node: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """Return a tree with what `change` makes of its leaves."""
    if isinstance(node, Leaf):
        return change(node)
    if isinstance(node, Staged):
        return replace(node, plan=node.plan.with_datasets(lambda s: with_leaves(s.dataset, change)))
    children = tuple([(with_leaves(child, change), weight) for child, weight in node.children])
    return replace(node, children=children)


def leaves_with_weights(node: Node | Staged, step: int = 0) -> list[tuple[Leaf, Fraction]]:
    """Return the leaves below `node` with the shares asked for them, in the order written.

    Shares are exact and sum to 1. Weights are normalised in each blend and multiplied on the way
    down; a float stands for the decimal it prints as. Leaves of one folder with equal settings
    become one with the summed share, whose `place` names all of them; the merge is logged. A leaf
    of share 0 is kept.

    Weights that change are taken at `step`, after temperature and limits; stop rules are not looked
    at. Quotas give the shares of an epoch; for others than proportions the sizes of the folders are
    read from their indexes.

    Raises `WeightError` for a `Blend` made by hand with weights that a file could not have;
    `ConfigError` for a blend without a size in one by quotas, and for stages, each of which has
    shares of its own.

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
            f"{node.place}: each stage has shares of its own; ask for those of one, which is "
            "plan.at(step).dataset of this node"
        )
    merged = _merged(shares_below(Share(node), lambda _: True, step))
    return [(cast("Leaf", part.node), part.share) for part in merged]


def plain_shares(node: Blend) -> list[Share]:
    """Return what plain blends in each other blend, with shares as `leaves_with_weights` has them;
    all have a target where any has one.
    """
    parts = shares_below(Share(node), lambda blend: blend.plain)
    if [part for part in parts if part.target is not None]:
        parts = [p._replace(target=p.share if p.target is None else p.target) for p in parts]
    return _merged(parts)


def shares_below(around: Share, opened: Callable[[Blend], bool], step: int = 0) -> list[Share]:
    """Return what is below the blends at the top of a node that are `opened`, leaf by leaf."""
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
    """Return the shares asked for the children of a blend at a step: exact, summing to 1."""
    if node.quotas is not None:
        proportions = [quota.proportion for quota in node.quotas]
        if any(proportions) and None not in proportions:
            return _normalised(cast("list[float]", proportions))
        return _normalised(_counts(node, node.quotas))
    numbers: list[Any] = [w.value(step) if isinstance(w, Schedule) else w for _, w in node.children]
    for number in numbers:
        checked_weight(number, node.place)
    if not any(numbers):
        when = "" if node.plain else f" at step {step}"
        raise WeightError(f"{node.place}: all weights are 0{when}, so nothing could ever be drawn")
    options = node.options
    if {"temperature", "min_share", "max_share"} & options.keys():
        with place_noted(node.place):
            if "temperature" in options:
                numbers = tempered(numbers, options["temperature"])
            numbers = limited(numbers, options.get("min_share"), options.get("max_share"))
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
        text = "%s [%s] stands twice with equal settings, at %s; its shares add up to %s"
        _log.info(text, leaf.path, leaf.split_part, place, float(share))
    return list(merged.values())


def _counts(node: Blend, quotas: Sequence[Quota]) -> list[int]:
    sizes = [_size(child) for child, _ in node.children]
    with place_noted(node.place):
        counts: list[int] = epoch_counts(sizes, quotas, node.options.get("epoch_size")).tolist()
    return counts


def _size(node: Node) -> int:
    """Return the samples of an epoch."""
    if isinstance(node, Leaf):
        return node.source().count
    if node.quotas is None:
        raise ConfigError(
            f"{node.place}: how many samples this weighted blend gives to an epoch is not known "
            "from its file, so there are no shares; build the dataset and count with `consumed`, "
            "or give proportions in the blend around it"
        )
    return sum(_counts(node, node.quotas))


def _normalised(weights: Sequence[Any]) -> list[Fraction]:
    """Numbers as shares of their sum; a float is the decimal that it prints as."""
    exact = [Fraction(str(weight)) for weight in weights]
    total = sum(exact)
    return [weight / total for weight in exact]
