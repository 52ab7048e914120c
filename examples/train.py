"""Data-parallel training whose gradients travel while the backward pass computes the others.

    mpirun -n 2 python examples/train.py

Every rank has its own rows of the data. After `reducer.wait()` all ranks hold the same averaged gradients, so
that their parameters stay equal, bit for bit.
"""

import numpy as np
from mpi4py import MPI

import mpicoll

comm = MPI.COMM_WORLD
same = np.random.default_rng(0)  # the same on all ranks: parameters, and what is to be learnt
weights = [same.normal(0, 0.2, (24, 24)).astype("f") for _ in range(4)]
teacher = same.normal(0, 0.2, (24, 24)).astype("f")

mine = np.random.default_rng(1 + comm.rank)  # this rank's rows
inputs = mine.normal(size=(200, 24)).astype("f")
targets = np.tanh(inputs @ teacher)

gradients = {f"w{layer}": np.zeros_like(weight) for layer, weight in enumerate(weights)}

with mpicoll.GradientReducer(comm, gradients, bucket_bytes=4096) as reducer:
    for _ in range(100):
        outputs = [inputs]
        for weight in weights:
            outputs.append(np.tanh(outputs[-1] @ weight))
        error = outputs[-1] - targets
        loss = comm.allreduce(float((error**2).mean())) / comm.size

        delta = error / len(inputs)
        for layer in reversed(range(len(weights))):
            delta = delta * (1 - outputs[layer + 1] ** 2)
            np.matmul(outputs[layer].T, delta, out=gradients[f"w{layer}"])
            reducer.ready(f"w{layer}")  # its bucket leaves as soon as it is full
            delta = delta @ weights[layer].T

        for name in reducer.arriving():  # averaged, one after the other, while the rest are under way
            weights[int(name[1:])] -= 0.1 * gradients[name]

everyone = comm.allgather(b"".join(weight.tobytes() for weight in weights))
if comm.rank == 0:
    alike = len(set(everyone)) == 1
    print(f"on {comm.size} ranks: loss {loss:.3f}, parameters {'equal, bit for bit' if alike else 'DIFFER'}")
