"""What the links between nodes carry: ``links.py BYTES CALLS ALGORITHM…`` prints a CSV of bytes per node.

`predicted` is what the schedule sends from a node to others, `counted` what the node's interface sent
meanwhile (`/proc/self/net/dev`), both per call; the difference is headers, acknowledgements and barriers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.traffic import peer_bytes

INTERFACE = "eth0"


def sent_bytes() -> int:
    """Bytes that this node has sent so far."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counters.split()[8])
    raise SystemExit(f"there is no interface {INTERFACE} here")


def predicted(algorithm: str, nodes: tuple[int, ...], count: int) -> list[int]:
    """Bytes that leave each node in a call, for vectors of `count` floats."""
    entry = mpicoll.get("allreduce", algorithm)
    params = {"nodes": nodes} if entry.hierarchical else {}
    leaving = [0] * (max(nodes) + 1)
    for source, row in zip(nodes, peer_bytes(entry, len(nodes), count, 4, params), strict=True):
        leaving[source] += sum(sent for node, sent in zip(nodes, row, strict=True) if node != source)
    return leaving


def main(nbytes: int, calls: int, algorithms: list[str]) -> int:
    comm = mpicoll.Comm(MPI.COMM_WORLD)
    x, y = np.ones(nbytes // 4, "f4"), np.empty(nbytes // 4, "f4")
    if comm.rank == 0:
        print("algorithm,bytes,node,predicted,counted", flush=True)
    for algorithm in algorithms:
        plan = comm.Allreduce_init(x, y, algorithm=algorithm)
        plan.run()
        comm.Barrier()
        before = sent_bytes()
        comm.Barrier()  # nobody begins while another rank still reads
        for _ in range(calls):
            plan.run()
        comm.Barrier()  # what has been received has been counted at its sender
        counted = comm.gather((sent_bytes() - before) / calls)
        plan.free()
        if comm.rank == 0:
            for node, expected in enumerate(predicted(algorithm, comm.nodes, x.size)):
                here = counted[comm.nodes.index(node)]
                print(f"{algorithm},{nbytes},{node},{expected},{here:.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
