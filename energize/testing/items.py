"""Comparing items of any type."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from energize.core.lazy import torch

__all__ = ["fingerprint", "same_item"]


def fingerprint(item: Any) -> str:
    """A digest of an item's types and contents: tensors, arrays, dataclasses, containers, scalars.

    >>> fingerprint({"a": torch.zeros(2)}) == fingerprint({"a": torch.zeros(2)})
    True
    """
    digest = hashlib.blake2b(digest_size=12)
    _feed(digest, item)
    return digest.hexdigest()


def same_item(one: Any, other: Any) -> bool:
    """Whether two items have equal types and contents, bit for bit."""
    return fingerprint(one) == fingerprint(other)


def _feed(digest: hashlib.blake2b, item: Any) -> None:
    digest.update(f"<{type(item).__name__}".encode())
    if isinstance(item, torch.Tensor):
        digest.update(f"{item.dtype}{tuple(item.shape)}".encode())
        digest.update(item.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(item, np.ndarray):
        digest.update(f"{item.dtype}{item.shape}".encode())
        digest.update(np.ascontiguousarray(item).tobytes())
    elif isinstance(item, Mapping):
        for key, value in item.items():
            _feed(digest, key)
            _feed(digest, value)
    elif isinstance(item, list | tuple):
        for value in item:
            _feed(digest, value)
    elif dataclasses.is_dataclass(item):
        for field in dataclasses.fields(item):
            _feed(digest, getattr(item, field.name))
    elif isinstance(item, bytes):
        digest.update(item)
    elif hasattr(item, "tobytes"):  # a Pillow image
        digest.update(f"{getattr(item, 'mode', '')}{getattr(item, 'size', '')}".encode())
        digest.update(item.tobytes())
    else:
        digest.update(repr(item).encode())
    digest.update(b">")
