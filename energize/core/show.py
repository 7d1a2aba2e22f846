"""What a sample looks like, as text: for messages, logs and the command line."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from rich.pretty import pretty_repr

from energize.core.samples import map_leaves

_MOST_ITEMS = 25
_MOST_CHARACTERS = 1000
_MOST_OTHER = 200
_ENDS = 3
"""How many values of a tensor are shown from its start, and from its end."""


def format_sample_detailed(sample: Any, indent: str = "") -> str:
    """Return the sample as Python would write it, in lines that each begin with `indent`.

    Tensors and arrays are shown by shape, type, range and first values. What is long is cut, and
    says by how much.

    >>> print(format_sample_detailed({"label": 5, "scores": np.array([0.5, 1.0]), "of": ["a"]}))
    {
        'label': 5,
        'scores': np.ndarray(shape=(2,), dtype=float64, min=0.5, max=1.0, values=[0.5, 1.0]),
        'of': ['a']
    }
    """
    shown = map_leaves(sample, lambda leaf: _leaf(leaf, _MOST_OTHER, values=True))
    text = pretty_repr(shown, max_length=_MOST_ITEMS, max_string=_MOST_CHARACTERS)
    return "\n".join(indent + line for line in text.split("\n"))


def format_sample_compact(
    sample: Any, depth: int = 3, max_items: int = 10, max_str_len: int = 50
) -> str:
    """Return the sample in one line: `depth` levels, `max_items` of each, texts up to
    `max_str_len`.

    >>> format_sample_compact({"text": "a" * 9, "image": np.zeros((3, 2, 2))}, max_str_len=5)
    "{'text': 'aaaaa'+4, 'image': np.ndarray(shape=(3, 2, 2), dtype=float64)}"
    """
    return pretty_repr(
        map_leaves(sample, lambda leaf: _leaf(leaf, max_str_len, values=False)),
        max_width=sys.maxsize,
        max_depth=depth,
        max_length=max_items,
        max_string=max_str_len,
    )


class _Text:
    """Stands for a value that is shown as `text`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _leaf(value: Any, most: int, *, values: bool) -> Any:
    """What is shown in place of a value: of arrays what they are, with `values` what is in them."""
    torch = sys.modules.get("torch")
    tensor = torch is not None and isinstance(value, torch.Tensor)
    if tensor or isinstance(value, np.ndarray):
        said = [f"shape={value.shape}", f"dtype={value.dtype}"]
        said += [f"device={value.device}"] if tensor else []
        said += _values(value.flatten()) if values else []
        return _Text(f"{'Tensor' if tensor else 'np.ndarray'}({', '.join(said)})")
    if isinstance(value, str | bytes | int | float | None):
        return value
    text = repr(value)
    return _Text(text if len(text) <= most else f"{text[:most]}...")


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
