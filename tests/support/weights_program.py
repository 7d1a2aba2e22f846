"""What a model becomes on four ranks, written down as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from tests.support.weighted_training import (
    MICRO,
    STEPS,
    Model,
    batches,
    epochs,
    levelled,
    loader_over,
    stream,
    trained,
)


def main(out: Path) -> None:
    dist.init_process_group("gloo")
    found = {}
    with loader_over(batches(MICRO)) as loader:
        found["plain"] = trained(loader, STEPS, parallel=True)
    with loader_over(levelled(MICRO)) as loader:
        found["level"] = trained(loader, STEPS, parallel=True)
    with loader_over(epochs(MICRO)) as loader:
        found["padded"] = trained(loader, 20, parallel=True)
    with loader_over(stream(MICRO), lanes=4, workers=2) as loader:
        found["stream"] = trained(loader, 20, parallel=True)
    model = Model()
    with loader_over(batches(MICRO)) as loader:
        trained(loader, 7, parallel=True, model=model)
        found["state"] = loader.state_dict()
        found["model"] = {
            name: each.tolist() for name, each in model.state_dict().items()
        }
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found["plain"])
    found["alike"] = all(each == found["plain"] for each in gathered)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
