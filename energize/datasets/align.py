"""Batches in which all ranks have a sample with images at a step, or none has."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array, rows_by_value
from energize.core.checks import check_names, checked_whole
from energize.core.costs import ColumnCost, ColumnCosts, LevelCost, level_costs
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.failures import Failed
from energize.core.loss_weights import weighed
from energize.core.node import (
    INFINITE,
    NodeTraits,
    Routes,
    Span,
    Substitutes,
)
from energize.core.padding import Padded
from energize.core.rng import derive, hash_positions
from energize.core.trace import Request, location_of
from energize.core.tree import first_stream
from energize.datasets.batch import BatchDataset, below_maps, same
from energize.datasets.level import (
    LevelDataset,
    check_costs,
    checked_global_batch,
    costs_at,
)
from energize.datasets.order import cut_epochs
from energize.datasets.planned import (
    WINDOW,
    BudgetBatchDataset,
    Length,
    WindowSamples,
    checked_budget,
    cost_of,
)
from energize.datasets.stages import StagedDataset
from energize.errors import (
    ColumnError,
    ConfigError,
    NotIndexedError,
    StateError,
    nearest,
    some,
)
from energize.order.align import (
    MOST_MODALITIES,
    AlignedBatches,
    aligned,
    micro_batch_sizes,
    modalities_of,
)
from energize.order.level import levelled_by_class
from energize.packing.plan import LevelCosts, Plan, aligned_batches

T_batch_co = TypeVar("T_batch_co", covariant=True)

Columns: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""A column, several columns, or columns with "together" or "always"."""

_RULES = ("together", "always")

_KEPT = 8
"""Cached global batches; micro batches of one are mostly read in a row."""

_DRAWS = 256
"""Earlier positions of the mix at which a filler is looked for first."""

_SCANNED = 2**22
"""The maximum number of later positions at which a filler is looked for."""

_SCANNED_AT_ONCE = 4096


OPTIONS = ("columns", "always", "ranks", "global_batch_size")
"""Keys of an alignment with options."""


@dataclass(frozen=True)
class Alignment:
    """The modalities that all ranks have in the same micro steps.

    Attributes:
        columns: The columns of the modalities.
        always: Those of them that every micro batch has.
        ranks: Micro batches of a micro step; None for all of a global batch.
        global_batch_size: Samples of a global batch; None if it is set elsewhere.
    """

    columns: tuple[str, ...]
    always: tuple[str, ...] = ()
    ranks: int | None = None
    global_batch_size: int | None = None

    @classmethod
    def of(
        cls,
        columns: Columns,
        *,
        always: bool = False,
        ranks: int | None = None,
        global_batch_size: int | None = None,
    ) -> Alignment:
        """Return the alignment of columns.

        Args:
            columns: The name of a column, a list of names, or a dict of names and
                "together" or "always".
            always: Whether every micro batch has all modalities.
            ranks: Micro batches of a micro step; None for all of a global batch.
            global_batch_size: Samples of a global batch; None if it is set elsewhere.

        Raises:
            ConfigError: For other values.

        Example:
            >>> Alignment.of({"images": "always", "audio": "together"}).always
            ('images',)
        """
        if isinstance(columns, str):
            columns = [columns]
        rules = columns if isinstance(columns, Mapping) else dict.fromkeys(columns)
        if not rules or len(rules) < len(columns) or len(rules) > MOST_MODALITIES:
            raise ConfigError(
                f"align: columns must be 1 to {MOST_MODALITIES} different names, got "
                f"{list(columns)!r}"
            )
        for name, rule in rules.items():
            if not isinstance(name, str) or not name or rule not in (None, *_RULES):
                raise ConfigError(
                    "align: columns must be names of columns, with 'together' or "
                    f"'always' as their values in a dict, got {name!r}: {rule!r}"
                    f"{nearest(str(name), OPTIONS) or '.'} Set options beside "
                    "'columns', as in {'columns': 'images', 'ranks': 8}"
                )
        named = tuple(rules)
        if ranks is not None:
            checked_whole(ranks, "align: ranks", 1)
        return cls(
            named,
            tuple(name for name in named if always or rules[name] == "always"),
            ranks,
            global_batch_size,
        )

    @classmethod
    def parsed(cls, value: Any) -> Alignment:
        """Return the alignment of the argument `align`.

        A dict with the key "columns" has options: `columns`, `always`, `ranks` and
        `global_batch_size`. Other values are the columns themselves.

        Raises:
            ConfigError: For other values.

        Example:
            >>> Alignment.parsed({"columns": ["images", "audio"], "ranks": 64}).ranks
            64
        """
        if isinstance(value, Alignment):
            return value
        if isinstance(value, Mapping) and "columns" in value:
            options = dict(value)
            check_names(options, OPTIONS)
            return cls.of(options.pop("columns"), **options)
        if not isinstance(value, str | Sequence | Mapping):
            raise ConfigError(
                "align must be the name of a column, a list of names, or a dict, got "
                f"{value!r}"
            )
        return cls.of(value)


class AligningDataset(IndexedDataset[T_batch_co]):
    """Batches with fillers, so that steps of ranks have the same modalities.

    The base of such nodes. Another base makes the batches.
    """

    order_name = "AligningDataset"

    has_loss_weights = True

    alignment: Alignment

    @cached_property
    def traits(self) -> NodeTraits:
        traits = super().traits
        substitutes = Substitutes(self._other_items, self._other_members)
        loop = replace(traits.loop, step_items=self.ranks, substitutes=substitutes)
        return replace(traits, makes=True, loop=loop)

    @abstractmethod
    def filler_count(self, position: int) -> int:
        """Return how many of the last members of a batch are fillers."""

    @property
    def ranks(self) -> int:
        """Micro batches of a micro step."""
        return self.alignment.ranks or 1

    def _check_columns(self, owner: str) -> None:
        for name in self.alignment.columns:
            is_used = False
            for source in self.sources:
                column = source.column(name)
                if column.is_text:
                    raise ColumnError(
                        f"{source.name}: the column {name!r} must have numbers, above "
                        "0 for samples with the modality, but has words such as "
                        f"{(column.categories or ('',))[0]!r}. Use a numeric column"
                    )
                is_used = is_used or bool((column.values > 0).any())
            if not is_used:
                raise ColumnError(
                    f"{owner}: the column {name!r} is 0 for all samples of all "
                    f"{len(self.sources)} sources. Measure the column again, or remove "
                    "it from the aligned columns"
                )

    def make(self, items: list[Any], request: Request) -> list[T_batch_co | Failed]:
        counts = [self.filler_count(at) for at in request.positions.tolist()]
        members = [
            [
                weighed(member, float(row < len(item) - fillers))
                for row, member in enumerate(item)
            ]
            for item, fillers in zip(items, counts, strict=True)
        ]
        results: list[Any] = list(super().make(members, request))
        for row, fillers in enumerate(counts):
            if fillers and type(results[row]) is not Failed:
                at = request.positions[row : row + 1]
                refs = self.children[0].refs(self.route(at).position)
                sizes = np.bincount(refs.item, minlength=len(members[row])).tolist()
                results[row] = Padded.with_fillers(
                    members[row], results[row], fillers, sizes
                )
        return results

    def _other_items(self, position: int) -> Iterator[int]:
        """Yield later batches with the modalities of a batch."""
        modalities = self._modalities_of(position)
        for other in range(position + 1, position + 1 + _SCANNED_AT_ONCE):
            if self._modalities_of(other) == modalities:
                yield other

    def _modalities_of(self, position: int) -> int:
        members = self.route(np.array([position], dtype=np.int64)).position
        return int(np.bitwise_or.reduce(self._masks(members)))

    def _other_members(self, position: int) -> Iterator[int]:
        """Yield positions of the input with the modalities of a failed sample."""
        masks = self._masks(np.array([position], dtype=np.int64))
        for positions, _ in self._candidates(position, lambda m: m == masks[0]):
            yield from positions.tolist()

    def _masks(self, positions: Int64Array) -> Int64Array:
        """Return the masks of modalities of items of the input."""
        child = self.children[0]
        refs = child.refs(positions)
        masks = np.zeros(len(positions), dtype=np.int64)
        for number, rows in rows_by_value(refs.source):
            source = child.sources[number]
            index = refs.index[rows]
            for bit, name in enumerate(self.alignment.columns):
                has = source.column(name).values[index] > 0
                masks[refs.item[rows[has]]] |= np.int64(1) << bit
        return masks

    @property
    def _always(self) -> int:
        return sum(
            1 << bit
            for bit, name in enumerate(self.alignment.columns)
            if name in self.alignment.always
        )

    @cached_property
    def _filler_key(self) -> int:
        return derive(self.key, "filler")

    def _candidates(
        self, start: int, fits: Callable[[Int64Array], Any]
    ) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yield positions with fitting masks, and the masks.

        Positions before `start` are drawn by key: later edits of the mix do not change
        them. The positions after it follow in their order.
        """
        drawn = np.zeros(0, dtype=np.int64)
        if start:
            words = hash_positions(self._filler_key, np.arange(_DRAWS), salt=start + 1)
            distinct = dict.fromkeys((words % np.uint64(start)).tolist())
            drawn = np.array([*distinct], dtype=np.int64)
        firsts = range(start + 1, start + 1 + self._scanned, _SCANNED_AT_ONCE)
        for first in (None, *firsts):
            positions = drawn
            if first is not None:
                positions = np.arange(first, first + _SCANNED_AT_ONCE, dtype=np.int64)
            masks = self._masks(positions)
            rows = np.flatnonzero(fits(masks))
            if len(rows):
                yield positions[rows], masks[rows]

    def _other_samples(self, start: int, bit: int) -> tuple[Int64Array, Int64Array]:
        """Return other positions of the mix with a modality, and their masks."""
        for positions, masks in self._candidates(start, lambda m: m >> bit & 1):
            return positions, masks
        raise ColumnError(
            f"{type(self).__name__}: no sample with {self.alignment.columns[bit]!r} > "
            f"0 within {self._scanned} samples after position {start}, and every batch "
            "needs one. Set weights > 0 for a source that has such samples, or use "
            "'together' in place of 'always'"
        )

    @cached_property
    def _scanned(self) -> int:
        """Number of later positions at which a filler is looked for."""
        return min(tree.pass_length(self.children[0]), _SCANNED)


class AlignDataset(AligningDataset[T_batch_co], BatchDataset[T_batch_co]):
    """Batch samples so that all ranks have a modality at a step, or none has.

    A model that calls its vision encoder only for batches with images then calls it on
    all ranks at once, so collective operations do not wait for a rank without images. A
    sample has a modality if the value of its column is above 0.

    The samples of a global batch stay the same; they are distributed over its micro
    batches. Micro batch m belongs to micro step m // `ranks`, and either all micro
    batches of a micro step have a sample with the modality, or none has. If a global
    batch has too few of these samples, or for "always", micro batches get fillers:
    samples of the mix in additional rows, marked as padding (`padding_rows`) and with
    the loss weight 0. They are drawn by key, mostly from the same global batch, and do
    not count as delivered. All batches have `sample_weights`.

    A global batch needs fewer than `ranks` fillers for each modality if micro batches
    have more samples than there are modalities, and none for a single modality with at
    least `ranks` samples. "always" needs one for each micro batch without a sample.

    A short global batch at the end of an epoch has as many micro batches as others,
    with sizes that differ by at most one. A micro batch without a sample consists of a
    filler and is padding as a whole.

    If a sample fails, its substitute has the same modalities.

    Args:
        dataset: The samples; only the index is used to distribute them. They may be
            levelled by a `LevelDataset` with the same sizes; a global batch that is
            aligned already keeps its order. Others are levelled again, by samples with
            the same modalities.
        batch_size: Samples of a micro batch, without fillers.
        batcher: Makes a batch of a list of samples. None returns the list.
        global_batch_size: Samples of a global batch; a multiple of `batch_size`.
        columns: The columns of the modalities: a name, a list of names, or a dict of
            names and "together" or "always".
        always: Whether each micro batch has at least one sample of each modality.
        ranks: Micro batches of a micro step; divides those of a global batch. None for
            all of them, which is right on any number of ranks. With gradient
            accumulation, the number of data-parallel ranks needs fewer fillers, and is
            right on each number of ranks that divides it.
        drop_last: Whether a short last global batch is dropped.

    Raises:
        ConfigError: If sizes or `ranks` do not divide.
        ColumnError: If a source lacks a column, it contains words, or no source has a
            value above 0.
        NotIndexedError: If the dataset is a stream.
        WeightError: While reading, if samples have no place for a loss weight.

    Example:
        >>> from energize import ListSource
        >>> samples = ListSource(
        ...     [{"__key__": key} for key in "abcdef"],
        ...     columns={"images": [1, 2, 0, 0, 0, 0]},
        ... )
        >>> batches = AlignDataset(
        ...     samples, 3, global_batch_size=6, columns="images", ranks=2
        ... )
        >>> [[sample["__key__"] for sample in batch] for batch in batches]
        [['a', 'c', 'e'], ['b', 'd', 'f']]
    """

    order_name = "AlignDataset"

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any] | None = None,
        *,
        global_batch_size: int,
        columns: Columns | Alignment,
        always: bool = False,
        ranks: int | None = None,
        drop_last: bool = False,
    ) -> None:
        owner = type(self).__name__
        micro, whole = checked_global_batch(owner, batch_size, global_batch_size)
        if isinstance(columns, Alignment):
            alignment = columns
        else:
            alignment = Alignment.of(columns, always=always, ranks=ranks)
        batches = whole // micro
        together = batches if alignment.ranks is None else alignment.ranks
        if batches % together:
            raise ConfigError(
                f"{owner}: ranks={together} must divide the {batches} micro batches of "
                f"a global batch of {whole}. Use the number of data-parallel ranks"
            )
        self._set_up(
            dataset,
            micro,
            same if batcher is None else batcher,
            drop_last=drop_last,
            alignment=replace(alignment, ranks=together, global_batch_size=whole),
        )
        if not dataset.indexed:
            raise NotIndexedError(
                f"{owner}: {first_stream(dataset)} is a stream, so the samples of a "
                "global batch are unknown before they are read. Use datasets with "
                f"random access and the columns {list(alignment.columns)}, without "
                "packing, filters and generators"
            )
        below = below_maps(dataset)
        if isinstance(below, LevelDataset) and below.global_batch_size != whole:
            raise ConfigError(
                f"{owner}: global_batch_size={whole}, but {type(below).__name__} below "
                f"levels global batches of {below.global_batch_size}. Use the same "
                "number"
            )
        self._check_columns(owner)

    @property
    def global_batch_size(self) -> int:
        """Samples of a global batch."""
        return self.alignment.global_batch_size or self.batch_size

    @property
    def micro_batches(self) -> int:
        """Micro batches of a global batch."""
        return self.global_batch_size // self.batch_size

    @cached_property
    def size(self) -> int:
        inner = self.inputs[0].size
        return INFINITE if inner == INFINITE else self._groups * self.micro_batches

    @cached_property
    def _groups(self) -> int:
        """Global batches of an epoch."""
        full, rest = divmod(self.inputs[0].size, self.global_batch_size)
        return int(full + (rest > 0 and not self.drop_last))

    def _span(self, number: int) -> tuple[int, int]:
        """Return the first input position of a global batch, and its samples."""
        inner = self.inputs[0].size
        whole = self.global_batch_size
        if inner == INFINITE:
            return number * whole, whole
        epoch, group = divmod(number, self._groups)
        return epoch * inner + group * whole, min(whole, inner - group * whole)

    def route(self, positions: Int64Array) -> Routes:
        members = []
        fillers = []
        for position in positions.tolist():
            number, batch = divmod(position, self.micro_batches)
            plan = self._plan(number)
            members.append(plan.members(batch))
            fillers.append(plan.filler_count(batch))
        return Routes.of_members(members, fillers)

    def filler_count(self, position: int) -> int:
        number, batch = divmod(position, self.micro_batches)
        return self._plan(number).filler_count(batch)

    def batch_of(self, member: int) -> int:
        """Return the position of the batch that contains an item of the input.

        For a filler, that is the batch in which it counts. For an item that only fills
        batches, since `drop_last` drops it, it is the last batch of its epoch.

        Args:
            member: Position of the item in the input.
        """
        inner = self.inputs[0].size
        epoch, at = (0, member) if inner == INFINITE else divmod(member, inner)
        number = at // self.global_batch_size
        if inner != INFINITE and number >= self._groups:
            return (epoch + 1) * self.size - 1
        if epoch:
            number += epoch * self._groups
        first = number * self.micro_batches
        routes = self.route(np.arange(first, first + self.micro_batches))
        is_member = routes.position == member
        if routes.padding is not None:
            is_member &= ~routes.padding
        owner = np.asarray(routes.owner)[is_member]
        return first + int(owner[0])

    def taken(self, n: int) -> None:
        """Return None: samples of a global batch are reordered."""

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        number = n // self.micro_batches
        whole = self.global_batch_size
        inner = self.inputs[0].size
        if self.drop_last and inner != INFINITE:
            size = self._groups * whole
            spans, _ = cut_epochs(self, number * whole, size, inner)
        else:
            spans = [Span(0, 0, self._span(number)[0])]
        return spans, number * self.micro_batches

    def reached(self, n: int) -> list[int]:
        """Return the end of the started global batch: its content is fixed."""
        return [self._span(-(-n // self.micro_batches))[0]]

    def settled(
        self, saved: dict[str, Any], current: dict[str, Any], n: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ignore another alignment after whole global batches of the same size."""
        before = saved.get("alignment")
        after = current["alignment"]
        sizes = [
            entry.get("global_batch_size") if isinstance(entry, dict) else None
            for entry in (before, after)
        ]
        if n % self.micro_batches or sizes[0] != sizes[1]:
            return saved, current
        return {**saved, "alignment": after}, current

    @cached_property
    def _plan(self) -> Callable[[int], Plan]:
        """Return the micro batches of a global batch, of positions of the input."""
        return lru_cache(_KEPT)(self._distributed)

    def _distributed(self, number: int) -> Plan:
        start, count = self._span(number)
        masks = self._masks(np.arange(start, start + count, dtype=np.int64))
        batches = aligned(
            masks,
            micro_batch_sizes(count, self.micro_batches),
            self.ranks,
            self._always,
        )
        if (np.diff(batches.order) != 1).any():
            order = self._levelled(start, masks, batches)
            batches = replace(batches, order=order)
        if not batches.missing.any() and count >= self.micro_batches:
            return Plan(start + batches.order, batches.bounds)
        pool = self._pool(start, masks, batches)
        fillers = [
            self._drawn(pool, chosen, number * self.micro_batches + batch)
            for batch, chosen in enumerate(_chosen(batches, self.ranks, [*pool]))
        ]
        parts: list[Any] = []
        for (first, end), more in zip(
            pairwise(batches.bounds.tolist()), fillers, strict=True
        ):
            parts += [start + batches.order[first:end], more]
        lengths = [len(part) for part in parts]
        bounds = np.cumsum([0, *lengths])[::2]
        return Plan(np.concatenate(parts), bounds, fillers=np.array(lengths[1::2]))

    def _levelled(
        self, start: int, masks: Int64Array, batches: AlignedBatches
    ) -> Int64Array:
        """Return the order of batches, levelled by the costs of a `LevelDataset` below.

        Only samples with the same modalities change their micro batches.
        """
        order = batches.order
        below = below_maps(self.children[0])
        if not isinstance(below, LevelDataset):
            return order
        costs, importance = costs_at(below.cost, below, start + order)
        return order[levelled_by_class(costs, masks[order], batches.bounds, importance)]

    def _pool(
        self, start: int, masks: Int64Array, batches: AlignedBatches
    ) -> dict[int, Int64Array]:
        """Return positions of possible fillers by their masks.

        These are the samples of the global batch, and others of the mix for modalities
        that it lacks.
        """
        pool = {mask: start + rows for mask, rows in rows_by_value(masks)}
        needed = int(np.bitwise_or.reduce(batches.missing))
        for bit in modalities_of(needed):
            if any(mask >> bit & 1 for mask in pool):
                continue
            positions, other_masks = self._other_samples(start, bit)
            for mask, rows in rows_by_value(other_masks):
                pool.setdefault(mask, positions[rows])
        return pool

    def _drawn(
        self, pool: Mapping[int, Int64Array], masks: Sequence[int], batch: int
    ) -> Int64Array:
        """Return the position of a filler for each mask, drawn by key."""
        salts = range(len(masks))
        at = np.array([batch], dtype=np.int64)
        words = [int(hash_positions(self._filler_key, at, salt)[0]) for salt in salts]
        return np.array(
            [
                pool[mask][word % len(pool[mask])]
                for mask, word in zip(masks, words, strict=True)
            ],
            dtype=np.int64,
        )


class AlignedBudgetDataset(AligningDataset[T_batch_co], BudgetBatchDataset[T_batch_co]):
    """Batches of a budget, in which all ranks have a modality at a step, or none has.

    Batches as of a `BudgetBatchDataset`, each of one combination of modalities. Step k
    consists of the batches from k * `ranks` on, which have the same combination.
    Batches that lack samples for that get fillers, as in an `AlignDataset`, within the
    budget. A window needs no fillers if each combination has as many samples as
    batches, except for modalities that each batch has ("always"). A window should have
    samples for many steps, as each combination fills whole steps.

    With `level`, the batches of a step cost about the same, for example by the patches
    of an encoder: batches with sizes that differ by at most 1/16 exchange samples. They
    then have the smallest of these sizes, so a window may have one more step for each
    combination. Batches of a single sample stay as they are.

    If a sample fails, its substitute has the same modalities and is not longer.

    Args:
        dataset: The dataset of samples to read. Only its index is used to plan.
        budget: The maximum padded size by the length, see `BudgetBatchDataset`.
        batcher: Makes a batch of a list of samples.
        columns: The columns of the modalities, see `AlignDataset`.
        ranks: Batches of a step: the number of data-parallel ranks, or a multiple.
        window: Samples that are batched together.
        level: The cost of samples, or several costs, see `LevelDataset`; None
            distributes the samples of a step by length.

    Raises:
        ConfigError: For invalid arguments.
        ColumnError: If a source lacks a column, or no source has a value above 0. While
            reading, for lengths as of a `BudgetBatchDataset`, or if a sample and its
            fillers exceed the budget.
        NotIndexedError: If the dataset is a stream.
        WeightError: While reading, if samples have no place for a loss weight.

    Example:
        >>> from energize import ListSource
        >>> samples = ListSource(
        ...     [{"__key__": key} for key in "abcdef"],
        ...     columns={"images": [1, 0, 0, 0, 0, 1], "tokens": [2, 1, 1, 1, 1, 2]},
        ... )
        >>> batches = AlignedBudgetDataset(
        ...     samples, {"tokens": 2}, list, columns="images", ranks=2
        ... )
        >>> [[sample["__key__"] for sample in batch] for batch in batches]
        [['d', 'e'], ['b', 'c'], ['a'], ['f']]
    """

    order_name = "AlignedBudgetDataset"

    level: ColumnCost | ColumnCosts | None

    def __init__(
        self,
        dataset: Dataset[Any],
        budget: Mapping[str, int] | tuple[Length, int],
        batcher: Callable[[list[Any]], Any],
        *,
        columns: Columns | Alignment,
        ranks: int | None = None,
        window: int = WINDOW,
        level: LevelCost | None = None,
    ) -> None:
        owner = type(self).__name__
        alignment = columns
        if not isinstance(columns, Alignment):
            alignment = Alignment.of(columns, ranks=ranks)
        length, size = checked_budget(budget)
        self._set_up(
            dataset,
            [cost_of(length)],
            batcher,
            window,
            None,
            budget=size,
            keep_order=False,
            alignment=alignment,
            level=None if level is None else level_costs(level, owner),
        )
        if not self.alignment.ranks or self.alignment.global_batch_size:
            raise ConfigError(
                f"{owner}: batches of a budget are aligned in steps of ranks. Set "
                "align: ranks, the number of data-parallel ranks, and remove "
                "global_batch_size"
            )
        self._check_columns(owner)
        if self.level is not None:
            check_costs(self.level, self.sources)

    def settings(self) -> dict[str, Any]:
        """Return the parameters, with the names of cost functions."""
        settings = super().settings()
        if self.level is None:
            del settings["level"]
        else:
            settings["level"] = self.level.identify()
        return settings

    def filler_count(self, position: int) -> int:
        _, plan, group, _ = self.group_at(position)
        return plan.filler_count(group)

    def _other_members(self, position: int) -> Iterator[int]:
        for other in super()._other_members(position):
            lengths = self.samples_at(np.array([position, other])).lengths
            if lengths[1, 0] <= lengths[0, 0]:
                yield other

    def plan(self, samples: WindowSamples) -> Plan:
        self.check_longest(samples)
        positions = samples.positions
        start = int(positions[0])
        masks = self._masks(positions)
        lacking = self._always & ~int(np.bitwise_or.reduce(masks))
        for bit in modalities_of(lacking):
            more, masks_of_more = self._other_samples(start, bit)
            positions = np.append(positions, more)
            masks = np.append(masks, masks_of_more)
        lengths = self.samples_at(positions).lengths[:, 0]
        draws = self.draws(samples.positions, "member")
        level = None
        if self.level is not None:
            level = LevelCosts(
                *costs_at(self.level, self.children[0], samples.positions)
            )
        plan = aligned_batches(
            lengths, masks, self.budget, self.ranks, self._always, draws, level
        )
        sizes = np.diff(plan.bounds)
        longest = np.maximum.reduceat(lengths[plan.order], plan.bounds[:-1])
        for group in np.flatnonzero(sizes * longest > self.budget)[:1].tolist():
            first = int(plan.members(group)[0])
            raise ColumnError(
                f"{location_of(self.inputs[0], int(positions[first]))}: its length is "
                f"{lengths[first]}, and a batch of {self.budget} has no room for a "
                "filler with the aligned columns. Raise the budget, or use 'together' "
                "in place of 'always'"
            )
        turns = self.draws(samples.positions[: plan.count // self.ranks], "turn")
        steps = np.argsort(turns, kind="stable") * self.ranks
        groups = (steps[:, None] + np.arange(self.ranks)).ravel()
        of_window = replace(plan, order=positions[plan.order] - start)
        return of_window.rearranged(groups)


def _chosen(
    batches: AlignedBatches, ranks: int, pool: Sequence[int]
) -> list[list[int]]:
    """Return the masks of the fillers of each micro batch.

    A filler with a modality that its micro step lacks adds it to the whole step.
    """
    parts = (batches.present & ~batches.missing).tolist()
    sizes = np.diff(batches.bounds).tolist()
    chosen: list[list[int]] = []
    for first in range(0, len(parts), ranks):
        rows = range(first, first + ranks)
        present = int(batches.present[first])
        while True:
            of_step = [
                _covering(present & ~parts[row], present, pool, is_empty=not sizes[row])
                for row in rows
            ]
            reached = present
            for mask in {mask for masks in of_step for mask in masks}:
                reached |= mask
            if reached == present:
                break
            present = reached
        chosen += of_step
    return chosen


def _covering(
    needed: int, present: int, pool: Sequence[int], *, is_empty: bool
) -> list[int]:
    """Return masks of the pool that together have the needed modalities."""
    if not needed and not is_empty:
        return []

    def cost(mask: int) -> tuple[int, int, int]:
        return (mask & ~present).bit_count(), mask.bit_count(), mask

    whole = [mask for mask in pool if not needed & ~mask]
    single = min(whole, key=cost, default=None)
    if single is not None and not single & ~present:
        return [single]
    several = []
    left = needed
    while left:
        having = [mask for mask in pool if mask & left & -left]
        several.append(min(having, key=cost))
        left &= ~several[-1]
    if single is not None and (not several or any(mask & ~present for mask in several)):
        return [single]
    return several


def check_ranks(dataset: Dataset[Any], position: int, world_size: int) -> None:
    """Raise an error if ranks would not stay aligned.

    Args:
        dataset: Any dataset.
        position: Items of all ranks before the next step.
        world_size: Number of data-parallel ranks.

    Raises:
        ConfigError: If the number of ranks does not divide a micro step, or nodes above
            an `AlignDataset` divide micro steps.
        StateError: If the position is within a step of this number of ranks.
    """
    for items in _step_items(dataset):
        if items % world_size:
            raise ConfigError(
                f"AlignDataset: micro steps of {items} micro batches cannot be divided "
                f"evenly among {world_size} ranks. Set ranks={world_size}, or use a "
                f"world size of {_divisors(items)}"
            )
        if position % world_size:
            raise StateError(
                f"the state was saved after {position} micro batches, within a step of "
                f"{world_size} ranks, which would then not be aligned. Resume it with "
                f"a world size of {_divisors(math.gcd(position, items))}, or from a "
                "state after a whole global batch"
            )


def _divisors(number: int) -> str:
    fitting = [size for size in range(1, number + 1) if number % size == 0]
    return some(fitting)


def _step_items(node: Dataset[Any]) -> list[int]:
    """Return the micro batches of the micro steps of every `AlignDataset` in a tree."""
    own = node.traits.loop.step_items
    if own is not None:
        return [own]
    sizes = [size for child in node.inputs for size in _step_items(child)]
    for items in sizes:
        if not _keeps_steps(node, items):
            raise ConfigError(
                f"{type(node).__name__} does not deliver batches of an AlignDataset in "
                f"whole micro steps of {items} micro batches, so ranks would not be "
                "aligned. Align the outermost mix of samples, and use lengths that "
                f"are multiples of {items}"
            )
    return sizes


def _keeps_steps(node: Dataset[Any], items: int) -> bool:
    """Return whether micro steps of the inputs are micro steps of a node."""
    if node.traits.content_only or node.traits.loop.steps is not None:
        return True
    if not node.indexed or node.traits.gathers:
        return False
    starts = [0]
    if isinstance(node, StagedDataset):
        starts = list(node.plan.first_items)
    elif len(node.inputs) > 1 or (node.size != INFINITE and node.size % items):
        return False
    for start in starts:
        inner = node.route(np.arange(start, start + items, dtype=np.int64)).position
        if start % items or int(inner[0]) % items or (np.diff(inner) != 1).any():
            return False
    return True
