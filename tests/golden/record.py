"""Records what every mix gives, so that no change of the code changes it unnoticed.

    python -m tests.golden.record              write golden.json anew
    python -m tests.golden.record --api        write api.json and energon_paths.json anew
    python -m tests.golden.record --show NAME  all that is recorded of one mix, run or face, in full

A field of a record is a digest of its canonical JSON, and the beginning of that in clear.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.golden import adapter, api
from tests.golden.adapter import Run
from tests.golden.faces import FACE_MIXES, FACES
from tests.golden.mixes import MIXES, NEAR
from tests.golden.runs import RUNS
from tests.golden.stored import STORED, make_folders

GOLDEN = Path(__file__).parent / "golden.json"
CLEAR = 64
FAR = (99, 1003, 65_535, 65_537, 999_999, 10**6, 10**6 + 1, 2**31 + 5, 10**9, 10**9 + 7)
LEFT_OUT = {"__restore_key__"}
"""Where a reader stood, which is no part of what it gave."""


def canonical(value: Any, root: str = "") -> Any:
    """A value as JSON that is the same on every machine: floats to 12 digits, no paths."""
    again = partial(canonical, root=root)
    if isinstance(value, str):
        return value.replace(root, "") if root else value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float | np.floating):
        return float(f"{value:.12g}")
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, bytes):
        return {"bytes": hashlib.blake2b(value, digest_size=8).hexdigest()}
    if isinstance(value, torch.Tensor | np.ndarray):
        listed = canonical(value.tolist())
        if value.size > 64 if isinstance(value, np.ndarray) else value.numel() > 64:
            listed = digest(listed)
        return {str(value.dtype): listed, "shape": list(value.shape)}
    if isinstance(value, Mapping):
        return {str(key): again(each) for key, each in value.items() if key not in LEFT_OUT}
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(type(value)) if each.name not in LEFT_OUT]
        return {type(value).__name__: {name: again(getattr(value, name)) for name in names}}
    if isinstance(value, list | tuple | set | frozenset):
        return [again(each) for each in (sorted(value) if isinstance(value, set) else value)]
    return again(str(value))


def text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any) -> str:
    return hashlib.blake2b(text(value).encode(), digest_size=8).hexdigest()


def of_positions(dataset: Any, far: tuple[int, ...]) -> dict[str, Any]:
    """What an indexed dataset says of its positions, and gives there."""
    whole, last = adapter.epoch(dataset), min(far[-1], 10**6)
    first, ends = list(range(64)), []
    if whole is not None:
        ends = sorted({max(at + k, 0) for at in (whole, 3 * whole) for k in range(-3, 4)})
    return {
        "refs": adapter.refs(dataset, first),
        "refs far": adapter.refs(dataset, list(far)),
        "refs at ends of epochs": adapter.refs(dataset, ends),
        "refs, attempt 1": adapter.refs(dataset, [*first[:16], last], 1),
        "refs, attempt 2": adapter.refs(dataset, [*first[:16], last], 2),
        "consumed": [adapter.consumed(dataset, n) for n in (0, 1, 17, 1000, last)],
        "values": adapter.values(dataset, first[:24]),
        "values far": adapter.values(dataset, [far[-1], 5, last]),
        "forecast": adapter.forecast(dataset),
    }


def of_lanes(dataset: Any) -> dict[str, Any]:
    """What the lanes of a stream give."""
    return {
        "lane 0 of 1": adapter.lane_items(dataset, 0, 1, 32),
        "lane 0 of 3": adapter.lane_items(dataset, 0, 3, 12),
        "lane 2 of 3": adapter.lane_items(dataset, 2, 3, 12),
    }


def of_mix(make: Callable[[], Any], far: tuple[int, ...]) -> dict[str, Any]:
    """What a dataset says of itself, and gives without a loader."""
    dataset = make()
    about = adapter.kind(dataset)
    found = {"kind": about, "asked": adapter.asked(dataset)}
    return found | (of_positions(dataset, far) if about["indexed"] else of_lanes(dataset))


def delivered(make: Callable[[], Any]) -> dict[str, Any]:
    """What loaders deliver: on 1 rank and on 3, and on others from there on."""
    dataset = make()
    two, three = adapter.lanes_of(dataset, 2), adapter.lanes_of(dataset, 3)
    one, many = Run(dataset, **two), Run(dataset, 3, **three)
    found = {"1 rank": one.steps(7), "3 ranks": many.steps(4)}
    states = one.state(), many.state()
    found["1 rank, on"], found["3 ranks, on"] = one.steps(7), many.steps(3)
    found["1 rank, on with 2"] = Run(dataset, 2, state=states[0], **two).steps(3)
    found["3 ranks, on with 1"] = Run(dataset, 1, state=states[1], **three).steps(6)
    found["restored, length"] = [one.again(), one.length()]
    return found


@contextmanager
def recording() -> Iterator[dict[str, Callable[[], dict[str, Any]]]]:
    """All that is recorded, by name, with a folder of stored samples made for it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        logging.disable(logging.CRITICAL)
        try:
            make_folders(root)
            stored = {**STORED, **FACE_MIXES}
            mixes = MIXES | {name: partial(make, root) for name, make in stored.items()}
            found: dict[str, Callable[[], Any]] = {}
            for name, make in mixes.items():
                found[name] = partial(of_mix, make, FAR[:2] if name in NEAR else FAR)
                found[f"loader: {name}"] = partial(delivered, make)
            for kind, asked in {"face": FACES, "run": RUNS}.items():
                found |= {f"{kind}: {name}": partial(ask, root) for name, ask in asked.items()}
            yield {name: partial(_plain, ask, str(root)) for name, ask in found.items()}
        finally:
            logging.disable(logging.NOTSET)


def _plain(ask: Callable[[], Any], root: str) -> dict[str, Any]:
    found = ask()
    fields = found if isinstance(found, dict) else {"items": found}
    return {field: canonical(value, root) for field, value in fields.items()}


def entry(record: dict[str, Any]) -> dict[str, list[str]]:
    """A record as it is kept."""
    return {field: [digest(value), text(value)[:CLEAR]] for field, value in record.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--api", action="store_true")
    parser.add_argument("--show", metavar="NAME")
    options = parser.parse_args()
    if options.api:
        api.write()
        return
    with recording() as asked:
        if options.show:
            for field, value in asked[options.show]().items():
                sys.stdout.write(f"{field}: {text(value)}\n")
            return
        found = {name: entry(ask()) for name, ask in asked.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in found]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    sys.stdout.write(f"recorded {len(found)}\n")


if __name__ == "__main__":
    main()
