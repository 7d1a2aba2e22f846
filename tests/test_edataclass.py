"""Sample types made by `edataclass`."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import energize
from energize.energon.names import edataclass


@edataclass
class Text(energize.Sample):
    text: str
    weight: float = 1.0


@edataclass
class Tokens(Text):
    ids: torch.Tensor
    """A field without a default after one that has one."""


def test_it_is_a_dataclass_with_slots_and_named_fields():
    made = Tokens(__key__="a", __restore_key__=(), text="a", ids=torch.tensor([1]))
    assert dataclasses.is_dataclass(Tokens)
    assert not hasattr(made, "__dict__")
    with pytest.raises(TypeError):
        Tokens("a", (), None, None, "a", 1.0, [1])
    with pytest.raises(AttributeError):
        made.txet = "b"
    copied = pickle.loads(pickle.dumps(made))
    assert (copied.__key__, copied.weight, copied.ids.tolist()) == ("a", 1.0, [1])


def test_it_makes_batches_too():
    @edataclass
    class TokenBatch(energize.Batch):
        ids: torch.Tensor

    one = Tokens(__key__="a", text="a", ids=torch.tensor([1, 2]))
    other = Tokens(__key__="b", text="b", ids=torch.tensor([3]))
    batch = TokenBatch.from_samples([one, other])
    assert batch.__key__ == ["a", "b"]
    assert batch.ids.tolist() == [[1, 2], [3, 0]]


def test_type_checkers_know_its_fields(tmp_path):
    own = sys.modules[edataclass.__module__]
    (tmp_path / "decorator.py").write_text(Path(own.__file__).read_text())  # without the package
    program = tmp_path / "program.py"
    program.write_text(
        "from decorator import edataclass\n\n"
        "@edataclass\n"
        "class Tokens:\n"
        "    weight: float = 1.0\n"
        "    ids: list[int]\n\n"
        "fine = Tokens(ids=[1])\n"
        'wrong = Tokens(ids="no")\n'
    )
    command = [sys.executable, "-m", "mypy", "--strict", program.name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path
    )
    found = [line for line in done.stdout.splitlines() if "program.py" in line]
    assert len(found) == 1, done.stdout
    assert 'program.py:9: error: Argument "ids" to "Tokens"' in found[0]
