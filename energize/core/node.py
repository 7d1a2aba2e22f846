"""Traits: the properties of a node of a tree of datasets that readers depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from energize.core.lanes import Lane

INFINITE = 2**63 - 1
"""The `size` of a dataset whose first epoch never ends."""


INFINITE = 2**63 - 1
"""The `size` of a dataset whose first epoch never ends."""


INFINITE = 2**63 - 1
"""The `size` of a dataset whose first epoch never ends."""


INFINITE = 2**63 - 1
"""The `size` of a dataset whose first epoch never ends."""


INFINITE = 2**63 - 1
"""The `size` of a dataset whose first epoch never ends."""


class Phases(Protocol):
    """Consecutive phases of an order, such as the stages of a plan."""

    def state_fields(self, position: int) -> dict[str, Any]:
        """Return what a state at a position records about its phase, JSON-able."""

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise `StateError` if a state was saved in another phase than it has here."""

    def watcher(self, lane: Lane) -> Callable[[int], None] | None:
        """Return a callback that gets the position of every item a lane delivers."""


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """The properties of a node that do not depend on a position.

    A class states its traits once, `traits = NodeTraits(makes=True)`. If they depend on
    the parameters, `traits` is a cached property. The defaults describe a node that
    only decides order.

    Attributes:
        makes: `make` returns other items than it gets. `make` of a node without this
            trait is never called.
        content_only: Item k is made of item k of the only input, and which items come
            does not depend on this node. Implies no `route` of its own.
        draws: `make` may draw random numbers. Only used if `content_only`.
        members: Number of items of the input that one item is made of; None if the
            number depends on the data.
        gives_batches: Whether items are batches; None if that depends on the inputs.
        found: Items are found by reading the input. The node is a stream, and its
            length is unknown unless the input never ends.
        filters: A round reads one item and delivers either that item or nothing. Only
            used by `RoundsDataset`.
        pass_length: Maps the number of items in one pass over the input to the number
            of items delivered in it; None if unknown. Only used if `found`.
        buffered: Number of items of the input that a lane may hold before it delivers
            the first item made of them.
        divisible: A lane of this stream is read without reading the items of other
            lanes.
        cuts_loops: Decides where an epoch ends, not which items come.
        steps_per_loop: Number of steps each rank makes in a loop of a loader, if this
            is the outermost node; None if that follows from the length of an epoch.
        pads: Some items are padding, made of samples that are counted elsewhere (see
            `Routes.lent`).
        shares_sources: Several inputs may read the same source. `sources` then lists it
            once.
        unread_inputs: Numbers of the inputs that no item comes from.
        neutral: Names of parameters, besides functions, that do not affect which
            samples come. A saved state may be loaded after they change.
        phases: The consecutive phases of the order; None if it has no phases.
    """

    makes: bool = False
    content_only: bool = False
    draws: bool = False
    members: int | None = 1
    gives_batches: bool | None = None
    found: bool = False
    filters: bool = False
    pass_length: Callable[[int], int] | None = None
    buffered: int = 0
    divisible: bool = True
    cuts_loops: bool = False
    steps_per_loop: int | None = None
    pads: bool = False
    shares_sources: bool = False
    unread_inputs: tuple[int, ...] = ()
    neutral: tuple[str, ...] = ()
    phases: Phases | None = None

    @property
    def keeps_order(self) -> bool:
        """Whether the input alone decides which items come."""
        return self.content_only or self.cuts_loops

    @property
    def keeps_positions(self) -> bool:
        """Whether item k is made of item k of the only input in a run of a loader."""
        return self.content_only or self.steps_per_loop is not None

    @property
    def gathers(self) -> bool:
        """Whether an item is made of several items of the input, or of none."""
        return self.members != 1
