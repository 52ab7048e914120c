"""All that depends on where ranks are, on the nodes named: ``over_nodes.py 0,1,1,0,2``.

Every collective (see `collectives`), then every composition, with both engines, in the world's order of ranks
and in reverse; and that an operation which does not commute gets none of them. Prints how many calls of
compositions were right for each collective; fails on all ranks if anything is wrong on any.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any

import collectives
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


def compositions(comm: mpicoll.Comm, right: dict[str, int]) -> list[str]:
    """Those that are wrong on some rank; the others are counted in `right`."""
    wrong = []
    for kind, check in checks(comm).items():
        for entry in (entry for entry in mpicoll.catalogue(kind) if entry.hierarchical):
            good = comm.allreduce(check({"algorithm": entry.name, "channels": 2, "depth": 2}), MPI.LAND)
            right[kind] = right.get(kind, 0) + good
            if not good:
                wrong.append(f"{entry} is wrong")
    return wrong


def append(left: MPI.buffer, right: MPI.buffer, datatype: MPI.Datatype) -> None:
    """Write decimal digits one after the other: pairs of a number and how many digits it has."""
    first, second = (np.frombuffer(buffer, "i8").reshape(-1, 2) for buffer in (left, right))
    second[:, 0] += first[:, 0] * 10 ** second[:, 1]
    second[:, 1] += first[:, 1]


def order_is_kept(comm: mpicoll.Comm) -> list[str]:
    """Compositions that this rank may run with an operation that does not commute, and wrong results."""
    op, pair = MPI.Op.Create(append, commute=False), MPI.INT64_T.Create_contiguous(2).Commit()
    mine, result = np.array([[comm.rank + 1, 1]] * comm.size), np.zeros((comm.size, 2), "i8")
    wrong = []
    calls: dict[str, Callable[..., None]] = {
        "allreduce": comm.Allreduce, "reduce": comm.Reduce, "reduce_scatter": comm.Reduce_scatter_block
    }  # fmt: skip
    for kind, call in calls.items():
        target = [result[:1] if kind == "reduce_scatter" else result, pair]
        for entry in (entry for entry in mpicoll.catalogue(kind) if entry.hierarchical):
            try:
                call([mine, pair], target, op=op, algorithm=entry.name)
                wrong.append(f"{entry} takes what does not commute")
            except mpicoll.Unsupported as error:
                if "does not combine in rank order" not in str(error):
                    wrong.append(f"{entry}: {error}")
        result.fill(0)
        call([mine, pair], target, op=op)  # one that keeps the order is chosen
        digits = int("".join(str(rank + 1) for rank in range(comm.size)))
        if (kind != "reduce" or comm.rank == 0) and result[0].tolist() != [digits, comm.size]:
            wrong.append(f"{kind} without a name does not keep the order: {result[0]}")
    comm.free_plans()
    pair.Free()
    op.Free()
    return wrong


def main(nodes: list[int]) -> int:
    """Try everything; print what was wrong."""
    if collectives.main(nodes):
        return 1
    errors: list[str] = []
    if socket.gethostname() != f"node{nodes[MPI.COMM_WORLD.rank] + 1}":
        errors.append(f"a rank runs on {socket.gethostname()}")
    right: dict[str, int] = {}
    for engine in ("python", "native"):
        world = mpicoll.Comm(MPI.COMM_WORLD, engine=engine)
        reverse = world.Split(0, key=-world.rank)
        for name, comm in (("world", world), ("reversed", reverse)):
            found = compositions(comm, right) + order_is_kept(comm)
            errors += [f"{engine}, {name}: {what}" for what in found]
        reverse.Free()
        world.Free()
    all_errors = MPI.COMM_WORLD.allgather(errors)
    if MPI.COMM_WORLD.rank == 0:
        print(f"compositions right: {right}" if not any(all_errors) else all_errors, flush=True)
    return int(any(all_errors))


if __name__ == "__main__":
    sys.exit(main([int(node) for node in sys.argv[1].split(",")]))
