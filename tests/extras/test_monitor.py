"""Ledgers in TensorBoard, Prometheus, Weights & Biases and Lightning: read back from
each."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from energize import BlendDataset, ConfigError, get_loader
from energize.extras.monitor import (
    PrometheusLedger,
    TensorBoardLedger,
    WandbLedger,
    lightning_ledger,
)
from tests.support.deliveries import told
from tests.support.deliveries import weighed_mix as mix
from tests.support.loading import take


def test_tensorboard_has_the_shares_of_each_step_that_was_written(tmp_path):
    with get_loader(mix()) as loader, SummaryWriter(str(tmp_path)) as writer:
        log = TensorBoardLedger(loader, writer, every=10, prefix="data")
        for step, _ in zip(range(1, 31), loader, strict=False):
            assert (log(step) is None) == (step % 10 != 0)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    samples = read.Scalars("data/web/samples")
    assert [(each.step, each.value) for each in samples] == [
        (10, 30),
        (20, 60),
        (30, 90),
    ]
    assert read.Scalars("data/code/delivered_share")[-1].value == 0.25


def test_prometheus_names_parts_by_their_whole_path():
    texts = BlendDataset(
        {"web": told(9, "w"), "news": told(9, "n")}, weights={"web": 2, "news": 1}
    )
    parts = {"texts": texts, "code": told(9, "c")}
    registry = CollectorRegistry()
    with get_loader(BlendDataset(parts, weights={"texts": 3, "code": 1})) as loader:
        log = PrometheusLedger(loader, registry)
        for _ in range(2):
            take(loader, 12)
            log.log(12)
    for part, count in (
        ("", 24),
        ("texts", 18),
        ("texts/web", 12),
        ("texts/news", 6),
        ("code", 6),
    ):
        labels = {"part": part, "rank": "0"}
        assert registry.get_sample_value("energize_samples", labels) == count
    assert b'energize_asked_share{part="code",rank="0"} 0.25' in generate_latest(
        registry
    )


def test_what_cannot_be_is_said():
    loader = get_loader(mix())
    for made in (
        lambda: PrometheusLedger(mix()),
        lambda: PrometheusLedger(get_loader(mix(), ledger=False)).log(1),
        lambda: TensorBoardLedger([], None),
        lambda: TensorBoardLedger(loader, "runs/1"),
        lambda: WandbLedger(loader, every=0),
    ):
        with pytest.raises(ConfigError):
            made()


def test_a_missing_library_is_an_error_that_names_the_extra(monkeypatch):
    for module, made in (
        ("prometheus_client", PrometheusLedger),
        ("wandb", WandbLedger),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=r"energize\[monitor\]"):
            made(get_loader(mix()))


# Those that take seconds to import.


@pytest.mark.slow
def test_a_run_of_wandb_has_them(tmp_path, monkeypatch):
    wandb = importlib.import_module("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    loader = get_loader(mix())
    with pytest.raises(ConfigError, match=r"wandb\.init"):
        WandbLedger(loader)
    run = wandb.init(project="mix", dir=str(tmp_path))
    take(loader, 8)
    WandbLedger(loader, every=4, commit=True)(8)
    assert run.summary["mix/web/samples"] == 24
    assert run.summary["mix/web/asked_share"] == 0.75
    run.finish()
    assert list(tmp_path.rglob("*.wandb"))


def model(lightning):
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, index):
            return self.layer(batch["sample_weights"][:, None]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    return Model()


def fitted(tmp_path, callback, loader):
    lightning = importlib.import_module("pytorch_lightning")
    trainer = lightning.Trainer(
        max_steps=20,
        accelerator="cpu",
        logger=lightning.loggers.CSVLogger(tmp_path, name="run", version=0),
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
    )
    trainer.fit(model(lightning), loader)
    return trainer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_them_under_its_own_steps(tmp_path):
    dataset = mix()
    for number, given in enumerate((True, False)):
        loader = get_loader(dataset)
        callback = lightning_ledger(loader if given else None, every=5)
        fitted(tmp_path / str(number), callback, loader)
        rows = (
            (tmp_path / str(number) / "run/version_0/metrics.csv")
            .read_text()
            .splitlines()
        )
        names = rows[0].split(",")
        step, web = names.index("step"), names.index("mix/web/delivered_share")
        found = {int(row.split(",")[step]) for row in rows[1:] if row.split(",")[web]}
        assert found == {5, 10, 15, 20}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_with_other_loaders_is_told_which_is_missing(tmp_path):
    plain = torch.utils.data.DataLoader([{"sample_weights": torch.ones(1)}] * 4)
    with pytest.raises(ConfigError, match="0 loaders of energize"):
        fitted(tmp_path, lightning_ledger(), plain)
