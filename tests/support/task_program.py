"""Run on ranks: a task from loose files to trained steps, killed, resumed, or as a whole.

`task_program FOLDER TASK MODE`: "whole" trains all steps, once with padded and once with
packed batches; "killed" ends by a signal; "resumed" goes on from its state, on any ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image, ImageDraw
from torch.nn.parallel import DistributedDataParallel

from energize import ProcessorTaskEncoder, get_loader, get_train_dataset
from energize.encoders import (
    BoxFormat,
    GroundingTaskEncoder,
    ModelPacking,
    TokenMean,
    VideoFrames,
    VideoTaskEncoder,
)
from energize.extras.transforms import MergeTransform, RandomHorizontalFlip
from energize.samples import GroundingSample
from tests.support import chat_templates, models
from tests.support.video_processor import qwen
from tests.support.videos import video

STEPS, SAVED_AT, KILLED_AT = 30, 12, 17
GLOBAL_BATCHES = 2
"""Batches of a step, over all ranks."""
BATCH_SIZE = 4
ROWS = 48
COLOURS = ("red", "green", "blue")


def videos(folder: Path) -> None:
    """Clips whose number of frames decides the answer."""
    rows = []
    for i in range(ROWS):
        name = f"{i % 12}.mp4"
        (folder / name).write_bytes(video(frames=20 + i % 12))
        turns = [("human", "<video>what?"), ("gpt", COLOURS[i % 3])]
        rows.append(
            {
                "video": name,
                "conversations": [{"from": a, "value": b} for a, b in turns],
            }
        )
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))


def tools(folder: Path) -> None:
    """Calls of tools, in Parquet, as nested columns and JSON text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object"}},
    }
    rows = []
    for i in range(ROWS):
        function = {"name": "look", "arguments": json.dumps({"at": COLOURS[i % 3]})}
        call = {"id": "1", "type": "function", "function": function}
        messages = [
            {"role": "user", "content": f"where is {COLOURS[i % 3]}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": f"at {i}", "tool_call_id": "1"},
            {"role": "assistant", "content": f"{COLOURS[i % 3]} is there"},
        ]
        rows.append({"messages": messages, "tools": json.dumps([schema])})
    pq.write_table(pa.Table.from_pylist(rows), folder / "data.parquet")


def boxes(folder: Path) -> None:
    """Images of one box, with its place in the form of ms-swift."""
    rows = []
    for i in range(ROWS):
        left, top = 4 * (i % 5), 3 * (i % 4)
        box = [left, top, left + 16, top + 12]
        image = Image.new("RGB", (40, 32))
        ImageDraw.Draw(image).rectangle(box, fill=COLOURS[i % 3])
        image.save(folder / f"{i}.png")
        messages = [
            {"role": "user", "content": "<image>find <ref-object>"},
            {"role": "assistant", "content": '{"bbox_2d": <bbox>}'},
        ]
        objects = {"ref": [COLOURS[i % 3]], "bbox": [box]}
        rows.append({"messages": messages, "images": [f"{i}.png"], "objects": objects})
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))


def of_videos(folder: Path, packed: bool) -> tuple[Any, Any]:
    processor = qwen()
    model = models._qwen(processor, "Qwen2_5_VL")
    packing = ModelPacking(model) if packed else False
    encoder = VideoTaskEncoder(processor, frames=VideoFrames(fps=5), packing=packing)
    return model, get_train_dataset(
        folder / "data.jsonl", batch_size=BATCH_SIZE, task_encoder=encoder
    )


def of_tools(folder: Path, packed: bool) -> tuple[Any, Any]:
    import transformers

    words = chat_templates.tokenizer("qwen2")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**models.TEXT, vocab_size=len(words))
    model = transformers.LlamaForCausalLM(config)
    packing = ModelPacking(model) if packed else False
    return model, get_train_dataset(
        folder / "data.parquet",
        batch_size=BATCH_SIZE,
        task_encoder=ProcessorTaskEncoder(words, packing=packing),
    )


def of_boxes(folder: Path, packed: bool) -> tuple[Any, Any]:
    processor = qwen("Qwen3VLProcessor")
    model = models._qwen(processor, "Qwen3VL")
    encoder = GroundingTaskEncoder(
        processor,
        stored=BoxFormat(layout="xyxy", units="pixels"),
        written="qwen3_vl",
        transform=MergeTransform([RandomHorizontalFlip(0.5)]),
        packing=ModelPacking(model) if packed else False,
    )
    return model, get_train_dataset(
        folder / "data.jsonl",
        batch_size=BATCH_SIZE,
        task_encoder=encoder,
        sample_type=GroundingSample,
        field_map={
            "turns": "messages",
            "images": "images",
            "boxes": "objects[bbox]",
            "labels": "objects[ref]",
        },
    )


TASKS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "videos": (videos, of_videos),
    "tools": (tools, of_tools),
    "boxes": (boxes, of_boxes),
}


def trained(
    folder: Path, task: str, *, packed: bool = False, mode: str = "whole"
) -> list[Any]:
    """Return the loss and the texts of the samples of each step."""
    model, dataset = TASKS[task][1](folder, packed)
    model.train()
    file, first = folder / "state.pt", 0
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    loader = get_loader(dataset, num_workers=2)
    if mode == "resumed":
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        first = SAVED_AT
    whole = DistributedDataParallel(model, find_unused_parameters=True)
    ranks = dist.get_world_size()
    mean, steps = TokenMean(), []
    with loader:
        batches = mean.steps(loader, GLOBAL_BATCHES // ranks)
        for step, micro_batches in zip(range(first, STEPS), batches, strict=False):
            loss, texts = 0.0, []
            for batch in micro_batches:
                inputs = {name: batch[name] for name in batch if name != "labels"}
                part = mean(whole(**inputs).logits, batch)
                part.backward()
                loss += part.item() / ranks
                texts.append([batch.__key__, batch.labels.sum().item()])
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            gathered: list[Any] = [None] * ranks
            dist.all_gather_object(gathered, [loss, texts])
            keys = [text for _, of_rank in gathered for text in of_rank]
            steps.append([sum(value for value, _ in gathered), sorted(keys)])
            if step + 1 == SAVED_AT and mode == "killed":
                state = {"loader": loader.state_dict(), "model": model.state_dict()}
                if dist.get_rank() == 0:
                    torch.save(state | {"optimizer": optimizer.state_dict()}, file)
            if step + 1 == KILLED_AT and mode == "killed":
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
    return steps


def main(folder: Path, task: str, mode: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    results = {mode: trained(folder, task, mode=mode)}
    if mode == "whole":
        results["packed"] = trained(folder, task, packed=True)
    if dist.get_rank() == 0:
        (folder / f"{mode}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
