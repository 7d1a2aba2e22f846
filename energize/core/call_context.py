"""The context in which a function of the user is called."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from energize.core.node import IndexedNode


class CallContext(NamedTuple):
    """The context of a call of a user's function.

    Attributes:
        number: The number of the item that the function is called for, in the order of
            the items of all ranks.
        config: The worker config of the loader, or None. It remains after the call.
        hook: The hook of a task encoder that is being called; None outside hooks.
        gathering: The node for which members are being read.
        batch: The number of the batch that items of a stream are read for, over all
            lanes.
    """

    number: int = 0
    config: Any = None
    hook: Any = None
    gathering: IndexedNode[Any] | None = None
    batch: int | None = None

    def calling(self, number: int, config: Any, hook: Any) -> CallContext:
        """Return the context of a call of a hook."""
        return CallContext(number, config, hook, self.gathering, self.batch)


NO_CALL = CallContext()

context_of: Callable[[tuple[Any, ...]], CallContext] = partial(
    tuple.__new__, CallContext
)
"""Makes a context of all its values, in a third of the time of `CallContext(...)`."""

call_context: ContextVar[CallContext] = ContextVar("call_context", default=NO_CALL)
"""The context of the innermost call in this thread."""


def leave_call(outer: CallContext, config: Any) -> None:
    """Restore the context of the call that is around one that has ended.

    Args:
        outer: The context before the call.
        config: The worker config of the call, which stays.
    """
    if outer.hook is None and outer.config is not config:
        outer = outer._replace(config=config)
    call_context.set(outer)
