"""The seed of a mix that may be given none."""

from __future__ import annotations

import logging
import secrets

from energize.errors import ConfigError
from energize.order.numeric import whole_number
from energize.topology import WorkerConfig

__all__ = ["checked_seed"]

_log = logging.getLogger("energize")


def checked_seed(seed: int | None, owner: str, name: str = "seed") -> int:
    """`seed`, or for None one that is drawn and logged.

    Raises `ConfigError` for anything else than a whole number from 0, and for None where there are
    several ranks: each would draw another one, and they would read the same data.
    """
    if seed is not None:
        number = whole_number(seed)
        if number is None or number < 0:
            raise ConfigError(f"{owner}: {name} is a whole number, 0 or more; got {seed!r}")
        return number
    if WorkerConfig().world_size > 1:
        raise ConfigError(
            f"{owner}: there are several ranks, and without a seed each would draw an order of its "
            "own; give all of them the same seed"
        )
    drawn = secrets.randbits(32)
    _log.info("%s: seed %d was drawn; give it to repeat this order", owner, drawn)
    return drawn
