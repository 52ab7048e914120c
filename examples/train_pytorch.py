"""PyTorch's modules trained on several ranks: gradients travel while `backward` computes the others.

    mpirun -n 2 python examples/train_pytorch.py

Every rank has its own rows of the data. All begin with rank 0's parameters, and after `reducer.wait()` all
hold the same averaged gradients, so that their parameters stay equal, bit for bit.
"""

import torch
from mpi4py import MPI

from mpicoll.pytorch import ModuleReducer

comm = MPI.COMM_WORLD
torch.set_num_threads(1)  # ranks share the cores
torch.manual_seed(0)
teacher = torch.randn(24, 24) / 5  # what is to be learnt, the same on all ranks
torch.manual_seed(1 + comm.rank)  # from here on, each rank's own
model = torch.nn.Sequential(torch.nn.Linear(24, 64), torch.nn.Tanh(), torch.nn.Linear(64, 24))
rows = torch.randn(200, 24)
targets = torch.tanh(rows @ teacher)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

with ModuleReducer(comm, model, bucket_bytes=4096) as reducer:
    for _ in range(100):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(rows), targets)
        loss.backward()  # each bucket leaves as soon as it is full
        reducer.wait()  # every parameter's .grad is now the average over the ranks
        optimizer.step()

everyone = comm.allgather(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))
average = comm.allreduce(loss.item()) / comm.size
if comm.rank == 0:
    alike = len(set(everyone)) == 1
    print(
        f"on {comm.size} ranks: loss {average:.3f}, parameters {'equal, bit for bit' if alike else 'DIFFER'}"
    )
