"""What a saved state says of the run that saved it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from energize.cursor import State
from energize.dataset import Dataset
from energize.ledger import Book, Ledger, LedgerRow, Report, Stand
from energize.loader.edits import Edits
from energize.loader.outlined import cursor_of, tree_of
from energize.loader.reporting import items_of
from energize.loader.sealing import checked_state
from energize.loader.state import resumed
from energize.loader.streams import StreamState


def report_of_state(dataset: Dataset[Any] | None, state: State, *, strict: bool = True) -> Report:
    """What a run had been given when it saved this state: a `Report` over all ranks.

    With the `dataset` of the run it has the samples, shares and epochs of each source, as its order
    gives them, with what was changed while the run went on; of a stream, whose state says where its
    lanes stand and not what they gave, what was asked for. Without the dataset (None) it has the
    names of the sources and how far the run has come, which is all that a state says alone.

    Raises what `Loader.load_state_dict` raises; with `strict=False` a state of another dataset is a
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
        return _alone(state)
    cursor, _ = resumed(dataset, state, strict=strict)
    edited = Edits.loaded(cursor).applied(dataset)
    place = StreamState.loaded(cursor) if "lanes" in cursor else cursor
    items = items_of(edited, place)
    book = Book(edited, Ledger())
    book.begin(edited, items)
    title = f"After {_position(cursor)}"
    return book.report(Stand(items, 0, 1), title=title)


def _alone(state: State) -> Report:
    """What a state says without its dataset."""
    held = checked_state(state)
    cursor, tree = cursor_of(held), tree_of(held)
    sources = [_named(name) for name in _sources(tree)]
    note = "a state alone says which sources there are; give the mix too, to see what they gave"
    rows = (_row((), is_source=False), *sources)
    return Report(f"After {_position(cursor)}", rows, (), 1, notes=(note,))


def _position(cursor: State) -> str:
    position = cursor.get("position", 0)
    text = f"{position:,} items" if isinstance(position, int) else "an unknown number of items"
    if "lanes" in cursor:
        return f"{text} of epoch {cursor.get('epoch')}, in {cursor['lanes']} lanes"
    return f"{text} to all ranks"


def _sources(tree: Any) -> Iterator[str]:
    """The names of the sources in an outline; of a wide mix as many as it keeps."""
    inputs = tree.get("inputs")
    if isinstance(inputs, dict):
        yield from inputs.get("names") or [f"{inputs.get('count')} datasets"]
    elif inputs:
        for each in inputs:
            yield from _sources(each)
    else:
        yield str(tree.get("name", tree.get("kind")))


def _named(name: str) -> LedgerRow:
    return _row((name,), is_source=True)


def _row(path: tuple[str, ...], *, is_source: bool) -> LedgerRow:
    return LedgerRow(
        path=path,
        is_source=is_source,
        unit="samples",
        asked=None,
        planned=None,
        delivered=None,
        samples=0,
        samples_share=0.0,
        batches=0.0,
        batches_share=0.0,
        cost=None,
        cost_share=None,
        weight=0.0,
        weight_share=0.0,
        effective=0.0,
        epochs=None,
        repeats=0.0,
        skipped=0,
        failed=0,
        chance=None,
    )
