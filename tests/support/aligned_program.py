"""A small vision-language model under DDP, whose vision encoder is called only for
batches with images.

`torchrun -m tests.support.aligned_program OUT WRAP ALIGN STEPS SAVE_AT STATE`: WRAP is
"one" for one DDP around the model, or "two" for one around each part; ALIGN is "plain",
"together" or "always". After SAVE_AT steps the state is saved to the file STATE; if
SAVE_AT is "resume", it is loaded from there.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from energize import BatchDataset, BlendDataset, ListSource, ShuffleDataset, get_loader
from energize.experimental import AlignDataset

MICRO, GLOBAL, RANKS = 2, 16, 4
FEATURES = 6


def source(name: str, count: int, images: bool) -> ListSource:
    generator = torch.Generator().manual_seed(len(name))
    samples = []
    for number in range(count):
        words, pixels = torch.randn(2, FEATURES, generator=generator)
        sample = {"__key__": f"{name}{number}", "words": words}
        samples.append(sample | ({"pixels": pixels} if images else {}))
    return ListSource(samples, name=name, columns={"images": [int(images)] * count})


def collated(samples: list[Any]) -> dict[str, Any]:
    rows = [row for row, sample in enumerate(samples) if "pixels" in sample]
    pixels = [samples[row]["pixels"] for row in rows]
    return {
        "__key__": [sample["__key__"] for sample in samples],
        "words": torch.stack([sample["words"] for sample in samples]),
        "pixels": torch.stack(pixels) if rows else None,
        "rows": rows,
    }


def dataset(align: str) -> Any:
    mix = BlendDataset(
        (ShuffleDataset(source("text", 40, images=False)), 4),
        (ShuffleDataset(source("pictures", 12, images=True)), 1),
        scheme="random",
    )
    if align == "plain":
        return BatchDataset(mix, MICRO, collated)
    columns = {"images": align}
    return AlignDataset(
        mix, MICRO, collated, global_batch_size=GLOBAL, columns=columns, ranks=RANKS
    )


class Model(nn.Module):
    """A linear language model with a vision encoder of one layer."""

    def __init__(self, wrap: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vision: nn.Module = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())
        self.language: nn.Module = nn.Linear(FEATURES, 1)
        if wrap == "two":
            self.vision = DistributedDataParallel(self.vision)
            self.language = DistributedDataParallel(self.language)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """The loss of each row."""
        hidden = batch["words"]
        if batch["pixels"] is not None:
            seen = self.vision(batch["pixels"])
            hidden = hidden.index_add(0, torch.tensor(batch["rows"]), seen)
        return (self.language(hidden).squeeze(1) - hidden.sum(dim=1)) ** 2


def plain_state(model: nn.Module) -> dict[str, Any]:
    return {
        name.replace("module.", ""): value for name, value in model.state_dict().items()
    }


def trained(
    wrap: str, align: str, steps: int, save_at: str, state: Path
) -> dict[str, Any]:
    """The losses of the optimizer steps, and the model at the end."""
    model: nn.Module = Model(wrap)
    loader = get_loader(dataset(align), num_workers=2, global_batch_size=GLOBAL)
    if save_at == "resume":
        saved = torch.load(state)
        loader.load_state_dict(saved["loader"])
        names = zip(model.state_dict(), saved["model"].values(), strict=True)
        model.load_state_dict(dict(names))
    if wrap == "one":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    world_size = distributed.get_world_size()
    losses, called = [], []
    batches = iter(loader)
    for step in range(1, steps + 1):
        total = torch.zeros(())
        for _ in range(loader.accumulation_steps):
            batch = next(batches)
            weights = batch.get("sample_weights", torch.ones(len(batch["words"])))
            loss = (model(batch) * weights).sum() / GLOBAL
            (loss * world_size).backward()
            total += loss.detach()
            called.append(batch["pixels"] is not None)
        optimizer.step()
        optimizer.zero_grad()
        distributed.all_reduce(total)
        losses.append(float(total))
        if str(step) == save_at:
            now = {"loader": loader.state_dict(), "model": plain_state(model)}
            if distributed.get_rank() == 0:
                torch.save(now, state)
    weights = [value.flatten().tolist() for value in plain_state(model).values()]
    fillers = loader.report(all_ranks=True).to_dict()["mix/fillers"]
    return {"losses": losses, "model": weights, "called": called, "fillers": fillers}


def main() -> None:
    out, wrap, align, steps, save_at, state = sys.argv[1:]
    distributed.init_process_group("gloo", timeout=timedelta(seconds=20))
    run = trained(wrap, align, int(steps), save_at, Path(state))
    Path(out, f"{distributed.get_rank()}.json").write_text(json.dumps(run))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
