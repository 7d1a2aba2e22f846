"""Compare the values of samples with the annotations of their types."""

from __future__ import annotations

from functools import lru_cache
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import PIL.Image

from energize.core.lazy import torch
from energize.core.media import MediaDecoder
from energize.core.records import fields_of
from energize.core.samples import METADATA, CrudeSample

_ITEMS = 100
"""Items of a list that are compared."""


def type_faults(sample: Any) -> dict[str, str]:
    """Return the faults of fields with values that do not fit the annotated type.

    An image may be a tensor, an array or a PIL image, or a video that is decoded later.

    Args:
        sample: A sample of any type; a `CrudeSample` has no types.

    Returns:
        A text for each fault, by the name of the field.

    Example:
        >>> from energize import TextSample
        >>> type_faults(TextSample(__key__="0", text=5))
        {'text': 'expected str, found int: 5'}
    """
    if isinstance(sample, dict | CrudeSample):
        return {}
    values = {
        name: value for name, value in fields_of(sample).items() if name not in METADATA
    }
    faults = {
        name: type_fault(type(sample), name, value) for name, value in values.items()
    }
    return {name: fault for name, fault in faults.items() if fault}


def type_fault(sample_type: type[Any], field: str, value: Any) -> str:
    """Return the reason why a value does not fit a field; empty if it fits."""
    hints = _hints(cast("Any", sample_type))
    if field not in hints or _fits(value, hints[field]):
        return ""
    return (
        f"expected {_shown(hints[field])}, found {type(value).__name__}: {value!r:.80}"
    )


def text_fields(sample_type: type[Any]) -> list[str]:
    """Return the fields that are annotated as a text, or as a text or None."""
    hints = _hints(cast("Any", sample_type))
    texts = [name for name in hints if name not in METADATA]
    return [
        name for name in texts if _fits("", hints[name]) and not _fits(0, hints[name])
    ]


def may_be_none(sample_type: type[Any], field: str) -> bool:
    """Return whether a field of a type may be None."""
    hints = _hints(cast("Any", sample_type))
    return field in hints and _fits(None, hints[field])


@lru_cache(maxsize=64)
def _hints(sample_type: Any) -> dict[str, Any]:
    try:
        return get_type_hints(sample_type)
    except Exception:
        return {}


def _shown(annotation: Any) -> str:
    return (
        getattr(annotation, "__name__", "")
        if not get_args(annotation)
        else str(annotation)
    )


def _fits(value: Any, annotation: Any) -> bool:  # noqa: PLR0911
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(annotation))
    if annotation is None or annotation is type(None):
        return value is None
    if origin in (list, tuple):
        return _fits_list(value, annotation)
    base = origin or annotation
    if not isinstance(base, type) or base is Any:
        return True
    if base is torch.Tensor:
        media = (torch.Tensor, np.ndarray, PIL.Image.Image, MediaDecoder)
        return isinstance(value, media)
    if base is float:
        return isinstance(value, float | int)
    return isinstance(value, base)


def _fits_list(value: Any, annotation: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    [element] = get_args(annotation)[:1] or [Any]
    return all(_fits(item, element) for item in value[:_ITEMS])
