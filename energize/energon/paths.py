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
    "edataclass": "energon.names",
    "epathlib": "extras.paths",
    "flavors": "energon.factories task.pipeline core.samples energon.names extras.av",
    "media": "data.media preparation.media",
    "metadataset": "energon.loading task.pipeline",
    "monitor": "extras.monitor ledger.saved",
    "plots": "extras.plots",
    "sample_utils": "core.show core.loss_weights",
    "savable": "energon.names",
    "prepare": "preparation preparation.jsonl preparation.media",
    "savable_loader": "",
    "source_info": "energon.names core.samples",
    "state": "energon.names",
    "task_encoder": "task.hooks",
    "transforms": "extras.transforms",
    "worker": "",
    "wrappers": "energon.names datasets.transform task.collate",
}
"""The modules in which names of a path, and of all below it, are looked for before energize."""

_PATHS = frozenset(
    f"{above}.{name}".lstrip(".")
    for above, names in {
        "": " ".join(_STANDS_FOR),
        "av": "av_data av_decoder",
        "cache": "base file_cache_pool file_store no_cache",
        "epathlib": "epath",
        "flavors": "base_dataset captioning crude image image_classification interleaved jsonl "
        "multichoice_vqa ocr similarity_interleaved text vid_qa vqa vqa_and_ocr webdataset",
        "flavors.jsonl": "crude_jsonl_dataset",
        "flavors.webdataset": "base_webdataset config default_decoder_webdataset "
        "default_generic_webdataset empty_dataset_error joined_webdataset metadata prepare "
        "sample_decoder standard_webdataset",
        "prepare": "jsonl media",
        "media": "extractor filesystem_prepare metadata",
        "metadataset": "dataset_loader loader loader_interface metadataset metadataset_v2",
        "task_encoder": "base cooking loader",
        "wrappers": "base batch_dataset blend_dataset concat_dataset epochize_dataset "
        "filter_dataset gc_dataset group_batch_dataset iter_map_dataset limit_dataset "
        "log_sample_dataset map_dataset mix_batch_dataset packing_dataset repeat_dataset "
        "shuffle_buffer_dataset skip watchdog_dataset",
    }.items()
    for name in names.split()
)


class _Path(ModuleType):
    """A module at one of the paths."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _, above, *_ = self.__name__.split(".")
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
        known = package == "energize" and name in _PATHS
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Path(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def install() -> None:
    """Find the paths from now on, after all modules that have files."""
    sys.modules["energize"].__class__ = _Package
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.append(_Finder())
