"""Call MPI's collectives, and print what Open MPI sent for each: messages and bytes from rank to rank.

    mpirun -n 4 --mca pml_monitoring_enable 1 python monitored.py '[["allreduce", 1000, 0]]'

A call is a collective, the elements (float32) of one part, and a root. The counts are those of the
performance variables `pml_monitoring_messages_count` and `..._size`, read before and after the call. mpi4py
has no interface to them (MPI_T), hence ctypes. Runs under mpirun, started by the test beside it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLASS_SIZE = 2  # MPI_T_PVAR_CLASS_SIZE in Open MPI's mpi.h
COUNTERS = (b"pml_monitoring_messages_count", b"pml_monitoring_messages_size")


def counters(comm: Any, address: int) -> Callable[[], list[list[int]]] | None:
    """A function that reads messages and bytes sent to each peer so far; None if there are no counters."""
    loaded = Path("/proc/self/maps").read_text().splitlines()
    lib = ctypes.CDLL(next(line.split()[-1] for line in loaded if "libmpi.so" in line))

    def call(name: str, *args: Any) -> None:
        code = getattr(lib, f"MPI_T_{name}")(*args)
        if code:
            raise OSError(f"MPI_T_{name} failed with code {code}")

    session = ctypes.c_void_p()
    call("init_thread", 0, ctypes.byref(ctypes.c_int()))
    call("pvar_session_create", ctypes.byref(session))
    handles = []
    for name in COUNTERS:
        index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        if lib.MPI_T_pvar_get_index(name, CLASS_SIZE, ctypes.byref(index)):
            return None
        # The variable is bound to a communicator: it has one number per rank of it.
        bound = ctypes.c_void_p(address)
        call("pvar_handle_alloc", session, index, bound, ctypes.byref(handle), ctypes.byref(count))
        call("pvar_start", session, handle)
        handles.append(handle)

    def read() -> list[list[int]]:
        result = []
        for handle in handles:
            numbers = (ctypes.c_size_t * comm.size)()
            call("pvar_read", session, handle, numbers)
            result.append(list(numbers))
        return result

    return read


def collective(comm: Any, name: str, count: int, root: int) -> None:
    """Call one collective of mpi4py's with `count` elements of float32 per part."""
    import numpy as np

    one, all_of_them, result = (np.ones(k, "f4") for k in (count, count * comm.size, count))
    calls: dict[str, Callable[[], None]] = {
        "allreduce": lambda: comm.Allreduce(one, result),
        "bcast": lambda: comm.Bcast(one, root),
        "reduce": lambda: comm.Reduce(one, result, root=root),
        "allgather": lambda: comm.Allgather(one, all_of_them),
        "alltoall": lambda: comm.Alltoall(all_of_them, np.empty_like(all_of_them)),
        "gather": lambda: comm.Gather(one, all_of_them, root),
        "scatter": lambda: comm.Scatter(all_of_them, one, root),
        "reduce_scatter": lambda: comm.Reduce_scatter(all_of_them, one, [count] * comm.size),
        "reduce_scatter_block": lambda: comm.Reduce_scatter_block(all_of_them, one),
        "barrier": lambda: comm.Barrier(),
    }
    calls[name]()


def main() -> None:
    """Make the calls that the argument names; the first rank prints one line of JSON."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    read = counters(comm, MPI._addressof(comm))
    if read is None:
        print("null" if comm.rank == 0 else "", end="")
        return
    counted = []
    for name, count, root in json.loads(sys.argv[1]):
        before = read()
        collective(comm, name, count, root)
        pairs = zip(before, read(), strict=True)
        counted.append([[b - a for a, b in zip(*pair, strict=True)] for pair in pairs])
    everyone = comm.gather(counted)
    if comm.rank == 0:
        print(json.dumps(everyone))


if __name__ == "__main__":
    main()
