"""A vision-language model fine-tuned from loose files: a jsonl of conversations, images
beside it.

`python examples/finetune_vlm.py OUT` with Hugging Face's Trainer, `--lightning` with
Lightning; `torchrun --nproc-per-node=2 examples/finetune_vlm.py OUT` on two ranks.
`--steps N` stops after N of 20 steps; called again, it goes on from there. Model and
processor are small, with random weights: in your own program they come from
`AutoProcessor.from_pretrained` and `AutoModelForImageTextToText.from_pretrained`. It
needs `pip install -e ".[clients]"`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from energize import Loader, ProcessorTaskEncoder, get_loader, get_train_dataset
from energize.integrations.transformers import LoaderTrainer

COLOURS = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220)}
STEPS = 20
WORKERS = 2
SPECIAL = ["<unk>", "<pad>", "<s>", "<end>", "<image>"]
TEMPLATE = (
    "<s>{% for message in messages %}{{ message['role'] }} : {% for part in "
    "message['content'] %}"
    "{% if part['type'] == 'image' %} <image> {% else %}{{ part['text'] }}{% endif "
    "%}{% endfor %}"
    "<end>{% endfor %}{% if add_generation_prompt %}assistant : {% endif %}"
)


def conversations(folder: Path, count: int = 96) -> Path:
    """Loose files, as a newcomer has them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(count):
        name, colour = list(COLOURS.items())[i % 3]
        Image.new("RGB", (20 + i % 7, 20), colour).save(folder / f"{i}.png")
        turns = [("human", "<image> what colour is this ?"), ("gpt", f"it is {name}")]
        said = [{"from": who, "value": text} for who, text in turns]
        rows.append(json.dumps({"image": f"{i}.png", "conversations": said}))
    (folder / "new").write_text("\n".join(rows))
    return (folder / "new").rename(folder / "chat.jsonl")


def small_processor() -> Any:
    """A LLaVA processor with a tokenizer of a few words."""
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    text = "user assistant : what colour is this ? it red green blue"
    words.train_from_iterator([text], trainers.WordLevelTrainer(special_tokens=SPECIAL))
    named = {
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "<end>",
    }
    made: Any = transformers  # whose processors have no types
    tokenizer = made.PreTrainedTokenizerFast(
        tokenizer_object=words, extra_special_tokens=["<image>"], **named
    )
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    options = {"patch_size": 8, "vision_feature_select_strategy": "full"}
    return made.LlavaProcessor(
        images,
        tokenizer,
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
        **options,
    )


def small_model(processor: Any) -> Any:
    """A LLaVA model of a few thousand parameters."""
    torch.manual_seed(0)
    small: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
    }
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            image_size=16, patch_size=8, num_hidden_layers=1, **small
        ),
        text_config=transformers.LlamaConfig(
            vocab_size=len(processor.tokenizer), num_hidden_layers=1, **small
        ),
        image_token_index=processor.image_token_id,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_seq_length=5,
    )
    return transformers.LlavaForConditionalGeneration(config)


def with_trainer(out: Path, model: Any, loader: Loader[Any], steps: int) -> list[float]:
    """Train up to `steps`, from the last checkpoint on; return the losses of all
    steps.
    """
    options = transformers.TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        save_steps=10,
        logging_steps=1,
        learning_rate=0.02,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=True,
    )
    found: Any = transformers.trainer_utils.get_last_checkpoint
    last = found(str(out)) if out.exists() else None
    # Weights have other names in the files than in the model, which the Trainer reads.
    if last:
        model = type(model).from_pretrained(last)
    trainer = LoaderTrainer(model, options, train_loader=loader)
    trainer.train(resume_from_checkpoint=last)
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


class Module(lightning.LightningModule):
    """The model under Lightning."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.losses = list[float]()
        self.model = model

    def training_step(self, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 0.02)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["losses"] = self.losses

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.losses = checkpoint["losses"]


def with_lightning(
    out: Path, model: Any, loader: Loader[Any], steps: int
) -> list[float]:
    """Train up to `steps`, from the last checkpoint on; return the losses of all
    steps.
    """
    module = Module(model)
    file = out / "last.ckpt"
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        module, loader, ckpt_path=file if file.exists() else None, weights_only=False
    )
    trainer.save_checkpoint(file)
    return module.losses


def trained(out: Path, steps: int = STEPS, *, train: Any = with_trainer) -> list[float]:
    """Train up to `steps`; return the losses of all steps."""
    data = out / "data" / "chat.jsonl"
    first = os.environ.get("RANK", "0") == "0"
    if first and not data.exists():
        conversations(data.parent)
    while not data.exists():
        time.sleep(0.1)
    processor = small_processor()
    dataset = get_train_dataset(
        data, batch_size=8, task_encoder=ProcessorTaskEncoder(processor)
    )
    with get_loader(dataset, num_workers=WORKERS) as loader:
        return train(out / "run", small_model(processor), loader, steps)  # type: ignore[no-any-return]


def main() -> None:
    """Train, and print the loss of each step."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--lightning", action="store_true")
    options.add_argument("--steps", type=int, default=STEPS)
    given = options.parse_args()
    train = with_lightning if given.lightning else with_trainer
    losses = trained(given.out, given.steps, train=train)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(losses))


if __name__ == "__main__":
    main()
