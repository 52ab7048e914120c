"""One case, from buffers to rows: every contender built, proved right, warmed up, timed, proved again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpicoll.bench.cases import Case
from mpicoll.bench.check import check, verdict
from mpicoll.bench.contenders import Runnable, build
from mpicoll.bench.spec import Contender, Spec
from mpicoll.bench.timing import clock, measure, no_garbage_collection, orders
from mpicoll.bench.workload import Workload
from mpicoll.bench.world import StopSignals, World
from mpicoll.errors import MpicollError, Unsupported

_LOOK_UP = 0.2  # seconds between looks at the clock and for signals to stop
_FEWEST = 5  # iterations, whatever the time budget says

Row = dict[str, Any]


@dataclass(slots=True)
class Entry:
    """A contender in a case, and how it fares."""

    contender: Contender
    runnable: Runnable | None = None
    status: str = "ok"
    reason: str | None = None
    first_seconds: float | None = None


@dataclass(slots=True)
class Measured:
    """The outcome of a case; `seconds` (ranks × contenders that ran × iterations) is rank 0's only."""

    entries: list[Entry]
    racing: list[Entry] = field(default_factory=list)
    orders: list[list[int]] = field(default_factory=list)
    seconds: np.ndarray | None = None
    warmup: int = 0
    stopped_by: str = "iterations"


class Bench:
    """The communicators of a sweep, and the procedure for one case."""

    def __init__(self, world: World, spec: Spec, stop: StopSignals):
        import mpicoll

        self.world, self.spec, self.stop = world, spec, stop
        self.own: Any = mpicoll.Comm(world.control)
        self.plain = world.control.Dup()
        self.barrier = self.own.Barrier_init()
        self._epoch = spec.seed

    def run_case(self, case: Case, contenders: list[Contender], seed: int, budget: float) -> Measured:
        """Measure all contenders in one case. Collective; an unusable one is recorded, never replaced."""
        work = Workload(case, self.world.rank)
        work.refresh(self._next_epoch())
        result = Measured([self._enter(contender, work) for contender in contenders])
        try:
            result.racing = [entry for entry in result.entries if entry.status == "ok"]
            if result.racing:
                self._race(result, work, seed, budget)
                if self.spec.check:
                    self._prove_again(result, work)
        finally:
            for entry in result.entries:
                if entry.runnable is not None:
                    entry.runnable.free()
        return result

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def _enter(self, contender: Contender, work: Workload) -> Entry:
        """Build a contender, run it for the first time, and prove that run."""
        entry = Entry(contender)
        entry.runnable = self._attempt(entry, lambda: build(contender, work, self.own, self.plain))
        if entry.runnable is None:
            return entry
        entry.runnable.build_seconds = self.world.largest(entry.runnable.build_seconds or 0.0)
        work.refresh(self._next_epoch())
        self.barrier.run()
        start = clock()
        self._attempt(entry, entry.runnable.call)
        seconds = clock() - start
        if entry.status == "ok":
            entry.first_seconds = self.world.largest(seconds)
            self._judge(entry, verdict(self.world, work) if self.spec.check else None, "first call")
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

    def _race(self, result: Measured, work: Workload, seed: int, budget: float) -> None:
        """Warm up, then time, in chunks between which rank 0 looks at the clock and all look for signals."""
        spec = self.spec
        calls = [entry.runnable.call for entry in result.racing if entry.runnable is not None]
        result.orders = orders(len(calls), spec.warmup + spec.iterations, seed)
        chunks: list[np.ndarray] = []
        done, prime = 0, work.case.msg_bytes < spec.prime_below
        phases = ((1, spec.warmup, budget / 4), (_FEWEST, spec.iterations, budget))
        with no_garbage_collection():
            for phase, (fewest, wanted, seconds) in enumerate(phases):
                begun = done
                for length in self._chunks(fewest, wanted, seconds):
                    sequence = result.orders[done : done + length]
                    chunks.append(measure(calls, self.barrier.run, sequence, prime=prime))
                    done += length
                if phase == 0:
                    result.warmup = done
                elif done - begun < wanted:
                    result.stopped_by = "case_time"
        del result.orders[done:]
        result.seconds = self._gather(np.concatenate(chunks))

    def _chunks(self, fewest: int, wanted: int, budget: float) -> Iterator[int]:
        """Numbers of iterations to run next; decided by rank 0, outside of any timed call."""
        done, length, start = 0, 1, time.perf_counter()
        while True:
            self.stop.check(self.world)
            if self.world.first:
                elapsed = time.perf_counter() - start
                if done:
                    length = max(1, min(4 * length, int(_LOOK_UP / max(elapsed / done, 1e-7))))
                if done >= min(wanted, fewest) and elapsed > budget:
                    length = 0
                length = min(length, wanted - done)
            length = self.world.control.bcast(length, root=0)
            if not length:
                return
            yield length
            done += length

    def _gather(self, mine: np.ndarray) -> np.ndarray | None:
        """Every rank's seconds on rank 0, one contender at a time."""
        world = self.world
        iterations, contenders = mine.shape
        everyone = np.empty((contenders, world.size, iterations)) if world.first else None
        for index in range(contenders):
            target = None if everyone is None else everyone[index]
            world.control.Gather(np.ascontiguousarray(mine[:, index]), target, root=0)
        return everyone

    def _prove_again(self, result: Measured, work: Workload) -> None:
        """All contenders once more on new data: those found wrong now were measured wrong."""
        for entry in result.racing:
            assert entry.runnable is not None
            self._judge(entry, check(self.world, work, entry.runnable, self._next_epoch()), "after timing")


def rows_of(result: Measured, common: Row, checked: bool) -> list[Row]:
    """The rows of a case for `samples.csv`; one without a time for each contender that could not run."""
    rows = []
    for entry in result.entries:
        fixed = {**common, **_facts(entry), "checked": checked}
        if entry not in result.racing or result.seconds is None:
            rows.append(fixed)
            continue
        index = result.racing.index(entry)
        everyone = result.seconds[index]
        slowest = everyone.argmax(axis=0)
        high, low = everyone.max(axis=0), everyone.min(axis=0)
        for iteration, order in enumerate(result.orders):
            warm = iteration < result.warmup
            rows.append(
                {
                    **fixed,
                    "order": order.index(index),
                    "iteration": iteration if warm else iteration - result.warmup,
                    "warmup": warm,
                    "seconds": float(high[iteration]),
                    "seconds_min": float(low[iteration]),
                    "skew": float(high[iteration] - low[iteration]),
                    "slowest_rank": int(slowest[iteration]),
                }
            )
    return rows


def _facts(entry: Entry) -> Row:
    """The columns that say who ran."""
    contender, runnable = entry.contender, entry.runnable
    options = dict(contender.options)
    facts = runnable.facts if runnable else {}
    params = facts.get("params", {key: v for key, v in options.items() if key not in ("channels", "depth")})
    return {
        "implementation": "mpi" if contender.builtin else "mpicoll",
        "requested": contender.label,
        "algorithm": runnable.algorithm if runnable else contender.name,
        "engine": None if contender.builtin else (runnable.engine if runnable else contender.engine),
        "params": ";".join(f"{key}={value}" for key, value in sorted(params.items())) or None,
        "channels": facts.get("channels", options.get("channels")),
        "depth": facts.get("depth", options.get("depth")),
        "rounds": facts.get("rounds"),
        "build_seconds": runnable.build_seconds if runnable else None,
        "first_seconds": entry.first_seconds,
        "status": entry.status,
        "reason": entry.reason,
    }
