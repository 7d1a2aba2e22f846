"""Settings shared by all tests."""

import gc
import os
import re
import signal
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.register_profile(
    "sweep", parent=settings.get_profile("suite"), max_examples=1000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# One thread in each process, as in workers: several processes share a few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A process started in the background ignores Ctrl-C, and so do all that it starts; the
# tests that send it mean a process at a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests do not wait for the disk, for no machine stops in the middle of them. What is
# written in which order is tested in processes of their own.
os.fsync = lambda descriptor: None

LONG = (
    *("test_examples", "test_kills", "test_trainers", "test_rank_groups", "test_fuzz"),
    *(
        "test_programs",
        "test_golden",
        "test_benchmarks",
        "test_laws",
        "test_live_weights",
    ),
)
"""Files that take long, by what they take."""


def pytest_configure(config):
    config.option.loadscopereorder = False  # which is by the number of tests alone


def pytest_ignore_collect(collection_path, config):
    """Modules without a test of the run are not imported: importing all of them takes
    longer than many a test."""
    if not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    if config.option.markexpr.startswith("not slow and not jobs "):
        wanted = not re.search(r"^pytestmark = .*mark\.jobs", text, re.MULTILINE)
    elif config.option.markexpr.startswith("(jobs "):
        wanted = re.search(r"mark\.(jobs|energon|streaming)", text)
    else:
        return None
    return True if not wanted or f"{collection_path.name}::" in SLOW else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """What takes long waits more than it computes: for other processes, and for
    deadlines."""
    return len(os.sched_getaffinity(0)) + (
        not config.option.markexpr.startswith("not ")
    )


SLOW = (
    "test_trainers.py::",
    "test_token_mean.py::",
    "test_a_killed_job_is_trained_on_what_one_process_is",
    "test_a_change_of_any_stream_acts_at_one_slot_on_any_ranks_and_workers",
    "test_a_bad_network_changes_nothing_of_a_run",
    "test_workers_killed_and_stopped_at_random[large stream-fork",
    "test_it_runs[packing]",
    "test_it_runs[packed_training]",
    "test_it_runs[levelling_several]",
    "test_four_ranks_give_the_parameters_of_one_process",
    "test_without_align_it_hangs_or_fails_in_a_collective[fsdp",
    "test_without_align_it_hangs_or_fails_in_a_collective[ddp-budget]",
    "as_one_process_and_resumes_on_2_and_3_ranks[fsdp-together-fixed]",
    "as_one_process_and_resumes_on_2_and_3_ranks[ddp-always",
    "as_one_process_and_resumes_on_other_ranks[one-always]",
    "test_energon_reads_what_energize_prepared[2]",
    "test_both_write_the_same_files[1",
    "test_both_write_the_same_files[2-False]",
    "test_a_client_runs_and_what_is_resumed_is_equal[ddp]",
    "test_lightnings_own_launcher",
    "leaves_no_shard_and_frees_the_folder[terminate]",
    "leaves_no_shard_and_frees_the_folder[interrupt]",
    "test_a_change_at_any_step_loses_no_sample_on_any_ranks",
    "on_2_and_3_ranks[fsdp-together-budget]",
    "test_without_align_it_hangs_or_fails_in_a_collective[ddp-fixed]",
    "test_it_runs[levelling]",
    "test_it_runs[planned_packs]",
    "test_energize_starts_anywhere_and_a_library_that_replays_does_not",
    "test_a_batch_that_is_not_the_next_one_is_no_measurement",
    "test_what_the_pages_say_of_packs_and_levels",
    "test_ray_whose_worker_is_killed",
    "test_any_item_that_workers_made",
    "test_of_10_000_sources[blend]",
    "test_level_ranks_give_the_parameters_of_one_process",
    "test_what_passes_is_not_seen_and_what_lasts_is_an_error[webdataset]",
    "test_energon_finds_the_same_leaves[val]",
    "test_the_losses_of_a_pack_are_those_of_its_samples[qwen2_vl-numbers0]",
)
"""The longest jobs, which run with `-m slow` alone: all others end in minutes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What takes long begins first, so that no worker ends long after the others."""
    for item in items:
        if any(text in item.nodeid for text in SLOW):
            item.add_marker(pytest.mark.slow)
    places = {name: place for place, name in enumerate(LONG)}
    tests = Counter(item.path for item in items)
    items.sort(
        key=lambda each: (places.get(each.path.stem, len(LONG)), -tests[each.path])
    )


def pytest_collection_finish():
    """What all tests have imported is left out of every collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def gives_up_soon():
    """A filter of which nothing comes is an error after few items."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("energize.core.stream._MOST", 3000)
        yield
