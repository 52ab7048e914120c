"""One pass of one case: every contender built, proved right, warmed up, timed, proved again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mpicoll.bench.cases import Case
from mpicoll.bench.check import check, verdict
from mpicoll.bench.clocks import Window
from mpicoll.bench.cold import last_level_cache, sweeper
from mpicoll.bench.contenders import Runnable, build
from mpicoll.bench.device_contenders import DeviceWorkload, use_own_device
from mpicoll.bench.planning import History, Step
from mpicoll.bench.race import Method, Race, Samples
from mpicoll.bench.spec import Contender, Spec
from mpicoll.bench.stages import ITERATIONS as STAGE_ITERATIONS
from mpicoll.bench.stages import Seconds, measure_stages
from mpicoll.bench.timing import batched, clock
from mpicoll.bench.workload import Workload
from mpicoll.bench.world import StopSignals, World
from mpicoll.errors import MpicollError, Unsupported


@dataclass(slots=True)
class Entry:
    """A contender in a case, and how it fares."""

    contender: Contender
    runnables: list[Runnable] = field(default_factory=list)  # one for each set of buffers
    build_seconds: float | None = None
    first_seconds: float | None = None
    status: str = "ok"
    reason: str | None = None

    @property
    def runnable(self) -> Runnable | None:
        """What says who ran, if anybody could."""
        return self.runnables[0] if self.runnables else None


@dataclass(slots=True)
class Measured:
    """The outcome of a pass; `samples` of the contenders in `racing` are rank 0's only."""

    entries: list[Entry]
    racing: list[Entry] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)
    stopped_by: str = "nothing ran"
    elapsed: float = 0.0  # seconds for warming up and timing
    stages: list[tuple[Entry, list[tuple[Seconds, ...]]]] = field(default_factory=list)  # rank 0's, if wanted


class Bench:
    """The communicators of a sweep, and the procedure for one case."""

    def __init__(self, world: World, spec: Spec, stop: StopSignals):
        import mpicoll

        self.world, self.spec, self.stop = world, spec, stop
        if spec.buffer == "cupy":
            with world.together():
                use_own_device(world)
        self.own: Any = mpicoll.Comm(world.control)
        self.plain = world.control.Dup()
        self.barrier = self.own.Barrier_init(algorithm="dissemination")
        self.window = Window(world, self.own) if spec.sync == "window" else None
        self.cold = last_level_cache(world) if "cold" in spec.cache else None
        self._epoch = spec.seed

    def run_case(
        self, case: Case, contenders: list[Contender], seed: int, step: Step, history: History
    ) -> Measured:
        """Measure all contenders in one case. Collective; an unusable one is recorded, never replaced.

        `history` of earlier passes is rank 0's.
        """
        works = self._workloads(case)
        result = Measured([self._enter(contender, works) for contender in contenders])
        try:
            result.racing = [entry for entry in result.entries if entry.status == "ok"]
            if result.racing:
                self._race(result, works, seed, step, history)
                if self.spec.stages:
                    self._time_stages(result, works[0])
                if self.spec.check:
                    self._prove_again(result, works)
        finally:
            for entry in result.entries:
                for runnable in entry.runnables:
                    runnable.free()
        return result

    def facts(self) -> dict[str, Any]:
        """For `run.json`: what the caches were taken for, if calls are to find them cold."""
        if self.cold is None:
            return {}
        return {"cold": {"cache_bytes": self.cold.cache_bytes, "known": self.cold.known}}

    def _workloads(self, case: Case) -> list[Workload]:
        """The sets of buffers that calls take in turn: one where they may stay in the caches."""
        sets = 1 if case.cache == "warm" or self.cold is None else self.cold.sets(case.total_bytes)
        kind = DeviceWorkload if self.spec.buffer == "cupy" else Workload
        works = [kind(case, self.world.rank) for _ in range(sets)]
        for work in works:
            work.refresh(self._next_epoch())
        return works

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def _enter(self, contender: Contender, works: list[Workload]) -> Entry:
        """Build a contender, run it for the first time, and prove that run."""
        entry = Entry(contender)
        for work in works:
            made = self._attempt(entry, partial(build, contender, work, self.own, self.plain))
            if made is None:
                return entry
            entry.runnables.append(made)
        entry.build_seconds = self.world.largest(entry.runnables[0].build_seconds or 0.0)
        works[0].refresh(self._next_epoch())
        self.barrier.run()
        start = clock()
        self._attempt(entry, entry.runnables[0].call)
        seconds = clock() - start
        if entry.status == "ok":
            entry.first_seconds = self.world.largest(seconds)
            self._judge(entry, verdict(self.world, works[0]) if self.spec.check else None, "first call")
        for runnable in entry.runnables[1:] if entry.status == "ok" else ():
            self._attempt(entry, runnable.call)
        return entry

    def _attempt(self, entry: Entry, action: Callable[[], Any]) -> Any:
        """What `action` returns, or None if it failed on all ranks, which the entry then records."""
        from mpi4py import MPI

        problem, result = None, None
        try:
            result = action()
        except (MpicollError, MPI.Exception) as error:
            status = "unsupported" if isinstance(error, Unsupported) else "error"
            problem = f"{status}:{error}"
        agreed = self.world.agree(problem)
        if agreed is not None:
            if problem is None:
                raise MpicollError(f"another rank failed where this one did not: {agreed}")
            status, _, entry.reason = agreed.partition(":")
            entry.status = status
        return result

    def _judge(self, entry: Entry, problem: str | None, when: str) -> None:
        if problem is not None and entry.status == "ok":
            entry.status, entry.reason = "wrong", f"{when}: {problem}"

    def _race(self, result: Measured, works: list[Workload], seed: int, step: Step, history: History) -> None:
        spec = self.spec
        sets = [
            [batched(entry.runnables[index].call, spec.batch) for entry in result.racing]
            for index in range(len(works))
        ]
        meet = self.barrier.run if self.window is None else self.window.meet
        prime = works[0].case.msg_bytes < spec.prime_below
        method = Method(meet, self.window, prime, spec.batch, self._evict(works))
        race = Race(self.world, self.stop, sets, method, seed)
        before = [history.times.get(name_of(entry), []) for entry in result.racing]
        result.stopped_by = race.run(spec.warmup, step, spec.precision, before)
        result.samples, result.elapsed = race.samples, race.elapsed

    def _evict(self, works: list[Workload]) -> Callable[[], Any] | None:
        if len(works) == 1 or self.cold is None:
            return None
        return sweeper(self.cold.lacking(len(works), works[0].nbytes))

    def _time_stages(self, result: Measured, work: Workload) -> None:
        entries = [entry for entry in result.racing if not entry.contender.builtin]
        contenders = [entry.contender for entry in entries]
        iterations = None
        if self.world.first:  # as many as fit in a quarter of the case's time
            once = float(np.median(np.concatenate(result.samples.high), axis=0).sum())
            fewest, most = STAGE_ITERATIONS
            iterations = max(fewest, min(most, int(self.spec.case_time / 4 / once)))
        iterations = self.world.control.bcast(iterations, root=0)
        found = measure_stages(self.world, contenders, work, self.own, self.barrier.run, iterations)
        if self.world.first:
            result.stages = list(zip(entries, found, strict=True))

    def _prove_again(self, result: Measured, works: list[Workload]) -> None:
        """All contenders once more on new data: those found wrong now were measured wrong."""
        for entry in result.racing:
            for work, runnable in zip(works, entry.runnables, strict=True):
                self._judge(entry, check(self.world, work, runnable, self._next_epoch()), "after timing")


def name_of(entry: Entry) -> tuple[str, str]:
    """What identifies a contender in the rows of all passes of a case."""
    runnable = entry.runnable
    engine = "" if entry.contender.builtin or runnable is None else runnable.engine
    return entry.contender.label, engine
