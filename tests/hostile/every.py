"""All hostile inputs. As a program it prints what becomes of each: python -m tests.hostile.every"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile import folders, metadatasets, samples
from tests.support.prepared import captions
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


def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as made:
        whole = captions(Path(made) / "whole", 12, shards=3)
        for name in CASES:
            if all(word in name for word in sys.argv[1:]):
                print(f"{name:45}", outcome_of(name, whole), flush=True)


if __name__ == "__main__":
    main()
