"""What of a dataset decides which samples come: kept in a state, and compared when it is loaded.

An outline is the description without what changes no sample: functions and the maps that call them,
logging, where a loop ends. Of a mix of many datasets a state keeps names and short digests of them,
so that it stays small; a digest of everything tells that two differ, even where no name can be
given for it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from energize.core import limits
from energize.core.description import ATOMS, Description, described, digest
from energize.core.limits import load_json
from energize.errors import StateError

Outline = dict[str, Any]
"""A node, or what a state keeps of it: its kind, its settings, its inputs."""

_CALLS = 64
"""Calls of functions whose names are looked up: folders of a mix mostly have the same ones."""

_PLAIN = 1024
"""Characters up to which JSON stays readable; longer texts are compressed."""

_BUDGET = {"full": 7 * 1024, "brief": 60 * 1024, "digests": 60 * 1024}
"""Characters up to which a form of an outline is kept; the next shorter one follows."""

_SHORTEST = "narrow"
"""The form of mixes of mixes of mixes: nothing of what the outermost one reads but digests."""

_WIDE = 16
"""Inputs beyond which a brief outline keeps their names and digests only."""

_NAMED = 3

_IDENTITY = 8
"""Characters of a source's identity that tell it from others: the digest of all has the rest."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of a dataset at little cost: the `digest` of all that decides which samples
    come; and what changes no order, the `functions` that are called on items, named, each once, in
    a wide mix those met first, and a digest of the `places` where folders are mounted.
    """

    digest: str
    functions: tuple[str, ...]
    places: str


def survey(dataset: Description) -> Survey:
    """Look at every node once, but for what is below an input of many, which knows its own survey.
    Loading a state that fits costs no more than that, which is why it makes no tree, nor anything
    else for each node.
    """
    words: list[Any] = []
    functions: dict[str, None] = {}
    places: list[str] = []
    waiting: list[Any] = [dataset]
    outermost, calls = True, 0
    while waiting:
        node = waiting.pop()
        kind, values, inputs = type(node), node.__dict__, node.inputs
        if len(inputs) > _WIDE and node is not dataset:
            known: Survey = node.survey  # mostly from when it was made
            functions.update(dict.fromkeys(known.functions))
            if not words:  # nothing above it decides anything
                return Survey(known.digest, tuple(functions), known.places)
            words.append(known.digest)
            places.append(known.places)
            outermost = False
            continue
        decides = not (kind.passes_on or (outermost and kind.ends_loops))
        outermost = outermost and not decides
        changes_none = kind.changes_no_sample
        told = decides and kind.settings is Description.settings
        if decides:
            words.append(kind.__name__)
            words.append(len(inputs))
            if not told:
                words += _deciding(node).values()
        for name in node.parameters:
            value = values[name]
            if type(value) in ATOMS:
                if told and name not in changes_none:
                    words.append(value)
            elif callable(value):
                if calls < _CALLS:
                    functions[str(described(value))] = None
                calls += 1
            elif told and name not in changes_none:
                words.append(described(value))
        waiting.extend(inputs[::-1])
        if not inputs and "path" in values:
            places.append(str(values["path"]))
    return Survey(digest(words), tuple(functions), digest(places))


def outline(dataset: Description) -> Outline:
    """What decides which samples come, as a JSON-able tree; the same for equal orders."""
    while dataset.passes_on or dataset.ends_loops:
        dataset = dataset.inputs[0]
    return _outlined(dataset)


def _outlined(node: Description) -> Outline:
    while node.passes_on:
        node = node.inputs[0]
    tree: Outline = {"kind": type(node).__name__, **_deciding(node)}
    if node.inputs:
        tree["inputs"] = [_outlined(each) for each in node.inputs]
    return tree


def _deciding(node: Description) -> Outline:
    """The settings of a node but those that change no sample."""
    values = node.__dict__
    return {
        name: value
        for name, value in node.settings().items()
        if name not in node.changes_no_sample and not callable(values.get(name))
    }


def packed_outline(dataset: Description) -> str:
    """The outline as a short text: whole, or as much of it as a state may hold."""
    tree = outline(dataset)
    leaves = sum(1 for _ in _leaves(tree))
    for form, budget in _BUDGET.items():
        if leaves > budget:
            continue  # a character for each would be too much
        text = packed({"form": form, "tree": _formed(tree, form)})
        if len(text) <= budget:
            return text
    return packed({"form": _SHORTEST, "tree": _formed(tree, _SHORTEST)})


def outlines(text: str, dataset: Description) -> tuple[Outline, Outline]:
    """The outline packed in `text`, and that of `dataset` in the same form.

    Raises `StateError` for a text that is no outline.
    """
    form, tree = saved_outline(text)
    return tree, json.loads(json.dumps(_formed(outline(dataset), form)))


def saved_outline(text: str) -> tuple[str, Outline]:
    """The form of an outline packed in `text`, and the outline; `StateError` for what is none."""
    saved = unpacked(text, "dataset")
    form, tree = saved.get("form"), saved.get("tree")
    if form not in (*_BUDGET, _SHORTEST) or not isinstance(tree, dict) or not _is_outline(tree):
        raise StateError("the saved state does not describe its dataset: it is damaged")
    return str(form), tree


def _is_outline(tree: Any) -> bool:
    """Whether a tree of whatever depth has a kind and inputs in each node, as outlines have."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict) or not isinstance(node.get("kind"), str):
            return False
        inputs = node.get("inputs", [])
        if isinstance(inputs, dict):
            count, names = inputs.get("count"), inputs.get("names", [])
            told = isinstance(names, list) and all(isinstance(each, str) for each in names)
            if not isinstance(count, int) or not isinstance(inputs.get("digests"), str) or not told:
                return False
        elif isinstance(inputs, list):
            waiting += inputs
        else:
            return False
    return True


def tree_differences(saved: Any, current: Any, label: str = "") -> Iterator[str]:
    """A line for each difference of two outlines: the name of the source, the argument, and what it
    was and is. `label` names the outermost node.
    """
    if not isinstance(saved, dict) or not isinstance(current, dict):
        yield "the saved state does not describe its dataset: it is damaged"
        return
    label = label or _label(current)
    if saved.get("kind") != current.get("kind"):
        yield f"{_label(saved)}: was a {saved.get('kind')}, is a {current.get('kind')}"
        return
    yield from settings_differences(saved, current, label)
    yield from _inputs_differ(label, saved.get("inputs", []), current.get("inputs", []))


def settings_differences(saved: Outline, current: Outline, label: str = "") -> Iterator[str]:
    """As `tree_differences`, without the inputs."""
    label, names = label or _label(current), _names_of_inputs(current)
    for name in {**saved, **current}:
        if name in ("kind", "inputs"):
            continue
        if name not in current or name not in saved:
            where, value = ("is new", current) if name in current else ("is gone, was", saved)
            yield f"{label}: {name} {where} {_short(value[name])}"
        else:
            yield from _changed(label, name, saved[name], current[name], names)


def same_inputs(saved: Any, current: Any) -> bool:
    """Whether two outlines are of one kind, over inputs of the same names."""
    trees = [each for each in (saved, current) if isinstance(each, dict)]
    inputs = [each.get("inputs", []) for each in trees]
    if len(trees) < 2 or not all(isinstance(each, list) for each in inputs):
        return False
    names = [[_label(each) for each in found] for found in inputs]
    return names[0] == names[1] and saved.get("kind") == current.get("kind")


def _changed(
    label: str, name: str, saved: Any, current: Any, inputs: Sequence[str]
) -> Iterator[str]:
    """One setting; where it has a value for each input, those that changed."""
    if saved == current:
        return
    if isinstance(saved, dict) and isinstance(current, dict):
        for inner in {**saved, **current}:
            yield from _changed(
                label, f"{name}.{inner}", saved.get(inner), current.get(inner), inputs
            )
        return
    each = isinstance(saved, list) and isinstance(current, list)
    if each and len(saved) == len(current) == len(inputs):
        for one, other, which in zip(saved, current, inputs, strict=True):
            if one != other:
                yield f"{label}: {name} of {which} was {_short(one)}, is {_short(other)}"
        return
    yield f"{label}: {name} was {_short(saved)}, is {_short(current)}"


def _inputs_differ(label: str, saved: Any, current: Any) -> Iterator[str]:
    if isinstance(saved, dict) and isinstance(current, dict):
        yield from _digests_differ(label, saved, current)
        return
    if not (isinstance(saved, list) and isinstance(current, list)):
        before, now = (
            "a few" if isinstance(each, list) else f"{each.get('count')}"
            for each in (saved, current)
        )
        yield f"{label}: had {before} inputs, has {now}"
        return
    old, new = [_label(each) for each in saved], [_label(each) for each in current]
    if len(saved) != 1 or len(current) != 1:
        renamed = list(_renamed(label, old, new))
        yield from renamed
        if renamed:
            return
    for one, other in zip(saved, current, strict=True):
        yield from tree_differences(one, other)


def _renamed(label: str, before: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """What of the names of inputs is gone or new, or that their order is another one."""
    old, new = Counter(before), Counter(now)
    for word, names in (("is gone", old - new), ("is new", new - old)):
        yield from (f"{label}: {name} {word}" for name in names)
    if old == new and before != now:
        yield f"{label}: the order of its inputs was {', '.join(before)}, is {', '.join(now)}"


def _digests_differ(label: str, saved: Outline, current: Outline) -> Iterator[str]:
    before, now = saved.get("names") or [], current.get("names") or []
    if saved.get("count") != current.get("count"):
        yield f"{label}: had {saved.get('count')} inputs, has {current.get('count')}"
    if before != now or saved.get("count") != current.get("count"):
        yield from _renamed(label, before, now)
        return
    one, other = str(saved.get("digests")), str(current.get("digests"))
    width = max(1, len(other) // max(1, int(current.get("count", 1))))
    names = now or [f"input {number}" for number in range(int(current.get("count", 0)))]
    for number, name in enumerate(names):
        if (
            one[number * width : (number + 1) * width]
            != other[number * width : (number + 1) * width]
        ):
            yield (
                f"{label}: {name}: its weight or its settings changed (of a mix of so many, a "
                "state keeps no more than that)"
            )


def _formed(tree: Outline, form: str) -> Outline:
    """An outline in one of the forms that a state keeps."""
    inputs = tree.get("inputs", [])
    shorter = {name: value for name, value in tree.items() if name != "inputs"}
    if isinstance(shorter.get("identity"), str):
        shorter["identity"] = shorter["identity"][:_IDENTITY]
    if form == "full" or len(inputs) <= (1 if form == _SHORTEST else _WIDE):
        return shorter | ({"inputs": [_formed(each, form) for each in inputs]} if inputs else {})
    own = {
        name: value
        for name, value in shorter.items()
        if isinstance(value, list) and len(value) == len(inputs)
    }
    width = 8 if len(inputs) < 1000 else 2
    digests = [
        _digest([each, *(own[name][number] for name in own)], width)
        for number, each in enumerate(inputs)
    ]
    kept: Outline = {"count": len(inputs), "digests": "".join(digests)}
    if form == "brief" or len(inputs) <= _WIDE:
        kept["names"] = [_label(each) for each in inputs]
    return {name: value for name, value in shorter.items() if name not in own} | {"inputs": kept}


def _digest(value: Any, width: int) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=4).hexdigest()[:width]


def _names_of_inputs(tree: Outline) -> list[str]:
    inputs = tree.get("inputs", [])
    return [_label(each) for each in inputs] if isinstance(inputs, list) else []


def _label(tree: Any) -> str:
    """A node by the sources that it reads, as messages name it."""
    if not isinstance(tree, dict):
        return "a dataset"
    if not tree.get("inputs"):
        return repr(tree["name"]) if "name" in tree else str(tree.get("kind"))
    names = list(islice(_leaves(tree), _NAMED + 1))
    more = ", ..." if len(names) > _NAMED else ""
    return f"{tree.get('kind')} of {', '.join(names[:_NAMED])}{more}"


def _leaves(tree: Outline) -> Iterator[str]:
    inputs = tree.get("inputs")
    if isinstance(inputs, list):
        for each in inputs:
            if isinstance(each, dict):
                yield from _leaves(each)
    elif isinstance(inputs, dict):
        yield from inputs.get("names") or [f"{inputs.get('count')} datasets"]
    else:
        yield repr(tree.get("name", tree.get("kind")))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def packed(tree: Outline) -> str:
    """A JSON-able tree as a text: readable where it is short, else compressed."""
    text = json.dumps(tree, separators=(",", ":"))
    if len(text) <= _PLAIN:
        return text
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str, what: str) -> Outline:
    """What `packed` packed; `StateError` naming `what` for anything else, and for what is larger or
    deeper than states are (see `energize.core.limits`), before it is made.
    """
    try:
        plain = text if text.startswith("{") else _unzipped(text)
        if len(plain) > limits.JSON_BYTES:
            raise ValueError(limits.over("JSON_BYTES", len(plain)))
        if sum(map(plain.count, ",[{")) > limits.JSON_VALUES:
            raise ValueError(limits.over("JSON_VALUES"))
        value = load_json(plain)
    except (ValueError, zlib.error, binascii.Error) as error:
        raise StateError(
            f"the saved state's {what!r} cannot be read, it is damaged or cut off: "
            f"{type(error).__name__}: {str(error)[:200]}"
        ) from error
    if not isinstance(value, dict):
        raise StateError(f"the saved state's {what!r} is not a JSON object: {plain[:80]}")
    return value


def _unzipped(text: str) -> str:
    most, unzip = limits.JSON_BYTES, zlib.decompressobj()
    data = unzip.decompress(base64.b64decode(text, validate=True), most)
    if unzip.unconsumed_tail:
        raise ValueError(limits.over("JSON_BYTES"))
    if not unzip.eof or unzip.unused_data:
        raise ValueError("it ends too early, or goes on behind its end")
    return data.decode()


# Whether a saved state goes on in a dataset that was changed: what came before is the same.


def differences_until(
    dataset: Any, items: int, saved: Outline, current: Outline, later: list[str]
) -> Iterator[str]:
    """The differences of two outlines of an indexed `dataset`, the current one and that of a state
    saved after `items` items, a line each; those that only matter after it are told in `later`.

    Nodes are visited as long as they tell how far in each input they have `reached`. Each says
    which of its settings may be others from there on (`settings_until`).
    """
    node = dataset
    while node.passes_on:
        node = node.inputs[0]
    taken = node.reached(items)
    if taken is None or not same_inputs(saved, current):
        yield from tree_differences(saved, current)
        return
    before, lines = node.settings_until(items, saved, later)
    yield from settings_differences(before, current)
    yield from lines
    inputs = zip(node.inputs, saved["inputs"], current["inputs"], taken, strict=True)
    for each, one, other, given in inputs:
        yield from differences_until(each, given, one, other, later)
