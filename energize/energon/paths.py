"""Megatron-Energon's import paths: `energize.wrappers.blend_dataset` has `BlendDataset`.

Code written for Energon names the modules its classes stand in there. Each path is a module without
a file: what it is asked for is looked up in the modules of energize that have it, else in energize.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_STANDS_FOR = {
    "av": "extras.av",
    "cache": "extras.cache core.stores data.stores",
    "dataset_config": "energon.factories",
    "edataclass": "energon.factories",
    "epathlib": "extras.paths",
    "flavors": "energon.factories task.pipeline core.samples extras.av",
    "media": "data.media preparation.media",
    "metadataset": "energon.loading task.pipeline",
    "monitor": "extras.monitor loader.state",
    "plots": "extras.plots",
    "preview": "report.forecast",
    "sample_utils": "core.samples core.loss_weights",
    "savable": "energon.factories",
    "prepare": "preparation preparation.index preparation.media",
    "savable_loader": "",
    "source_info": "energon.factories core.samples",
    "state": "energon.factories",
    "task_encoder": "task.hooks",
    "transforms": "extras.transforms",
    "worker": "",
    "wrappers": "energon.factories datasets.transform task.hooks",
}
"""The modules in which names of a path, and of all below it, are looked for before energize."""

_BESIDE_FILES = ("dataset_loader", "loader", "loader_interface", "metadataset", "metadataset_v2")
"""The paths below `energize.metadataset`, which has files of its own."""


class _Path(ModuleType):
    """A module at one of the paths."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        above = self.__name__.split(".")[1]
        for module in ["." + each for each in _STANDS_FOR[above].split()] + [""]:
            found = getattr(import_module(f"energize{module}"), name, None)
            if found is not None:
                return found
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """The package itself, in which no path takes the place of a name: importing a module sets it on
    its parent, and `energize.edataclass` and `energize.prepare` are functions, too.
    """

    __all__: list[str]

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, _Path) and name in self.__all__):
            super().__setattr__(name, value)


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        first, _, below = name.partition(".")
        known = package == "energize" and first in _STANDS_FOR
        if not known or (first == "metadataset" and below not in _BESIDE_FILES):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Path(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def install() -> None:
    """Find the paths from now on, after all modules that have files."""
    sys.modules["energize"].__class__ = _Package
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.append(_Finder())
