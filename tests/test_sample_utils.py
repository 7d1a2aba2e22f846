"""Samples as text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize import CaptioningSample
from energize.core.loss_weights import default_get_batch_keys
from energize.core.show import format_sample_compact, format_sample_detailed


@dataclass
class Boxes:
    count: int
    names: dict[str, int]


class TestDetailed:
    def test_everything_that_a_sample_may_hold(self):
        sample = {
            "scalars": {"i": -3, "f": 2.5, "b": False, "n": None},
            "text": "hi",
            "lines": "a\nb",
            "row": (1, 2, "x"),
            "rows": [{"k": 1, "l": 2}, {"k": 2}],
            "tensor": torch.tensor([0.0, 2.0]),
            "array": np.arange(8),
            "boxes": Boxes(9, {"a": 1}),
            "none": [],
        }
        lines = format_sample_detailed(sample, "> ").splitlines()
        assert all(line.startswith("> ") for line in lines)
        text = " ".join(line.removeprefix("> ").strip() for line in lines)
        for said in (
            "'scalars': {'i': -3, 'f': 2.5, 'b': False, 'n': None}",
            "'lines': 'a\\nb'",
            "'row': (1, 2, 'x')",
            "'tensor': Tensor(shape=torch.Size([2]), dtype=torch.float32, device=cpu, min=0.0, "
            "max=2.0, values=[0.0, 2.0])",
            "'array': np.ndarray(shape=(8,), dtype=int64, min=0, max=7, "
            "values=[0, 1, 2, ..., 5, 6, 7])",
            "'boxes': Boxes(count=9, names={'a': 1})",
            "'none': []",
        ):
            assert said in text

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (torch.zeros(0), "values=[]"),
            (torch.tensor([1 + 2j]), "dtype=torch.complex64, device=cpu)"),
            (torch.tensor([True, False]), "min=False, max=True"),
            (np.array(["a", "b"]), "np.ndarray(shape=(2,)"),
            (torch.zeros(2, device="meta"), "device=meta)"),
            (torch.tensor(3), "values=[3]"),
        ],
        ids=str,
    )
    def test_tensors_without_order_or_values(self, value, said):
        assert said in format_sample_detailed({"x": value})

    def test_what_is_long_is_cut_and_says_so(self):
        text = format_sample_detailed(
            {"caption": "x" * 1500, "data": b"y" * 1500, "ids": list(range(30))}
            | {f"k{i}": i for i in range(40)}
        )
        assert text.count("'+500,") == 2
        assert "... +5\n" in text
        assert text.endswith("... +18\n}")
        assert len(text) < 4000

    @given(
        st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.tuples(x))
    )
    def test_anything_can_be_shown(self, value):
        assert "'value': " in format_sample_detailed({"value": value})
        assert "\n" not in format_sample_compact({"value": value})


def test_compact_is_one_line_of_bounded_depth_and_length():
    sample = CaptioningSample(__key__="a", image=torch.zeros(3, 4, 4), caption="x" * 80)
    text = format_sample_compact(sample)
    assert "image=Tensor(shape=torch.Size([3, 4, 4])" in text
    assert "x" * 51 not in text
    assert format_sample_compact({"a": {"b": {"c": {"d": 1}}}}) == "{'a': {'b': {'c': {...}}}}"
    assert format_sample_compact(list(range(12))).endswith("9, ... +2]")


@pytest.mark.parametrize(
    ("batch", "keys"),
    [
        ({"__key__": ["a"]}, ["a"]),
        ({"__keys__": ["a"]}, ["a"]),
        ({"keys": ["a"]}, ["a"]),
        ([{"__key__": ["b"]}], ["b"]),
        ({"__key__": "a"}, None),
        ([], None),
        (3, None),
    ],
)
def test_the_keys_of_a_batch(batch, keys):
    assert default_get_batch_keys(batch) == keys
