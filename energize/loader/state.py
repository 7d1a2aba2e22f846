"""The saved state of a loader.

A state contains the fingerprint and the config of the order, details that no sample
depends on, the position (the cursor), and a check value, which detects damage. All
fields but the version are texts: torch.distributed.checkpoint splits dicts and lists
into an entry for each leaf, and requires the same leaves when it loads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from energize.core import limits, tree
from energize.core.blends import (
    NOT_EDITED,
    Edits,
    saved_part_positions,
    with_names_of,
)
from energize.core.config import (
    Tree,
    changed_until,
    config_tree,
    leaf_names,
    packed,
    source_key,
    unpacked,
)
from energize.core.dataset import Dataset
from energize.core.description import digest
from energize.core.lanes import is_first_rank
from energize.core.node import INFINITE
from energize.core.stream import (
    MOST_COUNTED,
    State,
    counter_field,
    state_field,
)
from energize.errors import (
    ConfigError,
    StateError,
    StateMismatchError,
    WeightError,
    nearest,
)
from energize.loader.position import StreamPosition, items_of
from energize.loader.remap import RemapReport, remapped
from energize.report.ledger import Book, Ledger
from energize.report.statement import ReportBuilder, ReportPosition
from energize.report.table import LedgerRow, Report, ReportScope

VERSION = 5

FIELDS = ("fingerprint", "config", "details", "cursor")
"""The texts of a state."""

ON_MISMATCH = ("error", "remap")

_SHOWN = 20
_FOUND = 1000
"""Maximum numbers of differences that are shown, and compared."""

_OF_CURSOR = (
    *(
        "position",
        "offset",
        "step",
        "lanes",
        "epoch",
        "taken",
        "input",
        "cursors",
        "places",
    ),
    *("slot", "changes", "moves", "stage_idx", "stage_name", "begun", "anchors"),
)
_DETAILS_LENGTH = 2048

_log = logging.getLogger("energize")


def packed_state(
    dataset: Dataset[Any], cursor: State, world_size: int | None = None
) -> State:
    """Return the state to save.

    Args:
        dataset: The dataset of the run, without edits.
        cursor: The position.
        world_size: Number of ranks; None if it is not recorded.
    """
    config = dataset.order_config
    details = _details(dataset)
    if world_size is not None:
        details["world_size"] = world_size
    texts = (config.fingerprint, config.text, packed(details), packed(cursor))
    return sealed(dict(zip(FIELDS, texts, strict=True)))


def sealed(state: Mapping[str, str]) -> State:
    """Return a state with these texts and their check value."""
    texts = {name: state[name] for name in FIELDS}
    return {"version": VERSION, **texts, "check": _check(texts)}


def _check(state: Mapping[str, str]) -> str:
    return digest([state[name] for name in FIELDS])[:16]


def _details(dataset: Dataset[Any]) -> State:
    """Return the details of a state: loops, folders, functions and file records.

    No sample depends on them.
    """
    config = dataset.order_config
    functions = [function[:300] for function in config.functions]
    while len("".join(functions)) > _DETAILS_LENGTH:
        functions = functions[: len(functions) // 2]
    records = config.records
    return {
        "loop": tree.steps_per_loop(dataset),
        "places": config.places,
        "functions": functions,
        **({"records": records} if records else {}),
        **({"mix": list(dataset.mix_file)} if dataset.mix_file else {}),
    }


def checked_state(saved: object) -> State:
    """Validate a saved state. The check value detects damage; it is not a signature.

    Raises:
        StateError: If the value is not a state, or was changed.
    """
    if not isinstance(saved, Mapping):
        raise StateError(
            "a loader's state must be the dict that state_dict() returned (from a "
            f"file: torch.load(file)), got {type(saved).__name__}"
        )
    version = saved.get("version")
    if type(version) is not int or version != VERSION:
        raise StateError(
            f"the saved state has 'version' {str(version)[:20]}, this energize reads "
            f"version {VERSION}. Resume with the energize that saved it"
        )
    for name in saved:
        if name not in ("version", *FIELDS, "check"):
            raise StateError(
                f"the saved state has the unknown field {str(name)[:80]!r}. Load the "
                "dict that state_dict() returned, "
                f"unchanged{nearest(str(name)[:80], FIELDS)}"
            )
    state: State = {"version": VERSION}
    for name in (*FIELDS, "check"):
        state[name] = text = state_field(dict(saved), name, str)
        if len(text) > limits.JSON_BYTES:
            raise StateError(
                f"the saved state's {name!r}: {limits.over('JSON_BYTES', len(text))}"
            )
    if state["check"] != _check(state):
        raise StateError(
            "the saved state was changed or damaged since it was saved: its check "
            "value differs. Load another copy of it, or the state saved before it. Do "
            "not edit a state by hand: to resume in an edited mix, load it with "
            'on_mismatch="remap" or rewrite it with `energize state remap`. For other '
            "weights use set_weights"
        )
    return state


def tree_of(state: State) -> Tree:
    """Return the config in a saved state."""
    tree = unpacked(state_field(state, "config", str), "config")
    if "kind" not in tree:
        raise StateError(
            "the saved state's 'config' is damaged: it describes no dataset"
        )
    return tree


def cursor_of(state: State) -> State:
    """Return the cursor in a saved state.

    Raises:
        StateError: If its fields are not valid.
    """
    cursor = unpacked(state_field(state, "cursor", str), "cursor")
    for name in cursor:
        if name not in _OF_CURSOR:
            hint = nearest(name, _OF_CURSOR)
            raise StateError(
                f"the saved state's 'cursor' has the unknown field {name[:80]!r}{hint}"
            )
    for name in ("lanes", "epoch", "position", "offset", "step", "slot", "begun"):
        if name in cursor:
            counter_field(cursor, name)
    if "lanes" in cursor:
        StreamPosition.loaded(cursor)
    return cursor


def unpacked_state(dataset: Dataset[Any], saved: object) -> State:
    """Return the cursor in a state, for loaders with constant weights."""
    cursor, _ = resumed(dataset, saved, strict=None)
    if Edits.loaded(cursor) != NOT_EDITED:
        raise StateError(
            "the saved state is of a run with changed weights or an edited mix. Load "
            "it into a loader of get_loader"
        )
    check_place(tree.anchored_at(dataset, tree.anchors_in(dataset, cursor)), cursor)
    return cursor


def resumed(
    dataset: Dataset[Any],
    saved: object,
    *,
    strict: bool | None = True,
    on_mismatch: str = "error",
) -> tuple[State, RemapReport | None]:
    """Return the cursor from which a run over a dataset resumes.

    Args:
        dataset: The dataset.
        saved: The state.
        strict: Whether differences are errors. If False, they are logged as warnings.
            None is True for callers without this option.
        on_mismatch: "error", or "remap" to keep the positions of sources that are still
            in the mix, see `remapped`.

    Returns:
        The cursor, and a report if the mix was edited.

    Raises:
        StateMismatchError: If the state was saved with another dataset.
        StateError: If it is not a valid state of this version.
    """
    _check_on_mismatch(on_mismatch, strict=strict)
    state = checked_state(saved)
    cursor = with_names_of(dataset, cursor_of(state))
    details = saved_details(state)
    current = _details(dataset)
    gone = _replaced(dataset, details, current)
    mismatches = _mismatches(dataset, state, cursor, details, gone)
    if mismatches and on_mismatch == "remap":
        return remapped(dataset, tree_of(state), cursor, gone)
    loop: Any = details.get("loop", INFINITE) or 1
    step: Any = cursor.get("step", 0 if loop in (1, INFINITE) else loop)
    if mismatches:
        _refuse(mismatches, strict=strict)
        cursor.pop("places", None)  # they are of the mix as it was
    elif not isinstance(loop, int) or step >= loop:
        raise _no_place(f"step {step} of {loop}")
    _warn_of_details(details, current)
    return cursor, None


def _check_on_mismatch(on_mismatch: str, *, strict: bool | None) -> None:
    if on_mismatch not in ON_MISMATCH:
        raise ConfigError(
            f"on_mismatch must be one of {', '.join(ON_MISMATCH)}, got "
            f"{on_mismatch!r}{nearest(str(on_mismatch), ON_MISMATCH)}"
        )
    if on_mismatch == "remap" and not strict:
        raise ConfigError(
            "strict=False ignores differences, on_mismatch='remap' does not. Pass one "
            "of the two"
        )


def check_place(dataset: Dataset[Any], cursor: State) -> None:
    """Check the counts of a cursor against the order of a dataset with the edits of the
    state.

    Raises:
        StateError: If a run over the dataset does not reach this position.
    """
    if "places" not in cursor:
        return
    saved_counts = state_field(cursor, "places", dict)
    lanes = StreamPosition.loaded(cursor) if "lanes" in cursor else None
    expected = saved_part_positions(dataset, cursor.get("position", 0), lanes).get(
        "places", {}
    )
    for (
        part,
        count,
    ) in (
        saved_counts.items()
    ):  # parts that change after this place are others in the mix
        counts = type(count) is int and 0 <= count < MOST_COUNTED
        items = expected.get(part, count if counts else "another number")
        if not counts or count != items:
            shown = str(count)[:80]
            raise _no_place(
                f"{shown} samples of a source of which {items} have come there"
            )


def _no_place(detail: str) -> StateError:
    return StateError(
        f"the saved position does not exist in this dataset: {detail}. Load the state "
        "as it was saved; states cannot be edited by hand"
    )


def differences(dataset: Dataset[Any], saved: object) -> list[str]:
    """Return the differences that prevent a resume, one line each."""
    state = checked_state(saved)
    details = saved_details(state)
    current = _details(dataset)
    gone = _replaced(dataset, details, current)
    cursor = with_names_of(dataset, cursor_of(state))
    return _mismatches(dataset, state, cursor, details, gone)


def _refuse(mismatches: list[str], *, strict: bool | None) -> None:
    shown = "\n".join(f"  {line}" for line in mismatches[:_SHOWN])
    more = len(mismatches) - _SHOWN
    text = (
        "the saved state belongs to another dataset, and positions in that one mean "
        "nothing in this one:\n"
        f"{shown}{f'{chr(10)}  and {more} more' if more > 0 else ''}"
    )
    if strict is not False:
        more_ways = (
            "; or have every source that is still there go on where it stands with "
            'load_state_dict(state, on_mismatch="remap"), or go on all the same with '
            "load_state_dict(state, strict=False)"
        )
        raise StateMismatchError(
            f"{text}\nBuild the dataset as it was, or start without the state"
            f"{more_ways if strict else ''}"
        )
    _warn("%s\n  (it resumes anyway: strict=False)", text)


def _warn(text: str, *arguments: object) -> None:
    if is_first_rank():
        _log.warning(text, *arguments)


def _mismatches(
    dataset: Dataset[Any],
    saved: State,
    cursor: State,
    details: State,
    replaced: Sequence[Any],
) -> list[str]:
    """Return the differences that prevent a resume, one line each."""
    lines = _loops_that_differ(dataset, details) + _replaced_lines(replaced)
    if saved["fingerprint"] == dataset.order_config.fingerprint:
        return lines
    saved_config = tree_of(saved)
    config = config_tree(dataset)
    position = cursor.get("position")
    try:
        dataset = tree.anchored_at(dataset, tree.anchors_in(dataset, cursor))
    except StateError:  # anchors of another dataset
        position = None
    changes = replace(Edits.loaded(cursor), moves=())
    if changes.changes:  # compare both after the changes of the run
        try:
            anchored = tree.anchors_in(dataset, cursor) if position else None
            edited = changes.applied(dataset, anchored=anchored)
        except (ConfigError, WeightError) as reason:  # mostly a source that is gone
            return lines + (
                _differences(dataset, saved_config, config, None) or [str(reason)]
            )
        edited_config = config_tree(edited)
        saved_config = _with_changes(saved_config, config, edited_config)
        config = edited_config
        dataset = edited
    items = position if isinstance(position, int) and dataset.sized else None
    try:
        config = unpacked(packed(config), "config")  # as JSON has it
        differing = _differences(dataset, saved_config, config, items)
        if not differing and not lines:
            later = "\n  ".join(_differences(dataset, saved_config, config, None))
            _warn("after the place of the saved state other samples come:\n  %s", later)
    except (RecursionError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise StateError(
            f"the saved state's 'config' is damaged: {str(error)[:200]}"
        ) from error
    return lines + differing


def _replaced_lines(replaced: Sequence[Any]) -> list[str]:
    names = dict.fromkeys([source.name for source in replaced])
    return [
        f"{name!r}: its shards are others than when the state was saved"
        for name in names
    ]


def _differences(
    dataset: Dataset[Any], saved: Tree, current: Tree, items: int | None
) -> list[str]:
    """Return the differences of two configs in the order after `items`."""
    lines = islice(changed_until(dataset, saved, current, items), _FOUND)
    return list(dict.fromkeys(lines))


def _with_changes(saved: Any, original: Any, changed: Any) -> Any:
    """Return a saved config with the changes that turn `original` into `changed`."""
    trees = (saved, original, changed)
    if original == changed or not _are_all(dict, trees):
        return saved
    result = dict(saved)
    inputs = [tree.get("inputs") for tree in trees]
    if _are_all(list, inputs):
        result["inputs"] = list(map(_with_changes, *inputs))
    original_changes = original.get("changes")
    changes = changed.get("changes")
    if original_changes != changes and isinstance(saved.get("changes"), list):
        new_changes = [change for change in changes if change not in original_changes]
        result["changes"] = sorted([*saved["changes"], *new_changes])
    return result


def _are_all(of_type: type, values: Sequence[Any]) -> bool:
    return all(isinstance(value, of_type) for value in values)


def _replaced(dataset: Dataset[Any], saved: State, current: State) -> list[Any]:
    """Return the sources with other files than when the state was saved.

    Files are no part of the fingerprint, since no order depends on their contents.
    """
    saved_records = saved.get("records")
    records = current.get("records", {})
    if saved_records == records or not isinstance(saved_records, dict):
        return []
    gone = {
        key
        for key, record in records.items()
        if saved_records.get(key, record) != record
    }
    return [source for source in dataset.sources if source_key(source) in gone]


def _loops_that_differ(dataset: Dataset[Any], details: State) -> list[str]:
    """Return a line if loops count steps in only one of two runs over finite streams.

    The lanes of such a stream end their passes together only without loops.
    """
    node = tree.unwrap(dataset)
    if dataset.indexed or (node.sized and node.size == INFINITE):
        return []
    loop = tree.steps_per_loop(dataset)
    saved_loop = details.get("loop", loop)
    if (saved_loop is None) == (loop is None):
        return []
    return [
        f"a loop was {_loop(saved_loop)}, is {_loop(loop)} (EpochizeDataset, "
        "virtual_epoch_length): the lanes of a stream whose passes end are read in "
        "another order then"
    ]


def _warn_of_details(saved: State, current: State) -> None:
    """Warn of differences that change no sample."""
    if not saved or saved == current:
        return
    lines = []
    if saved.get("loop") != current["loop"]:
        lines.append(
            f"a loop was {_loop(saved.get('loop'))}, is {_loop(current['loop'])}"
        )
    if saved.get("places") != current["places"]:
        lines.append("folders are mounted elsewhere")
    listed = saved.get("functions")
    old = [str(name) for name in listed] if isinstance(listed, list) else []
    lines += _functions_without("gone", old, current["functions"])
    lines += _functions_without("new", current["functions"], old)
    if lines:
        text = "the saved state fits; details differ that no sample depends on:\n%s"
        _warn(text, "\n".join(f"  {line}" for line in lines))


def _functions_without(
    word: str, functions: Sequence[str], excluded: Sequence[str]
) -> list[str]:
    names = [name for name in functions if name not in excluded]
    return [f"functions that are {word}: {', '.join(names)}"] if names else []


def saved_details(saved: State) -> State:
    """Return the details in a state; empty if they are damaged."""
    try:
        return unpacked(state_field(saved, "details", str), "details")
    except StateError:
        return {}


def _loop(steps: object) -> str:
    return "an epoch" if steps is None else f"{steps} steps"


def report_of_state(
    dataset: Dataset[Any] | None, state: State, *, strict: bool = True
) -> Report:
    """Return a report of a run, over all ranks, from its saved state.

    Args:
        dataset: The dataset of the run. The report then has the samples, shares and
            epochs of each source, reconstructed from the order. For a stream it has the
            requested shares only. None for a report with the names of sources and the
            position.
        state: The state.
        strict: If False, a state of another dataset is logged as a warning.

    Raises:
        StateError: As `Loader.load_state_dict`.

    Example:
        >>> from energize import BlendDataset, ListSource, get_loader
        >>> parts = {"web": ListSource(range(90)), "code": ListSource(range(9))}
        >>> mix = BlendDataset(parts, weights={"web": 3, "code": 1})
        >>> loader = get_loader(mix)
        >>> for step, sample in zip(range(40), loader):
        ...     pass
        >>> report = report_of_state(mix, loader.state_dict())
        >>> report["code"].counts.samples, round(report["code"].epochs, 2)
        (10, 1.11)
    """
    if dataset is None:
        held = checked_state(state)
        rows = [
            LedgerRow((name,), is_source=True) for name in leaf_names(tree_of(held))
        ]
        note = (
            "a state alone has only the names of its sources. Pass the mix too, to "
            "see what they gave"
        )
        total = LedgerRow((), is_source=False)
        scope = ReportScope(_title(cursor_of(held)), world_size=1)
        return Report(scope, (total, *rows), (), notes=(note,))
    cursor, _ = resumed(dataset, state, strict=strict)
    anchored = tree.anchors_in(dataset, cursor)
    edited = Edits.loaded(cursor).applied(dataset, anchored=anchored)
    check_place(edited, cursor)
    items = items_of(
        edited, StreamPosition.loaded(cursor) if "lanes" in cursor else cursor
    )
    book = Book(edited, Ledger())
    book.begin(edited, items)
    return ReportBuilder(
        book, ReportPosition(items, 0, 1), book.numbers(0, 1), title=_title(cursor)
    ).report()


def _title(cursor: State) -> str:
    position = cursor.get("position", 0)
    text = (
        f"{position:,} items"
        if isinstance(position, int)
        else "an unknown number of items"
    )
    if "lanes" in cursor:
        return (
            f"After {text} of epoch {cursor.get('epoch')}, in {cursor['lanes']} lanes"
        )
    return f"After {text} to all ranks"
