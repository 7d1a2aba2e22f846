"""Values of descriptions as JSON."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from energize.core.lanes import WorkerConfig
from energize.core.rng import derive
from energize.errors import ConfigError

ATOMS = frozenset({type(None), bool, int, float, str})
"""Types of values that are their own description."""


def described(value: Any) -> Any:
    """A parameter as JSON: numbers and text as they are, functions and objects by their names."""
    if type(value) in ATOMS:
        return value
    if getattr(value, "ndim", None) == 0:  # a number of numpy, or a tensor of one
        value = value.item()
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    return _object_described(value)


def _object_described(value: Any) -> Any:
    if hasattr(value, "describe"):
        return value.describe()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value) if isinstance(value, Path) else name_of(value)


def name_of(value: Any) -> str:
    """Return the full name of a function or a class, or of the class of anything else."""
    while isinstance(value, functools.partial):
        value = value.func
    owner = getattr(value, "__self__", None)
    if owner is not None and hasattr(value, "__name__"):
        return f"{_named(type(owner))}.{value.__name__}"
    return _named(value if hasattr(value, "__qualname__") else type(value))


def _named(thing: Any) -> str:
    module = getattr(thing, "__module__", None) or "builtins"  # str.upper has none
    return f"{module}.{thing.__qualname__}"


def function_name(fn: Callable[..., Any]) -> str:
    """Return what to call a user's function in messages."""
    called: Any = inspect.unwrap(fn)
    return str(getattr(called, "__qualname__", None) or type(called).__qualname__)


def functions_of(dataset: Description) -> str:
    """Return the names of the functions that a dataset calls, for messages."""
    values = (getattr(dataset, name) for name in dataset._parameters)
    return ", ".join(function_name(each) for each in values if callable(each)) or "it"


def digest(tree: Any) -> str:
    """A short fingerprint of a tree."""
    return hashlib.blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=16).hexdigest()


# Frozen descriptions: what a dataset is made from, set once and never changed.


class Description:
    """Parameters and inputs: immutable, picklable, comparable, holding nothing open.

    Two are equal when they are of one class, with equal parameters and equal inputs. Subclasses set
    their parameters once, with `_freeze` in `__init__`.
    """

    inputs: tuple[Any, ...]
    worker_config: WorkerConfig | None
    _parameters: tuple[str, ...]
    __signature__: ClassVar[inspect.Signature]

    _passes_on: ClassVar[bool] = False
    """Whether items of the input pass through, each at its place, whatever is done with them."""

    _ends_loops: ClassVar[bool] = False
    """Whether, as the outermost of a loader, it says where a loop ends instead of what is read."""

    _changes_no_sample: ClassVar[tuple[str, ...]] = ()
    """Parameters, beside functions, that may change without changing which samples come."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Show the parameters of `__init__`, also where `__new__` chooses a class by them."""
        super().__init_subclass__(**options)
        if cls.__new__ is not object.__new__:
            own = inspect.signature(cls.__init__)
            cls.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])

    def _freeze(
        self,
        inputs: Sequence[Any] = (),
        worker_config: WorkerConfig | None = None,
        **parameters: Any,
    ) -> None:
        """Set inputs and parameters for good.

        Of a worker config given here, `seed_offset` seeds the inputs that carry no config yet.
        """
        for each in inputs:
            if not isinstance(each, Description):
                raise ConfigError(
                    f"{type(self).__name__} reads from datasets, got {type(each).__name__} "
                    f"{str(each)[:80]!r}; wrap an object that has __len__ and __getitem__ in "
                    "SequenceSource"
                )
        if worker_config is not None and worker_config.seed_offset:
            seed = worker_config.seed_offset
            inputs = [each if each.worker_config else each.reseeded(seed) for each in inputs]
        values = {
            "inputs": tuple(inputs),
            "worker_config": _common_worker_config(type(self).__name__, worker_config, inputs),
            "_parameters": tuple(parameters),
            **parameters,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def key(self) -> int:
        """What the random choices of this node are keyed by: seed, sources and kinds on the way."""
        return derive(type(self).__name__, *(each.key for each in self.inputs))

    def with_inputs(self, inputs: Sequence[Any]) -> Self:
        """The same description over other inputs."""
        return self._replace(inputs=tuple(inputs))

    def reseeded(self, seed: int) -> Self:
        """The same description with `seed` in all its sources: other orders, other draws."""
        return self.with_inputs([each.reseeded(seed) for each in self.inputs])

    def _distinguished(self, occurrence: int) -> Self:
        """The same description with an order of its own, to stand beside itself in a mix."""
        return self.with_inputs([each._distinguished(occurrence) for each in self.inputs])

    def _with_worker_config(self, worker_config: WorkerConfig | None) -> Self:
        """The same description carrying a worker config for the loader to take."""
        return self._replace(worker_config=worker_config)

    def _settings(self) -> dict[str, Any]:
        """The parameters as JSON."""
        return {name: described(getattr(self, name)) for name in self._parameters}

    def describe(self) -> dict[str, Any]:
        """The description as a JSON-able tree."""
        tree: dict[str, Any] = {"kind": type(self).__name__, **self._settings()}
        if self.inputs:
            tree["inputs"] = [each.describe() for each in self.inputs]
        return tree

    def _replace(self, **changed: Any) -> Self:
        other = copy.copy(self)
        for name, value in changed.items():
            object.__setattr__(other, name, value)
        return other

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(
            f"{type(self).__name__}.{name} cannot be changed: a dataset is a frozen description; "
            "make a new one"
        )

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Description):
            return NotImplemented
        return self is other or bool(self._compared() == other._compared())

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.key))

    def _compared(self) -> tuple[Any, ...]:
        return self.inputs, *((name, getattr(self, name)) for name in self._parameters)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: the description, not what was computed from it."""
        kept = ("inputs", "worker_config", "_parameters", *self._parameters)
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self._settings().items()]
        return f"{type(self).__name__}({', '.join([*map(repr, self.inputs), *shown])})"


def _common_worker_config(
    kind: str, given: WorkerConfig | None, inputs: Sequence[Any]
) -> WorkerConfig | None:
    """The one worker config that a node and its inputs carry; two different ones are an error."""
    carried = {each.worker_config for each in inputs} | {given}
    carried.discard(None)
    if len(carried) > 1:
        shown = " and ".join(sorted(map(str, carried)))
        raise ConfigError(
            f"{kind} is built from parts with different worker configs: {shown}. Use one for a "
            "whole loader, or give it to the loader alone"
        )
    return next(iter(carried), None)
