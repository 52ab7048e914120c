"""Contenders whose truth is known: MPI's own call once more, and the same made a tenth slower.

    mpirun -n 2 mpicoll sweep --load results/false-positives/contenders.py --algorithms builtin,again,slow ...

They are called exactly as the builtin is; only their names make the harness count them among own algorithms.
"""

import time
from dataclasses import replace
from functools import partial

from mpicoll.bench import measure
from mpicoll.registry import algorithm

COLLECTIVES = "allreduce reduce_scatter allgather bcast reduce alltoall gather scatter".split()
SHARE = 0.1
original = measure.build


def slowed(call, clock=time.perf_counter):
    """Run the call, then wait for a tenth of the time that it took."""
    start = clock()
    call()
    end = clock()
    until = end + SHARE * (end - start)
    while clock() < until:
        pass


def build(contender, work, own, plain):
    """The builtin under another name, on the same communicator; everything else as before."""
    if contender.name not in ("again", "slow"):
        return original(contender, work, own, plain)
    made = original(replace(contender, name="builtin", engine=""), work, own, plain)
    made.contender, made.algorithm, made.engine = contender, contender.name, "native"
    if contender.name == "slow":
        made.call = partial(slowed, made.call)
    return made


measure.build = build
for collective in COLLECTIVES:
    for name in ("again", "slow"):

        @algorithm(collective, blocks=lambda size, params: 1, name=name)
        def schedule(rank, size):
            """Not used: the builtin is called."""
            return iter(())
