"""Trainers in their shortest form: what they evaluate, what they train on, also when
they go on from a checkpoint of other ranks, and what becomes of loops that are left
early.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytorch_lightning as lightning
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from lightning_fabric import Fabric
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.utils.logging import set_verbosity_error

from energize import (
    BatchDataset,
    FilterDataset,
    ListSource,
    MapDataset,
    WorkerConfig,
    get_loader,
    is_padding,
)
from energize.integrations.accelerate import AccelerateLoader, gather_real
from energize.integrations.checkpoint import CheckpointedLoaders
from energize.integrations.lightning import LightningLoaderState
from energize.integrations.torch import MapView, RankSampler
from energize.integrations.torch_data import as_torch_dataset
from energize.integrations.transformers import LoaderTrainer
from examples.clients.common import (
    Numbers,
    batches,
    encode,
    numbers,
    of_all_ranks,
    on_ranks,
    stream,
)

BATCH_SIZE, BATCHES, TEMPORARY = 4, 11, gettempdir()


def validation(batch_size: int = BATCH_SIZE) -> Any:
    """A loader of 11 batches."""
    source = MapDataset(ListSource(range(BATCHES * batch_size), name="val"), encode)
    batched = BatchDataset(source, batch_size, Numbers.from_samples)
    return get_loader(batched, role="eval")


def small(number: int) -> bool:
    return number < 42


def uneven(name: str) -> Any:
    """A loader whose last batch is short, of 42 samples, or of a stream of them."""
    source: Any = ListSource(range(42), name="val")
    if name == "stream":
        source = FilterDataset(ListSource(range(60), name="val"), small)
    batched = BatchDataset(MapDataset(source, encode), 4, Numbers.from_samples)
    options = {"lanes": 2} if name == "stream" else {}
    return get_loader(batched, role="eval", **options)


class Model(torch.nn.Module):
    """Gives each sample its loss, and what is counted of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(self.layer.weight, 0.3)
        torch.nn.init.constant_(self.layer.bias, 0.5)

    def forward(self, number: Any, x: Any, y: Any) -> dict[str, Any]:
        losses = (self.layer(x) - y).square().mean(1)
        return {
            "loss": losses.mean(),
            "logits": number * (losses > 2),
            "losses": losses,
        }


def by_ddp() -> tuple[float, float]:
    model, sums = torch.nn.parallel.DistributedDataParallel(Model()), torch.zeros(3)
    for batch in validation():
        with torch.no_grad():
            told = model(**batch)
        if not is_padding(batch):
            sums += torch.stack(
                [told["losses"].sum(), told["logits"].sum(), torch.tensor(4.0)]
            )
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), sums[1].item()


def by_accelerate() -> tuple[float, float]:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Model())
    losses, counted = [], []
    for batch in AccelerateLoader(validation(), accelerator):
        with torch.no_grad():
            told = model(**batch)
        mine = accelerator.gather_for_metrics((told["losses"], told["logits"]))
        losses.append(mine[0])
        counted.append(mine[1])
    return torch.cat(losses).mean().item(), torch.cat(counted).sum().item()


def gathered_by_accelerate(loader: Any) -> tuple[float, float]:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Model())
    losses, counted = [], []
    for batch in loader:
        with torch.no_grad():
            told = model(**batch)
        mine = gather_real(accelerator, (told["losses"], told["logits"]), batch)
        losses.append(mine[0])
        counted.append(mine[1])
    return torch.cat(losses).mean().item(), torch.cat(counted).sum().item()


class HuggingFace(LoaderTrainer):
    """A Trainer that evaluates and trains on a loader."""

    def __init__(
        self,
        loader: Any,
        folder: Any = TEMPORARY,
        step: Any = None,
        val: Any = None,
        **options: Any,
    ) -> None:
        told = TrainingArguments(
            output_dir=str(folder),
            use_cpu=True,
            report_to=[],
            per_device_eval_batch_size=BATCH_SIZE,
            label_names=["y"],
            disable_tqdm=True,
            **options,
        )
        super().__init__(
            Model(),
            told,
            eval_dataset=loader if val is None else val,
            train_loader=None if step is None else loader,
            compute_metrics=lambda given: {"n": given.predictions[0].sum()},
        )
        self.step, self.validate = step, None
        self.remove_callback(PrinterCallback)

    def training_step(self, model: Any, inputs: Any, *given: Any) -> Any:
        self.step(inputs)
        return super().training_step(model, inputs, *given)

    def prediction_step(
        self, model: Any, inputs: Any, *given: Any, **options: Any
    ) -> Any:
        if self.validate is not None:
            self.validate(inputs)
        return super().prediction_step(model, inputs, *given, **options)


def by_transformers(loader: Any = None) -> tuple[float, float]:
    told = HuggingFace(validation() if loader is None else loader).evaluate()
    return told["eval_loss"], float(told["eval_n"])


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def validation_step(self, batch: Numbers) -> None:
        told = self.model(**batch)
        size = 0.0 if is_padding(batch) else float(len(batch.x))
        self.log("loss", told["loss"], sync_dist=True, batch_size=size)
        self.log("n", told["logits"].sum() / 4, sync_dist=True, batch_size=size)


def lightning_trainer(**options: Any) -> lightning.Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy="ddp",
        **quiet,
        **options,
    )


def by_lightning() -> tuple[float, float]:
    (told,) = lightning_trainer(enable_checkpointing=False).validate(
        Module(), validation(), verbose=False
    )
    return told["loss"], told["n"] * 44


EVALUATE = {
    "DistributedDataParallel": by_ddp,
    "Lightning": by_lightning,
    "Accelerate": by_accelerate,
    "Hugging Face Trainer": by_transformers,
}


MORE = {
    f"{trainer}, {name}": partial(evaluate, name)
    for trainer, evaluate in {
        "Accelerate": lambda name: gathered_by_accelerate(uneven(name)),
        "Hugging Face Trainer": lambda name: by_transformers(uneven(name)),
    }.items()
    for name in ("short last batch", "stream")
}
"""Evaluations of other lengths."""


# Training, STOPPED steps on some ranks; or on from there, to the end of the epoch and
# another one.

STOPPED = 3


def loops(loader: Any, step: Callable[[Any], None], *, resumed: bool) -> None:
    """What a program of one's own does."""
    for _ in range(2 if resumed else 1):
        for batch in islice(loader, None if resumed else STOPPED):
            step(batch)


def steps_of_run() -> int:
    """Steps of a run that was stopped on 2 ranks, to the end of the next epoch."""
    left = (BATCHES - 2 * STOPPED, BATCHES)
    return STOPPED + sum(-(-batches // dist.get_world_size()) for batches in left)


def under_ddp(folder: Path, dataset: Any, step: Any, *, resumed: bool) -> None:
    loader, file = get_loader(dataset), folder / "ddp.pt"
    if resumed:
        loader.load_state_dict(torch.load(file, weights_only=True))
    loops(loader, step, resumed=resumed)
    state = loader.state_dict()
    if not resumed and dist.get_rank() == 0:
        torch.save(state, file)


def under_fsdp(
    folder: Path, dataset: Any, step: Any, *, resumed: bool, several: bool = False
) -> None:
    """Sharded, saved while training might go on."""
    loader, model = get_loader(dataset), fully_shard(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(batch: Numbers) -> None:
        model(**batch)["loss"].backward()
        optimizer.step()
        step(batch)

    app = {"model": get_model_state_dict(model), "loader": loader}
    saved = folder / ("fsdp-several" if several else "fsdp")
    if several:
        app["loader"] = CheckpointedLoaders(train=loader)
    if resumed:
        dcp.load(app, checkpoint_id=saved)
    loops(loader, train, resumed=resumed)
    if not resumed:
        saving = dcp.async_save(app, checkpoint_id=saved)
        saving.result()


def by_ranks(
    folder: Path,
    loader: Any,
    step: Any,
    name: str,
    *,
    resumed: bool,
    train: Any = None,
) -> None:
    """A state of each data-parallel rank, as torchtitan keeps them."""
    file, rank, world = folder / f"{name}.pt", dist.get_rank(), dist.get_world_size()
    if resumed:
        saved = torch.load(file, weights_only=True)
        loader.load_state_dict(
            pickle.loads(saved[f"dp_rank_{rank % saved['world_size']}"])
        )
    if train is None:
        loops(loader, step, resumed=resumed)
    else:
        for batch in islice(train(), None if resumed else STOPPED):
            step(batch)
    if not resumed:
        states: list[Any] = [None] * world
        dist.all_gather_object(states, pickle.dumps(loader.state_dict()))
        of_ranks = {f"dp_rank_{number}": state for number, state in enumerate(states)}
        if rank == 0:
            torch.save({"world_size": world, **of_ranks}, file)


def in_torchtitan(folder: Path, dataset: Any, step: Any, *, resumed: bool) -> None:
    by_ranks(folder, get_loader(dataset), step, "titan", resumed=resumed)


def in_stateful_data_loader(
    folder: Path, dataset: Any, step: Any, *, resumed: bool
) -> None:
    config = WorkerConfig()  # Accelerate, which is initialised, does not divide
    torch_dataset = as_torch_dataset(dataset, worker_config=config)
    loader = StatefulDataLoader(torch_dataset, batch_size=None)
    by_ranks(folder, loader, step, "stateful", resumed=resumed)


def in_map_view(folder: Path, dataset: Any, step: Any, *, resumed: bool) -> None:
    """The sampler knows the position; its epochs are set as for a DistributedSampler."""
    view = MapView(dataset)
    sampler = RankSampler(view)
    options: dict[str, Any] = {"batch_size": None, "collate_fn": lambda batch: batch}
    loader = StatefulDataLoader(view, sampler=sampler, num_workers=2, **options)

    def train() -> Any:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            yield from loader

    by_ranks(folder, loader, step, "view", resumed=resumed, train=train)


def under_accelerate(folder: Path, dataset: Any, step: Any, *, resumed: bool) -> None:
    accelerator, loader = Accelerator(cpu=True), get_loader(dataset)
    accelerator.register_for_checkpointing(loader)
    if resumed:
        accelerator.load_state(str(folder / "accelerate"))
    loops(loader, step, resumed=resumed)
    if not resumed:
        accelerator.save_state(str(folder / "accelerate"))


def under_fabric(folder: Path, dataset: Any, step: Any, *, resumed: bool) -> None:
    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    loader, model, file = get_loader(dataset), Model(), folder / "fabric.ckpt"
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    if resumed:
        fabric.load(file, {"loader": loader})

    def train(batch: Numbers) -> None:
        fabric.backward(model(**batch)["loss"])
        optimizer.step()
        step(batch)

    loops(loader, train, resumed=resumed)
    if not resumed:
        fabric.save(file, {"model": model, "loader": loader})


def under_transformers(folder: Path, dataset: Any, step: Any, *, resumed: bool) -> None:
    loader = get_loader(dataset)
    checkpoint = folder / "hf" / f"checkpoint-{STOPPED}"
    steps = steps_of_run() if resumed else STOPPED
    output = folder / str(dist.get_world_size()) if resumed else folder / "hf"
    trainer = HuggingFace(loader, output, step, max_steps=steps)
    trainer.train(resume_from_checkpoint=str(checkpoint) if resumed else None)


class Fitted(Module):
    def __init__(self, step: Any, file: Path) -> None:
        super().__init__()
        self.step, self.file = step, file

    def training_step(self, batch: Numbers) -> Any:
        self.step(batch)
        return self.model(**batch)["loss"] * (not is_padding(batch))

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step == STOPPED:
            self.trainer.save_checkpoint(self.file)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def under_lightning(folder: Path, dataset: Any, step: Any, *, resumed: bool) -> None:
    file = folder / "lightning.ckpt"
    told: dict[str, Any] = {"max_epochs": 2} if resumed else {"max_steps": STOPPED}
    loader = get_loader(dataset)
    told["callbacks"] = [LightningLoaderState(loader)]
    trainer = lightning_trainer(enable_checkpointing=False, **told)
    checkpoint = {"ckpt_path": file, "weights_only": False} if resumed else {}
    trainer.fit(Fitted(step, file), loader, **checkpoint)


TRAIN = {
    "DistributedDataParallel": under_ddp,
    "FSDP2, `dcp.async_save`": under_fsdp,
    "FSDP2, `CheckpointedLoaders`": partial(under_fsdp, several=True),
    "a state of each rank, as torchtitan's": in_torchtitan,
    "StatefulDataLoader without workers": in_stateful_data_loader,
    "StatefulDataLoader over `MapView`": in_map_view,
    "Accelerate": under_accelerate,
    "Hugging Face Trainer": under_transformers,
    "Lightning": under_lightning,
    "Fabric": under_fabric,
}


INDEXED_ONLY = {
    "StatefulDataLoader without workers",
    "StatefulDataLoader over `MapView`",
}
"""Trainers that resume a stream on as many ranks only, or read none."""


# Loops that are left early: `BREAKS` times so many steps, and a validation after each.

TRAINED, CHECKED, VALIDATED, BREAKS = 4, 2, 3, 3

Note = Callable[[str, Any], None]


def left_by_hand(train: Any, val: Any, note: Note) -> None:
    turns = [("train", train, TRAINED), ("validate", val, VALIDATED)]
    for what, loader, most in [("sanity", val, CHECKED), *turns * BREAKS]:
        for batch in islice(loader, most):
            note(what, batch)


def left_under_accelerate(train: Any, val: Any, note: Note) -> None:
    accelerator = Accelerator(cpu=True)
    left_by_hand(*(AccelerateLoader(each, accelerator) for each in (train, val)), note)


class Leave(TrainerCallback):
    """Ends an epoch early."""

    def on_step_end(self, told: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop = state.global_step % TRAINED == 0
        control.should_training_stop = state.global_step == BREAKS * TRAINED


def left_under_transformers(train: Any, val: Any, note: Note) -> None:
    """It has no limit for validation, which it leaves at its end."""
    options: dict[str, Any] = {
        "eval_on_start": True,
        "eval_strategy": "epoch",
        "max_steps": 33,
    }
    step = partial(note, "train")
    trainer = HuggingFace(train, step=step, val=val, save_strategy="no", **options)
    trainer.validate = partial(note, "validate")
    trainer.add_callback(Leave())
    trainer.train()


LEFT = {
    "DistributedDataParallel": left_by_hand,
    "Accelerate": left_under_accelerate,
    "Hugging Face Trainer": left_under_transformers,
}

OF_EACH: dict[str, Any] = {"indexed": batches, "stream": stream}


def left(leave: Any) -> dict[str, Any]:
    """What was noted over an indexed dataset and over a stream, of all ranks in turn.
    What validates has a length, as Accelerate asks of it.
    """
    found: dict[str, Any] = {}
    for name, make in OF_EACH.items():
        seen: list[Any] = []
        train = get_loader(make(22))
        val = get_loader(batches(10), role="eval")
        leave(
            train,
            val,
            lambda what, batch, seen=seen: seen.append([what, numbers(batch)]),
        )
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, seen)
        found[name] = [
            [step[0][0], [batch for _, batch in step]]
            for step in zip(*of_ranks, strict=True)
        ]
    return found


# A run whose loops are left early, killed in the second one.

KILLED = TRAINED + 2


def killed(folder: Path) -> None:
    dist.init_process_group("gloo")
    loader, file, step = (
        get_loader(batches(BATCHES), num_workers=2),
        folder / "killed.pt",
        0,
    )
    for _ in range(BREAKS):
        for _ in islice(loader, TRAINED):
            step += 1
            torch.save(loader.state_dict(), file.with_suffix(f".{dist.get_rank()}"))
            dist.barrier()
            if step == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)


def after_kill(folder: Path) -> None:
    """The loop that was killed, to its end, and another one."""
    dist.init_process_group("gloo")
    loader = get_loader(batches(BATCHES), num_workers=2)
    loader.load_state_dict(torch.load(folder / "killed.0", weights_only=True))
    found = of_all_ranks([numbers(batch) for _ in range(2) for batch in loader])
    if dist.get_rank() == 0:
        (folder / f"killed-{dist.get_world_size()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


# What is refused, on two ranks.


def divided_again(*, workers: int = 0, **options: Any) -> None:
    """A DataLoader of a rank's samples, or with Accelerate's defaults of its
    batches."""
    plan = DataLoaderConfiguration(**options)
    samples = as_torch_dataset(MapDataset(ListSource(range(44)), encode))
    told: dict[str, Any] = {
        "batch_size": BATCH_SIZE,
        "collate_fn": Numbers.from_samples,
    }
    loader = DataLoader(samples, num_workers=workers, **told)
    next(iter(Accelerator(cpu=True, dataloader_config=plan).prepare(loader)))


def divided_once() -> list[Any]:
    """By Accelerate alone."""
    config = WorkerConfig(rank=0, world_size=1)
    loader = DataLoader(
        as_torch_dataset(batches(12), worker_config=config), batch_size=None
    )
    prepared = Accelerator(cpu=True).prepare(loader)
    return of_all_ranks([numbers(batch) for batch in prepared])


def trained_on(dataset: Any) -> None:
    told = TrainingArguments(
        output_dir=TEMPORARY, use_cpu=True, report_to=[], max_steps=1
    )
    Trainer(Model(), told, train_dataset=dataset).train()


def gathered(dataset: Any, **options: Any) -> None:
    accelerator = Accelerator(cpu=True)
    loader = get_loader(dataset, role="eval", **options)
    for batch in AccelerateLoader(loader, accelerator):
        accelerator.gather_for_metrics(batch.x.sum().expand(4))


def nested(dataset: Any) -> None:
    loader = get_loader(dataset)
    next(iter(loader))
    dcp.save({"app": {"loader": loader}}, checkpoint_id=f"{TEMPORARY}/nested")


def unsaved() -> None:
    """A checkpoint that another Trainer wrote."""
    trainer = HuggingFace(get_loader(batches(BATCHES)), step=print, max_steps=1)
    trainer.train(resume_from_checkpoint=TEMPORARY)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "samples for IterableDatasetShard": (
        partial(divided_again, dispatch_batches=False),
        "most of the data would never",
    ),
    "its workers": (
        partial(divided_again, dispatch_batches=False, workers=1),
        "most of the data would never",
    ),
    "a loader as train_dataset": (
        lambda: trained_on(get_loader(batches(BATCHES))),
        "LoaderTrainer",
    ),
    "a batch size that is none": (
        lambda: HuggingFace(validation(batch_size=8)).evaluate(),
        "8 samples. Set per_device_eval_batch_size=8",
    ),
    "padding of a stream": (
        lambda: gathered(stream(BATCHES), lanes=4),
        "gather with gather_real",
    ),
    "padding of a global batch": (
        lambda: gathered(batches(BATCHES), global_batch_size=64),
        "gather with gather_real",
    ),
    "a stream deeper in a checkpoint": (
        lambda: nested(stream(BATCHES)),
        "at the top of the dict",
    ),
    "a checkpoint without a state": (unsaved, "has no state of the loader"),
}


def ended() -> None:
    """Rank 0 alone reads for DataLoaderDispatcher, and is told; the other one ends with
    it."""
    dist.init_process_group("gloo")
    divided_again()


def refused(folder: Path) -> None:
    """What each rank was told."""
    environment, said = dict(os.environ), {}
    dist.init_process_group("gloo")
    accelerator, loader = Accelerator(cpu=True), get_loader(batches(BATCHES))
    assert accelerator.prepare(loader) is loader
    for name, (refuse, words) in REFUSED.items():
        os.environ |= environment
        try:
            refuse()
        except (Exception, CheckpointException) as error:
            said[name] = "" if words in str(error) else repr(error)
        else:
            said[name] = "nothing"
    parts = divided_once()
    (folder / f"refused-{dist.get_rank()}.json").write_text(json.dumps([said, parts]))
    dist.destroy_process_group()


Table = Mapping[str, Callable[..., Any]]


def rank(
    folder: Path, name: str, resumed: bool, evaluate: Table, train: Table, leave: Table
) -> None:
    """What each rank does; the first one writes down what was found, by trainer."""
    dist.init_process_group("gloo")
    world, environment = dist.get_world_size(), dict(os.environ)
    told: dict[str, Any] = {"trained": {}, "evaluated": {}, "more": {}, "left": {}}

    def each(table: Table) -> Any:
        for trainer, run in table.items():
            os.environ |= environment  # of which Lightning leaves half
            yield trainer, run

    for trainer, run in each(evaluate if resumed else {}):
        told["evaluated"][trainer] = run()
    if resumed and evaluate is EVALUATE:
        for trainer, run in each(MORE):
            told["more"][trainer] = run()
    for trainer, run in each(train):
        told["trained"][trainer] = {}
        for data, make in OF_EACH.items():
            if data == "stream" and trainer in INDEXED_ONLY:
                continue
            os.environ |= environment
            seen: list[Any] = []
            (folder / data).mkdir(exist_ok=True)
            run(folder / data, make(BATCHES), seen.append, resumed=resumed)
            found = of_all_ranks([*map(numbers, seen)])
            told["trained"][trainer][data] = [batch for batch in found if batch]
    for trainer, run in each(leave if not resumed else {}):
        told["left"][trainer] = left(run)
    if dist.get_rank() == 0:
        (folder / f"{name}{world}-{resumed}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def main(folder: Path, name: str, *tables: Table) -> None:
    """Stop on 2 ranks, and go on on 1, 2 and 3."""
    warnings.filterwarnings("ignore")
    for library in (
        "pytorch_lightning",
        "lightning_fabric",
        "accelerate",
        "torch.distributed",
    ):
        logging.getLogger(library).setLevel(logging.ERROR)
    set_verbosity_error()
    on_ranks(2, rank, folder, name, False, *tables)
    for ranks in (1, 2, 3):
        on_ranks(ranks, rank, folder, name, True, *tables)


if __name__ == "__main__":
    made = Path(sys.argv[1])
    main(made, "", EVALUATE, TRAIN, LEFT)
    on_ranks(2, refused, made)
    try:
        on_ranks(2, ended)
    except ProcessException as error:
        (made / "ended.json").write_text(json.dumps(str(error)))
    with suppress(ProcessExitedException):
        on_ranks(2, killed, made)
    for ranks in (1, 2, 3):
        on_ranks(ranks, after_kill, made)
