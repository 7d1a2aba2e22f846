"""Captions packed into sequences of 128 tokens, and trained on by every rank.

python -m examples.photographs                              # makes demo-data
torchrun --nproc-per-node=2 examples/packing.py
"""

from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from energize import CaptioningSample, DefaultTaskEncoder, get_loader, get_train_dataset
from energize.packing import Packer, concat_pack


class Packing(DefaultTaskEncoder[CaptioningSample, Any, Any, Any]):
    """Bytes of captions are the tokens; pictures are not looked at."""

    decoder = None

    def preencode_sample(self, sample: CaptioningSample) -> dict[str, Any]:
        """A sample as it waits to be packed."""
        tokens = torch.tensor(list(sample.caption), dtype=torch.int64)
        return {"__key__": sample.__key__, "tokens": tokens}

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Which samples share a pack."""
        return Packer("tokens", 128, method="balanced")(samples)

    def pack_selected_samples(self, samples: list[Any]) -> dict[str, Any]:
        """Their tokens one after the other, with where each sample begins."""
        return concat_pack(samples, ["tokens"])


def main() -> None:
    """Train for 20 steps; a state is the same on all ranks, so one of them saves it."""
    dist.init_process_group("gloo")
    dataset = get_train_dataset(
        "demo-data/captions_a",
        batch_size=4,
        packing_buffer_size=40,
        task_encoder=Packing(),
    )
    model = DistributedDataParallel(torch.nn.Embedding(256, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with get_loader(
        dataset, num_workers=2
    ) as loader:  # its rank is that of the process group
        for step, batch in enumerate(islice(loader, 20), 1):
            tokens = batch["tokens"]  # (4, 128 at most)
            loss = torch.nn.functional.cross_entropy(
                model(tokens[:, :-1]).flatten(0, 1),
                tokens[:, 1:].flatten(),
                ignore_index=0,
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if (
                step % 10 == 0
                and (state := loader.state_dict())
                and dist.get_rank() == 0
            ):
                torch.save(state, "packing.pt")
                fill = (tokens > 0).float().mean()
                print(
                    f"step {step}: loss {loss:.2f}, {fill:.0%} of the batch is tokens"
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
