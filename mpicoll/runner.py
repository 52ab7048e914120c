"""Running programs over MPI: the only module that starts the messages of collectives.

A `Plan` is a program bound to memory, to an operation and to persistent requests. Two engines run the
same program: `python` (`engine`) is a short loop over numpy and mpi4py calls, the reference; `native` hands
the whole program to `_runner.c`, which runs it without the GIL. Device memory is the python engine's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from .buffers import Buffer
from .engine import DeviceEngine, PythonEngine
from .errors import ArgumentError, MpicollError
from .memory import Bound
from .native import bind_native, native_status
from .ops import Operation
from .program import Program
from .watch import Environment, Watch

ENGINES = ("native", "python")


def may_thread() -> bool:
    """Whether plans of the native engine may run in the background here without the user's promise.

    The thread calls MPI. That is always allowed at MPI_THREAD_MULTIPLE, unless MPICOLL_PROGRESS is "test".
    """
    return (
        os.environ.get("MPICOLL_PROGRESS", "thread") != "test" and MPI.Query_thread() == MPI.THREAD_MULTIPLE
    )


def check_background(engine: str, wanted: bool) -> bool:
    """Whether a plan runs in the background: if `wanted`.

    At MPI_THREAD_SERIALIZED the user promises, by asking for it, that nobody else calls MPI meanwhile.
    Raises `ArgumentError` where it is wanted and cannot be.
    """
    level = MPI.Query_thread()
    if wanted and engine != "native":
        raise ArgumentError("background=True needs the native engine")
    if wanted and level < MPI.THREAD_SERIALIZED:
        raise ArgumentError(
            "background=True needs MPI_THREAD_SERIALIZED or more; set mpi4py.rc.thread_level before "
            "importing mpi4py.MPI"
        )
    return bool(wanted)


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


_abandoned: list[Plan] = []
_started: dict[Plan, None] = {}  # and not over, nor waited for, in the order in which they were started


class Plan:
    """A collective operation, ready to run any number of times on the same buffers.

    Use it like a persistent MPI request (`Start`, `Test`, `Wait`, `Free`), or call it: ``plan()`` starts
    and waits. `run` is the bare callable behind that, for hot loops. With `background`, `Start` hands the
    plan to a thread that completes it while Python computes (native engine only). With `keep` it keeps the
    user's buffers alive. `buffer` is "host", "cupy" or "cupy_staged", `staging` how the latter is done.
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
        self.buffer: str = facts.get("buffer", "host")
        self.staging: str | None = facts.get("staging")
        self.active = False
        self._closed = ""  # why it cannot run again, once it cannot
        self._failed_served: Exception | None = None
        self.users = 0  # unfinished requests that refer to it
        self.owners = buffers if keep else None
        bound = self._bound = Bound(program, environment, buffers, tag, self.owners)
        name = f"{self.collective}/{self.algorithm}"
        self._watch = Watch(program, environment, name, bound.memory.extent)
        bind = bind_native if engine == "native" else DeviceEngine if program.device else PythonEngine
        self._engine: Any = bind(self._watch, bound, operation)
        self.run: Callable[[], None] = self._engine
        self.scratch_bytes: int = bound.memory.scratch_bytes

    def __call__(self) -> None:
        """Run the collective from start to end."""
        if self.active:
            raise MpicollError(f"{self.describe()} was started before it was over")
        self.run()

    def Start(self) -> None:
        """Begin: the first messages are on their way when this returns, or soon after in the background."""
        if self.active:
            raise MpicollError(f"{self.describe()} was started before it was over")
        self.start_after(None)

    def start_after(self, previous: Plan | None) -> None:
        """Begin once `previous`, which runs in the background too, is over."""
        if self._closed:
            raise MpicollError(self._closed)
        if self.background:
            self._engine.submit(previous._engine if previous is not None else None)
            self.active = True
        else:
            self.active = not self._engine.advance(False)
            if self.active:
                _started[self] = None

    def Test(self) -> bool:
        """Do what can be done without waiting; True when the operation is complete."""
        if self.active:
            self._raise_served()
            self.active = False  # and so it stays if this fails
            over = self._engine.test() if self.background else self._engine.advance(False)
            self.active = not over
            if over:
                _started.pop(self, None)
        return not self.active

    def Wait(self) -> None:
        """Complete the operation."""
        if self.active:
            self._raise_served()
            self.active = False
            _started.pop(self, None)  # the wait serves all others
            if self.background:
                self._engine.join()
            else:
                self._engine.advance(True)

    @staticmethod
    def serve_started() -> bool:
        """Advance all plans that were started and are not waited for; whether there are any.

        Ranks may wait for theirs in different orders. What goes wrong is for a plan's owner to hear.
        """
        for plan in list(_started):
            try:
                plan.Test()
            except Exception as error:
                plan._failed_served, plan.active = error, True
                _started.pop(plan, None)
        return bool(_started)

    def _raise_served(self) -> None:
        error, self._failed_served = self._failed_served, None
        if error is not None:
            self.active = False
            raise error

    def Free(self) -> None:
        """Free the plan's requests. It cannot run again."""
        if self.active:
            raise MpicollError(f"{self.describe()} is running; Wait for it before Free")
        self.close("this plan was freed")

    free = Free

    def close(self, why: str) -> None:
        """Free its requests; who runs it again is told `why` that cannot be. Not while it is active."""
        self._closed = self._closed or why
        self.run = partial(_refuse, self._closed)
        self._engine.retire()
        self._bound.free()

    def abandon(self) -> None:
        """Stop where it stands and never run again.

        Messages that are under way cannot be called back: they keep the plan and its buffers for ever.
        """
        if self._closed:
            return
        _abandoned.append(self)
        _started.pop(self, None)
        self.active = False
        self._closed = "this plan was given up"
        self.run = partial(_refuse, self._closed)
        self._engine.retire()

    @property
    def flight(self) -> tuple[float, float]:
        """When it began and ended in the background, the last time it ran [s of `time.perf_counter`]."""
        times: tuple[float, float] = self._engine.flight
        return times

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


def _refuse(why: str) -> None:
    raise MpicollError(why)
