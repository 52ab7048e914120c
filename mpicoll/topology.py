"""Which ranks share a node, a socket, a NUMA domain. Found by asking, never by arithmetic on ranks."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .algorithms.nodes import Nodes, members
from .errors import ArgumentError
from .locality import boot_id, numa_of, socket_of

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True, slots=True)
class Topology:
    """Where the ranks of a communicator run, for any placement; equal on all of them.

    Each field has an entry per rank. Nodes are numbered in the order of their lowest ranks. A rank's socket
    and NUMA domain are those of all the CPUs that it may run on, numbered by its machine; they are None
    where these CPUs belong to several, or nothing is known (fields left empty say so of all ranks).
    """

    node_of: tuple[int, ...]
    socket_of: tuple[int | None, ...] = ()
    numa_of: tuple[int | None, ...] = ()
    crowded: tuple[bool, ...] = ()  # whether the rank has to share its cores with others
    machine_of: tuple[int, ...] = ()  # nodes under one kernel (containers, virtual ones) are one machine

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> Topology:
        """The topology of a communicator: ranks that can share memory are on one node. Collective.

        A rank has to share its cores if the ranks of its machine that may run on one of them are more than
        they are. Nodes are told to be one machine by the kernel's boot id.
        """
        from mpi4py import MPI  # here, so that those who only read topologies start no MPI

        local = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
        try:
            leader = local.bcast(comm.rank, root=0)
        finally:
            local.Free()
        mine = os.sched_getaffinity(0)
        here = leader, socket_of(mine), numa_of(mine), boot_id() or leader, sum(1 << cpu for cpu in mine)
        leaders, sockets, domains, kernels, masks = zip(*comm.allgather(here), strict=True)
        rivals = sum(
            kernel == here[3] and mask & here[4] != 0 for kernel, mask in zip(kernels, masks, strict=True)
        )
        crowded = tuple(comm.allgather(rivals > len(mine)))
        return cls(_numbered(leaders), sockets, domains, crowded, _numbered(kernels))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.node_of)

    @property
    def nodes(self) -> Nodes:
        """The ranks of each node, in rank order.

        >>> Topology((0, 1, 1, 0, 1)).nodes
        ((0, 3), (1, 2, 4))
        """
        return members(self.node_of)

    @property
    def leaders(self) -> tuple[int, ...]:
        """The lowest rank of each node."""
        return tuple(ranks[0] for ranks in self.nodes)

    @property
    def ppn(self) -> int:
        """The most ranks on one node."""
        return max(len(ranks) for ranks in self.nodes)

    def local_rank(self, rank: int) -> int:
        """The place of a rank among those of its node: 0 for its leader."""
        return self.nodes[self.node_of[rank]].index(rank)

    def domains(self, level: str) -> tuple[int, ...]:
        """The domain of each rank at the level "node", "socket" or "numa": a node map of smaller nodes.

        Domains are numbered in the order of their lowest ranks. What is not known of ranks of one node is
        taken to be the same. Hierarchical algorithms take such a map as their parameter `nodes`.

        >>> Topology((0, 0, 1, 1), numa_of=(0, 1, None, None)).domains("numa")
        (0, 1, 2, 2)

        Raises `ArgumentError` for another level.
        """
        levels = {"node": (), "socket": self.socket_of, "numa": self.numa_of}
        if level not in levels:
            raise ArgumentError(f"no level {level!r}: choose one of {', '.join(levels)}")
        finer = levels[level] or (None,) * self.size
        return _numbered(zip(self.node_of, finer, strict=True))

    @property
    def placement(self) -> str:
        """How ranks were dealt out: "block", "cyclic" or "irregular".

        In blocks, the ranks of every node follow each other, however many they are; cyclically, rank r is on
        node r mod N. (One rank per node, or one node, counts as block.)

        >>> [Topology(nodes).placement for nodes in ((0, 0, 0, 1), (0, 1, 0, 1), (0, 1, 1, 0))]
        ['block', 'cyclic', 'irregular']
        """
        if all(ranks[-1] - ranks[0] == len(ranks) - 1 for ranks in self.nodes):
            return "block"
        if all(node == rank % len(self.nodes) for rank, node in enumerate(self.node_of)):
            return "cyclic"
        return "irregular"

    @property
    def node_order(self) -> tuple[int, ...]:
        """All ranks, those of a node together: along it, a ring enters and leaves every node once.

        >>> Topology((0, 1, 0, 1)).node_order
        (0, 2, 1, 3)
        """
        return tuple(rank for ranks in self.nodes for rank in ranks)

    @property
    def machines(self) -> Nodes:
        """The ranks of each machine; a node is one of its own where nothing else is known.

        >>> Topology((0, 0, 1, 2), machine_of=(0, 0, 0, 1)).machines
        ((0, 1, 2), (3,))
        """
        return members(self.machine_of or self.node_of)

    def __str__(self) -> str:
        """In a few words."""
        counts = sorted({len(ranks) for ranks in self.nodes})
        each = f"{counts[0]} each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} on one"
        nodes = len(self.nodes)
        where = "1 node" if nodes == 1 else f"{nodes} nodes, {each}, {self.placement} placement"
        machines = len(self.machines)
        fewer = "" if machines == nodes else f", on {machines} machine{'s' * (machines > 1)}"
        return f"{self.size} ranks on {where}{fewer}"


def _numbered(places: Iterable[Hashable]) -> tuple[int, ...]:
    """For each rank the number of its place; places are numbered in the order of their lowest ranks."""
    number: dict[Hashable, int] = {}
    return tuple(number.setdefault(place, len(number)) for place in places)
