"""Metadataset files as text: the grammar, and what a reader is told when it is not kept."""

import textwrap

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energize.errors import DatasetNotFoundError, MetadatasetError
from energize.metadataset import read_metadataset

HEADER = "__module__: energize\n__class__: MetadatasetV2\n"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mix.yaml"


def message(file, text, header=HEADER, kind=MetadatasetError):
    file.write_text(header + textwrap.dedent(text))
    with pytest.raises(kind) as caught:
        read_metadataset(file.name)
    return str(caught.value)


def splits(file, text, header=HEADER):
    file.write_text(header + textwrap.dedent(text))
    return read_metadataset(file).splits


def test_every_key_is_read(file):
    entry = splits(
        file,
        """
        splits:
          train:
            blend:
              - path: a
                weight: 1e-3
                split_part: part
                subflavors: {language: "no", level: 2, tags: [x, yes], none: ~}
                dataset_config: other.yaml
                split_config: half.yaml
                shuffle_over_epochs_multiplier: -1
        """,
    )["train"].entries[0]
    assert entry.path == "a"
    assert entry.weight == 0.001
    assert entry.split_part == "part"
    assert entry.subflavors == {"language": "no", "level": 2, "tags": ["x", True], "none": None}
    assert entry.dataset_config == "other.yaml"
    assert entry.split_config == "half.yaml"
    assert entry.shuffle_over_epochs_multiplier == -1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5E+2", 150.0),
        ("-7", -7),
        ("007", 7),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("on", "on"),
        ("No", False),
        ("'3'", "3"),
        ("", None),
        ("=", "="),
        ("!!str 3", "3"),
        ("!!int '3'", 3),
        ("-.inf", float("-inf")),
        ("9" * 400, float("inf")),
    ],
)
def test_plain_text_becomes_the_value_one_expects(file, text, value):
    node = splits(file, f"splits: {{a: {{path: x, subflavors: {{v: {text}}}}}}}")["a"]
    assert node.subflavors["v"] == value
    assert type(node.subflavors["v"]) is type(value)


def test_anchors_aliases_and_merges(file):
    found = splits(
        file,
        """
        splits:
          train: &base
            path: a
            subflavors: {x: 1}
          val: *base
          test: {<<: *base, path: b}
        """,
    )
    assert found["val"] == found["train"]
    assert (found["test"].path, found["test"].subflavors) == ("b", {"x": 1})


def test_all_faults_are_reported_together_in_the_order_of_the_file(file):
    text = message(
        file,
        """\
        splits:
          train:
            blend:
              - path: a
                wieght: 3
              - path: b
                weight: -0.5
          val:
            pth: c
          val:
            path: c
        """,
    )
    keys = "path, split_part, subflavors, shuffle_over_epochs_multiplier, dataset_config, "
    keys += "split_config, aux, subset, sample_weight, by, weights, other, "
    assert text.splitlines() == [
        "4 errors in mix.yaml:",
        "  1. mix.yaml:7 (splits.train.blend[0].wieght): unknown key 'wieght'; did you mean "
        f"'weight'? Valid keys here: {keys}weight, min_share, max_share, max_epochs, "
        "target_weight, proportion, repeat, choose",
        "  2. mix.yaml:9 (splits.train.blend[1].weight): expected a finite number, 0 or more, or a "
        "schedule (a mapping with 'points'); got -0.5",
        "  3. mix.yaml:11 (splits.val.pth): unknown key 'pth'; did you mean 'path'? Valid keys "
        f"here: {keys}packing, level, blend, blend_epochized, join, concat, stages",
        "  4. mix.yaml:12 (splits.val): the key 'val' is given twice, first in line 10; remove one",
    ]


@pytest.mark.parametrize("value", ["-1", ".nan", ".inf", "-.inf", "'1'", "null", "true", "[1]"])
def test_a_weight_is_a_finite_number_not_below_0(file, value):
    text = message(file, f"splits: {{a: {{blend: [{{path: x, weight: {value}}}]}}}}")
    assert text.startswith("mix.yaml:3 (splits.a.blend[0].weight): expected a finite number, 0 or")


@pytest.mark.parametrize("value", ["0", "-2", "1.0", "true", "two"])
def test_a_multiplier_is_positive_or_minus_one_or_null(file, value):
    text = message(file, f"splits: {{a: {{path: x, shuffle_over_epochs_multiplier: {value}}}}}")
    assert "splits.a.shuffle_over_epochs_multiplier): expected a whole number above 0" in text
    assert text.endswith((f"; got {value}", f"; got '{value}'"))


def test_weights_that_are_all_0(file):
    text = message(file, "splits: {a: {blend: [{path: x, weight: 0}, {path: y, weight: 0.0}]}}")
    assert text.startswith("mix.yaml:3 (splits.a.blend): all 2 weights are 0")


def test_weights_for_some_entries_only(file):
    some = "splits: {a: {blend: [{path: x, weight: 4}, {path: y}, {path: z}]}}"
    text = message(file, some)
    assert "(splits.a.blend): some entries have a weight and others have none: [1], [2]" in text
    header = HEADER.replace("energize", "megatron.energon")
    assert [e.weight for e in splits(file, some, header)["a"].entries] == [4, 1, 1]


def test_no_weights_are_equal_weights(file):
    entries = splits(file, "splits: {a: {blend: [{path: x}, {path: y}]}}")["a"].entries
    assert [e.weight for e in entries] == [1, 1]


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ("{path: x, blend: [{path: y}]}", "a.path): both 'path' and 'blend' are given"),
        ("{blend: []}", "a.blend): expected a list of one or more datasets or blends"),
        ("{subflavors: {}}", "a): neither 'path' nor 'blend' is given"),
        ("{path: x, weight: 1}", "a.weight): the key 'weight' has no place here"),
        ("{blend: [{path: x}], subflavors: {}}", "a.subflavors): the key 'subflavors' has no"),
        ("data/x", "a): expected a dataset (a mapping with 'path'), a blend (one with 'blend' or "
         "'blend_epochized') or a join (one with 'join'); got 'data/x'; write `path: data/x`"),
        ("[{path: x}]", "a): expected a dataset"),
        ("{path: 7}", "a.path): expected text: a prepared folder, a .jsonl file or a metadata"),
        ("{path: ''}", "a.path): expected text"),
        ("{path: x, subflavors: [1]}", "a.subflavors): expected a mapping; got [1]"),
        ("{path: x, dataset_config: [1]}", "a.dataset_config): expected text"),
        ("{blend: {path: x}}", "a.blend): expected a list of one or more"),
        ("{blend: [{blend: [{path: x, weight: x}]}]}", "a.blend[0].blend[0].weight): expected a"),
        ("!!python/object/apply:os.system ['touch pwned']", "a): the tag '!!python/object/apply:"),
        ("{path: !own x}", "a.path): the tag '!own' is not allowed"),
        ("{path: !!int x}", "a.path): 'x' is no value of its tag, '!!int'"),
        ("&n {blend: [*n]}", "a.blend[0]): an alias to a list or mapping from inside it"),
        ("{<<: 3, path: x}", "a['<<']): '<<' merges other mappings only"),
        ("{<<: &m {<<: *m}, path: x}", "a['<<']): '<<' merges other mappings only"),
        ("{[1]: 2, path: x}", "a): a key must be text"),
    ],
)  # fmt: skip
def test_what_a_bad_node_gets(file, node, told):
    text = message(file, f"splits: {{a: {node}}}")
    assert f"mix.yaml:3 (splits.{told}" in text
    assert len(text.splitlines()) == 1
    assert not (file.parent / "pwned").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "mix.yaml: the document is empty; expected a mapping with __module__"),
        ("# nothing\n", "mix.yaml: the document is empty"),
        ("[1, 2]", "mix.yaml:1: expected a mapping with __module__, __class__ and splits; got [1,"),
        ("splits: {}", "mix.yaml:1 (splits): expected a mapping of split names"),
        ("splits: [a", "mix.yaml:1, column 11: invalid YAML: while parsing a flow sequence"),
        ("splits:\n\ta: 1", "mix.yaml:2, column 1: invalid YAML"),
        ("a: *b", "mix.yaml:1, column 4: invalid YAML: found undefined alias 'b'"),
        ("a: 1\n---\nb: 1", "mix.yaml:2, column 1: invalid YAML: expected a single document"),
        ("[" * 5000, "mix.yaml: lists and mappings are nested too deeply"),
        ("__class__: MetadataSetV2", "(__class__): expected MetadatasetV2; got 'MetadataSetV2'; "
         "did you mean 'MetadatasetV2'?"),
        ("__module__: os", "(__module__): expected energize or megatron.energon; got 'os'"),
        ("splits: {a: {path: x}}", "mix.yaml:1: the key '__class__' is missing"),
        ("split: {a: {path: x}}", "(split): unknown key 'split'; did you mean 'splits'?"),
    ],
)  # fmt: skip
def test_what_a_bad_document_gets(file, text, told):
    assert told in message(file, text, header="")


def test_few_lines_of_aliases_do_not_fill_the_memory(file):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(20)]
    file.write_text("\n".join(lines))
    with pytest.raises(
        MetadatasetError, match="too many values when aliases are written out, more than 60000"
    ):
        read_metadataset(file)


def test_files_that_cannot_be_read(file):
    with pytest.raises(DatasetNotFoundError, match=r"mix\.yaml: the file does not exist"):
        read_metadataset(file)
    file.mkdir()
    with pytest.raises(MetadatasetError, match="cannot be read: it is a directory"):
        read_metadataset(file)
    file.rmdir()
    file.write_bytes(b"a: \xff\xfe\x00")
    with pytest.raises(MetadatasetError, match="invalid YAML"):
        read_metadataset(file)


OLDER = "splits: {train: {datasets: [{path: x, weight: 3, subflavor: en}, {path: y}]}}"


@pytest.mark.parametrize(
    "header",
    ["", "__module__: megatron.energon\n__class__: Metadataset\n", "__class__: Metadataset\n"],
)
def test_the_older_grammar(file, header):
    entries = splits(file, OLDER, header)["train"].entries
    assert [(e.path, e.weight, e.own_subflavors) for e in entries] == [
        ("x", 3, {"__subflavor__": "en"}),
        ("y", 1, {}),
    ]


def test_faults_in_the_older_grammar(file):
    text = message(file, "splits: {a: {datasets: [{pth: x}, 7]}, b: 4}\nfoo: 1", header="")
    assert "mix.yaml:1 (splits.a.datasets[0].pth): unknown key 'pth'; did you mean 'path'?" in text
    assert "mix.yaml:1 (splits.a.datasets[1]): expected a mapping with 'path'; got 7" in text
    assert "mix.yaml:1 (splits.b): expected a mapping with 'datasets'; got 4" in text
    assert "mix.yaml:2 (foo): unknown key 'foo'" in text
    newer = message(file, "splits: {a: {datasets: [{path: x}], scheme: exact}}", header="")
    assert "unknown key 'scheme' in a file of the older grammar; it needs `__class__: Met" in newer


WORDS = st.sampled_from(
    ["splits", "train", "blend", "path", "weight", "datasets", "subflavors", "join", "__class__",
     "MetadatasetV2", "Metadataset", "__module__", "energize", "<dataset>", "x y", "", "a.b"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=VALUES, wrapped=st.booleans())
def test_any_document_is_read_or_refused_with_its_place(tmp_path, data, wrapped):
    if wrapped:
        data = {"__module__": "energize", "__class__": "MetadatasetV2", "splits": {"a": data}}
    file = tmp_path / "any.yaml"
    file.write_text(yaml.safe_dump(data))
    told = ""
    try:
        assert read_metadataset(file).splits
    except MetadatasetError as error:
        told = str(error)
    assert not told or str(file) in told


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60) | st.text(alphabet="{}[]:-*&!|>#%@`'\"\n ,ab?<", max_size=40))
def test_any_bytes_are_refused(tmp_path, data):
    file = tmp_path / "any.yaml"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(MetadatasetError, match="any"):
        read_metadataset(file)
