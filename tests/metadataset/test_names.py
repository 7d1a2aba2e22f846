"""Names of entries: reports, simulations, weights and validation use the same ones."""

from __future__ import annotations

import json

import pytest

from energize import get_loader, get_train_dataset, get_val_datasets
from energize.errors import MetadatasetError, WeightError
from energize.report import plan, simulate
from energize.report.levels import source_names

FILES = ("p/train", "q/train", "x/en/data", "x/de/data", "notes")


@pytest.fixture
def data(tmp_path):
    """Five files of 20 texts, and a function that makes an entry of one of them."""
    for name in FILES:
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [json.dumps({"text": f"{name} {number}"}) for number in range(20)]
        path.write_text("\n".join(rows))

    def entry(file, **keys):
        return {"path": str(tmp_path / f"{file}.jsonl"), **keys}

    return entry


def mix(**splits):
    return {"__module__": "energize", "__class__": "MetadatasetV2", "splits": splits}


def dataset(train):
    return get_train_dataset(mix(train=train), batch_size=4)


def fault(train, kind=MetadatasetError):
    with pytest.raises(kind) as caught:
        dataset(train)
    return str(caught.value)


def names_of(built):
    """The names that a simulation, a plan and a loader use; they have to be equal."""
    simulated = [source.name for source in simulate(built, 40).sources]
    planned = {
        sample.source for batch in plan(built, 0, 40) for sample in batch.samples
    }
    loader = get_loader(built)
    delivered = set()
    for _, _ in zip(range(40), loader, strict=False):
        delivered |= set(map(str, loader.last_sources))
    assert planned == delivered == set(simulated)
    assert source_names(built) == simulated
    return simulated


def test_an_entry_is_named_as_the_file_says(data):
    assert names_of(
        dataset({"blend": [data("p/train", name="web"), data("notes")]})
    ) == [
        "web",
        "notes.jsonl",
    ]


def test_files_of_one_name_have_the_folders_that_differ(data):
    assert names_of(
        dataset({"blend": [data("p/train"), data("q/train"), data("notes")]})
    ) == [
        "p/train.jsonl",
        "q/train.jsonl",
        "notes.jsonl",
    ]


def test_a_name_does_not_change_the_names_of_the_others(data):
    assert names_of(
        dataset({"blend": [data("p/train", name="web"), data("q/train")]})
    ) == [
        "web",
        "q/train.jsonl",
    ]


def test_the_path_avoids_a_name_that_another_entry_has(data):
    named = data("notes", name="train.jsonl")
    assert names_of(dataset({"blend": [named, data("q/train")]})) == [
        "train.jsonl",
        "q/train.jsonl",
    ]


def test_one_file_with_different_settings_is_numbered(data):
    first = data("notes", subflavors={"lang": "en"})
    second = data("notes", subflavors={"lang": "de"})
    assert names_of(dataset({"blend": [first, second]})) == [
        "notes.jsonl #1",
        "notes.jsonl #2",
    ]


def test_a_named_blend_is_a_prefix_of_what_it_holds(data):
    texts = {
        "name": "texts",
        "blend": [data("x/en/data"), data("x/de/data", name="german")],
    }
    assert names_of(dataset({"blend": [texts, data("notes")]})) == [
        "texts/en/data.jsonl",
        "texts/german",
        "notes.jsonl",
    ]


def test_entries_of_concat_have_names(data):
    assert names_of(
        dataset({"concat": [data("p/train", name="a"), data("q/train", name="b")]})
    ) == [
        "a",
        "b",
    ]


def test_entries_of_blend_epochized_have_names(data):
    passes = [data("p/train", name="a", repetitions=2), data("q/train", name="b")]
    assert names_of(dataset({"blend_epochized": passes})) == ["a", "b"]


def test_one_name_may_be_in_two_blends(data):
    first = {"name": "en", "blend": [data("x/en/data", name="web"), data("p/train")]}
    second = {"name": "de", "blend": [data("x/de/data", name="web"), data("q/train")]}
    assert names_of(dataset({"blend": [first, second]})) == [
        "en/web",
        "en/train.jsonl",
        "de/web",
        "de/train.jsonl",
    ]


def test_two_entries_of_one_name_are_an_error(data):
    assert "both have the name 'web'. Rename one of them" in fault(
        {"blend": [data("p/train", name="web"), data("q/train", name="web")]}
    )


@pytest.mark.parametrize("name", ["", "  ", "a/b", 3, ["web"]])
def test_a_name_is_text_without_a_slash(data, name):
    assert "text that is not blank, without '/'" in fault(
        {"blend": [data("p/train", name=name), data("q/train")]}
    )


def test_weights_are_set_by_the_names(data):
    built = dataset({"blend": [data("p/train", name="web"), data("q/train")]})
    loader = get_loader(built)
    loader.set_weights({"web": 0, "q/train.jsonl": 1})
    for _, _ in zip(range(40), loader, strict=False):
        pass
    drawn = {source.name: source.counts.samples for source in loader.report().sources}
    assert drawn["web"] == 0
    assert drawn["q/train.jsonl"] == 160


def test_an_unknown_name_is_answered_with_the_nearest(data):
    loader = get_loader(
        dataset({"blend": [data("p/train", name="web"), data("q/train")]})
    )
    with pytest.raises(WeightError, match=r"unknown 'wab'; did you mean 'web'"):
        loader.set_weights({"wab": 1, "q/train.jsonl": 1})


def test_the_report_has_the_names(data):
    texts = {
        "name": "texts",
        "blend": [data("p/train", name="web"), data("q/train", name="code")],
    }
    loader = get_loader(dataset({"blend": [texts, data("notes")]}))
    next(iter(loader))
    assert ["/".join(source.path) for source in loader.report().sources] == [
        "texts/web",
        "texts/code",
        "notes.jsonl",
    ]


def test_validation_datasets_come_with_the_names(data):
    held = data("p/train", name="held", split_part="train")
    german = data("x/de/data", split_part="train")
    english = data("x/en/data", split_part="train")
    pairs = get_val_datasets(mix(val={"blend": [held, german, english]}), batch_size=4)
    assert [leaf.name for _, leaf in pairs] == [
        "held",
        "de/data.jsonl",
        "en/data.jsonl",
    ]
    assert [source_names(built) for built, _ in pairs] == [
        ["held"],
        ["de/data.jsonl"],
        ["en/data.jsonl"],
    ]


def test_names_do_not_change_what_is_delivered(data):
    plain = dataset({"blend": [data("p/train"), data("q/train")]})
    named = dataset({"blend": [data("p/train", name="b"), data("q/train", name="a")]})
    assert [batch.__key__ for batch in named.at(range(30))] == [
        batch.__key__ for batch in plain.at(range(30))
    ]


def test_a_state_is_resumed_after_entries_got_names(data):
    plain = get_loader(dataset({"blend": [data("p/train"), data("q/train")]}))
    plain.set_weights({"p/train.jsonl": 1, "q/train.jsonl": 9})
    for _, _ in zip(range(5), plain, strict=False):
        pass
    entries = [data("p/train", name="web"), data("q/train", name="code")]
    named = get_loader(dataset({"blend": entries}))
    named.load_state_dict(plain.state_dict())
    rest = [batch.__key__ for _, batch in zip(range(20), named, strict=False)]
    assert rest == [batch.__key__ for _, batch in zip(range(20), plain, strict=False)]
