"""`by` in metadatasets: the shares it gives, where it may stand, and what is wrong with it."""

import textwrap
from collections import Counter

import pytest

from energize import (
    MetadatasetError,
    StateMismatchError,
    get_train_dataset,
    get_val_dataset,
    prepare,
    prepare_columns,
)
from energize.metadataset import leaves_with_weights, resolve
from energize.preparation.jsonl import prepare_jsonl
from tests.support.joining import keys, texts
from tests.support.loading import loader_of, take
from tests.support.rows import write_lines
from tests.support.shards import packed

HEADER = "__module__: energize\n__class__: MetadatasetV2\n"


def folder(path, count, every, dataset="TextSample"):
    """Sample i is high where `every` divides i, else low; its score is i / count."""
    path.mkdir()
    for shard in range(2):
        files = []
        for i in range(shard * count // 2, (shard + 1) * count // 2):
            quality = "high" if i % every == 0 else "low"
            text = f"{path.name} {quality} {i}".encode()
            json = b'{"quality": "%s", "score": %f}' % (quality.encode(), i / count)
            files += [(f"{i:03d}.txt", text), (f"{i:03d}.json", json)]
        (path / f"s{shard}.tar").write_bytes(packed(files))
    prepare(path, split_ratios={"train": 1}, sample_type=dataset, workers=1)
    prepare_columns(path, {"quality": "json[quality]", "score": "json[score]"}, workers=1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("properties")
    folder(path / "a", 60, 3)
    folder(path / "b", 40, 4)
    return path


@pytest.fixture
def mixed(folders, tmp_path):
    """Writes a file whose split train is the given YAML, beside the folders."""
    for name in ("a", "b"):
        (tmp_path / name).symlink_to(folders / name)

    def write(text, header=HEADER):
        file = tmp_path / "mix.yaml"
        body = textwrap.indent(textwrap.dedent(text).strip(), "    ")
        file.write_text(f"{header}splits:\n  train:\n{body}\n")
        return file

    return write


def dataset(file, **options):
    return get_train_dataset(file, batch_size=None, **options)


def found(file, count, first=0):
    """What of each folder and quality there is among the samples from the first on."""
    return Counter(tuple(s.text.split()[:2]) for s in dataset(file).at(range(first, first + count)))


def test_one_folder(mixed):
    file = mixed("{path: a, by: quality, weights: {high: 3, low: 1}}")
    assert found(file, 4000) == {("a", "high"): 3000, ("a", "low"): 1000}
    assert [source.name for source in dataset(file).sources] == ["a/high", "a/low"]
    shares = leaves_with_weights(resolve(file, "train"))
    assert [(leaf.chosen.name, float(share)) for leaf, share in shares] == [
        ("high", 0.75),
        ("low", 0.25),
    ]


def test_several_folders_by_how_many_samples_they_have(mixed):
    file = mixed("""
        by: quality
        weights: {high: 3, low: 1}
        blend: [{path: a}, {path: b}]
    """)
    expected = {("a", "high"): 2000, ("b", "high"): 1000, ("a", "low"): 571, ("b", "low"): 429}
    counts = found(file, 4000)
    assert {key: abs(counts[key] - expected[key]) <= 2 for key in expected} == dict.fromkeys(
        expected, True
    )
    assert sum(counts[name, "high"] for name in "ab") == 3000


def test_nested_and_scheduled(mixed):
    file = mixed("""
        scheme: exact
        blend:
          - path: a
            weight: 3
            by: quality
            weights: {high: {points: {0: 1, 100: 0}}, low: 1}
          - {path: b, weight: 1}
    """)
    first, later = found(file, 96), found(file, 400, 400)
    assert (first["a", "high"], first["a", "low"]) == (36, 36)
    assert (later["a", "high"], later["a", "low"]) == (0, 300)


def test_what_the_mix_says_of_ends_holds_for_it(mixed):
    file = mixed("""
        stop: all_exhausted
        blend:
          - {path: a, by: quality, weights: {high: 3, low: 1}}
          - {path: b, by: quality, weights: {low: 1}, other: 5}
    """)
    assert dataset(file).size == 100
    assert found(file, 100) == {
        ("a", "high"): 20,
        ("a", "low"): 40,
        ("b", "high"): 10,
        ("b", "low"): 30,
    }
    both = mixed("""
        stop: all_exhausted
        blend: [{path: a}, {path: b}]
        by: quality
        weights: {high: 3, low: 1}
    """)
    assert len({sample.text for sample in dataset(both, repeat=False)}) == 100


def test_ranges_and_the_rest(mixed):
    file = mixed("{path: a, by: score, weights: {0..0.25: 1, 0.5: 2}, other: 1}")
    numbers = [int(s.text.split()[2]) for s in dataset(file).at(range(400))]
    assert sum(number < 15 for number in numbers) == 100
    assert numbers.count(30) == 200


def test_labels_of_folders(mixed):
    file = mixed("""
        blend:
          - {path: a, subflavors: {lang: en, clean: true}}
          - {path: b, subflavors: {lang: fr, clean: true}}
        by: subflavors.lang
        weights: {en: 1, fr: 3}
    """)
    counts = Counter(sample.text[0] for sample in dataset(file).at(range(4000)))
    assert counts == {"a": 1000, "b": 3000}
    same = mixed("""
        blend:
          - {path: a, subflavors: {clean: true}}
          - {path: b, subflavors: {clean: true}}
        by: subflavors.clean
        weights: {true: 1}
    """)
    counts = Counter(sample.text[0] for sample in dataset(same).at(range(1000)))
    assert counts == {"a": 600, "b": 400}


def test_json_lines_joins_and_stages(mixed, tmp_path):
    rows = tmp_path / "rows.jsonl"
    write_lines(rows, [{"text": f"t{i}", "lang": "ef"[i % 2]} for i in range(9)])
    prepare_jsonl(rows)
    file = mixed("{path: rows.jsonl, by: lang, weights: {e: 1, f: 3}}")
    found = Counter(sample["json"]["lang"] for sample in dataset(file).at(range(400)))
    assert found == {"e": 100, "f": 300}
    for name, prefix in (("one", "high"), ("two", "low")):
        texts(tmp_path / name, [keys(*range(8))], prefix=f"{prefix} ")
    prepare_columns(tmp_path / "two", {"even": lambda raw: int(raw["__key__"]) % 2}, workers=1)
    file = mixed("""
        join: [{path: one}, {path: two}]
        joiner: {__module__: tests.support.joining, __class__: Pair}
        by: even
        weights: {0: 3, 1: 1}
    """)
    found = Counter(int(sample.__key__) % 2 for sample in dataset(file).at(range(400)))
    assert found == {0: 300, 1: 100}
    file = mixed("""
        steps: 20
        stages:
          - {name: first, start_step: 0, path: a, by: quality, weights: {high: 1, low: 0}}
          - {name: then, start_step: 10, path: a, by: quality, weights: {high: 1, low: 3}}
    """)
    batches = get_train_dataset(file, batch_size=4).at(range(20))
    highs = [sum("high" in text for text in batch.text) for batch in batches]
    assert (sum(highs[:10]), sum(highs[10:])) == (40, 10)


def test_subsets_are_split_too(mixed):
    file = mixed("{path: a, subset: {range: [0, 30]}, by: quality, weights: {high: 1}, other: 0}")
    numbers = {int(sample.text.split()[2]) for sample in dataset(file).at(range(50))}
    assert numbers == set(range(0, 30, 3))


def test_validation_reads_every_sample_once(mixed):
    file = mixed("{path: a, by: quality, weights: {high: 1}, other: 0}")
    val = get_val_dataset(file, split_part="train", batch_size=7)
    assert sorted(int(t.split()[2]) for batch in val for t in batch.text) == list(range(60))


def test_a_run_goes_on_where_it_stood_and_not_over_a_column_measured_anew(folders, tmp_path):
    folder(tmp_path / "own", 40, 4)
    file = tmp_path / "mix.yaml"
    file.write_text(
        f"{HEADER}splits:\n  train:\n    blend:\n      - path: own\n        by: quality\n"
        f"        weights: {{high: 1, low: 1}}\n      - path: {folders / 'a'}\n"
    )
    with loader_of(get_train_dataset(file, batch_size=2)) as loader:
        stream = [batch.text for batch in take(loader, 20)]
    with loader_of(get_train_dataset(file, batch_size=2)) as loader:
        take(loader, 8)
        state = loader.state_dict()
    with loader_of(get_train_dataset(file, batch_size=2), workers=2) as loader:
        loader.load_state_dict(state)
        assert [batch.text for batch in take(loader, 12)] == stream[8:]
    anew = {"quality": lambda raw: "high" if int(raw["__key__"]) % 5 == 0 else "low"}
    prepare_columns(tmp_path / "own", anew, workers=1)
    told = pytest.raises(StateMismatchError, match="'own/high': count was 10, is 8")
    with loader_of(get_train_dataset(file, batch_size=2)) as loader, told:
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{path: a, by: qualty, weights: {high: 1}}", "no column 'qualty'; did you mean 'quality'"),
        ("{path: a, by: length, weights: {9: 1}}", "energize prepare .*/a --column 'length=json"),
        ("{path: a, by: quality, weights: {high: 1}}", "40 samples of a have values without a "),
        ("{path: a, by: quality, weights: {hig: 1}, other: 1}", "did you mean 'high'"),
        ("{path: a, by: quality}", "'by' needs 'weights'"),
        ("{path: a, weights: {high: 1}}", "'weights' belongs to a property, and no 'by' says"),
        ("{path: a, other: 1}", "'other' belongs to a property"),
        ("{path: a, by: quality, weights: 3}", "got 3; the share of an entry in its blend is"),
        ("{path: a, by: quality, weights: {}}", "expected a mapping of values to weights"),
        ("{path: a, by: quality, weights: {high: -1, low: 1}}", "the weight of 'high' is a finite"),
        ("{path: a, by: quality, weights: {high: .inf, low: 1}}", "the weight of 'high' is a fin"),
        ("{path: a, by: quality, weights: {high: x, low: 1}}", "the weight of 'high' is a finite"),
        ("{path: a, by: quality, weights: {high: 0, low: 0}}", "all weights are 0"),
        ("{path: a, by: quality, weights: {high: {point: {0: 1}}}}", "did you mean 'points'"),
        ("{path: a, by: quality, weights: {high: {change: block}}}", "key 'points' is missing"),
        ("{path: a, by: quality, wights: {high: 1}}", "did you mean 'weights'"),
        ("{path: a, by: score, weights: {0..0.5: 1, 0.4..: 1}}", "have samples in common"),
        ("{path: a, by: subflavors.lang, weights: {en: 1}}", "has none as the subflavor 'lang'"),
        ("{path: a, by: subflavor.lang, weights: {en: 1}}", "write subflavors.lang, with an s"),
        (
            "{path: a, subflavors: {lang: en}, by: lang, weights: {en: 1}}",
            "do you mean by: subflavors.lang?",
        ),
        (
            "{path: a, subflavors: {lang: en}, by: subflavors.lang, weights: {en: 1, fr: 2}}",
            "no folder has 'fr' as the subflavor 'lang'",
        ),
        (
            "{by: quality, weights: {high: 1}, other: 1, blend: [{path: a, weight: 2}, {path: b, "
            "weight: 1}]}",
            "so 'weight' of entry .0., 'weight' of entry .1. says nothing",
        ),
        (
            "{by: quality, weights: {high: 1}, other: 1, blend: [{path: a, repeat: 2}, {path: b}]}",
            "this blend is mixed by quotas",
        ),
        (
            "{by: quality, weights: {high: 1}, other: 1, blend: [{blend: [{path: a}, {path: b}]}, "
            "{path: b}]}",
            "they are mixed by something else already",
        ),
        (
            "{by: quality, weights: {high: 1}, other: 1, blend: [{path: a, by: quality, weights: "
            "{high: 1}, other: 0}, {path: b}]}",
            "they are mixed by something else already",
        ),
        (
            "{path: inner.yaml, by: quality, weights: {high: 1}, other: 1}",
            "'inner.yaml' is a metadataset, which mixes them already",
        ),
        ("{by: quality, weights: {high: 1}, concat: [{path: a}]}", "unknown key|no place here"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(mixed, tmp_path, text, told):
    mixed("{blend: [{path: a}, {path: b}]}").rename(tmp_path / "inner.yaml")
    file = mixed(text)
    with pytest.raises(MetadatasetError, match=f"(?s){told}") as error:
        dataset(file)
    assert f"{file}:" in str(error.value)
    assert "(splits.train" in str(error.value)


def test_energons_files_have_no_such_key(mixed):
    header = HEADER.replace("energize", "megatron.energon")
    file = mixed("{path: a, by: quality, weights: {high: 1}}", header)
    with pytest.raises(MetadatasetError, match=r"'by' in a megatron\.energon file; it needs"):
        dataset(file)


def test_where_folders_need_not_be_there_values_are_those_of_the_weights(tmp_path):
    file = tmp_path / "mix.yaml"
    node = "{path: gone, by: quality, weights: {high: 3, low: 1}}"
    file.write_text(f"{HEADER}splits:\n  train: {node}\n")
    shares = leaves_with_weights(resolve(file, "train", existing=False))
    assert [(leaf.chosen.name, float(share)) for leaf, share in shares] == [
        ("high", 0.75),
        ("low", 0.25),
    ]
