"""Metadataset files: YAML that lists weighted sources. Names are loaded when they are
used.
"""

from importlib import import_module
from typing import Any

_MODULES = (
    *("metadataset.nodes", "metadataset.resolver", "metadataset.leaves"),
    *("metadataset.documents", "metadataset.models"),
    *("energon.loading", "task.pipeline"),
)


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for module in _MODULES:
            found = getattr(import_module(f"energize.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
