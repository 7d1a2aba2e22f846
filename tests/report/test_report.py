"""What reports say: names, shares in their units, epochs, weights, costs; and
warnings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from rich.console import Console

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    ConfigError,
    DataError,
    EpochizeDataset,
    FilterDataset,
    ItemCost,
    Ledger,
    ListSource,
    MapDataset,
    PackDataset,
    PackingDataset,
    Quota,
    QuotaDataset,
    RepeatDataset,
    Schedule,
    SkipSample,
)
from energize.experimental import Stage, StagedDataset, StagePlan
from energize.report import Report, simulate
from tests.support.deliveries import counted, samples_in, told, weighed_batch
from tests.support.loading import loader_of, take


def report_after(dataset, items: int, **options) -> Report:
    loader = loader_of(dataset, **options)
    take(loader, items)
    return loader.report()


def nested() -> BlendDataset:
    texts = BlendDataset(
        {"web": told(90, "w"), "news": told(7, "n")}, weights={"web": 1, "news": 1}
    )
    return BlendDataset(
        {"texts": texts, "code": told(50, "c")}, weights={"texts": 9, "code": 1}
    )


def test_levels_of_blends_in_blends_have_their_own_shares():
    report = report_after(BatchDataset(nested(), 10, list), 100)
    assert [row.path for row in report.rows] == [
        (), ("texts",), ("texts", "web"), ("texts", "news"), ("code",)
    ]  # fmt: skip
    texts, web, code = report["texts"], report["texts/web"], report["code"]
    assert texts.shares.requested == pytest.approx(0.9)
    assert texts.shares.delivered == texts.shares.planned == pytest.approx(0.9)
    assert (
        web.shares.requested,
        web.shares.delivered,
        web.fractions.samples,
    ) == pytest.approx((0.5, 0.5, 0.45))
    assert (code.counts.samples, code.epochs, code.counts.batches) == (
        100,
        2.0,
        pytest.approx(10),
    )
    assert code.fractions.repeats == pytest.approx(0.5)
    assert report["texts/news"].fractions.repeats == pytest.approx(443 / 450)
    assert report.warnings == ()


def test_blends_that_were_opened_up_have_rows_of_their_own_however_deep():
    def blend(**parts):
        return BlendDataset(parts, weights=dict.fromkeys(parts, 1))

    deep = blend(
        w=told(9, "w"), x=blend(y=blend(p=told(9, "p"), q=told(9, "q")), z=told(9, "z"))
    )
    resumed = loader_of(deep)
    resumed.load_state_dict(take_state(deep, 800))
    for report in (report_after(deep, 800), resumed.report()):
        assert {row.shares.requested for row in report.rows[1:]} == {0.5}
        assert [("/".join(row.path), row.counts.samples) for row in report.rows[1:]] == [
            ("w", 400), ("x", 400), ("x/y", 200), ("x/y/p", 100), ("x/y/q", 100), ("x/z", 200)
        ]  # fmt: skip


def take_state(dataset, items: int):
    loader = loader_of(dataset)
    take(loader, items)
    return loader.state_dict()


def in_turn() -> QuotaDataset:
    return QuotaDataset((told(800, "a"), Quota()), (told(810, "b"), Quota()))


def of_batches(stop: str = "restart") -> BlendDataset:
    pairs = {
        "a": BatchDataset(told(9, "a"), 2, list),
        "b": BatchDataset(told(90, "b"), 8, list),
    }
    return BlendDataset(pairs, weights={"a": 3, "b": 1}, stop=stop)


@pytest.mark.parametrize(
    ("dataset", "unit"),
    [
        (of_batches(), "batches"),
        (of_batches("first_exhausted"), "batches"),
        (BatchDataset(in_turn(), 30, list), "samples"),
    ],
)
@pytest.mark.parametrize("resumed_at", [0, 7, 40])
def test_units_are_those_of_the_mix_and_a_resumed_run_has_all_of_them(
    dataset, unit, resumed_at
):
    items = take(loader_of(dataset), 40)
    samples = counted(items)
    batches = Counter(next(samples_in(item))[0] for item in items)
    loader = loader_of(dataset)
    loader.load_state_dict(take_state(dataset, resumed_at))
    take(loader, 40 - resumed_at)
    report = loader.report()
    counts = samples if unit == "samples" else batches
    for row in report.sources:
        assert (row.shares.unit, row.counts.samples) == (unit, samples[row.name])
        assert row.counts.batches == pytest.approx(batches[row.name], abs=0.5)
        assert row.shares.planned == pytest.approx(row.shares.delivered)
        assert row.shares.delivered == pytest.approx(
            counts[row.name] / counts.total(), abs=0.01
        )


def test_numbers_for_a_log_have_flat_names_and_are_plain():
    numbers = report_after(BatchDataset(nested(), 10, list), 20).to_dict()
    assert numbers["mix/texts/web/delivered_share"] == pytest.approx(0.5)
    assert numbers["mix/items"] == 20
    assert numbers["mix/samples"] == 200
    assert "mix/texts/epochs" not in numbers  # several sources have no number of epochs
    assert {type(value) for value in numbers.values()} == {float}
    assert 0 < numbers["mix/waiting_share"] <= 1
    assert numbers["mix/longest_wait_seconds"] <= numbers["mix/waiting_seconds"]


def test_asked_is_the_integral_of_weights_that_change():
    glide = BlendDataset(
        {"a": told(40, "a"), "b": told(40, "b")},
        weights={"a": Schedule([(0, 1), (100, 0)], "linear"), "b": 1},
    )
    report = report_after(glide, 100)
    exact = np.mean([x / (1 + x) for x in 1 - (np.arange(10_000) + 0.5) / 10_000])
    assert report["a"].shares.requested == pytest.approx(exact, abs=1e-5)
    assert report["a"].shares.delivered == pytest.approx(exact, abs=0.02)


def test_a_live_change_is_asked_for_from_where_it_acts():
    blend = BlendDataset(
        {"a": told(9, "a"), "b": told(9, "b")}, weights={"a": 1, "b": 1}
    )
    loader = loader_of(BatchDataset(blend, 10, list))
    take(loader, 10)
    loader.set_weights({"a": 9, "b": 1})
    items = take(loader, 10)
    report = loader.report()
    assert report["a"].shares.requested == pytest.approx(0.7)
    assert report["a"].counts.samples == 50 + counted(items)["a"] == 140


def test_quotas_ask_for_their_counts_and_a_concatenation_for_nothing():
    quotas = QuotaDataset(
        (told(8, "a"), Quota(choose=6)), (told(8, "b"), Quota(choose=2))
    )
    report = report_after(quotas, 8)
    assert (report["a"].shares.requested, report["a"].shares.delivered) == (0.75, 0.75)
    report = report_after(ConcatDataset(told(3, "a"), told(9, "b")), 12)
    assert report["a"].shares.requested is None
    assert report["a"].shares.planned == report["a"].shares.delivered == 0.25


@pytest.mark.parametrize("streams", [False, True])
def test_stages_are_levels_with_sources_of_their_own(streams):
    def part(name):
        return FilterDataset(told(20, name), bool) if streams else told(20, name)

    first, last = (
        part("a"),
        BlendDataset({"a": part("a"), "b": part("b")}, weights={"a": 1, "b": 3}),
    )
    plan = StagePlan(
        [Stage("warm", 0, 5, dataset=first), Stage("main", 5, 25, dataset=last)]
    )
    report = report_after(StagedDataset(plan, carry_over=not streams), 25)
    assert report["warm"].counts.samples == 5
    assert (report["main/a"].counts.samples, report["main/b"].counts.samples) == (5, 15)
    assert (
        report["main/b"].shares.requested == report["main/b"].shares.delivered == 0.75
    )
    if not streams:
        assert report["warm"].shares.planned == pytest.approx(0.2)


def test_loss_weights_have_a_share_and_an_effective_size():
    items = 20
    report = report_after(BatchDataset(told(30, "a"), 5, weighed_batch), items)
    samples = [1.0 + n % 3 for n in range(30)] * 3 + [1.0 + n % 3 for n in range(10)]
    assert report.total.counts.weight == sum(samples)
    assert report.total.counts.effective == pytest.approx(
        sum(samples) ** 2 / sum(w * w for w in samples)
    )
    assert report.scope.has_weights
    assert not report_after(BatchDataset(told(30, "a"), 5, list), 4).scope.has_weights


def packed(samples):
    return {
        "samples": samples,
        "sample_weights": torch.tensor([float(s[2]) for s in samples]),
    }


def pairs_of(samples):
    return [samples[at : at + 2] for at in range(0, len(samples), 2)]


def batch_of_packs(packs):
    weights = torch.stack([p["sample_weights"] for p in packs])
    filled = torch.cat([weights, torch.zeros(len(packs), 3)], dim=1)
    return {
        "samples": [s for p in packs for s in p["samples"]],
        "sample_weights": filled,
    }


def test_weights_of_packs_go_to_their_pieces():
    blend = BlendDataset((told(20, "a"), 1), (told(20, "b"), 1))
    packs = PackingDataset(blend, 10, pairs_of, packed)
    for dataset, items in ((packs, 20), (BatchDataset(packs, 2, batch_of_packs), 10)):
        loader = loader_of(dataset)
        batches = take(loader, items)
        report = loader.report()
        for name in "ab":
            own = [s[2] for batch in batches for s in batch["samples"] if s[1] == name]
            assert report[name].counts.weight == sum(own)


def test_costs_by_a_column_and_by_a_function_of_items():
    blend = BlendDataset((told(30, "a"), 3), (told(30, "b"), 1))
    column = loader_of(BatchDataset(blend, 4, list), ledger=Ledger("tokens"))
    items = take(column, 30)
    exact = sum(1 + s[2] % 5 for item in items for s in item if s[1] == "a")
    report = column.report()
    assert report["a"].counts.cost == exact
    assert report.to_dict()["mix/a/tokens_share"] == exact / report.total.counts.cost
    for cost in (len, lambda item: [1] * len(item), lambda item: torch.ones(len(item))):
        each = Ledger(item_cost=cost, name="words")
        report = report_after(BatchDataset(blend, 4, list), 30, ledger=each)
        assert (report["a"].counts.cost, report.total.counts.cost) == (90, 120)
        assert report.to_dict()["mix/words"] == 120


def skips_threes(sample):
    if sample[2] % 10 == 3:
        raise SkipSample("threes")
    if sample[1] == "b" and sample[2] % 10 == 4:
        raise DataError("fours")
    return sample


def is_odd(sample):
    return sample[2] % 2 == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_left_out_is_counted_by_source_and_reason(stream, workers, caplog):
    first = FilterDataset(told(100, "a"), is_odd) if stream else told(100, "a")
    blend = BlendDataset({"a": first, "b": told(60, "b")}, weights={"a": 3, "b": 1})
    mapped = MapDataset(blend, skips_threes)
    with loader_of(BatchDataset(mapped, 5, list), workers=workers) as loader:
        take(loader, 40)
        report = loader.report()
        failures = loader.failures.count
    a, b = report["a"], report["b"]
    assert a.counts.skipped >= 150 // (
        5 if stream else 10
    )  # what was read ahead counts, too
    assert a.counts.failed == 0
    assert b.counts.failed == report.total.counts.failed == failures > 0
    assert (
        a.counts.skipped + b.counts.skipped
        == report.total.counts.skipped
        == report.left_out["skipped: threes"]
    )
    assert not report.warnings


def test_warnings_name_the_cause():
    ends = {"a": told(20, "a"), "b": told(4000, "b")}
    blend = BlendDataset(ends, weights={"a": 1, "b": 1}, stop="all_exhausted")
    (warning,) = report_after(blend, 1000).warnings
    assert "'a'" in warning
    assert "stop rule" in warning

    blend = BlendDataset(
        {"a": told(400, "a"), "b": told(400, "b")}, weights={"a": 1, "b": 1}
    )
    (warning,) = report_after(
        FilterDataset(blend, lambda s: s[1] == "a" or is_odd(s)), 400
    ).warnings
    assert "FilterDataset is above the blend" in warning

    assert report_after(blend, 3).warnings == ()  # a run so short may differ


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_alarm_sounds_by_itself_once_for_each_cause(ranks, caplog):
    parts = {"a": told(20, "a"), "b": told(4000, "b"), "c": told(9, "c")}
    ends = BlendDataset(parts, weights=dict.fromkeys(parts, 1), stop="all_exhausted")
    blend = BlendDataset(
        {"a": told(400, "a"), "b": told(400, "b")}, weights={"a": 1, "b": 1}
    )
    leaves_out = FilterDataset(blend, lambda s: s[1] == "a" or is_odd(s))
    parts["b"] = FilterDataset(parts["b"], bool)
    of_streams = BlendDataset(
        parts, weights=dict.fromkeys(parts, 1), stop="all_exhausted"
    )
    for dataset, cause in (
        (ends, "stop rule"),
        (of_streams, "stop rule"),
        (leaves_out, "FilterDataset is above"),
    ):
        caplog.clear()
        loader = loader_of(dataset, ranks=ranks)
        for _ in range(2):
            take(loader, 4400)
            assert any("ledger:" in each.message for each in caplog.records)
        loader.report()
        (said,) = [each.message for each in caplog.records if "ledger:" in each.message]
        assert cause in said


def in_order(samples):
    samples = sorted(samples, key=lambda sample: sample[1])
    return [samples[at : at + 8] for at in range(0, len(samples), 8)]


def halves(*packed, **options):
    """As much of two sources, or as many of packs of each of so many samples."""
    parts = [told(90, "a"), told(90, "b")]
    for number, size in enumerate(packed):
        parts[number] = PackingDataset(parts[number], size, in_order, list)
    return BlendDataset(*((part, 1) for part in parts), **options)


def uneven(weight=1):
    """A blend of short and of long samples; windows and global batches reorder it."""
    parts = [
        ListSource(range(90), name=f"{size}", columns={"tokens": [size] * 90})
        for size in (1, 20)
    ]
    return BlendDataset((parts[0], weight), (parts[1], 1))


@pytest.mark.parametrize(
    ("dataset", "items", "options"),
    [
        (in_turn(), 700, {}),
        (BatchDataset(in_turn(), 2, list), 300, {}),
        (halves(scheme="round_robin"), 300, {"ranks": 2}),
        (PackingDataset(halves(), 512, in_order, list), 260, {"lanes": 8}),
        (FilterDataset(halves(), bool), 300, {"ranks": 2}),
        (BatchDataset(halves(16, 1), 4, list), 60, {}),
        (PackDataset(uneven(), "tokens", 40, list), 30, {}),
        (
            BatchDataset(uneven(9), 4, list, level="tokens", global_batch_size=400),
            40,
            {},
        ),
    ],
)
def test_the_alarm_is_silent_while_what_was_asked_for_comes(
    dataset, items, options, caplog
):
    loader = loader_of(dataset, **options)
    for _ in range(4):
        take(loader, items // 4)
        assert loader.report().warnings == ()
    assert not [each for each in caplog.records if "ledger:" in each.message]


def test_a_new_place_begins_a_new_count():
    loader = loader_of(BatchDataset(told(20, "a"), 5, list))
    take(loader, 3)
    state = loader.state_dict()
    take(loader, 3)
    loader.load_state_dict(state)
    take(loader, 1)
    assert loader.report().total.counts.samples == 20  # 15 before the state, 5 since
    assert loader.report().ranks[0].items == 1
    loader.rewind()
    assert loader.report().total.counts.samples == 0
    assert loader.last_sources == []


def test_a_loop_that_was_left_goes_on_and_nothing_counts_twice():
    loader = loader_of(RepeatDataset(told(20, "a")))
    first, again = list(islice(loader, 7)), list(islice(loader, 3))
    assert first[-1] not in again
    assert loader.report().total.counts.samples == 7 + 3


def test_padding_has_no_sources():
    loader = loader_of(BatchDataset(told(20, "a"), 5, list), rank=2, ranks=3)
    assert len(list(loader)) == 2
    assert loader.padding
    assert loader.last_sources == []
    report = loader.report()
    assert (report.total.counts.samples, report.ranks[0].padding) == (5, 1)


def test_loops_of_a_number_of_steps():
    loader = loader_of(EpochizeDataset(RepeatDataset(told(20, "a")), 6))
    assert len(list(loader)) + len(list(loader)) == 12
    assert loader.report()["a"].counts.samples == 12


def test_it_is_shown_in_whatever_room_there_is(capsys, monkeypatch):
    loader = loader_of(
        BatchDataset(nested(), 10, weighed_batch), ledger=Ledger("tokens")
    )
    take(loader, 10)
    report = loader.report()
    assert capsys.readouterr().out == ""
    print(report)
    shown = capsys.readouterr().out
    assert shown.count("asked %") == 1
    assert report._repr_html_().count("asked %") == 1
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, str(report).splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    rows = [
        replace(row, counts=replace(row.counts, effective=1234567.0))
        for row in report.rows
    ]
    wide = replace(
        report,
        rows=tuple(rows),
        scope=replace(report.scope, has_weights=True),
    )
    for width in (30, 60, *range(78, 90)):
        console = Console(width=width, color_system=None)
        with console.capture() as said:
            console.print(wide)
        assert set(str(wide).replace("─", "").split()) <= set(said.get().split()), width
        assert max(map(len, said.get().splitlines())) <= width
    assert "eff. size" in str(report)
    assert (
        repr(loader)
        == f"SavableDataLoader({loader.dataset!r}, rank 0 of 1, num_workers=0)"
    )
    assert all(
        len(repr(each)) < 200 for each in (report, loader, simulate(loader.dataset, 9))
    )
    assert report.as_json()["rows"][0]["samples"] == 100


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Ledger("tokens", len), "not both"),
        (lambda: Ledger(item_cost="tokens"), "Ledger\\(cost=...\\)"),
        (lambda: Ledger(3), "name of a column"),
        (lambda: loader_of(told(3, "a"), ledger="tokens"), "instance of Ledger"),
        (lambda: loader_of(told(3, "a"), ledger=False).report(), "ledger=False"),
        (lambda: report_after(told(3, "a"), 1, ledger=Ledger("tokns")), "tokens"),
        (
            lambda: report_after(
                told(3, "a"), 1, ledger=Ledger(item_cost=lambda _: -1)
            ),
            "-1",
        ),
        (
            lambda: report_after(told(3, "a"), 1, ledger=Ledger(item_cost=str)),
            "a number >= 0",
        ),
    ],
)
def test_what_it_is_told_wrongly_is_said(made, said):
    with pytest.raises(ConfigError, match=said):
        made()


def test_an_unknown_part_is_told_those_there_are():
    with pytest.raises(KeyError, match="texts/web"):
        report_after(nested(), 5)["texts/wbe"]


def costly(name, cost):
    return ListSource(
        [("sample", name, n) for n in range(40)],
        name=name,
        columns={"tokens": [cost] * 40},
    )


def test_a_blend_that_weighs_tokens_is_reported_in_tokens():
    parts = {"short": costly("short", 10), "long": costly("long", 40)}
    blend = BlendDataset(parts, weights={"short": 1, "long": 1}, unit="tokens")
    for dataset, items in ((blend, 1000), (BatchDataset(blend, 10, list), 100)):
        report = report_after(dataset, items)
        short, long = report["short"], report["long"]
        assert (
            short.shares.unit,
            short.shares.requested,
            short.shares.delivered,
            short.shares.planned,
        ) == (
            "tokens",
            *[0.5] * 3,
        )
        assert (short.counts.samples, long.counts.samples) == (800, 200)
        assert (short.counts.cost, long.counts.cost) == (8000, 8000)
        assert not report.warnings
    loader = loader_of(blend)
    take(loader, 500)
    other = loader_of(blend)
    other.load_state_dict(loader.state_dict())
    take(other, 500)
    assert other.report()["long"].shares.delivered == pytest.approx(0.5)
    assert other.report()["long"].counts.cost == 8000  # of the whole run


def test_shares_of_tokens_that_changed_are_asked_of_what_came_since_then():
    parts = {"short": costly("short", 10), "long": costly("long", 40)}
    loader = loader_of(
        BlendDataset(parts, weights={"short": 1, "long": 1}, unit="tokens")
    )
    take(loader, 500)  # 4,000 tokens of each
    loader.set_weights({"short": 1, "long": 3})
    take(loader, 700)  # 4,000 and 12,000
    report = loader.report()
    assert [report[name].counts.cost for name in parts] == [8000, 16000]
    assert [report[name].shares.requested for name in parts] == [
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    ]
    assert [report[name].shares.delivered for name in parts] == [
        report[name].shares.requested for name in parts
    ]
    assert not report.warnings


def test_costs_that_only_items_tell_are_counted_by_a_function_of_items():
    parts = {"short": told(40, "short"), "long": told(40, "long")}
    unit = ItemCost(lambda sample: 1 if sample[1] == "short" else 4)
    blend = BlendDataset(parts, weights={"short": 1, "long": 1}, unit=unit)
    report = report_after(blend, 500)
    assert (report["short"].counts.samples, report["short"].shares.requested) == (
        400,
        0.5,
    )
    assert report["short"].shares.delivered is None
    by_item = Ledger(item_cost=lambda sample: 1 if sample[1] == "short" else 4)
    report = report_after(blend, 500, ledger=by_item)
    assert report["short"].shares.delivered == pytest.approx(0.5, abs=0.01)


def test_a_run_over_an_edited_mix_counts_from_there_and_says_so():
    def mix(**weights):
        return BatchDataset(
            BlendDataset({n: told(40, n) for n in weights}, weights=weights), 4, list
        )

    loader = loader_of(mix(a=3, b=1))
    take(loader, 50)
    edited = loader_of(mix(b=1, c=1))
    edited.load_state_dict(loader.state_dict(), on_mismatch="remap")
    items = take(edited, 30)
    report = edited.report()
    assert (
        {row.name: row.counts.samples for row in report.sources}
        == counted(items)
        == {"b": 60, "c": 60}
    )
    assert (report["b"].shares.requested, report["b"].shares.delivered) == (0.5, 0.5)
    assert "the mix was edited" in str(report)
    assert not report.warnings
