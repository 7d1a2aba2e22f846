"""Other libraries' words over the same core, and orders without a dataset: plain
answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
from torch.utils.data import DataLoader

import energize as ez
from energize.compat import easydel, squirrel, streaming
from energize.integrations.torch_data import as_torch_dataset
from energize.packing import attention_cost, balanced, best_fit, first_fit
from energize.report import plan
from tests.golden.adapter import lanes_of
from tests.golden.mixes import LINE, METHODS, MIXES, SCHEMES, STEP, WAVE
from tests.golden.stored import METADATASETS, SPLITS, Keys, file_of

RULES = {"weights": {"code": 0.3, "text": 0.7}, "block_size": 10, "seed": 42}
POINTS = [
    easydel.WeightSchedulePoint(0, {"code": 0.2, "text": 0.8}),
    easydel.WeightSchedulePoint(50, {"code": 0.9, "text": 0.1}),
]
ENDS = ("restart", "first_exhausted", "all_exhausted")
EXAMPLES = {
    "code": [{"i": i} for i in range(13)],
    "text": [{"i": i} for i in range(29)],
}
STRATEGIES = tuple(squirrel.MultiplexingStrategy)


def source(stop: str = "restart", **options: Any) -> Any:
    given = {**RULES, "stop_strategy": stop, **options}
    return easydel.MixedShardedSource(EXAMPLES, **given)


def files(root: Path, **options: Any) -> Any:
    paths = [str(root / name) for name in ("rows.jsonl", "rows-*.parquet")]
    informs = [
        easydel.TextDatasetInform(data_files=path, content_field="text")
        for path in paths
    ]
    return easydel.build_dataset(easydel.DatasetMixture(informs=informs, **options))


def streamed(root: Path, method: str = "random", **options: Any) -> Any:
    streams = [
        streaming.Stream(local=str(root / name), proportion=proportion)
        for name, proportion in {"mds": 0.25, "mds_b": 0.75}.items()
    ]
    given = {"batch_size": 4, "shuffle": True, "drop_last": True, **options}
    return streaming.StreamingDataset(streams=streams, batching_method=method, **given)


def multiplexer(strategy: Any) -> Any:
    sources = {"a": range(13), "b": range(100, 107), "c": range(200, 230)}
    return squirrel.Multiplexer(
        sources, strategy, {"a": 0.35, "b": 0.6, "c": 0.05}, seed=42
    )


# fmt: off
FACE_MIXES: dict[str, Callable[[Path], Any]] = {
    **{f"easydel, energize, {stop}": lambda root, stop=stop: source(stop).dataset for stop in ENDS},
    "easydel, scheduled": lambda root: source(weight_scheduler=easydel.WeightScheduler(POINTS, "linear")).dataset,
    "easydel, files": partial(files, streaming=False, mixture_weights={"ds1": 0.3, "ds2": 0.7}),
    "easydel, files in turn": partial(files, streaming=False, block_mixture=False),
    **{f"streaming, {method}": lambda root, method=method: streamed(root, method).batches() for method in METHODS if method != "in_turn"},
    **{f"squirrel, energize, {each.name}": lambda root, each=each: multiplexer(each).dataset for each in STRATEGIES},
}
# fmt: on
"""Datasets that other libraries' words make."""


def interleaved(root: Path) -> list[Any]:
    sources = {
        name: datasets.Dataset.from_list(rows) for name, rows in EXAMPLES.items()
    }
    return list(easydel.block_mixture_interleave(sources, **RULES).take(50))


def pipeline(root: Path) -> list[Any]:
    named = {"code": "rows-*.parquet", "text": "rows.jsonl"}
    read = [
        easydel.DatasetConfig(
            name=name,
            data_files=str(root / file),
            tokenizer=lambda text: [*map(ord, text)],
        )
        for name, file in named.items()
    ]
    mix = easydel.MixStageConfig(weights=RULES["weights"], block_size=10)
    config = easydel.PipelineConfig(datasets=read, seed=3, mix=mix)
    made = easydel.Pipeline.from_config(config).source().tokenize().mix().load().build()
    return list(islice(made, 6))


def resumed(
    made: list[Any], give: Callable[[Any], Any] = lambda item: item
) -> list[Any]:
    """Two epochs, some more, and what follows in another object with the state."""
    one, other = made
    found = [[give(item) for item in one] for _ in range(2)]
    found.append([give(item) for item in islice(one, 9)])
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    return [*found, [give(item) for item in islice(other, 9)]]


def iterated(root: Path) -> dict[str, Any]:
    return {
        method: resumed(
            [streamed(root, method) for _ in range(2)], lambda row: row["number"]
        )
        for method in ("random", "stratified", "per_stream")
    }


def multiplexed(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for strategy in STRATEGIES:
        made = [multiplexer(strategy) for _ in range(2)]
        counts = [
            list(made[0]),
            made[0].num_samples_by_name,
            made[0].reinit_counts_by_name,
        ]
        found[f"energize, {strategy.name}"] = [counts, resumed(made)]
    return found


def under_torch(root: Path) -> dict[str, Any]:
    found = {}
    for name in ("tower", "batch of filter", "blend, even, all_exhausted"):
        dataset = MIXES[name]()
        config = ez.WorkerConfig(1, 2)
        given = as_torch_dataset(dataset, worker_config=config, **lanes_of(dataset, 4))
        loader = DataLoader(given, batch_size=None, collate_fn=lambda item: item)
        found[name] = [list(islice(loader, 9)), list(islice(loader, 9))]
    return found


def schemes(root: Path) -> dict[str, Any]:
    """Counts and slots, far ones too."""
    weights = {"fixed": [7, 2, 1, 0.5], "many": [1 + i * i % 17 for i in range(50)]}
    weights |= {"gradual": [LINE, 0.5, WAVE], "steps": [STEP, 2, 1]}
    slots = [*range(60), 999, 10**6, 10**12, 2**61]
    found: dict[str, Any] = {}
    for kind, each in weights.items():
        for name in SCHEMES if kind in ("fixed", "many") else SCHEMES[:4]:
            scheme = ez.order.make_scheme(name, each, key=5)
            counts = [scheme.counts(n) for n in (0, 1, 33, 10**4, 10**12)]
            found[f"{kind}, {name}"] = [counts, *scheme.locate(slots)]
    later = ez.order.make_scheme(
        "block", [3, 1], key=1, block_size=8
    ).with_weights_from(20, [1, 9])
    scheduler = ez.order.WeightScheduler(POINTS, "cosine")
    weights_at = [scheduler.get_weights(step) for step in (0, 10, 25, 49, 70)]
    return found | {"changed": later.locate(range(64)), "scheduler": weights_at}


def packing(root: Path) -> list[Any]:
    lengths = [1 + i * i * 7 % 61 for i in range(60)]
    both, costs = (
        [[each, each % 5] for each in lengths],
        [attention_cost(each) for each in lengths],
    )
    packs = [
        [pack(lengths, 64), pack(both, (64, 6))]
        for pack in (first_fit, best_fit, balanced)
    ]
    return [costs, *packs]


def asked_for(root: Path) -> list[Any]:
    """What is said of metadatasets, and lists of datasets."""
    mix = file_of(root, SPLITS["blended"], __module__="megatron.energon")
    files = root / METADATASETS.name
    listed = ez.energon.traverse_metadataset(files / "nested.yaml", split_part="train")
    given = {
        "training": True,
        "split_part": "train",
        "worker_config": ez.WorkerConfig(0, 1),
    }
    loaded = ez.energon.load_dataset(mix).get_datasets(**given).datasets
    options = {"batch_size": 4, "task_encoder": Keys()}
    return [
        [[each.path.name, each.split_part, each.subflavors] for each in listed],
        [
            [
                each.weight,
                [sample.__key__ for sample in each.dataset.build().at(range(9))],
            ]
            for each in loaded
        ],
        [
            [leaf.path.name, list(each)]
            for each, leaf in ez.get_val_datasets(files / "validation.yaml", **options)
        ],
        list(plan(ez.get_train_dataset(mix, **options), 10**6, 3, world_size=2)),
    ]


FACES = {
    each.__name__.replace("_", " "): each
    for each in (
        interleaved,
        pipeline,
        iterated,
        multiplexed,
        under_torch,
        schemes,
        packing,
        asked_for,
    )
}
