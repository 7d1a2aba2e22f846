"""Digests of values, equal in every process for values of equal content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from energize.core.lazy import is_instance_of, torch
from energize.core.records import fields_of, is_record

_MOST_VALUES = 1_000_000
"""Values that may wait to be looked at: more are in a value that contains itself."""


def content_digest(value: Any, *, most: int | None = None) -> str:
    """Return a digest of the content of a value.

    Numbers, text, bytes, arrays, tensors, images, containers and records (dataclasses,
    named tuples, mappings) are compared by content. Other objects count by the name of
    their class, as their content is unknown.

    Args:
        value: Any value.
        most: How many bytes at the beginning of each array, text and image are looked
            at, beside their sizes. None for all.

    Returns:
        32 hexadecimal characters, the same in every process and on every machine.

    Example:
        >>> content_digest({"a": [1, 2.5]}) == content_digest({"a": [1, 2.5]})
        True
        >>> content_digest([1, 2]) == content_digest([2, 1])
        False

    """
    hasher = hashlib.blake2b(digest_size=16)
    waiting = [value]
    while waiting and len(waiting) < _MOST_VALUES:
        entry = waiting.pop()
        hasher.update(f"{type(entry).__qualname__}:".encode())
        parts = _parts_of(entry)
        if parts is None:
            data = _bytes_of(entry)
            hasher.update(f"{len(data)}:".encode())
            hasher.update(data if most is None else data[:most])
        else:
            hasher.update(f"{len(parts)}:".encode())
            waiting.extend(parts)
    return hasher.hexdigest()


def _parts_of(value: Any) -> list[Any] | None:
    """Return what a value consists of; None if it is not divided."""
    if isinstance(value, set | frozenset):
        return sorted(map(content_digest, value))
    if isinstance(value, Mapping) or is_record(value):
        pairs = value if isinstance(value, Mapping) else fields_of(value)
        return [part for pair in pairs.items() for part in pair]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [value.shape, value.tolist()]
    return None


def _bytes_of(value: Any) -> Any:
    """Return the content of a value as bytes; none if its content is unknown."""
    data: Any = b""
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes | bytearray | memoryview):
        data = value
    elif isinstance(value, bool | int | float | complex | np.generic):
        data = repr(value).encode()
    elif is_instance_of(value, "torch", "Tensor"):
        data = _bytes_of_tensor(value)
    elif is_instance_of(value, "PIL.Image", "Image"):
        data = f"{value.mode}{value.size}".encode() + value.tobytes()
    elif isinstance(value, np.ndarray):
        data = f"{value.dtype}{value.shape}".encode() + value.tobytes()
    return data


def _bytes_of_tensor(tensor: Any) -> bytes:
    head = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return head
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    data: bytes = plain.view(torch.uint8).numpy().tobytes()
    return head + data
