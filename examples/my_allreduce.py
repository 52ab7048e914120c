"""An all-reduce of your own: write it, prove it, count it, draw it, run it.

python examples/my_allreduce.py                # one rank
mpirun -n 4 python examples/my_allreduce.py    # four
"""

import numpy as np

import mpicoll
from mpicoll import Recv, Round, Send, Side, Window, algorithm
from mpicoll.draw import draw
from mpicoll.traffic import traffic
from mpicoll.verify import verify


@algorithm("allreduce", blocks=lambda size, params: 2 * size)
def two_way_ring(rank, size):
    """Half of the vector goes around the ring to the right, the other half to the left."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for t in range(2 * (size - 1)):
        # Blocks 0…P−1 go right, P…2P−1 left; they are combined on the first tour, handed on in the second.
        side = Side.LEFT if t < size - 1 else None
        to_right, from_left = Window((rank - t) % size), Window((rank - t - 1) % size)
        to_left, from_right = Window(size + (rank + t) % size), Window(size + (rank + t + 1) % size)
        yield Round(
            sends=(Send(right, (to_right,)), Send(left, (to_left,))),
            recvs=(Recv(left, (from_left,), side), Recv(right, (from_right,), side)),
        )


def main() -> None:
    """Prove it for 1 to 16 ranks, show it for 3, run it on the ranks there are."""
    from mpi4py import MPI  # here, so that whoever loads this file for its algorithm starts no MPI

    comm = mpicoll.Comm(MPI.COMM_WORLD)
    if comm.rank == 0:
        for size in range(1, 17):
            verify("allreduce/two_way_ring", size)
        print("proved for P = 1..16\n")
        print(draw("allreduce/two_way_ring", 3), "\n")
        ours, ring = (traffic(f"allreduce/{name}", 8) for name in ("two_way_ring", "ring"))
        print(f"P = 8: {ours.rounds} rounds, {ours.sent} n sent (ring: {ring.rounds}, {ring.sent} n)\n")

    mine, result = np.arange(1000.0) + comm.rank, np.empty(1000)
    comm.Allreduce(mine, result, op=MPI.SUM, algorithm="two_way_ring")
    np.testing.assert_array_equal(result, sum(np.arange(1000.0) + rank for rank in range(comm.size)))
    if comm.rank == 0:
        print(f"ran on {comm.size} ranks: equal to NumPy's sum")


if __name__ == "__main__":
    main()
