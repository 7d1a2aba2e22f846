"""What runs leave behind and take up again: states, weights, lists of failed samples,
keys; and stores of files with what is known of media.
"""

from __future__ import annotations

import json
import logging
import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from energize import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    EpochizeDataset,
    FailurePolicy,
    FilterDataset,
    ShuffleDataset,
    WebdatasetSource,
    get_loader,
    restore_sample,
)
from energize.cli.state import read_states
from energize.core.config import packed, unpacked
from energize.core.dataset import Dataset
from energize.data.join import write_matches
from energize.data.media import (
    AVMetadata,
    deserialize_media_metadata,
    serialize_media_metadata,
)
from energize.extras.cache import FileStoreCachePool
from energize.preparation.media import prepare_media
from energize.sources import JoinedSource
from energize.stores import SystemFileStore, WebdatasetFileStore
from tests.fuzz.corpora import shards
from tests.fuzz.corpora.mixes import write as write_mixes
from tests.fuzz.corpora.reading import HERE, fetched
from tests.fuzz.formats import Corpus, Format, Seen, everything, told
from tests.support.prepared import captions
from tests.support.states import resealed

_STEPS = 5
_CACHED = {"numbers": list(range(99)), "text": "ä cat"}
FOLDERS = ("books", "code")


def _even(sample: dict[str, Any]) -> bool:
    return int(sample["__key__"]) % 2 == 0


def _indexed(folder: Path) -> Dataset[Any]:
    parts = [ShuffleDataset(WebdatasetSource(folder / name)) for name in FOLDERS]
    return BatchDataset(BlendDataset((parts[0], 2), (parts[1], 1)), 2, list)


def _stream(folder: Path) -> Dataset[Any]:
    parts = [
        FilterDataset(ShuffleDataset(WebdatasetSource(folder / n)), _even)
        for n in FOLDERS
    ]
    return BatchDataset(BlendDataset((parts[0], 2), (parts[1], 1)), 2, list)


_DATASETS = {"indexed": _indexed, "stream": _stream}


def write(folder: Path) -> None:
    """The folders of mixes, states of two runs over them, and what else a run
    writes."""
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
        {
            **{name: getattr(place, name) for name in place.__slots__},
            "reason": "DataError: bad",
        }
        for place in places
    ]
    (folder / "bad.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    keys = [["energize", 3], ["energize", 10]]
    (folder / "keys.json").write_text(json.dumps(keys))
    write_matches(_join(folder, cache=folder / "matches"))
    _write_edited(folder)
    (folder / "cached.bin").write_bytes(pickle.dumps(_CACHED, -1))


def _resumed(folder: Path, file: str, name: str) -> Seen:
    """The items that come after the state."""
    (saved,) = read_states([folder / file])
    with get_loader(
        _DATASETS[name](folder), worker_config=HERE, ledger=False
    ) as loader:
        loader.load_state_dict(saved.state)
        return Seen(tuple(told(item) for item in islice(loader, _STEPS)))


def _weighted(folder: Path) -> Seen:
    """A run that looks at a file of weights before each step; one that it cannot use is
    told by a warning, and changes nothing.
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
    options = {
        "worker_config": HERE,
        "ledger": False,
        "failures": FailurePolicy(skip_listed=folder / "bad.jsonl"),
    }
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
    return Seen(
        tuple(told(restore_sample(dataset, key)) for key in keys), described=text
    )


def _join(folder: Path, **options: Any) -> JoinedSource:
    sources = [WebdatasetSource(folder / name) for name in FOLDERS]
    return JoinedSource(*sources, nonmatch=["none"], **options)


def _edited(folder: Path) -> Dataset[Any]:
    parts = {name: WebdatasetSource(folder / name) for name in FOLDERS}
    return EpochizeDataset(BlendDataset(parts, weights=dict.fromkeys(FOLDERS, 1)), 6)


def _write_edited(folder: Path) -> None:
    """What the state of a run says whose weights were changed, for people who edit such
    things."""
    with get_loader(_edited(folder), worker_config=HERE, ledger=False) as loader:
        for step in (3, 30):
            loader.set_weights({FOLDERS[0]: step, FOLDERS[1]: 1}, at_step=step)
        for _ in islice(loader, 4):
            pass
        cursor = unpacked(loader.state_dict()["cursor"], "cursor")
    (folder / "edited.json").write_text(json.dumps(cursor))


def _opened(folder: Path) -> Seen:
    """What comes after an edited state that was sealed anew; the place is the one that
    it says."""
    text = (folder / "edited.json").read_text(encoding="utf-8", errors="replace")
    with get_loader(_edited(folder), worker_config=HERE, ledger=False) as loader:
        try:
            cursor = json.loads(text)
            state = resealed(loader.state_dict(), cursor=packed(cursor))
        except (ValueError, RecursionError):  # of who edits it
            return Seen((), described=text)
        loader.load_state_dict(state)
        now = unpacked(loader.state_dict()["cursor"], "cursor")
        if any(
            now.get(name) != cursor.get(name)
            for name in ("position", "step", "changes")
        ):
            raise RuntimeError(f"the place is {now}")
        return Seen(
            tuple(told(item) for item in islice(loader, _STEPS)), described=text
        )


def _cached(folder: Path) -> Seen:
    """Files of a cache that are others when they are read again."""
    damaged = (folder / "cached.bin").read_bytes()
    items = []
    with TemporaryDirectory() as parent:
        for method in ("raw", "pickle"):
            pool = FileStoreCachePool(parent_cache_dir=parent, method=method)
            with closing(pool):
                stored = pool.get_lazy(SystemFileStore(folder), "bad.jsonl")
                put = pool.to_cache(_CACHED, "numbers")
                for lazy in (stored, put):
                    lazy.entry.send_to_cache_future.result(5)
                for lazy in (stored, put):
                    lazy.cache_path.write_bytes(damaged)
                    items.append(told(lazy.get()))
    return Seen(tuple(items))


def _stored(folder: Path, prefix: str = "") -> Seen:
    """Every file of a folder by its name."""
    store = WebdatasetFileStore(folder)
    names = [
        f"{prefix}{number:04d}.{part}"
        for number in range(9)
        for part in ("txt", "json")
    ]
    return Seen(tuple(told((name, store.get(name))) for name in names))


def _write_media(folder: Path) -> None:
    captions(folder / "media", 6, shards=1)
    prepare_media(folder / "media", workers=1)
    values = AVMetadata(
        video_duration=2.5, video_fps=25.0, video_width=8, audio_channels=2
    )
    (folder / "values.json").write_text(serialize_media_metadata(values)[1])


def _media(folder: Path) -> Seen:
    store = WebdatasetFileStore(folder / "media")
    names = [f"{number:06d}.jpg" for number in range(6)]
    return Seen(tuple(told((name, store.get_media_metadata(name))) for name in names))


def _media_values(folder: Path) -> Seen:
    """Metadata that somebody has edited: what is read of it are numbers that a file
    could have."""
    text = (folder / "values.json").read_text(encoding="utf-8", errors="replace")
    found = deserialize_media_metadata("av", text)
    if not all(0 <= value < math.inf for value in found.to_dict().values()):
        raise RuntimeError(f"{found}")
    return Seen((told(found.to_dict()),), described=text)


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


_STATE = ("saved state", "state's", "saved position")
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
    Format("matches of a join",
           _of(lambda folder: fetched(_join(folder, cache=folder / "matches"))), "matches/*.npy"),
    Format("index.sqlite of joins", _of(lambda folder: fetched(_join(folder))),
           "*/.nv-meta/index.sqlite"),
    Format("edited states", _of(_opened), "edited.json", "json", describes=True, named=_STATE),
    Format("cached files", _of(_cached), "cached.bin", named=["'numbers'"]),
    Format("index.sqlite of files", _of(lambda folder: _stored(folder / FOLDERS[0])),
           "books/.nv-meta/index.sqlite"),
    Format("index.sqlite of long names",
           Corpus("gnu", shards.gnu, partial(_stored, prefix=shards.LONG)),
           ".nv-meta/index.sqlite"),
    Format("media metadata values", Corpus("media", _write_media, _media_values), "values.json",
           "json", describes=True, named=["media metadata"]),
    Format("media metadata", Corpus("media", _write_media, _media),
           "media/.nv-meta/index.sqlite", unchecked=everything),
]  # fmt: skip
