"""What every mix gives is what it gave when it was recorded, see `record.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.golden.record import GOLDEN, entry, recording

RECORDED = json.loads(GOLDEN.read_text())


@pytest.fixture(scope="module")
def asked():
    with recording() as found:
        yield found


def differences(asked: dict[str, Callable], loaded: bool, every: int = 1) -> Iterator[str]:
    """A line for each mix that is another one, with the first field that differs; of `every` so
    many.
    """
    for name in sorted(RECORDED.keys() ^ asked.keys()):
        if name.startswith(("loader: ", "run: ")) == loaded:
            yield (
                f"{name}: recorded, and not there" if name in RECORDED else f"{name}: not recorded"
            )
    for name in [each for each in asked if each in RECORDED][::every]:
        if name.startswith(("loader: ", "run: ")) != loaded:
            continue
        try:
            found = entry(asked[name]())
        except Exception as error:
            yield f"{name}: {type(error).__name__}: {str(error)[:300]}"
            continue
        was = RECORDED[name]
        for field in was | found:
            if was.get(field) != found.get(field):
                (_, before), (_, now) = was.get(field, ["", "-"]), found.get(field, ["", "-"])
                yield f"{name}: {field}\n    was {before}\n    is  {now}"
                break


def check(asked, loaded: bool, every: int = 1) -> None:
    found = list(differences(asked, loaded, every))
    show = "all of one: python -m tests.golden.record --show NAME, here and where it was recorded"
    assert not found, "\n".join([f"{len(found)} mixes differ ({show}):", *found])


@pytest.mark.timeout(600)
def test_orders_and_items(asked):
    check(asked, loaded=False)


@pytest.mark.jobs
@pytest.mark.timeout(600)
def test_what_loaders_deliver(asked):
    check(asked, loaded=True)


def test_what_loaders_deliver_of_one_mix_in_five(asked):
    check(asked, loaded=True, every=5)
