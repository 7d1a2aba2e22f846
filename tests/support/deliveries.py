"""Datasets whose items say which samples they are made of, counted one by one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    Dataset,
    EmptyDatasetError,
    IterableSource,
    ListSource,
    Loader,
    PackingDataset,
    ShuffleDataset,
)
from tests.support.trees import one_by_one, wrapped


def told(count: int, name: str) -> ListSource[tuple[str, str, int]]:
    """Samples that say where they are from, with a column `tokens`."""
    rows = [("sample", name, number) for number in range(count)]
    return ListSource(
        rows, name=name, columns={"tokens": [1 + n % 5 for n in range(count)]}
    )


def samples_in(item: Any) -> Iterator[tuple[str, int]]:
    """The name of the source and the number of each sample that an item has somewhere
    inside."""
    if isinstance(item, tuple) and len(item) == 3 and item[0] == "sample":
        yield item[1], item[2]
    elif isinstance(item, dict):
        for each in item.values():
            yield from samples_in(each)
    elif isinstance(item, list | tuple):
        for each in item:
            yield from samples_in(each)


def counted(items: list[Any]) -> Counter[str]:
    """How many samples of each source some items have."""
    return Counter(name for item in items for name, _ in samples_in(item))


def reported(loaders: list[Loader[Any]], what: str = "samples") -> Counter[str]:
    """How many samples (or batches) of each source the ledgers of these loaders have
    together, by its name.
    """
    found: Counter[str] = Counter()
    for loader in loaders:
        report = loader.report()
        sources = [each for each in report.rows if each.is_source]
        for row, leaf in zip(sources, _leaves(loader.dataset), strict=True):
            found[leaf] += getattr(row.counts, what)
        assert (
            sum(each.counts.samples for each in sources) == report.total.counts.samples
        )
    return +found


def _leaves(node: Dataset[Any]) -> list[str]:
    if not node.inputs:
        return [node.sources[0].name]
    return [name for each in node.inputs for name in _leaves(each)]


@st.composite
def told_trees(draw: Any, most: int = 2) -> Dataset[Any]:
    """Trees of at most so many wrappers on each path, streams among them, over samples
    that say where they are from; each source of a name of its own.
    """
    numbers = itertools.count()
    sizes = st.integers(1, 14)
    leaves = st.one_of(
        st.builds(lambda n: told(n, f"s{next(numbers)}"), sizes),
        st.builds(lambda n: ShuffleDataset(told(n, f"s{next(numbers)}")), sizes),
        st.builds(lambda n: _rows(n, f"s{next(numbers)}"), sizes),
    )
    strategy = leaves
    for _ in range(draw(st.integers(0, most - 1))):
        strategy = st.one_of(leaves, wrapped(strategy))
    try:
        tree = draw(wrapped(strategy))
    except (
        ConfigError,
        EmptyDatasetError,
    ):  # a batch too large for its input, for example
        assume(False)
    # What a function yields of several samples names them all, whichever it is made of.
    assume(not any(each.final_packer is one_by_one for each in _packing(tree)))
    return tree


def _rows(count: int, name: str) -> IterableSource[Any]:
    return IterableSource(
        [("sample", name, number) for number in range(count)], name=name
    )


def _packing(node: Dataset[Any]) -> Iterator[PackingDataset[Any]]:
    if isinstance(node, PackingDataset):
        yield node
    for each in node.inputs:
        yield from _packing(each)


def weighed_batch(samples: list[Any]) -> dict[str, Any]:
    """A batch whose samples count as much in the loss as their numbers say."""
    weights = torch.tensor([1.0 + each[2] % 3 for each in samples])
    return {"samples": samples, "sample_weights": weights}


def weighed_mix() -> BatchDataset[Any]:
    """Batches of four of two sources, three to one."""
    parts = {"web": told(90, "w"), "code": told(12, "c")}
    return BatchDataset(
        BlendDataset(parts, weights={"web": 3, "code": 1}), 4, weighed_batch
    )
