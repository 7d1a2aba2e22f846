"""Metadatasets and stage files that are hostile: the text of a file by what is wrong
with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from energize import get_train_dataset
from energize.experimental import get_staged_train_dataset

M = 1_000_000
_HEAD = "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train: "

SPLITS = {
    "a thousand levels": "[" * 1000 + "]" * 1000,
    "a file of 100 MB": "a" * 100 * M,
    "8 million values": "[" + "x," * 8 * M + "]",
    "4 million documents": "\n" + "---\n" * 4 * M,
    "a million anchors": "[" + ",".join(f"&a{i} x" for i in range(M)) + "]",
    "28,000 unknown keys": "{path: x, "
    + ", ".join(f"k{i}: 1" for i in range(28_000))
    + "}",
    "28,000 keys given twice": "{" + "a: 1," * 28_000 + "}",
    "59,000 entries of the wrong type": "{blend: [" + "1," * 59_000 + "]}",
    "9,900 missing folders": "{blend: [" + "{path: x}," * 9_900 + "]}",
    "9,900 stages of one name": "{stages: ["
    + "{name: a, start_step: 1, path: D}," * 9_000
    + "]}",
    "a key of a million letters": f"{{path: y, ? {'x' * M} : 1}}",
    "a path of a million letters": f"{{path: {'x' * M}}}",
    "a path of 9,000 letters": f"{{path: {'x' * 9000}}}",
    "a tag of a million letters": f"!{'x' * M} y",
    "a tag that asks for a call": "!!python/object/apply:os.system ['echo hi']",
    "an alias of a million letters": "*" + "x" * M,
    "aliases of aliases": "{path: x}\n"
    + "a0: &a0 [1]\n"
    + "\n".join(
        f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(20)
    ),
    "1,000 variables": "{path: '" + "${HOME}" * 1000 + "'}",
    "a variable of a million letters": "{path: '${" + "a" * M + "}'}",
    "an escape for terminals": '{path: "\\e[31mhello\\e[0m"}',
    "a key with an escape": '{path: x, "\\e[31mk": 1}',
    "a zero byte": '{path: "a\\0b"}',
    "half a letter": '{path: "\\ud800"}',
    "a percentage of 9,000 digits": "{path: D, subset: {range: [0%, '"
    + "9" * 9000
    + "x']}}",
    "10^30 passes": "{blend_epochized: [{path: D, repetitions: 1" + "0" * 30 + "}]}",
    "1e300 passes": "{blend_epochized: [{path: D, repetitions: 1e300}]}",
    "global batches of 2^31 samples": "{blend: [{path: D, proportion: 1}, {path: D, proportion: 1, "
    "subset: {range: [0%, 50%]}}], epoch_size: 16, sampling_method: fixed, "
    "composition: {method: stratified, global_batch_size: 2147483648}}",
    "a stage with batches of 2^31 samples": "{steps: 9, seq_len: 5, stages: [{name: one, "
    "start_step: 0, path: D, batch: {batch_size: 2147483648}}]}",
    "a block of 10^9 slots": "{blend: [{path: D}, {path: D, subset: {range: [0%, 50%]}}], "
    "scheme: block, block_size: 1000000000}",
    "a weight that is none": "{blend: [{path: D, weight: .nan}]}",
    "a split file by its whole path": "{path: D, split_config: /etc/secret.yaml}",
    "a type file above": "{path: D, dataset_config: ../../../../etc/passwd.yaml}",
    "a password file": "{path: /etc/passwd}",
    "an endless device": "{path: /dev/zero}",
    "a web address": "{path: 'http://example.com/x'}",
    "a file address": "{path: 'file:///etc/passwd'}",
    "a link to itself": "{path: loop.yaml}",
    "a named pipe": "{path: pipe.yaml}",
    "a named pipe of JSON lines": "{path: pipe.jsonl}",
    "a socket": "{path: socket.yaml}",
    "files beside it from the web": "{path: D, aux: {a: 'http://x/y'}}",
    "a joiner of the system": "{join: [{path: D},{path: D, split_part: val}], "
    "joiner: {__module__: os, __function__: system}}",
}

STAGES = {
    "a text of 15 MB": 'x = "' + "a" * 15 * M + '"',
    "levels by dots": ".".join(["a"] * 50_000) + " = 1",
    "20,000 keys": "\n".join(f"k{i} = 1" for i in range(20_000)),
    "a number of 200,000 digits": "steps = " + "9" * 200_000,
    "4,000 stages of one name": '[[training.data_stages]]\nname="a"\nstart_step=1\n'
    * 4000,
}


def _few(dataset: Any) -> int:
    return sum(1 for _ in zip(range(3), dataset, strict=False))


def _split(text: str, place: Path) -> Callable[[], Any]:
    file = place / "mix.yaml"
    file.write_text(_HEAD + text)
    return lambda: _few(get_train_dataset(file, batch_size=2))


def _stage(text: str, place: Path) -> Callable[[], Any]:
    file = place / "run.toml"
    file.write_text(f"[training]\n{text}\n")
    return lambda: get_staged_train_dataset(file, batch_size=2)


CASES = {
    f"metadataset: {name}": partial(_split, text) for name, text in SPLITS.items()
} | {f"stage file: {name}": partial(_stage, text) for name, text in STAGES.items()}
