"""What commands are told to read: a mix as a run reads it, or what lies at a path."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from energize.compat.stage_files import is_stage_file, read_stages, stage_node
from energize.core.checks import checked_whole
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import WorkerConfig
from energize.core.stream import INFINITE
from energize.data.nv_meta import read_splits
from energize.datasets.stages import StagedDataset
from energize.errors import ConfigError, nearest
from energize.metadataset.build import factory_of, get_train_dataset, get_val_dataset
from energize.metadataset.documents import read_metadataset
from energize.metadataset.nodes import Blend, JoinedLeaf, Leaf, Node, Staged, leaves_of
from energize.metadataset.resolution import resolve
from energize.task.encoder import DefaultTaskEncoder, TaskEncoder
from energize.task.load import LoadingCode, SampleDecoder


def at_least(least: int) -> Callable[[typer.CallbackParam, int | None], int | None]:
    """What checks the number given for an option: `ConfigError` for one below `least`."""

    def check(option: typer.CallbackParam, value: int | None) -> int | None:
        return None if value is None else checked_whole(value, option.opts[0], least)

    return check


MixPath = Annotated[
    Path, typer.Argument(metavar="MIX", help="A metadataset, a stage file, or a prepared folder.")
]
TrustCode = Annotated[
    list[Path] | None,
    typer.Option(help="A folder whose sample_loader and part_filter files may be run."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
_Local = Annotated[
    int | None, typer.Option(callback=at_least(1), help="As in the run, when it keeps reads local.")
]

_VALIDATED = ("val", "test")


@dataclass(frozen=True, slots=True)
class ReadMix:
    """A mix as a run reads it.

    `validates`: every sample is read once, in stored order, and weights count nothing. `types`: the
    names of the types of its samples.
    """

    dataset: IndexedDataset[Any]
    validates: bool
    types: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """How a run reads a mix, by options that commands have in common."""

    batch_size: Annotated[
        int | None,
        typer.Option(
            callback=at_least(1),
            help="Samples per batch of one rank; by default that of the state if there is one, of "
            "the global batch that the mix says, or 1.",
        ),
    ] = None
    unbatched: Annotated[
        bool,
        typer.Option("--unbatched", help="The run has batch_size=None: its items are samples."),
    ] = False
    split: Annotated[
        str, typer.Option("--split", "--split-part", help="Which split of the mix is read.")
    ] = "train"
    validation: Annotated[
        bool | None,
        typer.Option(
            "--validation/--training",
            show_default=False,
            help="Read every sample once, as get_val_dataset, or as get_train_dataset does; by "
            "default the first for splits called val or test.",
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="The seed_offset of the run.")] = 0
    shuffle_buffer_size: _Local = None
    max_samples_per_sequence: _Local = None
    packing_buffer_size: Annotated[
        int | None, typer.Option(callback=at_least(1), help="As in the run, when it packs samples.")
    ] = None
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            help="The task encoder of the run, or a function that makes it: MODULE:NAME, "
            "FILE.py:NAME.",
        ),
    ] = None
    encoder_per_type: Annotated[
        bool,
        typer.Option(
            "--encoder-per-type",
            help="The run has a task encoder for each type of samples, and blends whole batches.",
        ),
    ] = False
    trust_code: TrustCode = None

    def read(self, mix: Path, batch_size: int | None = None, *, samples: bool = False) -> ReadMix:
        """Return what the run reads of `mix`, in batches of `batch_size` if no option says it.

        What only making `samples` needs, code of folders and stores of cookers, is left out unless
        these are wanted. Raise what `get_train_dataset` raises, and `ConfigError` for options that
        do not go together.
        """
        node = node_at(mix, self.split)
        leaves = _leaves(node)
        options = self._options()
        if not samples:
            options |= _stand_ins(leaves)
        if self.encoder is not None:
            options["task_encoder"] = made_encoder(self.encoder)
        elif isinstance(node, Staged):
            plan = node.plan.with_datasets(lambda stage: _without_stores(stage.dataset))
            node = replace(node, plan=plan)
        else:
            node = _without_stores(node)
        kinds = dict.fromkeys(leaf.sample_type for leaf in leaves)
        if self.encoder_per_type:
            options["task_encoder"] = {kind: DefaultTaskEncoder() for kind in kinds}
        size = self.batch_size or batch_size or _global_batch_size(node)
        make: Callable[..., Any] = get_val_dataset if self.validates else get_train_dataset
        dataset = make(
            node,
            batch_size=None if self.unbatched else size,
            worker_config=WorkerConfig(seed_offset=self.seed),
            **options,
        )
        return ReadMix(dataset, self.validates, tuple(kind.__name__ for kind in kinds))

    @property
    def validates(self) -> bool:
        """Whether every sample is read once, in stored order."""
        return self.split in _VALIDATED if self.validation is None else self.validation

    def _options(self) -> dict[str, Any]:
        names = ("shuffle_buffer_size", "max_samples_per_sequence")
        for name in names:
            if self.validates and getattr(self, name) is not None:
                raise ConfigError(
                    f"--{name.replace('_', '-')} keeps the reads of training local, and the split "
                    f"{self.split!r} is read as validation does, in stored order; leave it out, or "
                    "give --training"
                )
        given = (*names, "packing_buffer_size", "trust_code")
        return {name: value for name in given if (value := getattr(self, name))}

    def said_of_types(self, mix: ReadMix) -> str | None:
        """What to know of a mix with samples of several types, in which the run may differ."""
        if self.encoder_per_type or mix.validates or len(mix.types) < 2:
            return None
        return (
            f"the samples are of {len(mix.types)} types, {', '.join(mix.types)}. This is what one "
            "task encoder for all of them is given; for a run with one for each type, which blends "
            "whole batches, give --encoder-per-type"
        )


def takes_run(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, which has a parameter `run`, the options of `Run` in its place."""
    own = inspect.signature(command, eval_str=True).parameters
    options = inspect.signature(Run, eval_str=True).parameters

    @wraps(command)
    def called(**given: Any) -> None:
        command(run=Run(**{name: given.pop(name) for name in options}), **given)

    shown = [each for name, each in own.items() if name != "run"]
    shown += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options.values()]
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in shown}
    del called.__wrapped__
    return called


def steps_of(dataset: IndexedDataset[Any], asked: int | None) -> int:
    """As many steps as were asked for, else all; `ConfigError` where there is no end."""
    if asked is not None:
        return asked
    if dataset.indexed and dataset.size == INFINITE:
        last = dataset.plan.stages[-1].name if isinstance(dataset, StagedDataset) else None
        what = "this mix never ends" if last is None else f"its last stage, {last!r}, has no end"
        raise ConfigError(f"{what}; say with --steps how many steps to look at")
    return dataset.size


def made_encoder(text: str) -> TaskEncoder[Any, Any, Any, Any]:
    """The task encoder that MODULE:NAME names, or makes; `ConfigError` for anything else."""
    found = object_named(text, "--encoder")
    try:
        made = found if isinstance(found, TaskEncoder) else found()
    except Exception as reason:  # whatever the code of a user raises
        raise ConfigError(
            f"--encoder: {text} cannot be made: {type(reason).__name__}: {reason}"
        ) from reason
    if not isinstance(made, TaskEncoder):
        raise ConfigError(f"--encoder: {text} is no TaskEncoder, it is a {type(made).__name__}")
    return made


def _leaves(node: Node | Staged) -> list[Leaf]:
    nodes = [stage.dataset for stage in node.plan.stages] if isinstance(node, Staged) else [node]
    return [leaf for each in nodes for leaf in leaves_of(each)]


def _stand_ins(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Functions in place of those that folders bring along, which are never called."""
    parts = [part.leaf for leaf in leaves if isinstance(leaf, JoinedLeaf) for part in leaf.parts]
    coded = [leaf for leaf in (*leaves, *parts) if leaf.config.code]
    return {
        name: {leaf.path: stand_in for leaf in coded if name in leaf.config.code}
        for name, stand_in in (("sample_loader", dict), ("part_filter", bool))
    }


def _without_stores(node: Node) -> Node:
    """The node without what only cookers read, which decides no order."""
    if isinstance(node, Leaf):
        return replace(node, aux={}) if node.aux else node
    children = tuple((_without_stores(child), weight) for child, weight in node.children)
    return replace(node, children=children)


def _global_batch_size(node: Node | Staged) -> int:
    composition = node.composition if isinstance(node, Blend) else None
    return (composition.global_batch_size if composition else None) or 1


# What lies at a path: the split parts of a folder, or those that a file of a mix is made of.

_CONFIGS = ("dataset.yaml", "split.yaml")

DataPath = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A prepared folder, a .jsonl file, or a metadataset."),
]
SplitParts = Annotated[
    str | None, typer.Option(help="Which splits, with commas between them; by default all.")
]
DatasetConfig = Annotated[
    str, typer.Option(help="The file of .nv-meta that says what samples are.")
]
SplitConfig = Annotated[str, typer.Option(help="The file of .nv-meta that says what splits are.")]


def is_folder(path: Path) -> bool:
    """Whether it is a folder, or nothing at all, rather than a file."""
    return path.is_dir() or not path.exists()


def is_jsonl(path: Path) -> bool:
    """Whether it is a file of JSON lines, which has no splits."""
    return path.suffix == ".jsonl"


def split_names(path: Path, given: str | None, split_config: str = _CONFIGS[1]) -> Sequence[str]:
    """The splits that were asked for, or else all that the path has; a file of JSON lines has one.

    Raises what reading the split file or the metadataset raises.
    """
    if is_jsonl(path):
        return ("train",)
    if given is not None:
        names = [name.strip() for name in given.split(",") if name.strip()]
        if not names:
            raise ConfigError(f"--split-parts: expected names of splits, got {given!r}")
        return list(dict.fromkeys(names))
    if is_folder(path):
        return list(read_splits(path, split_config).parts)
    if is_stage_file(path):
        return ("train",)
    return list(read_metadataset(path).splits)


def node_at(path: Path, split: str) -> Node | Staged:
    """What a split is made of. Raises `MetadatasetError`, `DatasetNotFoundError`."""
    if is_stage_file(path):
        return Staged(read_stages(path, split).with_datasets(stage_node), str(path))
    return resolve(path, split)


def leaves_at(
    path: Path, split: str, dataset_config: str = _CONFIGS[0], split_config: str = _CONFIGS[1]
) -> list[Leaf]:
    """The parts that a split is read from, each once. Raises what `node_at` raises."""
    node = node_at(path, split)
    given = dataset_config, split_config
    if isinstance(node, Leaf):
        names = (
            None if name == usual else name for name, usual in zip(given, _CONFIGS, strict=True)
        )
        dataset, splits = names
        return [replace(node, dataset_config=dataset, split_config=splits)]
    if given != _CONFIGS:
        raise ConfigError(
            f"--dataset-config and --split-config are for folders; the entries of {path} name "
            "their own, as dataset_config and split_config"
        )
    if isinstance(node, Staged):
        found = [leaf for stage in node.plan.stages for leaf in leaves_of(stage.dataset)]
        return list({repr(replace(leaf, place="")): leaf for leaf in found}.values())
    return leaves_of(node)


def leaf_name(leaf: Leaf) -> str:
    """A part as messages call it."""
    if isinstance(leaf, JoinedLeaf):
        return " joined with ".join(leaf_name(part.leaf) for part in leaf.parts)
    path = leaf.path if leaf.chosen is None else leaf.path / leaf.chosen.name
    return str(path) if is_jsonl(leaf.path) else f"{path} [{leaf.split_part}]"


def stored_samples(
    leaf: Leaf, decoder: SampleDecoder | None, trusted: Sequence[Path] | None = None
) -> Dataset[Any]:
    """The typed samples of a part in stored order; code of `trusted` folders may be run."""
    code = LoadingCode(trust_code=trusted or ())
    return factory_of(leaf, decoder=decoder, code=code).build()


# Code of the user, which is imported because the command line names it.


def imported(name: str, option: str) -> ModuleType:
    """The module of that name, or the Python file at that path; the working folder is looked in.

    Raises `ConfigError` that names the `option` for one that cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return _of_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except Exception as reason:  # whatever the code of a user raises
        raise ConfigError(
            f"{option}: {name!r} cannot be imported: {type(reason).__name__}: {reason}"
        ) from reason


def object_named(text: str, option: str) -> Any:
    """What MODULE:NAME, or FILE.py:NAME, names; `ConfigError` when there is no such thing."""
    module_name, colon, name = text.rpartition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{option}: expected MODULE:NAME or FILE.py:NAME, got {text!r}")
    found: Any = imported(module_name, option)
    if not hasattr(found, name):
        known = [each for each in vars(found) if not each.startswith("_")]
        raise ConfigError(f"{option}: {module_name} has no {name!r}{nearest(name, known)}")
    return getattr(found, name)


def _of_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
