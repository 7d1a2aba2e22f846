"""Arguments that Megatron-Energon has and that have no use here: taken, with a word in the log."""

from __future__ import annotations

import logging

_log = logging.getLogger("energize")

_MARK = (
    "it marks a function that keeps no state, so that a sample can be restored; here every item "
    "can be, as items are functions of their position"
)
_FAILURES = (
    "it says how many calls in a row may fail; here all failures of a loader are counted, and "
    "failure_budget of get_loader says how many there may be"
)

_REASONS = {
    "batcher_stateless final_packer_stateless sample_encoder_stateless": _MARK,
    "stateless_iter_fn stateless_map_fn": _MARK,
    "batcher_config filter_fn_config iter_map_fn_config map_fn_config packer_config": (
        "it is printed when a pipeline is described; here dataset.describe() names the functions"
    ),
    "checkpoint_every_min_n_samples checkpoint_every_sec n_checkpoints": (
        "it says how often workers copy their state; here the state is kept with every item, and "
        "a resume reads nothing again"
    ),
    "every_n_iter freeze gc_collect_every_n_steps gc_freeze_at_start": (
        "it says when workers run the garbage collector; here workers do not stop to collect"
    ),
    "fail_on_timeout initial_timeout_seconds timeout_seconds": (
        "it says how long to wait for an item; here get_loader has it, as "
        "watchdog_timeout_seconds, watchdog_initial_timeout_seconds and fail_on_timeout"
    ),
    "failure_tolerance final_packer_failure_tolerance pre_packer_failure_tolerance": _FAILURES,
    "sample_encoder_failure_tolerance": _FAILURES,
    "handler": (
        "it is told of what functions raise; here WorkerConfig(global_error_handler=) is, or "
        "on_error of get_loader"
    ),
    "index_sqlite_tmp_path": "it says where the index is built; here that is beside its place",
    "join_index": "it names the file of what belongs together; here the folders' index tells it",
    "len_map_fn": (
        "it says how many items a function of a stream gives; here only reading tells, and "
        "EpochizeDataset says how many make an epoch"
    ),
    "parallel_shard_iters": (
        "it says between how many open shards a worker shuffles; here every sample of a dataset "
        "is shuffled with every other"
    ),
    "part_filter": (
        "it says which parts of a sample are read; a line of JSON is one part, read whole"
    ),
    "reset_after_epoch restart": (
        "it says whether an epoch begins the input anew; here it goes on where the one before it "
        "ended, and EpochizeDataset and RepeatDataset say where passes end"
    ),
    "sample_type": (
        "it checks the type of samples; here dataset.yaml names it, and values that contradict it "
        "are an error"
    ),
    "worker_debug_path worker_log_level": (
        "it says what workers write about their work; here LogSampleDataset logs which samples "
        "were read, and the logger 'energize' has a level"
    ),
    "worker_rotation_offset": (
        "it moves shards to other workers; here items go to ranks and workers in turn"
    ),
}

IGNORED = {name: reason for names, reason in _REASONS.items() for name in names.split()}
"""What each argument is for in Megatron-Energon, and why it has no use here."""

_said: set[tuple[str, str]] = set()


def accepted(owner: str, **values: object) -> None:
    """Say once for each (`owner`, argument) of `values`, at INFO on the logger `energize`, what an
    argument is for in Megatron-Energon and why it has no use here.

    `None` and `False` stand for an argument that was not given, of which nothing is said. Raises
    `TypeError`, as Python does, for an argument that Megatron-Energon does not have either; so
    what is left of `**kwargs` can be given as it is.

    >>> accepted("get_savable_loader", checkpoint_every_sec=60, n_checkpoints=None)
    >>> accepted("get_savable_loader", chekpoint_every_sec=60)
    Traceback (most recent call last):
        ...
    TypeError: get_savable_loader() got an unexpected keyword argument 'chekpoint_every_sec'
    """
    for name, value in values.items():
        if name not in IGNORED:
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}")
        if value is None or value is False or (owner, name) in _said:
            continue
        _said.add((owner, name))
        _log.info("%s: %s=%r has no effect: %s", owner, name, value, IGNORED[name])
