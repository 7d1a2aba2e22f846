"""What every mix gives, and its states, are what they were when they were recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.golden.record import (
    KEPT_AFTER,
    RECORDED,
    Subject,
    file_of,
    recorded,
    recording,
)

RECORDS = recorded()
SHOW = "python -m tests.golden.record --show NAME, here and where it was recorded"


@pytest.fixture(scope="module")
def subjects() -> Iterator[dict[str, Subject]]:
    with recording() as all_subjects:
        yield all_subjects


def with_group(
    subjects: dict[str, Subject], *groups: str
) -> Iterator[tuple[str, Subject, str]]:
    """Yield each recorded subject that has a group of these, and the group."""
    for name, subject in subjects.items():
        for group in groups:
            if group in subject.groups and group in RECORDS.get(name, {}):
                yield name, subject, group


def difference(name: str, subject: Subject, group: str) -> str | None:
    """Return the first field of a group that is not as recorded."""
    try:
        current = subject.fields(group)
    except Exception as error:
        return f"{name}: {type(error).__name__}: {str(error)[:300]}"
    before = RECORDS[name][group]
    for field in before | current:
        if before.get(field) != current.get(field):
            return f"{name}: {field}\n    was {shown(before, field)}\n    is  {shown(current, field)}"
    return None


def shown(fields: dict[str, Any], field: str) -> str:
    value = fields.get(field, "-")
    return value if isinstance(value, str) else value[1]


def kept_difference(name: str, subject: Subject, group: str) -> str | None:
    """Return what differs of the items that follow the kept state of a mix."""
    state = RECORDS[name].get("state")
    continuations = RECORDS[name][group]["continuations, 1 rank"].split()
    if state is None:
        return None
    try:
        follows = subject.follows(state)
    except Exception as error:
        return f"{name}: the kept state: {type(error).__name__}: {str(error)[:300]}"
    if follows != continuations[KEPT_AFTER - 1]:
        return f"{name}: other items follow the kept state"
    return None


def check(lines: Iterable[str | None]) -> None:
    different = [line for line in lines if line is not None]
    text = f"{len(different)} mixes differ (all of one: {SHOW}):"
    assert not different, "\n".join([text, *different])


def test_each_mix_has_its_own_file(subjects):
    files = {file_of(name): name for name in subjects}
    assert len(files) == len(subjects), "two names have one file"
    present = set(RECORDED.glob("*.json"))
    missing = [files[file] for file in files.keys() - present]
    too_many = [file.name for file in present - files.keys()]
    wrong = [file.name for file in present & files.keys() if files[file] not in RECORDS]
    remedy = (
        "python -m tests.golden.record NAME writes a file, and removes those of no mix"
    )
    assert (missing, too_many, wrong) == ([], [], []), remedy


def test_each_mix_has_all_groups(subjects):
    current = {name: [*subject.groups] for name, subject in subjects.items()}
    no_groups = {"name", "state"}
    present = {
        name: [key for key in record if key not in no_groups]
        for name, record in RECORDS.items()
    }
    assert present == current


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [3, pytest.param(1, marks=pytest.mark.jobs)])
def test_orders_and_items(subjects, part):
    """Of one mix in so many."""
    entries = [*with_group(subjects, "mix", "face")]
    check(difference(*entry) for entry in entries[::part])


@pytest.mark.jobs
@pytest.mark.timeout(600)
def test_what_loaders_deliver(subjects):
    check(difference(*entry) for entry in with_group(subjects, "loader", "run"))


@pytest.mark.jobs
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_states(subjects, part):
    """States after each item and what follows them, of one mix in so many; and what
    follows the kept state of every mix."""
    entries = [*with_group(subjects, "states")]
    check(kept_difference(*entry) for entry in entries)
    check(difference(*entry) for entry in entries[::part])


def test_what_loaders_deliver_of_one_mix_in_five(subjects):
    check(difference(*entry) for entry in [*with_group(subjects, "loader", "run")][::5])


def test_states_of_one_mix_in_sixty(subjects):
    check(difference(*entry) for entry in [*with_group(subjects, "states")][::60])
