"""Megatron-Energon's import paths: `energize.energon.wrappers.blend_dataset` has
`BlendDataset`.

Code written for Energon names the modules its classes stand in there; those that other
programs name (`energize.av`, `energize.cache`) are below energize itself, too. Each
path is a module without a file: what it is asked for is looked up in the modules of
energize that have it, else in energize.
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
    "av": "data.av",
    "cache": "extras.cache core.stores data.stores",
    "dataset_config": "energon.factories energon.typed",
    "edataclass": "energon.factories",
    "epathlib": "extras.paths",
    "errors": "errors",
    "fork_hook": "energon.running",
    "eyaml": "energon.typed",
    "flavors": "energon.factories energon.index task.pipeline core.samples data.av",
    "loader": "",
    "media": "data.media data.media_filter preparation.media",
    "metadataset": "energon.loading task.pipeline",
    "monitor": "extras.monitor loader.state",
    "plots": "extras.plots",
    "preview": "report.forecast",
    "sample_utils": "core.samples core.records core.loss_weights",
    "savable": "energon.factories",
    "prepare": "preparation preparation.index preparation.media",
    "savable_loader": "",
    "source_info": "energon.factories core.samples",
    "state": "energon.factories",
    "task_encoder": "task.hooks",
    "tools": "",
    "transforms": "extras.transforms",
    "typed_converter": "energon.typed",
    "worker": "",
    "wrappers": "energon.factories datasets.transform task.hooks",
}
"""The modules in which names of a path, and of all below it, are looked for before
energize."""

_BELOW = {
    "av": "av_data av_decoder av_init av_reader utils",
    "cache": "base file_cache_pool file_store no_cache",
    "epathlib": "epath rclone_config",
    "flavors": "base_dataset captioning crude image image_classification interleaved "
    "jsonl "
    "jsonl.crude_jsonl_dataset jsonl.ijsonl jsonl.ijsonl_reader jsonl.jsonl_prepare "
    "multichoice_vqa ocr similarity_interleaved text vid_qa vqa vqa_and_ocr webdataset "
    "webdataset.aggregator_pool webdataset.base_webdataset webdataset.config "
    "webdataset.default_decoder_webdataset webdataset.default_generic_webdataset "
    "webdataset.empty_dataset_error webdataset.field_access webdataset.indexing "
    "webdataset.itar "
    "webdataset.itar_reader webdataset.joined_webdataset webdataset.metadata "
    "webdataset.prepare "
    "webdataset.sample_decoder webdataset.sample_loader webdataset.sharder "
    "webdataset.standard_webdataset webdataset.structs webdataset.tar_patcher "
    "webdataset.thread_local_sqlite",
    "media": "extractor filesystem_prepare metadata",
    "metadataset": "dataset_loader join_dataset_loader loader loader_interface "
    "metadataset "
    "metadataset_v2",
    "prepare": "jsonl media",
    "task_encoder": "base cooking loader",
    "tools": "analyze_debug checkpoint info lint mount prepare prepare_media preview",
    "transforms": "common custom mappers merge",
    "wrappers": "base batch_dataset blend_dataset buffer concat_dataset "
    "epochize_dataset "
    "filter_dataset gc_dataset group_batch_dataset iter_map_dataset limit_dataset "
    "log_sample_dataset map_dataset mix_batch_dataset packing_dataset repeat_dataset "
    "shuffle_buffer_dataset skip watchdog_dataset",
}
"""The modules below them; any other path is an ImportError, as a name that is spelt
wrong."""


class _Path(ModuleType):
    """A module at one of the paths."""

    def __getattr__(self, name: str) -> Any:
        return name_of(self.__name__, name)


def name_of(path: str, name: str) -> Any:
    """Return what the module at a path has by a name; below `energize.energon` what
    means something else there comes first.
    """
    if not name.startswith("__"):
        own, first = _split(path)
        if first == "tools" and name == "command":
            command = _command(path.rpartition(".")[2].replace("_", "-"))
            if command is not None:
                return command
        modules = ["energon.running"] if own else []
        for module in [*modules, *_STANDS_FOR.get(first, "").split(), ""]:
            found = getattr(import_module(f"energize.{module}".rstrip(".")), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {path!r} has no attribute {name!r}")


def _command(name: str) -> Any:
    """Return a command of `energize` as a click command, for programs that invoke it;
    None if there is none of the name.
    """
    from typer.main import get_group

    from energize.cli.main import app

    return get_group(app).commands.get(name)


def _split(path: str) -> tuple[bool, str]:
    """Return whether a path is below `energize.energon`, and the first name of it below
    that, or below `energize`.
    """
    below = path.removeprefix("energize").removeprefix(".energon")
    return path != f"energize{below}", below.split(".")[1] if below else ""


class Package(ModuleType):
    """energize and `energize.energon`, in which no path takes the place of a name:
    importing a module sets it on its parent, and `energize.edataclass` and
    `energize.prepare` are functions.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, _Path) and name in sys.modules["energize"].__all__):
            super().__setattr__(name, value)


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith("energize."):
            return None
        below = fullname.removeprefix("energize.").removeprefix("energon.")
        first, _, rest = below.partition(".")
        if first not in _STANDS_FOR or (
            rest and rest not in _BELOW.get(first, "").split()
        ):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Path(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def install() -> None:
    """Find the paths from now on, after all modules that have files."""
    sys.modules["energize"].__class__ = Package
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.append(_Finder())
