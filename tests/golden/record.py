"""Records what every mix gives, so that no change of the code changes it unnoticed.

    python -m tests.golden.record [NAME ...]   write all records again, or the named ones
    python -m tests.golden.record --api        write api.json and energon_paths.json again
    python -m tests.golden.record --show NAME  print a record of a mix, face or run in full

The folder `recorded` has a file for each mix, face and run, with one field a line. A
field is a digest of its canonical JSON and the beginning of that in clear. A field of
the group `states` is a list of short digests, one for each position. `state` is a saved
state in full, if it is short.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from energize.loader.state import FIELDS, sealed
from tests.golden import adapter, api
from tests.golden.adapter import Run
from tests.golden.faces import FACE_MIXES, FACES
from tests.golden.mixes import MIXES, NEAR
from tests.golden.runs import RUNS
from tests.golden.stored import STORED, make_folders

RECORDED = Path(__file__).parent / "recorded"
CLEAR = 64
STEPS = 20
"""Steps after each of which a state is saved."""
KEPT_AFTER = 7
"""Steps after which a state on 1 rank is kept in full."""
LONGEST_STATE = 4096
"""Bytes of JSON up to which a state is kept in full."""
FAR = (99, 1003, 65_535, 65_537, 999_999, 10**6, 10**6 + 1, 2**31 + 5, 10**9, 10**9 + 7)
LEFT_OUT = {"__restore_key__"}
"""Where a reader stood, which is no part of what it gave."""


def canonical(value: Any, root: str = "") -> Any:
    """A value as JSON that is the same on every machine: floats to 12 digits, no
    paths."""
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
        return {
            str(key): again(each) for key, each in value.items() if key not in LEFT_OUT
        }
    if dataclasses.is_dataclass(value):
        names = [
            each.name
            for each in dataclasses.fields(type(value))
            if each.name not in LEFT_OUT
        ]
        return {
            type(value).__name__: {name: again(getattr(value, name)) for name in names}
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [
            again(each) for each in (sorted(value) if isinstance(value, set) else value)
        ]
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
        ends = sorted(
            {max(at + k, 0) for at in (whole, 3 * whole) for k in range(-3, 4)}
        )
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
    return found | (
        of_positions(dataset, far) if about["indexed"] else of_lanes(dataset)
    )


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


def resumed(make: Callable[[], Any]) -> dict[str, list[Any]]:
    """Save a state after each of some steps, and take two steps from it in new loaders.

    On 1 rank all states are loaded. On 3 ranks every third one is, as it takes three
    loaders.
    """
    dataset = make()
    record: dict[str, list[Any]] = {}
    for title, ranks, lanes, every in (("1 rank", 1, 2, 1), ("3 ranks", 3, 3, 3)):
        options = adapter.lanes_of(dataset, lanes)
        run = Run(dataset, ranks, **options)
        states = []
        for _ in range(STEPS):
            run.steps(1)
            states.append(run.state())
        record[f"states, {title}"] = [adapter.state_parts(state) for state in states]
        record[f"continuations, {title}"] = [
            continuation(dataset, state, ranks, lanes) for state in states[::every]
        ]
    return record


def continuation(dataset: Any, state: Any, ranks: int = 1, lanes: int = 2) -> list[Any]:
    """Return the next two steps of new loaders that load a state."""
    return Run(dataset, ranks, state=state, **adapter.lanes_of(dataset, lanes)).steps(2)


def kept_state(make: Callable[[], Any], root: str) -> Any:
    """Return the state of 1 rank that is kept in full, without `root`; None if it is
    too long."""
    dataset = make()
    run = Run(dataset, **adapter.lanes_of(dataset, 2))
    run.steps(KEPT_AFTER)
    state = without_root(run.state(), root)
    return state if len(text(state)) < LONGEST_STATE else None


def without_root(state: Mapping[str, Any], root: str) -> dict[str, Any]:
    """Return the same state of files that are not in `root`, sealed again."""
    return sealed({name: state[name].replace(root, "") for name in FIELDS})


@dataclasses.dataclass(frozen=True)
class Subject:
    """A mix, face or run that is recorded.

    Attributes:
        groups: For each group of fields the function that computes them.
        root: The folder of stored samples, which is removed from texts.
        make: The function that makes the dataset of a mix; None for faces and runs.
    """

    groups: dict[str, Callable[[], Any]]
    root: str
    make: Callable[[], Any] | None = None

    def values(self, group: str) -> dict[str, Any]:
        """Compute the fields of a group in full, as canonical JSON."""
        result = self.groups[group]()
        fields = result if isinstance(result, dict) else {"items": result}
        return {field: canonical(value, self.root) for field, value in fields.items()}

    def fields(self, group: str) -> dict[str, Any]:
        """Compute the fields of a group as they are recorded."""
        values = self.values(group)
        if group == "states":
            return {field: short_digests(value) for field, value in values.items()}
        return {
            field: [digest(value), text(value)[:CLEAR]]
            for field, value in values.items()
        }

    def follows(self, state: Any) -> str:
        """Return the short digest of what follows a kept state."""
        steps = continuation(self.make(), state)
        return short_digests([canonical(steps, self.root)])

    def record(self) -> dict[str, dict[str, Any]]:
        """Compute everything that the file of the subject has."""
        groups = {group: self.fields(group) for group in self.groups}
        state = None if self.make is None else kept_state(self.make, self.root)
        return groups | ({"state": state} if state else {})


def short_digests(values: Iterable[Any]) -> str:
    """Return eight characters of the digest of each value."""
    return " ".join(digest(value)[:8] for value in values)


@contextmanager
def recording() -> Iterator[dict[str, Subject]]:
    """Yield everything that is recorded, by name, with a folder of stored samples made
    for it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        logging.disable(logging.CRITICAL)
        try:
            make_folders(root)
            stored = {**STORED, **FACE_MIXES}
            mixes = MIXES | {name: partial(make, root) for name, make in stored.items()}
            subjects = {}
            for name, make in mixes.items():
                groups = {
                    "mix": partial(of_mix, make, FAR[:2] if name in NEAR else FAR),
                    "loader": partial(delivered, make),
                    "states": partial(resumed, make),
                }
                subjects[name] = Subject(groups, str(root), make)
            for group, functions in {"face": FACES, "run": RUNS}.items():
                for name, function in functions.items():
                    groups = {group: partial(function, root)}
                    subjects[f"{group}: {name}"] = Subject(groups, str(root))
            yield subjects
        finally:
            logging.disable(logging.NOTSET)


def file_of(name: str) -> Path:
    """Return the file of a mix, face or run."""
    return RECORDED / f"{re.sub(r'[^a-z0-9.]+', '-', name.lower()).strip('-')}.json"


def recorded() -> dict[str, dict[str, Any]]:
    """Read all records, by name."""
    records = [json.loads(file.read_text()) for file in sorted(RECORDED.glob("*.json"))]
    return {record["name"]: record for record in records}


def write(name: str, record: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file of a mix, face or run, with one field a line."""
    parts = [f'"name": {json.dumps(name)}']
    for group, fields in record.items():
        lines = [
            f"  {json.dumps(field)}: {json.dumps(value)}"
            for field, value in fields.items()
        ]
        parts.append(f"{json.dumps(group)}: {{\n" + ",\n".join(lines) + "\n}")
    file_of(name).write_text("{\n" + ",\n".join(parts) + "\n}\n")


def remove_others(names: Iterable[str]) -> None:
    """Remove the files of mixes that there are no more."""
    files = {file_of(name) for name in names}
    for file in RECORDED.glob("*.json"):
        if file not in files:
            file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--api", action="store_true")
    parser.add_argument("--show", metavar="NAME")
    options = parser.parse_args()
    if options.api:
        api.write()
        return
    with recording() as subjects:
        names = [options.show] if options.show else options.names or list(subjects)
        if unknown := [name for name in names if name not in subjects]:
            parser.error(f"nothing is recorded under the names {unknown}")
        if options.show:
            subject = subjects[options.show]
            for group in subject.groups:
                for field, value in subject.values(group).items():
                    sys.stdout.write(f"{group}, {field}: {text(value)}\n")
            return
        RECORDED.mkdir(exist_ok=True)
        remove_others(subjects)
        for name in names:
            write(name, subjects[name].record())
    sys.stdout.write(f"recorded {len(names)}\n")


if __name__ == "__main__":
    main()
