"""What a sample looks like, as text: for messages and logs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

_MOST_KEYS = 25
_MOST_ITEMS = 10
_MOST_CHARACTERS = 1000
_MOST_OTHER = 200
_ENDS = 3
"""How many values of a tensor are shown from its start, and from its end."""


def format_sample_detailed(sample: Any, indent: str = "") -> str:
    """A line for each field, with shape, type, range and first values of tensors and arrays.

    What is long is cut, and says by how much. Every line begins with `indent`.

    >>> print(format_sample_detailed({"label": 5, "scores": np.array([0.5, 1.0]), "of": ["a"]}))
    label: 5
    scores: np.ndarray(shape=(2,), dtype=float64, min=0.5, max=1.0, values=[0.5, 1.0])
    of:
      - 'a'
    """
    return "\n".join(indent + line for line in _lines(sample))


def format_sample_compact(
    sample: Any, depth: int = 3, max_items: int = 10, max_str_len: int = 50
) -> str:
    """The sample in one line: `depth` levels, `max_items` of each, texts up to `max_str_len`.

    >>> format_sample_compact({"text": "a" * 9, "image": np.zeros((3, 2, 2))}, max_str_len=5)
    "{text: 'aaaaa...', image: np.ndarray(shape=(3, 2, 2), dtype=float64)}"
    """

    def inner(value: Any) -> str:
        return format_sample_compact(value, depth - 1, max_items, max_str_len)

    if _is_tensor(sample) or isinstance(sample, np.ndarray):
        return _array(sample, values=False)
    if _is_record(sample):
        fields = ", ".join(f"{name}={inner(each)}" for name, each in _fields(sample))
        return f"{type(sample).__name__}({fields if depth > 0 else '...'})"
    if isinstance(sample, Mapping):
        items = [f"{name}: {inner(each)}" for name, each in sample.items()] if depth > 0 else None
        return _bracketed("{}", items, max_items)
    if isinstance(sample, list | tuple):
        kind = "[]" if isinstance(sample, list) else "()"
        return _bracketed(kind, [inner(each) for each in sample] if depth > 0 else None, max_items)
    if isinstance(sample, str):
        return repr(sample if len(sample) <= max_str_len else sample[:max_str_len] + "...")
    text = repr(sample)
    return text if len(text) <= max_str_len else text[:max_str_len] + "..."


def default_get_batch_keys(batch: Any) -> list[str] | None:
    """The keys of the samples of a batch: its `__key__`, `__keys__` or `keys`, where that is a list
    of texts; None where there is none. Of a list of batches, those of the first.

    >>> default_get_batch_keys({"__key__": ["a", "b"]})
    ['a', 'b']
    """
    if isinstance(batch, list):
        batch = batch[0] if batch else None
    of_dict = isinstance(batch, dict)
    for name in ("__key__", "__keys__", *(["keys"] if of_dict else [])):
        keys = batch.get(name) if of_dict else getattr(batch, name, None)
        if isinstance(keys, list) and all(isinstance(key, str) for key in keys):
            return keys
    return None


def _lines(value: Any) -> list[str]:
    """The lines of a value that stands alone."""
    if _is_record(value):
        return [f"{type(value).__name__}:", *_indented(_entries(_fields(value)))]
    if isinstance(value, Mapping):
        return _cut(_entries, list(value.items()), _MOST_KEYS) or ["{}"]
    if isinstance(value, list | tuple):
        return _cut(_listed, list(value), _MOST_ITEMS) or ["[]" if type(value) is list else "()"]
    return [_scalar(value)]


def _entries(items: Iterable[tuple[Any, Any]]) -> list[str]:
    lines = []
    for name, value in items:
        inner = _lines(value)
        if len(inner) == 1 and not _is_nested(value):
            lines.append(f"{name}: {inner[0]}")
        elif _is_record(value):
            lines += [f"{name}: {inner[0]}", *inner[1:]]
        else:
            lines += [f"{name}:", *_indented(inner)]
    return lines


def _listed(values: Iterable[Any]) -> list[str]:
    lines = []
    for value in values:
        first, *rest = _lines(value)
        lines += [f"- {first}", *_indented(rest)]
    return lines


def _cut(lines: Callable[[list[Any]], list[str]], items: list[Any], most: int) -> list[str]:
    more = len(items) - most
    return lines(items[:most]) + ([f"... and {more} more"] if more > 0 else [])


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _scalar(value: Any) -> str:
    if _is_tensor(value) or isinstance(value, np.ndarray):
        return _array(value, values=True)
    text = isinstance(value, str | bytes)
    most = _MOST_CHARACTERS if text else _MOST_OTHER
    if text and len(value) > most:
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:most]!r}... (and {len(value) - most} more {unit})"
    shown = repr(value)
    return shown if len(shown) <= most or text else f"{shown[:most]}..."


def _array(value: Any, *, values: bool) -> str:
    """A torch tensor or numpy array: what it is, and with `values` what is in it."""
    tensor = _is_tensor(value)
    said = [f"shape={value.shape if tensor else tuple(value.shape)}", f"dtype={value.dtype}"]
    if tensor:
        said.append(f"device={value.device}")
    if values:
        said += _values(value.flatten())
    return f"{'Tensor' if tensor else 'np.ndarray'}({', '.join(said)})"


def _values(flat: Any) -> list[str]:
    """Range and first and last values, of whatever has them."""
    count = int(flat.shape[0])
    if not count:
        return ["values=[]"]
    try:
        span = [f"min={flat.min().item()}", f"max={flat.max().item()}"]
        ends = [each.tolist() for each in (flat[:_ENDS], flat[max(_ENDS, count - _ENDS) :])]
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return []  # complex numbers, texts, meta tensors: no order, or no values
    shown = [", ".join(map(repr, each)) for each in ends if each]
    return [*span, f"values=[{(', ' if count <= 2 * _ENDS else ', ..., ').join(shown)}]"]


def _is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor; what is one has torch imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> list[tuple[str, Any]]:
    return [(each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value)]


def _bracketed(kind: str, items: list[str] | None, most: int) -> str:
    if items is None:
        return f"{kind[0]}...{kind[1]}"
    more = [f"... {len(items) - most} more"] if len(items) > most else []
    return kind[0] + ", ".join(items[:most] + more) + kind[1]
