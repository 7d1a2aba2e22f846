"""Folders and a mix that commands look at, prepared once."""

import pytest

from energize.cli import main
from tests.support.prepared import captions, classes

assert main.app

MIX = """\
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: web/captions, weight: 0.6}
      - weight: 0.4
        blend:
          - {path: books/captions, weight: 3}
          - {path: web/captions, weight: 1, subflavors: {again: true}}
          - {path: web/captions, weight: 0, split_part: val}
  ends:
    stop: all_exhausted
    blend:
      - {path: web/captions, split_part: train, weight: 1}
      - {path: books/captions, split_part: train, weight: 1, max_epochs: 2}
  quotas:
    blend:
      - {path: web/captions, split_part: train, repeat: 1.5}
      - {path: books/captions, split_part: train}
  changing:
    blend:
      - {path: web/captions, split_part: train, weight: {points: {0: 0.9, 200: 0.1}}}
      - {path: books/captions, split_part: train, weight: {points: {0: 0.1, 200: 0.9}}}
  types:
    scheme: exact
    blend:
      - {path: web/captions, split_part: train, weight: 3}
      - {path: classes, split_part: train, weight: 1}
  staged:
    stages:
      - name: first
        start_step: 0
        end_step: 5
        blend:
          - {path: web/captions, split_part: train, weight: {points: {0: 0.9, 4: 0.1}}}
          - {path: books/captions, split_part: train, weight: 0.1}
      - name: twice
        start_step: 5
        scheme: exact
        blend:
          - {path: classes, split_part: train, weight: 1}
          - {path: classes, split_part: train, weight: 1, dataset_config: dataset.yaml}
          - {path: books/captions, split_part: train, weight: 6}
  composed:
    composition: {method: stratified, global_batch_size: 8, drop_last: true}
    blend:
      - {path: web/captions, split_part: train, proportion: 3}
      - {path: books/captions, split_part: train, proportion: 1}
  val:
    blend:
      - {path: web/captions, weight: 5}
      - {path: books/captions, weight: 1}
      - {path: classes, weight: 1}
"""


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """web/captions of 80 samples, books/captions of 30, classes of 40; and mix.yaml
    over them."""
    home = tmp_path_factory.mktemp("home")
    captions(home / "web/captions", 80)
    captions(home / "books/captions", 30, shards=2, start=500)
    classes(home / "classes", 40)
    (home / "mix.yaml").write_text(MIX)
    return home
