"""Arguments of commands: a mix as a run reads it, or the data at a path."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, cast

import typer
from typer import Option

from energize.compat.stage_files import is_stage_file, read_stages, stage_node
from energize.core.dataset import IndexedDataset
from energize.core.lanes import WorkerConfig
from energize.data.files import absent, path_of
from energize.data.nv_meta import read_splits
from energize.errors import ConfigError, DatasetNotFoundError, nearest
from energize.inference.engine import is_loose, split_parts
from energize.metadataset.api import get_train_dataset, get_val_dataset
from energize.metadataset.documents import read_metadataset
from energize.metadataset.factories import factory_of
from energize.metadataset.nodes import (
    Blend,
    Folder,
    Join,
    Leaf,
    MixNode,
    Stages,
    every_leaf,
    with_leaves,
)
from energize.metadataset.resolver import resolve
from energize.recipes.formats import is_recipe
from energize.report.efficiency import Efficiency, measure_efficiency
from energize.task.decode import SampleDecoder
from energize.task.encoder import DefaultTaskEncoder, TaskEncoder
from energize.task.load import LoadingCode, run_file


def path_argument(help: str, metavar: str | None = None) -> Any:  # noqa: A002
    """Return the declaration of an argument: a local or remote path."""
    return typer.Argument(metavar=metavar, parser=path_of, help=help)


MixPath = Annotated[
    Path, path_argument("A metadataset, a stage file, or a prepared folder.", "MIX")
]
TrustCode = Annotated[
    list[Path] | None,
    Option(help=("A folder whose own sample_loader and part_filter may be run.")),
]
AsJson = Annotated[bool, Option("--json", help="Write JSON, for programs.")]
Number = int | None


@dataclass(frozen=True)
class EncoderOptions:
    """Options of the encoder and trusted code of a run."""

    encoder: Annotated[
        str | None,
        Option(
            help=(
                "The task encoder, or a function that returns it: "
                "MODULE:NAME or FILE.py:NAME."
            )
        ),
    ] = None
    encoder_per_type: Annotated[
        bool,
        Option(
            "--encoder-per-type",
            help="The run has an encoder for each sample type.",
        ),
    ] = False
    trust_code: TrustCode = None

    def encoder_for(self, leaves: Iterable[Leaf]) -> Any:
        """Return the argument `task_encoder` of the run, or None."""
        if self.encoder_per_type:
            types = dict.fromkeys(leaf.sample_class for leaf in leaves)
            return {sample_type: DefaultTaskEncoder() for sample_type in types}
        return None if self.encoder is None else load_encoder(self.encoder)


@dataclass(frozen=True)
class RunOptions(EncoderOptions):
    """Options with which a run reads a mix, shared by several commands."""

    batch_size: Annotated[
        Number,
        Option(
            min=1,
            help=(
                "Samples in a batch of a rank; by default the value of "
                "the state or mix, or 1."
            ),
        ),
    ] = None
    unbatched: Annotated[
        bool,
        Option(
            "--unbatched",
            help=("The run has batch_size=None: its items are single samples."),
        ),
    ] = False
    split: Annotated[
        str,
        Option(
            "--split",
            "--split-part",
            help="The split; val and test are read as validation.",
        ),
    ] = "train"
    seed: Annotated[int, Option(help="The seed_offset of the run.")] = 0
    shuffle_buffer_size: Annotated[
        Number, Option(min=1, help="The value of the run.")
    ] = None
    max_samples_per_sequence: Annotated[
        Number, Option(min=1, help="The value of the run.")
    ] = None
    packing_buffer_size: Annotated[
        Number, Option(min=1, help="The value of the run.")
    ] = None

    @property
    def validates(self) -> bool:
        """Whether every sample is read once, in stored order."""
        return self.split in ("val", "test")

    def _read_options(self) -> dict[str, Any]:
        """Return the options of both dataset functions, if they are set."""
        local = ("shuffle_buffer_size", "max_samples_per_sequence")
        names = (*local, "packing_buffer_size", "trust_code")
        options = {name: value for name in names if (value := getattr(self, name))}
        if self.validates and any(name in options for name in local):
            raise ConfigError(
                "--shuffle-buffer-size and --max-samples-per-sequence keep the reads "
                f"of training local, and the split {self.split!r} is read in stored "
                "order. Remove them"
            )
        return options

    def read(
        self, mix: Path, batch_size: int | None = None, *, samples: bool = False
    ) -> IndexedDataset[Any]:
        """Return the dataset of a run.

        Args:
            mix: The mix.
            batch_size: The batch size if no option sets it.
            samples: Whether samples are made. If not, code of folders and stores of
                cookers are not loaded.

        Raises:
            ConfigError: For options that contradict each other; further errors as
                `get_train_dataset`.
        """
        node = node_at(mix, self.split)
        options = self._read_options()
        if not samples:
            options |= _placeholders(every_leaf(node))
        if self.encoder is None:
            # Only cookers read stores.
            node = with_leaves(node, lambda leaf: leaf.model_copy(update={"aux": {}}))
        encoder = self.encoder_for(every_leaf(node))
        if encoder is not None:
            options["task_encoder"] = encoder
        size = self.batch_size or batch_size or _default_batch_size(node)
        make: Callable[..., Any] = (
            get_val_dataset if self.validates else get_train_dataset
        )
        dataset = make(
            node,
            batch_size=None if self.unbatched else size,
            worker_config=WorkerConfig(seed_offset=self.seed),
            **options,
        )
        return cast("IndexedDataset[Any]", dataset)


def takes(
    name: str, options_class: type[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a parameter of a command by the options of a dataclass."""
    options = inspect.signature(options_class, eval_str=True).parameters

    def taking(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters

        @wraps(command)
        def called(**arguments: Any) -> None:
            value = options_class(
                **{option: arguments.pop(option) for option in options}
            )
            command(**{name: value}, **arguments)

        shown = [
            parameter for parameter in parameters.values() if parameter.name != name
        ]
        shown += [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in options.values()
        ]
        called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        called.__annotations__ = {
            parameter.name: parameter.annotation for parameter in shown
        }
        del called.__wrapped__
        return called

    return taking


takes_run = takes("run", RunOptions)


@dataclass(frozen=True)
class EfficiencyOptions:
    """Options of the efficiency of packs, batches and ranks."""

    world_size: Annotated[
        Number,
        Option("--world-size", "--ranks", min=1, help="Number of ranks of the run."),
    ] = None
    micro_batches: Annotated[
        int, Option(min=1, help="Batches of a rank in a step that accumulates.")
    ] = 1
    cost: Annotated[
        list[str] | None,
        Option(
            help="A column with costs, to compare ranks; by default those of the mix."
        ),
    ] = None
    length: Annotated[
        str | None,
        Option(help="A column with lengths, for the padding of batches."),
    ] = None

    def of(
        self, dataset: IndexedDataset[Any], start: int, stop: int
    ) -> Efficiency | None:
        """Return the efficiency of items of a dataset; None if it does not apply."""
        if not dataset.indexed and (self.cost or self.length):
            raise ConfigError(
                "--cost and --length are columns of datasets with positions, and this "
                "mix is a stream. Remove them, or plan its packs by columns"
            )
        return measure_efficiency(
            dataset,
            start,
            stop,
            ranks=self.world_size or 1,
            micro_batches=self.micro_batches,
            costs=self.cost or (),
            length=self.length,
        )


takes_efficiency = takes("used", EfficiencyOptions)


def load_encoder(text: str) -> TaskEncoder[Any, Any, Any, Any]:
    """Return the task encoder at MODULE:NAME, or that its function returns."""
    target = object_named(text, "--encoder")
    try:
        encoder: TaskEncoder[Any, Any, Any, Any] = (
            target if isinstance(target, TaskEncoder) else target()
        )
    except Exception as reason:  # whatever the code of a user raises
        raise ConfigError(
            f"--encoder: {text} cannot be made: {type(reason).__name__}: {reason}"
        ) from reason
    return encoder  # what is no TaskEncoder is told where it is used


def _default_batch_size(node: MixNode | Stages) -> int | None:
    """Return the global batch size of a composed blend, None for a budget, or 1."""
    if isinstance(node, Stages):
        nodes = [stage.dataset for stage in node.plan.stages]
    else:
        nodes = [node]
    if any(part.batch_budget is not None for part in nodes):
        return None
    if not isinstance(node, Blend) or node.composition is None:
        return 1
    return node.composition.global_batch_size


def _split_names(split_parts: str) -> list[str]:
    """Return the names in a list with commas, without duplicates."""
    names = [name.strip() for name in split_parts.split(",") if name.strip()]
    if not names:
        message = f"expected names of splits, got {split_parts!r}"
        raise ConfigError(f"--split-parts: {message}")
    return list(dict.fromkeys(names))


def _placeholders(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Return functions instead of those of folders, which are never called."""
    parts = [part for leaf in leaves if isinstance(leaf, Join) for part in leaf.parts]
    coded = [leaf for leaf in (*leaves, *parts) if leaf.config.code]
    return {
        name: {leaf.path: placeholder for leaf in coded if name in leaf.config.code}
        for name, placeholder in (("sample_loader", dict), ("part_filter", bool))
    }


# What lies at a path: the split parts of a folder, or those that a file of a mix is
# made of.

DataPath = Annotated[
    Path, path_argument("A prepared folder, a .jsonl file, or a metadataset.", "PATH")
]
DatasetConfig = Annotated[
    str, Option(help="The file of .nv-meta with the sample type.")
]
SplitConfig = Annotated[str, Option(help="The file of .nv-meta with the splits.")]

CONFIGS = ("dataset.yaml", "split.yaml")


@dataclass(frozen=True)
class Stored:
    """Options of stored samples, shared by several commands."""

    split_parts: Annotated[
        str | None,
        Option(help="Names of splits, separated by commas; by default all."),
    ] = None
    dataset_config: DatasetConfig = CONFIGS[0]
    split_config: SplitConfig = CONFIGS[1]
    trust_code: TrustCode = None

    def splits(self, path: Path) -> Sequence[str]:
        """Return the requested splits, or all splits of the path."""
        if not path.exists():
            raise DatasetNotFoundError(f"{path} {absent(path)}")
        if is_jsonl(path) or is_recipe(path):
            return ("train",)
        if self.split_parts is not None:
            return _split_names(self.split_parts)
        if is_loose(path):
            return split_parts(path)
        if is_folder(path):
            splits = read_splits(path, self.split_config).split_parts
            return [name for name, shards in splits.items() if shards]
        return (
            ("train",) if is_stage_file(path) else list(read_metadataset(path).splits)
        )

    def leaves(self, path: Path, split: str) -> Iterator[Leaf]:
        """Yield the parts of a split, without duplicates."""
        node = node_at(path, split)
        if (self.dataset_config, self.split_config) == CONFIGS:
            pass
        elif isinstance(node, Folder):
            node = Folder.model_construct(
                path=node.path,
                split_part=node.split_part,
                dataset_config=_unusual(self.dataset_config),
                split_config=_unusual(self.split_config),
            )
        else:
            raise ConfigError(
                "--dataset-config and --split-config are for folders. The entries of "
                f"{path} name their own, as dataset_config and split_config"
            )
        yield from {leaf.identity: leaf for leaf in every_leaf(node)}.values()

    def samples(self, leaf: Leaf, decoder: SampleDecoder) -> IndexedDataset[Any]:
        """Return the typed samples of a part in stored order; may run trusted code."""
        code = LoadingCode(trust_code=self.trust_code or ())
        return cast(
            "IndexedDataset[Any]", factory_of(leaf, decoder=decoder, code=code).build()
        )


def _unusual(config: str) -> str | None:
    """Return the name of a file of `.nv-meta`; None for the usual one."""
    return None if config in CONFIGS else config


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder or missing, and not a file."""
    return path.is_dir() or not path.exists()


def is_jsonl(path: Path) -> bool:
    """Return whether a path is a file of JSON lines, which has no splits."""
    return path.suffix == ".jsonl"


def node_at(path: Path, split: str) -> MixNode | Stages:
    """Return the mix of a split of a path."""
    if is_stage_file(path):
        plan = read_stages(path, split).with_datasets(stage_node)
        return Stages.model_construct(plan=plan, location=str(path))
    return resolve(path, split)


def leaf_name(leaf: Leaf, above: Path | None = None) -> str:
    """Return the name of a part; relative to the folder `above`, without its split."""
    if isinstance(leaf, Join):
        return " joined with ".join(leaf_name(part, above) for part in leaf.parts)
    path = leaf.path if leaf.chosen is None else leaf.path / leaf.chosen.name
    if above is not None:
        return str(path.relative_to(above) if path.is_relative_to(above) else path)
    return str(path) if is_jsonl(leaf.path) else f"{path} [{leaf.split_part}]"


# Code of the user, which is imported because the command line names it.


def imported(name: str, option: str) -> ModuleType:
    """Import a module, or the Python file at a path, also from the working folder.

    Raises:
        ConfigError: Naming `option`, if it cannot be imported.
    """
    working_folder = str(Path.cwd())
    if working_folder not in sys.path:
        sys.path.insert(0, working_folder)
    try:
        if name.endswith(".py"):
            return run_file(Path(name), Path(name).stem)
        return importlib.import_module(name)
    except Exception as reason:  # whatever the code of a user raises
        raise ConfigError(
            f"{option}: {name!r} cannot be imported: {type(reason).__name__}: {reason}"
        ) from reason


def object_named(text: str, option: str) -> Any:
    """Return the object at MODULE:NAME or FILE.py:NAME."""
    module_name, colon, name = text.rpartition(":")
    if not (module_name and colon and name):
        raise ConfigError(
            f"{option}: expected MODULE:NAME or FILE.py:NAME, got {text!r}"
        )
    module: Any = imported(module_name, option)
    if not hasattr(module, name):
        names = [
            attribute for attribute in vars(module) if not attribute.startswith("_")
        ]
        raise ConfigError(
            f"{option}: {module_name} has no {name!r}{nearest(name, names)}"
        )
    return getattr(module, name)
