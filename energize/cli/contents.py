"""What lies at a path: the split parts of a folder, or those that a file of a mix is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from energize.compat.stage_files import is_stage_file, read_stages, stage_node
from energize.core.dataset import Dataset
from energize.data.nv_meta import read_splits
from energize.errors import ConfigError
from energize.metadataset.build import factory_of
from energize.metadataset.documents import read_metadataset
from energize.metadataset.nodes import JoinedLeaf, Leaf, Node, Staged, leaves_of
from energize.metadataset.resolution import resolve
from energize.task.decode import SampleDecoder
from energize.task.load import LoadingCode

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
TrustCode = Annotated[
    list[Path] | None,
    typer.Option(help="A folder whose sample_loader and part_filter files may be run."),
]


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
