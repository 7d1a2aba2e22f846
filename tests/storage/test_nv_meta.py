"""The files of `.nv-meta`: round trips, older forms, and what wrong ones are told."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.data.nv_meta import (
    DatasetConfig,
    Info,
    Splits,
    collapse,
    dump_dataset_yaml,
    dump_info,
    dump_splits,
    escaped,
    expand,
    read_dataset_yaml,
    read_info,
    read_splits,
)
from energize.errors import (
    DatasetError,
    DatasetNotFoundError,
    NotPreparedError,
    UntrustedCodeError,
)

NAMES = st.lists(
    st.from_regex(r"[a-c{},\\0-9/é.]{1,6}(9|10|011)?\.tar", fullmatch=True), max_size=12
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ds" / ".nv-meta").mkdir(parents=True)
    return tmp_path / "ds"


def write(folder, name, text):
    (folder / ".nv-meta" / name).write_text(text, encoding="utf-8")


def message(error_type, function, *args):
    with pytest.raises(error_type) as error:
        function(*args)
    return str(error.value)


@given(NAMES)
def test_collapse_is_undone_by_expand(names):
    assert list(expand(collapse(names))) == names


@given(st.integers(0, 2000), st.integers(1, 300), st.integers(1, 5))
def test_a_run_of_one_width_becomes_one_pattern(start, count, width):
    names = [f"a/{i:0{width}}-of-7.tar" for i in range(start, start + count)]
    patterns = collapse(names)
    assert list(expand(patterns)) == names
    assert len(patterns) == len({len(name) for name in names})


@given(st.text(min_size=1))
def test_an_escaped_name_stands_for_itself(name):
    assert "\n" in name or expand([escaped(name)]) == (name,)


def test_info_round_trip_keeps_the_order(folder):
    info = Info({"b.tar": 3, "a.tar": 0}, "7.4.1")
    write(folder, ".info.json", dump_info(info))
    assert read_info(folder) == info
    assert list(read_info(folder).shard_counts) == ["b.tar", "a.tar"]
    assert list(json.loads(dump_info(info))) == ["energon_version", "shard_counts"]


def test_the_older_info_is_read_and_the_newer_one_preferred(folder):
    write(folder, ".info.yaml", "shard_counts:\n  a.tar: 5\n")
    assert read_info(folder) == Info({"a.tar": 5}, None)
    write(folder, ".info.json", '{"shard_counts": {"a.tar": 6}}')
    assert read_info(folder) == Info({"a.tar": 6}, None)


@pytest.mark.parametrize("name", ["split.yaml", "split.json", "mine.yaml", "mine.json"])
def test_splits_round_trip(folder, name):
    splits = Splits(
        {"train": ("a/0.tar", "a/1.tar", "b{x}.tar"), "val": ()}, ("c.tar", "d.tar/k,1")
    )
    write(folder, name, dump_splits(splits, name))
    assert read_splits(folder, name) == splits


def test_split_json_stands_in_for_split_yaml_only(folder):
    write(folder, ".info.json", '{"shard_counts": {}}')
    write(folder, "split.json", '{"split_parts": {"train": ["a{0..2}.tar"]}}')
    assert read_splits(folder) == Splits({"train": ("a0.tar", "a1.tar", "a2.tar")})
    told = message(NotPreparedError, read_splits, folder, "splitt.json")
    assert "did you mean 'split.json'" in told


def test_dataset_yaml_round_trip(folder):
    config = DatasetConfig(
        "megatron.energon",
        "CaptioningSample",
        {"image": "jpg,png", "caption": "json[caption][en]"},
        {"lang": "en"},
        {"max_samples_per_sequence": 100},
    )
    write(folder, "dataset.yaml", dump_dataset_yaml(config))
    assert read_dataset_yaml(folder) == config


def test_crude_dataset_yaml_round_trip(folder):
    config = DatasetConfig("megatron.energon", "CrudeWebdataset")
    assert dump_dataset_yaml(config) == "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    write(folder, "dataset.yaml", dump_dataset_yaml(config))
    assert read_dataset_yaml(folder) == config


def test_older_factories_name_their_sample_type(folder):
    write(folder, "dataset.yaml", "__module__: megatron.energon\n__class__: VQAWebdataset\n")
    assert read_dataset_yaml(folder).sample_class == "VQASample"


def test_no_module_is_imported(folder, tmp_path):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    write(folder, "dataset.yaml", "sample_type: {__module__: evil_module, __class__: Evil}\n")
    script = (
        "import sys; from energize.data.nv_meta import read_dataset_yaml\n"
        f"config = read_dataset_yaml({str(folder)!r})\n"
        "assert config.sample_module == 'evil_module' and 'evil_module' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text", ["!!python/object/apply:os.getcwd []", "a: !!python/name:os.system"]
)
def test_yaml_tags_are_refused(folder, text):
    write(folder, "dataset.yaml", text)
    assert "not valid YAML" in message(DatasetError, read_dataset_yaml, folder)


@pytest.mark.parametrize("key", ["sample_loader", "part_filter"])
def test_code_of_the_data_folder_is_refused_with_the_remedy(folder, key):
    write(
        folder,
        "dataset.yaml",
        f"sample_type: {{__module__: megatron.energon, __class__: TextSample}}\n{key}: code.py:f\n",
    )
    told = message(UntrustedCodeError, read_dataset_yaml, folder)
    assert key in told
    assert "field_map" in told
    assert "CrudeWebdataset" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sample_typ: {}", ["unknown key 'sample_typ'", "did you mean 'sample_type'"]),
        ("field_map: {text: txt}", ["sample_type", "expected"]),
        ("sample_type: TextSample", ["sample_type", "mapping", "'TextSample'"]),
        ("sample_type: {__class__: TextSample}", ["__module__"]),
        ("__class__: Oddity", ["__class__", "'Oddity'"]),
        (
            "sample_type: {__module__: m, __class__: C}\nfield_map: {text: [txt]}",
            ["field_map.text", "['txt']"],
        ),
        ("- a", ["expected a mapping", "['a']"]),
        ("{", ["not valid YAML"]),
    ],
)
def test_wrong_dataset_yaml(folder, text, words):
    write(folder, "dataset.yaml", text)
    told = message(DatasetError, read_dataset_yaml, folder)
    for word in ["dataset.yaml", *words]:
        assert word in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("splits: {}", ["unknown key 'splits'", "split_parts"]),
        ("exclude: []", ["'split_parts' is missing"]),
        ("split_parts: {train: a.tar}", ["split_parts.train", "a list", "'a.tar'"]),
        ("split_parts: {train: [001]}", ["split_parts.train[0]", "expected text"]),
        ("split_parts: {train: ['a{0.tar']}", ["split_parts.train", "Unbalanced"]),
        ("split_parts: {1: []}", ["split_parts[1]", "expected text"]),
    ],
)
def test_wrong_splits(folder, text, words):
    write(folder, "split.yaml", text)
    told = message(DatasetError, read_splits, folder)
    for word in ["split.yaml", *words]:
        assert word in told


@pytest.mark.parametrize("count", ["-1", "1.5", "true", '"3"', "null"])
def test_wrong_counts(folder, count):
    write(folder, ".info.json", f'{{"shard_counts": {{"a.tar": {count}}}}}')
    assert "['a.tar']: expected a number of samples" in message(DatasetError, read_info, folder)


def test_a_missing_folder_is_compared_with_its_neighbours(tmp_path, folder):
    told = message(DatasetNotFoundError, read_info, tmp_path / "dss")
    assert str(tmp_path / "dss") in told
    assert "did you mean 'ds'" in told


def test_a_folder_that_is_not_prepared_says_how_to(tmp_path):
    assert f"energize prepare {tmp_path}" in message(NotPreparedError, read_info, tmp_path)
    (tmp_path / "file").touch()
    assert "is a file" in message(NotPreparedError, read_info, tmp_path / "file")


def test_a_folder_inside_a_prepared_one_points_up(folder):
    write(folder, ".info.json", dump_info(Info({})))
    (folder / "parts").mkdir()
    assert f"{folder} above it" in message(NotPreparedError, read_info, folder / "parts")
    assert f"{folder} above it" in message(NotPreparedError, read_info, folder / ".nv-meta")
