"""The job of two ranks that `probe` starts: device memory to and fro, and what the library says of itself.

It may crash or hang; what it has found by then is printed, a line of JSON after `MARK` each.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path
from typing import Any

from . import device
from .errors import ArgumentError
from .probe import MARK, SIZES, key, read_text


def child() -> int:
    """What each of the two ranks does."""
    devices = device.count()
    if devices:
        device.select_device(0 if devices == 1 else None)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD

    def say(**what: Any) -> None:
        if comm.rank == 0:
            print(MARK + json.dumps(what), flush=True)

    say(key=key(), reported=reported())
    fewest = comm.allreduce(devices, MPI.MIN)
    if not fewest:
        say(no_device=_why_none())
        return 0
    if comm.size != 2:
        say(wrong=f"the launcher started {comm.size} ranks instead of 2")
        return 1
    for nbytes in SIZES:
        say(trying=nbytes)
        problem = _exchange(comm, nbytes)
        worst = [text for text in comm.allgather(problem) if text]
        if worst:
            say(wrong=worst[0])
            return 1
    say(proved=True)
    return 0


def _why_none() -> str:
    try:
        device.cupy().cuda.runtime.getDeviceCount()
    except (ArgumentError, RuntimeError) as error:
        return str(error)
    return "CuPy counts none"


def _exchange(comm: Any, nbytes: int) -> str | None:
    """Send device memory to the other rank and back in both ways; what is wrong with what came."""
    from mpi4py import MPI

    module = device.cupy()
    other = 1 - comm.rank
    pattern = module.arange(nbytes, dtype="uint8")
    mine, theirs = pattern + comm.rank + 1, module.zeros(nbytes, "uint8")
    for persistent in (False, True):
        theirs.fill(0)
        device.current_stream().synchronize()
        source = MPI.buffer.fromaddress(int(mine.data.ptr), nbytes)
        target = MPI.buffer.fromaddress(int(theirs.data.ptr), nbytes)
        if persistent:
            requests = [comm.Recv_init(target, other), comm.Send_init(source, other)]
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)
            for request in requests:
                request.Free()
        else:
            comm.Sendrecv(source, other, recvbuf=target, source=other)
        wrong = int((theirs != pattern + other + 1).sum())
        if wrong:
            return f"{wrong} of {nbytes} bytes wrong{' (persistent)' if persistent else ''}"
    return None


# -- what a library says of itself -------------------------------------------------------------------------


def reported() -> dict[str, Any]:
    """What this process's MPI library says about device memory; absent where it is not asked so."""
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)
    facts: dict[str, Any] = {}
    for name in ("cuda", "rocm", "hip"):
        query = getattr(library, f"MPIX_Query_{name}_support", None)
        if query is not None:
            facts[f"MPIX_Query_{name}_support"] = int(query())
    info = MPI.COMM_WORLD.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds")
    info.Free()
    if kinds is not None:
        facts["mpi_memory_alloc_kinds"] = kinds
    for name in ("MPIR_CVAR_ENABLE_GPU", "MPIR_CVAR_NOLOCAL", "opal_built_with_cuda_support"):
        value = _control_variable(library, name)
        if value is not None:
            facts[name] = value
    loaded = {line.split()[-1] for line in read_text(Path("/proc/self/maps")).splitlines() if "/" in line}
    wanted = re.compile(r"/(libucp|libuct_cuda|libuct_rocm|libfabric|libcuda|libamdhip64)\b[^/]*$")
    facts["loaded"] = sorted(path for path in loaded if wanted.search(path))
    return facts


def _control_variable(library: Any, name: str) -> int | None:
    """An integer control variable of MPI's tool interface."""
    level, index, number = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    handle, value = ctypes.c_void_p(), ctypes.c_int64(0)
    if library.MPI_T_init_thread(0, ctypes.byref(level)):
        return None
    try:
        if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
            return None
        if library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(number)):
            return None
        failed = library.MPI_T_cvar_read(handle, ctypes.byref(value))
        library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        return None if failed else value.value
    finally:
        library.MPI_T_finalize()


if __name__ == "__main__":
    sys.exit(child())
