"""What Megatron-Energon's objects with a state extend: here an error that says what to do."""

from __future__ import annotations

from typing import Any

from energize.errors import ConfigError


class Savable:
    """A name for annotations only: extending it is a `ConfigError`.

    There an object is asked for its state; here nothing moves but cursors, and nobody would ask.

    >>> class Counter(Savable):
    ...     pass
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: Counter extends Savable, and nothing here would ask...
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise ConfigError(
            f"{cls.__name__} extends Savable, and nothing here would ask for its state, so a run "
            "that goes on would not be the same. Make it a function of the sample, and of a "
            "parameter rng where it draws random numbers; or, where items depend on those before "
            "them, a function of a stream for IterMapDataset, which is resumed"
        )
