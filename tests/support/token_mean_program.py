"""Run on ranks: conversations with weights of messages and samples, trained with means
of token losses by a plain loop, the Trainer and Lightning, padded and packed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel

from energize import ProcessorTaskEncoder, get_loader, get_train_dataset
from energize.encoders import ModelPacking, TokenMean
from energize.integrations.lightning import LightningTokenMean
from energize.integrations.transformers import LoaderTrainer
from tests.support.processors import tokenizer
from tests.support.trainers import lightning_trainer

MEANS = ("tokens", "samples", "sqrt_tokens")
STEPS = 2
ACCUMULATION = 2
BATCH_SIZE = 2
RATE = 0.5
SAMPLE_WEIGHTS = (0.5, 2.0)
"""Of the folders of even and odd conversations."""


def language_model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    return transformers.LlamaForCausalLM(config).double()


def dataset_of(folder: Path, packing: Any = False) -> Any:
    encoder = ProcessorTaskEncoder(tokenizer(), packing=packing)
    return get_train_dataset(
        folder / "mix.yaml", batch_size=BATCH_SIZE, task_encoder=encoder
    )


def by_hand(model: Any, loader: Any, mean: str, folder: Path) -> list[float]:
    whole = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    token_mean = TokenMean(mean)
    losses = []
    for micro_batches in token_mean.steps(loader, ACCUMULATION):
        loss = 0.0
        for batch in micro_batches:
            part = token_mean(whole(**batch).logits, batch)
            part.backward()
            loss += part.item()
        optimizer.step()
        optimizer.zero_grad()
        values = [0.0] * dist.get_world_size()
        dist.all_gather_object(values, loss)
        losses.append(sum(values) / len(values))
        if len(losses) == STEPS:
            return losses
    raise AssertionError


def by_trainer(model: Any, loader: Any, mean: str, folder: Path) -> list[float]:
    options = transformers.TrainingArguments(
        output_dir=str(folder / "hf"),
        max_steps=STEPS,
        gradient_accumulation_steps=ACCUMULATION,
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = LoaderTrainer(model, options, train_loader=loader, token_mean=mean)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


class Module(lightning.LightningModule):
    def __init__(self, model: Any, token_mean: Any) -> None:
        super().__init__()
        self.model, self.token_mean, self.losses = model, token_mean, []

    def training_step(self, batch: Any, number: int) -> Any:
        return self.token_mean(self.model(**batch).logits, batch)

    def on_train_batch_end(self, *_: Any) -> None:
        if len(self.losses) < self.global_step:
            self.losses.append(self.token_mean.last_mean)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), RATE)


def by_lightning(model: Any, loader: Any, mean: str, folder: Path) -> list[float]:
    token_mean = LightningTokenMean(mean)
    module = Module(model, token_mean)
    trainer = lightning_trainer(
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATION,
        callbacks=[token_mean],
        enable_checkpointing=False,
    )
    trainer.fit(module, loader)
    return module.losses


TRAINERS = {"ddp": by_hand, "Trainer": by_trainer, "Lightning": by_lightning}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    environment = dict(os.environ)
    results = {}
    for name, train in TRAINERS.items():
        for packed in (False, True):
            for mean in MEANS:
                os.environ |= environment  # Lightning leaves half of it
                model = language_model()
                packing = ModelPacking(model) if packed else False
                dataset = dataset_of(folder, packing)
                with get_loader(dataset, num_workers=2) as loader:
                    losses = train(model, loader, mean, folder)
                parameters = torch.cat([p.flatten() for p in model.parameters()])
                key = f"{mean}, {name}, {'packed' if packed else 'padded'}"
                results[key] = [losses, parameters.tolist()]
    if dist.get_rank() == 0:
        (folder / "out.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
