"""Values of descriptions as JSON."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import hashlib
import inspect
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import islice, zip_longest
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    cast,
    get_args,
)

from energize.core import limits
from energize.core.ignored import TOLERANCES, accepted
from energize.core.lanes import WorkerConfig, checked_config
from energize.core.rng import derive
from energize.core.validation import load_large_json
from energize.errors import ConfigError, StateError, some

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
        return {
            f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    return str(value) if isinstance(value, Path) else name_of(value)


def name_of(value: Any) -> str:
    """Return the full name of a function or a class, or of the class of anything
    else.
    """
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
    called: Any = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    return str(getattr(called, "__qualname__", None) or type(called).__qualname__)


def functions_of(dataset: Description) -> str:
    """Return the names of the functions that a dataset calls, for messages."""
    values = (getattr(dataset, name) for name in dataset._parameters)
    return ", ".join(function_name(each) for each in values if callable(each)) or "it"


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
    """Return the `order_name` that the class of a value sets itself, else its class
    name.
    """
    cls = type(value)
    order_name = vars(cls).get("order_name")
    return order_name if isinstance(order_name, str) else cls.__name__


def digest(tree: Any) -> str:
    """Return a short fingerprint of a tree."""
    return hashlib.blake2b(
        json.dumps(tree, sort_keys=True).encode(), digest_size=16
    ).hexdigest()


# Frozen descriptions: what a dataset is made from, set once and never changed.


class Description:
    """Parameters and inputs: immutable, picklable, comparable, holding nothing open.

    Two are equal when they are of one class, with equal parameters and equal inputs.
    Subclasses set their parameters once, with `_freeze` in `__init__`.
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
    role: Role | None = None
    """Whether it is read for training or for evaluation; None is training.

    It changes no sample, so fingerprints, states and `==` ignore it.
    """
    _parameters: tuple[str, ...]
    __signature__: ClassVar[inspect.Signature]

    _tolerances: Mapping[str, Any] = MappingProxyType({})
    """After how many failures in a row a function of it ends a run, where that was
    given."""

    _passes_on: ClassVar[bool] = False
    """Whether items of the input pass through, each at its place, whatever is done with
    them."""

    _ends_loops: ClassVar[bool] = False
    """Whether, as the outermost of a loader, it says where a loop ends instead of what
    is read."""

    _changes_no_sample: ClassVar[tuple[str, ...]] = ()
    """Parameters, beside functions, that may change without changing which samples
    come."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Set `order_name` where the class names none, and show the parameters of
        `__init__`, also where `__new__` chooses a class by them.
        """
        super().__init_subclass__(**options)
        if "order_name" not in vars(cls):
            cls.order_name = cls.__name__
        if cls.__new__ is not object.__new__:
            own = inspect.signature(cls.__init__)
            cls.__signature__ = own.replace(
                parameters=list(own.parameters.values())[1:]
            )

    def _freeze(
        self,
        inputs: Sequence[Any] = (),
        worker_config: WorkerConfig | None = None,
        ignored: Mapping[str, object] = MappingProxyType({}),
        **parameters: Any,
    ) -> None:
        """Set inputs and parameters for good; `ignored` are arguments without a use
        here, but for how many failures in a row of its functions end a run.

        Of a worker config given here, `seed_offset` seeds the inputs that carry no
        config yet.
        """
        if ignored:
            calls = any(callable(value) for value in parameters.values())
            own = {k: most for k, most in ignored.items() if calls and k in TOLERANCES}
            accepted(
                type(self).__name__,
                **{k: v for k, v in ignored.items() if k not in own},
            )
            object.__setattr__(self, "_tolerances", own)
        for each in inputs:
            if not isinstance(each, Description):
                raise ConfigError(
                    f"{type(self).__name__} reads from datasets, got "
                    f"{type(each).__name__} "
                    f"{str(each)[:80]!r}; wrap an object that has __len__ and "
                    "__getitem__ in "
                    "SequenceSource, one that can be iterated over again and again in "
                    "IterableSource; a function of samples is for MapDataset or "
                    "IterMapDataset"
                )
        if worker_config is not None and (
            seed := checked_config(worker_config).seed_offset
        ):
            inputs = [
                each if each.worker_config else each.reseeded(seed) for each in inputs
            ]
        carried = {worker_config, *map(attrgetter("worker_config"), inputs)} - {None}
        if len(carried) > 1:
            raise ConfigError(
                f"{type(self).__name__} is built from parts with different worker "
                "configs: "
                f"{' and '.join(sorted(map(str, carried)))}. Use one for a whole "
                "loader, or give "
                "it to the loader alone"
            )
        roles = {*map(attrgetter("role"), inputs)}
        values = {
            "inputs": tuple(inputs),
            "worker_config": next(iter(carried), None),
            "role": roles.pop() if len(roles) == 1 else None,
            "_parameters": tuple(parameters),
            **parameters,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def key(self) -> int:
        """What the random choices of this node are keyed by: seed, sources and kinds on
        the way.
        """
        return derive(self.order_name, *[each.key for each in self.inputs])

    def _tolerance(self, of: str = "") -> int | None:
        return self._tolerances.get(f"{of}failure_tolerance")

    def with_inputs(self, inputs: Sequence[Any]) -> Self:
        """Return the same description over other inputs."""
        return self._replace(inputs=tuple(inputs))

    def reseeded(self, seed: int) -> Self:
        """Return the same description with `seed` in all its sources: other orders,
        other draws.
        """
        return self.with_inputs([each.reseeded(seed) for each in self.inputs])

    def _distinguished(self, occurrence: int) -> Self:
        """Return the same description with an order of its own, to stand beside itself
        in a mix.
        """
        return self.with_inputs(
            [each._distinguished(occurrence) for each in self.inputs]
        )

    def labelled(self, label: str | None, unnamed_label: str | None) -> Self:
        """Return the same description with labels, on which no order depends."""
        return self._replace(label=label, unnamed_label=unnamed_label)

    def _with_worker_config(self, worker_config: WorkerConfig | None) -> Self:
        """Return the same description carrying a worker config for the loader to
        take.
        """
        return self._replace(worker_config=worker_config)

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
            raise ConfigError(f"role is 'train' or 'eval', got {role!r}")
        return self._replace(role=role)

    @functools.cached_property
    def _fingerprint(self) -> str:
        return digest(_tree(deciding(self)))

    def _settings(self) -> dict[str, Any]:
        """Return the parameters as JSON."""
        return {name: described(getattr(self, name)) for name in self._parameters}

    def describe(self) -> dict[str, Any]:
        """Return the description as a JSON-able tree."""
        tree: dict[str, Any] = {"kind": self.order_name, **self._settings()}
        if self.inputs:
            tree["inputs"] = [each.describe() for each in self.inputs]
        return tree

    def _replace(self, **changed: Any) -> Self:
        other = object.__new__(type(self))
        for name, value in {**self.__getstate__(), **changed}.items():
            object.__setattr__(other, name, value)
        return other

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(
            f"{type(self).__name__}.{name} cannot be changed: a dataset is a frozen "
            "description; "
            "make a new one"
        )

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, Description):
            return NotImplemented
        return self is other or bool(self._compared() == other._compared())

    def __hash__(self) -> int:
        return hash((self.order_name, self.key))

    def _compared(self) -> tuple[Any, ...]:
        return self.inputs, *((name, getattr(self, name)) for name in self._parameters)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied and pickled: the description, not what was computed
        from it.
        """
        carried = (
            "worker_config",
            "_tolerances",
            "_mix_file",
            "label",
            "unnamed_label",
            "role",
        )
        kept = ("inputs", "_parameters", *carried, *self._parameters)
        return {name: getattr(self, name) for name in kept if name in self.__dict__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Return what it is made of, in short, without reading anything: sources,
        weights, and numbers of its own that are above 1; `describe()` says all.
        """
        known = vars(self)
        shown = [repr(each) for each in self.inputs[:4]]
        if len(weights := known.get("weights") or ()) == len(self.inputs):
            shown = [
                f"({each}, {weight})"
                for each, weight in zip(shown, weights, strict=False)
            ]
        if len(self.inputs) > 4:
            shown.append(f"... {len(self.inputs) - 4} more")
        if not self.inputs:
            count = sum(known.get("counts") or ())
            shown = [
                repr(getattr(self, "name", "")),
                *([f"{count:,} samples"] if count else []),
            ]
        own: dict[str, Any] = {
            name: known.get(name) for name in self._parameters if self.inputs
        }
        shown += [
            f"{n}={v}" for n, v in own.items() if type(v) in (int, float) and v > 1
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


Tree = dict[str, Any]
"""A node of a config: its kind, its settings, its inputs."""

_FUNCTIONS = 40
"""Functions whose names are kept: folders of a mix mostly have the same ones."""

_PLAIN = 1024
"""Characters up to which JSON stays readable; longer texts are compressed."""

_LONGEST = 9 * 1024
"""Characters of a config that a state keeps; of a longer one it keeps a few for each
input."""

_DIGITS = 4

_OVER_TIME = {"changes", "plan"}
"""Settings of nodes that may be others from some item on."""

_IDENTITY = 8
"""Characters of a source's identity that tell it from others."""

_NAMED = 3

_ABSENT: Any = object()
"""In place of a setting that one of two configs does not have."""


class Config(NamedTuple):
    """The `fingerprint` of all that decides which samples come, and the `text` of it,
    if that is not too long. Beside it what decides nothing: the `functions` that are
    called on items, and a digest of the `places` where folders are mounted.
    """

    fingerprint: str
    text: str
    functions: tuple[str, ...]
    places: str


def config_of(dataset: Description) -> Config:
    """Return the config of a dataset, which is worked out once."""
    known = dataset.__dict__.get("_config")
    if known is None:
        tree = config_tree(dataset)
        (functions, places) = _beside(dataset)
        text = packed(tree)
        text = text if len(text) <= _LONGEST else packed(_cut(tree))
        known = Config(dataset._fingerprint, text, functions, places)
        object.__setattr__(dataset, "_config", known)
    return cast("Config", known)


def config_tree(dataset: Description) -> Tree:
    """Return what decides which samples come, as a JSON-able tree, in which the
    identities of sources are short.
    """
    return _tree(deciding(dataset), _IDENTITY)


def deciding(node: Any) -> Any:
    """Return the outermost dataset that decides which samples come, and when."""
    while node._passes_on or node._ends_loops:
        node = node.inputs[0]
    return node


def _tree(node: Description, identity: int | None = None) -> Tree:
    while node._passes_on:
        node = node.inputs[0]
    values = node.__dict__
    left_out = node._changes_no_sample
    tree: Tree = {"kind": node.order_name}
    for name, value in node._settings().items():
        if name not in left_out and not callable(values.get(name)):
            tree[name] = value
    if node.inputs:
        tree["inputs"] = [_tree(each, identity) for each in node.inputs]
    elif isinstance(tree.get("identity"), str):
        tree["identity"] = tree["identity"][:identity]
    return tree


def _cut(tree: Tree) -> Tree:
    """Return a config in which each input of its outermost mix is a few digits, weights
    and all.
    """
    inputs = tree.get("inputs", [])
    if len(inputs) < 2:
        return {**tree, "inputs": [_cut(each) for each in inputs]} if inputs else tree
    of_each = _of_each_input(tree)
    kept = {name: value for name, value in tree.items() if name not in of_each}
    columns = [tree[name] for name in of_each]
    return {
        **kept,
        "inputs": [digest(row)[:_DIGITS] for row in zip(*columns, strict=True)],
    }


def _of_each_input(tree: Tree) -> list[str]:
    """Return the fields that have a value for each input, and the inputs."""
    count = len(tree["inputs"])
    return [
        name
        for name, each in tree.items()
        if isinstance(each, list) and len(each) == count
    ]


def _beside(dataset: Description) -> tuple[tuple[str, ...], str]:
    functions: dict[str, None] = {}
    places: list[str] = []
    waiting: list[Any] = [dataset]
    while waiting:
        node = waiting.pop()
        if len(functions) < _FUNCTIONS:
            values = (getattr(node, name) for name in node._parameters)
            told = ((each, described(each)) for each in values if callable(each))
            names = (
                text if isinstance(text, str) else name_of(each) for each, text in told
            )
            functions.update(dict.fromkeys(names))
        if not node.inputs and "path" in node.__dict__:
            places.append(str(node.path))
        waiting.extend(node.inputs[::-1])
    return tuple(functions), digest(places)


def changed_until(
    dataset: Any, saved: Any, current: Any, items: int | None
) -> Iterator[str]:
    """Yield a line for each difference of two configs, the second of which is that of
    `dataset`.

    With `items`, those that concern only what comes after the first `items` items are
    none: weights of later slots, later stages.
    """
    dataset = deciding(dataset)
    if items is not None and isinstance(saved, dict) and isinstance(current, dict):
        if saved.get("kind") == current.get("kind") and saved != current:
            saved, current = dataset._until(saved, current, items)
        inputs = current.get("inputs"), saved.get("inputs")
        reached = dataset._reached(items) if dataset.inputs else None
        same = {**saved, "inputs": 0} == {**current, "inputs": 0}
        listed = all(isinstance(each, list) for each in inputs)
        if (
            reached is not None
            and same
            and listed
            and _labels(inputs[0]) == _labels(inputs[1])
        ):
            rows = zip(dataset.inputs, inputs[1], inputs[0], reached, strict=False)
            for each, before, now, count in rows:
                yield from changed_until(each, before, now, count)
            return
        if (
            saved.get("kind") == current.get("kind")
            and not same
            and _OVER_TIME & saved.keys()
        ):
            yield (
                f"{_label(current)}: {items:,} of its items are read; it may change "
                "from there on"
            )
    yield from differences(saved, current)


def differences(saved: Any, current: Any) -> Iterator[str]:
    """Yield a line for each difference of two configs: the name of the source, the
    argument, and what it was and is.
    """
    if not isinstance(saved, dict) or not isinstance(current, dict):
        yield "the saved state does not describe its dataset: it is damaged"
        return
    label = _label(current)
    if saved.get("kind") != current.get("kind"):
        yield f"{_label(saved)}: was a {saved.get('kind')}, is a {current.get('kind')}"
        return
    old = saved.get("inputs") or []
    new = current.get("inputs") or []
    names = _labels(new)
    if old and all(isinstance(each, str) for each in old):  # as `_cut` leaves them
        columns = _of_each_input(current)
        cut = _cut(current)
        current = {k: v for k, v in current.items() if k not in columns}
        if len(old) != len(new):
            yield f"{label}: had {len(old):,} inputs, has {len(new):,}"
        else:
            others = [
                who
                for who, a, b in zip(names, old, cut["inputs"], strict=True)
                if a != b
            ]
            yield from (f"{who}: its weight or its settings changed" for who in others)
        old = new = names = []
    for name in {**saved, **current}:
        if name not in ("kind", "inputs"):
            was = saved.get(name, _ABSENT)
            now = current.get(name, _ABSENT)
            yield from _changed(f"{label}: {name}", was, now, names)
    renamed = []
    if len(old) != 1 or len(new) != 1:
        renamed = list(_renamed(label, _labels(old), names))
        yield from renamed
    if not renamed:
        for one, other in zip(old, new, strict=True):
            yield from differences(one, other)


def _changed(
    what: str, saved: Any, current: Any, inputs: Sequence[str]
) -> Iterator[str]:
    """One setting; of one that has parts, by name or for each input, those that
    changed.
    """
    if saved == current:
        return
    parts = _parts(saved, current, inputs)
    for name, was, now in parts:
        yield from _changed(f"{what}{name}", was, now, inputs)
    if saved is _ABSENT:
        yield f"{what} is new: {_short(current)}"
    elif current is _ABSENT:
        yield f"{what} is gone: it was {_short(saved)}"
    elif not parts:
        yield f"{what} was {_short(saved)}, is {_short(current)}"


def _parts(
    saved: Any, current: Any, inputs: Sequence[str]
) -> list[tuple[str, Any, Any]]:
    if isinstance(saved, dict) and isinstance(current, dict):
        names = {**saved, **current}
        return [
            (f".{n}", saved.get(n, _ABSENT), current.get(n, _ABSENT)) for n in names
        ]
    if not (isinstance(saved, list) and isinstance(current, list)):
        return []
    if all(isinstance(each, dict) and "name" in each for each in [*saved, *current]):
        rows: Any = zip_longest(saved, current, fillvalue=_ABSENT)  # stages of a plan
        return [(f"[{(b if a is _ABSENT else a)['name']!r}]", a, b) for a, b in rows]
    if len(saved) == len(current) == len(inputs):
        return list(
            zip([f" of {each}" for each in inputs], saved, current, strict=True)
        )
    return []


def _renamed(label: str, before: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """Yield what of the names of inputs is gone or new, or that their order is another
    one.
    """
    old = Counter(before)
    new = Counter(now)
    for word, names in (("is gone", old - new), ("is new", new - old)):
        yield from (f"{label}: {name} {word}" for name in names)
    if old == new and before != now:
        yield (
            f"{label}: the order of its inputs was {', '.join(before)}, is "
            f"{', '.join(now)}"
        )


def _labels(trees: Any) -> list[str]:
    return [_label(each) for each in trees] if isinstance(trees, list) else []


def _label(tree: Any) -> str:
    """Return a node by the sources that it reads, as messages name it."""
    if not isinstance(tree, dict):
        return "a dataset"
    if not tree.get("inputs"):
        return repr(tree["name"]) if "name" in tree else str(tree.get("kind"))
    names = [repr(name) for name in islice(leaf_names(tree), _NAMED + 1)]
    more = ", ..." if len(names) > _NAMED else ""
    return f"{tree.get('kind')} of {', '.join(names[:_NAMED])}{more}"


def leaves(tree: Any) -> Iterator[Tree]:
    """Yield the sources of a config."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        inputs = node.get("inputs") if isinstance(node, dict) else None
        if isinstance(inputs, list) and inputs:
            waiting.extend(inputs[::-1])
        elif isinstance(node, dict) and node:
            yield node


def leaf_names(tree: Any) -> Iterator[str]:
    """Yield the names of the sources of a config."""
    return (str(leaf.get("name", leaf.get("kind"))) for leaf in leaves(tree))


def weights_of(tree: Any) -> dict[str, float]:
    """Return the weights of the outermost mix of a config that are numbers, by their
    sources.
    """
    while isinstance(tree, dict) and "weights" not in tree:
        inputs = tree.get("inputs")
        tree = inputs[0] if isinstance(inputs, list) and len(inputs) == 1 else None
    inputs = tree.get("inputs") if isinstance(tree, dict) else None
    if not isinstance(inputs, list) or not isinstance(tree["weights"], list):
        return {}
    names = [", ".join(leaf_names(each)) for each in inputs]
    pairs = zip(names, tree["weights"], strict=False)
    return {name: weight for name, weight in pairs if isinstance(weight, int | float)}


def shares_of(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the part that each weight is of all."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def batch_size_of(tree: Any) -> int | None:
    """Return the samples per batch, if a config says it."""
    while isinstance(tree, dict):
        size = tree.get("batch_size")
        if isinstance(size, int) and not isinstance(size, bool):
            return size
        inputs = tree.get("inputs")
        tree = inputs[0] if isinstance(inputs, list) and inputs else None
    return None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def packed(tree: Tree) -> str:
    """Return a JSON-able tree as a text: readable if it is short, else compressed."""
    text = json.dumps(tree, separators=(",", ":"))
    if len(text) <= _PLAIN:
        return text
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str, what: str) -> Tree:
    """Return what `packed` packed; raise `StateError` naming `what` for anything else,
    and for what is larger or deeper than states are (see `energize.core.limits`),
    before it is made.
    """
    try:
        plain = text if text.startswith("{") else _unzipped(text)
        value = load_large_json(plain.encode())
    except (ValueError, zlib.error, binascii.Error) as error:
        raise StateError(
            f"the saved state's {what!r} cannot be read, it is damaged or cut off: "
            f"{type(error).__name__}: {str(error)[:200]}"
        ) from error
    if not isinstance(value, dict):
        raise StateError(
            f"the saved state's {what!r} is not a JSON object: {plain[:80]}"
        )
    return value


def _unzipped(text: str) -> str:
    most = limits.JSON_BYTES
    unzip = zlib.decompressobj()
    data = unzip.decompress(base64.b64decode(text, validate=True), most)
    if unzip.unconsumed_tail:
        raise ValueError(limits.over("JSON_BYTES"))
    if not unzip.eof or unzip.unused_data:
        raise ValueError("it ends too early, or goes on behind its end")
    return data.decode()


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
