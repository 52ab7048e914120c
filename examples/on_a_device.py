"""An all-reduce of arrays in device memory, with kernels before and after it and no wait in between.

mpirun -n 2 python examples/on_a_device.py
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.device import count, cupy, select_device


def main() -> None:
    """Sum on the device of each rank."""
    comm = mpicoll.Comm(MPI.COMM_WORLD)
    if not comm.allreduce(count(), MPI.MIN):
        if comm.rank == 0:
            print(f"no device for each rank, so nothing was summed on {comm.size} ranks")
        return
    select_device(comm.Split_type(MPI.COMM_TYPE_SHARED).rank)
    cp = cupy()
    x = cp.full(1_000_000, comm.rank + 1, "float32")
    y = cp.empty_like(x)
    plan = comm.Allreduce_init(x, y, algorithm="ring")
    x *= 2  # queued; the plan waits for it, where it must
    plan()
    y += 1  # queued behind the plan's own kernels
    expected = comm.size * (comm.size + 1) + 1
    assert np.all(cp.asnumpy(y) == expected)
    if comm.rank == 0:
        print(f"{plan.buffer}, staging={plan.staging}: summed on {comm.size} ranks")


if __name__ == "__main__":
    main()
