"""Nodes, ranks and workers of a run."""

from __future__ import annotations

import os

from torch.utils.data import get_worker_info

from energize.core.checks import checked_whole
from energize.core.lanes import WorkerConfig
from energize.errors import ConfigError

__all__ = ["World"]


class World:
    """The place of this process among the nodes, ranks and workers of a run.

    Args:
        num_nodes: Number of nodes.
        ranks_per_node: Ranks of each node.
        workers_per_rank: DataLoader workers of each rank, at least 1.
        worker: This worker among those of all ranks.

    Example:
        >>> world = World(num_nodes=2, ranks_per_node=4, workers_per_rank=3, worker=17)
        >>> world.node, world.rank, world.rank_of_node, world.worker_of_rank
        (1, 5, 1, 2)
    """

    def __init__(
        self, num_nodes: int, ranks_per_node: int, workers_per_rank: int, worker: int
    ) -> None:
        self.num_nodes = num_nodes
        self.ranks_per_node = ranks_per_node
        self.workers_per_rank = workers_per_rank
        self.worker = worker
        self.num_ranks = num_nodes * ranks_per_node
        self.num_workers = self.num_ranks * workers_per_rank
        self.rank, self.worker_of_rank = divmod(worker, workers_per_rank)
        self.node, self.rank_of_node = divmod(self.rank, ranks_per_node)
        self.is_leader = worker == 0
        self.is_local_leader = self.rank_of_node == self.worker_of_rank == 0

    @classmethod
    def detect(cls) -> World:
        """Return the place of this process.

        The ranks of a node are `LOCAL_WORLD_SIZE` of the environment, 1 without it.
        """
        ranks = WorkerConfig().ranks()
        ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        info = get_worker_info()
        workers = 1 if info is None else info.num_workers
        worker_of_rank = 0 if info is None else info.id
        return cls(
            max(1, ranks.world_size // ranks_per_node),
            min(ranks_per_node, ranks.world_size),
            workers,
            ranks.rank * workers + worker_of_rank,
        )

    def replicate(self, replication: int) -> World:
        """Return the world in which ranks that read the same samples are one rank.

        Args:
            replication: Number of consecutive ranks that read the same samples.

        Returns:
            The smaller world; a single node if nodes do not divide its ranks.

        Raises:
            ConfigError: If it does not divide the number of ranks.
        """
        if self.num_ranks % checked_whole(replication, "replication", 1):
            raise ConfigError(
                f"StreamingDataset: replication={replication} does not divide the "
                f"{self.num_ranks} ranks"
            )
        ranks = self.num_ranks // replication
        nodes = 1 if ranks % self.ranks_per_node else ranks // self.ranks_per_node
        rank = self.rank // replication
        return World(
            nodes,
            ranks // nodes,
            self.workers_per_rank,
            rank * self.workers_per_rank + self.worker_of_rank,
        )
