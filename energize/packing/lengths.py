"""What a function or a field says of a sample: how long it is, or what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energize.core.samples import fields_of, is_record
from energize.errors import ConfigError, nearest


def said_of(sample: Any, says: Callable[[Any], Any] | str, called: str, owner: str) -> Any:
    """What `says`, a function of a sample or the name of a field of it, says.

    What has entries is counted, but for what a function gives: a tensor with a single entry could
    be read as a number, too. Raises `ConfigError`, of `owner` and of the sample as it is `called`,
    for a field that is not there.
    """
    if not isinstance(says, str):
        return says(sample)
    fields = fields_of(sample) if is_record(sample) else {}
    if says not in fields:
        raise ConfigError(
            f"{owner}: {called} has no field {says!r}; it has "
            f"{', '.join(map(repr, fields)) or 'none'}{nearest(says, list(fields))}"
        )
    given = fields[says]
    return len(given) if hasattr(given, "__len__") and getattr(given, "ndim", 1) != 0 else given


def named(sample: Any, otherwise: str) -> str:
    """A sample by its key, or else as it is called."""
    fields = fields_of(sample) if is_record(sample) else {}
    key = fields.get("__key__")
    return otherwise if key is None else f"sample {key!r}"
