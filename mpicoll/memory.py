"""A program bound to memory and to persistent requests."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from .buffers import Buffer
from .plan import LANDING, RECV, SEND, WORK, Message, Program, Region
from .watch import Environment

Array = npt.NDArray[Any]


class Memory:
    """The four spaces of a program as bytes and as typed arrays.

    It does not keep the user's buffers alive: whoever runs the plan does.
    """

    def __init__(self, program: Program, buffers: tuple[Buffer | None, Buffer | None]) -> None:
        send, recv = buffers
        some = recv or send
        self.extent = some.extent if some else 1
        self.datatype = some.datatype if some else MPI.BYTE
        dtype = some.dtype if some else np.dtype(np.uint8)
        none = np.empty(0, dtype)
        self.typed: list[Array] = [none, none, none, none]
        self.typed[SEND] = send.array() if send else none
        self.typed[RECV] = recv.array() if recv else none
        self.typed[WORK] = np.empty(program.work, dtype)
        self.typed[LANDING] = np.empty(program.landing, dtype)
        for scratch in (self.typed[WORK], self.typed[LANDING]):
            if scratch.size:  # written once, so that no page fault falls into a timed call
                scratch.view(np.uint8)[...] = 0
        self.bytes: list[Array] = [a.view(np.uint8) if a.size else a for a in self.typed]
        self.address = [a.__array_interface__["data"][0] for a in self.typed]
        self.times = np.zeros(len(program.stages) + 1 if program.timed else 0, np.int64)  # [ns], of marks

    def raw(self, region: Region) -> Array:
        """A region as bytes."""
        low = region.offset * self.extent
        return self.bytes[region.space][low : low + region.length * self.extent]

    def view(self, region: Region) -> Array:
        """A region as elements."""
        return self.typed[region.space][region.offset : region.offset + region.length]

    def at(self, region: Region) -> int:
        """A region's address."""
        return int(self.address[region.space] + region.offset * self.extent)


def _request(environment: Environment, memory: Memory, message: Message, tag: int) -> MPI.Prequest:
    comm, region = environment.comm, message.region
    spec = [memory.raw(region), region.length, memory.datatype]
    if not message.sending:
        return comm.Recv_init(spec, message.peer, tag + message.slot)
    make: Any = comm.Ssend_init if environment.sync_sends else comm.Send_init
    request: MPI.Prequest = make(spec, message.peer, tag + message.slot)
    return request


class Bound:
    """A program's memory and requests. Lives as long as any callable that runs the program.

    The requests are freed with it and at exit, since MPI libraries complain about leaked ones.
    """

    def __init__(
        self,
        program: Program,
        environment: Environment,
        buffers: tuple[Buffer | None, Buffer | None],
        tag: int,
    ) -> None:
        self.memory = Memory(program, buffers)
        self.requests = [_request(environment, self.memory, m, tag) for m in program.messages]
        self.free = weakref.finalize(self, _free_requests, self.requests, self.memory)


_stuck: list[Any] = []


def _free_requests(requests: list[MPI.Prequest], memory: Memory) -> None:
    """Free the requests of a plan; those that a failed run left active keep their memory for ever."""
    if MPI.Is_finalized():
        return
    for request in requests:
        if request.Get_status():
            request.Free()
        else:
            _stuck.append((request, memory))
    requests.clear()
