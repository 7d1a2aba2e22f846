"""Hooks that run around each fork of this process, as in Megatron-Energon."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any


class WeakCallbacks:
    """Callbacks that are called together and are not kept alive.

    Of several methods of an object, the last one added is called.
    """

    def __init__(self) -> None:
        self._hooks: dict[int, Callable[[], Callable[..., None] | None]] = {}

    def add_hook(
        self,
        callable: Callable[..., None],  # noqa: A002
        make_persistent: bool = False,
    ) -> None:
        """Add a function or a method; `make_persistent` keeps it alive.

        Args:
            callable: The function or method.
            make_persistent: Whether this object holds a strong reference to it.
        """
        owner = getattr(callable, "__self__", callable)
        key = id(owner)
        if make_persistent:
            self._hooks[key] = lambda: callable
            return
        reference: Any = weakref.ref if owner is callable else weakref.WeakMethod
        self._hooks[key] = reference(callable, partial(self._hooks.pop, key))

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Call all callbacks that are alive.

        Args:
            *args: Passed to each callback.
            **kwargs: Passed to each callback.
        """
        hooks = [reference() for reference in list(self._hooks.values())]
        for hook in hooks:
            if hook is not None:
                hook(*args, **kwargs)


_before = WeakCallbacks()
_in_parent = WeakCallbacks()
_in_child = WeakCallbacks()
os.register_at_fork(
    before=_before.run, after_in_parent=_in_parent.run, after_in_child=_in_child.run
)


before_fork_hook = _before.add_hook
"""Calls a function before each fork of this process; `make_persistent` keeps it
alive."""
after_in_parent_fork_hook = _in_parent.add_hook
"""Calls a function in this process after each fork."""
after_in_child_fork_hook = _in_child.add_hook
"""Calls a function in each forked process."""


class ForkMixin:
    """Calls its own methods around each fork, as long as the object is alive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Register the methods; a dataclass calls it by itself."""
        before_fork_hook(self.__before_fork__)
        after_in_parent_fork_hook(self.__after_in_parent_fork__)
        after_in_child_fork_hook(self.__after_in_child_fork__)

    def __before_fork__(self) -> None:
        """Act before a fork."""

    def __after_in_parent_fork__(self) -> None:
        """Act in the parent after a fork."""

    def __after_in_child_fork__(self) -> None:
        """Act in the child after a fork."""


DataclassForkMixin = ForkMixin
