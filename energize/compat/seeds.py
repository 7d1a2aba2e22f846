"""The seed of a mix that may be given none."""

from __future__ import annotations

import logging
import secrets

from energize.errors import ConfigError
from energize.numbers import checked_whole
from energize.topology import WorkerConfig

_log = logging.getLogger("energize")


def checked_seed(seed: int | None, owner: str, name: str = "seed") -> int:
    """`seed`, or for None one that is drawn and logged.

    Raises `ConfigError` for anything else than a whole number from 0, and for None where there are
    several ranks: each would draw another one, and they would read the same data.
    """
    if seed is not None:
        return checked_whole(seed, f"{owner}: {name}", 0)
    if WorkerConfig().world_size > 1:
        raise ConfigError(
            f"{owner}: there are several ranks, and without a seed each would draw an order of its "
            "own; give all of them the same seed"
        )
    drawn = secrets.randbits(32)
    _log.info("%s: seed %d was drawn; give it to repeat this order", owner, drawn)
    return drawn
