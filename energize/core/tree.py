"""Questions about a whole tree of datasets.

Every function here is computed from what single nodes state: their traits
(`NodeTraits`) and the public members that `Dataset` and `IndexedDataset` document. No
node overrides an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from energize.core.arrays import BoolArray, Int64Array
from energize.core.description import digest
from energize.core.lanes import Lane
from energize.core.node import INFINITE, NodeTraits, ReadPart
from energize.core.rng import derive
from energize.errors import NotIndexedError, StateError

Through = Callable[[NodeTraits], bool]

KEEPS_ORDER: Through = attrgetter("keeps_order")
"""Nodes that do not decide which items come."""

CONTENT_ONLY: Through = attrgetter("content_only")
"""Nodes that only change the content of items."""


KEEPS_POSITIONS: Through = attrgetter("keeps_positions")
"""Nodes that keep the positions of their input in a run."""


# The way down.


def unwrap(node: Any, through: Through = KEEPS_ORDER) -> Any:
    """Return the outermost node of a tree that decides which items come.

    Args:
        node: The root of the tree.
        through: Selects, by their traits, the nodes to skip. Each has one input.

    Returns:
        The first node from the root downwards that `through` does not select.

    Example:
        >>> from energize import EpochizeDataset, ListSource, MapDataset
        >>> source = ListSource("abc", name="letters")
        >>> unwrap(MapDataset(EpochizeDataset(source, 2), str.upper)) is source
        True
    """
    while through(node.traits):
        node = node.inputs[0]
    return node


def steps_per_loop(node: Any) -> int | None:
    """Return the steps each rank makes in a loop; None if epochs determine them."""
    steps: int | None = unwrap(node, CONTENT_ONLY).traits.loop.steps
    return steps


def never_ends(node: Any) -> bool:
    """Return whether a loader reads a dataset without an end of epochs."""
    if steps_per_loop(node) is not None:
        return True
    return bool(node.sized and node.size == INFINITE)


def first_stream(node: Any) -> str:
    """Return the class name of the innermost stream on the way down, for messages."""
    while streams := [child for child in node.inputs if not child.indexed]:
        node = streams[0]
    return type(node).__name__


# Lengths.


def pass_length(node: Any) -> int:
    """Return the number of items in one pass over what a dataset reads.

    That is the length of an epoch. If the epoch never ends, it is the number of items
    made of one pass over every input.

    Raises:
        NotIndexedError: If the number is only known after reading.

    Example:
        >>> from energize import BlendDataset, ListSource
        >>> pass_length(BlendDataset((ListSource("ab"), 1), (ListSource("cde"), 1)))
        5
    """
    traits = node.traits
    if traits.stream.by_reading:
        if traits.stream.pass_length is None:
            raise length_unknown(node)
        return int(traits.stream.pass_length(pass_length(node.inputs[0])))
    if (node.sized and node.size != INFINITE) or not node.inputs:
        return int(node.size)
    total = sum(
        pass_length(child)
        for number, child in enumerate(node.inputs)
        if number not in traits.mix.unread_inputs
    )
    return -(-total // (traits.members or 1))


def read_ahead(node: Any) -> int:
    """Return how many items of an indexed dataset are worth reading at once."""
    if not node.inputs:
        return int(node.read_ahead)
    least = min(map(read_ahead, node.inputs))
    return max(1, least // (node.traits.members or 1))


def length_unknown(node: Any) -> NotIndexedError:
    """Return the error for the length of a stream that is only known after reading."""
    return NotIndexedError(
        f"the number of items of {type(node).__name__} is known only by reading. Cut "
        "it with EpochizeDataset and count steps"
    )


def not_indexed(node: Any, wanted: str) -> NotIndexedError:
    """Return the error for an operation that needs positions of a stream."""
    name = type(node).__name__
    stream = first_stream(node)
    reads = "is" if name == stream else f"reads from {stream},"
    return NotIndexedError(
        f"{name} {reads} a stream, so it has no {wanted}. Iterate over it instead"
    )


# Sources, and the parts that a stream reads.


def read_parts(node: Any) -> tuple[ReadPart, ...]:
    """Return the parts that a dataset reads; an indexed dataset is its only part."""
    if node.indexed or not node.inputs:
        return (ReadPart(node, np.arange(len(node.sources))),)
    parts = []
    for numbers, child in zip(node.source_numbers, node.inputs, strict=True):
        for part, inner in child.read_parts:
            source_numbers = (
                numbers + inner if isinstance(numbers, int) else numbers[inner]
            )
            parts.append(ReadPart(part, source_numbers))
    return tuple(parts)


def distinct_sources(datasets: Iterable[Any]) -> tuple[Any, ...]:
    """Return the distinct sources of several datasets."""
    by_description = {
        digest(source.describe()): source
        for dataset in datasets
        for source in dataset.sources
    }
    return tuple(by_description.values())


def source_numbers(node: Any) -> list[int | Int64Array]:
    """Return, for each input, the numbers of its sources in `sources` of the node.

    Consecutive numbers are returned as the first one.
    """
    if node.traits.mix.shares_sources:
        return shared_numbers(node.sources, node.inputs)
    numbers: list[int | Int64Array] = []
    first = 0
    for child in node.inputs:
        numbers.append(first)
        first += len(child.sources)
    return numbers


def shared_numbers(
    sources: Sequence[Any], datasets: Iterable[Any]
) -> list[int | Int64Array]:
    """Return the numbers of the sources of datasets that share some of them."""
    number_of = {digest(s.describe()): i for i, s in enumerate(sources)}
    return [
        np.array(
            [number_of[digest(source.describe())] for source in dataset.sources],
            dtype=np.int64,
        )
        for dataset in datasets
    ]


def of_sources(node: Any, values: Sequence[Sequence[Any]]) -> list[Any]:
    """Return values of the sources of every input, in the order of `node.sources`."""
    ordered: list[Any] = [None] * len(node.sources)
    for numbers, of_input in zip(node.source_numbers, values, strict=True):
        for row, value in enumerate(of_input):
            ordered[numbers + row if isinstance(numbers, int) else numbers[row]] = value
    return ordered


def distinguished(node: Any, occurrence: int) -> Any:
    """Return a description with sources in another order.

    So a mix reads the same dataset twice in two different orders.

    Args:
        node: The dataset that occurs several times.
        occurrence: The number of equal datasets that precede it.
    """
    if not node.inputs:
        drawn = derive(node.occurrence, occurrence) % 2**62
        return node.replace(occurrence=drawn)
    return node.with_inputs([distinguished(child, occurrence) for child in node.inputs])


# Padding, and how many samples an item has.


def has_single_samples(node: Any) -> bool:
    """Return whether every item is one sample, and all samples are of one source."""
    while len(node.inputs) == 1 and not node.traits.gathers:
        node = node.inputs[0]
    return not node.inputs


def has_padding(node: Any) -> bool:
    """Return whether some items are padding, made of samples counted elsewhere."""
    traits = node.traits
    if traits.loop.pads:
        return True
    if traits.gathers or not node.indexed:
        return False
    return any(map(has_padding, node.inputs))


def padding(node: Any, positions: Int64Array) -> BoolArray:
    """Return for each position whether its item is padding."""
    is_padding = np.zeros(len(positions), dtype=np.bool_)
    if not has_padding(node):
        return is_padding
    routes = node.route(positions)
    for child, dataset in enumerate(() if node.traits.gathers else node.children):
        rows = slice(None) if routes.child is None else routes.child == child
        is_padding[rows] = padding(dataset, routes.position[rows])
    if routes.owner is not None and routes.padding is not None:
        is_padding[routes.owner[routes.padding]] = True
        is_padding[routes.owner[~routes.padding]] = False
    return is_padding


def full_items(node: Any, n: int) -> int:
    """Return how many of the first `n` items are not padding of this node.

    Padding is at the same positions of every epoch.
    """
    if not node.traits.loop.pads:
        return n
    epochs, rest = divmod(n, node.size)
    padded = int(padding(node, np.arange(rest, dtype=np.int64)).sum())
    if epochs:
        of_epoch = padding(node, np.arange(node.size, dtype=np.int64))
        padded += epochs * int(of_epoch.sum())
    return n - padded


# States of indexed datasets.


def state_at(node: Any, position: int) -> dict[str, Any]:
    """Return the state in which `position` items have been delivered."""
    phases = node.traits.mix.phases
    fields = {} if phases is None else phases.state_fields(position)
    if node.anchored:
        fields["anchors"] = anchors_at(node, position)
    return {"position": position, **fields}


def check_state(node: Any, state: dict[str, Any]) -> None:
    """Raise `StateError` if an indexed dataset cannot resume from a state."""
    if node.traits.mix.phases is not None:
        node.traits.mix.phases.check_state(state)


# Anchors.

Anchored = tuple[dict[str, list[int]], int]
"""Facts by the way to each node, see `anchors_at`, and the item."""


def anchors_at(node: Any, n: int) -> dict[str, list[int]]:
    """Return the facts about the nodes of a tree that locate item `n` at once.

    Args:
        node: An indexed dataset.
        n: Number of delivered items.

    Returns:
        The fact of each node with an anchor, by the way to it, such as "0/1". See
        `Anchor`.
    """
    return {way: anchor.at(at) for way, anchor, at in _anchored(node, n, "")}


def anchored_of(node: Any, n: int) -> Anchored | None:
    """Return the anchors of an item of a dataset; None if it needs none."""
    if not (n and node.indexed and node.anchored):
        return None
    return anchors_at(node, n), n


def anchors_of_windows(node: Any, n: int, window: int) -> dict[str, list[int]]:
    """Return facts with which the nodes of a tree begin a window with item `n`.

    Args:
        node: An indexed dataset.
        n: Number of delivered items.
        window: The number of the window.
    """
    facts: dict[str, list[int]] = {}
    for way, _, items in _anchored(node, n, "", facts):
        facts[way] = [window, items]
    return facts


def saved_anchors(state: dict[str, Any]) -> dict[str, list[int]]:
    """Return the anchors of a saved state.

    Raises:
        StateError: If they are missing or damaged.
    """
    facts = state.get("anchors")
    if not isinstance(facts, dict):
        raise StateError(
            "the saved state has no 'anchors' of planned packs or batches. Load the "
            "state as it was saved"
        )
    for fact in facts.values():
        is_pair = isinstance(fact, list) and [*map(type, fact)] == [int, int]
        if not is_pair or min(fact) < 0:
            raise StateError(
                "the saved state's 'anchors' must be pairs of whole numbers >= 0, got "
                f"{str(fact)[:80]}. Load the state as it was saved"
            )
    return facts


def anchors_in(node: Any, state: dict[str, Any]) -> Anchored | None:
    """Return the anchors of a saved state; None if the dataset needs none.

    Raises:
        StateError: If they are missing or damaged.
    """
    if not (node.indexed and node.anchored and state.get("position")):
        return None
    return saved_anchors(state), state["position"]


def learn_anchors(node: Any, anchored: Anchored) -> None:
    """Use facts of a copy of the same tree in another process."""
    facts, n = anchored
    for way, anchor, _ in _anchored(node, n, "", facts):
        anchor.learn(facts[way])


def anchored_at(node: Any, anchored: Anchored | None) -> Any:
    """Return the same tree, which locates an item and later ones at once.

    Args:
        node: An indexed dataset.
        anchored: Facts that `anchors_at` returned, and the item; None for the start.

    Raises:
        StateError: If the facts are damaged, or of another dataset.
    """
    if anchored is None:
        return node
    facts, n = anchored
    resumed = _at(node, facts, n, "")
    resumed.refs([n])  # locating the item verifies the facts about it
    return resumed


def _at(node: Any, facts: dict[str, Any], n: int, way: str) -> Any:
    """Return a part of a tree with the facts about it, which come with a way."""
    if not node.anchored:
        return node
    anchor = node.traits.loop.anchor
    if anchor is None:
        items = node.anchor_items(n)
        if items is None:
            return node

        def anchored(number: int, child: Any) -> Any:
            item = items[number]
            below = _below(way, number)
            return child if item is None else _at(child, facts, item, below)

        return node.with_children(anchored)
    if way not in facts:
        raise StateError(
            f"the saved state's 'anchors' lack {way!r}, they have "
            f"{', '.join(map(repr, facts))[:80]}. Load the state as it was saved"
        )
    fact = facts[way]
    start = anchor.start(fact)  # which also checks the fact
    return anchor.resumed(fact, n, _at(node.inputs[0], facts, start, _below(way, 0)))


def _below(way: str, number: int) -> str:
    return f"{way}/{number}" if way else f"{number}"


def _anchored(
    node: Any, n: int, way: str, facts: dict[str, Any] | None = None
) -> Iterator[tuple[str, Any, int]]:
    """Yield the way to each node with an anchor, the anchor, and the node's item.

    Args:
        node: An indexed dataset.
        n: Number of its delivered items.
        way: The way to it.
        facts: The facts, if they are known.
    """
    if not node.anchored:
        return
    anchor = node.traits.loop.anchor
    if anchor is not None:
        yield way, anchor, n
        if not node.inputs[0].anchored:
            return
        fact = anchor.at(n) if facts is None else facts[way]
        yield from _anchored(node.inputs[0], anchor.start(fact), _below(way, 0), facts)
        return
    for number, item in enumerate(node.anchor_items(n) or ()):
        # States have facts about all stages, so that their shape is constant.
        child = node.inputs[number] if item is None else node.children[number]
        yield from _anchored(child, item or 0, _below(way, number), facts)


def watcher(node: Any, lane: Lane) -> Callable[[int], None] | None:
    """Return a callback for the position of every delivered item, or None."""
    phases = node.traits.mix.phases
    return None if phases is None else phases.watcher(lane.index)
