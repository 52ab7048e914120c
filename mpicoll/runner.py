"""Running programs over MPI: the only module that starts the messages of collectives.

A `Plan` is a program bound to memory, to an operation and to persistent requests. Two engines run the
same program: `python` is a short loop over numpy and mpi4py calls, the reference; `native` hands the
whole program to `_runner.c`, which runs it without the GIL.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
import weakref
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from .buffers import Buffer
from .errors import ArgumentError, MpicollError, TimeoutExpired
from .ops import Operation
from .plan import LANDING, RECV, SEND, WORK, Combine, Copy, Mark, Message, Program, Region, Start, Wait

try:
    from . import _runner
except ImportError as error:
    _native_missing: str = f"mpicoll/_runner is not built ({error}); reinstall mpicoll with a C compiler"
else:
    _native_missing = ""
    # At exit the background thread must end before requests are freed (and MPI is finalized). Exit functions
    # run in reverse, and the first finalizer of all registers those of all: so one comes before.
    weakref.finalize(_runner.Program, int)
    atexit.register(_runner.stop_background)

ENGINES = ("native", "python")
GAVE_UP, PLAN_IS_BROKEN, PLAN_IS_BUSY = -1, -2, -3  # as in _runner.h, and so are the steps:
START, WAIT, KERNEL_STEP, MPI_STEP, COPY, MARK = range(6)
Array = npt.NDArray[Any]


def check_background(engine: str, wanted: bool | None) -> bool:
    """Whether a plan may run in the background: if `wanted`, or (None) if it is safe whatever the user does.

    The thread calls MPI. That is always allowed at MPI_THREAD_MULTIPLE; at MPI_THREAD_SERIALIZED the user
    must promise, by asking for it, that nobody else calls MPI meanwhile.
    Raises `ArgumentError` where it is wanted and cannot be.
    """
    level = MPI.Query_thread()
    if wanted is None:
        allowed = os.environ.get("MPICOLL_PROGRESS", "thread") != "test"
        return allowed and engine == "native" and level == MPI.THREAD_MULTIPLE
    if wanted and engine != "native":
        raise ArgumentError("background=True needs the native engine")
    if wanted and level < MPI.THREAD_SERIALIZED:
        raise ArgumentError(
            "background=True needs MPI_THREAD_SERIALIZED or more; set mpi4py.rc.thread_level before "
            "importing mpi4py.MPI"
        )
    return wanted


def native_status() -> tuple[bool, str]:
    """Whether the native engine can run here, and if not, why."""
    if _native_missing:
        return False, _native_missing
    try:
        _mpi_functions()
    except (OSError, AttributeError) as error:
        return False, f"MPI's functions cannot be found in the library that mpi4py loaded: {error}"
    return True, "available"


def check_engine(engine: str | None) -> str:
    """The engine to use: the given one, or the best available.

    Raises `ArgumentError` for an unknown engine or one that cannot run here.
    """
    if engine is None:
        engine = os.environ.get("MPICOLL_ENGINE") or None
    if engine is None:
        return "native" if native_status()[0] else "python"
    if engine not in ENGINES:
        raise ArgumentError(f"unknown engine {engine!r}; valid: {', '.join(ENGINES)}")
    if engine == "native" and not native_status()[0]:
        raise ArgumentError(f"the native engine cannot run here: {native_status()[1]}")
    return engine


def _mpi_functions() -> dict[str, int]:
    """Addresses of the MPI functions in the library that mpi4py is linked with."""
    library = ctypes.CDLL(MPI.__file__)
    return {
        name: ctypes.cast(getattr(library, f"MPI_{name.capitalize()}"), ctypes.c_void_p).value or 0
        for name in ("startall", "testall", "reduce_local")
    }


_functions: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Environment:
    """What a communicator gives to all its plans.

    `comm` is private to mpicoll. `polite` makes waits give up the core (more ranks than cores).
    `idle` is called now and then during a long wait; it raises to give up, and returns whether to call it
    again soon. `give_up` tells the other ranks that a run has failed here. `sync_sends` makes every send
    synchronous, and `trace` prints every message.
    """

    comm: MPI.Intracomm
    polite: bool
    idle: Callable[[], bool]
    give_up: Callable[[str], None]
    sync_sends: bool = False
    trace: bool = False
    timeout: float | None = None


class Watch:
    """Knows what a running program waits for: its errors, its long waits, its trace."""

    def __init__(self, program: Program, environment: Environment, name: str) -> None:
        self.program, self.environment, self.name = program, environment, name
        self.step_of_row: list[int] = []  # native engine: a step may be several rows
        self._since = 0.0

    def describe(self, position: int | None = None) -> str:
        """What runs here, and what its step at `position` is about."""
        program = self.program
        text = f"{self.name} on rank {program.rank} of {program.size}"
        if position is None:
            return text
        number = self.step_of_row[position] if self.step_of_row else position
        channel, round_ = program.places[number]
        step = program.steps[number]
        text += f", round {round_} of {program.rounds}"
        if channel:
            text += f" of channel {channel}"
        if isinstance(step, Start | Wait):
            messages = program.messages[step.first : step.last]
            peers = sorted({("sends to" if m.sending else "receives from", m.peer) for m in messages})
            text += " (" + ", ".join(f"{verb} {peer}" for verb, peer in peers) + ")"
        return text

    def idle(self, position: int, first: bool) -> bool:
        """Called during long waits: look for news from other ranks, and at the clock."""
        soon = self.environment.idle()
        limit = self.environment.timeout
        now = time.monotonic()
        if first:
            self._since = now
        elif limit is not None and now - self._since > limit:
            raise TimeoutExpired(f"no progress for {limit:g} s: {self.describe(position)}")
        return soon

    def failure(self, code: int, position: int) -> Exception | None:
        """The exception for a failure, told to the other ranks; None where Python has raised one already.

        `code` is MPI's, or one of those in `_runner.h`.
        """
        if code == PLAN_IS_BUSY:
            return MpicollError(f"{self.describe()} is running already")
        if code == PLAN_IS_BROKEN:
            return MpicollError(f"{self.describe()} has failed before, or was freed; it cannot run again")
        where = self.describe(position)
        self.environment.give_up(f"rank {self.program.rank} gave up: {where}")
        if code == GAVE_UP:
            return None
        return MpicollError(f"{where}: MPI says {MPI.Exception(code).Get_error_string()!r}")

    def trace(self, position: int) -> None:
        """Print one line for each message that a step starts."""
        step = self.program.steps[position]
        assert isinstance(step, Start)
        channel, round_ = self.program.places[position]
        for message in self.program.messages[step.first : step.last]:
            verb = "sends to" if message.sending else "receives from"
            print(
                f"mpicoll: {self.name} rank {self.program.rank} round {round_} channel {channel} "
                f"{verb} {message.peer}: {message.region.length} elements",
                flush=True,
            )


class Plan:
    """A collective operation, ready to run any number of times on the same buffers.

    Use it like a persistent MPI request (`Start`, `Test`, `Wait`, `Free`), or call it: ``plan()`` starts
    and waits. `run` is the bare callable behind that, for hot loops. With `background`, `Start` hands the
    plan to a thread that completes it while Python computes (native engine only). With `keep` it keeps the
    user's buffers alive.
    """

    def __init__(
        self,
        program: Program,
        environment: Environment,
        buffers: tuple[Buffer | None, Buffer | None],
        operation: Operation | None,
        engine: str,
        tag: int,
        facts: Mapping[str, Any],
        *,
        keep: bool,
    ) -> None:
        self.program, self.environment, self.engine = program, environment, engine
        self.algorithm: str = facts["algorithm"]
        self.collective: str = facts["collective"]
        self.params: Mapping[str, Any] = facts["params"]
        self.channels: int = facts.get("channels", 1)
        self.depth: int = facts.get("depth", 1)
        self.rounds = program.rounds
        self.background: bool = facts.get("background", False)
        self.active = False
        self.users = 0  # unfinished requests that refer to it
        self._watch = Watch(program, environment, f"{self.collective}/{self.algorithm}")
        bound = self._bound = Bound(program, environment, buffers, tag)
        bind = _bind_native if engine == "native" else PythonEngine
        self._engine: Any = bind(self._watch, bound, operation)
        self.run: Callable[[], None] = self._engine
        self.owners = buffers if keep else None
        memory = bound.memory
        self.scratch_bytes: int = memory.typed[WORK].nbytes + memory.typed[LANDING].nbytes

    def __call__(self) -> None:
        """Run the collective from start to end."""
        if self.active:
            raise MpicollError(f"{self.describe()} was started before it was over")
        self.run()

    def Start(self) -> None:
        """Begin; the first messages are on their way when this returns."""
        if self.active:
            raise MpicollError(f"{self.describe()} was started before it was over")
        self.start_after(None)

    def start_after(self, previous: Plan | None) -> None:
        """Begin once `previous`, which runs in the background too, is over."""
        if self.run is _freed:
            _freed()
        if self.background:
            self._engine.submit(previous._engine if previous is not None else None)
            self.active = True
        else:
            self.active = not self._engine.advance(False)

    def Test(self) -> bool:
        """Do what can be done without waiting; True when the operation is complete."""
        if self.active:
            self.active = False  # and so it stays if this fails
            over = self._engine.test() if self.background else self._engine.advance(False)
            self.active = not over
        return not self.active

    def Wait(self) -> None:
        """Complete the operation."""
        if self.active:
            self.active = False
            if self.background:
                self._engine.join()
            else:
                self._engine.advance(True)

    def Free(self) -> None:
        """Free the plan's requests. It cannot run again."""
        if self.active:
            raise MpicollError(f"{self.describe()} is running; Wait for it before Free")
        self.run = _freed
        self._engine.retire()
        self._bound.free()

    free = Free

    def listen(self) -> None:
        """Look for news from other ranks (called now and then while something is not complete)."""
        self.environment.idle()

    def stage_seconds(self) -> dict[str, float]:
        """What the last run spent on each stage on this rank, in seconds, waiting for others included.

        Stages are in the order in which they begin. Empty for a plan that was built without ``stages=True``.
        """
        seconds: dict[str, float] = {}
        if self.program.timed:
            passed = np.diff(self._bound.memory.times) * 1e-9
            for stage, took in zip(self.program.stages, passed.tolist(), strict=True):
                seconds[stage] = seconds.get(stage, 0.0) + took
        return seconds

    def describe(self) -> str:
        """What this plan is, and where it stands."""
        return self._watch.describe(self._engine.position if self.active else None)


def _request(environment: Environment, memory: Memory, message: Message, tag: int) -> MPI.Prequest:
    comm, region = environment.comm, message.region
    spec = [memory.raw(region), region.length, memory.datatype]
    if not message.sending:
        return comm.Recv_init(spec, message.peer, tag + message.slot)
    make: Any = comm.Ssend_init if environment.sync_sends else comm.Send_init
    request: MPI.Prequest = make(spec, message.peer, tag + message.slot)
    return request


def _freed() -> None:
    raise MpicollError("this plan was freed")


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


def _local_reduction(step: Combine) -> list[Copy | Combine]:
    """Three-operand combine by MPI_Reduce_local, which knows only ``inout = in ⊕ inout``.

    A landing region may be overwritten, a user's buffer other than the result may not.
    """
    out, left, right = step
    if right == out:
        return [step]
    if right.space == LANDING:
        return [Combine(right, left, right), Copy(out, right)]
    return [Copy(out, right), Combine(out, left, out)]


class PythonEngine:
    """Runs a program step by step: the reference."""

    def __init__(self, watch: Watch, bound: Bound, operation: Operation | None) -> None:
        self.watch, self.bound = watch, bound
        self.memory, self.requests = bound.memory, bound.requests
        self.position = 0
        self.broken = self.busy = False
        self.actions = [self._action(step, operation) for step in watch.program.steps]

    def __call__(self) -> None:
        """Run to the end."""
        self.advance(True)

    def advance(self, blocking: bool) -> bool:
        """Run until done (True), or, unless blocking, until a message is not there yet (False)."""
        if self.broken or self.busy:
            raise self.watch.failure(PLAN_IS_BROKEN if self.broken else PLAN_IS_BUSY, self.position)  # type: ignore[misc]
        self.busy = True
        try:
            with np.errstate(all="ignore"):  # one rank must not raise in the middle of a collective
                done = self._steps(blocking)
        except BaseException:
            self.broken = True
            self.watch.failure(GAVE_UP, self.position)
            raise
        finally:
            self.busy = False
        return done

    def retire(self) -> None:
        """Never run again."""
        self.broken = True

    def _steps(self, blocking: bool) -> bool:
        while self.position < len(self.actions):
            action = self.actions[self.position]
            if isinstance(action, list):
                if not self._wait(action, blocking):
                    return False
            else:
                action()
            self.position += 1
        self.position = 0
        return True

    def _action(self, step: Any, operation: Operation | None) -> Callable[[], Any] | list[MPI.Request]:
        """What to call for a step, or which requests to wait for."""
        memory = self.memory
        if isinstance(step, Start):
            start = self._trace if self.watch.environment.trace else MPI.Prequest.Startall
            return partial(start, self.requests[step.first : step.last])
        if isinstance(step, Wait):
            return list(self.requests[step.first : step.last])
        if isinstance(step, Copy):
            return partial(np.copyto, memory.raw(step.out), memory.raw(step.source))
        if isinstance(step, Mark):
            return partial(_note_time, memory.times, step.number)
        assert operation is not None, "a reduction needs an operation"
        left, right, out = (memory.view(r) for r in (step.left, step.right, step.out))
        if operation.ufunc is not None:
            return partial(operation.ufunc, left, right, out=out)
        return partial(self._reduce_local, operation.op, _local_reduction(step))

    def _reduce_local(self, op: MPI.Op, steps: list[Copy | Combine]) -> None:
        memory = self.memory
        for step in steps:
            if isinstance(step, Copy):
                np.copyto(memory.raw(step.out), memory.raw(step.source))
            else:
                left, out = ([memory.raw(r), r.length, memory.datatype] for r in (step.left, step.out))
                op.Reduce_local(left, out)

    def _wait(self, requests: list[MPI.Request], blocking: bool) -> bool:
        tests, ask_at, first = 0, 0.0, True
        while not MPI.Request.Testall(requests):
            if not blocking:
                return False
            if self.watch.environment.polite:
                os.sched_yield()
            tests += 1
            if tests % 64 == 0 and time.monotonic() > ask_at:
                ask_at = time.monotonic() + (0 if self.watch.idle(self.position, first) else 0.02)
                first = False
        return True

    def _trace(self, requests: list[MPI.Prequest]) -> None:
        self.watch.trace(self.position)
        MPI.Prequest.Startall(requests)


def _note_time(times: Array, number: int) -> None:
    times[number] = time.monotonic_ns()


def _bind_native(watch: Watch, bound: Bound, operation: Operation | None) -> Any:
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
        failure=watch.failure,
        owner=bound,
        polite=watch.environment.polite,
    )


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
    for part in _local_reduction(step):
        if isinstance(part, Copy):
            rows += _lower(part, memory, None)
        else:
            rows += [MPI_STEP, memory.at(part.left), memory.at(part.out), memory.extent, part.out.length]
    return rows
