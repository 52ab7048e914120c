"""mpicoll in a program: drop-in, named, planned once and run often, in the background, in groups.

mpirun -n 4 python examples/quickstart.py
"""

import numpy as np
from mpi4py import MPI

import mpicoll

comm = mpicoll.Comm(MPI.COMM_WORLD)  # a subclass of MPI.Intracomm: existing code goes on working
x = np.full(1000, comm.rank + 1, dtype=np.float32)
y = np.empty_like(x)

comm.Allreduce(x, y, op=MPI.SUM)  # the algorithm is chosen for this size and number of ranks
comm.Allreduce(x, y, op=MPI.MAX, algorithm="recursive_doubling")  # or named
comm.Allreduce(MPI.IN_PLACE, y, algorithm="ring")

plan = comm.Allreduce_init(x, y, algorithm="circulant")  # planned once: views, scratch and requests are kept
for _ in range(10):
    plan.Start()
    plan.Wait()

request = comm.Iallreduce(x, y)  # progresses in a thread that holds no GIL, at MPI_THREAD_MULTIPLE
request.Wait()

mesh = mpicoll.Mesh(comm, data=-1, tensor=1)  # named groups: mesh["data"] is a Comm
mesh["data"].Allreduce(x, y)
assert (y == comm.size * (comm.size + 1) / 2).all()

if comm.rank == 0:
    print(f"{plan.algorithm} on engine {plan.engine}: {y[0]:g} on {comm.size} ranks")
