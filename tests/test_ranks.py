"""Which rank a process is: launchers' variables, torch.distributed, what is given."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from energize import ConfigError, LoaderError, WorkerConfig, get_loader
from energize.core.lanes import ALONE, Ranks, current_ranks
from energize.loader.agreement import Agreement
from energize.nodes import Lane
from tests.support.datasets import numbers
from tests.support.loading import take
from tests.support.tables import check_faults, row

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "6"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4"}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "7"}
SBATCH = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "16", "SLURM_PROCID": "0"}
SRUN = SBATCH | {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "12"}

VARIABLES = ("RANK", "WORLD_SIZE", *OPEN_MPI, *MVAPICH, *HYDRA, *SRUN)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_launchers():
    rows = {
        "nothing": ({}, ALONE),
        "a local rank only": ({"LOCAL_RANK": "1", "SLURM_JOB_ID": "17"}, ALONE),
        "torchrun": (TORCHRUN, Ranks(3, 8)),
        "Open MPI": (OPEN_MPI, Ranks(2, 6)),
        "MVAPICH": (MVAPICH, Ranks(1, 4)),
        "Hydra": (HYDRA, Ranks(5, 7)),
        "srun": (SRUN, Ranks(9, 12)),
        "sbatch: the script itself, whatever the job has asked for": (SBATCH, ALONE),
        "srun, which starts one torchrun on each node": (SRUN | TORCHRUN, Ranks(3, 8)),
        "mpirun under srun": (SRUN | OPEN_MPI, Ranks(2, 6)),
        "mpirun with a word of Hydra": (OPEN_MPI | {"PMI_RANK": "0"}, Ranks(2, 6)),
        "half of Hydra": ({"PMI_RANK": "5"}, ALONE),
        "Lightning": (
            {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"},
            Ranks(1, 2),
        ),
        "Lightning on one node": ({"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, Ranks(0, 2)),
        "a second node": (
            {
                "WORLD_SIZE": "8",
                "LOCAL_RANK": "1",
                "GROUP_RANK": "1",
                "LOCAL_WORLD_SIZE": "4",
            },
            Ranks(5, 8),
        ),
    }
    for name, (environment, ranks) in rows.items():
        with row(name):
            found = current_ranks(environment=environment)
            assert (found, found.group) == (ranks, None)


def test_what_is_no_rank_is_named():
    environments = [
        ({"RANK": "3"}, "torchrun...RANK='3', WORLD_SIZE=None"),
        ({"WORLD_SIZE": "8"}, "RANK=None, WORLD_SIZE='8'"),
        (
            {"WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "1"},
            "RANK=None, WORLD_SIZE='8'",
        ),
        ({"WORLD_SIZE": "8", "LOCAL_RANK": "x"}, "RANK=None, WORLD_SIZE='8'"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "2"}, "rank 2, world_size 2"),
        ({"RANK": "", "WORLD_SIZE": "8"}, "RANK=''"),
        ({"RANK": "one", "WORLD_SIZE": "8"}, "RANK='one'"),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, "RANK='-1'"),
        ({"RANK": "1.0", "WORLD_SIZE": "8"}, "RANK='1.0'"),
        ({"RANK": "²", "WORLD_SIZE": "8"}, "RANK='²'"),
        (
            {"RANK": "8", "WORLD_SIZE": "8"},
            "RANK and WORLD_SIZE...rank 8, world_size 8",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "0"},
            "RANK and WORLD_SIZE...rank 0, world_size 0",
        ),
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "many"},
            "Open MPI...OMPI_COMM_WORLD_SIZE='many'",
        ),
        (HYDRA | {"PMI_RANK": "7"}, "PMI_RANK and PMI_SIZE...rank 7, world_size 7"),
        (
            SRUN | {"SLURM_PROCID": "x"},
            "SLURM_PROCID='x', SLURM_STEP_NUM_TASKS='12'",
        ),
        (
            SRUN | {"SLURM_PROCID": "12"},
            "SLURM_PROCID and SLURM_STEP_NUM_TASKS...rank 12",
        ),
        (SRUN | {"RANK": "1"}, "WORLD_SIZE=None"),
    ]
    given = [
        ({"rank": 2, "world_size": 2}, "rank 2, world_size 2"),
        ({"rank": -1, "world_size": 2}, "rank must be a whole number >= 0, got -1"),
        (
            {"rank": 0, "world_size": 0},
            "world_size must be a whole number >= 1, got 0",
        ),
        ({"rank": 1}, "both rank and world_size, or neither"),
        ({"world_size": 2}, "both rank and world_size, or neither"),
        ({"rank": "0", "world_size": 2}, "rank must be a whole number...got '0'"),
        ({"rank": True, "world_size": 2}, "rank must be a whole number...got True"),
        ({"rank": 0.0, "world_size": 2}, "rank must be a whole number...got 0.0"),
        ({"num_workers": -1}, "num_workers must be a whole number >= 0"),
        ({"num_workers": None}, "num_workers must be a whole number >= 0, got None"),
        ({"seed_offset": None}, "seed_offset must be a whole number, got None"),
        ({"seed_offset": 1.5}, "seed_offset must be a whole number, got 1.5"),
    ]
    faults = {
        str(e): (lambda e=e: current_ranks(environment=e), said)
        for e, said in environments
    }
    faults |= {str(g): (lambda g=g: WorkerConfig(**g), said) for g, said in given}
    for lane in ((0, 0), (2, 2), (-1, 2)):
        faults[f"lane {lane}"] = lambda lane=lane: Lane(*lane), "0 <= index < count"
    for group in ("group", 3, object()):
        config = WorkerConfig(data_parallel_group=group)
        faults[f"group {group}"] = (
            config.ranks,
            "data_parallel_group must be a process group",
        )
    check_faults(ConfigError, faults)


@pytest.mark.parametrize(
    "half", [{"WORLD_SIZE": "2"}, {"RANK": "1"}, {"WORLD_SIZE": "many"}]
)
def test_torch_distributed_is_asked_first(half):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert current_ranks(environment=half) == Ranks(0, 1)
        with pytest.raises(
            ConfigError, match=r"this process is rank 0 of 1.* RANK=0, WORLD_SIZE=2"
        ):
            current_ranks(environment={"RANK": "0", "WORLD_SIZE": "2"})
    finally:
        dist.destroy_process_group()


def test_a_loader_keeps_no_group_that_was_destroyed():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = weakref.ref(dist.group.WORLD)
    items = iter(get_loader(numbers(6)))
    assert next(items) == 0
    ranks = WorkerConfig(data_parallel_group=dist.group.WORLD).ranks()
    dist.destroy_process_group()
    assert group() is None
    assert next(items) == 1
    with pytest.raises(LoaderError, match="the process group was destroyed"):
        Agreement(ranks, 1.0).numbers([1], "anything")


def test_ranks_that_are_given_need_no_environment(monkeypatch):
    monkeypatch.setenv("RANK", "nonsense")
    config = WorkerConfig(rank=1, world_size=2)
    assert config.ranks() == Ranks(1, 2)
    assert take(get_loader(numbers(6), worker_config=config), 3) == [1, 3, 5]
    with pytest.raises(ConfigError, match="RANK='nonsense', WORLD_SIZE=None"):
        next(iter(get_loader(numbers(6))))


def test_a_loader_takes_its_rank_when_it_is_iterated_over(monkeypatch):
    loader = get_loader(numbers(12))
    assert len(loader) == 12
    copy = pickle.loads(pickle.dumps(loader))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    for each in (loader, copy):
        assert len(each) == 4
        assert list(each) == [1, 4, 7, 10]


def test_a_config_that_travels(monkeypatch):
    chosen = WorkerConfig(rank=1, world_size=4, num_workers=3, seed_offset=7)
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    assert hash(pickle.loads(pickle.dumps(chosen))) == hash(chosen)
    later = pickle.loads(pickle.dumps(WorkerConfig(num_workers=2)))
    assert later.ranks() == ALONE
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (later.rank, later.world_size, later.num_workers) == (2, 3, 2)


@pytest.fixture(scope="class")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A process group of this process alone."""
    file: Path = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


class TestProcessGroup:
    def test_is_taken(self, world):
        ranks = WorkerConfig().ranks()
        assert ranks == Ranks(0, 1)
        assert ranks.group() is world
        assert (
            WorkerConfig.default_worker_config(num_workers=2).ranks().group() is world
        )

    def test_torchrun_that_says_otherwise(self, world, monkeypatch):
        for name, value in TORCHRUN.items():
            monkeypatch.setenv(name, value)
        loader = get_loader(numbers(4))
        said = r"rank 0 of 1 in torch.distributed, but the environment has RANK=3, WORLD_SIZE=8.*data_parallel_group"
        with pytest.raises(ConfigError, match=said):
            iter(loader)
        with pytest.raises(ConfigError, match=said):
            len(loader)
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert list(loader) == [0, 1, 2, 3]

    def test_ranks_that_are_given_settle_the_disagreement(self, world, monkeypatch):
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("WORLD_SIZE", "8")
        given = WorkerConfig(rank=3, world_size=8).ranks()
        assert given == Ranks(3, 8)
        assert given.group is None  # the ranks of the process group are others
        assert WorkerConfig(data_parallel_group=world).ranks().group() is world

    def test_ranks_against_a_group(self, world):
        config = WorkerConfig(rank=1, world_size=2, data_parallel_group=world)
        with pytest.raises(
            ConfigError, match=r"rank 1 of 2 is given.*rank 0 of 1 in data_par"
        ):
            config.ranks()
        with pytest.raises(ConfigError, match="Pass one of the two"):
            iter(get_loader(numbers(4), worker_config=config))
        agreed = WorkerConfig(rank=0, world_size=1, data_parallel_group=world)
        assert agreed.ranks().group() is world

    def test_a_device_mesh(self, world):
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
        for group in (mesh, mesh["data"]):
            assert WorkerConfig(data_parallel_group=group).ranks() == Ranks(0, 1)

    def test_a_group_stays_behind_when_a_config_travels(self, world):
        config = WorkerConfig(data_parallel_group=world, num_workers=2)
        other = pickle.loads(pickle.dumps(config))
        assert other.data_parallel_group is None
        assert (other.rank, other.world_size, other.num_workers) == (0, 1, 2)
        assert other == WorkerConfig(rank=0, world_size=1, num_workers=2)
