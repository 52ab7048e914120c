"""The python engine: a short loop over numpy and mpi4py calls, and its like for device memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from . import device
from .memory import Array, Bound, DeviceMemory
from .ops import Operation, local_reduction
from .program import CALLER, DOWN, MAIN, UP, Await, Combine, Copy, Mark, Start, Sync, Wait
from .watch import GAVE_UP, PLAN_IS_BROKEN, PLAN_IS_BUSY, Watch


class Pending:
    """Something that is not called but waited for, until `over()` is true."""

    __slots__ = ("over",)

    def __init__(self, over: Callable[[], bool]) -> None:
        self.over = over


class PythonEngine:
    """Runs a program step by step: the reference."""

    def __init__(self, watch: Watch, bound: Bound, operation: Operation | None) -> None:
        self.watch, self.bound = watch, bound
        self.memory, self.requests = bound.memory, bound.requests
        self.position = 0
        self.broken = self.busy = False
        waits = [step.last - step.first for step in watch.program.steps if isinstance(step, Wait)]
        self.statuses = [MPI.Status() for _ in range(max(waits, default=0))]  # of the last wait
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
        except MPI.Exception as error:
            self.broken = True
            raise self.watch.failure(error.Get_error_code(), self.position, self.statuses) from error  # type: ignore[misc]
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
            if isinstance(action, Pending):
                if not self._wait(action.over, blocking):
                    return False
            else:
                action()
            self.position += 1
        self.position = 0
        return True

    def _action(self, step: Any, operation: Operation | None) -> Callable[[], Any] | Pending:
        """What to call for a step, or what to wait for."""
        memory = self.memory
        if isinstance(step, Start):
            start = self._trace if self.watch.environment.trace else MPI.Prequest.Startall
            return partial(start, self.requests[step.first : step.last])
        if isinstance(step, Wait):
            group = list(self.requests[step.first : step.last])
            return Pending(partial(MPI.Request.Testall, group, self.statuses))
        if isinstance(step, Copy):
            return partial(np.copyto, memory.raw(step.out), memory.raw(step.source))
        if isinstance(step, Mark):
            return partial(_note_time, memory.times, step.number)
        assert operation is not None, "a reduction needs an operation"
        left, right, out = (memory.view(r) for r in (step.left, step.right, step.out))
        if operation.ufunc is not None:
            return partial(operation.ufunc, left, right, out=out)
        return partial(self._reduce_local, operation.op, local_reduction(step))

    def _reduce_local(self, op: MPI.Op, steps: list[Copy | Combine]) -> None:
        memory = self.memory
        for step in steps:
            if isinstance(step, Copy):
                np.copyto(memory.raw(step.out), memory.raw(step.source))
            else:
                left, out = ([memory.raw(r), r.length, memory.datatype] for r in (step.left, step.out))
                op.Reduce_local(left, out)

    def _wait(self, over: Callable[[], bool], blocking: bool) -> bool:
        tests, ask_at, first = 0, 0.0, True
        while not over():
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


class DeviceEngine(PythonEngine):
    """Runs a program for device memory: what touches it is queued on streams, see `staging`.

    Kernels run on the stream that is the caller's current one when the run begins, and results are there in
    the order of that stream. If the next run begins on another stream, that one waits for it first: scratch
    is not overwritten under the kernels that use it.
    """

    def __init__(self, watch: Watch, bound: Bound, operation: Operation | None) -> None:
        program = watch.program
        asked = {step.after for step in program.steps if isinstance(step, Sync | Await)}
        polite = watch.environment.polite
        self.events = {number: device.event(block=polite) for number in asked}
        self.turn = device.event(block=polite)
        self.device = device.current()
        self.streams: dict[int, Any] = {MAIN: None}
        if any(program.stream(step) in (DOWN, UP) for step in program.steps):
            self.streams[DOWN], self.streams[UP] = device.copy_streams()
        self.begun = False
        self.queued = 0  # steps, while actions are made
        super().__init__(watch, bound, operation)

    def _steps(self, blocking: bool) -> bool:
        with self.device:
            if not self.begun:
                self._begin()
            with self.streams[MAIN]:
                over = super()._steps(blocking)
        self.begun = not over
        return over

    def _begin(self) -> None:
        stream, before = device.current_stream(), self.streams[MAIN]
        if before is not None and before != stream:
            self.turn.record(before)
            stream.wait_event(self.turn)
        self.streams[MAIN] = stream
        assert isinstance(self.memory, DeviceMemory)
        self.memory.last = stream
        if CALLER in self.events:
            self.events[CALLER].record(stream)
        self.begun = True

    def _action(self, step: Any, operation: Operation | None) -> Any:
        if isinstance(step, Sync):
            done = self.events[step.after]
            return Pending(lambda: bool(done.done))
        if isinstance(step, Await):
            return partial(self._order, step.stream, self.events[step.after])
        stream = self.watch.program.stream(step)
        if stream is None:
            return super()._action(step, operation)
        event = self.events.get(self.queued)
        self.queued += 1
        if isinstance(step, Copy):
            nbytes = step.out.length * self.memory.extent
            where = self.memory.at(step.out), self.memory.at(step.source), nbytes
            return partial(self._copy, *where, stream, event)
        assert isinstance(step, Combine)
        assert operation is not None
        assert operation.ufunc is not None, "the planner reduces elsewhere"
        left, right, out = (
            device.view(self.memory.at(r), r.length, self.memory.dtype)
            for r in (step.left, step.right, step.out)
        )
        kernel = partial(device.reduction(operation.ufunc.__name__), left, right, out=out)
        return partial(self._kernel, kernel, event) if event is not None else kernel

    def _order(self, stream: int, event: Any) -> None:
        self.streams[stream].wait_event(event)

    def _copy(self, target: int, source: int, nbytes: int, stream: int, event: Any) -> None:
        device.copy(target, source, nbytes, self.streams[stream])
        if event is not None:
            event.record(self.streams[stream])

    def _kernel(self, kernel: Callable[[], Any], event: Any) -> None:
        kernel()
        event.record(self.streams[MAIN])
