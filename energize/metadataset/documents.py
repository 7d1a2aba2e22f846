"""Read metadataset files, and check them against the models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from energize.core.ignored import log_once
from energize.core.validation import KeyPath, faults, short
from energize.data.files import path_of
from energize.errors import some
from energize.metadataset.located import (
    Located,
    Problem,
    as_error,
    check_few,
    plain_values,
    read_yaml,
)
from energize.metadataset.models import (
    DOCUMENT,
    ENERGIZE,
    ENERGON,
    KINDS,
    InBlend,
    InPasses,
    InStages,
    JoinedKeys,
    Keys,
    OuterBlendKeys,
    StageSettings,
    StagesKeys,
)
from energize.recipes.formats import format_of
from energize.recipes.recipe import Recipe, RecipeFault

STAGE_FILE = (
    "a file of stages is not a metadataset. Use get_staged_train_dataset or read_stages"
)

_HEAD = {"__module__", "__class__", "splits", "split"}
"""Keys of which a metadataset has one, or means to."""

_OLDER = {
    *("path", "split_part", "subflavors", "shuffle_over_epochs_multiplier"),
    *("dataset_config", "split_config", "weight"),
}
"""The keys of Energon's older grammar."""

_LISTS = {"blend", "blend_epochized", "join", "datasets"}

_NEWER = {*_OLDER, *_LISTS, "repetitions", "joiner", "nonmatch", "aux", "subset"}
"""The keys of Energon's newer grammar."""

_MODELS: tuple[type[Keys], ...] = (
    *KINDS.values(),
    OuterBlendKeys,
    InBlend,
    InPasses,
    InStages,
    StagesKeys,
    JoinedKeys,
)
_KEYS = frozenset(name for model in _MODELS for name in model.model_fields)
"""All keys of nodes."""

_HINTS = {
    **dict.fromkeys(InBlend.model_fields, "Set it in an entry of 'blend'"),
    **dict.fromkeys((*StageSettings.model_fields, "steps"), "Set it beside 'stages'"),
    **dict.fromkeys(
        ("loss_weight", "loss_weights", "sample_weights"), "Use 'sample_weight'"
    ),
    **dict.fromkeys(("target_weights", "importance_weight"), "Use 'target_weight'"),
    "repetitions": "Set it in an entry of 'blend_epochized'",
    "nonmatch": "Set it in an entry of 'join'",
    "joiner": "Set it in a 'join'",
    "composition": "Set it in the outermost 'blend'",
    "sample_weight": "Set it for a whole dataset, blend, concat or join",
    "stages": "Stages are parts of the whole run. Set them in a split",
}
"""The right location of misplaced keys, and of keys with other names elsewhere."""


@dataclass(frozen=True, slots=True)
class MetadatasetFile:
    """A checked metadataset file, without the files that it refers to."""

    file: Path
    splits: Mapping[str, Keys]
    text: Located
    recipe: Recipe | None = None

    @property
    def older(self) -> bool:
        """Whether it is written in Energon's older grammar."""
        return bool(self.text.renamed) and self.recipe is None


def read_metadataset(
    path: str | os.PathLike[str] | Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> MetadatasetFile:
    """Read a metadataset file, without opening its folders.

    The file is plain data: nothing in it is imported or executed. Text can contain
    environment variables: `${NAME}` or `${NAME:-default}`.

    Args:
        path: The file, or a mapping with the content of one. Relative paths in a
            mapping start in the current folder.
        options: The options of a recipe of another project, which its own program takes
            on the command line.

    Raises:
        MetadatasetError: With all faults of the file, each with its location and value.
        DatasetNotFoundError: If the file does not exist.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "mix.yaml"
        >>> _ = file.write_text('''
        ... __module__: energize
        ... __class__: MetadatasetV2
        ... splits:
        ...   train:
        ...     blend:
        ...       - {path: captions, weight: 3}
        ...       - {path: photographs, weight: 1}
        ... ''')
        >>> entries = read_metadataset(file).splits["train"].blend
        >>> [(entry.path, entry.weight) for entry in entries]
        [('captions', 3), ('photographs', 1)]
    """
    problems: list[Problem] = []
    if isinstance(path, Mapping):
        file = Path("<a mapping>")
        metadataset = document(
            plain_values(path, file, problems), problems, options=options
        )
    else:
        file = path_of(path)
        metadataset = load(file, problems, options)
    if metadataset is None:
        raise as_error(file, problems)
    return metadataset


def load(
    file: Path, problems: list[Problem], options: Mapping[str, Any] | None = None
) -> MetadatasetFile | None:
    """Read and check a file.

    Args:
        file: The file.
        problems: Receives the faults.
        options: The options of a recipe.

    Returns:
        The document; None if it is invalid.
    """
    faulty: list[Problem] = []
    text = read_yaml(file, faulty, variables=True)
    metadataset = None if text is None else document(text, faulty, options=options)
    problems += sorted(faulty, key=lambda problem: problem.line)
    return metadataset


def document(
    text: Located,
    problems: list[Problem],
    *,
    weighs_all: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> MetadatasetFile | None:
    """Check a document against the models.

    Args:
        text: The values of the document, with their lines.
        problems: Receives the faults, at most one for each value.
        weighs_all: Whether all entries of a blend need a weight if one has a weight.
            None for true in files of energize, and false in files of Megatron-Energon,
            where the default weight is 1.
        options: The options of a recipe.

    Returns:
        The checked document; None if it is invalid.
    """
    recipe: Recipe | None = None
    recipe_format = format_of(text.data)
    if recipe_format is not None:
        faulty: list[RecipeFault] = []
        recipe = recipe_format.recipe(text.data, options or {}, faulty, text.file)
        for fault in faulty:
            named = text
            if fault.file not in (None, text.file):
                named = read_yaml(fault.file, []) or text
            problem = named.problem(fault.path, fault.text)
            problems.append(replace(problem, not_found=fault.missing))
        if recipe is None:
            return None
        text = _of_recipe(text, recipe)
    misplaced = _fault_of_kind(text.data)
    if misplaced is not None:
        _add_problems(text, [misplaced], problems)
        return None
    if weighs_all is None:
        weighs_all = text.data.get("__module__") == ENERGIZE
    text = _in_current_grammar(text, problems)
    try:
        checked = DOCUMENT.validate_python(
            text.data, context={"weighs_all": weighs_all}
        )
    except ValidationError as error:
        _add_problems(text, _faults_of(error, text.data), problems)
        return None
    if problems:
        _add_problems(text, [], problems)
        return None
    return MetadatasetFile(text.file, checked.splits, text, recipe)


def _of_recipe(text: Located, recipe: Recipe) -> Located:
    """Return a recipe as a metadataset with the lines of the recipe; log its notes."""
    for note in recipe.notes:
        log_once(str(text.file), note, note)
    return replace(text, data=recipe.document, renamed=recipe.renamed)


def _fault_of_kind(data: Any) -> tuple[KeyPath, str] | None:
    """Return the path and text of a fault if data are not a metadataset at all."""
    if not isinstance(data, dict):
        expected = (
            "expected a mapping with __module__, __class__ and splits, got "
            f"{short(data)}"
        )
        return (), expected
    if "training" in data and "splits" not in data:
        return ("training",), STAGE_FILE
    if data and data.keys().isdisjoint(_HEAD):
        unknown = "neither a metadataset, with splits, nor a known mixture file"
        return (), f"{unknown}. Correct its keys ({some(data)}), see docs/recipes.md"
    return None


def _add_problems(
    text: Located, faults: Iterable[tuple[KeyPath, str]], problems: list[Problem]
) -> None:
    """Add faults at places without one; raise all problems if there are many."""
    noted = {problem.place for problem in problems}
    faulty = [text.problem(*fault) for fault in faults]
    problems += [problem for problem in faulty if problem.place not in noted]
    check_few(text.file, problems)


def _faults_of(error: ValidationError, data: Any) -> Iterator[tuple[KeyPath, str]]:
    """Yield the faults of a document; no missing key next to a misspelt one."""
    messages = [
        (path, _with_hint(path, text, data))
        for path, text in faults(error, DOCUMENT, data)
    ]
    misspelt = {path[:-1] for path, text in messages if "did you mean" in text}
    for path, text in messages:
        if not text.endswith("is missing") or path[:-1] not in misspelt:
            yield path, text


def _with_hint(path: KeyPath, text: str, data: Any) -> str:
    """Return the text of a fault, with the right location of a misplaced key."""
    if not text.startswith("unknown key"):
        return text
    around = data
    key = str(path[-1])
    for part in path[:-1]:
        around = around[part]
    kinds = [name for name in KINDS if name in around]
    if key in kinds and len(kinds) > 1:
        return f"{' and '.join(map(repr, kinds))} are given. Set exactly one of them"
    if key in _HINTS or key in _KEYS:
        return f"the key {key!r} has no place here. {_HINTS.get(key, 'Remove it')}"
    return text


# Energon's grammars


def _in_current_grammar(text: Located, problems: list[Problem]) -> Located:
    """Return a document in the current grammar; note keys it cannot have."""
    data = text.data
    splits = data.get("splits")
    nodes = splits if isinstance(splits, dict) else {}
    if _is_older(data, nodes):
        _check_grammar(text, nodes, _OLDER, "`__class__: MetadatasetV2`", problems)
        return _from_older(text, nodes, problems)
    if data.get("__module__") in ENERGON:
        _check_grammar(text, nodes, _NEWER, f"`__module__: {ENERGIZE}`", problems)
    return text


def _is_older(data: Mapping[str, Any], nodes: Mapping[str, Any]) -> bool:
    if "__class__" in data:
        return bool(data["__class__"] == "Metadataset")
    return any(isinstance(node, dict) and "datasets" in node for node in nodes.values())


def _check_grammar(
    text: Located,
    nodes: Mapping[str, Any],
    keys: set[str],
    remedy: str,
    problems: list[Problem],
) -> None:
    message = (
        f"unknown key, or value, in a file of Energon's grammar; it needs {remedy}"
    )
    for name, node in nodes.items():
        for path in _foreign(node, keys, ("splits", name)):
            problems.append(text.problem(path, message))


def _from_older(
    text: Located, nodes: Mapping[str, Any], problems: list[Problem]
) -> Located:
    """Return a document of the older grammar with its `datasets` as blends."""
    splits: dict[Any, Any] = {}
    renamed: dict[KeyPath, KeyPath] = {("__class__",): ("__class__",)}
    for name, node in nodes.items():
        path: KeyPath = ("splits", name)
        if not isinstance(node, dict) or not isinstance(node.get("datasets"), list):
            expected = f"expected a mapping with 'datasets', got {short(node)}"
            problems.append(text.problem(path, expected))
            continue
        keys = {key: value for key, value in node.items() if key != "datasets"}
        splits[name] = {**keys, "blend": [_relabelled(e) for e in node["datasets"]]}
        renamed[*path, "blend"] = (*path, "datasets")
    head = {"__module__": ENERGIZE, **text.data, "__class__": "MetadatasetV2"}
    head["splits"] = splits or text.data.get("splits")
    return replace(text, data=head, renamed=renamed)


def _foreign(node: Any, keys: set[str], path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths of keys and schedules that a grammar does not have."""
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        schedule = key == "weight" and isinstance(value, dict)
        if (key in _KEYS and key not in keys) or schedule:
            yield (*path, key)
        elif key in _LISTS:
            for name, entry in _entries(value):
                yield from _foreign(entry, keys, (*path, key, name))


def _entries(value: Any) -> Iterator[tuple[str | int, Any]]:
    """Yield the entries of a list or a mapping with their keys."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def _relabelled(entry: Any) -> Any:
    """Return an entry with its `subflavor` among the subflavors."""
    if not isinstance(entry, dict) or "subflavor" not in entry:
        return entry
    keys = {key: value for key, value in entry.items() if key != "subflavor"}
    labels = keys.get("subflavors", {})
    if isinstance(labels, dict):
        labels = {"__subflavor__": entry["subflavor"], **labels}
    return {**keys, "subflavors": labels}
