"""torch, and webdataset which imports it, imported when they are first used.

Importing torch takes longer than anything that commands such as `energize plan` do. Modules that
need it to define classes import it themselves.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["torch", "webdataset"]


class _LateModule(ModuleType):
    """Stands for a module of that name, and has its attributes."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import torch
    import torch.distributed
    import torch.multiprocessing
    import torch.utils.data
    import webdataset
else:
    torch = _LateModule("torch")
    webdataset = _LateModule("webdataset")
