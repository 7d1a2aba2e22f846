"""What runs leave behind and take up again: states, weights, lists of failed samples, keys; and
stores of files with what is known of media.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from energize import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    FilterDataset,
    JoinedSource,
    ShuffleDataset,
    WebdatasetFileStore,
    WebdatasetSource,
    get_loader,
    restore_sample,
)
from energize.cli.state import read_states
from energize.core.dataset import Dataset
from energize.data.join import write_matches
from energize.preparation.media import prepare_media
from tests.fuzz.corpora.mixes import write as write_mixes
from tests.fuzz.corpora.reading import HERE, fetched
from tests.fuzz.formats import Corpus, Format, Seen, everything, told
from tests.support.prepared import captions

_STEPS = 5
FOLDERS = ("books", "code")


def _even(sample: dict[str, Any]) -> bool:
    return int(sample["__key__"]) % 2 == 0


def _indexed(folder: Path) -> Dataset[Any]:
    parts = [ShuffleDataset(WebdatasetSource(folder / name)) for name in FOLDERS]
    return BatchDataset(BlendDataset((parts[0], 2), (parts[1], 1)), 2, list)


def _stream(folder: Path) -> Dataset[Any]:
    parts = [FilterDataset(ShuffleDataset(WebdatasetSource(folder / n)), _even) for n in FOLDERS]
    return BatchDataset(BlendDataset((parts[0], 2), (parts[1], 1)), 2, list)


_DATASETS = {"indexed": _indexed, "stream": _stream}


def write(folder: Path) -> None:
    """The folders of mixes, states of two runs over them, and what else a run writes."""
    write_mixes(folder)
    for name, made in _DATASETS.items():
        with get_loader(made(folder), worker_config=HERE, ledger=False) as loader:
            for _ in islice(loader, 3):
                pass
            state = loader.state_dict()
        (folder / f"{name}.json").write_text(json.dumps(state))
        torch.save({"step": 3, "loader": [state]}, folder / f"{name}.pt")
    (folder / "weights.yaml").write_text("weights: {books: 1, code: 4}\nat_step: 2\n")
    places = [WebdatasetSource(folder / FOLDERS[0]).place(number) for number in (1, 4)]
    lines = [
        {**{name: getattr(place, name) for name in place.__slots__}, "reason": "DataError: bad"}
        for place in places
    ]
    (folder / "bad.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    keys = [["energize", 3], ["energize", 10]]
    (folder / "keys.json").write_text(json.dumps(keys))
    write_matches(_join(folder))


def _resumed(folder: Path, file: str, name: str) -> Seen:
    """The items that come after the state."""
    (saved,) = read_states([folder / file])
    with get_loader(_DATASETS[name](folder), worker_config=HERE, ledger=False) as loader:
        loader.load_state_dict(saved.state)
        return Seen(tuple(told(item) for item in islice(loader, _STEPS)))


def _weighted(folder: Path) -> Seen:
    """A run that looks at a file of weights before each step; one that it cannot use is told by a
    warning, and changes nothing.
    """
    with (
        _warnings() as warnings,
        get_loader(_indexed(folder), worker_config=HERE, ledger=False) as loader,
    ):
        loader.watch_weights(folder / "weights.yaml", every=1)
        items = tuple(told(item) for item in islice(loader, _STEPS))
        state = json.dumps(loader.state_dict()["cursor"])
    if not warnings:
        return Seen(items, described=state)
    with get_loader(_indexed(folder), worker_config=HERE, ledger=False) as loader:
        if items == tuple(told(item) for item in islice(loader, _STEPS)):
            raise ConfigError(warnings[0])
    return Seen(items)


def _without_listed(folder: Path) -> Seen:
    options = {"worker_config": HERE, "ledger": False, "skip_listed": folder / "bad.jsonl"}
    with _warnings() as warnings, get_loader(_indexed(folder), **options) as loader:
        items = tuple(told(item) for item in islice(loader, _STEPS))
    return Seen(items, tuple(warnings))


def _restored(folder: Path) -> Seen:
    text = (folder / "keys.json").read_text(encoding="utf-8", errors="replace")
    try:
        keys = json.loads(text)
    except (ValueError, RecursionError):  # the program's own file, read by itself
        return Seen((), described=text)
    dataset = _indexed(folder)
    keys = keys if isinstance(keys, list) else [keys]
    return Seen(tuple(told(restore_sample(dataset, key)) for key in keys), described=text)


def _join(folder: Path) -> JoinedSource:
    sources = [WebdatasetSource(folder / name) for name in FOLDERS]
    return JoinedSource(*sources, nonmatch=["none"], cache=folder / "matches")


def _stored(folder: Path) -> Seen:
    """Every file of a folder by its name."""
    store = WebdatasetFileStore(folder / FOLDERS[0])
    names = [f"{number:04d}.{part}" for number in range(9) for part in ("txt", "json")]
    return Seen(tuple(told((name, store.get(name))) for name in names))


def _write_media(folder: Path) -> None:
    captions(folder / "media", 6, shards=1)
    prepare_media(folder / "media", workers=1)


def _media(folder: Path) -> Seen:
    store = WebdatasetFileStore(folder / "media")
    names = [f"{number:06d}.jpg" for number in range(6)]
    return Seen(tuple(told((name, store.get_media_metadata(name))) for name in names))


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the log is told meanwhile."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    log, off = logging.getLogger("energize"), logging.root.manager.disable
    log.addHandler(handler)
    logging.disable(logging.NOTSET)
    try:
        yield found
    finally:
        logging.disable(off)
        log.removeHandler(handler)


def _of(read: Callable[[Path], Seen], **options: Any) -> Corpus:
    return Corpus("saved", write, partial(read, **options))


_STATE = ("saved state", "state's")
_KEY = ("restore key", "is the key of", "is of another dataset")

FORMATS = [
    *(
        Format(f"state {name} {kind}", _of(_resumed, file=f"{name}.{kind}", name=name),
               f"{name}.{kind}", "json" if kind == "json" else "bytes", named=_STATE)
        for name in _DATASETS
        for kind in ("json", "pt")
    ),
    Format("weights file", _of(_weighted), "weights.yaml", "yaml", describes=True),
    Format("list of failed samples", _of(_without_listed), "bad.jsonl", "text",
           unchecked=everything),
    Format("restore keys", _of(_restored), "keys.json", "json", describes=True, named=_KEY),
    Format("matches of a join", _of(lambda folder: fetched(_join(folder))), "matches/*.npy"),
    Format("index.sqlite of files", _of(_stored), "books/.nv-meta/index.sqlite"),
    Format("media metadata", Corpus("media", _write_media, _media),
           "media/.nv-meta/index.sqlite", unchecked=everything),
]  # fmt: skip
