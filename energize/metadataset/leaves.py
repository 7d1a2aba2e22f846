"""The leaves of a mix: their names and their shares."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar, cast

from energize.data.selection import distinct_names
from energize.errors import ConfigError, MetadatasetError, WeightError
from energize.metadataset.located import place_noted
from energize.metadataset.nodes import (
    Blend,
    Leaf,
    Mix,
    MixNode,
    Stages,
    every_leaf,
    with_leaves,
)
from energize.order import Schedule
from energize.order.quota import epoch_counts
from energize.order.timeline import WEIGHTLESS
from energize.order.weights import (
    as_fraction,
    checked_weight,
    limited,
    raised,
    size_weight,
    weight_exponent,
)

N = TypeVar("N", bound=MixNode)
_log = logging.getLogger("energize")

_ENDS = {"stop", "max_epochs"}
"""Options of a blend by weights that give it epochs of its own."""

# Names


def names_of(
    leaves: Sequence[Leaf],
    keys: Sequence[Hashable],
    names: Sequence[str | None] | None = None,
) -> list[str]:
    """Return a name for each leaf: the shortest distinct ends of their paths.

    Args:
        leaves: The leaves.
        keys: Equal for leaves that have one name, that of the first.
        names: Names that leaves have already.
    """
    first: dict[Hashable, int] = {}
    for number, key in enumerate(keys):
        first.setdefault(key, number)
    distinct = [leaves[number] for number in first.values()]
    labels = distinct_names(
        [leaf.place_names for leaf in distinct],
        [leaf.split_part for leaf in distinct],
        [None if names is None else names[number] for number in first.values()],
    )
    by_key = dict(zip(first, labels, strict=True))
    return [by_key[key] for key in keys]


def named_entry(node: N, name: str) -> N:
    """Return a node with a name in its list, in which every leaf has one, too."""
    leaves = every_leaf(node)
    names = iter(names_of(leaves, [(leaf.key, leaf.chosen) for leaf in leaves]))

    def named(leaf: Leaf) -> Leaf:
        default = next(names)
        return leaf.model_copy(update={"entry_name": leaf.entry_name or default})

    result: N = with_leaves(node, named)
    return result.model_copy(update={"entry_name": name})


def with_names(node: MixNode | Stages) -> Any:
    """Return a tree with the names of its leaves in reports and weights.

    Raises:
        MetadatasetError: If two entries of a mix have one name.
    """
    leaves = every_leaf(node)
    keys: list[Hashable] = [leaf.key for leaf in leaves]
    defaults = names_of(leaves, keys)
    paths: list[str | None] = []
    if isinstance(node, Stages):
        plan = node.plan.with_datasets(
            lambda stage: _with_paths(stage.dataset, "", defaults, paths, {})
        )
        node = node.model_copy(update={"plan": plan})
    else:
        node = _with_paths(node, "", defaults, paths, {})
    names = defaults
    if any(paths) or [leaf for leaf in leaves if leaf.chosen is not None]:
        pairs = zip(keys, leaves, strict=True)
        names = names_of(leaves, [(key, leaf.chosen) for key, leaf in pairs], paths)
    rows = zip(names, defaults, strict=True)

    def named(leaf: Leaf) -> Leaf:
        name, default = next(rows)
        if leaf.chosen is not None:
            default = f"{default}/{leaf.chosen.name}"
        return leaf.model_copy(update={"name": name, "default_name": default})

    return with_leaves(node, named)


def _with_paths(
    node: MixNode,
    path: str,
    defaults: Sequence[str],
    paths: list[str | None],
    locations: dict[str, str],
) -> MixNode:
    """Add the names that lead to each leaf of a node to `paths`.

    Args:
        node: A node of a mix.
        path: The names that lead to it.
        defaults: Default names of all leaves.
        paths: Receives the names, for the leaves in their order.
        locations: Where the names so far are.

    Returns:
        The node, with folders that are mixed by a property named by themselves.
    """
    if isinstance(node, Leaf):
        paths.append(path or None)
    if not isinstance(node, Mix):
        return node
    children = []
    for child in node.children:
        name = child.entry_name
        full = _joined(path, name)
        if name is not None:
            _check_unique(full, child.location, locations)
        elif isinstance(child, Blend) and child.by is not None:
            name = _folder_name(child, defaults[len(paths) :])
            full = _joined(path, name)
        locations[full] = child.location
        named = _with_paths(child, full, defaults, paths, locations)
        if name != child.entry_name:
            named = named.model_copy(update={"entry_name": name})
        children.append(named)
    return node.with_children(children)


def _joined(path: str, name: str | None) -> str:
    return f"{path}/{name}" if path and name else path or name or ""


def _check_unique(name: str, location: str, locations: Mapping[str, str]) -> None:
    """Raise `MetadatasetError` if another entry has the name."""
    if name in locations:
        raise MetadatasetError(
            f"{locations[name]} and {location}: both have the name {name!r}. Rename "
            "one of them, or the file that contains it"
        )


def _folder_name(node: Blend, defaults: Sequence[str]) -> str | None:
    """Return the name of the only folder of which a blend has the values of a
    property.
    """
    names = set(defaults[: len(every_leaf(node))])
    return names.pop() if len(names) == 1 else None


# Shares


class Share(NamedTuple):
    """A part of a mix.

    Attributes:
        node: The node.
        share: Its share of drawn samples.
        target: Its share in the loss; None without target weights.
        name: The names of the entries that lead to it; None without names.
    """

    node: MixNode
    share: Fraction = Fraction(1)
    target: Fraction | None = None
    name: str | None = None


def leaves_with_weights(
    node: MixNode | Stages, step: int = 0
) -> list[tuple[Leaf, Fraction]]:
    """Return the leaves below a node with their expected shares, in file order.

    Shares are exact and sum to 1. Weights are normalised in each blend and multiplied
    on the way down; a float is read as its decimal notation. Leaves of one folder with
    equal settings are merged, and their shares are added; `location` lists all of them,
    and the merge is logged. Leaves with share 0 are kept.

    For quotas, shares are those of an epoch; for other quotas than proportions, the
    sizes of folders are read from their indexes.

    Args:
        node: A resolved mix.
        step: The step at which changing weights are evaluated, after temperature and
            limits. Stop rules are ignored.

    Raises:
        WeightError: If all weights of a blend are 0 at the step.
        ConfigError: If a blend by quotas contains a blend without a size, or the mix
            has stages, each of which has shares of its own.

    Example:
        >>> from pathlib import Path
        >>> from energize.metadataset.nodes import Blend, Folder
        >>> a = Folder.model_construct(path=Path("/data/a"))
        >>> b = Folder.model_construct(path=Path("/data/b"), weight=3)
        >>> blend = Blend.model_construct(
        ...     children=[Blend.model_construct(children=[a, b]), a]
        ... )
        >>> for leaf, share in leaves_with_weights(blend):
        ...     print(leaf.path.name, share)
        a 5/8
        b 3/8
    """
    if isinstance(node, Stages):
        raise ConfigError(
            f"{node.location}: each stage has its own shares. Use the shares of "
            "plan.at(step).dataset of this node"
        )
    merged = _merged(shares_below(Share(node), lambda _: True, step))
    return [(cast("Leaf", part.node), part.share) for part in merged]


def plain_shares(node: Mix) -> list[Share]:
    """Return the parts of nested plain blends; all have a target if any has one.

    Args:
        node: A mix.
    """
    parts = shares_below(Share(node), lambda mix: mix.plain)
    if any(part.target is not None for part in parts):
        parts = [
            part._replace(target=part.share) if part.target is None else part
            for part in parts
        ]
    return _merged(parts)


def shares_below(
    around: Share, opened: Callable[[Mix], bool], step: int = 0
) -> list[Share]:
    """Return the parts below mixes at the top of a node.

    Args:
        around: The node, with its share.
        opened: Returns whether a mix is replaced by its children.
        step: The step at which changing weights are evaluated.
    """
    node = around.node
    if not isinstance(node, Mix) or not opened(node):
        return [around]
    shares = expected_shares(node, step)
    targets = _targets_below(around, node, shares)
    parts = []
    for child, share, target in zip(node.children, shares, targets, strict=True):
        names = [name for name in (around.name, child.entry_name) if name]
        name = "/".join(names) or None
        below = Share(child, around.share * share, target, name)
        parts += shares_below(below, opened, step)
    return parts


def _targets_below(
    around: Share, node: Mix, shares: Sequence[Fraction]
) -> Sequence[Fraction | None]:
    """Return the shares in the loss of the children of a mix; None without targets."""
    if node.targets is None and around.target is None:
        return [None] * len(shares)
    base = around.share if around.target is None else around.target
    targets = shares if node.targets is None else normalised(node.targets)
    return [base * target for target in targets]


def expected_shares(node: Mix, step: int = 0) -> list[Fraction]:
    """Return the expected shares of the children of a mix; they sum to 1."""
    if node.by_quotas:
        proportions = [quota.proportion for quota in node.quotas]
        if any(proportions) and None not in proportions:
            return normalised(proportions)
        return normalised(_counts(node))
    weights = _weights(node, step)
    options = node.options
    changes = ("temperature", "exponent", "min_share", "max_share")
    if options.keys() & changes:
        with place_noted(node.location):
            heat, power = (options.get(name, 1) for name in changes[:2])
            weights = raised(weights, weight_exponent(heat, power))
            weights = limited(
                weights, options.get("min_share"), options.get("max_share")
            )
    if options.get("scheme") in WEIGHTLESS:
        weights = [1 if weight else 0 for weight in weights]
    return normalised(weights)


def mix_weights(node: Mix) -> list[Any]:
    """Return the weights of the children of a blend, by their sizes if it sets that."""
    rule = node.weights if isinstance(node, Blend) else None
    if not isinstance(rule, str):
        return [child.weight for child in node.children]
    return [size_weight(rule, _pass_length(child)) for child in node.children]


def _pass_length(node: MixNode) -> int:
    """Return the samples in one pass over what a node reads."""
    if isinstance(node, Mix) and not (node.by_quotas or node.options.keys() & _ENDS):
        rows = zip(node.children, mix_weights(node), strict=True)
        return sum(_pass_length(child) for child, weight in rows if weight)
    return _size(node)


def _weights(node: Mix, step: int) -> list[Any]:
    """Return the weights of the children of a blend at a step."""
    weights = []
    for entry in mix_weights(node):
        weight = entry.value(step) if isinstance(entry, Schedule) else entry
        checked_weight(weight, node.location)
        weights.append(weight)
    if not any(weights):
        when = "" if node.plain else f" at step {step}"
        raise WeightError(
            f"{node.location}: all weights are 0{when}. Set at least one above 0"
        )
    return weights


def _merged(parts: Iterable[Share]) -> list[Share]:
    """Return parts with equal leaves as one."""
    merged: dict[Hashable, Share] = {}
    for number, part in enumerate(parts):
        leaf = part.node
        key = leaf.identity if isinstance(leaf, Leaf) else number
        if not isinstance(leaf, Leaf) or key not in merged:
            merged[key] = part
            continue
        first = merged[key]
        location = f"{first.node.location} and {leaf.location}"
        share = first.share + part.share
        target = None
        if first.target is not None and part.target is not None:
            target = first.target + part.target
        node = first.node.model_copy(update={"location": location})
        merged[key] = Share(node, share, target, first.name)
        _log.info(
            "%s [%s] is listed twice with equal settings, at %s, so its shares add "
            "up to %s",
            leaf.path,
            leaf.split_part,
            location,
            float(share),
        )
    return list(merged.values())


def _counts(node: Mix) -> list[int]:
    """Return how many samples each child of a mix by quotas gives to an epoch."""
    sizes = [_size(child) for child in node.children]
    with place_noted(node.location):
        counts: list[int] = epoch_counts(
            sizes, node.quotas, node.options.get("epoch_size")
        ).tolist()
    return counts


def _size(node: MixNode) -> int:
    """Return the samples of an epoch."""
    if isinstance(node, Leaf):
        return node.source().count
    if isinstance(node, Mix) and node.by_quotas:
        return sum(_counts(node))
    raise ConfigError(
        f"{node.location}: the shares are unknown, as the file does not set the "
        "number of samples of this weighted blend in an epoch. Build the dataset and "
        "count with `consumed`, or set proportions in the blend around it"
    )


def normalised(weights: Sequence[Any]) -> list[Fraction]:
    """Return numbers as shares of their sum; a float is the decimal it prints as."""
    exact = [as_fraction(weight) for weight in weights]
    total = sum(exact)
    return [weight / total for weight in exact]
