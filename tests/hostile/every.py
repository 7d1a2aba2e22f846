"""All hostile inputs, and what becomes of each."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile import folders, metadatasets, samples
from tests.support.trying import Ending, tried

CASES: dict[str, Callable[[Path], Callable[[], Any]]] = {
    **metadatasets.CASES,
    **folders.CASES,
    **samples.CASES,
}


def outcome_of(name: str, whole: Path) -> Ending:
    """What becomes of one input, in a place with the folder D, a copy of `whole`, and beside it
    files that are none.
    """
    with tempfile.TemporaryDirectory() as made, socket.socket(socket.AF_UNIX) as listening:
        place = Path(made).resolve()
        shutil.copytree(whole, place / "D")
        shutil.copytree(whole, place / "other")
        (place / "secret.yaml").write_text(f"split_parts: {{train: [{folders.SHARD}]}}\n")
        for name_of in ("pipe.yaml", "pipe.jsonl", "D/pipe.tar"):
            os.mkfifo(place / name_of)
        for name_of in ("loop.yaml", "D/loop.tar"):
            (place / name_of).symlink_to(Path(name_of).name)
        (place / "D" / "zero.tar").symlink_to("/dev/zero")
        listening.bind(str(place / "socket.yaml"))
        action = CASES[name](place)
        return tried(lambda: repr(action())[:200])
