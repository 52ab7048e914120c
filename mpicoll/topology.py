"""Which ranks share a node, and whether they share cores. Found by asking, never by arithmetic on ranks."""

from __future__ import annotations

import os

from mpi4py import MPI


def placement(comm: MPI.Intracomm) -> tuple[tuple[int, ...], bool]:
    """The node of each rank, and whether this rank has to share its cores. Collective.

    Nodes are numbered in the order of their lowest ranks. Works for any placement: block, cyclic,
    irregular, unequal numbers of ranks per node. A rank shares its cores if the ranks of its node that may
    run on one of them are more than they are.
    """
    local = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    try:
        leader = local.bcast(comm.rank, root=0)
        mine = os.sched_getaffinity(0)
        rivals = sum(not mine.isdisjoint(theirs) for theirs in local.allgather(mine))
    finally:
        local.Free()
    leaders = comm.allgather(leader)
    number = {leader: i for i, leader in enumerate(sorted(set(leaders)))}
    return tuple(number[leader] for leader in leaders), rivals > len(mine)
