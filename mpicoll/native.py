"""Programs for the native engine: steps as rows of numbers, and the addresses of MPI's functions."""

from __future__ import annotations

import atexit
import ctypes
import sys
import weakref
from array import array
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from .extension import FIX, why_missing
from .memory import Bound, Memory
from .ops import Operation, local_reduction
from .program import Copy, Mark, Start, Wait
from .watch import Watch

try:
    from . import _runner
except ImportError as error:
    _native_missing: str = why_missing(error, Path(__file__).parent, sys.path)
else:
    _native_missing = ""
    # At exit the background thread must end before requests are freed (and MPI is finalized). Exit functions
    # run in reverse, and the first finalizer of all registers those of all: so one comes before.
    weakref.finalize(_runner.Program, int)
    atexit.register(_runner.stop_background)

START, WAIT, KERNEL_STEP, MPI_STEP, COPY, MARK = range(6)  # the steps, as in _runner.h


def native_status() -> tuple[bool, str]:
    """Whether the native engine can run here, and if not, why, and what mends it (after `extension.FIX`)."""
    if _native_missing:
        return False, _native_missing
    try:
        _mpi_functions()
    except (OSError, AttributeError) as error:
        why = f"MPI's functions cannot be found in the library that mpi4py loaded: {error}"
        return False, f"{why}{FIX}build mpi4py against a shared library of your MPI"
    return True, "available"


def _mpi_functions() -> dict[str, int]:
    """Addresses of the MPI functions in the library that mpi4py is linked with."""
    library = ctypes.CDLL(MPI.__file__)
    return {
        name: ctypes.cast(getattr(library, f"MPI_{name.capitalize()}"), ctypes.c_void_p).value or 0
        for name in ("startall", "testall", "reduce_local")
    }


_functions: dict[str, int] = {}


def bind_native(watch: Watch, bound: Bound, operation: Operation | None) -> Any:
    """Hand a program to `_runner.c`: steps as rows of five int64, see `step` there."""
    if not _functions:
        _functions.update(_mpi_functions())
    program, memory = watch.program, bound.memory
    kernel = _runner.kernel(operation.kernel) if operation and operation.kernel else None
    rows: array[int] = array("q")
    for number, step in enumerate(program.steps):
        lowered = _lower(step, memory, kernel)
        rows.extend(lowered)
        watch.step_of_row += [number] * (len(lowered) // 5)
    size = MPI._sizeof(MPI.Request)
    handles = b"".join(ctypes.string_at(MPI._addressof(r), size) for r in bound.requests)
    waits = [step.last - step.first for step in program.steps if isinstance(step, Wait)]
    return _runner.Program(
        steps=rows,
        requests=handles,
        request_size=size,
        status_size=MPI._sizeof(MPI.Status),
        longest_wait=max(waits, default=0),
        **_functions,
        combine=kernel or 0,
        datatype=memory.datatype.handle,
        operation=operation.op.handle if operation else 0,
        idle=watch.idle,
        failure=partial(_failure, watch),
        owner=bound,
        polite=watch.environment.polite,
    )


def _failure(watch: Watch, code: int, position: int, raw: bytes) -> Exception | None:
    """What `watch` makes of a failure, given statuses as C has them."""
    size = MPI._sizeof(MPI.Status)
    statuses = [MPI.Status() for _ in range(len(raw) // size if code > 0 else 0)]
    for number, status in enumerate(statuses):
        ctypes.memmove(MPI._addressof(status), raw[number * size : (number + 1) * size], size)
    return watch.failure(code, position, statuses)


def _lower(step: Any, memory: Memory, kernel: int | None) -> list[int]:
    """A step as one or more rows of int64."""
    if isinstance(step, Start):
        return [START, step.first, step.last, 0, 0]
    if isinstance(step, Wait):
        return [WAIT, step.first, step.last, 0, 0]
    if isinstance(step, Copy):
        return [COPY, memory.at(step.out), memory.at(step.source), 0, step.out.length * memory.extent]
    if isinstance(step, Mark):
        return [MARK, memory.times[step.number :].ctypes.data, 0, 0, 0]
    if kernel is not None:
        return [KERNEL_STEP, *(memory.at(r) for r in step), step.out.length]
    rows: list[int] = []
    for part in local_reduction(step):
        if isinstance(part, Copy):
            rows += _lower(part, memory, None)
        else:
            rows += [MPI_STEP, memory.at(part.left), memory.at(part.out), memory.extent, part.out.length]
    return rows
