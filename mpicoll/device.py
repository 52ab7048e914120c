"""Device memory by way of CuPy: the only module that imports it, and only when a device buffer comes by.

Everything that is asked of CuPy is here: what an array is, scratch, pinned host memory, streams, events,
copies and reductions. CuPy's builds for ROCm offer the same names, HIP instead of CUDA.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import ArgumentError

MANAGED = 3  # cudaMemoryTypeManaged
#: Where launchers say which rank of its node a process is, before MPI has begun.
LOCAL_RANK = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
    "PALS_LOCAL_RANKID",
)


def cupy() -> Any:
    """The module. Raises `ArgumentError` where it is not installed."""
    try:
        import cupy as module
    except ImportError as error:
        raise ArgumentError(
            f"device buffers need CuPy ({error}); install mpicoll[cuda12] or mpicoll[cuda13]"
        ) from error
    return module


def is_device_array(data: Any) -> bool:
    """Whether an object is in device memory. Does not import CuPy: who has such an array has it already."""
    if isinstance(data, np.ndarray):
        return False
    known = sys.modules.get("cupy")
    # CuPy arrays have no such interface under ROCm.
    return hasattr(data, "__cuda_array_interface__") or (
        known is not None and isinstance(data, known.ndarray)
    )


class Found(NamedTuple):
    """What is known of a device array; `unfit` says why MPI must not be given its memory, if so."""

    address: int
    nbytes: int
    dtype: np.dtype[Any]
    owner: Any
    unfit: str


def inspect(data: Any, role: str, *, writable: bool) -> Found:
    """Read a device array; `role` names it in errors. Raises `ArgumentError` if it cannot be used."""
    module = cupy()
    array = data if isinstance(data, module.ndarray) else module.asarray(data)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ArgumentError(f"{role}: the device array is not contiguous; pass cupy.ascontiguousarray(...)")
    if writable and array is not data and data.__cuda_array_interface__["data"][1]:
        raise ArgumentError(f"{role}: the device array is read-only")
    here = module.cuda.Device().id
    if array.size and array.device.id != here:
        raise ArgumentError(
            f"{role}: the array is on device {array.device.id}, the current one is {here}; "
            f"call cupy.cuda.Device({array.device.id}).use() first"
        )
    return Found(int(array.data.ptr), int(array.nbytes), np.dtype(array.dtype), data, _unfit(module, array))


def _unfit(module: Any, array: Any) -> str:
    if not array.size:
        return ""
    if isinstance(array.data.mem, module.cuda.MemoryAsync):
        return (
            "its memory comes from a stream-ordered pool, which other processes cannot map (CUDA IPC); "
            "allocate it with cupy.get_default_memory_pool()"
        )
    if module.cuda.runtime.pointerGetAttributes(array.data.ptr).type == MANAGED:
        return (
            "its memory is managed, which MPI libraries mistake for other kinds; "
            "allocate it with cupy.get_default_memory_pool()"
        )
    return ""


# -- memory ----------------------------------------------------------------------------------------------


def scratch(nbytes: int) -> Any:
    """Device memory from CuPy's default pool, whatever allocator is set: CUDA IPC works on it."""
    return cupy().get_default_memory_pool().malloc(nbytes)


def pinned(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Page-locked host memory as a NumPy array: copies to and from it are asynchronous."""
    if not count:
        return np.empty(0, dtype)
    memory = cupy().cuda.alloc_pinned_memory(count * dtype.itemsize)
    array: npt.NDArray[Any] = np.frombuffer(memory, dtype, count)
    array.view(np.uint8)[...] = 0  # so that no page fault falls into a timed call
    return array


def view(address: int, count: int, dtype: np.dtype[Any]) -> Any:
    """Device memory as a CuPy array, which does not own it."""
    module = cupy()
    memory = module.cuda.UnownedMemory(address, count * dtype.itemsize, None, module.cuda.Device().id)
    return module.ndarray((count,), dtype, module.cuda.MemoryPointer(memory, 0))


def asarray(data: Any) -> Any:
    """Another library's device memory as a CuPy array, without a copy (``__cuda_array_interface__``)."""
    return cupy().asarray(data)


def to_host(array: Any) -> npt.NDArray[Any]:
    """An array's content in host memory; of a device array a copy, after what the current stream holds."""
    found: npt.NDArray[Any] = array.get() if is_device_array(array) else array
    return found


# -- streams -----------------------------------------------------------------------------------------------


def current() -> Any:
    """The current device, as a context."""
    module = cupy()
    return module.cuda.Device(module.cuda.Device().id)


def current_stream() -> Any:
    """The caller's current stream."""
    return cupy().cuda.get_current_stream()


def follow(first: Any) -> None:
    """Let the current stream wait for what is queued on another one so far."""
    stream = current_stream()
    if first != stream:
        done = event(block=False)
        done.record(first)
        stream.wait_event(done)


def foreign_stream(pointer: int) -> Any:
    """A context in which another library's stream, a ``cudaStream_t``, is the current one."""
    return cupy().cuda.ExternalStream(pointer)


_own: dict[int, tuple[Any, Any]] = {}


def copy_streams() -> tuple[Any, Any]:
    """Streams for copies to and from the host, on the current device; made once."""
    module = cupy()
    number = module.cuda.Device().id
    if number not in _own:
        _own[number] = new_stream(), new_stream()
    return _own[number]


def new_stream() -> Any:
    """A stream on the current device, which no other one waits for by itself."""
    return cupy().cuda.Stream(non_blocking=True)


def event(*, block: bool, timed: bool = False) -> Any:
    """A mark in a stream; with `block`, waiting for it gives up the core; if `timed`, it has a time."""
    return cupy().cuda.Event(block=block, disable_timing=not timed)


def seconds_between(first: Any, second: Any) -> float:
    """The time from one timed event to another; both have been met."""
    return float(cupy().cuda.get_elapsed_time(first, second)) * 1e-3


def copy(target: int, source: int, nbytes: int, stream: Any) -> None:
    """Queue a copy between addresses in any memory."""
    runtime = cupy().cuda.runtime
    runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDefault, stream.ptr)


def reduction(name: str) -> Any:
    """The three-operand kernel ``f(left, right, out=...)`` of a NumPy ufunc's name."""
    return getattr(cupy(), name)


# -- which device --------------------------------------------------------------------------------------------


def count() -> int:
    """How many devices this process can use; 0 where there is no CuPy or no driver."""
    try:
        return int(cupy().cuda.runtime.getDeviceCount())
    except (ArgumentError, RuntimeError):  # CUDARuntimeError is one: no driver, no device
        return 0


def select_device(local_rank: int | None = None) -> int | None:
    """Use the device of this rank: its number on its node, counted round if there are fewer devices.

    Call it before MPI begins, or at least before arrays are made: libraries that know devices look at the
    current one when they first need a context. Without a number, the launcher's variables tell it. Gives the
    device's number, or None where there is no device.
    Raises `ArgumentError` where no launcher says which rank this is and there are several devices.
    """
    devices = count()
    if not devices:
        return None
    if local_rank is None:
        said = next((os.environ[name] for name in LOCAL_RANK if name in os.environ), None)
        if said is None and devices > 1:
            raise ArgumentError(f"which rank of its node is this? None of {', '.join(LOCAL_RANK)} is set")
        local_rank = int(said or 0)
    number = local_rank % devices
    cupy().cuda.Device(number).use()
    return number


def describe() -> list[dict[str, Any]]:
    """The devices of this process: name and bytes of memory."""
    runtime = cupy().cuda.runtime if count() else None
    facts = [runtime.getDeviceProperties(number) for number in range(count())] if runtime else []
    return [
        {
            "name": fact["name"].decode() if isinstance(fact["name"], bytes) else fact["name"],
            "memory_bytes": int(fact["totalGlobalMem"]),
        }
        for fact in facts
    ]
