"""Ledgers in Weights & Biases and Lightning, which take seconds to import."""

from __future__ import annotations

import importlib

import pytest
import torch

from energize import ConfigError, get_loader
from energize.extras.monitor import WandbLedger, lightning_ledger
from tests.support.deliveries import weighed_mix as mix
from tests.support.loading import take

pytestmark = pytest.mark.slow


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


@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_them_under_its_own_steps(tmp_path):
    dataset = mix()
    for number, given in enumerate((True, False)):
        loader = get_loader(dataset)
        callback = lightning_ledger(loader if given else None, every=5)
        fitted(tmp_path / str(number), callback, loader)
        rows = (tmp_path / str(number) / "run/version_0/metrics.csv").read_text().splitlines()
        names = rows[0].split(",")
        step, web = names.index("step"), names.index("mix/web/delivered_share")
        found = {int(row.split(",")[step]) for row in rows[1:] if row.split(",")[web]}
        assert found == {5, 10, 15, 20}


@pytest.mark.filterwarnings("ignore")
def test_lightning_with_other_loaders_is_told_which_is_missing(tmp_path):
    plain = torch.utils.data.DataLoader([{"sample_weights": torch.ones(1)}] * 4)
    with pytest.raises(ConfigError, match="0 loaders of energize"):
        fitted(tmp_path, lightning_ledger(), plain)
