"""The saved state of a loader: what it holds, and whether it fits."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any

from energize.core.config import outlines, packed, tree_differences, unpacked
from energize.core.dataset import Dataset
from energize.core.stream import INFINITE, State, state_field
from energize.errors import ConfigError, StateError, StateMismatchError, WeightError, nearest
from energize.loader.edits import NOT_EDITED, Edits
from energize.loader.remapping import RemapReport, remapped
from energize.loader.replaced import kept_records, replaced_sources, told
from energize.loader.sealing import checked_state, sealed

_DIFFERENCES_SHOWN, _DIFFERENCES_FOUND = 20, 1000

_FUNCTIONS_KEPT, _FUNCTION_LENGTH, _DETAILS_LENGTH = 40, 300, 2048

_log = logging.getLogger("energize")


def packed_state(dataset: Dataset[Any], cursor: State) -> State:
    """The state to save: `version`, the `digest` of what decides which samples come, as much of it
    as a state may hold (`dataset`), `details` that change no sample, the `cursor`'s state, and a
    `check` value of all these.

    All but the first are texts. torch.distributed.checkpoint cuts dicts and lists into one entry
    for each leaf, and then insists on the same leaves when it loads; a text stays one entry.
    """
    return sealed(
        {
            "digest": dataset.survey.digest,
            "dataset": dataset.packed_outline,
            "details": _packed_details(dataset),
            "cursor": packed(cursor),
        }
    )


def _packed_details(dataset: Dataset[Any]) -> str:
    """Where loops end, where folders are mounted, the functions that are called on items, as many
    as there is room for, and by what files of sources are known again.
    """
    survey = dataset.survey
    details: dict[str, Any] = {"loop": dataset.steps_per_epoch, "places": survey.places}
    most = min(len(survey.functions), _FUNCTIONS_KEPT)
    while True:
        names = [each[:_FUNCTION_LENGTH] for each in survey.functions[:most]]
        if len(packed(details | {"functions": names})) <= _DETAILS_LENGTH or not most:
            return packed(details | {"functions": names} | kept_records(dataset))
        most //= 2


ON_MISMATCH = ("error", "remap")


def unpacked_state(dataset: Dataset[Any], saved: object) -> State:
    """The cursor's state in a saved one, for what has no weights that change; see `resumed`."""
    cursor, _ = resumed(dataset, saved)
    if Edits.loaded(cursor) != NOT_EDITED:
        raise StateError(
            "the saved state is of a run whose weights were changed while it went on, or whose mix "
            "was edited; a loader of get_loader goes on from it"
        )
    return cursor


def resumed(
    dataset: Dataset[Any], saved: object, *, strict: bool = True, on_mismatch: str = "error"
) -> tuple[State, RemapReport | None]:
    """The cursor's state in a saved one, and what it became in an edited mix.

    Raises `StateMismatchError` when it was saved over another dataset, `StateError` when it is not
    a state of this version at all. Without `strict` differences are warnings, as is what changes no
    sample in any case: other functions, folders mounted elsewhere, loops of another length. With
    `on_mismatch="remap"` sources that are still there keep their places, see `remapped`.
    """
    if on_mismatch not in ON_MISMATCH:
        raise ConfigError(
            f"on_mismatch is one of {', '.join(ON_MISMATCH)}; got {on_mismatch!r}"
            f"{nearest(str(on_mismatch), ON_MISMATCH)}"
        )
    if on_mismatch == "remap" and not strict:
        raise ConfigError(
            "strict=False ignores differences, on_mismatch='remap' does not: give one"
        )
    state = checked_state(saved)
    cursor = unpacked(state_field(state, "cursor", str), "cursor")
    found = _mismatches(dataset, state, cursor)
    if found and on_mismatch == "remap":
        cursor, report = remapped(dataset, state, cursor, _replaced(dataset, state))
        return cursor, report
    if found:
        _refuse(found, strict=strict)
    _warn_of_details(dataset, state)
    return cursor, None


def is_of(dataset: Dataset[Any], state: State) -> bool:
    """Whether a state was saved over this very dataset, with these functions."""
    before, now = _details(state), unpacked(_packed_details(dataset), "details")
    same_functions = before.get("functions") == now["functions"]
    return same_functions and bool(state["digest"] == dataset.survey.digest)


def differences(dataset: Dataset[Any], saved: object) -> list[str]:
    """What forbids to go on from a saved state over a dataset, a line each; none where it fits."""
    state = checked_state(saved)
    return _mismatches(dataset, state, unpacked(state_field(state, "cursor", str), "cursor"))


def _refuse(found: list[str], *, strict: bool) -> None:
    shown = "\n".join(f"  {each}" for each in found[:_DIFFERENCES_SHOWN])
    more = len(found) - _DIFFERENCES_SHOWN
    text = (
        "the saved state belongs to another dataset, and positions in that one mean nothing in "
        f"this one:\n{shown}{f'{chr(10)}  and {more} more' if more > 0 else ''}"
    )
    if strict:
        raise StateMismatchError(
            f"{text}\nBuild the dataset as it was, start without the state, have every source that "
            "is still there go on where it stands with load_state_dict(state, "
            'on_mismatch="remap"), or go on all the same with load_state_dict(state, strict=False)'
        )
    _log.warning("%s\n  (it goes on all the same: strict=False)", text)


def _mismatches(dataset: Dataset[Any], saved: State, cursor: State) -> list[str]:
    found = _loops_that_differ(dataset, saved) + told(_replaced(dataset, saved))
    outline = state_field(saved, "dataset", str)
    if state_field(saved, "digest", str) == dataset.survey.digest:
        return found
    trees = outlines(outline, dataset)
    changes = replace(Edits.loaded(cursor), moves=())
    if changes.changes:  # both with what was changed while the run went on
        try:
            dataset = changes.applied(dataset)
        except (ConfigError, WeightError) as reason:  # mostly a source that is gone
            apart = itertools.islice(tree_differences(*trees), _DIFFERENCES_FOUND)
            return found + (list(dict.fromkeys(apart)) or [str(reason)])
        now = outlines(outline, dataset)[1]
        trees = _with_changes(*trees, now), now
    later: list[str] = []
    try:
        lines = (
            line
            for place in _places(dataset, cursor)
            for line in dataset.mismatches(*trees, place, later)
        )
        found += dict.fromkeys(itertools.islice(lines, _DIFFERENCES_FOUND))
    except RecursionError as error:
        raise StateError("the saved state's 'dataset' is nested too deep: damaged") from error
    if later and not found:
        _log.warning("after the place of the saved state other samples come:\n  %s", later[0])
    unnamed = "something of its settings is different (a state of so wide a mix does not keep what)"
    return found or ([] if later else [unnamed])


def _replaced(dataset: Dataset[Any], saved: State) -> list[Any]:
    """The sources whose files are others than when the state was saved."""
    same_mix = state_field(saved, "digest", str) == dataset.survey.digest
    return replaced_sources(dataset, _details(saved), same_mix=same_mix)


def _with_changes(saved: Any, given: Any, changed: Any) -> Any:
    """A saved outline with the changes by which `changed` differs from `given`."""
    trees = (saved, given, changed)
    if given == changed or not all(isinstance(each, dict) for each in trees):
        return saved
    found = dict(saved)
    lists = [each.get("inputs") for each in trees]
    if all(isinstance(each, list) for each in lists):
        found["inputs"] = [_with_changes(*each) for each in zip(*lists, strict=False)]
    before, now = given.get("changes"), changed.get("changes")
    if before != now and isinstance(saved.get("changes"), list):
        found["changes"] = sorted([*saved["changes"], *(c for c in now if c not in before)])
    return found


def _places(dataset: Dataset[Any], cursor: State) -> list[State]:
    """The state of what is read, or of a stream that in each of its lanes; empty before its first
    item.
    """
    if dataset.indexed or "cursors" not in cursor:
        return [cursor]
    lanes = unpacked(state_field(cursor, "cursors", str), "cursors").get("cursors")
    read = [each for each in _listed(lanes) if isinstance(each, dict)]
    return [state_field(each, "input", dict) for each in read] or [{}]


def _loops_that_differ(dataset: Dataset[Any], saved: State) -> list[str]:
    """Loops that count steps, where they did not, or the other way round: an obstacle where passes
    end, which without loops all lanes do together.
    """
    node = dataset
    while node.passes_on or node.ends_loops:
        node = node.inputs[0]
    if dataset.indexed or (node.sized and node.size == INFINITE):
        return []
    before, now = _details(saved).get("loop", dataset.steps_per_epoch), dataset.steps_per_epoch
    if (before is None) == (now is None):
        return []
    return [
        f"a loop was {_loop(before)}, is {_loop(now)} (EpochizeDataset, virtual_epoch_length): the "
        "lanes of a stream whose passes end are read in another order then"
    ]


def _warn_of_details(dataset: Dataset[Any], saved: State) -> None:
    """Tell what is different and changes no sample."""
    details = _packed_details(dataset)
    if saved.get("details") == details:
        return
    before, now = _details(saved), unpacked(details, "details")
    if not before:
        return
    lines = []
    if before.get("loop") != now["loop"]:
        lines.append(f"a loop was {_loop(before.get('loop'))}, is {_loop(now['loop'])}")
    if before.get("places") != now["places"]:
        lines.append("folders are mounted elsewhere")
    old, new = ([str(each) for each in _listed(tree.get("functions"))] for tree in (before, now))
    for word, names in (
        ("gone", [each for each in old if each not in new]),
        ("new", [each for each in new if each not in old]),
    ):
        lines += [f"functions that are {word}: {', '.join(names)}"] if names else []
    if lines:
        text = "the saved state fits, though not all is as it was; no sample depends on it:\n%s"
        _log.warning(text, "\n".join(f"  {line}" for line in lines))


def _details(saved: State) -> State:
    """Nothing where they are damaged, for no sample depends on them."""
    try:
        return unpacked(state_field(saved, "details", str), "details")
    except StateError:
        return {}


def _loop(steps: object) -> str:
    return "an epoch" if steps is None else f"{steps} steps"


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
