"""Megatron-Energon's module paths, such as `energize.energon.wrappers.blend_dataset`.

Programs for Megatron-Energon import from the modules in which its classes are defined.
Each path below `energize.energon` is a module without a file. Its names are those of
`energize.energon`, then those of the modules that the table lists for the path.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

_PACKAGE = "energize.energon"

_MODULES = {
    "av": "data.av",
    "cache": "extras.cache core.stores data.stores",
    "dataset_config": "energon.factories energon.typed",
    "epathlib": "extras.paths",
    "errors": "errors",
    "eyaml": "energon.typed",
    "flavors": "energon.factories energon.index task.pipeline core.samples data.av",
    "loader": "",
    "media": "data.media data.media_filter preparation.media",
    "metadataset": "energon.loading task.pipeline",
    "monitor": "extras.monitor loader.state",
    "plots": "extras.plots",
    "preview": "report.forecast",
    "sample_utils": "core.samples core.records core.loss_weights",
    "savable": "energon.ranks",
    "prepare": "preparation preparation.index preparation.media",
    "source_info": "energon.factories core.samples",
    "state": "energon.factories",
    "task_encoder": "task.hooks",
    "tools": "",
    "transforms": "extras.transforms",
    "typed_converter": "energon.typed",
    "wrappers": "energon.ranks datasets.transform task.hooks",
}
"""The modules in which the names of a path, and of all paths below it, are looked up
after `energize.energon`."""
_BELOW = {
    "av": "av_data av_decoder av_init av_reader utils",
    "cache": "base file_cache_pool file_store no_cache",
    "epathlib": "epath rclone_config",
    "flavors": "base_dataset captioning crude image image_classification interleaved "
    "jsonl jsonl.crude_jsonl_dataset jsonl.ijsonl jsonl.ijsonl_reader "
    "jsonl.jsonl_prepare multichoice_vqa ocr similarity_interleaved text "
    "vid_qa vqa vqa_and_ocr webdataset webdataset.base_webdataset "
    "webdataset.config webdataset.default_decoder_webdataset "
    "webdataset.default_generic_webdataset webdataset.empty_dataset_error "
    "webdataset.field_access webdataset.indexing webdataset.itar "
    "webdataset.itar_reader webdataset.joined_webdataset "
    "webdataset.metadata webdataset.prepare webdataset.sample_decoder "
    "webdataset.sample_loader webdataset.sharder "
    "webdataset.standard_webdataset webdataset.structs "
    "webdataset.tar_patcher webdataset.thread_local_sqlite",
    "media": "extractor filesystem_prepare metadata",
    "metadataset": "dataset_loader join_dataset_loader loader loader_interface "
    "metadataset metadataset_v2",
    "prepare": "jsonl media",
    "task_encoder": "base cooking loader",
    "tools": "analyze_debug checkpoint info lint mount prepare prepare_media preview",
    "transforms": "common custom mappers merge",
    "wrappers": "base batch_dataset blend_dataset buffer concat_dataset "
    "epochize_dataset filter_dataset gc_dataset group_batch_dataset "
    "iter_map_dataset limit_dataset log_sample_dataset map_dataset "
    "mix_batch_dataset packing_dataset repeat_dataset "
    "shuffle_buffer_dataset skip watchdog_dataset",
}
"""The modules below them; any other path is an ImportError, as a name that is spelt
wrong."""


class _PathModule(ModuleType):
    """The module at one of the paths."""

    def __getattr__(self, name: str) -> Any:
        return name_of(self.__name__, name)


def name_of(path: str, name: str) -> Any:
    """Return what the module at a path has by a name.

    Args:
        path: The full path of the module, below `energize.energon`.
        name: The name in it.

    Returns:
        The object; of `tools.*`, `command` is the click command of `energize`.

    Raises:
        AttributeError: If no module of the path has the name.

    Example:
        >>> name_of("energize.energon.flavors.text", "TextSample").__name__
        'TextSample'
    """
    if not name.startswith("__"):
        first = path.removeprefix(f"{_PACKAGE}.").partition(".")[0]
        if first == "tools" and name == "command":
            command = _command(path.rpartition(".")[2].replace("_", "-"))
            if command is not None:
                return command
        for module in ("energon", *_MODULES[first].split()):
            value = getattr(import_module(f"energize.{module}"), name, None)
            if value is not None and not isinstance(value, ModuleType):
                return value
    raise AttributeError(f"module {path!r} has no attribute {name!r}")


def _command(name: str) -> Any:
    """Return a command of `energize` as a click command; None for an unknown name."""
    from typer.main import get_group

    [program] = entry_points(group="console_scripts", name="energize")
    group = get_group(program.load())
    if name not in group.commands:
        return None
    context = group.make_context(group.name, [], resilient_parsing=True)
    return group.resolve_command(context, [name])[1]


class _PathFinder(MetaPathFinder, Loader):
    """Finds the modules at the paths, after all modules that have files."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_PACKAGE}."):
            return None
        first, _, rest = fullname.removeprefix(f"{_PACKAGE}.").partition(".")
        if first not in _MODULES:
            return None
        if rest and rest not in _BELOW.get(first, "").split():
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _PathModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has no code."""


def install() -> None:
    """Make the paths importable. `import energize.energon` calls it."""
    if not any(isinstance(finder, _PathFinder) for finder in sys.meta_path):
        sys.meta_path.append(_PathFinder())
