"""Every collective of `Comm`, with both engines, on the nodes named: ``collectives.py 0,1,1,0,2``.

In the world's order of ranks, in reverse, and rotated among some of the ranks only. Also that the nodes found
are those named. Fails on all ranks if anything is wrong on any.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.topology import Topology

COUNTS = (0, 1, 3, 50)


def wrong(comm: mpicoll.Comm, n: int) -> Iterator[str]:
    """The collectives whose result is wrong on this rank, for `n` elements per rank."""
    size, rank, root = comm.size, comm.rank, comm.size // 2
    # What rank r sends to rank d: row (r, d). Sums are exact, and no two rows or elements are alike.
    data = np.arange(size * size * n, dtype="i8").reshape(size, size, n) * 7
    mine = data[rank]
    out = np.full((size, n), -1, "i8")
    one = np.full(n, -1, "i8")
    has = rank == root

    def differs(name: str, result: np.ndarray, expected: np.ndarray, wanted: bool = True) -> Iterator[str]:
        if wanted and not np.array_equal(result, expected):
            yield f"{name} of {n}"
        result.fill(-1)

    comm.Allreduce(mine, out)
    yield from differs("Allreduce", out, data.sum(0))
    out[:] = mine
    comm.Iallreduce(MPI.IN_PLACE, out).Wait()
    yield from differs("Iallreduce in place", out, data.sum(0))
    plan = comm.Allreduce_init(mine, out, op=MPI.MAX)
    plan.Start()
    plan.Wait()
    plan.Free()
    yield from differs("Allreduce_init", out, data.max(0))
    out[:] = mine if has else -1
    comm.Bcast(out, root)
    yield from differs("Bcast", out, data[root])
    comm.Reduce(mine, out if has else None, root=root)
    yield from differs("Reduce", out, data.sum(0), has)
    comm.Reduce_scatter_block(mine, one)
    yield from differs("Reduce_scatter_block", one, data.sum(0)[rank])
    comm.Allgather(mine[0], out)
    yield from differs("Allgather", out, data[:, 0])
    comm.Alltoall(mine, out)
    yield from differs("Alltoall", out, data[:, rank])
    comm.Gather(mine[0], out if has else None, root=root)
    yield from differs("Gather", out, data[:, 0], has)
    comm.Scatter(mine if has else None, one, root=root)
    yield from differs("Scatter", one, data[root, rank])
    # Parts of unequal length: r elements from rank r, and r elements to rank r.
    counts = np.arange(size)
    starts = counts.cumsum() - counts
    flat = np.full(counts.sum(), -1, "i8")
    comm.Allgatherv(np.full(rank, rank), [flat, (counts, starts), MPI.INT64_T])
    yield from differs("Allgatherv", flat, np.repeat(counts, counts))
    part = np.full(rank, -1, "i8")
    comm.Reduce_scatter(np.repeat(counts, counts), part, counts)
    yield from differs("Reduce_scatter", part, np.full(rank, rank * size))
    same = np.full(rank * size, -1, "i8")
    each = np.full(size, rank)
    comm.Alltoallv(
        [np.full(flat.size, rank), (counts, starts), MPI.INT64_T],
        [same, (each, each.cumsum() - each), MPI.INT64_T],
    )
    yield from differs("Alltoallv", same, np.repeat(counts, rank))
    comm.Barrier()


def main(nodes: list[int]) -> int:
    """Try everything; print what was wrong."""
    world = MPI.COMM_WORLD
    size, rank = world.size, world.rank
    few = max(2, size - 1)
    orders = {
        "world": list(range(size)),
        "reversed": list(reversed(range(size))),
        "rotated, without the last": [(r + 2) % few for r in range(few)],
    }
    errors = []
    for engine in ("python", "native"):
        for name, order in orders.items():
            inside = rank in order
            plain = world.Split(0 if inside else 1, order.index(rank) if inside else 0)
            comm = mpicoll.Comm(plain, engine=engine)
            if inside:
                where = [nodes[r] for r in order]
                number = {node: i for i, node in enumerate(dict.fromkeys(where))}
                if comm.node_topology.node_of != Topology(tuple(number[node] for node in where)).node_of:
                    errors.append(f"{name}: nodes are {comm.node_topology.node_of}, not {where}")
            errors += [f"{engine}, {name}: {what}" for n in COUNTS for what in wrong(comm, n)]
            comm.Free()
            plain.Free()
    found = world.allgather(errors)
    if rank == 0:
        print(f"collectives right on nodes {nodes}" if not any(found) else found, flush=True)
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main([int(node) for node in sys.argv[1].split(",")]))
