"""Orders, fingerprints and states depend on the `order_name` of a class, not on its
name."""

from __future__ import annotations

import ast
import json
from importlib import import_module, util
from pkgutil import walk_packages

import pytest

import energize
from energize import (
    BlendDataset,
    FilterDataset,
    IterableSource,
    ListSource,
    MapDataset,
    SequenceSource,
    ShuffleDataset,
    StateMismatchError,
    TextSample,
    get_loader,
)
from energize.core.config import config_of
from energize.core.description import (
    Description,
    described,
    name_of,
)
from energize.core.samples import SAMPLE_TYPES
from energize.energon.nodes import NodeView
from energize.packing import attention_cost
from energize.task.load import JoinLoader, SampleLoader
from tests.golden.mixes import is_even


def node_classes() -> dict[str, type[Description]]:
    """Every class of the package that is a node, by its name.

    Views of nodes in Energon's face have the names of their nodes and are left out.
    """
    for module in walk_packages(energize.__path__, "energize."):
        of_frameworks = module.name.startswith("energize.integrations.")
        if not of_frameworks and not module.name.endswith("__main__"):
            import_module(module.name)
    classes = {}
    waiting = [Description]
    while waiting:
        cls = waiting.pop()
        waiting.extend(cls.__subclasses__())
        of_energon = issubclass(cls, NodeView) and cls is not NodeView
        if cls.__module__.partition(".")[0] == "energize" and not of_energon:
            classes[cls.__name__] = cls
    return classes


def renamed(cls: type) -> type:
    """A class of the same code and order name with another class name."""
    return type(f"Renamed{cls.__name__}", (cls,), {"order_name": cls.order_name})


def mix(
    blend=BlendDataset, shuffle=ShuffleDataset, keep=FilterDataset, source=ListSource
):
    web = shuffle(source(range(30), name="web"))
    code = shuffle(source(range(100, 111), name="code"))
    return keep(blend((web, 2), (code, 1), stop="all_exhausted"), is_even)


def renamed_mix():
    return mix(*map(renamed, (BlendDataset, ShuffleDataset, FilterDataset, ListSource)))


def test_every_node_class_sets_its_own_order_name():
    silent = [name for name, cls in node_classes().items() if not sets_order_name(cls)]
    assert silent == []


def sets_order_name(cls: type) -> bool:
    """Whether the body of the class assigns `order_name` as a literal."""
    spec = util.find_spec(cls.__module__)
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    bodies = [
        node.body
        for node in ast.walk(tree)
        if getattr(node, "name", "") == cls.__name__
    ]
    lines = [
        line
        for body in bodies
        for line in body
        if isinstance(line, ast.Assign | ast.AnnAssign)
    ]
    targets = [target for line in lines for target in getattr(line, "targets", [line])]
    names = [getattr(getattr(target, "target", target), "id", "") for target in targets]
    return "order_name" in names


def test_the_order_names_of_node_classes_are_distinct():
    names = [cls.order_name for cls in node_classes().values()]
    assert sorted(set(names)) == sorted(names)


def test_a_renamed_class_gives_the_same_order():
    blends = [
        blend(
            (ListSource(range(30), name="web"), 2),
            (ListSource(range(9), name="code"), 1),
        )
        for blend in (BlendDataset, renamed(BlendDataset))
    ]
    assert [blend.key for blend in blends] == [blends[0].key] * 2
    assert list(renamed_mix()) == list(mix())


def test_a_renamed_class_has_the_same_fingerprint_and_description():
    assert config_of(renamed_mix()) == config_of(mix())
    assert renamed_mix().describe() == mix().describe()


@pytest.mark.parametrize("makes", [(mix, renamed_mix), (renamed_mix, mix)])
def test_a_state_is_accepted_over_a_renamed_class(makes):
    saving, loading = (get_loader(make(), lanes=2) for make in makes)
    items = iter(saving)
    before = [next(items) for _ in range(5)]
    loading.load_state_dict(json.loads(json.dumps(saving.state_dict())))
    resumed = iter(loading)
    assert (
        [next(resumed) for _ in range(5)] == [next(items) for _ in range(5)] != before
    )


def test_representations_show_the_class_name():
    assert repr(renamed(ListSource)("ab", name="web")).startswith("RenamedListSource(")


class Doubled(MapDataset):
    """A user's class that names no order name."""

    def __init__(self, dataset):
        super().__init__(dataset, lambda item: 2 * item)


class Ordered(ShuffleDataset):
    """A user's class that names one."""

    order_name = "my.Ordered"


def test_a_class_without_an_order_name_has_its_class_name():
    assert Doubled.order_name == "Doubled"
    assert Doubled(ListSource(range(3))).describe()["kind"] == "Doubled"


def test_a_subclass_does_not_inherit_an_order_name():
    assert type("Other", (Ordered,), {}).order_name == "Other"


def test_a_class_of_another_order_name_has_another_fingerprint():
    source = ListSource(range(9), name="web")
    plain, own = get_loader(ShuffleDataset(source)), get_loader(Ordered(source))
    next(iter(plain))
    with pytest.raises(
        StateMismatchError, match=r"was a ShuffleDataset, is a my\.Ordered"
    ):
        own.load_state_dict(plain.state_dict())


def test_a_dataset_that_a_source_reads_counts_by_its_order_name():
    inner = ListSource(range(9), name="web")
    other = renamed(ListSource)(range(9), name="web")
    assert SequenceSource(other).name == SequenceSource(inner).name == "ListSource"
    assert SequenceSource(other).describe() == SequenceSource(inner).describe()
    assert IterableSource(other).describe() == IterableSource(inner).describe()
    assert IterableSource(other).key == IterableSource(inner).key


def test_loaders_of_samples_are_described_by_their_order_names():
    assert SampleLoader(sample_type=TextSample).describe()["kind"] == "SampleLoader"
    assert (
        renamed(SampleLoader)(sample_type=TextSample).describe()["kind"]
        == "SampleLoader"
    )
    join = renamed(JoinLoader)(loaders=(), names=None, function=print)
    assert join.describe()["kind"] == "JoinLoader"


def test_names_outside_of_nodes_that_fingerprints_contain():
    """Content digests of samples contain the names of their types, fingerprints of
    levelled batches that of the function of costs, and states those of functions.
    """
    names = {
        "CrudeSample",
        "ImageSample",
        "CaptioningSample",
        "ImageClassificationSample",
    }
    names |= {
        "InterleavedSample",
        "SimilarityInterleavedSample",
        "OCRSample",
        "VQAOCRSample",
    }
    names |= {
        "TextSample",
        "ConversationSample",
        "PreferenceSample",
        "VidQASample",
        "VQASample",
    }
    names |= {"MultiChoiceVQASample"}
    assert names <= {cls.__qualname__ for cls in SAMPLE_TYPES.values()}
    assert described(attention_cost) == "energize.packing.packer.attention_cost"
    assert (
        name_of(SampleLoader(sample_type=TextSample))
        == "energize.task.load.SampleLoader"
    )
