"""Who is where, and a sum in two steps along a mesh of nodes: within each node, then between nodes.

mpirun -n 4 python examples/over_nodes.py
"""

import numpy as np
from mpi4py import MPI

import mpicoll

comm = mpicoll.Comm(MPI.COMM_WORLD)
where = comm.node_topology
if comm.rank == 0:
    print(where)  # "8 ranks on 4 nodes, 2 each, cyclic placement"
    print("leaders", where.leaders, "ranks by node", where.nodes)

# Any placement will do: ranks are grouped by the node they are on, not by their numbers.
if len({len(ranks) for ranks in where.nodes}) == 1:
    mesh = mpicoll.Mesh.over_nodes(comm)
    x, y = np.full(1000, float(comm.rank)), np.zeros(1000)
    mesh["local"].Allreduce(x, y)
    mesh["node"].Allreduce(MPI.IN_PLACE, y)
    assert (y == sum(range(comm.size))).all()
    mesh.Free()

# The same in one call; with domains("numa") for nodes it is within NUMA domains, then between them.
y = np.zeros(1000)
comm.Allreduce(
    np.full(1000, float(comm.rank)), y, algorithm="two_level", nodes=where.domains("numa"), intra="ring"
)
assert (y == sum(range(comm.size))).all()
if comm.rank == 0:
    print(f"summed in two steps on {comm.size} ranks")
