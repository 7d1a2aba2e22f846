"""Options of other libraries, checked where they are given."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from energize.core.checks import checked_whole
from energize.core.lanes import WorkerConfig
from energize.core.validation import Model, faults, told
from energize.errors import ConfigError

_log = logging.getLogger("energize")


class Options(Model):
    """Options by name, or from a dict of them; `ConfigError` names what is wrong with them.

    >>> class Sizes(Options):
    ...     batch_size: int = 8
    >>> Sizes(batch_sise=4)
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: Sizes (batch_sise): unknown key 'batch_sise'; did you mean...
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            kind = type(self)
            raise ConfigError(
                told(faults(error, TypeAdapter(kind), given), kind.__name__, {})
            ) from None


def checked_seed(seed: int | None, owner: str) -> int:
    """Return `seed`, or for None one that is drawn and logged.

    Raise `ConfigError` for what is no whole number from 0, and for None where there are several
    ranks: each would draw another seed, and they would read the same data.
    """
    if seed is not None:
        return checked_whole(seed, f"{owner}: seed", 0)
    if WorkerConfig().world_size > 1:
        raise ConfigError(
            f"{owner}: there are several ranks, and without a seed each would draw an order of its "
            "own; give all of them the same seed"
        )
    drawn = secrets.randbits(32)
    _log.info("%s: seed %d was drawn; give it to repeat this order", owner, drawn)
    return drawn
