"""Which ranks share a node. Found by asking MPI, never by arithmetic on ranks."""

from __future__ import annotations

from mpi4py import MPI


def node_map(comm: MPI.Intracomm) -> tuple[int, ...]:
    """The node of each rank, numbered in the order of each node's lowest rank. Collective.

    Works for any placement: block, cyclic, irregular, unequal numbers of ranks per node.
    """
    local = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    try:
        leader = local.bcast(comm.rank, root=0)
    finally:
        local.Free()
    leaders = comm.allgather(leader)
    number = {leader: i for i, leader in enumerate(sorted(set(leaders)))}
    return tuple(number[leader] for leader in leaders)
