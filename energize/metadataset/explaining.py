"""Schema errors as a reader of the file sees them: the place, what was expected, what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from energize.errors import nearest
from energize.metadataset.located_yaml import KeyPath, LocatedYaml
from energize.metadataset.problems import Problem, number_hint, shown
from energize.metadataset.schema import (
    Document,
    model_at,
    node_expected,
    without_kinds,
)
from energize.metadataset.schema_base import ENERGON, NODE, RULE, DatasetNode, Strict
from energize.metadataset.schema_energon import (
    BlendEntry,
    BlendNodeV1,
    DatasetEntry,
    DatasetEntryV1,
    DocumentEnergon,
)
from energize.metadataset.schema_mixing import MixBlendEntry, MixDatasetEntry, MixNode
from energize.metadataset.schema_splits import (
    STAGES,
    BlendAndStages,
    BlendStage,
    DatasetStage,
    Stages,
)

__all__ = ["explained"]

_LATER = frozenset(
    ("aux", "blend_epochized", "join", "joiner", "nonmatch", "repetitions", "subset")
)
_MODELS = (DatasetEntry, BlendEntry, DatasetEntryV1, BlendNodeV1)
_OWN_MODELS = (MixDatasetEntry, MixBlendEntry, MixNode, BlendStage, BlendAndStages)
_EITHER = (DatasetNode, DatasetEntry, MixDatasetEntry, DatasetStage)
"""What a node without `path` and without `blend` is checked as."""
_SPLITS = (DatasetNode, MixNode)
"""What a split without `stages` is checked as."""
_OLDER = (BlendNodeV1, DatasetEntryV1)
_OF_STAGE_FILES = {
    "data_stages": STAGES,
    "dataset_path": "path",
    "dataset_folders": "blend",
    "dataset_weights": "weight",
    "dataset_random_seed": "seed",
}
"""Keys of stage files, and what they are called here."""
_INSIDE = (MixDatasetEntry, MixBlendEntry, DatasetStage, BlendStage)
"""What a part of a split is checked as."""


def explained(text: LocatedYaml, model: type[Document], error: ValidationError) -> list[Problem]:
    """One problem for each fault in `error`, which validating `text` with `model` raised."""
    errors = error.errors(include_url=False)
    unknown = [_path(model, each) for each in errors if each["type"] == "extra_forbidden"]
    return [
        text.problem(*_explained(text.data, model, each))
        for each in errors
        if not (each["type"] == "missing" and _is_misspelt(_path(model, each), unknown))
    ]


def _explained(data: Any, model: type[Document], error: ErrorDetails) -> tuple[KeyPath, str]:
    """The path at which the error is shown, and its message."""
    path = _path(model, error)
    if error["type"] == RULE:
        return path, error["msg"]
    if not path or isinstance(path[-1], int) or path[:-1] == ("splits",):
        return path, _unexpected(node_expected(model, path), error["input"])
    mapping = _at(data, path[:-1])
    mapping_model, key = model_at(model, path[:-1], mapping), str(path[-1])
    if error["type"] == "missing":
        return path[:-1], _missing(mapping_model, key)
    if error["type"] == "extra_forbidden":
        return path, _unknown(mapping_model, key, mapping, energon=model is DocumentEnergon)
    expected, words = _expected(mapping_model, key)
    return path, _unexpected(expected, error["input"], words)


def _is_misspelt(missing: KeyPath, unknown: Sequence[KeyPath]) -> bool:
    """Whether an unknown key beside it says already what happened to a missing one."""
    words = ["path", "blend", STAGES] if missing[-1] == "path" else [str(missing[-1])]
    beside = [str(path[-1]) for path in unknown if path[:-1] == missing[:-1]]
    instead = (*_LATER, STAGES) if "path" in words else ()
    return any(nearest(key, words) or key in instead for key in beside)


def _path(model: type[Document], error: ErrorDetails) -> KeyPath:
    return without_kinds(model, error["loc"])


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _keys(model: type[Strict]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _missing(model: type[Strict], key: str) -> str:
    if key == "path" and model in _EITHER:
        return f"neither 'path' nor 'blend' is given; expected {NODE}"
    return f"the key {key!r} is missing; expected {_expected(model, key)[0]}"


def _unknown(model: type[Strict], key: str, siblings: Mapping[str, Any], *, energon: bool) -> str:
    valid = _keys(model)
    if model in _EITHER and "path" not in siblings:
        valid.append("blend")
    if model is Stages:
        valid += ["path", "blend"]
    if model in _SPLITS and not energon:
        valid.append(STAGES)
    if {"path", "blend"} <= set(siblings) and key == "path":
        return f"both 'path' and 'blend' are given; expected exactly one of them: {NODE}"
    listed = f"Valid keys here: {', '.join(valid)}"
    fault = _known_elsewhere(model, key, energon=energon)
    if fault:
        return f"{fault}. {listed}"
    return f"unknown key {key!r}{nearest(key, valid) or '.'} {listed}"


def _known_elsewhere(model: type[Strict], key: str, *, energon: bool) -> str:
    """What is wrong with a key of another place or another version; "" for other keys."""
    if key == STAGES and model in _INSIDE:
        return (
            f"{key!r} are parts of the whole run, so they stand in a split, not in an entry of a "
            "blend or in another stage"
        )
    if key in Stages.model_fields and model in _SPLITS and not energon:
        return f"the key {key!r} stands beside {STAGES!r}, and there are none"
    if key in _LATER:
        return f"unsupported key {key!r}: this version does not know it"
    if key in _OF_STAGE_FILES and not energon:
        return (
            f"unknown key {key!r}, which is for stage files, with a table 'training'; in a "
            f"metadataset it is {_OF_STAGE_FILES[key]!r}"
        )
    return _of_other_models(model, key, energon=energon)


def _of_other_models(model: type[Strict], key: str, *, energon: bool) -> str:
    own = any(key in _keys(other) for other in _OWN_MODELS)
    if own and model in _OLDER:
        return (
            f"unknown key {key!r} in a file of the older grammar; it needs "
            "`__class__: MetadatasetV2`"
        )
    if any(key in _keys(other) for other in _MODELS) or (own and not energon):
        return f"the key {key!r} has no place here"
    return (
        f"unknown key {key!r} in a {ENERGON} file; it needs `__module__: energize`" if own else ""
    )


def _unexpected(expected: str, value: Any, words: Sequence[str] = ()) -> str:
    hint = ""
    if isinstance(value, str):
        hint = number_hint(value) or nearest(value, words)
        hint = f"; write `path: {value}`" if expected == NODE else hint
    return f"expected {expected}; got {shown(value)}{hint}"


def _expected(model: type[Strict], key: str) -> tuple[str, list[str]]:
    """What a key of `model` takes, and the words to choose from when only certain ones will do."""
    field = next(f for name, f in model.model_fields.items() if key == (f.alias or name))
    return str(field.description), _words(field.annotation)


def _words(annotation: Any) -> list[str]:
    """The texts that a type allows, when it allows only certain ones."""
    parts = get_args(annotation)
    return [part for part in parts if isinstance(part, str)] or [
        word for part in parts for word in _words(part)
    ]
