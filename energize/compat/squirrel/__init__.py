"""squirrel's multiplexer: mixing streams whose lengths are not known."""

from energize.compat.squirrel.multiplexer import Multiplexer
from energize.compat.squirrel.strategy import MultiplexingStrategy

__all__ = ["Multiplexer", "MultiplexingStrategy"]
