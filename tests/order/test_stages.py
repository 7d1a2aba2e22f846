"""Stage plans: which stage a step belongs to, and what cannot be a plan."""

from __future__ import annotations

from energize import ConfigError
from energize.experimental import Stage, StagePlan
from tests.support.tables import check_faults


def stage(name, start=0, end=None, **options):
    return Stage(name, start, end, dataset=options.pop("dataset", name), **options)


def three(total=15):
    return StagePlan([stage("a", 0, 5), stage("b", 5, 10), stage("c", 10)], total)


def spans(*stages, total=None, default=None):
    plan = StagePlan(stages, total, default)
    return [(each.name, each.start_step, each.end_step) for each in plan.stages]


def test_a_last_stage_that_is_too_long_is_cut_with_a_warning(caplog):
    assert spans(stage("a", 0, 50), total=20) == [("a", 0, 20)]
    assert "'a' ends at step 50, but training ends after 20 steps" in caplog.text


def test_what_cannot_be_a_plan():
    def plan(*stages, total=10, default=None):
        return lambda: StagePlan(stages, total, default)

    huge = "items, more than 2**62"
    no_list = "StagePlan: stages must be a list of Stage(...), got "
    taken = "the name is taken by the one that fills the steps"
    faults = {
        "gap": (
            plan(stage("a", 0, 4), stage("b", 5)),
            "steps 4 to 5 belong to no stage: stage 'a'",
        ),
        "overlap": (
            plan(stage("a", 0, 6), stage("b", 5)),
            "steps 5 to 6 belong to two stages",
        ),
        "early end": (
            plan(stage("a", 0, 8)),
            "steps 8 to 10 belong to no stage: stage 'a'",
        ),
        "at the end": (plan(stage("a"), stage("b", 10)), "stage 'b' would never run"),
        "after the end": (
            plan(stage("a"), stage("b", 100)),
            "stage 'b' would never run",
        ),
        "same start": (
            plan(stage("a"), stage("b")),
            "'a' and stage 'b' both start at step 0",
        ),
        "same name": (
            plan(stage("a"), stage("a", 5)),
            "the name is taken by the stage that starts at",
        ),
        "leading gap": (
            plan(stage("a", 3)),
            "steps 0 to 3 belong to no stage: stage 'a'",
        ),
        "nothing": (plan(), "stages and default are missing"),
        "start": (
            plan(stage("a", -3)),
            "stage 'a': start_step must be a whole number >= 0, got -3",
        ),
        "end": (
            plan(stage("a", 5, 5)),
            "stage 'a': end_step must be a whole number >= 6, got 5",
        ),
        "no name": (plan(stage("  ")), "name must be a non-empty text"),
        "a number": (plan(stage(7)), "name must be a non-empty text"),
        "length": (
            plan(stage("a", seq_len=0)),
            "stage 'a': seq_len must be a whole number >= 1",
        ),
        "seed": (
            plan(stage("a", seed=-1)),
            "stage 'a': seed must be a whole number >= 0",
        ),
        "items": (
            plan(stage("a", items_per_step=0)),
            "items_per_step must be a whole number",
        ),
        "bool": (
            plan(stage("a", True)),
            "start_step must be a whole number >= 0, got True",
        ),
        "batch": (
            plan(stage("a", batch=[1])),
            "stage 'a': batch must be a mapping of settings",
        ),
        "steps": (
            plan(stage("a"), total=0),
            "total_steps must be a whole number >= 1, got 0",
        ),
        "first": (plan(stage("d", 3), default=stage("d")), taken),
        "later": (plan(stage("a", 3), stage("d", 8), default=stage("d")), taken),
        "unused": (
            plan(stage("a"), default=stage("d")),
            "'d' would never run: stage 'a' starts",
        ),
        "default": (plan(stage("a", 5), default="web"), f"{no_list}'web'"),
        "many": (plan(stage("a", items_per_step=8), total=10**18), huge),
        "far": (plan(stage("a"), stage("b", 10**19), total=None), huge),
    }
    for each in (None, stage("a"), {"a": stage("a")}, ["a"], [("a", 0)], [None]):
        faults[f"{each}"] = lambda e=each: StagePlan(e, 10), no_list
    for step in (-1, 1.5, True, None):
        faults[f"step {step}"] = (
            lambda s=step: three().at(s),
            "a step must be a whole number",
        )
    check_faults(ConfigError, faults)
    several = plan(
        stage("a", 0, 4, location="run.yaml:3"),
        stage("b", 5, 8),
        stage("c", 7),
        total=7,
    )
    lines = (
        "run.yaml:3: stage 'a'...stage 'c' would never run...steps 7 to 8 belong to two"
    )
    check_faults(ConfigError, {"all are told together": (several, lines)})
