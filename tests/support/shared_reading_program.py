"""Run as each of four ranks: what they open of a mix that the first one reads for
all."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from energize import get_loader, get_train_dataset, shared_reading
from energize.core.config import config_of
from energize.errors import EnergizeError


def main(root: Path, out: Path) -> None:
    meeting = {"init_method": f"file://{out}/meeting", "rank": int(os.environ["RANK"])}
    dist.init_process_group(
        "gloo", world_size=4, timeout=timedelta(seconds=20), **meeting
    )
    rank, opened, found = dist.get_rank(), [], {}
    sys.addaudithook(
        lambda event, args: (
            opened.append(str(args[0]))
            if event == "open" and str(args[0]).startswith(str(root))
            else None
        )
    )

    def opening(name: str):
        opened.clear()
        with shared_reading():
            return get_train_dataset(root / name, batch_size=2)

    def refused(action) -> str:
        began = time.monotonic()
        try:
            action()
        except EnergizeError as error:
            assert time.monotonic() - began < 10
            return f"{type(error).__name__}: {error}"
        return ""

    dataset = opening("mix.yaml")
    found["opened"], found["config"] = len(opened), config_of(dataset).fingerprint
    found["gone"] = refused(lambda: opening("gone.yaml"))
    other = opening("other.yaml" if rank == 3 else "mix.yaml")
    found["other"] = refused(lambda: next(iter(get_loader(other, timeout=10))))
    if rank == 0:
        (out / "0.json").write_text(json.dumps(found))

    def killed() -> None:
        with shared_reading():
            os.kill(os.getpid(), signal.SIGKILL)

    found["killed"] = refused(killed)
    (out / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # the group has lost a rank


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
