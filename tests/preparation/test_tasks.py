"""Folders that tasks prepare together: the bytes of one process, however they run and
end."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from energize.errors import ConfigError, PrepareError
from energize.preparation import prepare, prepare_checksums, prepare_columns
from energize.preparation.tasks import column_of
from energize.preparation.write import locked
from tests.cli.commands import run
from tests.support.tars import contents, samples, unprepared, write_tar

SHARDS = (3, 2, 4, 5, 1, 2, 7)
RATIOS = {
    "split_ratios": {"train": 2, "val": 1},
    "sample_type": "TextSample",
    "workers": 1,
}


def first_word(raw):
    """A word, and of every third sample none."""
    return None if raw["__index__"] % 3 == 2 else raw["txt"].decode()[:5]


EVERYTHING = {"checksums": True, "columns": {"size": "size:txt", "word": first_word}}
OPTIONS = (
    EVERYTHING,
    {"sqlite": False, "columns": {"n": lambda raw: len(raw["txt"]) / 2}},
    {},
)


def written(folder):
    """What all of it comes to; markers are what it was made of."""
    return {
        name: data for name, data in contents(folder).items() if "/tasks/" not in name
    }


def new(folder, shards=SHARDS):
    return unprepared(folder, shards, parts=("txt",))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("tasks", [1, 3, 8])
def test_any_number_of_tasks_in_any_order_write_what_one_process_writes(
    tmp_path, tasks, options
):
    together, alone = new(tmp_path / "together"), new(tmp_path / "alone")
    options = RATIOS | options
    report = prepare(alone, **options)
    order = [*range(tasks), *random.Random(tasks).choices(range(tasks), k=2)]
    random.Random(tasks).shuffle(order)
    counts = {}
    for task in order:
        counts |= prepare(together, **options, tasks=tasks, task=task).shard_counts
    assert counts == report.shard_counts
    for _ in range(2):
        merged = prepare(together, **options, tasks=tasks, merge=True)
        assert written(together) == written(alone)
    assert (merged.splits, merged.parts) == (report.splits, report.parts)
    assert [each.replace("together", "alone") for each in merged.notes] == [
        *report.notes
    ]
    prepare(together, **options, overwrite=True)
    assert contents(together) == contents(alone)  # which needs no markers any more


def test_columns_and_checksums_of_a_prepared_folder(tmp_path):
    folders = [new(tmp_path / name) for name in ("together", "alone")]
    for folder, given in zip(folders, ({"tasks": 3}, {}), strict=True):
        prepare(folder, **RATIOS)
        prepare_columns(folder, EVERYTHING["columns"], workers=1, **given)
        assert prepare_checksums(folder, workers=1, **given).samples == sum(SHARDS)
    assert written(folders[0]) == written(folders[1])


def test_what_was_ended_goes_on_and_what_changed_is_done_again(tmp_path):
    folder, alone = new(tmp_path / "ds"), new(tmp_path / "alone")
    seen = []
    prepare(folder, **RATIOS, tasks=3, task=1)
    before = contents(folder)
    prepare(
        folder, **RATIOS, tasks=3, task=1, on_progress=lambda *each: seen.append(each)
    )
    assert not seen
    assert contents(folder) == before
    for each in (folder, alone):
        write_tar(each / "parts/d3.tar", samples(3, 6, ("txt",)))
    with pytest.raises(
        PrepareError, match=r"shards: 0-2; task 1 ran .*: 'parts/d3.tar'"
    ):
        prepare(folder, **RATIOS, tasks=3, merge=True)
    prepare(folder, **RATIOS, tasks=3, task=0)
    prepare(folder, **RATIOS, tasks=3, task=2, sqlite=False)
    with pytest.raises(
        PrepareError, match=r"1-2; task 1 .*: 'parts/d3.tar'; task 2 .*: 'sqlite'"
    ):
        prepare(folder, **RATIOS, tasks=3, merge=True)
    prepare(folder, **RATIOS, tasks=3, task=2)
    with pytest.raises(PrepareError, match=r"and shards: 1; task 1"):
        prepare(folder, **RATIOS, tasks=3, merge=True)
    prepare(folder, **RATIOS, tasks=3)
    prepare(alone, **RATIOS)
    assert written(folder) == written(alone)
    with pytest.raises(PrepareError, match=r"0-2; task 0-2 ran .*: 'checksums'"):
        prepare(folder, **RATIOS, tasks=3, merge=True, checksums=True)


def test_a_marker_that_is_damaged_is_none(tmp_path):
    folder = new(tmp_path / "ds")
    for task in range(2):
        prepare(folder, **RATIOS, tasks=2, task=task)
    [_, marker] = sorted((folder / ".nv-meta/tasks/prepare-2").iterdir())
    whole = marker.read_bytes()
    for data in (
        b"",
        b"garbage" * 1000 + b"end\n",
        whole[:-1],
        whole[: len(whole) // 2],
    ):
        marker.write_bytes(data)
        with pytest.raises(PrepareError, match=r"not ended .*: 1"):
            prepare(folder, **RATIOS, tasks=2, merge=True)
    for old, made in ((b'["parts', b"[[parts"), (b'"columns": {}, "rows"', b'"rows"')):
        marker.write_bytes(whole.replace(old, made))
        with pytest.raises(
            PrepareError, match=r"00001.jsonl is damaged.*run task 1 again"
        ):
            prepare(folder, **RATIOS, tasks=2, merge=True)
    assert not [each for each in (folder / ".nv-meta").iterdir() if each.is_file()]


def test_refusals(tmp_path):
    folder = new(tmp_path / "ds")
    before = contents(folder)
    for wrong, kind, told in (
        ({"tasks": 3, "task": 3}, ConfigError, "0 to 2: got task 3"),
        ({"tasks": 3, "task": -1}, ConfigError, "0 to 2"),
        ({"tasks": 0}, ConfigError, "tasks must be a whole number"),
        ({"task": 1}, ConfigError, "need tasks"),
        ({"merge": True}, ConfigError, "need tasks"),
        ({"tasks": 2, "task": 0, "merge": True}, ConfigError, "exclude one another"),
        (
            {"tasks": 2, "task": 0, "fix_duplicates": True},
            ConfigError,
            "all shards at once",
        ),
        ({"tasks": 40, "merge": True}, PrepareError, "and shards: 0-39"),
    ):
        with pytest.raises(kind, match=told):
            prepare(folder, **RATIOS, **wrong)
        assert contents(folder) == before, wrong
    (folder / ".nv-meta").touch()
    with pytest.raises(PrepareError, match=r"\.nv-meta.*: cannot be written"):
        prepare(folder, **RATIOS, tasks=2, task=0)
    (folder / ".nv-meta").unlink()
    refused = pytest.raises(PrepareError, match="by another process")
    with locked(folder):  # by a merge, say
        for given in ({"tasks": 2, "task": 0}, {"tasks": 2, "merge": True}, {}):
            with refused:
                prepare(folder, **RATIOS, **given)
    with locked(folder, shared=True):  # by a task
        prepare(folder, **RATIOS, tasks=2, task=0)
        for given in ({"tasks": 2, "merge": True}, {}):
            with refused:
                prepare(folder, **RATIOS, **given)
    prepare(folder, **RATIOS)
    with pytest.raises(PrepareError, match="prepared already"):
        prepare(folder, **RATIOS, tasks=2, task=0)
    prepare(folder, **RATIOS, tasks=2, overwrite=True)
    with pytest.raises(PrepareError, match="prepared already"):
        prepare(folder, split_ratios={"train": 1}, tasks=2, merge=True)
    (folder / "parts/d6.tar").write_bytes((folder / "parts/d5.tar").read_bytes())
    for task in range(7):
        prepare(folder, **RATIOS, tasks=7, task=task, overwrite=True)
    with pytest.raises(PrepareError, match=r"00500000: in parts/d5.tar, parts/d6.tar"):
        prepare(folder, **RATIOS, tasks=7, merge=True, overwrite=True)
    (folder / "parts/d6.tar").write_bytes(b"x" * 1024)
    with pytest.raises(PrepareError, match="1 of 1 shards"):
        prepare(folder, **RATIOS, tasks=7, task=6, overwrite=True)


def test_numbers_and_words_of_two_tasks(tmp_path):
    folder = new(tmp_path / "ds")
    either = {
        "columns": {"x": lambda raw: "a" if raw["__shard__"] == "parts/d6.tar" else 1}
    }
    with pytest.raises(
        PrepareError, match="all samples have numbers, or all have words"
    ):
        prepare(folder, **RATIOS, **either, tasks=7)
    assert column_of([], "x").values.size == 0


def begun(folder, task):
    prepare(folder, **(RATIOS | EVERYTHING | {"workers": 2}), tasks=4, task=task)


def free(folder):
    with suppress(PrepareError), locked(folder):
        return True
    return False


@pytest.mark.jobs
def test_tasks_that_are_ended_in_the_middle_and_tasks_that_run_twice_at_once(tmp_path):
    folder, alone = (
        new(tmp_path / name, (300,) * 12) for name in ("together", "alone")
    )
    prepare(alone, **RATIOS, **EVERYTHING)
    draw, died, fork = random.Random(5), 0, multiprocessing.get_context("fork")
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, 0):
        running = [
            fork.Process(target=begun, args=(folder, task)) for task in (0, 1, 2, 3, 3)
        ]
        for each in running:
            each.start()
        while (
            number
            and not [*folder.rglob("*.tmp")]
            and any(each.is_alive() for each in running)
        ):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.1))
        for each in running if number else ():
            with suppress(ProcessLookupError):  # it has ended
                os.kill(each.pid, number)
        for each in running:
            each.join(60)
        codes = [each.exitcode for each in running]
        assert {*codes} <= {0, -number, 128 + number}
        died += len(codes) - codes.count(0)
        ended = {each.name for each in folder.rglob("*.jsonl")}
        while number and not free(folder):  # of what the killed ones had begun
            time.sleep(0.01)
        if len(ended) < 4:
            with pytest.raises(PrepareError, match="not ended"):
                prepare(folder, **RATIOS, **EVERYTHING, tasks=4, merge=True)
    assert died > 4
    assert prepare(folder, **RATIOS, **EVERYTHING, tasks=4, merge=True).samples == 3600
    assert written(folder) == written(alone)


GIVEN = (
    *(
        "--split-ratio",
        "2,1",
        "--sample-type",
        "TextSample",
        "--checksums",
        "--non-interactive",
    ),
    *("--column", "n=len:txt", "--num-workers", "1"),
)


def test_the_command(tmp_path):
    folder, alone = new(tmp_path / "ds"), new(tmp_path / "alone")
    run("prepare", alone, *GIVEN)
    for task in (1, 0, 1):
        assert "samples in" in run(
            "prepare", folder, *GIVEN, "--tasks", 2, "--task", task
        )
    assert "Indexed 24 samples in 7 shards" in run(
        "prepare", folder, *GIVEN, "--tasks", 2, "--merge"
    )
    run("prepare", folder, *GIVEN, "--tasks", 2, "--merge")
    assert written(folder) == written(alone)
    for each, given in ((folder, ("--tasks", 3)), (alone, ())):
        run("prepare", each, "--column", "m=size:txt", *given)
    assert written(folder) == written(alone)


def test_lint_by_tasks(tmp_path):
    folder = new(tmp_path / "ds", (40, 40, 40))
    prepare(folder, **RATIOS, columns={"n": "size:txt"}, checksums=True)
    shard = folder / "parts/d1.tar"
    shard.write_bytes(shard.read_bytes().replace(b"txt 1 7", b"t\xff\xff 1 7"))
    command = ("lint", folder, "--num-workers", 1)
    total = run(*command, code=1).splitlines()[-1]
    for task in range(3):
        told = run(*command, "--tasks", 3, "--task", task, code=int(task == 1))
        assert ("d1.tar" in told) == (task == 1)
    assert total == run(*command, "--tasks", 3, "--merge", code=1).splitlines()[-1]
    assert "and shards: 0-3" in run(*command, "--tasks", 4, "--merge", code=1)
    run(*command, "--tasks", 3, "--task", 0, "--split-parts", "train")
    assert "and shards: 0. Run" in run(*command, "--tasks", 3, "--merge", code=1)
    run(*command, "--tasks", 3, "--task", 0)
    mix = tmp_path / "mix.yaml"
    split = "{train: {path: ds}, val: {path: ds}}"
    mix.write_text(
        f"{{__module__: energize, __class__: MetadatasetV2, splits: {split}}}"
    )
    for task in range(3):
        run("lint", mix, "--tasks", 3, "--task", task, code=int(task == 1))
    assert total == run("lint", mix, "--tasks", 3, "--merge", code=1).splitlines()[-1]
    prepare(folder, **RATIOS, overwrite=True)
    for path in (folder, mix):
        told = run("lint", path, "--tasks", 3, "--merge", code=1)
        assert "and shards: 0-2. Run" in told
    told = run("lint", tmp_path / "nope", "--tasks", 2, "--on", "slurm", code=2)
    assert "nope does not exist" in told


@pytest.mark.parametrize(
    "options", [("--on", "ray"), ("--on", "mars"), ("--tasks", 2, "--submit")]
)
def test_where_tasks_run(tmp_path, options):
    told = run("prepare", new(tmp_path / "ds"), *GIVEN, *options, code=2)
    assert any(each in told for each in ("Pass --tasks", "'mars'", "--on slurm"))
    (tmp_path / "a.jsonl").write_text("{}")
    assert "is a file" in run(
        "prepare", tmp_path / "a.jsonl", "--tasks", 2, "--merge", code=2
    )


SBATCH = """#!/bin/bash
# Runs what it is given, at once, as the cluster would later: once for each number of an array.
[[ "$*" =~ --array=0-([0-9]+) ]] && tasks=$(seq 0 "${BASH_REMATCH[1]}") || tasks=none
script=$(cat)
for task in $tasks; do SLURM_ARRAY_TASK_ID=$task bash -c "$script" >> "$0.log" 2>&1; done
echo "$@" >> "$0.calls"
echo 42
"""


@pytest.mark.jobs
def test_slurm(tmp_path, monkeypatch):
    folder, alone = new(tmp_path / "d s"), new(tmp_path / "alone")
    run("prepare", alone, *GIVEN)
    command = (
        "prepare",
        folder,
        *GIVEN,
        "--tasks",
        3,
        "--on=slurm",
        "--gpus-per-task",
        "2",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["energize", *map(str, command), "--submit"])
    assert "sbatch is missing" in run(*command, "--submit", code=2)
    script = run(*command)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert run(*command, "--submit").strip() == "42"
    array, merge = (tmp_path / "sbatch.calls").read_text().splitlines()
    assert "--array=0-2 --ntasks=1 --cpus-per-task=1 --gpus-per-task=2" in array
    assert "--dependency=afterany:42" in merge
    assert written(folder) == written(alone)


@pytest.mark.jobs
def test_ray_whose_worker_is_killed(tmp_path):
    folder, alone = new(tmp_path / "ds", (60,) * 8), new(tmp_path / "alone", (60,) * 8)
    run("prepare", alone, *GIVEN)
    (folder / "parts/d5.tar").write_bytes(b"garbage" * 1000)
    command = [
        sys.executable,
        "-m",
        "energize",
        "prepare",
        "ds",
        *GIVEN,
        "--tasks",
        "4",
    ]
    options = {
        "cwd": tmp_path,
        "env": os.environ | RAY,
        "text": True,
        "stderr": subprocess.PIPE,
    }
    running = subprocess.Popen([*command, "--on", "ray"], **options)
    killed = set()
    while not killed and running.poll() is None:
        for pid in [*workers_of(running.pid)][:1]:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.05)
    told = running.communicate(timeout=100)[1]
    assert running.returncode == 1
    assert killed
    assert "Task 2 of 4: Error: 1 of 2 shards of ds cannot be used" in told
    assert "with these options and shards: 2. Run them" in told
    (folder / "parts/d5.tar").write_bytes((alone / "parts/d5.tar").read_bytes())
    run("prepare", folder, *GIVEN, "--tasks", 4, "--task", 2)
    run("prepare", folder, *GIVEN, "--tasks", 4, "--merge")
    assert written(folder) == written(alone)


RAY = {"RAY_USAGE_STATS_ENABLED": "0"}


def workers_of(driver):
    """The processes of Ray that run a task now for this driver."""
    found, parents = set(), {}
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            with (
                open(f"/proc/{each}/stat") as stat,
                open(f"/proc/{each}/cmdline") as line,
            ):
                parents[int(each)] = int(stat.read().rpartition(")")[2].split()[1])
                if line.read().startswith("ray::_ran"):
                    found.add(int(each))
        except OSError:
            continue

    def descends(pid):
        while pid > 1 and pid != driver:
            pid = parents.get(pid, 0)
        return pid == driver

    return {pid for pid in found if descends(pid)}
