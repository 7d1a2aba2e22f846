"""Items in which padding takes the place of samples that failed, on their way to a
loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from energize.core.loss_weights import marked, with_padding


@dataclass(frozen=True, slots=True)
class Padded:
    """An item in which padding takes the place of samples that failed or were skipped.

    It travels up a tree in place of the item where failed samples have no substitutes
    (`ReadContext.substitute`). No function of a user sees it.

    Attributes:
        item: What was made with a substitute in the slot of each such sample.
        slots: The numbers of these samples among those that the item is made of.
        rows: The numbers of the rows of the item that are made of them.
        count: How many samples the item is made of.
    """

    item: Any
    slots: tuple[int, ...]
    rows: tuple[int, ...]
    count: int

    @property
    def is_whole(self) -> bool:
        """Whether all samples of the item failed."""
        return len(self.slots) == self.count

    @classmethod
    def of_members(cls, members: Sequence[Any], sizes: Iterable[int]) -> Padded:
        """Return a list of members, each made of so many samples, without `Padded`
        among them.
        """
        plain: list[Any] = []
        slots: list[int] = []
        rows: list[int] = []
        first = 0
        for member, size in zip(members, sizes, strict=True):
            if type(member) is Padded and size:
                slots.extend(first + slot for slot in member.slots)
                rows.extend(first + row for row in member.rows)
            plain.append(unpadded(member))
            first += size
        return cls(plain, tuple(slots), tuple(rows), first)


def unpadded(item: Any) -> Any:
    """Return the item itself of one that may be `Padded`."""
    return item.item if type(item) is Padded else item


def has_padding(members: Iterable[Any]) -> bool:
    """Return whether one of the members is `Padded`."""
    return Padded in map(type, members)


class Marks(NamedTuple):
    """What a loader says of an item that it delivers.

    Attributes:
        is_padding: Whether the item is padding as a whole.
        slots: The numbers of its samples that failed, see `Padded`.
        rows: The numbers of its rows that are made of them.
    """

    is_padding: bool = False
    slots: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


UNMARKED = Marks()


def with_marks(item: Any, is_copy: bool = False) -> tuple[Any, Marks]:
    """Return an item, which may be `Padded`, as a loader delivers it: marked where its
    type has a place for that. `is_copy`: it fills the last step of an epoch.
    """
    if type(item) is not Padded:
        return (marked(item), Marks(True)) if is_copy else (item, UNMARKED)
    marks = Marks(is_copy or item.is_whole, item.slots, item.rows)
    if marks.is_padding:
        return marked(item.item), marks
    return with_padding(item.item, item.rows, item.count), marks
