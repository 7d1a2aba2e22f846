"""torch, webdataset, which imports it, and fsspec, imported when they are first used.

Importing torch takes longer than anything that commands such as `energize plan` do, and fsspec is
for few of them. Modules that need one to define classes import it themselves.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["fsspec", "torch", "webdataset"]


class _LateModule(ModuleType):
    """Stands for a module of that name, and has its attributes."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import fsspec
    import fsspec.utils
    import torch
    import torch.distributed
    import torch.multiprocessing
    import torch.utils.data
    import webdataset
else:
    fsspec = _LateModule("fsspec")
    torch = _LateModule("torch")
    webdataset = _LateModule("webdataset")
