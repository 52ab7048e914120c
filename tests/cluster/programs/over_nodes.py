"""Every composition over nodes on the nodes that there are, in the world's order of ranks and in reverse.

Prints how many calls were right; fails on all ranks if one was wrong on any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll

COUNT = 37


def inputs(size: int, parts: int) -> np.ndarray:
    """What each rank (row) contributes: exact in any order of combination."""
    return np.arange(size * parts * COUNT, dtype="i8").reshape(size, parts * COUNT) % 1013


def checks(comm: mpicoll.Comm) -> dict[str, Callable[[dict[str, Any]], bool]]:
    """For each collective, whether a call with some options is right on this rank."""
    size, rank, root = comm.size, comm.rank, comm.size - 1
    one, all_parts = inputs(size, 1), inputs(size, size)

    def same(result: np.ndarray, expected: np.ndarray, wanted: bool = True) -> bool:
        return not wanted or np.array_equal(result.reshape(-1), expected.reshape(-1))

    def allreduce(options: dict[str, Any]) -> bool:
        result = np.empty(COUNT, "i8")
        comm.Allreduce(one[rank].copy(), result, **options)
        return same(result, one.sum(0))

    def bcast(options: dict[str, Any]) -> bool:
        result = one[root].copy() if rank == root else np.zeros(COUNT, "i8")
        comm.Bcast(result, root, **options)
        return same(result, one[root])

    def reduce(options: dict[str, Any]) -> bool:
        result = np.empty(COUNT, "i8")
        comm.Reduce(one[rank].copy(), result, root=root, **options)
        return same(result, one.sum(0), rank == root)

    def allgather(options: dict[str, Any]) -> bool:
        result = np.empty((size, COUNT), "i8")
        comm.Allgather(one[rank].copy(), result, **options)
        return same(result, one)

    def reduce_scatter(options: dict[str, Any]) -> bool:
        result = np.empty(COUNT, "i8")
        comm.Reduce_scatter_block(all_parts[rank].copy(), result, **options)
        return same(result, all_parts.sum(0)[rank * COUNT : (rank + 1) * COUNT])

    def alltoall(options: dict[str, Any]) -> bool:
        result = np.empty((size, COUNT), "i8")
        comm.Alltoall(all_parts[rank].copy(), result, **options)
        return same(result, all_parts.reshape(size, size, COUNT)[:, rank])

    def gather(options: dict[str, Any]) -> bool:
        result = np.empty((size, COUNT), "i8")
        comm.Gather(one[rank].copy(), result if rank == root else None, root=root, **options)
        return same(result, one, rank == root)

    def scatter(options: dict[str, Any]) -> bool:
        result = np.empty(COUNT, "i8")
        comm.Scatter(one.copy() if rank == root else None, result, root=root, **options)
        return same(result, one[rank])

    def barrier(options: dict[str, Any]) -> bool:
        comm.Barrier(**options)
        return True

    every = (allreduce, bcast, reduce, allgather, reduce_scatter, alltoall, gather, scatter, barrier)
    return {check.__name__: check for check in every}


def main() -> int:
    world = mpicoll.Comm(MPI.COMM_WORLD)
    reverse = world.Split(0, key=-world.rank)
    right = 0
    for name, comm in (("world", world), ("reversed", reverse)):
        for kind, check in checks(comm).items():
            for entry in mpicoll.catalogue(kind):
                if entry.hierarchical and not comm.allreduce(
                    check({"algorithm": entry.name, "channels": 2, "depth": 2}), MPI.LAND
                ):
                    if world.rank == 0:
                        print(f"{entry} is wrong on the {name} communicator", flush=True)
                    return 1
                right += entry.hierarchical
    if world.rank == 0:
        print(f"{right} calls were right on nodes {world.nodes}", flush=True)
    reverse.Free()
    return 0


if __name__ == "__main__":
    sys.exit(main())
