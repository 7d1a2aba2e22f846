"""Metadataset files: read in any of three grammars, and checked by themselves.

Energon's grammars are rewritten as ours before they are checked; places stay those of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from energize.core.validation import KeyPath, faults, short
from energize.errors import nearest
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
    Joined,
    Keys,
    OuterBlend,
    Settings,
    Stages,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
STAGE_FILE = (
    "a file of stages is no metadataset; it is read by get_staged_train_dataset and read_stages"
)

_GIVEN = Path("<a mapping>")
_OLDER = {
    *("path", "split_part", "subflavors", "shuffle_over_epochs_multiplier"),
    *("dataset_config", "split_config", "weight"),
}
_LISTS = {"blend", "blend_epochized", "join", "datasets"}
_NEWER = {*_OLDER, *_LISTS, "repetitions", "joiner", "nonmatch", "aux", "subset"}
"""The keys of Energon's two grammars."""
_MODELS: tuple[type[Keys], ...] = (
    *KINDS.values(),
    OuterBlend,
    InBlend,
    InPasses,
    InStages,
    Stages,
    Joined,
)
_KEYS = frozenset(name for model in _MODELS for name in model.model_fields)
"""All keys of nodes."""
_MEANT = {
    **dict.fromkeys(InBlend.model_fields, "it is for an entry of 'blend'"),
    **dict.fromkeys((*Settings.model_fields, "steps"), "it stands beside 'stages'"),
    **dict.fromkeys(("loss_weight", "loss_weights", "sample_weights"), "it is 'sample_weight'"),
    **dict.fromkeys(("target_weights", "importance_weight"), "it is 'target_weight'"),
    "repetitions": "it is for an entry of 'blend_epochized'",
    "nonmatch": "it is for an entry of 'join'",
    "joiner": "it is for a 'join'",
    "composition": "it is for the outermost 'blend'",
    "sample_weight": "it is for a dataset, a blend, a concat or a join as a whole",
    "stages": "stages are parts of the whole run, so they stand in a split",
    "data_stages": "in a metadataset it is 'stages'",
    "dataset_path": "in a metadataset it is 'path'",
    "dataset_folders": "in a metadataset it is 'blend'",
    "dataset_weights": "in a metadataset it is 'weight'",
    "dataset_random_seed": "in a metadataset it is 'seed'",
}
"""What keys that stand in the wrong place are for, and what others are called here."""


@dataclass(frozen=True, slots=True)
class MetadatasetFile:
    """A metadataset file, checked by itself: what it refers to was not looked at."""

    file: Path
    splits: Mapping[str, Keys]
    text: Located

    @property
    def older(self) -> bool:
        """Whether it is written in Energon's older grammar."""
        return bool(self.text.renamed)

    def place(self, path: KeyPath = ()) -> str:
        """Return where a path in the document is: `file:line (path)`."""
        return self.text.place(path)


def read_metadataset(path: str | os.PathLike[str] | Mapping[str, Any]) -> MetadatasetFile:
    """Read a metadataset file, or a mapping with what one would say; what it names is not touched.

    The text is plain data: nothing in it is imported or executed. Variables of the environment are
    put in where a text names them: `${NAME}`, or `${NAME:-default}`. Relative paths in a mapping
    begin in the current folder.

    Raises `MetadatasetError` with every fault of the file, each with its line, its path in the
    document, the value and what was expected; `DatasetNotFoundError` when there is no such file.

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
    >>> [(entry.path, entry.weight) for entry in read_metadataset(file).splits["train"].blend]
    [('captions', 3), ('photographs', 1)]
    """
    problems: list[Problem] = []
    if isinstance(path, Mapping):
        file = _GIVEN
        metadataset = document(plain_values(path, file, problems), problems)
    else:
        file = Path(path)
        metadataset = load(file, problems)
    if metadataset is None:
        raise as_error(file, problems)
    return metadataset


def load(file: Path, problems: list[Problem]) -> MetadatasetFile | None:
    """Return the document in `file`, or None when it cannot be used; faults go to `problems`."""
    found: list[Problem] = []
    text = read_yaml(file, found, variables=True)
    metadataset = None if text is None else document(text, found)
    problems += sorted(found, key=lambda problem: problem.line)
    return metadataset


def document(
    text: Located, problems: list[Problem], *, weighs_all: bool | None = None
) -> MetadatasetFile | None:
    """Return what a document says, or None when something in it is wrong; faults go to `problems`,
    but for those of values that have a problem already.

    With `weighs_all` every entry of a blend has a weight, or none has; by default so in our own
    files, where Energon's give 1 to an entry without.
    """
    found: list[tuple[KeyPath, str]] = []
    if not isinstance(text.data, dict):
        told = f"expected a mapping with __module__, __class__ and splits; got {short(text.data)}"
        found.append(((), told))
    elif "training" in text.data and "splits" not in text.data:
        found.append((("training",), STAGE_FILE))
    else:
        text, module = _rewritten(text, problems), text.data.get("__module__")
        try:
            every = module == ENERGIZE if weighs_all is None else weighs_all
            checked = DOCUMENT.validate_python(text.data, context={"weighs_all": every})
        except ValidationError as error:
            found += _told(error, text.data)
        else:
            if not problems:
                return MetadatasetFile(text.file, checked.splits, text)
    known = {problem.place for problem in problems}
    faulty = [text.problem(*fault) for fault in found]
    problems += [problem for problem in faulty if problem.place not in known]
    check_few(text.file, problems)
    return None


def _told(error: ValidationError, data: Any) -> Iterator[tuple[KeyPath, str]]:
    """What is wrong with a document. A key that is missing is not told beside one that is a slip of
    the pen.
    """
    found = [(path, _with_hint(path, text, data)) for path, text in faults(error, DOCUMENT)]
    misspelt = {path[:-1] for path, text in found if "did you mean" in text}
    for path, text in found:
        if not text.endswith("is missing") or path[:-1] not in misspelt:
            yield path, text


def _with_hint(path: KeyPath, text: str, data: Any) -> str:
    """What is wrong with a value; of a key that nothing reads, what else is known of it."""
    if not text.startswith("unknown key"):
        return text
    around, key = data, str(path[-1])
    for part in path[:-1]:
        around = around[part]
    kinds = [kind for kind in KINDS if kind in around]
    if key in kinds and len(kinds) > 1:
        return f"{' and '.join(map(repr, kinds))} are given; expected exactly one of them"
    if key in _MEANT or key in _KEYS:
        return f"the key {key!r} has no place here; {_MEANT.get(key, 'remove it')}"
    near = "" if kinds or "did you mean" in text else nearest(key, [*KINDS, "stages"])
    return text.replace("; known", f"{near or ';'} known", 1)


# Energon's grammars


def _rewritten(text: Located, found: list[Problem]) -> Located:
    """Return a document in our words; keys that Energon's grammars do not have go to `found`."""
    data, splits = text.data, text.data.get("splits")
    nodes = splits if isinstance(splits, dict) else {}
    listed = any(isinstance(node, dict) and "datasets" in node for node in nodes.values())
    if data.get("__class__", "Metadataset" if listed else "") == "Metadataset":
        keys, needs = _OLDER, "`__class__: MetadatasetV2`"
    elif data.get("__module__") == ENERGON:
        keys, needs = _NEWER, f"`__module__: {ENERGIZE}`"
    else:
        return text
    for name, node in nodes.items():
        for foreign in _foreign(node, keys, ("splits", name)):
            told = f"unknown key, or value, in a file of Energon's grammar; it needs {needs}"
            found.append(text.problem(foreign, told))
    if keys is _NEWER:
        return text
    own: dict[Any, Any] = {}
    renamed: dict[KeyPath, KeyPath] = {("__class__",): ("__class__",)}
    for name, node in nodes.items():
        path: KeyPath = ("splits", name)
        if not isinstance(node, dict) or not isinstance(node.get("datasets"), list):
            told = f"expected a mapping with 'datasets'; got {short(node)}"
            found.append(text.problem(path, told))
            continue
        rest = {key: value for key, value in node.items() if key != "datasets"}
        own[name] = {**rest, "blend": [_relabelled(entry) for entry in node["datasets"]]}
        renamed[*path, "blend"] = (*path, "datasets")
    head = {"__module__": ENERGIZE, **data, "__class__": "MetadatasetV2"}
    return replace(text, data={**head, "splits": own or splits}, renamed=renamed)


def _foreign(node: Any, keys: set[str], path: KeyPath) -> Iterator[KeyPath]:
    """The paths of our own keys, and of schedules, below a node of a grammar that has `keys`."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if (key in _KEYS and key not in keys) or (key == "weight" and isinstance(value, dict)):
            yield (*path, key)
        elif key in _LISTS and isinstance(value, dict | list):
            for i, each in value.items() if isinstance(value, dict) else enumerate(value):
                yield from _foreign(each, keys, (*path, key, i))


def _relabelled(entry: Any) -> Any:
    """An entry of the older grammar with its `subflavor` among the subflavors."""
    if not isinstance(entry, dict) or "subflavor" not in entry:
        return entry
    rest = {key: value for key, value in entry.items() if key != "subflavor"}
    labels = rest.get("subflavors", {})
    own = {"__subflavor__": entry["subflavor"]}
    return {**rest, "subflavors": {**own, **labels} if isinstance(labels, dict) else labels}


def json_schema() -> dict[str, Any]:
    """Return our grammar as a JSON schema, for editors; Energon's older one is not looked into."""
    older = {"properties": {"__class__": {"const": "Metadataset"}}, "required": ["splits"]}
    own = DOCUMENT.json_schema()
    return {
        "$schema": DIALECT,
        "title": "energize metadataset",
        "description": "Weighted sources of a training run",
        "$defs": own.pop("$defs"),
        "anyOf": [own, {"type": "object", **older}],
    }
