"""One time for all ranks, and calls that begin at an agreed moment of it: ``--sync window``.

A rank learns how far its clock is from that of another by the quickest of many round trips (F. Cristian,
Probabilistic clock synchronization, Distributed Computing 3, 1989; NTP does the same): when the answer was
read, half of the round trip had passed since the other rank looked at its clock, give or take that half.
Ranks learn it along a binomial tree, log2(P) steps deep. The clocks' drift is a straight line through what
was measured (S. Hunold and A. Carpen-Amarie, Hierarchical clock synchronization in MPI, CLUSTER 2018, fit
lines, too); the measurement is repeated for each case, so that the line need not reach far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpicoll.bench.timing import clock
from mpicoll.bench.world import World

_TRIPS = 60  # round trips of a measurement
_PATIENCE = 0.02  # seconds after which fewer have to do
_FEWEST_TRIPS = 5
_KEPT = 16  # measurements that the line is drawn through
_LONG_ENOUGH = 1.0  # seconds that they must span: over less, the error of an offset would pass for drift

#: A call that begins later than this after the agreed moment is late [s]. Seeing that the moment has come and
#: reading the clock once more take some tenths of a microsecond in Python.
LATE = 2e-6
_FIRST_LEAD = 50e-6  # seconds between telling the moment and the moment, to begin with
_LONGEST_LEAD = 2e-3
_TOO_MANY = 0.05  # late samples of a chunk that make the lead longer


@dataclass(slots=True)
class Line:
    """Global time as a straight line of this rank's: offset at a reference, and drift [s/s]."""

    reference: float = 0.0
    offset: float = 0.0
    drift: float = 0.0

    def to_global(self, local: float) -> float:
        """The time of rank 0 at this rank's time `local`."""
        return local + self.offset + self.drift * (local - self.reference)

    def to_local(self, moment: float) -> float:
        """This rank's time at the time `moment` of rank 0: the inverse of `to_global`."""
        return (moment - self.offset + self.drift * self.reference) / (1.0 + self.drift)


def fit(points: list[tuple[float, float]]) -> Line:
    """The line through measured (local time, offset); its offset is that of the last measurement.

    >>> fit([(10.0, 0.5), (20.0, 0.5 + 1e-4)]).to_global(30.0)
    30.5002
    """
    local, offset = np.array(points).T
    if local[-1] - local[0] < _LONG_ENOUGH:
        return Line(float(local[-1]), float(offset[-1]))
    drift = float(np.polyfit(local - local[-1], offset, 1)[0])
    return Line(float(local[-1]), float(offset[-1]), drift)


class Clocks:
    """The line of this rank, and how well it is known."""

    def __init__(self, world: World, now: Any = clock):
        self.world, self.now = world, now
        self.line = Line()
        self.round_trip = 0.0  # the quickest of the last measurement [s]: twice the largest possible error
        self._points: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def synchronise(self) -> None:
        """Measure once more. Collective."""
        for teacher, pupil in lessons(self.world.size):
            if self.world.rank == teacher:
                self._teach(pupil)
            elif self.world.rank == pupil:
                self._learn(teacher)

    def _teach(self, pupil: int) -> None:
        """Answer each of the pupil's messages with the global time, until it says that it was the last."""
        asked, answer = np.zeros(1), np.zeros(1)
        while True:
            self.world.control.Recv(asked, pupil)
            answer[0] = self.line.to_global(self.now())
            self.world.control.Send(answer, pupil)
            if asked[0]:
                return

    def _learn(self, teacher: int) -> None:
        last, answer = np.zeros(1), np.zeros(1)
        begun, number = self.now(), 0
        best = (float("inf"), 0.0, 0.0)
        while not last[0]:
            number += 1
            start = self.now()
            last[0] = number >= _TRIPS or (number >= _FEWEST_TRIPS and start - begun > _PATIENCE)
            self.world.control.Send(last, teacher)
            self.world.control.Recv(answer, teacher)
            end = self.now()
            middle = (start + end) / 2
            best = min(best, (end - start, middle, float(answer[0]) - middle))
        self.round_trip = best[0]
        self._points.append(best[1:])
        self.line = fit(list(self._points))

    def facts(self) -> list[dict[str, float]]:
        """For `run.json`: offset, drift and quickest round trip of every rank. Collective."""
        mine = {"offset": self.line.offset, "drift": self.line.drift, "round_trip": self.round_trip}
        return self.world.control.allgather(mine)


def lessons(size: int) -> Iterator[tuple[int, int]]:
    """Who measures against whom, in an order in which the teacher knows the time already.

    >>> list(lessons(6))
    [(0, 4), (0, 2), (0, 1), (2, 3), (4, 5)]
    """
    step = 1 << max(size - 1, 0).bit_length()
    while step := step // 2:
        yield from ((rank, rank + step) for rank in range(0, size - step, 2 * step))


class Window:
    """Lets all ranks begin at a moment that rank 0 sets anew for every call, a lead ahead.

    A rank that hears of it too late, or is kept from the CPU when it comes, begins late; what it measures
    then is not what was asked, and the caller repeats it. (Windows of a fixed length, as SKaMPI has them,
    need no message for each call, but after one slow call all that follow are late, too.)
    """

    def __init__(self, world: World, own: Any):
        self.clocks = Clocks(world)
        self.lead = _FIRST_LEAD
        self._first = world.first
        self._moment = np.zeros(1)
        self._tell = own.Bcast_init(self._moment, root=0, algorithm="binomial")
        self._deadlines: list[float] = []

    def synchronise(self) -> None:
        """Before each case. Collective."""
        self.clocks.synchronise()

    def meet(self) -> None:
        """Return when the agreed moment has come."""
        now = self.clocks.now
        if self._first:
            self._moment[0] = now() + self.lead
        self._tell.run()
        deadline = self.clocks.line.to_local(float(self._moment[0]))
        self._deadlines.append(deadline)
        while now() < deadline:
            pass

    def lateness(self, begins: np.ndarray, sequence: list[list[int]]) -> np.ndarray:
        """How long after the agreed moments the calls of a chunk began on this rank [s]; then forget them."""
        late = np.zeros_like(begins)
        deadlines = iter(self._deadlines)
        for row, order in enumerate(sequence):
            for index in order:
                late[row, index] = begins[row, index] - next(deadlines)
        self._deadlines.clear()
        return late

    def adapt(self, late: np.ndarray) -> None:
        """Lengthen the lead where many samples were late (on rank 0, which alone uses it)."""
        if late.mean() > _TOO_MANY:
            self.lead = min(2 * self.lead, _LONGEST_LEAD)

    def free(self) -> None:
        """Free the plan."""
        self._tell.free()
