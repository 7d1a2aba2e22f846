"""Padding: items and rows of items that fill a slot and do not count.

The mark of an item has the name `__padding__`: True if the whole item is padding, else
the numbers of its padding rows. A dict has it as an entry, other items as an attribute,
which `Sample` and `Batch` declare.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from energize.core.arrays import as_tensor
from energize.core.lazy import torch
from energize.core.loss_weights import (
    WEIGHTS,
    counted,
    field_of,
    keys_of,
    listed_keys,
    placed,
    zeroed,
)

T = TypeVar("T")

PADDING = "__padding__"
"""The attribute, or in a dict the key, of the mark of an item."""

HIDDEN_WEIGHTS = "__hidden_weights__"
"""The attribute that is True if an item has weights only because of its padding."""


def is_padding(item: Any) -> bool:
    """Return whether an item is padding, to be left out of losses and metrics.

    Padding is a copy that fills the last step of an epoch, or an item of a validation
    all samples of which failed. If only some failed, see `padding_rows`.

    Args:
        item: A delivered item. A dict has the mark under the key `__padding__`;
            tensors, samples, batches and other objects have an attribute of that name.
            Lists, tuples, numbers, texts, and dataclasses with slots but no field
            `__padding__` cannot be marked: use `Loader.padding`.

    Example:
        >>> is_padding({"loss": 1.0}), is_padding({"loss": 1.0, "__padding__": True})
        (False, True)
    """
    return _mark_of(item) is True


def padding_rows(batch: Any) -> list[int]:
    """Return the numbers of the rows of a batch that are padding.

    In an evaluation, the row of a failed sample is filled with a substitute that must
    not count in metrics. `sample_weights` of the row is 0, if the batch has weights.
    Lists, tuples and numbers cannot be marked: use `Loader.padding_rows` for them.

    Args:
        batch: A batch as delivered, or moved to another device.

    Returns:
        Row numbers, ascending; empty for nearly every batch; all rows of a batch that
        is padding as a whole (`is_padding`).

    Raises:
        WeightError: If the whole batch is padding, and the number of its rows is
            unknown.

    Example:
        >>> from energize import (
        ...     BatchDataset,
        ...     DataError,
        ...     ListSource,
        ...     MapDataset,
        ...     get_loader,
        ... )
        >>> def checked(number):
        ...     if number == 2:
        ...         raise DataError("two is damaged")
        ...     return number
        >>> numbers = MapDataset(ListSource(range(4)), checked)
        >>> batches = BatchDataset(numbers, 4, lambda rows: {"x": torch.tensor(rows)})
        >>> [batch] = get_loader(batches, role="eval")
        >>> is_right = batch["x"] >= 0
        >>> is_right[padding_rows(batch)] = False
        >>> padding_rows(batch), int(is_right.sum())
        ([2], 3)
    """
    mark = _mark_of(batch)
    if mark is True:
        return list(range(counted(batch)))
    return list(mark) if isinstance(mark, tuple | list) else []


def _mark_of(item: Any) -> Any:
    return item.get(PADDING) if isinstance(item, dict) else getattr(item, PADDING, None)


def has_hidden_weights(item: Any) -> bool:
    """Return whether an item has weights only because it, or a row of it, is
    padding.
    """
    return getattr(item, HIDDEN_WEIGHTS, None) is True


def marked(item: T) -> T:
    """Return a shallow copy of an item that is marked as padding, if its type has a
    place for the mark.

    Its samples have the weight 0, if it has a place for weights.
    """
    is_unweighed = field_of(item, WEIGHTS) is None
    return _with_mark(zeroed(item), True, is_unweighed)


def with_padding(item: T, rows: Sequence[int], count: int) -> T:
    """Return a shallow copy with some of `count` rows marked as padding.

    The rows get the weight 0 if the item has or may have weights. An item of a type
    that cannot be marked is returned unchanged.
    """
    if len(rows) == count:
        return marked(item)
    weights = field_of(item, WEIGHTS)
    is_unweighed = weights is None
    has_field = listed_keys(item) is not None or dataclasses.is_dataclass(item)
    if is_unweighed and has_field:
        weights = torch.ones(count, dtype=torch.float32, device="cpu")
    if weights is not None and len(weights) == count:
        weights = as_tensor(weights).clone()
        weights[list(rows)] = 0
        weighted = placed(item, WEIGHTS, weights)
        item = item if weighted is None else weighted
    return _with_mark(item, tuple(rows), is_unweighed)


def _with_mark(item: T, mark: Any, is_unweighed: bool) -> T:
    if isinstance(item, dict):
        marked_dict = copy.copy(item)
        marked_dict[PADDING] = mark
        return cast("T", marked_dict)
    other: Any = copy.copy(item)
    if isinstance(item, torch.Tensor):
        other = item.view_as(item)
    try:
        object.__setattr__(other, PADDING, mark)
    except (AttributeError, TypeError):  # no __dict__, and no slot of that name
        return item
    if is_unweighed:
        with suppress(AttributeError, TypeError):
            object.__setattr__(other, HIDDEN_WEIGHTS, True)
    return cast("T", other)


def moved_rows(source: Any, result: Any, rows: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of `rows` of a batch in the result of a function.

    Rows are matched by the keys that a batch lists. Without such a list, they keep
    their positions.

    Args:
        source: The batch, or the list of samples, that the function was called with.
        result: The result of the function.
        rows: Row numbers in `source`.
    """
    keys = listed_keys(result)
    previous = listed_keys(source)
    if isinstance(source, list):
        previous = [key for sample in source for key in keys_of(sample)]
    if previous is None or keys is None or previous == keys:
        return tuple(rows)
    if max(rows, default=0) >= len(previous):
        return tuple(rows)
    return _matched_rows(previous, keys, rows)


def _matched_rows(
    previous: Sequence[str], keys: Sequence[str], rows: Sequence[int]
) -> tuple[int, ...]:
    positions: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        positions.setdefault(key, []).append(row)
    matches = [positions.get(previous[row], []) for row in rows]
    # A substitute has the key of the sample that it copies; either row will do.
    return tuple(sorted(match.pop() for match in matches if match))


# Items on their way to a loader


@dataclass(frozen=True, slots=True)
class Padded:
    """An item with padding in place of samples that failed or were skipped, or with
    fillers.

    It travels up a tree in place of the item if failed samples have no substitutes
    (`ReadContext.substitute`), or if a node adds fillers. No function of a user sees
    it.

    Attributes:
        item: The item, made with substitutes for these samples.
        slots: The numbers of these samples among those that the item is made of.
        rows: The numbers of the rows of the item that are made of them, and of fillers.
        count: Number of samples that the item is made of, without fillers.
        fillers: The numbers of the additional samples, counted with the others.
    """

    item: Any
    slots: tuple[int, ...]
    rows: tuple[int, ...]
    count: int
    fillers: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all samples of the item failed."""
        return len(self.slots) == self.count

    @classmethod
    def with_fillers(
        cls, members: list[Any], item: Any, fillers: int, sizes: Sequence[int]
    ) -> Padded:
        """Return an item made of members, the last ones of which are fillers.

        Args:
            members: The members.
            item: The item.
            fillers: Number of members that are fillers.
            sizes: Number of samples of each member.
        """
        first = len(members) - fillers
        count = sum(sizes[:first])
        total = sum(sizes)
        samples = moved_rows(members, item, range(count, total))
        rows = samples
        if total > len(members) and len(listed_keys(item) or ()) != total:
            rows = tuple(range(first, len(members)))  # a row for each pack
        return cls(item, (), rows, count, samples)

    def made_into(self, result: Any) -> Padded:
        """Return the result of a function of the item, with the padding of both."""
        rows = moved_rows(self.item, unpadded(result), self.rows)
        fillers = moved_rows(self.item, unpadded(result), self.fillers)
        if type(result) is Padded:
            rows = (*rows, *result.rows)
            fillers = (*fillers, *result.fillers)
        return Padded(unpadded(result), self.slots, rows, self.count, fillers)

    @classmethod
    def of_members(cls, members: Sequence[Any], sizes: Iterable[int]) -> Padded:
        """Return a list of members, of `sizes` samples each, without `Padded` among
        them.
        """
        plain: list[Any] = []
        slots: list[int] = []
        rows: list[int] = []
        fillers: list[int] = []
        first = 0
        for member, size in zip(members, sizes, strict=True):
            if type(member) is Padded and size:
                row = first + len(fillers)
                slots.extend(first + slot for slot in member.slots)
                rows.extend(row + number for number in member.rows)
                fillers.extend(row + number for number in member.fillers)
            plain.append(unpadded(member))
            first += size
        return cls(plain, tuple(slots), tuple(rows), first, tuple(fillers))


def unpadded(item: Any) -> Any:
    """Return the item itself of one that may be `Padded`."""
    return item.item if type(item) is Padded else item


def has_padding(members: Iterable[Any]) -> bool:
    """Return whether one of the members is `Padded`."""
    return Padded in map(type, members)


class Marks(NamedTuple):
    """The padding of an item that a loader delivers.

    Attributes:
        is_padding: Whether the item is padding as a whole.
        slots: The numbers of its samples that failed, see `Padded`.
        rows: The numbers of its rows that are made of them, and of fillers.
        fillers: The numbers of its additional samples, counted with the others.
    """

    is_padding: bool = False
    slots: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    fillers: tuple[int, ...] = ()


UNMARKED = Marks()


def with_marks(item: Any, is_copy: bool = False) -> tuple[Any, Marks]:
    """Return an item, which may be `Padded`, as a loader delivers it: marked where its
    type has a place for that. `is_copy`: it fills the last step of an epoch.
    """
    if type(item) is not Padded:
        return (marked(item), Marks(True)) if is_copy else (item, UNMARKED)
    marks = Marks(is_copy or item.is_whole, item.slots, item.rows, item.fillers)
    if marks.is_padding:
        return marked(item.item), marks
    count = item.count + len(item.fillers)
    return with_padding(item.item, item.rows, count), marks
