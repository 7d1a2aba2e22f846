"""Ledgers of two real ranks with two workers each, under DDP: alone, and summed."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from energize import ConfigError, WorkerConfig, get_loader
from tests.support.deliveries import counted
from tests.support.launching import launched
from tests.support.ledger_program import epoch_of_eleven, stream
from tests.support.loading import loader_of, take

pytestmark = pytest.mark.jobs


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("ledger") / "out.json"
    launched("tests.support.ledger_program", out, ranks=2)
    return json.loads(out.read_text())


@pytest.mark.parametrize("run", ["epoch", "stream"])
def test_the_sum_over_ranks_is_what_all_were_delivered(found, run):
    together, ranks = found[run]["together"], found[run]["ranks"]
    samples = sum((Counter(each["samples"]) for each in ranks), Counter())
    assert {n: k for n, k in together["samples"].items() if n != "all"} == dict(samples)
    assert together["samples"]["all"] == samples.total()
    assert together["weight"]["all"] == sum(each["weight"] for each in ranks)
    assert together["tokens"]["all"] == sum(each["tokens"] for each in ranks)
    for each in ranks:
        alone = each["alone"]["samples"]
        assert {n: k for n, k in alone.items() if n != "all" and k} == each["samples"]


def test_padding_is_counted_as_padding_and_as_nothing_else(found):
    together = found["epoch"]["together"]
    assert together["items"] == [6, 5]
    assert together["padding"] == [0, 1]
    with loader_of(epoch_of_eleven()) as loader:
        assert Counter(together["samples"])["all"] == counted(list(loader)).total()


def test_a_stream_reports_what_came_since_it_was_resumed_and_says_so(found):
    together = found["resumed"]["together"]
    assert together["samples"]["all"] == 2 * 5 * 3
    assert "counting began after 40 items" in together["text"]
    with loader_of(stream(), lanes=4) as loader:
        take(loader, 40)
        assert counted(take(loader, 10)) == Counter(
            {n: k for n, k in together["samples"].items() if n != "all"}
        )


def test_a_rank_that_does_not_call_is_an_error_and_no_hang(found):
    assert "the report of a ledger" in found["not called by all"]


def test_ranks_without_a_process_group_cannot_be_summed():
    loader = get_loader(epoch_of_eleven(), worker_config=WorkerConfig(0, 2))
    next(iter(loader))
    with pytest.raises(ConfigError, match="no process group"):
        loader.report(all_ranks=True)
    report = loader.report()
    assert report.total.counts.samples == 4
    assert "rank 0 of 2 alone" in report.scope.title
