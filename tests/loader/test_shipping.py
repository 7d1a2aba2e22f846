"""What workers that start from nothing are given lies in memory once, columns and
all."""

from __future__ import annotations

import os
import pickle

import numpy as np

from energize import BlendDataset, ListSource
from energize.data.webdataset import WebdatasetSource
from energize.loader.shipping import SMALL, rebuilt, stored
from energize.preparation import prepare_columns
from tests.support.prepared import captions


def test_large_arrays_are_not_pickled_and_no_process_writes_to_those_of_another():
    large = np.arange(SMALL, dtype=np.int64)
    file = stored(
        {"large": large, "view": large[1:], "small": large[:8], "other": [b"x", None]}
    )
    one, other = (rebuilt(os.dup(file.fileno())) for _ in range(2))
    one["large"][0] = -1
    assert other["large"].tolist() == large.tolist()
    assert (one["view"] == large[1:]).all()
    assert (one["small"].tolist(), one["other"]) == (list(range(8)), [b"x", None])
    assert os.fstat(file.fileno()).st_size < 2 * large.nbytes + 4096


def test_columns_that_a_source_has_looked_up_come_along(tmp_path):
    folder = captions(tmp_path / "cats", 6, shards=2)
    prepare_columns(folder, {"n": "size:txt"})
    source = WebdatasetSource(folder, split_part="train")
    before = len(pickle.dumps(source))
    sizes = source.column("n").values.tolist()
    assert len(pickle.dumps(source)) == before
    (folder / ".nv-meta" / "columns" / "columns.json").unlink()
    file = stored(BlendDataset((source, 1), (ListSource(range(3)), 1)))
    found = rebuilt(os.dup(file.fileno())).sources[0]
    assert found == source
    assert found.column("n").values.tolist() == sizes
