"""Joined samples: each loaded by the type of its own dataset, then made one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from energize.describing import described
from energize.errors import ConfigError
from energize.samples.sample import Sample


@dataclass(frozen=True)
class JoinLoader:
    """Makes one sample of a tuple of raw ones: a function to map over a `JoinedSource`.

    Each is loaded by the loader at its place, a `SampleLoader` say, None stays None, and
    `function` joins what comes out: given by place, or by `names`.

    Raises `ConfigError` for a joiner that gives no sample, and what the loaders and it raise.
    """

    loaders: tuple[Callable[[Any], Any], ...]
    names: tuple[str, ...] | None
    function: Callable[..., Any]
    loads_stored: ClassVar[bool] = True

    def __call__(self, raw: Sequence[Any]) -> Any:
        samples = [
            None if each is None else load(each)
            for load, each in zip(self.loaders, raw, strict=True)
        ]
        if self.names is None:
            joined = self.function(*samples)
        else:
            joined = self.function(**dict(zip(self.names, samples, strict=True)))
        if not isinstance(joined, Sample | dict):
            raise ConfigError(
                f"sample {raw[0]['__key__']!r}: the joiner {_name(self.function)} gave a "
                f"{type(joined).__name__}; it has to return a sample"
            )
        return joined

    def describe(self) -> dict[str, Any]:
        """The description as a JSON-able tree."""
        return {
            "kind": type(self).__name__,
            "loaders": [described(each) for each in self.loaders],
            "names": list(self.names or ()),
            "function": _name(self.function),
        }


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
