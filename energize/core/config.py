"""The config of a dataset: all that decides which samples come, and how two configs
differ.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from energize.core import limits, tree
from energize.core.description import Description, described, digest, name_of
from energize.core.validation import load_large_json
from energize.errors import StateError

Tree = dict[str, Any]
"""A node of a config: its kind, its settings, its inputs."""

_FUNCTIONS = 40
"""Maximum number of functions in a state; folders of a mix mostly share theirs."""

_PLAIN = 1024
"""Characters up to which JSON stays readable; longer texts are compressed."""

_LONGEST = 9 * 1024
"""Characters of a config that a state keeps; of a longer one it keeps a few for each
input."""

_DIGITS = 4

_OVER_TIME = {"changes", "plan"}
"""Settings of nodes that may be others from some item on."""

_IDENTITY = 8
"""Characters of a source's identity in configs, enough to be unique."""

_NAMED = 3

_MOST_RECORDS = 256

_ABSENT: Any = object()
"""In place of a setting that one of two configs does not have."""


class Config(NamedTuple):
    """The `fingerprint` of all that decides which samples come, and the `text` of it,
    if that is not too long. Beside it what decides nothing: the `functions` that are
    called on items, a digest of the `places` where folders are mounted, and the
    `records` of the files of sources.
    """

    fingerprint: str
    text: str
    functions: tuple[str, ...]
    places: str
    records: dict[str, str]


def config_of(dataset: Description) -> Config:
    """Compute the config of a dataset; `Dataset.order_config` has it computed once."""
    whole = _tree(deciding(dataset))
    fingerprint = digest(whole)
    _shorten(whole)
    functions, places = _functions_and_places(dataset)
    text = packed(whole)
    if len(text) > _LONGEST:
        text = packed(_cut(whole))
    records = _records_of(dataset)
    return Config(fingerprint, text, functions, places, records)


def fingerprint_of(dataset: Description) -> str:
    """Compute the digest of all that decides which samples come."""
    return digest(_tree(deciding(dataset)))


def config_tree(dataset: Description) -> Tree:
    """Return what decides which samples come, as a JSON-able tree, in which the
    identities of sources are short.
    """
    whole = _tree(deciding(dataset))
    _shorten(whole)
    return whole


def deciding(node: Any) -> Any:
    """Return the outermost dataset that decides which samples come, and when."""
    return tree.unwrap(node)


def _shorten(tree: Tree) -> None:
    """Shorten the identities of sources in a config, in place."""
    for child in tree.get("inputs", ()):
        _shorten(child)
    if "inputs" not in tree and isinstance(tree.get("identity"), str):
        tree["identity"] = tree["identity"][:_IDENTITY]


def _tree(outer: Description) -> Tree:
    node = outer
    if outer.traits.content_only:
        node = tree.unwrap(outer, tree.CONTENT_ONLY)
    values = node.__dict__
    left_out = node.traits.mix.neutral
    settings: Tree = {"kind": node.order_name}
    for name, value in node.settings().items():
        if name not in left_out and not callable(values.get(name)):
            settings[name] = value
    if node.inputs:
        settings["inputs"] = [_tree(child) for child in node.inputs]
    return settings


def _cut(tree: Tree) -> Tree:
    """Return a config in which each input of its outermost mix is a few digits, weights
    and all.
    """
    inputs = tree.get("inputs", [])
    if len(inputs) < 2:
        return (
            {**tree, "inputs": [_cut(source) for source in inputs]} if inputs else tree
        )
    per_input = _input_columns(tree)
    shared = {name: value for name, value in tree.items() if name not in per_input}
    columns = [tree[name] for name in per_input]
    return {
        **shared,
        "inputs": [digest(row)[:_DIGITS] for row in zip(*columns, strict=True)],
    }


def _input_columns(tree: Tree) -> list[str]:
    """Return the fields that have a value for each input, and the inputs."""
    count = len(tree["inputs"])
    return [
        name
        for name, values in tree.items()
        if isinstance(values, list) and len(values) == count
    ]


def _functions_and_places(dataset: Description) -> tuple[tuple[str, ...], str]:
    functions: dict[str, None] = {}
    places: list[str] = []
    waiting: list[Any] = [dataset]
    while waiting:
        node = waiting.pop()
        if len(functions) < _FUNCTIONS:
            values = (getattr(node, name) for name in node.parameter_names)
            functions.update(dict.fromkeys(map(_function, filter(callable, values))))
        if not node.inputs and "path" in node.__dict__:
            places.append(str(node.path))
        waiting.extend(node.inputs[::-1])
    return tuple(functions), digest(places)


def _function(value: Any) -> str:
    """Return the name of a function in the details of a state."""
    # Objects with an order name have descriptions that are trees, not texts.
    text = None if hasattr(value, "order_name") else described(value)
    return text if isinstance(text, str) else name_of(value)


def _records_of(dataset: Any) -> dict[str, str]:
    """Return a digest of the file record of each source, by a digest of its identity.

    Empty for a mix of many sources, so that states stay small.
    """
    source_records = [getattr(source, "record", None) for source in dataset.sources]
    if len(source_records) > _MOST_RECORDS:
        return {}
    records_of: dict[str, set[str | None]] = {}
    for source, record in zip(dataset.sources, source_records, strict=True):
        records_of.setdefault(source_key(source), set()).add(record)
    return {
        key: digest(sorted(map(str, records)))[:6]
        for key, records in records_of.items()
        if None not in records
    }


def source_key(source: Any) -> str:
    """Return the key of a source in the records of a state."""
    return digest(getattr(source, "identity", source.name))[:6]


def changed_until(
    dataset: Any, saved: Any, current: Any, items: int | None
) -> Iterator[str]:
    """Yield a line for each difference between the saved and the current config.

    Args:
        dataset: The dataset of the config `current`.
        saved: The config in a state.
        current: The config of `dataset`.
        items: Number of items that have been read. Differences that concern later
            items only, such as weights of later slots, are left out. None: compare all.
    """
    dataset = deciding(dataset)
    if items is not None and isinstance(saved, dict) and isinstance(current, dict):
        same_class = saved.get("kind") == current.get("kind")
        if same_class and saved != current:
            saved, current = dataset.settled(saved, current, items)
        same = {**saved, "inputs": 0} == {**current, "inputs": 0}
        reached = dataset.reached(items) if dataset.inputs else None
        if reached is not None and same and _same_labels(saved, current):
            rows = zip(
                dataset.inputs,
                saved["inputs"],
                current["inputs"],
                reached,
                strict=False,
            )
            for source, previous, config, count in rows:
                yield from changed_until(source, previous, config, count)
            return
        same_class = saved.get("kind") == current.get("kind")
        if same_class and not same and _OVER_TIME & saved.keys():
            yield (
                f"{_label(current)}: {items:,} of its items are read; it may change "
                "from there on"
            )
    yield from differences(saved, current)


def _same_labels(saved: dict[str, Any], current: dict[str, Any]) -> bool:
    inputs = (saved.get("inputs"), current.get("inputs"))
    if not all(isinstance(configs, list) for configs in inputs):
        return False
    return _labels(inputs[0]) == _labels(inputs[1])


def differences(saved: Any, current: Any) -> Iterator[str]:
    """Yield a line for each difference between two configs.

    A line names the source, the argument, and both values.
    """
    if not isinstance(saved, dict) or not isinstance(current, dict):
        yield "the saved state does not describe its dataset: it is damaged"
        return
    label = _label(current)
    if saved.get("kind") != current.get("kind"):
        yield f"{_label(saved)}: was a {saved.get('kind')}, is a {current.get('kind')}"
        return
    yield from _changed_node(label, saved, current)


def _changed_node(
    label: str, saved: dict[str, Any], current: dict[str, Any]
) -> Iterator[str]:
    """Yield the differences of two nodes of one class, and of their inputs."""
    old = saved.get("inputs") or []
    if old and all(isinstance(digest, str) for digest in old):  # as `_cut` leaves them
        yield from _changed_digests(label, old, current)
        columns = _input_columns(current)
        current = {k: v for k, v in current.items() if k not in columns}
        yield from _changed_settings(label, saved, current, [])
        return
    new = current.get("inputs") or []
    names = _labels(new)
    yield from _changed_settings(label, saved, current, names)
    renamed = []
    if len(old) != 1 or len(new) != 1:
        renamed = list(_renamed(label, _labels(old), names))
        yield from renamed
    if not renamed:
        for previous, config in zip(old, new, strict=True):
            yield from differences(previous, config)


def _changed_digests(
    label: str, old: Sequence[str], current: dict[str, Any]
) -> Iterator[str]:
    """Yield differences of inputs that a long config has by their digests only."""
    new = current.get("inputs") or []
    if len(old) != len(new):
        yield f"{label}: had {len(old):,} inputs, has {len(new):,}"
        return
    for name, saved, present in zip(
        _labels(new), old, _cut(current)["inputs"], strict=True
    ):
        if saved != present:
            yield f"{name}: its weight or its settings changed"


def _changed_settings(
    label: str,
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    inputs: Sequence[str],
) -> Iterator[str]:
    """Yield a line for each setting of one node that differs."""
    for name in {**saved, **current}:
        if name not in ("kind", "inputs"):
            was = saved.get(name, _ABSENT)
            value = current.get(name, _ABSENT)
            yield from _changed(f"{label}: {name}", was, value, inputs)


def _changed(
    label: str, saved: Any, current: Any, inputs: Sequence[str]
) -> Iterator[str]:
    """Yield the difference of a setting; of one with parts, those that changed."""
    if saved == current:
        return
    parts = _parts(saved, current, inputs)
    for name, old, new in parts:
        yield from _changed(f"{label}{name}", old, new, inputs)
    if saved is _ABSENT:
        yield f"{label} is new: {_short(current)}"
    elif current is _ABSENT:
        yield f"{label} is gone: it was {_short(saved)}"
    elif not parts:
        yield f"{label} was {_short(saved)}, is {_short(current)}"


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
    if _are_stages([*saved, *current]):
        return _stage_parts(saved, current)
    if len(saved) == len(current) == len(inputs):
        return list(
            zip([f" of {name}" for name in inputs], saved, current, strict=True)
        )
    return []


def _are_stages(values: Sequence[Any]) -> bool:
    return all(isinstance(value, dict) and "name" in value for value in values)


def _stage_parts(saved: list[Any], current: list[Any]) -> list[tuple[str, Any, Any]]:
    parts = []
    for old, new in zip_longest(saved, current, fillvalue=_ABSENT):
        stage: Any = new if old is _ABSENT else old
        parts.append((f"[{stage['name']!r}]", old, new))
    return parts


def _renamed(
    label: str, old_names: Sequence[str], new_names: Sequence[str]
) -> Iterator[str]:
    """Yield what of the names of inputs is gone or new, or that their order is another
    one.
    """
    old = Counter(old_names)
    new = Counter(new_names)
    for word, names in (("is gone", old - new), ("is new", new - old)):
        yield from (f"{label}: {name} {word}" for name in names)
    if old == new and old_names != new_names:
        yield (
            f"{label}: the order of its inputs was {', '.join(old_names)}, is "
            f"{', '.join(new_names)}"
        )


def _labels(trees: Any) -> list[str]:
    return [_label(tree) for tree in trees] if isinstance(trees, list) else []


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
    names = [", ".join(leaf_names(source)) for source in inputs]
    pairs = zip(names, tree["weights"], strict=False)
    return {name: weight for name, weight in pairs if isinstance(weight, int | float)}


def shares_of(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the part that each weight is of all."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def batch_size_of(tree: Any) -> int | None:
    """Return the samples per batch of a config; None if unknown."""
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
    """Return a JSON-able tree as text: readable if it is short, else compressed."""
    text = json.dumps(tree, separators=(",", ":"))
    return text if len(text) <= _PLAIN else _zipped(text)


@lru_cache(4)
def _zipped(text: str) -> str:
    """Return a text compressed; the details of states of a run are equal."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str, name: str) -> Tree:
    """Return the tree of a text made by `packed`.

    Raises:
        StateError: If the text is invalid, or above the limits on states (see
            `energize.core.limits`), before it is parsed. The message has `name`.
    """
    try:
        plain = text if text.startswith("{") else _unzipped(text)
        value = load_large_json(plain.encode())
    except (ValueError, zlib.error, binascii.Error) as error:
        raise StateError(
            f"the saved state's {name!r} is damaged or cut off: "
            f"{type(error).__name__}: {str(error)[:200]}"
        ) from error
    if not isinstance(value, dict):
        raise StateError(
            f"the saved state's {name!r} must be a JSON object, got {plain[:80]}"
        )
    return value


def _unzipped(text: str) -> str:
    most = limits.JSON_BYTES
    unzip = zlib.decompressobj()
    data = unzip.decompress(base64.b64decode(text, validate=True), most)
    if unzip.unconsumed_tail:
        raise ValueError(limits.over("JSON_BYTES"))
    if not unzip.eof or unzip.unused_data:
        raise ValueError("it is truncated, or has data after its end")
    return data.decode()
