"""Values of descriptions as JSON."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    get_args,
    runtime_checkable,
)

from energize.core.ignored import TOLERANCES, accepted
from energize.core.lanes import WorkerConfig, checked_config
from energize.core.node import ORDER_ONLY, NodeTraits
from energize.core.rng import derive
from energize.errors import ConfigError, some

Role: TypeAlias = Literal["train", "eval"]
"""Training resumes from its position at each loop, evaluation starts at the first
item."""

_MOST_NAMES = 3
"""Sources that a message names of a dataset."""

ATOMS = frozenset({type(None), bool, int, float, str})
"""Types of values that are their own description."""


def described(value: Any) -> Any:
    """Return a parameter as JSON: numbers and text as they are, functions and objects
    by their names.
    """
    if type(value) in ATOMS:
        return value
    if type(value) is dict or isinstance(value, Mapping):
        return {str(key): described(entry) for key, entry in value.items()}
    if getattr(value, "ndim", None) == 0:  # a number of numpy, or a tensor of one
        value = value.item()
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, list | tuple):
        return [described(entry) for entry in value]
    return _object_described(value)


def _object_described(value: Any) -> Any:
    if hasattr(value, "describe"):
        return value.describe()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    return str(value) if isinstance(value, Path) else name_of(value)


def name_of(value: Any) -> str:
    """Return the full name of a function or class, or of the class of an object."""
    while isinstance(value, functools.partial):
        value = value.func
    owner = getattr(value, "__self__", None)
    if owner is not None and hasattr(value, "__name__"):
        return f"{_named(type(owner))}.{value.__name__}"
    return _named(value if hasattr(value, "__qualname__") else type(value))


def _named(definition: Any) -> str:
    module = getattr(definition, "__module__", None) or "builtins"  # str.upper has none
    return f"{module}.{definition.__qualname__}"


def function_name(fn: Callable[..., Any]) -> str:
    """Return what to call a user's function in messages."""
    called: Any = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    return str(getattr(called, "__qualname__", None) or type(called).__qualname__)


def functions_of(dataset: Description) -> str:
    """Return the names of the functions that a dataset calls, for messages."""
    values = (getattr(dataset, name) for name in dataset.parameter_names)
    return (
        ", ".join(function_name(value) for value in values if callable(value)) or "it"
    )


def label_of(dataset: Any) -> str:
    """Return the class of a dataset and the sources it reads, for messages; of a source
    its name.

    >>> from energize import LimitDataset, ListSource
    >>> label_of(LimitDataset(ListSource("ab", name="letters"), 1))
    "LimitDataset over 'letters'"
    """
    names = [source.name for source in dataset.sources]
    shown = some(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        shown += f" and {len(names) - _MOST_NAMES} more"
    return f"{type(dataset).__name__} over {shown}" if dataset.inputs else shown


def order_name_of(value: Any) -> str:
    """Return the `order_name` that the class of a value sets, else its class name."""
    cls = type(value)
    order_name = vars(cls).get("order_name")
    return order_name if isinstance(order_name, str) else cls.__name__


_encode = json.JSONEncoder(sort_keys=True).encode


def digest(tree: Any) -> str:
    """Return a short fingerprint of a tree."""
    return hashlib.blake2b(_encode(tree).encode(), digest_size=16).hexdigest()


def generates(fn: object) -> bool:
    """Return whether a function is written with `yield`: it makes any number of items
    of one.
    """
    if not callable(fn):
        return False
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not (inspect.isroutine(fn) or inspect.isclass(fn)):
        fn = type(fn).__call__ if not hasattr(type(fn), "__wrapped__") else fn
    return inspect.isgeneratorfunction(inspect.unwrap(fn))


# Frozen descriptions.


@runtime_checkable
class InputConvertible(Protocol):
    """An object of another library that a dataset can read."""

    def to_dataset(self) -> Any:
        """Return the dataset that is read in its place; itself if there is none."""


def as_input(source: Any) -> Any:
    """Return the dataset that an object of another library stands for."""
    # The class first: a protocol is looked up attribute by attribute.
    if not isinstance(source, Description) and isinstance(source, InputConvertible):
        return source.to_dataset()
    return source


class Description:
    """Parameters and inputs: immutable, picklable, comparable, holding nothing open.

    Two are equal when they are of one class, with equal parameters and equal inputs.
    Subclasses set their parameters once, with `freeze` in `__init__`.
    """

    order_name: ClassVar[str] = "Description"
    """The name that random draws and states know this kind of node by.

    It stays when the class is renamed, so that orders and saved states stay valid. Each
    class has its own: a subclass that sets none gets its class name.
    """

    inputs: tuple[Any, ...]
    worker_config: WorkerConfig | None
    label: str | None = None
    """Of a source, its name in the mix that reads it, for reports and weights."""
    unnamed_label: str | None = None
    """The label that it would have if no entry of the mix had a name."""
    mix_file: tuple[str, str] | None = None
    """The metadataset file and the split part that it was made from, for states."""
    role: Role | None = None
    """Whether it is read for training or for evaluation; None is training.

    It changes no sample, so fingerprints, states and `==` ignore it.
    """
    parameter_names: tuple[str, ...]
    """The names of the parameters, in the order in which they were set."""
    __signature__: ClassVar[inspect.Signature]

    _tolerances: Mapping[str, Any] = MappingProxyType({})
    """Numbers of failures in a row of its functions that end a run, if set."""

    @cached_property
    def traits(self) -> NodeTraits:
        """The properties of this node that readers depend on; see `NodeTraits`."""
        return ORDER_ONLY

    def __init_subclass__(cls, **options: Any) -> None:
        """Set `order_name` where the class names none, and show the parameters of
        `__init__`, also where `__new__` chooses a class by them.
        """
        super().__init_subclass__(**options)
        if "order_name" not in vars(cls):
            cls.order_name = cls.__name__
        if cls.__new__ is not object.__new__:
            signature = inspect.signature(cls.__init__)
            cls.__signature__ = signature.replace(
                parameters=list(signature.parameters.values())[1:]
            )

    def freeze(
        self,
        inputs: Sequence[Any] = (),
        worker_config: WorkerConfig | None = None,
        ignored: Mapping[str, object] = MappingProxyType({}),
        **parameters: Any,
    ) -> None:
        """Set inputs and parameters, once; call it in `__init__`.

        Args:
            inputs: The datasets that this one reads.
            worker_config: A worker config for the loader. Its `seed_offset` seeds the
                inputs that carry no config yet.
            ignored: Further arguments of `__init__`. Tolerances of failures are kept
                for `failure_tolerance`; others have no effect, and are logged.
            **parameters: Parameters by name. They become attributes, are compared,
                pickled and, as `settings`, part of configs.

        Raises:
            ConfigError: If an input is not a dataset, or inputs carry different worker
                configs.
        """
        if ignored:
            self._keep_tolerances(ignored, parameters)
        inputs = [as_input(source) for source in inputs]
        self._check_inputs(inputs)
        if worker_config is not None:
            seed = checked_config(worker_config).seed_offset
            if seed:
                inputs = [
                    source if source.worker_config else source.reseeded(seed)
                    for source in inputs
                ]
        configs = {worker_config, *map(attrgetter("worker_config"), inputs)} - {None}
        if len(configs) > 1:
            raise ConfigError(
                f"{type(self).__name__} is built from parts with different worker "
                f"configs: {' and '.join(sorted(map(str, configs)))}. Use one for a "
                "whole loader, or pass it only to the loader"
            )
        roles = {*map(attrgetter("role"), inputs)}
        values = {
            "inputs": tuple(inputs),
            "worker_config": next(iter(configs), None),
            "role": roles.pop() if len(roles) == 1 else None,
            "parameter_names": tuple(parameters),
            **parameters,
        }
        vars(self).update(values)

    def _keep_tolerances(
        self, ignored: Mapping[str, object], parameters: Mapping[str, Any]
    ) -> None:
        calls = any(callable(value) for value in parameters.values())
        tolerances = {k: v for k, v in ignored.items() if calls and k in TOLERANCES}
        unused = {k: v for k, v in ignored.items() if k not in tolerances}
        accepted(type(self).__name__, **unused)
        object.__setattr__(self, "_tolerances", tolerances)

    def _check_inputs(self, inputs: Sequence[Any]) -> None:
        for source in inputs:
            if not isinstance(source, Description):
                raise ConfigError(
                    f"{type(self).__name__} reads from datasets, got "
                    f"{type(source).__name__} {str(source)[:80]!r}. Wrap an "
                    "object with __len__ and __getitem__ in SequenceSource, one that "
                    "can be iterated over repeatedly in IterableSource, and pass a "
                    "function of samples to MapDataset or IterMapDataset"
                )

    @cached_property
    def key(self) -> int:
        """The key of the random draws of this node: seed, `order_name` and sources."""
        return derive(self.order_name, *[source.key for source in self.inputs])

    def failure_tolerance(self, of: str = "") -> int | None:
        """Return how many failures in a row of a function end a run; None if unset.

        Args:
            of: Prefix of the argument, for a node with several functions.
        """
        return self._tolerances.get(f"{of}failure_tolerance")

    def with_inputs(self, inputs: Sequence[Any]) -> Self:
        """Return the same description over other inputs."""
        return self.replace(inputs=tuple(inputs))

    def reseeded(self, seed: int) -> Self:
        """Return the same description with `seed` in all its sources: other orders,
        other draws.
        """
        return self.with_inputs([source.reseeded(seed) for source in self.inputs])

    def labelled(self, label: str | None, unnamed_label: str | None) -> Self:
        """Return the same description with labels, on which no order depends."""
        return self.replace(label=label, unnamed_label=unnamed_label)

    def with_mix_file(self, path: str, split_part: str) -> Self:
        """Return the same description with the file that it was made from."""
        return self.replace(mix_file=(path, split_part))

    def with_worker_config(self, worker_config: WorkerConfig | None) -> Self:
        """Return the same description carrying a worker config for the loader to
        take.
        """
        return self.replace(worker_config=worker_config)

    def with_role(self, role: Role) -> Self:
        """Return the same description, marked for training or for evaluation.

        A dataset over others has the role that all of them have in common.

        Args:
            role: "train" or "eval", see `get_loader`.

        Returns:
            An equal description, with the same fingerprint.

        Raises:
            ConfigError: If `role` is neither of the two.

        Example:
            >>> from energize import ListSource, get_loader
            >>> loader = get_loader(ListSource("abc").with_role("eval"))
            >>> next(iter(loader)), next(iter(loader))
            ('a', 'a')
        """
        if role not in get_args(Role):
            raise ConfigError(f"role must be 'train' or 'eval', got {role!r}")
        return self.replace(role=role)

    def settings(self) -> dict[str, Any]:
        """Return the parameters as JSON, as `describe` and configs show them."""
        return {name: described(getattr(self, name)) for name in self.parameter_names}

    def describe(self) -> dict[str, Any]:
        """Return the description as a JSON-able tree."""
        tree: dict[str, Any] = {"kind": self.order_name, **self.settings()}
        if self.inputs:
            tree["inputs"] = [source.describe() for source in self.inputs]
        return tree

    def replace(self, **changed: Any) -> Self:
        """Return a copy of the description with some values changed.

        Nothing is checked: `changed` are values that `__init__` could have set.

        Args:
            **changed: New values of parameters, `inputs`, labels or `worker_config`.

        Example:
            >>> from energize import LimitDataset, ListSource
            >>> list(LimitDataset(ListSource("abc"), 1).replace(length=2))
            ['a', 'b']
        """
        other = object.__new__(type(self))
        vars(other).update(self.__getstate__(), **changed)
        return other

    def with_parameters(self, **added: Any) -> Self:
        """Return a copy with values for parameters that `__init__` has not set.

        Args:
            **added: Values by name.
        """
        names = dict.fromkeys([*self.parameter_names, *added])
        return self.replace(parameter_names=tuple(names), **added)

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(
            f"{type(self).__name__}.{name} cannot be changed: a dataset is a frozen "
            "description. Make a new one"
        )

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Description):
            return NotImplemented
        return self is other or bool(self.compared() == other.compared())

    def __hash__(self) -> int:
        return hash((self.order_name, self.key))

    def compared(self) -> tuple[Any, ...]:
        """Return the values that `==` compares between descriptions of one class.

        By default the inputs and all parameters. Sources of data in memory return the
        identity of the data, as comparing it may cost as much as reading it.
        """
        values = ((name, getattr(self, name)) for name in self.parameter_names)
        return self.inputs, *values

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied and pickled: the description, not what was computed
        from it.
        """
        carried = (
            "worker_config",
            "_tolerances",
            "mix_file",
            "label",
            "unnamed_label",
            "role",
        )
        names = ("inputs", "parameter_names", *carried, *self.parameter_names)
        return {name: getattr(self, name) for name in names if name in self.__dict__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __repr__(self) -> str:
        """Return a short text of the dataset, without reading data.

        It contains sources, weights, and numeric parameters above 1. `describe` returns
        everything.
        """
        shown = self._shown_inputs() if self.inputs else self._shown_source()
        if self.inputs:
            values = vars(self)
            for name in self.parameter_names:
                value: Any = values.get(name)
                if type(value) in (int, float) and value > 1:
                    shown.append(f"{name}={value}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _shown_inputs(self) -> list[str]:
        shown = [repr(source) for source in self.inputs[:4]]
        weights = vars(self).get("weights") or ()
        if len(weights) == len(self.inputs):
            pairs = zip(shown, weights, strict=False)
            shown = [f"({source}, {weight})" for source, weight in pairs]
        if len(self.inputs) > 4:
            shown.append(f"... {len(self.inputs) - 4} more")
        return shown

    def _shown_source(self) -> list[str]:
        shown = [repr(getattr(self, "name", ""))]
        count = sum(vars(self).get("counts") or ())
        if count:
            shown.append(f"{count:,} samples")
        return shown
