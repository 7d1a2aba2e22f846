"""Run by torchrun: the example's fine-tune as a whole, and again from its first checkpoint on."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from torch import distributed

from examples.finetune_vlm import trained

if __name__ == "__main__":
    out = Path(sys.argv[1])
    losses = trained(out)
    distributed.barrier()
    if distributed.get_rank() == 0:
        shutil.rmtree(out / "run" / "checkpoint-20")
    distributed.barrier()
    again = trained(out)
    if distributed.get_rank() == 0:
        (out / "losses.json").write_text(json.dumps([losses, again]))
