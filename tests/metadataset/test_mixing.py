"""Mixing options in metadataset files: what is read is what the file says."""

import logging
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from energize import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_train_dataset,
)
from energize.core.samples import CaptioningSample, ImageClassificationSample
from energize.core.stream import INFINITE
from energize.errors import ConfigError, MetadatasetError, WeightError
from energize.metadataset import leaves_with_weights, resolve
from energize.testing import check_laws
from tests.support.metadatasets import beside_folders, written

A, B, C = (f"../demo-data/{name}" for name in ("captions_a", "captions_b", "classification"))
A_SIZE, B_SIZE, C_SIZE = 60, 30, 30
ENERGON = "megatron.energon"


class Keys(DefaultTaskEncoder):
    """Batches of any samples: their keys, without decoding an image."""

    decoder = None

    def batch(self, samples):
        return [sample.__key__ for sample in samples]


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    return beside_folders(tmp_path_factory.mktemp("mixing"))


@pytest.fixture
def mix(examples, request):
    """A file with a given node, beside the examples."""
    name = re.sub(r"\W+", "-", request.node.name)[:60]
    return lambda **node: written(examples / f"test-{name}.yaml", node)


def build(file, split="train", batch_size=None, **options):
    return get_train_dataset(file, split_part=split, batch_size=batch_size, **options)


def drawn(dataset, count, start=0):
    """How often each folder comes among `count` items from `start` on, by refs."""
    names = Counter()
    for number in dataset.refs(np.arange(start, start + count)).source:
        names[dataset.sources[number].name] += 1
    return dict(names)


def seen(dataset, epoch=0):
    """How often each sample of each folder comes in an epoch."""
    refs = dataset.refs(np.arange(epoch * dataset.size, (epoch + 1) * dataset.size))
    counts = {source.name: np.zeros(source.count, dtype=int) for source in dataset.sources}
    for number, index in zip(refs.source, refs.index, strict=True):
        counts[dataset.sources[number].name][index] += 1
    return counts


def asked(file, split="train", **options):
    node = resolve(file, split)
    return {leaf.path.name: float(share) for leaf, share in leaves_with_weights(node, **options)}


def fault(kind, file, **options):
    with pytest.raises(kind) as caught:
        build(file, **options)
    return str(caught.value)


def test_schemes(examples):
    file = examples / "schemes.yaml"
    shares = {"classification": 0.75, "captions_a": 0.1875, "captions_b": 0.0625}
    assert asked(file) == shares
    exact = build(file)
    for count in (7, 16, 100, 333):
        found = drawn(exact, count)
        for name, share in shares.items():
            assert abs(found.get(name, 0) - share * count) <= 1
    assert drawn(build(file, "fine"), 100, 300) == {"captions_a": 25, "captions_b": 75}


def test_a_schedule(examples):
    dataset = build(examples / "scheduled.yaml", batch_size=16)
    assert asked(examples / "scheduled.yaml") == {"captions_a": 0.8, "captions_b": 0.2}
    assert asked(examples / "scheduled.yaml", step=5000)["captions_a"] == pytest.approx(0.65)
    a, b = dataset.consumed(5_000)
    assert a + b == 80_000
    assert abs(a - 80_000 * (0.8 + 0.65) / 2) <= 2
    a, b = dataset.consumed(30_000) - dataset.consumed(20_000)  # after the last point
    assert a + b == 160_000
    assert abs(a - 80_000) <= 2


def test_stop_all_exhausted(examples):
    dataset = build(examples / "stops.yaml")
    assert dataset.size == A_SIZE + 3 * B_SIZE
    for epoch in range(2):
        counts = seen(dataset, epoch)
        assert set(counts["captions_a"]) == {1}
        assert set(counts["captions_b"]) == {3}
    captions = [sample.caption for sample in dataset]
    assert len(captions) == dataset.size
    assert len(set(captions)) == A_SIZE + B_SIZE


def test_quotas(examples):
    dataset = build(examples / "quotas.yaml")
    assert dataset.size == 2 * A_SIZE + B_SIZE // 2 + 10
    first, second = seen(dataset, 0), seen(dataset, 1)
    for counts in (first, second):
        assert set(counts["captions_a"]) == {2}
        assert counts["captions_b"].sum() == B_SIZE // 2
        assert counts["classification"].sum() == 10
    assert set(first["captions_b"] + second["captions_b"]) == {1}  # the other half
    assert asked(examples / "quotas.yaml")["classification"] == pytest.approx(10 / 145)


def test_proportions_of_a_sized_epoch(examples):
    file = examples / "quotas.yaml"
    dataset = build(file, "sized", batch_size=50)
    assert dataset.size == 2000 / 50
    assert dataset.consumed(dataset.size).tolist() == [1400, 600]
    assert asked(file, "sized") == {"captions_a": 0.7, "captions_b": 0.3}
    samples = build(file, "sized")
    assert (seen(samples, 0)["captions_b"] == seen(samples, 1)["captions_b"]).all()  # fixed


@pytest.mark.parametrize("batch_size", [4, 8, 16])
def test_composition(examples, mix, batch_size):
    dataset = build(examples / "composition.yaml", batch_size=batch_size)
    assert dataset.size == 1600 / batch_size
    per_global_batch = 16 // batch_size
    for k in range(20):
        assert drawn(dataset, per_global_batch, k * per_global_batch) == {
            "captions_a": 12,
            "captions_b": 4,
        }
    batch = dataset[0]
    assert len(batch.caption) == batch_size
    referred = mix(path="composition.yaml")
    assert build(referred, batch_size=batch_size).describe() == dataset.describe()


@pytest.mark.parametrize("written_there", [None, False, True])
@pytest.mark.parametrize("batch_drop_last", [False, True])
def test_the_remainder_of_a_composed_epoch(mix, written_there, batch_drop_last):
    """10 samples in global batches of 4, of 2 on each device: what the file says wins."""
    table = {"method": "random", "global_batch_size": 4}
    if written_there is not None:
        table["drop_last"] = written_there
    file = mix(epoch_size=10, composition=table, blend=[{"path": A}])
    dropped = batch_drop_last if written_there is None else written_there
    dataset = build(file, batch_size=2, batch_drop_last=batch_drop_last)
    assert dataset.size == (4 if dropped else 6)
    assert len(dataset.refs(np.arange(dataset.size))) == (8 if dropped else 10)
    if dropped:
        assert build(file, batch_size=1, batch_drop_last=batch_drop_last).size == 8
    else:
        told = fault(ConfigError, file, batch_size=1, batch_drop_last=batch_drop_last)
        assert re.search(r"leaves 2 for its last .* 4 devices(.|\n)*\(splits\.train\.blend\)", told)


def test_temperature_and_limits(examples):
    file = examples / "temperature.yaml"
    shares = {"captions_a": 0.6, "captions_b": 0.25, "classification": 0.15}
    assert asked(file) == pytest.approx(shares)
    found = drawn(build(file), 1000)
    assert found == {name: round(share * 1000) for name, share in shares.items()}


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [("stops", None), ("quotas", 7), ("composition", 16), ("scheduled", 5), ("schemes", 6)],
)
def test_laws(examples, name, batch_size):
    dataset = build(examples / f"{name}.yaml", batch_size=batch_size, task_encoder=Keys())
    check_laws(dataset._with_worker_config(None), epochs=1, items=20)


def test_a_seed_gives_another_order_of_the_same_quotas(examples):
    one, other = (
        build(examples / "quotas.yaml", worker_config=WorkerConfig(seed_offset=seed))
        for seed in (1, 2)
    )
    positions = np.arange(one.size)
    assert one.refs(positions).index.tolist() != other.refs(positions).index.tolist()
    assert drawn(one, one.size) == drawn(other, other.size)


def test_scheme_and_stop_hold_for_the_blends_inside(mix):
    inner = {"weight": 1, "blend": [{"path": B, "weight": 1}, {"path": C, "weight": 1}]}
    file = mix(stop="all_exhausted", scheme="exact", blend=[{"path": A, "weight": 1}, inner])
    node = resolve(file, "train")
    assert node.children[1][0].options["scheme"] == "exact"
    dataset = build(file)
    assert all(set(counts) == {1} for counts in seen(dataset).values())
    own = mix(scheme="exact", blend=[{"path": A, "weight": 1}, inner | {"scheme": "random"}])
    assert resolve(own, "train").children[1][0].options["scheme"] == "random"


def test_temperature_is_of_one_level(mix):
    inner = {"weight": 1, "blend": [{"path": B, "weight": 9}, {"path": C, "weight": 1}]}
    file = mix(temperature=0.5, blend=[{"path": A, "weight": 9}, inner])
    shares = {"captions_a": 0.75, "captions_b": 0.225, "classification": 0.025}
    assert asked(file) == pytest.approx(shares)
    found = drawn(build(file), 1000)
    assert found == {"captions_a": 750, "captions_b": 225, "classification": 25}


def test_an_equal_share_for_a_blend_is_not_one_for_each_of_its_parts(mix):
    inner = {"blend": [{"path": B}, {"path": C}]}
    file = mix(scheme="round_robin", blend=[{"path": A}, inner])
    assert asked(file) == {"captions_a": 0.5, "captions_b": 0.25, "classification": 0.25}
    assert drawn(build(file), 4000) == {
        "captions_a": 2000,
        "captions_b": 1000,
        "classification": 1000,
    }


def test_quotas_inside_a_weighted_blend(mix):
    inner = {"weight": 1, "blend": [{"path": B, "repeat": 2}, {"path": C, "choose": 20}]}
    file = mix(blend=[{"path": A, "weight": 1}, inner])
    assert asked(file) == {"captions_a": 0.5, "captions_b": 0.375, "classification": 0.125}
    dataset = build(file)
    assert dataset.size == INFINITE
    found = drawn(dataset, 4000)  # in which the blend inside has 25 epochs
    assert found == {"captions_a": 2000, "captions_b": 1500, "classification": 500}


def test_numbers_of_samples_may_be_texts(mix):
    entries = [{"path": A, "choose": "0.02k"}, {"path": B, "choose": 20}]
    assert asked(mix(blend=entries)) == {"captions_a": 0.5, "captions_b": 0.5}


def encoders():
    return {
        CaptioningSample: Keys(),
        ImageClassificationSample: Keys(),
    }


def test_batches_of_several_encoders_are_mixed_as_the_blend_says(mix):
    file = mix(
        scheme="exact",
        blend=[
            {"path": C, "weight": 1},
            {"weight": 3, "blend": [{"path": A, "weight": 1}, {"path": B, "weight": 1}]},
        ],
    )
    dataset = build(file, batch_size=4, task_encoder=encoders())
    kinds = [drawn(dataset, 1, k) for k in range(40)]
    assert sum("classification" in kind for kind in kinds) == 10
    assert all(sum(kind.values()) == 4 for kind in kinds)
    captions = [kind for kind in kinds if "classification" not in kind]
    assert all(kind == {"captions_a": 2, "captions_b": 2} for kind in captions)


def test_plain_blends_share_batches_across_levels(mix):
    inner = {"weight": 1, "blend": [{"path": C}, {"path": A}]}
    file = mix(blend=[{"path": B, "weight": 1}, inner])
    dataset = build(file, batch_size=12, task_encoder=encoders())
    kinds = [drawn(dataset, 1, k) for k in range(1000)]
    assert sum("classification" in kind for kind in kinds) == 250
    together = [kind for kind in kinds if "captions_a" in kind]
    assert sum("captions_b" in kind for kind in together) > 0.9 * len(together)


def test_batches_of_a_blend_that_ends(mix):
    file = mix(stop="all_exhausted", blend=[{"path": C}, {"path": A}])
    dataset = build(file, batch_size=7, task_encoder=encoders())
    assert dataset.size == -(-C_SIZE // 7) + -(-A_SIZE // 7)
    assert all(set(counts) == {1} for counts in seen(dataset).values())


def test_repeat_is_for_folders_and_blends_that_end(mix):
    ending = mix(stop="first_exhausted", blend=[{"path": A}, {"path": B}])
    assert build(ending, repeat=False).size == build(ending).size < INFINITE
    assert "never ends" in fault(ConfigError, mix(blend=[{"path": A}, {"path": B}]), repeat=False)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ({"scheme": "blok", "blend": [{"path": A}]}, r"scheme\): .*did you mean 'block'\?"),
        ({"block_sze": 4, "blend": [{"path": A}]}, r"block_sze\): .*did you mean 'block_size'\?"),
        ({"stop": "never", "blend": [{"path": A}]}, r"stop\): expected restart, .*got 'never'"),
        ({"temperature": -1, "blend": [{"path": A}]}, r"temperature\): expected a finite number"),
        ({"block_size": 0, "blend": [{"path": A}]}, r"block_size\): expected a whole number, 1"),
        ({"scheme": "exact", "block_size": 9, "blend": [{"path": A}]}, "block_size is for scheme"),
        ({"path": A, "scheme": "exact"}, r"scheme\): the key 'scheme' has no place here"),
        ({"blend": [{"path": A, "max_epochs": 0}]}, r"blend\[0\].max_epochs\): .*1 or more.*got 0"),
        ({"blend": [{"path": A, "min_share": 2}]}, r"min_share\): expected a number from 0 to 1"),
        ({"blend": [{"path": A, "repeat": 1, "choose": 3}]}, r"blend\[0\]\): a stream has one quo"),
        ({"blend": [{"path": A, "choose": 1.5}]}, r"choose\): choose counts samples, as .10k. or"),
        ({"blend": [{"path": A, "choose": -1}]}, r"choose\): .* whole number, 0 or more; got -1"),
        (
            {"stop": "restart", "blend": [{"path": A, "repeat": 1}]},
            r"train\): a blend is mixed by weights or by quotas, and 'stop' is .*'repeat' of entry",
        ),
        (
            {"blend": [{"path": A, "weight": 1}, {"path": B, "repeat": 1}]},
            "'weight' of entry \\[0\\] is for the one, 'repeat' of entry \\[1\\] for the other",
        ),
        ({"epoch_size": "10x", "blend": [{"path": A}]}, r"epoch_size\): .*got '10x'"),
        ({"composition": 4, "blend": [{"path": A}]}, r"composition\): expected a mapping with 'm"),
        ({"composition": {}, "blend": [{"path": A}]}, "the key 'method' is missing"),
        (
            {"blend": [{"blend": [{"path": A}], "composition": {"method": "random"}}]},
            r"blend\[0\].composition\): the key 'composition' has no place here",
        ),
    ],
)
def test_what_bad_options_get(mix, node, told):
    text = fault(MetadatasetError, mix(**node))
    assert re.search(r"\.yaml:\d+ \(splits\.train", text)
    assert re.search(told, text)


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        ({"points": {"0": 1}, "interpolation": "liner"}, "did you mean 'linear'"),
        ({"points": {"soon": 1}}, r"points\): a step is a whole number, 0 or more; got 'soon'"),
        ({"points": {"10": 1, "5": 2}}, "points are in order of their steps"),
        ({"points": {"5": 1, "0_5": 2}}, r"in order of their steps.* got \[5, 5\]"),
        ({"points": {"0": True}}, "the weight at step 0 is a number; got true"),
        ({"points": {"0": -1}}, "not negative, got -1"),
        ({"points": {}}, "expected a mapping of steps"),
        ({"points": [[0, 1]]}, "expected a mapping of steps"),
        ({"point": {"0": 1}}, "unknown key 'point'; did you mean 'points'"),
        ({"interpolation": "linear"}, "the key 'points' is missing"),
        ({"points": {"0": 1}, "slots_per_step": 0}, "slots_per_step"),
        (None, "or a schedule"),
    ],
)
def test_what_a_bad_schedule_gets(mix, weight, told):
    text = fault(MetadatasetError, mix(blend=[{"path": A, "weight": weight}]))
    assert "(splits.train.blend[0].weight" in text
    assert re.search(told, text)


@pytest.mark.parametrize("key", ["scheme", "stop", "temperature", "epoch_size", "composition"])
def test_keys_of_a_blend_are_unknown_in_files_of_energon(examples, key):
    node = {key: "exact", "blend": [{"path": A}]}
    text = fault(MetadatasetError, written(examples / f"energon-{key}.yaml", node, ENERGON))
    assert f"unknown key {key!r} in a megatron.energon file; it needs `__module__: energ" in text


def test_keys_of_an_entry_are_unknown_in_files_of_energon(examples):
    node = {"blend": [{"path": A, "repeat": 2}, {"path": B, "weight": {"points": {"0": 1}}}]}
    text = fault(MetadatasetError, written(examples / "energon-entry.yaml", node, ENERGON))
    assert "blend[0].repeat): unknown key 'repeat' in a megatron.energon file" in text
    assert "blend[1].weight): expected a finite number, 0 or more; got {'points'" in text


GLIDE = {"interpolation": "linear", "points": {"0": 1, "9": 2}}
ENDLESS = {"blend": [{"path": A}, {"path": B}]}


@pytest.mark.parametrize(
    ("node", "kind", "told"),
    [
        ({"blend": [{"path": A, "min_share": 0.6}, {"path": B, "min_share": 0.6}]}, ConfigError,
         "floors of the 2 datasets sum to 1.2"),
        ({"blend": [{"path": A, "proportion": 1}, {"path": B, "repeat": 1}]}, WeightError,
         "proportions are given to all streams or to none"),
        ({"epoch_size": 9, "blend": [{"path": A, "repeat": 1}]}, ConfigError, "contradict"),
        ({"scheme": "uniform", "blend": [{"path": A, "weight": GLIDE}, {"path": B, "weight": 1}]},
         ConfigError, "takes no notice of weights"),
        ({"blend": [{"path": A, "weight": {"points": {"0": 1, "5": 0}}}]}, WeightError,
         "weights are 0 at slot 5"),
        ({"blend": [{"path": C}, ENDLESS | {"max_epochs": 2}]}, ConfigError, "has no epochs"),
        ({"blend": [{"path": C, "repeat": 1}, ENDLESS]}, ConfigError, "never ends"),
        ({"blend": [{"path": A, "shuffle_over_epochs_multiplier": 2, "repeat": 1}]}, ConfigError,
         "a quota does"),
        ({"blend": [{"path": "composition.yaml"}, {"path": C}]}, ConfigError, "the outermost one"),
        ({"composition": {"method": "per_stream", "global_batch_size": 4},
          "blend": [{"path": A, "proportion": 1}, {"path": B, "proportion": 99}]}, ConfigError,
         "gives 1 samples to an epoch and cannot fill one batch of 4"),
    ],
)  # fmt: skip
def test_errors_of_the_engine_say_where_they_were_asked_for(mix, node, kind, told):
    text = fault(kind, mix(**node), batch_size=4)
    assert told in text
    assert re.search(r"\n  asked for at \S+\.yaml:\d+ \(splits\.train\.blend", text)


def test_quotas_decide_orders_and_count_samples(mix, caplog):
    file = mix(blend=[{"path": A, "repeat": 2}, {"path": C, "repeat": 2}])
    assert "a quota does" in fault(ConfigError, file, shuffle_over_epochs_multiplier=-1)
    caplog.set_level(logging.INFO, "energize")
    assert build(file, shuffle_buffer_size=10) == build(file)
    assert "shuffle_buffer_size=10 says in which order" in caplog.text
    several = fault(ConfigError, file, batch_size=4, task_encoder=encoders())
    assert "several task encoders" in several
    in_order = seen(build(file, shuffle_over_epochs_multiplier=None))
    assert all(set(counts) == {2} for counts in in_order.values())


def test_shares_that_no_file_tells(mix):
    ending = {"stop": "all_exhausted", "blend": [{"path": A}, {"path": B}]}
    file = mix(blend=[{"path": C, "repeat": 1}, ending])
    assert build(file).size == A_SIZE + B_SIZE + C_SIZE
    with pytest.raises(ConfigError, match="not known from its file"):
        asked(file)
    proportions = mix(blend=[{"path": C, "proportion": 1}, ending | {"proportion": 2}])
    shares = [share for _, share in leaves_with_weights(resolve(proportions, "train"))]
    assert shares == [Fraction(1, 3)] * 3
