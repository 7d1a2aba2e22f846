"""Arguments that Megatron-Energon has and that have no use here: taken, with a word in the log."""

from __future__ import annotations

import logging

_log = logging.getLogger("energize")

_MARK = (
    "it marks a function as one that keeps no state, so that a sample can be restored; here items "
    "are functions of their position and every one can be"
)
_DESCRIBED = (
    "it is printed when a pipeline is described; here dataset.describe() names the functions"
)
_STATE_COPIES = (
    "it says how often workers copy their state, from which a resume reads again; here the state "
    "of a run is kept with every item and a resume reads nothing again"
)
_COLLECTING = "it says when workers run the garbage collector; here workers do not stop to collect"
_WATCHING = (
    "it says how long to wait for an item; here get_loader has it, as watchdog_timeout_seconds, "
    "watchdog_initial_timeout_seconds and fail_on_timeout"
)

_TOLERANCE = (
    "it says how many calls in a row may fail; here all failures of a loader are counted, and "
    "failure_budget of get_loader says how many there may be"
)

IGNORED: dict[str, str] = {
    "batcher_config": _DESCRIBED,
    "batcher_stateless": _MARK,
    "checkpoint_every_min_n_samples": _STATE_COPIES,
    "checkpoint_every_sec": _STATE_COPIES,
    "every_n_iter": _COLLECTING,
    "fail_on_timeout": _WATCHING,
    "failure_tolerance": _TOLERANCE,
    "filter_fn_config": _DESCRIBED,
    "final_packer_failure_tolerance": _TOLERANCE,
    "final_packer_stateless": _MARK,
    "freeze": _COLLECTING,
    "gc_collect_every_n_steps": _COLLECTING,
    "gc_freeze_at_start": _COLLECTING,
    "handler": (
        "it is told of what functions raise, and is passed over since 7.0; here "
        "WorkerConfig(global_error_handler=) is told, or on_error of get_loader"
    ),
    "index_sqlite_tmp_path": (
        "it says where the index is built before it is moved; here it is built beside its place"
    ),
    "initial_timeout_seconds": _WATCHING,
    "iter_map_fn_config": _DESCRIBED,
    "join_index": (
        "it names the file of what belongs together; here that comes from the index of the folders"
    ),
    "len_map_fn": (
        "it says how many items a function of a stream gives; here only reading tells, and "
        "EpochizeDataset says how many make an epoch"
    ),
    "map_fn_config": _DESCRIBED,
    "n_checkpoints": _STATE_COPIES,
    "packer_config": _DESCRIBED,
    "parallel_shard_iters": (
        "it says between how many open shards a worker shuffles; here every sample of a dataset "
        "is shuffled with every other"
    ),
    "part_filter": (
        "it says which parts of a sample are read; a line of JSON is one part and is read whole"
    ),
    "pre_packer_failure_tolerance": _TOLERANCE,
    "reset_after_epoch": (
        "it says whether the input starts anew after each epoch; here an epoch goes on where the "
        "one before it ended, and EpochizeDataset and RepeatDataset say where passes end"
    ),
    "restart": (
        "it says whether passes begin anew when an epoch was left; here an epoch goes on after the "
        "last item delivered"
    ),
    "sample_encoder_failure_tolerance": _TOLERANCE,
    "sample_encoder_stateless": _MARK,
    "sample_type": (
        "it checks the type of the samples of a dataset; here dataset.yaml names the type, and "
        "values that contradict it are an error"
    ),
    "stateless_iter_fn": _MARK,
    "stateless_map_fn": _MARK,
    "timeout_seconds": _WATCHING,
    "worker_debug_path": (
        "it names a file for events of workers; here LogSampleDataset writes which samples were "
        "read, to the logger 'energize.samples'"
    ),
    "worker_log_level": (
        "it says how much workers write to worker_debug_path; here the level of the logger "
        "'energize' does"
    ),
    "worker_rotation_offset": (
        "it moves shards to other workers; here items fall to ranks and workers in turn"
    ),
}
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
