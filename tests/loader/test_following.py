"""Weights that follow the loss, or a file that somebody writes while the run goes on."""

from __future__ import annotations

import json
import logging

import pytest
import torch

from energize import (
    BatchDataset,
    BlendDataset,
    ExcessLoss,
    FilterDataset,
    ListSource,
    ShuffleDataset,
    WeightsFile,
    WorkerConfig,
    get_loader,
)
from energize.errors import ConfigError, StateError, WeightError
from energize.loader.following import read_weights
from tests.support.loading import loader_of, prints, take


def source(name, count=40):
    return ShuffleDataset(ListSource([(name, n) for n in range(count)], name=name))


def mix(**options):
    return BlendDataset({name: source(name) for name in "ab"}, weights={"a": 1, "b": 1}, **options)


def batches(dataset=None, size=4):
    return BatchDataset(mix() if dataset is None else dataset, size, list)


def losses_of(batch):
    """What a model that knows `b` already would have."""
    return torch.tensor([2.0 + (number % 5) / 10 if name == "a" else 1.0 for name, number in batch])


def trained(loader, follower, steps):
    """The items of some steps, and the weights that were answered, by step."""
    read, answers = [], {}
    for batch in loader:
        read.append(batch)
        weights = follower.observe(losses_of(batch))
        if weights is not None:
            answers[loader.step] = weights
        if len(read) == steps:
            break
    return read, answers


def policy():
    return ExcessLoss({"a": 1.0, "b": 1.0}, temperature=0.5, memory=0.5)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_policy_is_asked_now_and_then_and_a_resumed_run_is_the_same_run(workers):
    with loader_of(batches(), workers) as loader:
        follower = loader.follow(policy(), every=10)
        read, answers = trained(loader, follower, 35)
        state = json.loads(json.dumps([loader.state_dict(), follower.state_dict()]))
        rest, more = trained(loader, follower, 35)
    assert list(answers) == [10, 20, 30]
    assert list(more) == [40, 50, 60, 70]
    assert answers[10]["a"] > 0.8
    names = [name for batch in read[10:30] for name, _ in batch]
    assert names.count("a") / len(names) == pytest.approx(answers[10]["a"], abs=0.06)
    with loader_of(batches()) as other:
        again = other.follow(policy(), every=10)
        other.load_state_dict(state[0])
        again.load_state_dict(state[1])
        resumed, later = trained(other, again, 35)
    assert prints(resumed) == prints(rest)
    assert later == more


def test_what_is_observed():
    loader = get_loader(batches(BlendDataset((source("a"), 1), (source("b"), 1))))
    follower = loader.follow(ExcessLoss({"a": 0, "b": 0}), every=3)
    take(loader, 1)
    assert follower.observe([1.0, 2.0], ["a", "b"]) is None
    assert follower.observe({"a": torch.tensor(3.0)}) is None
    assert follower.state_dict()["sums"] == {"a": 4.0, "b": 2.0}
    assert follower.state_dict()["counts"] == {"a": 2, "b": 1}
    with pytest.raises(ConfigError, match="3 losses are given for 4 samples"):
        follower.observe([1, 2, 3])
    with pytest.raises(ConfigError, match="1 losses are given for 4 samples"):
        follower.observe(torch.tensor(2.0))
    with pytest.raises(WeightError, match=r"'aa' is none of .*; did you mean 'a'\?"):
        follower.observe([1.0], ["aa"])
    with pytest.raises(ConfigError, match="the loss of a sample of 'a' is 'high'"):
        follower.observe(["high"], ["a"])
    assert follower.observe({"b": 4.0})["b"] > 0.7
    with pytest.raises(StateError, match="over x, and the blend is over a, b"):
        follower.load_state_dict({"policy": {}, "sums": {"x": 1}, "counts": {"x": 1}, "calls": 1})
    with pytest.raises(ConfigError, match="str has no observe"):
        loader.follow("excess")
    with pytest.raises(ConfigError, match="no blend"):
        get_loader(source("a")).follow(policy())
    with pytest.raises(ConfigError, match="every is a whole number, 1 or more"):
        loader.follow(policy(), every=0)


def test_blends_in_blends_and_streams():
    texts = BlendDataset({name: source(name) for name in "ab"}, weights={"a": 1, "b": 1},
                         scheme="exact")  # fmt: skip
    outer = BlendDataset({"texts": batches(texts), "images": batches(FilterDataset(
        BlendDataset({"c": source("c")}, weights={"c": 1}), lambda item: item[1] % 2 == 0))},
        weights={"texts": 1, "images": 1}, scheme="even")  # fmt: skip
    with loader_of(outer, 1, lanes=2) as loader:
        kinds = loader.follow(ExcessLoss({"texts": 0, "images": 0}), every=8)
        inner = loader.follow(ExcessLoss({"a": 0, "b": 0}), every=8, blend="texts")
        for _, batch in zip(range(8), loader, strict=False):
            losses = [{"a": 1.0, "b": 2.0, "c": 5.0}[name] for name, _ in batch]
            first, second = kinds.observe(losses), inner.observe(losses)
        assert first == pytest.approx({"texts": 0.029, "images": 0.971}, abs=1e-3)
        assert second == pytest.approx({"a": 0.2689, "b": 0.7311}, abs=1e-3)
        take(loader, 20)
        state = loader.state_dict()
        rest = take(loader, 10)
    with loader_of(outer, 0, lanes=2) as other:
        other.load_state_dict(state)
        assert prints(take(other, 10)) == prints(rest)


# A file


def test_a_file_that_an_operator_writes(tmp_path, caplog):
    caplog.set_level(logging.INFO, "energize")
    file = tmp_path / "weights.yaml"
    with loader_of(batches(), 2) as loader:
        loader.watch_weights(file, every=5)
        read = take(loader, 12)
        file.write_text("a: 9\nb: 1\n")
        read += take(loader, 8)  # seen before the 16th step
        assert "from step 15 on" in caplog.text
        file.write_text('{"a": 1, "b": 9, "at_step": 40}')
        read += take(loader, 30)
        state = loader.state_dict()
        caplog.clear()
        rest = take(loader, 10)
    changed = mix().with_weights_from(60, [9, 1]).with_weights_from(160, [1, 9])
    assert prints(read + rest) == prints(batches(changed).at(range(60)))
    with loader_of(batches()) as other:
        other.watch_weights(WeightsFile(file, every=3))
        other.load_state_dict(state)
        assert prints(take(other, 10)) == prints(rest)
    assert not caplog.text  # it is the file that the state has already


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 9\nb: [", "no YAML in line 2"),
        ("a: 9", "missing 'b'"),
        ("a: 9\nbb: 1", "unknown 'bb'; did you mean 'b'"),
        ("a: -1\nb: 1", "finite numbers, 0 or more"),
        ("a: .nan\nb: 1", "finite"),
        ("a: lots\nb: 1", "the weight of 'a' is 'lots'"),
        ("- 1\n- 2", "weights by name"),
        ("a: 1\nb: 2\nat_step: 1", "step 1 has been delivered"),
        ("a: 1\nb: 2\nat_step: soon", "at_step is a whole number; got 'soon'"),
        ("a: 1\nb: 2\nblend: texts", "no blend is called 'texts'"),
        ("weights: {a: 1, b: 2}\nstep: 3", "there are at_step and blend; got 'step'"),
        ("!!python/object/apply:os.system ['touch hacked']", "no YAML"),
        ("a: " + "9" * 70000, "65536 characters"),
    ],
)
def test_a_broken_file_is_a_warning_once_and_changes_nothing(text, said, tmp_path, caplog):
    file = tmp_path / "weights.yaml"
    with loader_of(batches()) as loader:
        loader.watch_weights(file, every=1)
        read = take(loader, 3)
        file.write_text(text)
        read += take(loader, 10)
        assert said in caplog.text
        assert len(caplog.records) == 1
        assert caplog.records[0].levelname == "WARNING"
        assert str(file) in caplog.text
        assert prints(read) == prints(batches().at(range(13)))
        file.write_text("weights: {a: 9, b: 1}")
        take(loader, 1)
        assert [name for batch in take(loader, 20) for name, _ in batch].count("a") == 72


def test_files_and_ranks_that_make_different_numbers_of_steps(tmp_path):
    loader = loader_of(batches(), uneven="allow")
    with pytest.raises(ConfigError, match="uneven='allow'"):
        loader.watch_weights(tmp_path / "weights.yaml")
    with pytest.raises(ConfigError, match="every is a whole number"):
        loader_of(batches()).watch_weights("weights.yaml", every=0)
    with pytest.raises(ConfigError, match="is a path"):
        WeightsFile(3)
    unreadable = loader_of(batches())
    unreadable.watch_weights(tmp_path)  # a folder
    assert len(take(unreadable, 3)) == 3


def test_weights_in_a_file_as_they_are_read():
    assert read_weights("{a: 1, b: 0.5}")["weights"] == {"a": 1, "b": 0.5}
    assert read_weights("weights: {at_step: 2}\nat_step: 7") == {
        "weights": {"at_step": 2}, "at_step": 7, "blend": None
    }  # fmt: skip
    config = WorkerConfig(0, 1)
    assert config.num_workers == 0
