"""The race of the contenders in one case: warm up, then time until enough is known, all interleaved.

All contenders run in every iteration until the last of them is known well enough. To drop those that are
would save time, and change what remains: who ran before a call decides what it finds in the caches, and the
ratio of two contenders rests on iterations in which both ran.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpicoll.bench.clocks import LATE, Window
from mpicoll.bench.planning import Step
from mpicoll.bench.stopping import FEWEST_FOR_INTERVAL, FEWEST_TO_STOP, precise
from mpicoll.bench.timing import Call, clock, measure, no_garbage_collection, shuffles
from mpicoll.bench.world import StopSignals, World

_LOOK_UP = 0.2  # seconds between looks at the clock and for signals to stop
_MOST_VALUES = 1 << 22  # that rank 0 gathers at once


@dataclass(frozen=True, slots=True)
class Method:
    """How calls are timed in a case; equal on all ranks but for `evict`."""

    meet: Call
    window: Window | None  # whose `meet` that is, if it is one
    prime: bool
    batch: int
    evict: Call | None = None


@dataclass(slots=True)
class Samples:
    """What rank 0 keeps of a race: iterations × contenders, warm-ups first; on other ranks only `orders`."""

    orders: list[list[int]] = field(default_factory=list)
    warmup: int = 0
    high: list[np.ndarray] = field(default_factory=list)  # seconds of the slowest rank
    low: list[np.ndarray] = field(default_factory=list)  # … of the quickest
    slowest: list[np.ndarray] = field(default_factory=list)  # which rank that was
    late: list[np.ndarray] = field(default_factory=list)  # whether any rank began late
    start_skew: list[np.ndarray] = field(default_factory=list)  # first to last begin [s]; window


class Race:
    """One pass of one case, from the first warm-up to the decision that it is enough."""

    def __init__(
        self,
        world: World,
        stop: StopSignals,
        sets: Sequence[Sequence[Call]],
        method: Method,
        seed: int,
    ):
        self.world, self.stop, self.method = world, stop, method
        self.sets = sets
        self.samples = Samples()
        self.good: list[list[float]] = [[] for _ in sets[0]]  # samples that no rank began late (rank 0)
        self.elapsed = 0.0
        self._shuffles = shuffles(len(sets[0]), seed)
        self._turn = 0

    def run(self, warmup: int, step: Step, percent: float, before: Sequence[Sequence[float]]) -> str:
        """Time the contenders; why it ended: "precision", or what `step` says. Collective.

        `before` holds, for every contender, the good samples of earlier passes (rank 0).
        """
        begun = clock()
        with no_garbage_collection():
            if self.method.window is not None:
                self.method.window.synchronise()
            self._until(lambda done, elapsed: self._warm(done, elapsed, warmup, step.budget / 4))
            self.samples.warmup = len(self.samples.orders)
            self.good = [[] for _ in self.good]
            reason = self._until(lambda done, elapsed: self._next(done, elapsed, step, percent, before))
        self.elapsed = clock() - begun
        return reason

    def _until(self, decide: Callable[[int, float], tuple[int, str]]) -> str:
        """Run as many iterations as rank 0 decides, outside of any timed call, again and again until none.

        Returns why it decided so.
        """
        done, start = 0, clock()
        while True:
            self.stop.check(self.world)
            decision = decide(done, clock() - start) if self.world.first else None
            length, reason = self.world.control.bcast(decision, root=0)
            if not length:
                return str(reason)
            self._run(length)
            done += length

    def _warm(self, done: int, elapsed: float, wanted: int, budget: float) -> tuple[int, str]:
        if done >= min(wanted, 1) and elapsed > budget:
            return 0, ""
        return min(self._fitting(done, elapsed), wanted - done), ""

    def _next(
        self, done: int, elapsed: float, step: Step, percent: float, before: Sequence[Sequence[float]]
    ) -> tuple[int, str]:
        """How many iterations come next, and, if none, why (rank 0)."""
        lacking = step.iterations - min(map(len, self.good))
        if all(precise([*old, *new], percent) for old, new in zip(before, self.good, strict=True)):
            return 0, "precision"
        if lacking <= 0:
            return 0, step.when_full
        if done >= min(FEWEST_FOR_INTERVAL, step.iterations) and elapsed > step.budget:
            return 0, step.when_spent
        # Looks grow rarer: each further one gives chance another opportunity to make an interval look narrow.
        look = FEWEST_TO_STOP - done if done < FEWEST_TO_STOP else done // 2
        return min(self._fitting(done, elapsed), lacking, max(look, 1)), ""

    def _fitting(self, done: int, elapsed: float) -> int:
        """Iterations that fit between two looks at the clock; at most four times those that there were."""
        if not done:
            return 1
        most = max(1, _MOST_VALUES // (self.world.size * len(self.sets[0])))
        return max(1, min(4 * done, int(_LOOK_UP / max(elapsed / done, 1e-7)), most))

    def _run(self, length: int) -> None:
        """Run some iterations, and hand what was measured to rank 0."""
        method, samples = self.method, self.samples
        sequence = list(itertools.islice(self._shuffles, length))
        times = measure(
            self.sets, method.meet, sequence, prime=method.prime, evict=method.evict, first_set=self._turn
        )
        self._turn = (self._turn + length * len(sequence[0])) % len(self.sets)
        samples.orders += sequence
        seconds = self._gather(times.seconds / method.batch)
        after = None
        if method.window is not None:
            after = self._gather(method.window.lateness(times.begins, sequence))
        if seconds is None:
            return
        samples.high.append(seconds.max(axis=0))
        samples.low.append(seconds.min(axis=0))
        samples.slowest.append(seconds.argmax(axis=0))
        if after is None or method.window is None:
            samples.late.append(np.zeros(seconds.shape[1:], bool))
        else:
            samples.late.append(after.max(axis=0) > LATE)
            samples.start_skew.append(after.max(axis=0) - after.min(axis=0))
            method.window.adapt(samples.late[-1])
        for index, (high, late) in enumerate(zip(samples.high[-1].T, samples.late[-1].T, strict=True)):
            self.good[index] += high[~late].tolist()

    def _gather(self, mine: np.ndarray) -> Any:
        """Every rank's values on rank 0, ranks first; None elsewhere."""
        everyone = np.empty((self.world.size, *mine.shape)) if self.world.first else None
        self.world.control.Gather(np.ascontiguousarray(mine), everyone, root=0)
        return everyone
