"""Buffers in device memory for sweeps, and the rivals that only they have.

With ``--buffer cupy`` a call is over when its result is there: the stream is waited for inside of the timed
call. MPI's own collective is given device memory where that was proved to work (`mpicoll probe`), and is
measured with copies through pinned host memory as ``builtin_host``. NCCL, by way of CuPy, needs a device for
each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpicoll import device
from mpicoll.bench.cases import Case
from mpicoll.bench.workload import GUARD_BYTES, Workload
from mpicoll.errors import ArgumentError, Unsupported

DEVICE_RIVALS = ("builtin_host", "nccl")


def use_own_device(world: Any) -> None:
    """Use the device of this rank, by its place on its node. Raises `ArgumentError` where there is none."""
    if device.select_device(world.topology.local_rank(world.rank)) is None:
        raise ArgumentError("--buffer cupy: this rank has no device (no CuPy, no driver, or none visible)")


class DeviceWorkload(Workload):
    """A workload on device arrays; its buffers in host memory make the input and check the result."""

    def __init__(self, case: Case, rank: int):
        super().__init__(case, rank)
        self._pairs = [(buffer, _array(buffer)) for buffer in dict.fromkeys((self.recv, self.send))]
        self._device = {id(buffer): array for buffer, array in self._pairs}

    def arguments(self, op: Any) -> tuple[Any, ...]:
        """What the collective's method is called with."""
        send = self.inner(self.send) if self.sends else None
        recv = self.inner(self.recv) if self.receives else None
        return self.recipe.arguments(send, recv, op, self.case.root)

    def inner(self, buffer: Any) -> Any:
        """The device array between a buffer's guards."""
        whole = self._device[id(buffer)]
        return whole[GUARD_BYTES : GUARD_BYTES + buffer.array.nbytes].view(self.dtype)

    def refresh(self, epoch: int) -> None:
        """As in host memory, and copied to the device, guards and all."""
        super().refresh(epoch)
        for buffer, array in self._pairs:
            array.set(buffer.guarded)
        device.current_stream().synchronize()

    def problem(self) -> str | None:
        """What came out on the device, compared on the host."""
        for buffer, array in self._pairs:
            buffer.guarded[:] = array.get()
        return super().problem()


def _array(buffer: Any) -> Any:
    return device.cupy().empty(buffer.guarded.shape, np.uint8)


def synchronised(call: Callable[[], Any]) -> Callable[[], None]:
    """The call, and the wait for its results."""
    stream = device.current_stream()

    def whole() -> None:
        call()
        stream.synchronize()

    return whole


def require_aware(own: Any) -> None:
    """Raise `Unsupported` unless MPI was proved able to take device memory, on all ranks: it would crash."""
    verdict = own._planner.aware
    if not verdict.aware:
        raise Unsupported(f"MPI is given no device memory: {verdict.how}")


def builtin_host(work: DeviceWorkload, plain: Any, op: Any) -> Callable[[], None]:
    """MPI's collective on pinned images of the buffers, with the copies down and up in the call."""
    images = {
        id(buffer): device.pinned(buffer.array.size, work.dtype)
        for buffer in dict.fromkeys((work.recv, work.send))
    }
    send = images[id(work.send)] if work.sends else None
    recv = images[id(work.recv)] if work.receives else None
    arguments = work.recipe.arguments(send, recv, op, work.case.root)
    method = getattr(plain, work.recipe.method)
    down = [(images[id(work.send)], work.inner(work.send))] if work.sends else []
    up = [(work.inner(work.recv), images[id(work.recv)])] if work.receives else []
    stream = device.current_stream()

    def call() -> None:
        for image, array in down:
            device.copy(image.ctypes.data, int(array.data.ptr), image.nbytes, stream)
        stream.synchronize()  # MPI reads the image now
        method(*arguments)
        for array, image in up:
            device.copy(int(array.data.ptr), image.ctypes.data, image.nbytes, stream)
        stream.synchronize()

    return call


def nccl(work: DeviceWorkload, plain: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    """NCCL's collective, and what frees its communicator.

    Raises `Unsupported`, on all ranks, where it cannot run.
    """
    module = device.cupy()
    library: Any = getattr(module.cuda, "nccl", None)
    here = (_host(), module.cuda.Device().id, bool(library and library.available))
    everyone = plain.allgather(here)
    if not all(available for _, _, available in everyone):
        raise Unsupported("CuPy has no NCCL here (it comes with the wheel nvidia-nccl-cu12)")
    if len({(host, number) for host, number, _ in everyone}) < len(everyone):
        raise Unsupported(f"NCCL needs a device for each of {plain.size} ranks")
    kinds = {"f2": library.NCCL_FLOAT16, "f4": library.NCCL_FLOAT32, "f8": library.NCCL_FLOAT64,
             "i4": library.NCCL_INT32, "i8": library.NCCL_INT64, "u1": library.NCCL_UINT8}  # fmt: skip
    ops = {
        "sum": library.NCCL_SUM,
        "prod": library.NCCL_PROD,
        "max": library.NCCL_MAX,
        "min": library.NCCL_MIN,
    }
    kind, op = kinds.get(work.dtype.str[1:]), ops.get(work.case.op) if work.case.op else 0
    if kind is None or op is None:
        raise Unsupported(f"NCCL has no {work.case.op or 'type'} for {work.dtype}")
    starts = _nccl_call(work.case, kind, op)
    if starts is None:
        raise Unsupported(f"NCCL has no {work.case.collective}")
    unique = plain.bcast(library.get_unique_id() if plain.rank == 0 else None)
    comm = library.NcclCommunicator(plain.size, unique, plain.rank)
    send = int(work.inner(work.send).data.ptr) if work.sends else 0
    recv = int(work.inner(work.recv).data.ptr) if work.receives else 0
    stream = device.current_stream()
    return synchronised(lambda: starts(comm, send, recv, stream.ptr)), comm.destroy


def _host() -> str:
    from mpi4py import MPI

    return MPI.Get_processor_name()


def _nccl_call(case: Case, kind: int, op: int) -> Callable[[Any, int, int, int], None] | None:
    n, root = case.count, case.root
    return {
        "allreduce": lambda comm, send, recv, stream: comm.allReduce(send, recv, n, kind, op, stream),
        "reduce": lambda comm, send, recv, stream: comm.reduce(send, recv, n, kind, op, root, stream),
        "bcast": lambda comm, send, recv, stream: comm.bcast(recv, n, kind, root, stream),
        "allgather": lambda comm, send, recv, stream: comm.allGather(send, recv, n, kind, stream),
        "reduce_scatter": lambda comm, send, recv, stream: comm.reduceScatter(
            send, recv, n, kind, op, stream
        ),
    }.get(case.collective)
