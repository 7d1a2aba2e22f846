"""Damage to what JSON, YAML and TOML say: well-formed text with other values in it."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml

from tests.fuzz.mutations import TEXT, mutated

_STRANGE: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 2, 10**30, -(10**30), 2**61, 2**63, 0.5, 1e308, -0.0),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "a", "0", "-1", "..", "../x", "/"),
    *("/dev/zero", "a\0b", "\ud800", "x" * 5000, "é" * 300, "{a,b}" * 12, "{0..99999999}", "1e9"),
    *([], {}, [[]], [{}], {"": ""}, [None], {"a": {"b": {"c": []}}}, list(range(300))),
    *({"__class__": "os.system"}, {"points": []}, {"points": [[0, 1], [0, 2]]}, "os.system"),
)
_ALIASES = "&a [x, x, x, x, x, x, x, x]"

Path = tuple[str | int, ...]


def places(tree: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all values in a tree, its own first."""
    yield path
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(value, (*path, key))


def changed(tree: Any, rng: random.Random) -> tuple[Any, str]:
    """A tree with another value, key or order somewhere, and what was done."""
    tree = copy.deepcopy(tree)
    told = [_change(tree, rng) for _ in range(rng.choice((1, 1, 1, 2)))]
    return tree, "; ".join(told)


def _change(tree: Any, rng: random.Random) -> str:
    path = rng.choice([each for each in places(tree) if each] or [()])
    if not path:
        return "nothing"
    holder = tree
    for step in path[:-1]:
        holder = holder[step]
    action = rng.choice((_other, _other, _other, _near, _near, _removed, _renamed, _moved, _deep))
    return f"{'.'.join(map(str, path))} {action(holder, path[-1], tree, rng)}"


def _other(holder: Any, key: Any, _: Any, rng: random.Random) -> str:
    holder[key] = copy.deepcopy(rng.choice(_STRANGE))
    return f"became {str(holder[key])[:30]!r}"


def _near(holder: Any, key: Any, _: Any, rng: random.Random) -> str:
    """A value that might be meant."""
    value = holder[key]
    if isinstance(value, bool) or value is None:
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = rng.choice((value + 1, value - 1, value * 2, -value, value / 2, str(value)))
    elif isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        holder[key] = rng.choice((value[:at], value + "x", value[:at] + "/" + value[at:], [value]))
    elif isinstance(value, list):
        holder[key] = rng.choice((value * 2, value[1:], value[::-1], dict(enumerate(value))))
    else:
        holder[key] = rng.choice((list(value.values()), list(value), [value]))
    return f"became {str(holder[key])[:30]!r}"


def _removed(holder: Any, key: Any, _: Any, __: random.Random) -> str:
    del holder[key]
    return "was removed"


def _renamed(holder: Any, key: Any, _: Any, rng: random.Random) -> str:
    if not isinstance(holder, dict):
        holder.insert(key, copy.deepcopy(holder[key]))
        return "was repeated"
    name = rng.choice((key + "s" if isinstance(key, str) else str(key), "zzz", "", 7, None, "é"))
    holder[name] = holder.pop(key)
    return f"was called {name!r}"


def _moved(holder: Any, key: Any, tree: Any, rng: random.Random) -> str:
    """A value from elsewhere in the tree."""
    other = rng.choice(list(places(tree)))
    value = tree
    for step in other:
        value = value[step]
    holder[key] = copy.deepcopy(value)
    return f"became that of {'.'.join(map(str, other))}"


def _deep(holder: Any, key: Any, _: Any, rng: random.Random) -> str:
    levels = rng.choice((5, 60, 99, 101, 400))
    as_list = rng.random() < 0.5
    for _ in range(levels):
        holder[key] = [holder[key]] if as_list else {"a": holder[key]}
    return f"went {levels} levels down"


def _as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def _as_yaml(tree: Any) -> bytes:
    return yaml.safe_dump(tree, sort_keys=False).encode("utf-8", "surrogatepass")


def _as_toml(tree: Any) -> bytes:
    """TOML as far as stage files have it; what it cannot say becomes text."""
    lines: list[str] = []
    _toml_table(tree if isinstance(tree, dict) else {"training": tree}, "", lines)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _toml_table(table: dict[Any, Any], name: str, lines: list[str]) -> None:
    inner = {k: v for k, v in table.items() if isinstance(v, dict)}
    several = {
        k: v
        for k, v in table.items()
        if isinstance(v, list) and v and all(isinstance(each, dict) for each in v)
    }
    for key, value in table.items():
        if key not in inner and key not in several:
            lines.append(f"{json.dumps(str(key))} = {json.dumps(value, default=str)}")
    for key, value in inner.items():
        whole = f"{name}.{json.dumps(str(key))}".lstrip(".")
        lines.append(f"[{whole}]")
        _toml_table(value, whole, lines)
    for key, values in several.items():
        whole = f"{name}.{json.dumps(str(key))}".lstrip(".")
        for value in values:
            lines.append(f"[[{whole}]]")
            _toml_table(value, whole, lines)


WRITERS: dict[str, Callable[[Any], bytes]] = {
    "json": _as_json,
    "yaml": _as_yaml,
    "toml": _as_toml,
}


def mutated_tree(
    data: bytes, kind: str, parsed: Any, rng: random.Random, others: Sequence[bytes]
) -> tuple[bytes, str]:
    """The text of a file of this kind with another content, or damaged as any text.

    >>> mutated_tree(b'{"a": 1}', "json", {"a": 1}, random.Random(6), [])
    (b'{"a": 2}', "a became '2'")
    """
    dice = rng.random()
    if dice < 0.35:
        return mutated(data, rng, others, TEXT)
    if dice < 0.42 and kind == "yaml":
        return _with_aliases(parsed, rng)
    try:
        tree, told = changed(parsed, rng)
        return WRITERS[kind](tree), told
    except (TypeError, ValueError, RecursionError, yaml.YAMLError):
        return mutated(data, rng, others, TEXT)


def _with_aliases(parsed: Any, rng: random.Random) -> tuple[bytes, str]:
    """YAML with an anchor, and aliases to it, to itself, or that expand without end."""
    text = _as_yaml(parsed).decode("utf-8", "surrogatepass")
    lines = text.splitlines() or [""]
    at = rng.randrange(len(lines))
    key, colon, _ = lines[at].partition(":")
    levels = rng.choice((1, 3, 9))
    bomb = [f"a: {_ALIASES}"] + [
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]"
        for i in range(levels)
    ]
    value = rng.choice(("&own [*own]", "*nowhere", "*a", f"*{chr(97 + levels)}"))
    lines[at] = f"{key}: {value}" if colon else value
    lines = [*bomb, *lines] if rng.random() < 0.7 else lines
    return "\n".join(lines).encode("utf-8", "surrogatepass"), f"line {at} became {value}"
