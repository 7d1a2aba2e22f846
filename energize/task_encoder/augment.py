"""Task encoders that add to others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from energize.errors import ConfigError
from energize.task_encoder.cooking import Cooker
from energize.task_encoder.decoding import SampleDecoder
from energize.task_encoder.encoder import TaskEncoder
from energize.task_encoder.hooks import BUILDERS, HOOKS, default

T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")

_STEPS = ("build_cook_crude_sample", "build_encode_sample", "build_batch", "_load_dataset")


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder that adds to another one: hooks that it does not override are the other's.

    So are its decoder and cookers. In a hook that it overrides, `super()` is the other's.

    >>> class Shout(TaskEncoder):
    ...     def encode_sample(self, sample):
    ...         return sample + "!"
    >>> class Louder(AugmentTaskEncoder):
    ...     def encode_sample(self, sample):
    ...         return super().encode_sample(sample).upper()
    >>> Louder(Shout()).encode_sample("a")
    'A!'
    """

    def __init__(
        self, task_encoder: TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]
    ) -> None:
        if not isinstance(task_encoder, TaskEncoder):
            raise ConfigError(f"{type(self).__name__} adds to a TaskEncoder; got {task_encoder!r}")
        for name in (*BUILDERS, *_STEPS):
            own = getattr(type(task_encoder), name)
            if own not in (getattr(TaskEncoder, name), getattr(AugmentTaskEncoder, name)):
                raise ConfigError(
                    f"{type(task_encoder).__name__} overrides {name}, which puts datasets together "
                    f"with its own hooks, not with those of {type(self).__name__}; override it "
                    "there, or add to the hooks of another encoder"
                )
        self.wrapped_encoder = task_encoder

    @property
    def decoder(self) -> SampleDecoder | None:  # type: ignore[override]  # read only
        return self.wrapped_encoder.decoder

    @property
    def cookers(self) -> Sequence[Cooker]:  # type: ignore[override]  # read only
        return self.wrapped_encoder.cookers

    @property
    def default_hooks(self) -> frozenset[str]:
        return self.wrapped_encoder.default_hooks


def _handed_on(name: str) -> Callable[..., Any]:
    def hook(self: AugmentTaskEncoder[Any, Any, Any, Any], *given: Any, **named: Any) -> Any:
        return getattr(self.wrapped_encoder, name)(*given, **named)

    hook.__name__, hook.__qualname__ = name, f"AugmentTaskEncoder.{name}"
    hook.__doc__ = getattr(TaskEncoder, name).__doc__
    return default(hook)


for _name in (*HOOKS, *BUILDERS):
    setattr(AugmentTaskEncoder, _name, _handed_on(_name))
