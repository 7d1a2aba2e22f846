"""What `energize simulate --network` says of a run, beside the run, from a store on
loopback.

    python -m benchmarks.network_forecast

Each row is an epoch of a training whose steps take a given time, with an empty node
cache and in a process of its own. The store counts requests and bytes; the trainer, how
long it waits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from energize import get_loader, get_train_dataset, prepare, write_shards
from energize.core.dataset import IndexedDataset
from energize.report.network import forecast_network, parsed_network
from tests.support.object_server import counts, object_server

__all__ = ["CASES", "compared", "made"]

BATCH = 16

CASES = (
    "step=100ms",
    "step=20ms",
    "step=100ms,errors=3%",
    "step=20ms,errors=3%",
    "step=100ms,bandwidth=20MB/s",
    "step=10ms,bandwidth=20MB/s",
    "step=20ms,latency=300ms",
    "step=150ms,latency=300ms",
    "step=20ms,workers=2",
    "step=20ms,workers=2,errors=3%",
    "step=10ms,workers=2,bandwidth=20MB/s",
)


def made(folder: Path, samples: int) -> Path:
    """A prepared folder of samples of 0 to 100 KB, in 8 shards; made if it is not
    there.
    """
    if not (folder / ".nv-meta").exists():
        sizes = np.random.default_rng(0).integers(0, 100_000, samples).tolist()
        raw = (
            {"__key__": f"{n:06d}", "bin": os.urandom(size)}
            for n, size in enumerate(sizes)
        )
        write_shards(raw, folder, samples_per_shard=-(-samples // 8))
        prepare(
            folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1
        )
    return folder


def compared(folder: Path, case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is forecast of an epoch, and what was measured, by the same names."""
    network = parsed_network(case)
    dataset: Any = get_train_dataset(folder, batch_size=BATCH)
    return forecast_network(dataset, _steps(dataset), network), _measured(
        folder, network
    )


def _steps(dataset: IndexedDataset[Any]) -> int:
    return dataset.sources[0].count // BATCH


def _measured(folder: Path, network: Mapping[str, float]) -> dict[str, Any]:
    """What `_trained` returns, in a process of its own, of a store with the faults of a
    network.
    """
    faults: dict[str, Any] = {
        "latency": network["latency"],
        "bandwidth": network["bandwidth"],
    }
    faults["errors"] = network["errors"] / 100
    with (
        object_server(folder.parent.parent, **faults) as url,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache,
    ):
        own = {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "ENERGIZE_CACHE": cache,
        }
        path = f"s3://{folder.parent.name}/{folder.name}"
        asked = json.dumps([path, network["step"], int(network["workers"]), url])
        command = [sys.executable, "-m", "benchmarks.network_forecast", "--run", asked]
        done = subprocess.run(
            command,
            env=os.environ | own,
            stdout=subprocess.PIPE,
            check=True,
            timeout=300,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _trained(path: str, step: float, workers: int, url: str) -> dict[str, Any]:
    """Train an epoch; return how long steps waited, and what the store was asked for
    meanwhile.
    """
    waits = []
    dataset: Any = get_train_dataset(path, batch_size=BATCH)
    with get_loader(dataset, num_workers=workers) as loader:
        before = counts(url)
        began = time.perf_counter()
        for _ in islice(loader, _steps(dataset)):
            waits.append(time.perf_counter() - began)
            time.sleep(step)
            began = time.perf_counter()
        after = counts(url)
    asked = {"looks": "HEAD", "fetched_bytes": "bytes", "errors": "errors"}
    found = {ours: after[own] - before[own] for ours, own in asked.items()}
    begin = len(waits) // 3
    end = 2 * len(waits) // 3
    return found | {
        "requests": after["GET"] - before["GET"],
        "first_wait_seconds": float(np.mean(waits[:begin])),
        "wait_seconds": float(np.mean(waits[begin:end])),
    }


def main() -> None:
    """Measure what the arguments say, and print it as it comes."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.network_forecast", description=__doc__
    )
    parser.add_argument("--samples", type=int, default=4800, help="samples of an epoch")
    parser.add_argument(
        "--only", nargs="*", default=CASES, help="what --network is given"
    )
    parser.add_argument(
        "--data", default=os.path.join(tempfile.gettempdir(), "energize-forecast")
    )
    parser.add_argument("--run", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(_trained(*given.run)))
        return
    folder = made(
        Path(given.data) / "bucket" / f"samples-{given.samples}", given.samples
    )
    shown = Table("--network", *_COLUMNS, title="each forecast, and measured")
    for case in given.only:
        both = compared(folder, case)
        rows = (
            [f"{each[name] * scale:,.0f}" for name, scale in _COLUMNS.values()]
            for each in both
        )
        shown.add_row(case, *map(", ".join, zip(*rows, strict=True)))
    Console(width=160).print(shown)


_COLUMNS = {
    "requests": ("requests", 1),
    "looks": ("looks", 1),
    "fetched, MB": ("fetched_bytes", 1e-6),
    "first wait, ms a step": ("first_wait_seconds", 1e3),
    "wait, ms a step": ("wait_seconds", 1e3),
}


if __name__ == "__main__":
    main()
