"""Data mixing and loading for training: proportions, order, and typed batches.

Names are loaded on first use; `__init__.pyi` lists them.
"""

from typing import Any

import lazy_loader

from energize.errors import nearest

_of_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _of_name(name)
    except AttributeError:
        if name in __all__:
            raise
        text = f"module {__name__!r} has no attribute {name!r}{nearest(name, __all__)}"
        raise AttributeError(text) from None


__version__ = "0.1.0"
