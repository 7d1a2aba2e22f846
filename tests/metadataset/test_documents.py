"""Metadataset files as text: the grammar, and what a reader is told when it is not
kept."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energize import (
    EnergizeError,
    MetadatasetError,
    WebdatasetSource,
    get_train_dataset,
)
from energize.core import limits
from energize.energon import load_dataset
from energize.metadataset import read_metadataset, resolve
from energize.metadataset.located import expanded
from tests.support.tables import row

HEAD = "__module__: energize\n__class__: MetadatasetV2\n"


def splits(file, text, head=HEAD):
    file.write_text(head + text)
    return read_metadataset(file).splits


def message(file, text, head=HEAD, kind=MetadatasetError):
    with pytest.raises(kind) as caught:
        splits(file, text, head)
    return str(caught.value)


def test_anchors_aliases_and_merges(tmp_path):
    text = "splits:\n  a: &b\n    path: x\n    subflavors: {x: 1}\n  c: *b\n  d: {<<: *b, path: y}"
    found = splits(tmp_path / "mix.yaml", text)
    assert found["c"] == found["a"]
    assert (found["d"].path, found["d"].subflavors) == ("y", {"x": 1})
    told = message(tmp_path / "mix.yaml", f"{text}\n  e: {{pth: 1, <<: *b, pth: 2}}")
    assert (
        f"{tmp_path}/mix.yaml:9 (splits.e.pth): the key 'pth' is given twice, first in"
        in told
    )


# Variables


LABELS = """
  a: ${EMPTY:-b}
  c: $${X} costs $5
  n: ${UNSET:-7}
  t: '${N}'
  e: ${UNSET:-}
"""
CANNOT_BE = {
    "${UNSET}/x": "needs the environment variable UNSET",
    "x${ROOT": "without a variable",
}
CANNOT_BE |= dict.fromkeys(
    ["${}", "${a b}", "${A:-${B}}"], "'${' without a variable name"
)


def test_variables_are_put_in(mix, tmp_path, monkeypatch):
    monkeypatch.setenv("N", "2.5")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNSET", raising=False)
    node = read_metadataset(mix(f"path: x/${{UNSET:-y}}\nsubflavors:{LABELS}")).splits[
        "train"
    ]
    told = {"a": "b", "c": "${X} costs $5", "n": 7, "t": "2.5", "e": None}
    assert (node.path, node.subflavors) == ("x/y", told)
    node = read_metadataset(mix("blend:\n- path: x\n  weight: ${N}")).splits["train"]
    assert node.blend[0].weight == 2.5
    for text, words in CANNOT_BE.items():
        with pytest.raises(MetadatasetError) as caught:
            read_metadataset(mix(f"path: captions\nsplit_part: '{text}'"))
        assert str(caught.value).startswith(
            f"{tmp_path}/mix.yaml:6 (splits.train.split_part): "
        )
        assert words in str(caught.value)
    splits_given = {"train": {"path": "${UNSET}"}}
    given_here = {
        "__module__": "energize",
        "__class__": "MetadatasetV2",
        "splits": splits_given,
    }
    with pytest.raises(
        MetadatasetError, match=r"<a mapping> \(splits.train.path\): .*UNSET"
    ):
        load_dataset(given_here)
    assert expanded("${A}", {"A": "${B} $${C}"}) == "${B} $${C}"


# Faults

JOINER = "joiner: {__module__: m, __class__: C}"
STAGE, TWO = "name: one, start_step: 0, path: a", "name: two, start_step: 5, path: a"
WRONG = """
{path: x, blend: [{path: y}]} | .path | 'blend' and 'path' are given
{blend: []} | .blend | at least 1 item
{concat: []} | .concat | at least 1 item
{blend: {path: x}} | .blend | expected a list
{subflavors: {}} | .path | the key 'path' is missing
{pth: x} | .pth | did you mean 'path'
{blnd: [{path: x}]} | .blnd | did you mean 'blend'
{path: x, weight: 1} | .weight | Set it in an entry of 'blend'
{blend: [{path: x}], subflavors: {}} | .subflavors | has no place here
data/x | | expected a dataset (a mapping with 'path')
[{path: x}] | | expected a dataset
{path: 7} | .path | expected text: a folder of samples
{path: ''} | .path | expected text
{path: x, subflavors: [1]} | .subflavors | expected a mapping, got [1]
{path: x, dataset_config: [1]} | .dataset_config | expected text
{path: x, aux: {a b: y}} | .aux | expected a mapping of names
{path: x, aux: {a: 3}} | .aux | expected a mapping of names
{blend: [{path: x}], aux: {a: b}} | .aux | has no place here
!!python/object/apply:os.system ['touch pwned'] | | the tag '!!python/object/apply:
{path: !own x} | .path | the tag '!own' is not allowed
{path: !!int x} | .path | 'x' is not a value of its tag, '!!int'
&n {blend: [*n]} | .blend[0] | an alias to a list or mapping from inside it
{<<: 3, path: x} | ['<<'] | '<<' merges other mappings only
{<<: &m {<<: *m}, path: x} | ['<<'] | '<<' merges other mappings only
{[1]: 2, path: x} | | a key must be text
{blend: [{blend: [{path: x, weight: y}]}]} | .blend[0].blend[0].weight | got 'y'
{blend: [{path: x, weight: 1}, {path: y}]} | | entries [1] have no weight
{blend: [{path: x, weight: {points: {}}}]} | .blend[0].weight.points | at least 1
{blend: [{path: x, weight: {points: [1]}}]} | .blend[0].weight.points | a mapping
{blend: [{path: x, weight: {point: {0: 1}}}]} | .blend[0].weight.point | did you mean
{blend: [{path: x, weight: {points: {x: 1}}}]} | .blend[0].weight.points.x | a step
{blend: [{path: x, weight: {points: {0: -1}}}]} | .blend[0].weight.points.0 | got -1
{blend: [{path: x, weight: {points: {0: true}}}]} | .blend[0].weight.points.0 | got
{blend: [{path: x, weight: {points: {5: 1, 5: 2}}}]} | .blend[0].weight.points.5 | twice
{blend: [{path: x, weight: {points: {5: 1, 4: 2}}}]} | .blend[0].weight | order
{blend: [{path: x, weight: {interpolation: liner}}]} | .blend[0].weight.interpolation | 'linear'
{scheme: blok, blend: [{path: a}]} | .scheme | did you mean 'block'
{stop: never, blend: [{path: a}]} | .stop | 'all_exhausted', got 'never'
{temperature: 0, blend: [{path: a}]} | .temperature | a finite number above 0
{exponent: -1, blend: [{path: a}]} | .exponent | expected a finite number
{weights: sise, blend: [{path: a}]} | .weights | did you mean 'size'
{weights: size, blend: [{path: a, weight: 2}]} | | 'weight' of entry [0] has no effect
{weights: size, blend: [{path: a, repeat: 2}]} | | 'repeat' of entry [0] has no effect
{weights: {a: 1}, blend: [{path: a}]} | | need the property 'by'
{block_size: 0, blend: [{path: a}]} | .block_size | got 0
{scheme: exact, block_size: 9, blend: [{path: a}]} | | block_size needs scheme: block
{path: a, scheme: exact} | .scheme | has no place here
{blend: [{path: a, max_epochs: 0}]} | .blend[0].max_epochs | got 0
{blend: [{path: a, min_share: 2}]} | .blend[0].min_share | a number from 0 to 1
{blend: [{path: a, repeat: 1, choose: 3}]} | .blend[0] | a stream must have exactly one of
{blend: [{path: a, choose: 1.5}]} | .blend[0].choose | expected an integer
{blend: [{path: a, choose: -1}]} | .blend[0].choose | got -1
{stop: restart, blend: [{path: a, repeat: 1}]} | | weights or quotas, but 'stop'
{blend: [{path: a, weight: 1}, {path: b, repeat: 1}]} | | 'repeat' of entry [1] is for quotas
{epoch_size: 10x, blend: [{path: a}]} | .epoch_size | got '10x'
{epoch_size: 0, blend: [{path: a}]} | .epoch_size | got 0
{composition: 4, blend: [{path: a}]} | .composition | expected a mapping
{composition: {}, blend: [{path: a}]} | .composition.method | is missing
{blend: [{blend: [{path: a}], composition: {}}]} | .blend[0].composition | the outermost
{unit: 3, blend: [{path: a}]} | .unit | expected a column of all folders
{unit: {fields: x}, blend: [{path: a}]} | .unit | expected a column of all folders
{unit: x, epoch_size: 5, blend: [{path: a}]} | | either weights or quotas
{units: x, blend: [{path: a}]} | .units | did you mean 'unit'
{blend: [{path: a, target_weight: 1}, {path: b}]} | | entries [1] have no target_weight
{blend: [{path: a, target_weight: 0}]} | | all target weights are 0
{blend: [{path: a, target_weight: 1}], max_correction: 0.5} | .max_correction | 1 or more
{blend: [{path: a, loss_weight: 1}]} | .blend[0].loss_weight | Use 'sample_weight'
{blend_epochized: [{path: a, repetitions: -1}]} | .blend_epochized[0].repetitions | a finite
{blend_epochized: [{path: a, weight: 2}]} | .blend_epochized[0].weight | an entry of 'ble
{blend: [{path: a, repetitions: 2}]} | .blend[0].repetitions | 'blend_epochized'
{blend_epochized: [{path: a}], scheme: exact} | .scheme | has no place here
{join: [{path: a}], JOINER} | .join | at least 2 items
{join: [{path: a}, {path: b}]} | .joiner | the key 'joiner' is missing
{join: [{path: a, nonmatch: skip}, {path: b}], JOINER} | | nonmatch has no effect on the first
{join: [{path: a}, {path: b, nonmatch: drop}], JOINER} | .join[1].nonmatch | got 'drop'
{join: [{path: a}, {path: b, aux: {x: c}}], JOINER} | .join[1].aux | has no place here
{join: [{path: a}, {path: b, sample_weight: 2}], JOINER} | .join[1].sample_weight | concat or join
{join: [{path: a}, {blend: [{path: b}]}], JOINER} | .join[1].blend | has no place
{path: a, nonmatch: skip} | .nonmatch | Set it in an entry of 'join'
{path: a, joiner: x} | .joiner | Set it in a 'join'
{path: a, by: q} | | 'by' needs 'weights'
{path: a, weights: {x: 1}} | | 'weights' and 'other' need the property 'by'
{path: a, other: 1} | | 'weights' and 'other' need the property 'by'
{path: a, by: q, weights: 3} | .weights | expected a mapping, got 3
{path: a, by: q, weights: {}} | .weights | at least 1
{path: a, by: q, weights: {x: -1}} | .weights.x | expected a finite number
{path: a, by: q, weights: {x: {point: {0: 1}}}} | .weights.x.point | did you mean 'points
{path: a, by: q, weights: {x: 0}} | | all are 0
{path: a, by: q, wights: {x: 1}} | .wights | did you mean 'weights'
{path: a, by: subflavor.x, weights: {x: 1}} | | write subflavors.x, with an s
{by: q, weights: {x: 1}, blend: [{path: a, weight: 2}]} | | so 'weight' of entry [0] has no effect
{by: q, weights: {x: 1}, blend: [{path: a, repeat: 2}]} | | so 'repeat' of entry [0] has no effect
{by: q, weights: {x: 1}, concat: [{path: a}]} | .by | has no place here
{path: a, subset: {range: [1, 50%]}} | .subset | two numbers or two percentages
{path: a, subset: {range: [10%, 5]}} | .subset | two numbers or two percentages
{path: a, subset: {range: [end, end]}} | .subset | two numbers or two percentages
{path: a, subset: {range: [5, 1]}} | .subset | must end after its start
{path: a, subset: {range: [50%, 10%]}} | .subset | must end after its start
{path: a, subset: {range: [0%, 101%]}} | .subset | at most at 100%
{path: a, subset: 10%} | .subset | expected a mapping
{path: a, packing: {capacity: 16}} | .packing.length | is missing
{path: a, align: {colums: ids}} | .align.colums | did you mean 'columns'
{path: a, packing: {length: ids, capacity: 1, window: 9, method: best_fit}} | .packing | Remove one
{path: a, packing: {length: ids, capacity: 0}} | .packing.capacity | 1 or more
{path: a, packing: {length: ids, capacity: [1, 2]}} | .packing | 1 lengths and 2 capaci
{path: a, packing: {length: ids, capacity: 1, method: best}} | .packing.method | best_fit
{path: a, packing: {length: ids, capacity: 1, bufer_size: 9}} | .packing.bufer_size | did
{path: a, level: x} | .level | expected a mapping
{path: a, level: {cost: x}} | .level | global_batch_size is missing
{path: a, level: {global_batch_size: 8}} | .level | set either 'cost'
{path: a, level: {cost: x, field: y, global_batch_size: 8}} | .level | set either 'cost'
{path: a, level: {field: x, global_batch_size: 8}} | .level | does not apply to this cost
{path: a, level: {cost: x, global_batch_size: 8, buffer_size: 9}} | .level | does not apply
{path: a, level: {cost: x, global_batch_size: 0}} | .level.global_batch_size | got 0
{path: a, level: {cost: [], global_batch_size: 8}} | .level.cost | at least 1 item
{path: a, level: {cost: {}, global_batch_size: 8}} | .level.cost | at least 1 item
{path: a, level: {cost: 3, global_batch_size: 8}} | .level.cost | got 3
{path: a, level: {cost: [x, x], global_batch_size: 8}} | .level | 'x' is listed twice
{path: a, level: {cost: {x: 0}, global_batch_size: 8}} | .level.cost.x | above 0
{path: a, level: {cost: {x: -1.5}, global_batch_size: 8}} | .level.cost.x | above 0
{path: a, level: {cost: {x: y}, global_batch_size: 8}} | .level.cost.x | above 0
{path: a, level: {cost: [{x: 1}], global_batch_size: 8}} | .level.cost[0] | expected
{path: a, align: 3} | .align | got 3
{path: a, align: x} | .align | global_batch_size is missing
{path: a, align: {columns: [], global_batch_size: 8}} | .align.columns | at least 1 item
{path: a, align: {columns: [x, x], global_batch_size: 8}} | .align | different names
{path: a, align: {x: sometimes}} | .align.x | 'together' or 'always'
{path: a, align: {x: always, ranks: 8}} | .align.ranks | options beside 'columns'
{path: a, align: {columns: x, rank: 8}} | .align.rank | did you mean 'ranks'
{path: a, align: {columns: x, ranks: 0}} | .align.ranks | got 0
{path: a, align: {columns: x, global_batch_size: 8}, level: {cost: x, global_batch_size: 9}} | .align | Use the same number
{path: a, align: x, level: {field: x}} | .align | an ItemCost levels a stream
{align: x, path: a, stages: [{STAGE}]} | .align | has no place here
{stages: []} | .stages | at least 1 item
{stages: 3} | .stages | expected a list
{stages: [3]} | .stages[0] | expected a stage
{stages: [{name: one, start_step: 0}]} | .stages[0].path | the key 'path' is missing
{stages: [{start_step: 0, path: a}]} | .stages[0].name | the key 'name' is missing
{stages: [{name: ' ', start_step: 0, path: a}]} | .stages[0].name | not blank
{stages: [{name: one, strat_step: 0, path: a}]} | .stages[0].strat_step | did you mean
{stgaes: [{STAGE}]} | .stgaes | did you mean 'stages'
{steps: 10_000, stages: [{STAGE}]} | .steps | got '10_000'
{steps: 0, stages: [{STAGE}]} | .steps | got 0
{stages: [{STAGE, scheme: exact}]} | .stages[0].scheme | has no place here
{scheme: exact, stages: [{STAGE}]} | .scheme | has no place here
{packing: {}, path: a, stages: [{STAGE}]} | .packing | has no place here
{path: a, seq_len: 3} | .seq_len | Set it beside 'stages'
{path: a, steps: 3} | .steps | Set it beside 'stages'
{stages: [{STAGE, seed: -1}]} | .stages[0].seed | got -1
{stages: [{STAGE, batch: 3}]} | .stages[0].batch | expected a mapping
{stages: [{STAGE, blend: [{path: a}]}]} | .stages[0].path | are given
{stages: [{STAGE, stages: []}]} | .stages[0].stages | parts of the whole run
{blend: [{stages: []}]} | .blend[0].stages | parts of the whole run
{stages: [{STAGE, packing: 3}]} | .stages[0].packing | expected a mapping
{stages: [{STAGE, blend: [{path: a, wieght: 1}]}]} | .stages[0].blend[0].wieght | did you mean
{stages: [{STAGE, end_step: 4}, {TWO}]} | .stages | steps 4 to 5 belong to no stage
{stages: [{STAGE, end_step: 6}, {TWO}]} | .stages | steps 5 to 6 belong to two stages
{stages: [{TWO}]} | .stages | steps 0 to 5 belong to no stage
{steps: 5, stages: [{STAGE}, {TWO}]} | .stages[1] | stage 'two' would never run
{path: a, stages: [{STAGE}]} | | stage 'default' would never run
{steps: 9, stages: [{STAGE, end_step: 5}]} | .stages | steps 5 to 9 belong to no stage
{stages: [{STAGE}, {name: one, start_step: 5, path: a}]} | .stages[1] | the name is taken by
{path: a, stages: [{name: default, start_step: 5, path: a}]} | .stages[0] | the name is taken by
"""
"""In each line a split, the path at which it is wrong, and words of what is told."""


VALUES_REFUSED = {
    "{path: x, shuffle_over_epochs_multiplier: ?}": "0 -2 1.0 two",
    "{path: x, sample_weight: ?}": "-1 .nan '1' true",
    "{blend: [{path: x, weight: ?}]}": "-1 .nan .inf '1' null true [1]",
    "{path: a, subset: {range: ?}}": "[0.1,0.5] [-1,5] [true,5] [1] [1,2,3] 10%",
    "{join: [{path: a}, {path: b}], joiner: ?}": "{__module__:m} null {__class__:C}",
}


def mistold(file, row):
    """What is told of a split in place of what a line of WRONG says."""
    node, path, words = (part.strip() for part in row.split("|"))
    node = node.replace("JOINER", JOINER).replace("STAGE", STAGE).replace("TWO", TWO)
    try:
        splits(file, f"splits:\n  s: {node}")
        told = f"nothing; {resolve(file, 's', existing=False)}"
    except MetadatasetError as error:
        told = str(error)
    right = f"{file}:4 (splits.s{path}): " in told and words in told
    return None if right else f"{row}\n    {told}"


def test_each_fault_is_told_with_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [row for row in WRONG.splitlines() if row]
    found = [mistold(tmp_path / "mix.yaml", row) for row in rows]
    assert not any(found), "\n".join(filter(None, found))
    assert not (tmp_path / "pwned").exists()
    for node, values in VALUES_REFUSED.items():
        key = node.split("?")[0].split()[-1].strip("{:")
        for value in values.split():
            told = message(
                tmp_path / "mix.yaml", f"splits:\n  s: {node.replace('?', value)}"
            )
            assert f"{key}): expected" in told, (node, value, told)


VALUES = {
    "1e-3": 0.001,
    "1.5E+2": 150.0,
    "-7": -7,
    "007": 7,
    "1:30": "1:30",
    "2024-01-01": "2024-01-01",
    "on": "on",
    "No": False,
    "'3'": "3",
    "": None,
    "=": "=",
    "!!str 3": "3",
    "!!int '3'": 3,
    r'"\ud83d\ude00 \\\uD83D\uDE01"': "\U0001f600 \\\U0001f601",  # as JSON writes them
    r"'\ud83d\ude00'": r"\ud83d\ude00",
    "-.inf": float("-inf"),
    "9" * 400: float("inf"),
    "123456789012345678": 123456789012345678,
}

DOCUMENTS = [
    ("", "mix.yaml: the document is empty. Expected a mapping with __module__"),
    ("# nothing\n", "mix.yaml: the document is empty"),
    (
        "[1, 2]",
        "mix.yaml:1: expected a mapping with __module__, __class__ and splits, got [1, 2]",
    ),
    (HEAD + "splits: {}", "mix.yaml:3 (splits): "),
    ("splits: [a", "mix.yaml:2, column 1: invalid YAML: "),
    ("splits:\n\ta: 1", "mix.yaml:2, column 1: invalid YAML"),
    ("a: *b", "mix.yaml:1, column 4: invalid YAML: "),
    ("a: 1\n---\nb: 1", "mix.yaml:2, column 1: invalid YAML: "),
    (
        HEAD.replace("set", "Set"),
        "(__class__): expected 'MetadatasetV2', got 'MetadataSetV2'; did",
    ),
    (
        HEAD.replace("energize", "os"),
        "(__module__): expected 'energize', 'megatron.energon' or 'energize.energon'",
    ),
    (
        "splits: {a: {path: x}}",
        "mix.yaml:1 (__class__): the key '__class__' is missing",
    ),
    (
        HEAD + "split: {a: {path: x}}",
        "(split): unknown key 'split'; did you mean 'splits'?",
    ),
    (HEAD + "training: {}", "Use get_staged_train_dataset"),
    ("a: \xff", "neither a metadataset, with splits, nor a known mixture file"),
]


def test_documents_and_values(tmp_path):
    file = tmp_path / "mix.yaml"
    for text, words in DOCUMENTS:
        with row(text):
            assert words in message(file, text, head="")
    for text, value in VALUES.items():
        with row(text):
            found = splits(
                file, f"splits:\n  a:\n    path: x\n    subflavors:\n      k: {text}"
            )
            assert repr(found["a"].subflavors["k"]) == repr(value)


def test_files_that_are_no_text_of_people(tmp_path):
    file = tmp_path / "mix.yaml"
    for data, words in (
        (
            HEAD.encode() + "a: é".encode("latin-1"),
            ": line 3: b'\\xe9': incomplete UTF-8 octet sequence. Save ",
        ),
        (
            b" " * (limits.YAML_BYTES + 1),
            "in bytes, 16777217, more than 16777216. To allow more, ",
        ),
    ):
        file.write_bytes(data)
        with pytest.raises(MetadatasetError) as caught:
            read_metadataset(file)
        assert words in str(caught.value)
        assert str(caught.value).endswith(
            ("Save the file as UTF-8", "core.limits.YAML_BYTES")
        )
    (tmp_path / "loop").symlink_to("loop")
    for read, words in (
        (load_dataset, "loop is a link to 'loop', which does not exist"),
        (
            get_train_dataset,
            r"'\S+loop' is a link to 'loop', .* the link, looked for \S+loop$",
        ),
        (WebdatasetSource, "links on the way to it, which lead to one another"),
    ):
        with pytest.raises(EnergizeError, match=words):
            read(
                tmp_path / "loop",
                **({"batch_size": 1} if read is get_train_dataset else {}),
            )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=60)
    | st.text(alphabet="{}[]:-*&!|>#%@`'\"\n ,ab?<", max_size=40)
)
def test_any_bytes_are_refused(tmp_path, data):
    file = tmp_path / "any.yaml"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(MetadatasetError, match="any"):
        read_metadataset(file)


LONG, MANY = "a" * 1_000_000, 9 * 10**400


def aliases(first, each):
    """Each line names ten of the line before."""
    lines = [
        f"  a{i + 1}: &a{i + 1} {each % ', '.join([f'*a{i}'] * 10)}" for i in range(20)
    ]
    return "\n".join(["{path: x}", f"  a0: &a0 {first}", *lines])


TOO_MUCH = {
    "[" * 1000: "nested too deeply",
    "[" * 100_000: "nested too deeply",
    "{a: " * 1000: "nested too deeply",
    "\n    " + "- " * 20_000: "nested too deeply",
    f"{{path: x, subflavors: {'{a: ' * 200}1{'}' * 200}}}": "nested too deeply",
    aliases("[1]", "[%s]"): "values when aliases are written out",
    aliases("{x: 1}", "{<<: [%s]}"): "values when aliases are written out",
    f"\n    path: x\n    ? {LONG}\n    : 1": "letters, 1000000, more",
    f"{{path: x, shuffle_over_epochs_multiplier: {LONG}}}": "letters, 1000000, more",
    f"{{blend: [{{path: x, weight: {MANY}}}]}}": "expected a finite num",
    "{blend: [{path: x, weight: 1e400}]}": "expected a finite number",
    "{blend: [{path: x, weight: {points: {0: 1e400}}}]}": "expected a finite number",
    f"{{blend: [{{path: x, weight: {{points: {{0: 1, {MANY}: 2}}}}}}]}}": "expected a step",
    f"{{blend: [{{path: x}}], block_size: {MANY}}}": "block_size): expected",
    f"{{blend: [{{path: x}}], epoch_size: {MANY}}}": "epoch_size): expected",
    "{blend: [{path: x}], epoch_size: 1e999999999k}": "epoch_size must be a number of samples",
    "{blend: [{path: x, choose: 1e999999999k}]}": "choose must be a whole number",
    "{blend: ["
    + "{path: x}," * 10_001
    + "]}": "too many entries, 10001, more than 10000",
    "{blend: [" + "1," * 9000 + "]}": "The first 100 errors",
    "{" + "a: 1," * 9000 + "}": "The first 100 errors",
}


def test_what_stands_for_too_much_is_refused_at_once(tmp_path):
    for text, words in TOO_MUCH.items():
        told = message(tmp_path / "mix.yaml", f"splits:\n  train: {text}")
        assert words in told, (text[:99], told[:999])
        assert len(told) < 30_000
    many = ", ".join(f"{{path: x/{i}, weight: {i + 1}}}" for i in range(3000))
    found = splits(tmp_path / "mix.yaml", f"splits: {{a: {{blend: [{many}]}}}}")
    assert len(found["a"].blend) == 3000
