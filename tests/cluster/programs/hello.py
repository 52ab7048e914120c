"""Say where each rank runs: ``hello.py 0,0,1,1`` fails unless that is the node of each rank."""

from __future__ import annotations

import socket
import sys

from mpi4py import MPI


def main(expected: list[str]) -> int:
    comm = MPI.COMM_WORLD
    if comm.size != len(expected):
        print(f"a world of {comm.size} ranks, not {len(expected)}")
        return 1
    local = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    hosts = comm.allgather(socket.gethostname())
    if comm.rank == 0:
        print(MPI.get_vendor()[0], *hosts, flush=True)
    mine = [rank for rank, node in enumerate(expected) if node == expected[comm.rank]]
    good = local.allgather(comm.rank) == mine and hosts[comm.rank] == f"node{int(expected[comm.rank]) + 1}"
    return 0 if comm.allreduce(good, op=MPI.LAND) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(",")))
