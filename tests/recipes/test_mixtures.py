"""LLaMA-Factory, ms-swift, TRL, VeOmni and NVIDIA: what an epoch has, by their rules."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import islice

import pytest
import yaml

from energize import get_train_dataset, get_val_dataset
from energize.errors import MetadatasetError
from tests.recipes.files import Answers, annotations
from tests.support.launching import launched
from tests.support.loading import loader_of

SIZES = {"a": 40, "b": 25, "c": 10}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Return a folder, the working directory, with a file of each name in `SIZES`."""
    (tmp_path / "data").mkdir()
    for name, count in SIZES.items():
        file = tmp_path / "data" / f"{name}.json"
        annotations(file, count, images=tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, value):
    """Write a recipe as JSON or YAML."""
    text = (
        json.dumps(value, indent=2) if name.endswith("json") else yaml.safe_dump(value)
    )
    with open(name, "w") as file:
        file.write(text)
    return name


def read(name, **options):
    return get_train_dataset(
        name, batch_size=1, task_encoder=Answers(), image_folder="data", **options
    )


def counts(dataset, samples, first=0):
    """Return how often each file comes in some samples, and how many of them differ."""
    batches = dataset.at(range(first, first + samples))
    got = [answer for batch in batches for answer in batch]
    return dict(Counter(answer.split()[0] for answer in got)), len(set(got))


# LLaMA-Factory

COLUMNS = {"messages": "conversations", "images": "image"}


def info(**changes):
    """Return a description of the files as in a `dataset_info.json`."""
    return {
        name: {
            "file_name": f"{name}.json",
            "formatting": "sharegpt",
            "columns": COLUMNS,
        }
        | changes.get(name, {})
        for name in SIZES
    }


def run(**keys):
    return {"template": "qwen2_vl", "cutoff_len": 2048, "dataset_dir": "data", **keys}


def test_an_epoch_has_all_rows_or_num_samples(data):
    """num_samples is a permutation cut to n; more samples than rows are repeated."""
    write("data/dataset_info.json", info(a={"num_samples": 15}, c={"num_samples": 25}))
    dataset = read(write("run.yaml", run(dataset="a,b, c")))
    assert len(dataset) == 15 + 25 + 25
    for epoch in range(2):
        found, _ = counts(dataset, 65, 65 * epoch)
        assert found == {"a": 15, "b": 25, "c": 25}
    assert counts(dataset, 2 * 65)[1] == 15 + 25 + 10
    first = read("data/dataset_info.json", recipe={"dataset": "a,c"})
    assert counts(first, 40)[0] == {"a": 15, "c": 25}


@pytest.mark.parametrize("probs", [None, "0.5,0.3,0.2", "0.1,0.1,0.8"])
def test_interleaved_datasets_end_as_in_llama_factory(data, probs):
    """interleave_datasets ends at the first exhausted one, or when all have been read.

    It draws sources at random; with exact shares p, the first one is exhausted after
    min(n / p) samples, and all have been read after max(n / p).
    """
    write("data/dataset_info.json", info())
    shares = [1 / 3] * 3 if probs is None else [float(p) for p in probs.split(",")]
    ends = [size / share for size, share in zip(SIZES.values(), shares, strict=True)]
    mixing = {} if probs is None else {"interleave_probs": probs}
    sizes = {"under": min(ends), "over": max(ends), "once": sum(SIZES.values())}
    for strategy, size in sizes.items():
        mixing["mix_strategy"] = f"interleave_{strategy}"
        dataset = read(write("run.yaml", run(dataset="a,b,c", **mixing)))
        assert abs(len(dataset) - size) <= 5, strategy
        found, different = counts(dataset, len(dataset))
        if strategy == "once":
            assert found == SIZES
            assert different == 75
            continue
        for name, share in zip(SIZES, shares, strict=True):
            assert abs(found[name] - share * len(dataset)) < 4, (strategy, name)
        assert (different == 75) == (strategy == "over")


def test_rows_of_alpaca_and_of_the_last_answer(data):
    rows = [
        {"q": f"question {n}", "more": "", "a": f"answer {n}", "old": [["x", "y"]]}
        for n in range(6)
    ]
    (data / "data" / "alpaca.json").write_text(json.dumps(rows))
    columns = {"prompt": "q", "query": "more", "response": "a", "history": "old"}
    described = {"alpaca": {"file_name": "alpaca.json", "columns": columns}}
    write("data/dataset_info.json", {**described, **info()})
    options = {"batch_size": None, "repeat": False}
    for last in (False, True):
        name = write("run.yaml", run(dataset="alpaca", mask_history=last))
        turns = get_train_dataset(name, **options)[0].turns
        assert [turn.role for turn in turns] == ["user", "assistant"] * 2
        assert turns[1].text == "y"
        assert turns[2].text.startswith("question")
        assert [turn.learned for turn in turns[1::2]] == [
            not last and None,
            last or None,
        ]


def test_a_column_of_the_system_comes_first_unless_turns_have_it(data):
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    own = {"from": "system", "value": "own"}
    rows = [
        {"conversations": turns, "system": "column"},
        {"conversations": [own, *turns], "system": "column"},
        {"conversations": turns, "system": ""},
    ]
    (data / "data" / "system.json").write_text(json.dumps(rows))
    columns = {"messages": "conversations", "system": "system"}
    described = {"file_name": "system.json", "formatting": "sharegpt"}
    write("data/dataset_info.json", {"s": {**described, "columns": columns}})
    samples = get_train_dataset("data/dataset_info.json", batch_size=None)
    assert sorted([turn.text for turn in sample.turns] for sample in samples) == [
        ["Hi", "Hello"],
        ["column", "Hi", "Hello"],
        ["own", "Hi", "Hello"],
    ]


TAGS = {
    "role_tag": "speaker",
    "content_tag": "says",
    "user_tag": "Customer (new)",
    "assistant_tag": "agent",
    "observation_tag": "lookup",
    "function_tag": "calls",
    "system_tag": "rules",
}


def said(*turns):
    return [{"speaker": speaker, "says": text} for speaker, text in turns]


def test_turns_of_own_tags_have_the_usual_roles(data):
    """The tags name the keys of turns and the values of roles, as in ShareGPT."""
    call = {"name": "stock", "arguments": {"item": "pen"}}
    rows = [
        said(
            ("rules", "Be brief."),
            ("Customer (new)", f"Pens? {number}"),
            ("calls", json.dumps(call)),
            ("lookup", "7"),
            ("agent", f"tagged {number}"),
        )
        for number in range(6)
    ]
    text = json.dumps([{"dialog": turns, "image": "a_0.jpg"} for turns in rows])
    (data / "data" / "tagged.json").write_text(text)
    columns = {"messages": "dialog", "images": "image"}
    described = {"file_name": "tagged.json", "formatting": "sharegpt", "tags": TAGS}
    write("data/dataset_info.json", info() | {"t": described | {"columns": columns}})
    dataset = read(write("run.yaml", run(dataset="t,c")))
    assert counts(dataset, 16) == ({"tagged": 6, "c": 10}, 16)
    for last in (False, True):
        name = write("run.yaml", run(dataset="t", mask_history=last))
        sample = get_train_dataset(name, batch_size=None, image_folder="data")[0]
        roles = [turn.role for turn in sample.turns]
        assert roles == ["system", "user", "assistant", "tool", "assistant"]
        assert sample.turns[1].text.startswith("<image>Pens?")
        assert sample.turns[2].extra["tool_calls"][0]["function"] == call
        learned = [turn.learned for turn in sample.turns[2::2]]
        assert learned == ([False, True] if last else [None, None])
        assert sample.images[0].shape == (3, 16, 16)


def test_answers_of_own_tags_are_ranked(data):
    """Both answers are turns with the tags of the conversation."""
    rows = [
        {
            "dialog": said(("Customer (new)", f"question {number}")),
            "good": said(("agent", f"yes {number}"))[0],
            "bad": said(("agent", f"no {number}"))[0],
        }
        for number in range(4)
    ]
    (data / "data" / "ranked.json").write_text(json.dumps(rows))
    columns = {"messages": "dialog", "chosen": "good", "rejected": "bad"}
    ranked = {"file_name": "ranked.json", "formatting": "sharegpt", "ranking": True}
    write("data/dataset_info.json", {"r": ranked | {"columns": columns, "tags": TAGS}})
    options = {"batch_size": None, "repeat": False}
    samples = list(get_train_dataset("data/dataset_info.json", **options))
    assert len(samples) == 4
    for sample in samples:
        turns = [*sample.prompt, *sample.chosen, *sample.rejected]
        assert [turn.role for turn in turns] == ["user", "assistant", "assistant"]
        number = turns[0].text.split()[1]
        assert [turn.text for turn in turns[1:]] == [f"yes {number}", f"no {number}"]


def test_held_out_samples_are_in_no_epoch_of_training(data):
    write("data/dataset_info.json", info())
    for size in (0.2, 15):
        name = write("run.yaml", run(dataset="a,b,c", val_size=size))
        dataset = read(name)
        val = get_val_dataset(
            name, batch_size=1, task_encoder=Answers(), image_folder="data"
        )
        train = {batch[0] for batch in dataset.at(range(len(dataset)))}
        held = {batch[0] for batch in val.at(range(len(val)))}
        assert len(held) == 15
        assert not train & held
        assert len(train | held) == 75


def validation_of(name):
    """Return the answers of a loop over the split val."""
    val = get_val_dataset(
        name, batch_size=1, task_encoder=Answers(), image_folder="data"
    )
    return [batch[0] for batch in val.at(range(len(val)))]


@pytest.mark.parametrize("names", ["b, c", ["b", "c"]])
def test_eval_dataset_is_the_split_val(data, names):
    write("data/dataset_info.json", info(b={"num_samples": 5}))
    name = write("run.yaml", run(dataset="a", eval_dataset=names))
    assert len(read(name)) == 40
    held = validation_of(name)
    assert held[5:] == [f"c {n}" for n in range(10)]
    assert len({answer for answer in held[:5] if answer.startswith("b")}) == 5
    name = write("run.yaml", run(eval_dataset=names, do_predict=True))
    assert validation_of(name) == held


def test_val_size_counts_the_rows_that_max_samples_leaves(data):
    write("data/dataset_info.json", info())
    name = write("run.yaml", run(dataset="a,b", max_samples=20, val_size=10))
    assert len(read(name)) == 30
    held = [f"{source} {n}" for source in "ab" for n in range(15, 20)]
    assert validation_of(name) == held


def test_v1_draws_as_many_samples_as_it_sets(data):
    """k = size or n, then int(k * weight); those samples of a file are as even."""
    local = {"source": "local", "converter": "sharegpt"}
    entries = {
        "a": {"path": "data/a.json", "size": 100, **local},
        "b": {"path": "data/b.json", "weight": 0.5, **local},
        "c": {"path": "data/c.json", "size": 6, "weight": 2.0, **local},
    }
    dataset = read(write("v1.yaml", entries))
    found, different = counts(dataset, len(dataset))
    assert found == {"a": 100, "b": 12, "c": 12}
    assert different == 40 + 12 + 10


def test_messages_of_v1_with_pieces_and_loss_weights(data):
    image = {"type": "image_url", "value": "a_0.jpg"}
    question = [image, {"type": "text", "value": "What?"}]
    answers = [("No", 0.0), ("Yes", 1.0)]
    messages = [{"role": "user", "content": question, "loss_weight": 0.0}]
    for text, weight in answers:
        pieces = [{"type": "text", "value": text}]
        messages += [{"role": "assistant", "content": pieces, "loss_weight": weight}]
    (data / "data" / "v1.json").write_text(json.dumps([{"messages": messages}] * 3))
    name = write("v1.yaml", {"v1": {"path": "data/v1.json", "source": "local"}})
    sample = get_train_dataset(name, batch_size=None)[0]
    assert [turn.text for turn in sample.turns] == ["<image>What?", "No", "Yes"]
    assert [turn.learned for turn in sample.turns[1:]] == [False, True]
    assert sample.images[0].shape == (3, 16, 16)


# ms-swift


def test_samples_of_strings_of_ms_swift(data):
    """#n takes n // len(rows) passes and n % len(rows) drawn rows."""
    listed = ["data/a.json#15", "data/c.json#25", "data/b.json"]
    dataset = read(write("swift.yaml", {"dataset": listed, "torch_dtype": "bfloat16"}))
    assert counts(dataset, 65) == ({"a": 15, "c": 25, "b": 25}, 15 + 10 + 25)
    keys = {"interleave_prob": [0.6, 0.4], "stopping_strategy": "all_exhausted"}
    dataset = read(write("swift.yaml", {"dataset": listed[:2], **keys}))
    assert len(dataset) == math.ceil(max(15 / 0.6, 25 / 0.4))
    rows = [{"q": f"question {n}", "text1": f"answer {n}"} for n in range(6)]
    (data / "data" / "qa.json").write_text(json.dumps(rows))
    columns = {"q": "query", "text1": "response"}
    write("info.json", [{"dataset_path": "data/qa.json", "columns": columns}])
    for keys in (
        {"columns": json.dumps(columns)},
        {"custom_dataset_info": ["info.json"]},
    ):
        name = write("swift.yaml", {"dataset": ["data/qa.json#4"], **keys})
        samples = get_train_dataset(name, batch_size=None)
        assert len({sample.turns[1].text for sample in samples}) == 4


def test_val_dataset_of_ms_swift_is_the_split_val(data):
    keys = {"val_dataset": ["data/c.json#4", "data/b.json"], "split_dataset_ratio": 0.1}
    name = write("swift.yaml", {"dataset": ["data/a.json"], **keys})
    assert len(read(name)) == 40
    held = validation_of(name)
    assert len({answer for answer in held[:4] if answer.startswith("c")}) == 4
    assert held[4:] == [f"b {n}" for n in range(25)]


# TRL


SLICES = "[:10%] [10:20] [-7:] [33%:66%] [:3]+train[9:] [-20%:] [:-35] [5:400]"


@pytest.mark.parametrize("bounds", ["", *SLICES.split()])
def test_slices_of_trl_have_the_rows_that_datasets_gives(data, bounds):
    datasets = pytest.importorskip("datasets")
    entry = {"path": "json", "data_files": "data/a.json", "split": f"train{bounds}"}
    dataset = read(write("trl.yaml", {"datasets": [entry]}))
    rows = datasets.load_dataset(**entry, cache_dir=str(data / "cache"))
    expected = [turns[-1]["value"] for turns in rows["conversations"]]
    got = [batch[0] for batch in dataset.at(range(len(dataset)))]
    assert sorted(got) == sorted(expected)


@pytest.mark.parametrize("bounds", SLICES.split())
def test_slices_count_the_rows_of_all_files(data, bounds):
    datasets = pytest.importorskip("datasets")
    files = [f"data/{name}.json" for name in "bac"]
    entry = {"path": "json", "data_files": files, "split": f"train{bounds}"}
    dataset = read(write("trl.yaml", {"datasets": [entry]}))
    rows = datasets.load_dataset(**entry, cache_dir=str(data / "cache"))
    expected = [turns[-1]["value"] for turns in rows["conversations"]]
    got = [batch[0] for batch in dataset.at(range(len(dataset)))]
    assert sorted(got) == sorted(expected)


def test_fractions_count_the_rows_of_all_files(data):
    """All 10 rows of c.json are a quarter, so the slice gives 30 of its 50 rows."""
    several = {"path": "json", "data_files": ["data/b.json", "data/a.json"]}
    entries = [
        {**several, "split": "train[10:60]", "fraction": 0.75},
        {"path": "json", "data_files": "data/c.json", "fraction": 0.25},
    ]
    dataset = read(write("trl.yaml", {"datasets": entries}))
    answers = [f"b {n}" for n in range(10, 25)] + [f"a {n}" for n in range(15)]
    answers += [f"c {n}" for n in range(10)]
    assert sorted(batch[0] for batch in dataset.at(range(40))) == sorted(answers)


def test_slices_and_fractions_of_folders_and_patterns_of_trl(data):
    """Half of the mixture is the first part of a slice of a folder's split part."""
    (data / "hub" / "en" / "data").mkdir(parents=True)
    for part, name in (("train", "a"), ("test", "c")):
        text = (data / "data" / f"{name}.json").read_text()
        (data / "hub" / "en" / "data" / f"{part}.json").write_text(text)
    folder = {"path": "hub", "name": "en", "split": "train[20:]", "fraction": 0.5}
    file = {"path": "json", "data_files": "data/c.json", "fraction": 0.5}
    name = write("trl.yaml", {"datasets": [folder, file]})
    answers = [f"a {n}" for n in range(20, 30)] + [f"c {n}" for n in range(10)]
    assert sorted(batch[0] for batch in read(name).at(range(20))) == sorted(answers)
    files = {"train": "data/[bc].json", "test": "data/a.json"}
    name = write("trl.yaml", {"datasets": [{"path": "json", "data_files": files}]})
    assert counts(read(name), 35) == ({"b": 25, "c": 10}, 35)


def test_fractions_of_trl(data):
    """The mixture is as large as it can be, of the first round(f * total) rows."""
    fractions = {"a": 0.5, "b": 0.3, "c": 0.2}
    entries = [
        {"path": "json", "data_files": f"data/{name}.json", "fraction": fraction}
        for name, fraction in fractions.items()
    ]
    total = min(SIZES[name] / fraction for name, fraction in fractions.items())
    dataset = read(write("trl.yaml", {"model_name_or_path": "x", "datasets": entries}))
    sizes = {name: round(part * total) for name, part in fractions.items()}
    batches = dataset.at(range(sum(sizes.values())))
    first = [f"{name} {n}" for name, size in sizes.items() for n in range(size)]
    assert sorted(batch[0] for batch in batches) == sorted(first)


def test_a_file_list_and_a_test_split_of_trl(data):
    entry = {"path": "json", "data_files": ["data/a.json", "data/b.json"]}
    name = write("trl.yaml", {"datasets": [entry], "test_split_size": 0.2})
    val = get_val_dataset(
        name, batch_size=1, task_encoder=Answers(), image_folder="data"
    )
    assert len(val) == 13


# VeOmni


def veomni(*pieces, **keys):
    names = [f"source/{name}" for name in SIZES]
    sources = [f"data/{name}.json" for name in SIZES]
    return {"sources": sources, "names": names, "schedule": list(pieces), **keys}


def test_schedules_of_veomni(data):
    """Weights of a piece are constant, or go from the first to the last linearly."""
    pieces = [
        {"schedule_type": "const", "weights": [0.6, 0.2, 0.2]},
        {
            "schedule_type": "changing",
            "init_weights": [0.6, 0.2, 0.2],
            "end_weights": [0.1, 0.1, 0.8],
        },
    ]
    for piece, ends in zip(pieces, [(0, 10**5), (10**5, 3 * 10**5)], strict=True):
        piece |= dict(zip(["init_token", "end_token"], ends, strict=True))
    name = write("veomni.yaml", veomni(*pieces, stopping_strategy="never_exhausted"))
    dataset = read(name, recipe={"tokens_per_sample": 100})
    for first, last in [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4000)]:
        middle = (first + last) / 2
        way = min(max((middle - 1000) / 2000, 0), 1)
        found, _ = counts(dataset, last - first, first)
        for source, (start, end) in zip(
            SIZES, [(0.6, 0.1), (0.2, 0.1), (0.2, 0.8)], strict=True
        ):
            assert abs(found[source] - 1000 * (start + way * (end - start))) < 6


def test_constant_weights_of_veomni(data):
    const = {"schedule_type": "const", "weights": [0.5, 0.3, 0.2]}
    assert len(read(write("veomni.yaml", veomni(const)))) in range(46, 55)
    keys = {"stopping_strategy": "all_exhausted"}
    dataset = read(write("veomni.yaml", veomni(const, **keys)))
    assert len(dataset) == math.ceil(25 / 0.3)


class Tokens(Answers):
    """Samples with as many tokens as their file has in `LENGTHS`."""

    def encode_sample(self, sample):
        name = sample.turns[-1].text.split()[0]
        return {"__key__": sample.__key__, "name": name, "input_ids": LENGTHS[name]}

    def batch(self, samples):
        return [(sample["name"], len(sample["input_ids"])) for sample in samples]


LENGTHS = {"a": [0] * 10, "b": [0] * 40, "c": [0] * 5}


def test_tokens_of_veomni_on_two_ranks(data):
    """`level: token` divides weights by the mean length, so that tokens have shares."""
    const = {"schedule_type": "const", "weights": [0.5, 0.3, 0.2]}
    name = write("veomni.yaml", veomni(const, level="token", **ENDLESS))
    options = {"batch_size": 1, "task_encoder": Tokens(), "image_folder": "data"}
    dataset = get_train_dataset(name, **options)
    tokens = Counter()
    for batch in islice(loader_of(dataset), 3000):
        for source, length in batch:
            tokens[source] += length
    total = sum(tokens.values())
    for source, share in zip(SIZES, const["weights"], strict=True):
        assert tokens[source] / total == pytest.approx(share, abs=0.01)
    loaders = [loader_of(dataset, 2, rank, 2) for rank in range(2)]
    streams = [list(islice(loader, 30)) for loader in loaders]
    for loader, rank, stream in zip(loaders, range(2), streams, strict=True):
        resumed = loader_of(dataset, 0, rank, 2)
        resumed.load_state_dict(loader.state_dict())
        again = loader_of(dataset, 2, rank, 2)
        whole = list(islice(again, 40))
        assert whole[:30] == stream
        assert list(islice(resumed, 10)) == whole[30:]


ENDLESS = {"stopping_strategy": "never_exhausted"}


# NVIDIA


def test_weights_of_nemotron(data):
    rows = "".join(json.dumps({"body": f"text {n}"}) + "\n" for n in range(8))
    (data / "data" / "text.jsonl").write_text(rows)
    entry = {
        "name": "t",
        "path": "data/text.jsonl",
        "weight": 3.0,
        "text_field": "body",
    }
    name = write("blend.json", {"datasets": [entry]})
    assert get_train_dataset(name, batch_size=None)[0].text.startswith("text")
    entries = [
        {"name": name, "path": f"data/{name}.json", "weight": weight}
        for name, weight in zip(SIZES, [3.0, 1.0, 1.0], strict=True)
    ]
    dataset = read(write("blend.json", {"datasets": entries}))
    assert counts(dataset, 1000)[0] == {"a": 600, "b": 200, "c": 200}


# Faults

FAULTS = [
    ("run.yaml", run(dataset="a,d"), ["run.yaml:2 (dataset)", "got 'd'"]),
    (
        "run.yaml",
        run(dataset="a", mix_strateg="concat"),
        ["did you mean 'mix_strategy'"],
    ),
    (
        "run.yaml",
        run(dataset="a,b", mix_strategy="interleave"),
        ["expected concat, interleave_under", "LLaMA-Factory stops here, too"],
    ),
    (
        "run.yaml",
        run(dataset="a,b", mix_strategy="interleave_over", interleave_probs="1"),
        ["2 datasets have the shares [1.0]"],
    ),
    (
        "data/dataset_info.json",
        info(a={"columns": {"mesages": "x"}, "tags": {"user_tag": "a, b"}}),
        [
            "dataset_info.json:6 (a.columns.mesages): unknown key 'mesages'",
            "did you mean 'messages'?",
            "(a.tags.user_tag): expected a text without , and ', got 'a, b'",
        ],
    ),
    (
        "data/dataset_info.json",
        info(a={"columns": {**COLUMNS, "kto_tag": "good", "audios": "sounds"}}),
        [
            "dataset_info.json:8 (a.columns.kto_tag): no sample type has a field",
            "with sample_type: CrudeSample. LLaMA-Factory trains KTO with the tag",
            "dataset_info.json:9 (a.columns.audios)",
        ],
    ),
    (
        "data/dataset_info.json",
        info(a={"file_name": "lost.json"}),
        ["(a.path): 'lost.json' does not exist", "LLaMA-Factory stops here, too"],
    ),
    (
        "run.yaml",
        run(dataset="a", eval_dataset="b", val_size=0.1),
        ["run.yaml:6 (val_size): val_size and eval_dataset exclude each other"],
    ),
    (
        "run.yaml",
        run(dataset="", eval_dataset=""),
        ["set the recipe option 'dataset' to names of 'a', 'b', 'c'"],
    ),
    (
        "data/dataset_info.json",
        info(a={"hf_hub_url": "x/y"}),
        ["LLaMA-Factory downloads x/y. Download it, and write file_name"],
    ),
    (
        "v1.yaml",
        {"a": {"path": "data/a.json", "source": "local", "converter": "alpacca"}},
        ["v1.yaml:2 (a.converter): expected", "did you mean 'alpaca'"],
    ),
    (
        "trl.yaml",
        {"datasets": [{"path": "trl-lib/tldr", "splt": "train"}]},
        ["did you mean 'split'", "hf download --repo-type dataset trl-lib/tldr"],
    ),
    (
        "trl.yaml",
        {"datasets": [{"path": "json", "data_files": "data/a.json", "split": "a[b:]"}]},
        ["trl.yaml:4 (datasets[0].split): expected parts such as", "got 'a[b:]'"],
    ),
    (
        "trl.yaml",
        {"datasets": [{"path": "data/a.json", "fraction": 0.5}, {"path": "data"}]},
        ["trl.yaml:1 (datasets): set fraction in all or none. TRL stops here, too"],
    ),
    (
        "trl.yaml",
        {
            "datasets": [
                {"path": f"data/{n}.json", "fraction": float(n == "a")} for n in "ab"
            ]
        },
        ["(datasets[1].fraction): none of 25 samples is left. Remove the entry"],
    ),
    (
        "trl.yaml",
        {"datasets": [{"path": "json", "data_files": {"a": "a.json"}, "split": "b"}]},
        ["trl.yaml:5 (datasets[0].split): expected a, got 'b'"],
    ),
    (
        "trl.yaml",
        {"datasets": [{"path": "data", "name": "en"}]},
        ["the configuration 'en' is not a folder in data. Write its files as"],
    ),
    (
        "trl.yaml",
        {"datasets": [{"path": "data/a.json", "split": "train[50:]"}]},
        ["(datasets[0].split): the slice has none of 40 samples"],
    ),
    (
        "veomni.yaml",
        veomni({"schedule_type": "const", "weights": [1]}) | {"names": ["a", "a", "b"]},
        ["expected 3 names that differ", "expected 3 weights"],
    ),
    (
        "blend.json",
        {"datasets": [{"name": "swe", "path": "hf://nvidia/Nemotron-SWE-v1"}]},
        [
            "blend.json:5 (datasets[0].path)",
            "--repo-type dataset nvidia/Nemotron-SWE-v1",
        ],
    ),
    ("swift.yaml", {"dataset": ["data/a.json#x"]}, ["expected a number after #"]),
    (
        "swift.yaml",
        {"dataset": ["HF::swift/self-cognition#500"]},
        ["hf download --repo-type dataset swift/self-cognition --local-dir DIR"],
    ),
    (
        "swift.yaml",
        {"dataset": ["data/a.json"], "columns": "{"},
        ["swift.yaml:1: a value has a form that ms-swift does not take"],
    ),
]


@pytest.mark.parametrize(("name", "value", "words"), FAULTS)
def test_faults_have_their_lines_and_what_the_original_does(data, name, value, words):
    write("data/dataset_info.json", info())
    write(name, value)
    options = {"recipe": {"dataset": "a"}} if name.startswith("data") else {}
    with pytest.raises((MetadatasetError, FileNotFoundError)) as raised:
        read(name, **options)
    for word in words:
        assert word in str(raised.value)


# On ranks

CONST = {"schedule_type": "const", "weights": [0.5, 0.3, 0.2]}
CHANGING = {
    "schedule_type": "changing",
    "init_token": 0,
    "end_token": 60,
    "init_weights": [0.5, 0.3, 0.2],
    "end_weights": [0.1, 0.1, 0.8],
}
LOCAL = {"source": "local", "converter": "sharegpt"}
JOBS = {
    "run.yaml": (run(dataset="a,b,c", mix_strategy="interleave_over"), {}),
    "v1.yaml": ({name: {"path": f"data/{name}.json", **LOCAL} for name in SIZES}, {}),
    "swift.yaml": ({"dataset": ["data/a.json#30", "data/b.json#40"]}, {}),
    "trl.yaml": (
        {"datasets": [{"path": "json", "data_files": ["data/a.json", "data/b.json"]}]},
        {},
    ),
    "const.yaml": (veomni(CONST, stopping_strategy="all_exhausted"), {}),
    "veomni.yaml": (
        veomni(CHANGING, stopping_strategy="never_exhausted"),
        {"tokens_per_sample": 1},
    ),
    "blend.json": (
        {"datasets": [{"path": f"data/{name}.json", "weight": 2} for name in SIZES]},
        {},
    ),
}


@pytest.mark.jobs
def test_two_ranks_read_recipes_and_one_rank_resumes(data):
    write("data/dataset_info.json", info())
    options = {}
    expected = {}
    for name, (value, own) in JOBS.items():
        write(name, value)
        options[name] = {**own, "image_folder": f"{data}/data", "base": str(data)}
        whole = read(name, recipe=own)
        expected[name] = [batch[0] for batch in whole.at(range(60))]
    (data / "recipes.json").write_text(json.dumps(options))

    def got(name, ranks):
        files = [data / f"{name}.{rank}.json" for rank in range(ranks)]
        answers = [json.loads(file.read_text()) for file in files]
        return [answer for step in zip(*answers, strict=True) for answer in step]

    launched("tests.support.mixtures_program", data, 15, ranks=2)
    assert {name: got(name, 2) for name in JOBS} == {
        name: answers[:30] for name, answers in expected.items()
    }
    launched("tests.support.mixtures_program", data, 30, ranks=1)
    assert {name: got(name, 1) for name in JOBS} == {
        name: answers[30:] for name, answers in expected.items()
    }
