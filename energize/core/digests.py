"""Digests of values, equal in every process for values of equal content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from energize.core.lazy import is_instance_of, torch
from energize.core.samples import fields_of, is_record

_DEEPEST = 16
"""Levels of nested values that are looked at; deeper ones count as equal."""


def content_digest(value: Any, *, most: int | None = None) -> str:
    """Return a digest of the content of a value.

    Numbers, text, bytes, arrays, tensors, images, containers and records (dataclasses, named
    tuples, mappings) are compared by content. Other objects count by the name of their class, as
    their content is unknown.

    Args:
        value: Any value.
        most: How many bytes at the beginning of each array, text and image are looked at, beside
            their sizes. None for all.

    Returns:
        32 hexadecimal characters, the same in every process and on every machine.

    Example:
        >>> content_digest({"a": [1, 2.5]}) == content_digest({"a": [1, 2.5]})
        True
        >>> content_digest([1, 2]) == content_digest([2, 1])
        False

    """
    hasher = hashlib.blake2b(digest_size=16)
    _Digest(hasher.update, most).add(value, 0)
    return hasher.hexdigest()


class _Digest:
    def __init__(self, update: Callable[[Any], None], most: int | None) -> None:
        self._update = update
        self._most = most

    def add(self, value: Any, depth: int) -> None:
        """Add a value and the name of its type."""
        self._update(f"{type(value).__qualname__}:".encode())
        if value is None or depth > _DEEPEST:
            return
        if isinstance(value, str):
            self._add_bytes(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, bytes | bytearray | memoryview):
            self._add_bytes(value)
        elif isinstance(value, bool | int | float | complex | np.generic):
            self._update(repr(value).encode())
        elif isinstance(value, np.ndarray):
            self._add_array(value, depth)
        elif is_instance_of(value, "torch", "Tensor"):
            self._add_tensor(value)
        elif is_instance_of(value, "PIL.Image", "Image"):
            self._update(f"{value.mode}{value.size}".encode())
            self._add_bytes(value.tobytes())
        else:
            self._add_container(value, depth)
        self._update(b";")

    def _add_container(self, value: Any, depth: int) -> None:
        if isinstance(value, set | frozenset):
            digests = [content_digest(entry, most=self._most) for entry in value]
            self._update("".join(sorted(digests)).encode())
        elif isinstance(value, Mapping) or is_record(value):
            pairs = value if isinstance(value, Mapping) else fields_of(value)
            for key, entry in pairs.items():
                self.add(key, depth + 1)
                self.add(entry, depth + 1)
        elif isinstance(value, list | tuple):
            for entry in value:
                self.add(entry, depth + 1)

    def _add_array(self, array: Any, depth: int) -> None:
        self._update(f"{array.dtype}{array.shape}".encode())
        if array.dtype.hasobject:
            self.add(array.tolist(), depth + 1)
        else:
            self._add_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _add_tensor(self, tensor: Any) -> None:
        self._update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized:
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            self._add_bytes(plain.view(torch.uint8).numpy().data)

    def _add_bytes(self, data: Any) -> None:
        self._update(f"{len(data)}:".encode())
        self._update(data if self._most is None else data[: self._most])
