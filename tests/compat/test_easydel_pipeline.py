"""EasyDeL's pipelines and its older mixtures, over real files."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from itertools import islice

import datasets
import numpy as np
import pytest

from energize import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    EncoderError,
    Loader,
    WeightError,
)
from energize.compat.easydel import (
    DatasetConfig,
    DatasetMixture,
    LoadStageConfig,
    MixStageConfig,
    Pipeline,
    PipelineConfig,
    TextDatasetInform,
    TokenizerConfig,
    build_dataset,
)
from energize.core.dataset import Dataset
from energize.order.schedule import WeightSchedulePoint
from tests.support.rows import texts, write_lines, write_parquet


def letters(text):
    return [ord(letter) for letter in text]


@pytest.fixture
def files(tmp_path):
    write_parquet(tmp_path / "code/0.parquet", texts("code", 30))
    write_parquet(tmp_path / "code/1.parquet", texts("more", 20))
    write_lines(tmp_path / "text/0.jsonl", texts("prose", 40))
    return tmp_path


def configured(files, **options):
    return PipelineConfig(
        datasets=[
            DatasetConfig(name="code", data_files=f"{files}/code/*.parquet", tokenizer=letters),
            DatasetConfig(name="text", data_files=f"{files}/text/*.jsonl", tokenizer=letters),
        ],
        **{"seed": 3} | options,
    )


def test_from_files_to_batches(files):
    config = configured(
        files, mix=MixStageConfig(weights={"code": 0.3, "text": 0.7}, block_size=100)
    )
    loader = Pipeline.from_config(config).source().tokenize().mix().load().build()
    assert isinstance(loader, Loader)
    batches = list(islice(loader, 25))
    assert {len(batch["input_ids"]) for batch in batches} == {8}
    sources = Counter(name for batch in batches for name in batch["__source__"])
    assert sources == {"code": 60, "text": 140}
    for batch in batches:
        for ids, mask, source in zip(
            batch["input_ids"], batch["attention_mask"], batch["__source__"], strict=True
        ):
            text = "".join(map(chr, ids))
            assert text.startswith(("code ", "more ") if source == "code" else "prose ")
            assert list(mask) == [1] * len(text)


def test_the_loader_resumes(files):
    def made():
        return Pipeline.from_config(configured(files)).source().tokenize().mix().load().build()

    loader = made()
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    state = loader.state_dict()
    expected = [batch["input_ids"] for batch in islice(iterator, 5)]
    fresh = made()
    fresh.load_state_dict(state)
    found = [batch["input_ids"] for batch in islice(fresh, 5)]
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_stages_are_checked(files):
    pipeline = Pipeline.from_config(configured(files))
    with pytest.raises(ConfigError, match=r"call source\(\) before mix\(\)"):
        pipeline.mix()
    opened = pipeline.source()
    with pytest.raises(ConfigError, match="called already"):
        opened.source()
    with pytest.raises(ConfigError, match=r"code, text; call mix\(\)"):
        opened.load()
    with pytest.raises(ConfigError, match=r"code, text; call mix\(\)"):
        opened.build()
    with pytest.raises(ConfigError, match="before mix"):
        opened.mix().tokenize()
    assert pipeline.datasets is None


def test_without_load_the_dataset_comes_out(files):
    dataset = Pipeline.from_config(configured(files)).source().mix().build()
    assert isinstance(dataset, Dataset)
    assert set(dataset[0]) == {"text", "id", "__source__"}


def test_one_dataset_is_mixed_too(files):
    config = PipelineConfig(datasets=[DatasetConfig(data_files=f"{files}/text/*.jsonl")], seed=0)
    mixed = Pipeline.from_config(config).source().mix().build()
    assert {row["__source__"] for row in mixed.at(range(100))} == {"dataset_0"}


def test_seed_0_of_the_mix_counts(files):
    def order(pipeline_seed, mix_seed):
        config = configured(files, seed=pipeline_seed, mix=MixStageConfig(seed=mix_seed))
        mixed = Pipeline.from_config(config).source().mix().build()
        return [row["text"] for row in mixed.at(range(50))]

    assert order(5, 0) == order(6, 0) != order(5, None)
    assert order(5, None) == order(7, 5)


def test_a_schedule_comes_before_weights(files):
    mix = MixStageConfig(
        weights={"code": 0.3, "text": 0.7},
        weight_schedule=[
            WeightSchedulePoint(0, {"code": 1.0, "text": 0.0}),
            WeightSchedulePoint(1000, {"code": 0.0, "text": 1.0}),
        ],
        weight_schedule_type="linear",
        block_size=100,
        seed=1,
    )
    mixed = Pipeline.from_config(configured(files, mix=mix)).source().mix().build()
    code = [row["__source__"] == "code" for row in mixed.at(range(1100))]
    found = [sum(code[k : k + 100]) for k in range(0, 1100, 100)]
    assert found == [*(pytest.approx(share, abs=1) for share in range(95, 0, -10)), 0]


def test_examples_are_formatted_before_they_are_tokenized(files):
    def shout(example):
        example["text"] = example["text"].upper()
        return example

    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                data_files=f"{files}/text/0.jsonl",
                format_callback=shout,
                format_fields={"text": "body"},
                content_field="body",
                additional_fields=["id"],
                tokenizer=TokenizerConfig(letters, max_length=5, return_attention_mask=False),
                num_rows=3,
            )
        ]
    )
    rows = list(Pipeline.from_config(config).source().tokenize().build())
    assert rows == [{"input_ids": letters("PROSE"), "id": number} for number in range(3)]


def test_a_tokenizer_may_give_a_mapping_and_has_to_give_ids(files):
    def rows(tokenizer):
        config = PipelineConfig(
            datasets=[DatasetConfig(data_files=f"{files}/text/0.jsonl", num_rows=1)],
            default_tokenizer=tokenizer,
        )
        return list(Pipeline.from_config(config).source().tokenize().build())

    given = {"input_ids": [7], "attention_mask": [1], "token_type_ids": [0]}
    assert rows(lambda _: given) == [given]
    with pytest.raises(EncoderError, match="gave ids and no input_ids"):
        rows(lambda _: {"ids": [7]})


@pytest.mark.parametrize(
    ("name", "message"),
    [("meta-llama/Llama-2-7b", "needs transformers.*pip install"), ("saved", "needs tokenizers")],
)
def test_a_tokenizer_of_a_missing_library_is_named(files, name, message):
    if find_spec("transformers") or find_spec("tokenizers"):
        pytest.skip("the library is there")
    if name == "saved":
        name = str(write_lines(files / "tokenizer.json", [{}]))
    config = PipelineConfig(
        datasets=[DatasetConfig(data_files=f"{files}/text/0.jsonl", tokenizer=name)]
    )
    with pytest.raises(ConfigError, match=message):
        Pipeline.from_config(config).source().tokenize()


def test_a_missing_field_is_named(files):
    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                data_files=f"{files}/text/0.jsonl", content_field="txt", tokenizer=letters
            )
        ]
    )
    dataset = Pipeline.from_config(config).source().tokenize().build()
    with pytest.raises(EncoderError, match=r"no field 'txt'; did you mean 'text'[\s\S]*row 0"):
        dataset[0]


def test_configs_from_plain_dicts(files):
    tree = {
        "datasets": [{"data_files": f"{files}/text/0.jsonl", "name": "text"}],
        "mix": {"weights": {"text": 1.0}, "block_size": 10},
        "load": {"batch_size": 4},
        "seed": 1,
    }
    batch = next(iter(Pipeline.from_config(tree).source().mix().load().build()))
    assert len(batch["text"]) == 4
    with pytest.raises(ConfigError, match="blocksize"):
        Pipeline.from_config(tree | {"mix": {"blocksize": 10}})
    with pytest.raises(ConfigError, match=r"PipelineConfig.*unknown"):
        Pipeline.from_config(tree | {"unknown": 1})


def opened(data_files=__file__, **options):
    config = DatasetConfig(data_files=data_files, type="json", **options)
    return Pipeline.from_config(PipelineConfig(datasets=[config])).source()


BAD = [
    (lambda: PipelineConfig(datasets=[]), ConfigError, "no datasets"),
    (
        lambda: PipelineConfig(datasets=[DatasetConfig(data_files="a", name="x")] * 2),
        ConfigError,
        "two datasets are called 'x'",
    ),
    (lambda: DatasetConfig(data_files=""), ConfigError, "data_files"),
    (lambda: DatasetConfig(data_files="a", num_rows=0), ConfigError, "num_rows"),
    (lambda: MixStageConfig(weights={"a": 0.9}), WeightError, r"sum to 0\.9"),
    (lambda: MixStageConfig(weights={"a": -0.5, "b": 1.5}), WeightError, "weight of 'a'.* -0.5"),
    (lambda: MixStageConfig(weights={"a": "1"}), WeightError, "weight of 'a'.* got '1'"),
    (
        lambda: MixStageConfig(weights=[1]),
        WeightError,
        r"weights maps names to numbers.* got \[1\]",
    ),
    (lambda: MixStageConfig(weight_schedule_type="cubic"), ConfigError, "got 'cubic'"),
    (
        lambda: PipelineConfig(datasets=DatasetConfig(data_files="a")),
        ConfigError,
        r"PipelineConfig: datasets is a list; got DatasetConfig",
    ),
    (
        lambda: PipelineConfig(datasets=["a"]),
        ConfigError,
        r"datasets\[0\] is a DatasetConfig; got 'a'",
    ),
    (
        lambda: Pipeline.from_config(None),
        ConfigError,
        "Pipeline: config is a PipelineConfig; got None",
    ),
    (
        lambda: DatasetMixture(informs=["a"]),
        ConfigError,
        r"informs\[0\] is a TextDatasetInform; got 'a'",
    ),
    (
        lambda: TokenizerConfig(5),
        ConfigError,
        "TokenizerConfig: .* is a function of a text.* got 5",
    ),
    (
        lambda: opened(format_fields=["a"]),
        ConfigError,
        r"DatasetConfig: format_fields is a dict; got \['a'\]",
    ),
    (lambda: opened(format_callback="f"), ConfigError, "format_callback is a function.* got 'f'"),
    (
        lambda: opened(data_files=[None]),
        ConfigError,
        r"DatasetConfig: data_files is .* got \[None\]",
    ),
    (lambda: build_dataset({}), ConfigError, "mixture is a DatasetMixture; got {}"),
    (lambda: MixStageConfig(block_size=0), ConfigError, "block_size"),
    (
        lambda: MixStageConfig(stop_strategy="never"),
        ConfigError,
        "stop_strategy is 'restart', .*; got 'never'",
    ),
    (
        lambda: MixStageConfig(
            weight_schedule=[WeightSchedulePoint(0, {"a": 1.0})], weight_schedule_type="cubic"
        ),
        ConfigError,
        "cubic",
    ),
    (lambda: LoadStageConfig(batch_size=0), ConfigError, "batch_size"),
    (lambda: LoadStageConfig(drop_last=1), ConfigError, "drop_last is True or False; got 1"),
    (
        lambda: PipelineConfig.from_dict({"datasets": [{"data_files": "a", "nam": "b"}]}),
        ConfigError,
        "DatasetConfig: nam is not known; did you mean 'name'",
    ),
    (
        lambda: PipelineConfig.from_dict({"datasets": [{"name": "b"}]}),
        ConfigError,
        "DatasetConfig: data_files is missing. Known: data_files, name",
    ),
    (
        lambda: PipelineConfig.from_dict({"datasets": [{"data_files": "a"}], "mix": [1]}),
        ConfigError,
        r"PipelineConfig: mix is a MixStageConfig; got \[1\]",
    ),
    (
        lambda: MixStageConfig(stop_strategy="restat"),
        ConfigError,
        "got 'restat'; did you mean 'restart'",
    ),
    (lambda: DatasetMixture(informs=[]), ConfigError, "no informs"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_configs(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("streaming", [True, False])
def test_damaged_files_that_another_library_reads(files, monkeypatch, tmp_path, streaming):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (files / "rows.csv").write_bytes(b"text,id\na,0\n\xff\xff,1\n")
    config = PipelineConfig(
        datasets=[DatasetConfig(data_files=files / "rows.csv", name="rows")], streaming=streaming
    )
    told = "rows: the Hugging Face" if streaming else r"dataset 'rows': .*rows\.csv cannot be read"
    with pytest.raises(DatasetError, match=f"{told}.*UnicodeDecodeError: 'utf-8' codec"):
        list(Pipeline.from_config(config).source().build())


def test_types_of_files(files, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (files / "rows.csv").write_text("text,id\na,0\nb,1\n")
    (files / "lines.txt").write_text("one\ntwo\n")
    for streaming in (True, False):
        for name, expected in {
            "rows.csv": [{"text": "a", "id": 0}, {"text": "b", "id": 1}],
            "lines.txt": [{"text": "one"}, {"text": "two"}],
        }.items():
            config = PipelineConfig(
                datasets=[DatasetConfig(data_files=files / name)], streaming=streaming
            )
            dataset = Pipeline.from_config(config).source().build()
            assert list(dataset) == expected
            assert dataset.indexed is not streaming
    for given, error, message in (
        ({"data_files": "x.dat"}, ConfigError, r"'x\.dat' is not known.* Give type"),
        ({"data_files": "x.dat", "type": "parket"}, ConfigError, "did you mean 'parquet'"),
        ({"data_files": f"{files}/none*.jsonl"}, DatasetNotFoundError, "none"),
    ):
        with pytest.raises(error, match=message):
            Pipeline.from_config({"datasets": [given]}).source()


def mixture(files, **options):
    return DatasetMixture(
        informs=[
            TextDatasetInform(
                type="parquet", data_files=f"{files}/code/*.parquet", content_field="text"
            ),
            TextDatasetInform(
                type="json",
                data_files=f"{files}/text/*.jsonl",
                content_field="text",
                additional_fields=["id"],
            ),
        ],
        mixture_block_size=100,
        **options,
    )


def is_code(row):
    return row["text"].startswith(("code", "more"))


def test_the_older_mixture_streams(files):
    stream = build_dataset(mixture(files, mixture_weights={"ds1": 0.7, "ds2": 0.3}))
    assert isinstance(stream, datasets.IterableDataset)
    rows = list(stream.take(300))
    assert [sum(map(is_code, rows[k : k + 100])) for k in (0, 100, 200)] == [70] * 3
    assert {tuple(row) for row in rows} == {("text",), ("text", "id")}


def test_the_older_mixture_with_random_access(files):
    whole = build_dataset(mixture(files, streaming=False, stop_strategy="all_exhausted"))
    assert len(whole) == 90
    assert Counter(map(is_code, whole)) == {True: 50, False: 40}


def test_the_older_mixture_without_blocks_keeps_the_weights(files):
    drawn = build_dataset(
        mixture(
            files, streaming=False, block_mixture=False, mixture_weights={"ds1": 0.2, "ds2": 0.8}
        )
    )
    assert sum(map(is_code, drawn.at(range(5000)))) == pytest.approx(1000, abs=120)
    turns = build_dataset(mixture(files, streaming=False, block_mixture=False))
    assert [is_code(row) for row in turns.at(range(6))] == [True, False] * 3


def test_weights_of_the_older_mixture_are_matched_by_name(files):
    with pytest.raises(WeightError, match=r"missing 'ds2'; unknown 'text'"):
        build_dataset(mixture(files, mixture_weights={"ds1": 0.7, "text": 0.3}))
