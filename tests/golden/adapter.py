"""What the golden streams ask of energize, beside making datasets.

All that is asked of a dataset, a cursor or a loader is asked here, so a rewrite that
renames any of it changes this file only. What it answers are plain lists, and items as
they come.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from energize import EnergizeError, FailurePolicy, WorkerConfig, get_loader, is_padding
from energize.core.config import unpacked
from energize.core.tree import padding
from energize.nodes import INFINITE, Lane
from energize.report import simulate

END, PADDING = "| end", "| padding"
_EMPTY = 12


def kind(dataset: Any) -> dict[str, Any]:
    """Whether it has positions and a length, and what it reads."""
    size = dataset.size if dataset.sized else None
    counts = [getattr(each, "count", None) for each in dataset.sources]
    return {
        "indexed": dataset.indexed,
        "size": "infinite" if size == INFINITE else size,
        "len": told(len, dataset),
        "sources": list(zip(names(dataset), counts, strict=True)),
    }


def told(ask: Any, *arguments: Any) -> Any:
    """The answer, or the name of the error."""
    try:
        return ask(*arguments)
    except EnergizeError as error:
        return type(error).__name__


def lanes_of(dataset: Any, count: int) -> dict[str, int]:
    """So many lanes, for a stream; what is indexed has none."""
    return {} if dataset.indexed else {"lanes": count}


def epoch(dataset: Any) -> int | None:
    """Items of an epoch; None where it has no end, or none that is known."""
    return dataset.size if dataset.sized and dataset.size != INFINITE else None


def names(dataset: Any) -> list[str]:
    """Those of its sources; the second of a name has a number."""
    seen: Counter[str] = Counter()
    found = []
    for each in dataset.sources:
        seen[each.name] += 1
        found.append(each.name + (f"#{seen[each.name]}" if seen[each.name] > 1 else ""))
    return found


def refs(dataset: Any, positions: list[int], attempt: int = 0) -> list[Any]:
    """For each position (source, index, epoch) of the samples that the item there is
    made of."""
    found = dataset.refs(np.array(positions, dtype=np.int64), attempt)
    return _rows(dataset, found, len(positions))


def _rows(dataset: Any, found: Any, items: int) -> list[Any]:
    called, rows = names(dataset), [[] for _ in range(items)]
    columns = (found.item, found.source, found.index, found.epoch)
    for item, source, index, passed in zip(
        *(each.tolist() for each in columns), strict=True
    ):
        rows[item].append([called[source], index, passed])
    return rows


def values(dataset: Any, positions: list[int]) -> list[Any]:
    return dataset.at(positions)


def consumed(dataset: Any, items: int) -> list[int]:
    """How many samples of each source the first items are made of."""
    return dataset.consumed(items).tolist()


def asked(dataset: Any) -> dict[str, Any]:
    """Shares, counts and the like, where the class has them."""
    questions = {
        "counts": (),
        "shares": (),
        "corrections": (),
        "taken": (1000,),
        "spent": (1000,),
    }
    found = {"names": getattr(dataset, "names", None)}
    for name, arguments in questions.items():
        if callable(getattr(dataset, name, None)):
            found[name] = told(getattr(dataset, name), *arguments)
    if dataset.indexed:
        found["padding"] = np.flatnonzero(padding(dataset, np.arange(64))).tolist()
    return found


def forecast(dataset: Any, steps: int = 500) -> Any:
    """Of each source what is drawn and asked for."""
    run = told(lambda: simulate(dataset, steps))
    if isinstance(run, str):
        return run
    keys = ("name", "drawn", "share", "requested")
    return [[getattr(each, key) for key in keys] for each in run.sources]


def lane_items(
    dataset: Any, lane: int, lanes: int, count: int, stop: int = 7
) -> list[Any]:
    """The first items of a lane and the samples that each is made of, over the ends of
    epochs; it is closed after `stop` of them, and goes on from its state.
    """
    found, state, empty = [], None, 0
    while count > 0 and empty < _EMPTY:
        cursor = dataset.open(Lane(lane, lanes), state)
        before, here = count, stop if stop > 0 else count
        while count > 0 and here > 0 and (item := next(cursor, END)) is not END:
            found.append([item, _rows(dataset, dataset.refs_of(cursor.origin), 1)[0]])
            count, here, stop = count - 1, here - 1, stop - 1
        if count > 0 and here > 0:
            found.append(END)
        empty = empty + 1 if before == count else 0
        state = json.loads(json.dumps(cursor.state()))
        cursor.close()
    return found


def state_parts(state: Any) -> dict[str, Any]:
    """Return the content of a saved state, without the texts that only messages use:
    the names of functions, and where folders are mounted.
    """
    parts = {
        name: unpacked(state[name], name) for name in ("config", "details", "cursor")
    }
    for name in ("functions", "places"):
        parts["details"].pop(name, None)
    return {"version": state["version"], "fingerprint": state["fingerprint"], **parts}


class Run:
    """A run of some ranks, in this process, that make their steps together."""

    def __init__(
        self,
        dataset: Any,
        ranks: int = 1,
        workers: int = 0,
        state: Any = None,
        remap: bool = False,
        seed_offset: int = 0,
        **arguments: Any,
    ) -> None:
        options = {"num_workers": workers, "seed_offset": seed_offset}
        configs = [WorkerConfig(rank, ranks, **options) for rank in range(ranks)]
        if "failures" not in arguments:
            on_error = arguments.pop("on_error", "raise")
            arguments["failures"] = FailurePolicy(on_error=on_error, budget=None)
        self.loaders = [
            get_loader(dataset, worker_config=each, **arguments) for each in configs
        ]
        self._iterators: list[Any] = []
        for each in self.loaders if state is not None else ():
            each.load_state_dict(state, on_mismatch="remap" if remap else "error")

    def steps(self, count: int) -> list[Any]:
        """Of each step the items of all ranks, loop after loop."""
        rows = []
        for _ in range(count):
            self._iterators = self._iterators or [iter(each) for each in self.loaders]
            rows.append(
                [
                    self._next(*each)
                    for each in zip(self.loaders, self._iterators, strict=True)
                ]
            )
            if END in [each for each in rows[-1] if isinstance(each, str)]:
                self._iterators = []
        return rows

    def _next(self, loader: Any, iterator: Any) -> Any:
        item = next(iterator, END)
        return (
            [PADDING, is_padding(item)] if item is not END and loader.padding else item
        )

    def leave(self) -> None:
        """As a `break` out of the loop."""
        self._iterators = []

    def state(self) -> Any:
        """The state, as it comes out of a file; the same on all ranks."""
        states = [json.loads(json.dumps(each.state_dict())) for each in self.loaders]
        if any(each != states[0] for each in states):
            raise AssertionError("ranks have different states")
        return states[0]

    def each(self, method: str, *arguments: Any, **options: Any) -> list[Any]:
        """What a method of the loader answers on each rank."""
        return [getattr(each, method)(*arguments, **options) for each in self.loaders]

    def known(self, *names: str) -> list[Any]:
        """Properties of the first rank's loader."""
        return [getattr(self.loaders[0], name) for name in names]

    def length(self) -> Any:
        return told(len, self.loaders[0])

    def again(self) -> Any:
        """The last item of the first rank, by its restore key, read anew."""
        loader = self.loaders[0]
        return (
            None
            if loader.restore_key is None
            else loader.restore_sample(loader.restore_key)
        )

    def remapped(self) -> list[str]:
        return self.loaders[0].remapped.lines()

    def report(self) -> list[Any]:
        """The rows of the ledger of the first rank, without what takes time."""
        keys = ("path", "samples", "asked", "planned", "delivered", "epochs")
        rows = [row.as_json() for row in self.loaders[0].report().rows]
        return [[row[key] for key in keys] for row in rows]

    def close(self) -> None:
        for each in self.loaders:
            each.close()
