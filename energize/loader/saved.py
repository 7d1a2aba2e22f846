"""What a saved state says of the run that saved it."""

from __future__ import annotations

from typing import Any

from energize.core.dataset import Dataset
from energize.core.description import leaf_names
from energize.core.stream import State
from energize.loader.edits import Edits
from energize.loader.feeds import StreamState
from energize.loader.loader import items_of
from energize.loader.state import checked_state, cursor_of, resumed, tree_of
from energize.report.counting import Ledger
from energize.report.ledger import Book, Stand
from energize.report.table import LedgerRow, Report


def report_of_state(dataset: Dataset[Any] | None, state: State, *, strict: bool = True) -> Report:
    """Return what a run had been given when it saved this state, as a `Report` over all ranks.

    With the `dataset` of the run it has the samples, shares and epochs of each source, as its order
    gives them, with what was changed while the run went on; of a stream, whose state says where its
    lanes stand and not what they gave, what was asked for. Without the dataset (None) it has the
    names of the sources and how far the run has come, which is all that a state says alone.

    Raise what `Loader.load_state_dict` raises; with `strict=False` a state of another dataset is a
    warning.

    >>> from energize import BlendDataset, ListSource, get_loader
    >>> parts = {"web": ListSource(range(90)), "code": ListSource(range(9))}
    >>> mix = BlendDataset(parts, weights={"web": 3, "code": 1})
    >>> loader = get_loader(mix)
    >>> for step, sample in zip(range(40), loader): pass
    >>> report = report_of_state(mix, loader.state_dict())
    >>> report["code"].samples, round(report["code"].epochs, 2)
    (10, 1.11)
    """
    if dataset is None:
        held = checked_state(state)
        rows = [LedgerRow((name,), is_source=True) for name in leaf_names(tree_of(held))]
        note = "a state alone says which sources there are; give the mix too, to see what they gave"
        total = LedgerRow((), is_source=False)
        return Report(_title(cursor_of(held)), (total, *rows), (), 1, notes=(note,))
    cursor, _ = resumed(dataset, state, strict=strict)
    edited = Edits.loaded(cursor).applied(dataset)
    items = items_of(edited, StreamState.loaded(cursor) if "lanes" in cursor else cursor)
    book = Book(edited, Ledger())
    book.begin(edited, items)
    return book.report(Stand(items, 0, 1), title=_title(cursor))


def _title(cursor: State) -> str:
    position = cursor.get("position", 0)
    text = f"{position:,} items" if isinstance(position, int) else "an unknown number of items"
    if "lanes" in cursor:
        return f"After {text} of epoch {cursor.get('epoch')}, in {cursor['lanes']} lanes"
    return f"After {text} to all ranks"
