"""Where a network lives, and when what it computes is done: in host memory at once, on a device later.

A place has the array module (``xp``), in which a step is written once for both, and marks the moments of a
step. On a device a mark is two times: of the host, that has queued what comes before it, and of an event that
the device records when it has done it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from mpicoll import device
from mpicoll.bench.timing import clock

BUFFERS = ("numpy", "cupy")


class Span(NamedTuple):
    """Something that was done, from `begin` to `end` [s of `time.perf_counter`]."""

    name: str
    begin: float
    end: float


class Mark(NamedTuple):
    """The end of what is called `name`."""

    name: str
    time: float  # on the host
    event: Any  # on the device, if there is one


class Host:
    """NumPy: what is called is done when the call returns."""

    xp: Any = np
    device = False

    def stream(self) -> AbstractContextManager[Any]:
        """Within: what a step computes belongs to it."""
        return nullcontext()

    def mark(self, name: str) -> Mark:
        """Note that something ends now."""
        return Mark(name, clock(), None)

    def finish(self) -> None:
        """Wait until all is done."""

    def kernels(self, marks: Sequence[Mark]) -> list[Span]:
        """What a device did between marks, on the host's clock; of the host there is nothing to add."""
        return []


class Gpu(Host):
    """CuPy, on a stream of its own: a call queues kernels, and returns."""

    device = True

    def __init__(self) -> None:
        self.xp = device.cupy()
        self._stream = device.new_stream()

    def stream(self) -> AbstractContextManager[Any]:
        """Within: the place's own stream is the current one."""
        stream: AbstractContextManager[Any] = self._stream
        return stream

    def mark(self, name: str) -> Mark:
        """Note that something is queued now, and let the device note when it is done."""
        event = device.event(block=False, timed=True)
        event.record(self._stream)
        return Mark(name, clock(), event)

    def finish(self) -> None:
        """Wait for the device."""
        self._stream.synchronize()

    def kernels(self, marks: Sequence[Mark]) -> list[Span]:
        """What the device did between marks, which are done.

        The stream is empty when a step begins: the device meets the first mark as soon as the host sets it.
        """
        first = marks[0]
        times = [first.time + device.seconds_between(first.event, mark.event) for mark in marks]
        return [Span(mark.name, *times[k : k + 2]) for k, mark in enumerate(marks[1:])]


def spans(marks: Sequence[Mark]) -> list[Span]:
    """What the program did between marks."""
    return [Span(mark.name, marks[k].time, mark.time) for k, mark in enumerate(marks[1:])]


def make_place(buffer: str) -> Host:
    """The place of a name out of `BUFFERS`."""
    return Gpu() if buffer == "cupy" else Host()
