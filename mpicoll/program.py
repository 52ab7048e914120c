"""A program: what one rank does, as plain data.

`plan` compiles it from a schedule; `runner` executes it with MPI and `lockstep` without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

SEND, RECV, WORK, LANDING, DEVICE_SEND, DEVICE_RECV, MIRROR = range(7)
SPACE_NAMES = "send recv work landing device_send device_recv mirror".split()
MAIN, DOWN, UP = range(3)  # streams: the caller's, and those of copies to and from the host
CALLER = -1  # stands for everything that was queued on the caller's stream before the program


class Region(NamedTuple):
    """`length` elements from `offset` on in one of the spaces SEND, RECV, WORK, LANDING.

    Programs for device memory have more spaces, see `staging`.
    """

    space: int
    offset: int
    length: int


class Message(NamedTuple):
    """One MPI message to or from `peer`, out of or into a region.

    Messages of different slots (channels in flight together) carry different tags.
    """

    sending: bool
    peer: int
    slot: int
    region: Region


class Start(NamedTuple):
    """Start messages ``first <= m < last``."""

    first: int
    last: int


class Wait(NamedTuple):
    """Wait for messages ``first <= m < last``."""

    first: int
    last: int


class Combine(NamedTuple):
    """``out = left ⊕ right``; `out` may be the same region as either operand."""

    out: Region
    left: Region
    right: Region


class Copy(NamedTuple):
    """``out = source``."""

    out: Region
    source: Region


class Sync(NamedTuple):
    """Wait, on the host, until queued step number `after` is done (see `Program.device`)."""

    after: int


class Await(NamedTuple):
    """Let what is queued on `stream` from here on wait for queued step number `after`."""

    stream: int
    after: int


class Mark(NamedTuple):
    """Note the time. Stage ``program.stages[number]`` begins here, and with the last mark nothing."""

    number: int


Step = Start | Wait | Combine | Copy | Mark | Sync | Await
UNNAMED_STAGE = "all"  # of schedules that name no stages


@dataclass(slots=True)
class Program:
    """What one rank does, in order. `places[i]` is the (channel, round) of step i.

    Copies and combinations that touch the spaces `device` are *queued*: they happen some time after the
    program has come by them, in order within a stream. They are numbered from 0 on in the order of steps.
    """

    rank: int
    size: int
    rounds: int  # of one channel
    messages: list[Message] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    work: int = 0  # elements of scratch for results that have no place in the receive buffer
    landing: int = 0  # elements of scratch for messages on their way in or out
    device: frozenset[int] = frozenset()  # spaces in device memory
    mirror: int = 0  # elements of host memory through which messages of device memory pass
    timed: bool = False
    stages: list[str] = field(default_factory=list)  # what each mark but the last begins

    def add(self, steps: Iterable[Step], place: tuple[int, int]) -> None:
        """Append steps that belong to a (channel, round)."""
        for step in steps:
            self.steps.append(step)
            self.places.append(place)

    def stream(self, step: Step) -> int | None:
        """The stream that a step is queued on; None: it is not queued."""
        if not isinstance(step, Copy | Combine) or self.device.isdisjoint(region.space for region in step):
            return None
        if isinstance(step, Copy) and step.source.space in (DEVICE_SEND, DEVICE_RECV):
            return DOWN
        return UP if step.out.space == DEVICE_RECV else MAIN

    def enter(self, stage: str, place: tuple[int, int]) -> None:
        """What is added next belongs to `stage`."""
        stage = stage or UNNAMED_STAGE
        if self.timed and self.stages[-1:] != [stage]:
            self.add([Mark(len(self.stages))], place)
            self.stages.append(stage)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a collective lie in one rank's buffers, in elements.

    `length(part)` must be equal on all ranks. `source(part)` is the offset at which this rank's
    contribution lies before the call, `target(part)` that at which the result must lie after it
    (None: this rank has none). In place, sources are offsets in the receive buffer. `stash` is the
    (offset, length) of an input that is first copied to scratch, for calls in which the target of
    one part overwrites the source of another.
    """

    length: Callable[[int], int]
    source: Callable[[int], int | None]
    target: Callable[[int], int | None]
    in_place: bool = False
    stash: tuple[int, int] | None = None


def vector_layout(count: int, *, in_place: bool = False, target: bool = True) -> Layout:
    """The layout of all-reduce, reduce and broadcast: one part of `count` elements at offset 0."""
    result = 0 if target else None
    return Layout(lambda part: count, lambda part: 0, lambda part: result, in_place)
