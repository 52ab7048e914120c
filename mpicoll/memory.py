"""A program bound to memory and to persistent requests."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from . import device
from .buffers import Buffer
from .program import (
    DEVICE_RECV,
    DEVICE_SEND,
    LANDING,
    MIRROR,
    RECV,
    SEND,
    SPACE_NAMES,
    WORK,
    Message,
    Program,
    Region,
)
from .watch import Environment

Array = npt.NDArray[Any]


class Memory:
    """The spaces of a program: as addresses, and those in host memory as arrays.

    It does not keep the user's buffers alive: whoever runs the plan does.
    """

    def __init__(self, program: Program, buffers: tuple[Buffer | None, Buffer | None]) -> None:
        some = buffers[1] or buffers[0]
        self.extent = some.extent if some else 1
        self.datatype = some.datatype if some else MPI.BYTE
        self.dtype = some.dtype if some else np.dtype(np.uint8)
        self.typed: list[Array] = [np.empty(0, self.dtype)] * len(SPACE_NAMES)
        self.address = [0] * len(SPACE_NAMES)
        self._place(program, *buffers)
        for space, array in enumerate(self.typed):
            if array.size:
                self.address[space] = array.__array_interface__["data"][0]
        self.bytes: list[Array] = [a.view(np.uint8) if a.size else a for a in self.typed]
        self.times = np.zeros(len(program.stages) + 1 if program.timed else 0, np.int64)  # [ns], of marks

    def _place(self, program: Program, send: Buffer | None, recv: Buffer | None) -> None:
        """Say where the spaces are."""
        for space, buffer in ((SEND, send), (RECV, recv)):
            if buffer is not None:
                self.typed[space] = buffer.array()
        self._scratch(program)

    def _scratch(self, program: Program) -> None:
        for space, count in ((WORK, program.work), (LANDING, program.landing)):
            self.typed[space] = np.empty(count, self.dtype)
            if count:  # written once, so that no page fault falls into a timed call
                self.typed[space].view(np.uint8)[...] = 0

    @property
    def scratch_bytes(self) -> int:
        """Bytes that were allocated."""
        return self.typed[WORK].nbytes + self.typed[LANDING].nbytes

    def spec(self, region: Region) -> Any:
        """A region as MPI is given it."""
        return self.raw(region)

    def settle(self) -> None:
        """Called before the memory goes: nothing may use it any more."""

    def raw(self, region: Region) -> Array:
        """A region in host memory as bytes."""
        low = region.offset * self.extent
        return self.bytes[region.space][low : low + region.length * self.extent]

    def view(self, region: Region) -> Array:
        """A region in host memory as elements."""
        return self.typed[region.space][region.offset : region.offset + region.length]

    def at(self, region: Region) -> int:
        """A region's address."""
        return int(self.address[region.space] + region.offset * self.extent)


class DeviceMemory(Memory):
    """The spaces of a program for device memory (see `staging`).

    Scratch in device memory comes from CuPy's default pool; images and mirrors are pinned host memory.
    """

    def _place(self, program: Program, send: Buffer | None, recv: Buffer | None) -> None:
        self.owned: list[Any] = []
        self.last: Any = None  # the stream that used it last
        self._allocated = 0
        images = DEVICE_RECV in program.device
        for space, there, buffer in ((SEND, DEVICE_SEND, send), (RECV, DEVICE_RECV, recv)):
            if buffer is not None:
                self.address[there if images else space] = buffer.address
                if images:
                    self._pin(space, buffer.count)
        self._pin(MIRROR, program.mirror)
        if images:
            self._scratch(program)
            self._allocated += super().scratch_bytes
            return
        for space, count in ((WORK, program.work), (LANDING, program.landing)):
            if count:
                self.owned.append(device.scratch(count * self.extent))
                self.address[space] = int(self.owned[-1].ptr)
                self._allocated += count * self.extent

    def _pin(self, space: int, count: int) -> None:
        self.typed[space] = device.pinned(count, self.dtype)
        self._allocated += self.typed[space].nbytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes that were allocated, on host and device."""
        return self._allocated

    def spec(self, region: Region) -> Any:
        """A region as MPI is given it: an address, which mpi4py does not look behind."""
        return MPI.buffer.fromaddress(self.at(region), region.length * self.extent)

    def settle(self) -> None:
        """Wait until no kernel uses it."""
        if self.last is not None:
            with contextlib.suppress(RuntimeError):  # at exit the device may be gone, and its kernels with it
                self.last.synchronize()


def _request(environment: Environment, memory: Memory, message: Message, tag: int) -> MPI.Prequest:
    comm, region = environment.comm, message.region
    spec = [memory.spec(region), region.length, memory.datatype]
    if not message.sending:
        return comm.Recv_init(spec, message.peer, tag + message.slot)
    make: Any = comm.Ssend_init if environment.sync_sends else comm.Send_init
    request: MPI.Prequest = make(spec, message.peer, tag + message.slot)
    return request


class Bound:
    """A program's memory and requests. Lives as long as any callable that runs the program.

    The requests are freed with it and at exit, since MPI libraries complain about leaked ones. It keeps
    `owners` alive until then, and for ever if a failed run has left messages under way.
    """

    def __init__(
        self,
        program: Program,
        environment: Environment,
        buffers: tuple[Buffer | None, Buffer | None],
        tag: int,
        owners: object,
    ) -> None:
        self.memory = DeviceMemory(program, buffers) if program.device else Memory(program, buffers)
        self.requests = [_request(environment, self.memory, m, tag) for m in program.messages]
        self.free = weakref.finalize(self, _free_requests, self.requests, self.memory, owners)


_stuck: list[Any] = []


def leave_to_mpi(*owners: object) -> None:
    """Keep a failed call's buffers for ever: its messages are still under way, and nobody calls them back."""
    _stuck.append(owners)


def _free_requests(requests: list[MPI.Prequest], memory: Memory, owners: object) -> None:
    """Free the requests of a plan; those that a failed run left active keep their memory for ever."""
    memory.settle()
    if MPI.Is_finalized():
        return
    for request in requests:
        try:
            over = request.Get_status()
        except MPI.Exception:  # of a failed run, which has raised already
            over = False
        if over:
            request.Free()
        else:
            leave_to_mpi(request, memory, owners)
    requests.clear()
