"""Parts of mixture files that several projects have: entries, shares, conversations."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any

from energize.core.validation import KeyPath, parse_json, short
from energize.data.files import files_at, path_of
from energize.errors import nearest
from energize.recipes.recipe import IMAGE_FOLDER, Recipe, RecipeEntry, RecipeText

FIXED = {"sampling_method": "fixed"}
"""Of a blend by quotas: the same samples in every epoch."""
IMAGES = {IMAGE_FOLDER: "the folder in which names of images in rows begin"}
"""The option of every format."""
MEDIA = ("images", "videos")
_LABELS = {"prompt": "user", "query": "user", "response": "assistant"}
_LABELLED = ("system", "history", *_LABELS, *MEDIA)


def checked(
    text: RecipeText, path: KeyPath, value: Any, choices: Collection[Any]
) -> Any:
    """Return a value; note a fault if it is not one of the choices.

    Args:
        text: The recipe.
        path: The path of the value in the recipe.
        value: The value.
        choices: The values that the original takes.
    """
    if value not in choices:
        names = [str(choice) for choice in choices]
        hint = nearest(str(value), names) or "."
        expected = f"expected {', '.join(names)}, got {short(value)}{hint}"
        text.fault(path, f"{expected} {text.format} stops here, too")
    return value


def entry_of(
    text: RecipeText, at: KeyPath, row: Any, names: Mapping[str, str]
) -> RecipeEntry:
    """Return the entry of a mapping with a `path`.

    Args:
        text: The recipe.
        at: The path of the mapping in the recipe.
        row: The mapping.
        names: The key of the entry for each key of the mapping; "" for no key.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("path"), str):
        text.fault(at, f"expected a mapping with a path, got {short(row)}")
        return RecipeEntry({}, at)
    text.check_keys(at, row, ("path", *names), f"{text.format} does not read it")
    keys = {new: row[old] for old, new in names.items() if new and row.get(old)}
    file = text.existing((*at, "path"), row["path"].removeprefix("hf://"))
    if text.images is not None:
        keys[IMAGE_FOLDER] = text.images
    renamed = {new: old for old, new in names.items()}
    return RecipeEntry({"path": str(file), **keys}, at, renamed)


def read_json(text: RecipeText, path: KeyPath, name: str) -> Any:
    """Return the content of a JSON file; None, with a fault, if it cannot be read.

    Args:
        text: The recipe.
        path: The path of the value in the recipe.
        name: The path of the file.
    """
    file = text.existing(path, name)
    if file is None:
        return None
    try:
        return parse_json(files_at(file).read(str(file)), unique=True)
    except (OSError, ValueError) as reason:
        text.fault(path, f"{file} cannot be read: {reason}")
        return None


def interleaved(
    text: RecipeText,
    entries: Sequence[RecipeEntry],
    weights: str | Sequence[float] | None,
    stop: str,
) -> Recipe:
    """Return entries that are mixed as by `interleave_datasets` of Hugging Face.

    Args:
        text: The recipe.
        entries: The entries.
        weights: A weight for each entry, as a list or a text with commas; None reads
            the entries in turn.
        stop: "first_exhausted"; "all_exhausted", which repeats entries until each has
            been read; or "all_exhausted_without_replacement".
    """
    rows = _shares(text, entries, weights)
    text.note(
        f"{text.format} draws the source of every sample at random; here shares are "
        "exact, and equal on all ranks"
    )
    if stop == "all_exhausted" and rows:
        sizes = [size_of(text, entry) / share for entry, share in rows if share]
        size = math.ceil(max(sizes) * sum(share for _, share in rows))
        weighed = [_weighed(entry, "proportion", share) for entry, share in rows]
        return text.mix("blend", weighed, (), epoch_size=size)
    settings = {"stop": stop.removesuffix("_without_replacement")}
    if weights is None:
        settings["scheme"] = "round_robin"
    weighed = [_weighed(entry, "weight", share) for entry, share in rows]
    return text.mix("blend", weighed, (), **settings)


def _shares(
    text: RecipeText,
    entries: Sequence[RecipeEntry],
    weights: str | Sequence[float] | None,
) -> list[tuple[RecipeEntry, Fraction]]:
    """Return entries with their shares; none, with a fault, if they do not fit."""
    listed = weights.split(",") if isinstance(weights, str) else weights
    shares = [Fraction(str(weight).strip()) for weight in listed or [1] * len(entries)]
    if len(shares) == len(entries) and any(shares):
        return list(zip(entries, shares, strict=True))
    shown = [*map(float, shares)]
    stops = f"{text.format} stops here, too"
    text.fault((), f"{len(entries)} datasets have the shares {shown}. {stops}")
    return []


def _weighed(entry: RecipeEntry, key: str, share: Fraction) -> RecipeEntry:
    """Return an entry with a share; one with a number of samples as a blend."""
    keys = entry.keys
    if "choose" in keys:
        keys = {**FIXED, "blend": [keys]}
    return entry._replace(keys={**keys, key: float(share)})


def is_drawn(entries: Sequence[RecipeEntry]) -> bool:
    """Return whether some entries have a part of their samples, or repeat samples.

    Args:
        entries: The entries.
    """
    return any({"choose", "repeat"} & entry.keys.keys() for entry in entries)


def size_of(text: RecipeText, entry: RecipeEntry) -> int:
    """Return the samples of an entry in an epoch, at least 1.

    Args:
        text: The recipe.
        entry: The entry.
    """
    keys = entry.keys
    subset = keys.get("subset", {})
    chosen: int | None = keys.get("choose", subset.get("random"))
    start, end = subset.get("range", (0, "end"))
    if chosen is None and end != "end":
        chosen = end - start
    if chosen is None and not text.faults:
        file = path_of(keys["path"])
        chosen = text.count(entry.path, file, keys.get("split_part", "train"))
    return chosen or 1


def validation(
    text: RecipeText, entries: Sequence[RecipeEntry], around: KeyPath
) -> Recipe:
    """Return the recipe of the split `val`: every sample of some entries once.

    Args:
        text: The recipe.
        entries: The entries.
        around: The path of their list in the recipe.
    """
    whole = [_once(text, entry) for entry in entries]
    return text.mix("concat", whole, around, part="val")


def _once(text: RecipeText, entry: RecipeEntry) -> RecipeEntry:
    """Return an entry with a random subset in place of a number of samples."""
    keys = {key: value for key, value in entry.keys.items() if key != "choose"}
    number = entry.keys.get("choose")
    keys.setdefault("split_part", "train")
    whole = entry._replace(keys=keys)
    if number is None or text.faults:
        return whole
    subset = text.subset(entry.path, "random", number, size_of(text, whole))
    return whole._replace(keys={**keys, **subset})


def hold_out(recipe: Recipe, ratio: float) -> Recipe:
    """Add the split `val`, the last samples of every dataset, to a recipe.

    Args:
        recipe: A recipe.
        ratio: The part of the samples, from 0 and below 1.
    """
    splits = recipe.document["splits"]
    if ratio:
        bound = f"{100 * (1 - ratio):.9g}%"
        ranges = {"train": ["0%", bound], "val": [bound, "100%"]}
        whole = _of_train(splits["train"])
        splits |= {n: {**whole, "subset": {"range": r}} for n, r in ranges.items()}
    return recipe


def _of_train(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys of a node whose data are those of the split train in any split."""
    for name in ("blend", "blend_epochized"):
        if name in keys:
            return {**keys, name: list(map(_of_train, keys[name]))}
    return {"split_part": "train", **keys}


def conversation_fields(
    columns: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
    *,
    ranking: bool = False,
    last: bool = False,
) -> dict[str, Any]:
    """Return the sample type and the field map for columns of conversations.

    Args:
        columns: The column of each part: `messages`, or `prompt`, `query`, `response`
            and `history`; `system`, `tools`, `images`, `videos`, `chosen`, `rejected`.
        tags: Keys and roles of turns that are not the usual ones, by `role_tag` etc.
        ranking: Whether there are two answers.
        last: Whether only the last answer is learned.

    Example:
        >>> conversation_fields({"prompt": "q", "response": "a"})["field_map"]
        {'turns': 'chat(user=q, assistant=a)'}
    """
    if not ranking and columns.keys().isdisjoint(("messages", "response")):
        field_map = {"text": columns.get("prompt", "")}
        return {"sample_type": "TextSample", "field_map": field_map}
    fields = {name: columns[name] for name in (*MEDIA, "tools") if name in columns}
    tagged = [f"{name}='{tag}'" for name, tag in (tags or {}).items()]
    turns = _turns(columns, tagged, last=last)
    if not ranking:
        field_map = {"turns": turns, **fields}
        return {"sample_type": "ConversationSample", "field_map": field_map}
    answers = {name: columns.get(name, name) for name in ("chosen", "rejected")}
    if tagged:
        parts = answers.items()
        answers = {n: f"placed({', '.join([part, *tagged])})" for n, part in parts}
    field_map = {**answers, "prompt": turns, **fields}
    return {"sample_type": "PreferenceSample", "field_map": field_map}


def _turns(columns: Mapping[str, Any], tagged: list[str], *, last: bool) -> str:
    """Return the part of the field `turns`."""
    call = "placed" if "messages" in columns else "chat"
    listed = [columns["messages"]] if "messages" in columns else []
    listed += [f"{_LABELS.get(n, n)}={columns[n]}" for n in _LABELLED if n in columns]
    listed += tagged if "messages" in columns else []
    return f"{'last_answer' if last else call}({', '.join(listed)})"
