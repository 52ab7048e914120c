"""Who waits for whom: the waits of a program for device memory, found from what its steps read and write.

Copies and combinations that touch device memory are queued (`plan.Program.device`) and happen some time
after the program has come by them, in order within a stream. Three things may go wrong: a message, or a
reduction on the host, reads what a queued step has not written yet, or writes what one has still to use; and
a queued step does so to one on another stream. `synchronise` puts a `Sync` before the start of messages in
the first two cases, an `Await` before a queued step in the third, and neither anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .program import (
    CALLER,
    DEVICE_RECV,
    DEVICE_SEND,
    DOWN,
    MAIN,
    RECV,
    SEND,
    UP,
    Await,
    Combine,
    Copy,
    Program,
    Region,
    Start,
    Step,
    Sync,
)

NOTHING = CALLER - 1  # before the first queued step, and before what the caller queued
Place = tuple[int, int]  # (channel, round)


class Intervals:
    """A set of elements, as disjoint (low, high) in ascending order."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []

    def missing(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """The parts of low..high that are not in the set."""
        for start, end in self.runs:
            if end > low and start < high:
                if start > low:
                    yield low, start
                low = end
        if low < high:
            yield low, high

    def add(self, low: int, high: int) -> None:
        """Put low..high into the set, joining what adjoins."""
        near = [run for run in self.runs if run[1] >= low and run[0] <= high]
        joined = min([low, *(run[0] for run in near)]), max([high, *(run[1] for run in near)])
        self.runs = sorted([*(run for run in self.runs if run not in near), joined])


def accesses(program: Program, step: Step) -> tuple[list[Region], list[Region]]:
    """The regions that a step reads and writes; messages count where they start."""
    if isinstance(step, Start):
        group = program.messages[step.first : step.last]
        return [m.region for m in group if m.sending], [m.region for m in group if not m.sending]
    if isinstance(step, Combine):
        return [step.left, step.right], [step.out]
    if isinstance(step, Copy):
        return [step.source], [step.out]
    return [], []


def _meet(some: Iterable[Region], others: Iterable[Region]) -> bool:
    return any(
        a.space == b.space and max(a.offset, b.offset) < min(a.offset + a.length, b.offset + b.length)
        for a in some
        for b in others
    )


Clock = dict[int, int]  # stream -> the last of its queued steps that is known to be over


@dataclass(slots=True)
class _Queued:
    """A queued step that the host has not seen the end of."""

    number: int
    stream: int
    reads: list[Region]
    writes: list[Region]
    clock: Clock  # what is over when it is: by stream

    def disturbs(self, reads: list[Region], writes: list[Region]) -> bool:
        return _meet(self.writes, [*reads, *writes]) or _meet(self.reads, writes)


class _Regions:
    """A set of regions, with no more of them than needed; all of some spaces to begin with."""

    def __init__(self, whole: Iterable[int]) -> None:
        self.spaces = {space: Intervals() for space in whole}
        for intervals in self.spaces.values():
            intervals.add(0, 1 << 62)

    def add(self, regions: Iterable[Region]) -> None:
        for space, offset, length in regions:
            self.spaces.setdefault(space, Intervals()).add(offset, offset + length)

    def regions(self) -> list[Region]:
        return [Region(s, low, high - low) for s, them in self.spaces.items() for low, high in them.runs]


class _Synchroniser:
    """Walks through a program with an eye on what is queued and perhaps not done yet."""

    def __init__(self, program: Program, before: Iterable[_Queued] = ()) -> None:
        self.program = program
        self.result = replace(program, steps=[], places=[])
        self.host: Clock = dict.fromkeys((MAIN, DOWN, UP), NOTHING)
        self.clocks: dict[int, Clock] = {s: dict.fromkeys((MAIN, DOWN, UP), NOTHING) for s in self.host}
        self.clocks[MAIN][MAIN] = CALLER
        # What comes before is the caller's, who may use all of the buffers, and what the last run left.
        buffers = {DEVICE_SEND, DEVICE_RECV} if DEVICE_RECV in program.device else {SEND, RECV}
        reads, writes = _Regions(buffers), _Regions(buffers)
        for queued in before:
            reads.add(queued.reads)
            writes.add(queued.writes)
        caller = _Queued(CALLER, MAIN, reads.regions(), writes.regions(), dict(self.clocks[MAIN]))
        self.queued = [caller]
        self.count = 0

    def run(self) -> Program:
        for step, place in zip(self.program.steps, self.program.places, strict=True):
            stream = self.program.stream(step)
            reads, writes = accesses(self.program, step)
            if stream is not None:
                self._queue(stream, reads, writes, place)
            elif reads or writes:
                self._see(reads, writes, place)
            self.result.add([step], place)
        self._finish()
        return self.result

    def _see(self, reads: list[Region], writes: list[Region], place: Place) -> None:
        """Let the host wait for what would disturb it, the latest first: that is often enough."""
        for queued in reversed(self.queued):
            if queued.number > self.host[queued.stream] and queued.disturbs(reads, writes):
                self.result.add([Sync(queued.number)], place)
                _learn(self.host, queued.clock)
        self.queued = [q for q in self.queued if q.number > self.host[q.stream]]

    def _queue(self, stream: int, reads: list[Region], writes: list[Region], place: Place) -> None:
        """Queue a step; let its stream wait for what would disturb it on another one."""
        clock = self.clocks[stream]
        _learn(clock, self.host)
        for queued in reversed(self.queued):
            if queued.number > clock[queued.stream] and queued.disturbs(reads, writes):
                self.result.add([Await(stream, queued.number)], place)
                _learn(clock, queued.clock)
        clock[stream] = self.count
        self.queued.append(_Queued(self.count, stream, reads, writes, dict(clock)))
        self.count += 1

    def _finish(self) -> None:
        """Let the caller's stream wait for whatever is not over."""
        clock = self.clocks[MAIN]
        _learn(clock, self.host)
        for queued in reversed(self.queued):
            if queued.number > clock[queued.stream]:
                self.result.add([Await(MAIN, queued.number)], self.result.places[-1])
                _learn(clock, queued.clock)


def _learn(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock[stream], number)


def synchronise(program: Program) -> Program:
    """The program with every wait for queued steps that it needs, and no other."""
    first = _Synchroniser(program)
    first.run()
    return _Synchroniser(program, before=[q for q in first.queued if q.number != CALLER]).run()
