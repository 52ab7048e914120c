"""Programs for device memory: what is copied to and from the host, and who waits for whom.

Nobody but the plan orders kernels and messages: mpi4py hands addresses to MPI and does not look at
streams. A program compiled for host memory becomes one of three for device memory:

- `direct`: MPI sends from and receives into device memory;
- `through_host`: the buffers have images in pinned host memory, on which the program runs and reduces as
  ever. Each channel's input is copied down before the channel begins, its results up when it is over, on
  streams of their own: so copies, messages and reductions of different channels overlap;
- `mirrored`: kernels reduce in device memory, and each message passes through pinned memory.

In all of them steps that touch device memory are queued, and `synchronise` has put a `Sync` before every
start of messages (and every reduction on the host) that a queued step could disturb, and an `Await` before
every queued step that could disturb one on another stream. It puts them nowhere else: without any one of
them some run goes wrong (tests/unit/test_staging.py removes each in turn). The caller's own kernels count as
queued before the first step, and the results are there in the order of the caller's stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from .errors import ArgumentError
from .plan import (
    CALLER,
    DEVICE_RECV,
    DEVICE_SEND,
    DOWN,
    LANDING,
    MAIN,
    MIRROR,
    RECV,
    SEND,
    UP,
    WORK,
    Await,
    Combine,
    Copy,
    Program,
    Region,
    Start,
    Step,
    Sync,
    Wait,
)

STAGINGS = ("none", "host", "device")  # messages go from device memory; through images; through mirrors
NOTHING = CALLER - 1  # before the first queued step, and before what the caller queued
Place = tuple[int, int]

# A pinned copy over PCIe 4 x16 in one direction, and a reduction on the host: [s/B]. Nominal, not measured.
BUS = 1 / 25e9
HOST_REDUCTION = 3e-11


def reduce_where(collective: str, size: int) -> str:
    """Where a staged collective had better reduce: the staging "host" or "device".

    Per byte of the whole vector, with copies down, copies up and reductions overlapping: on the host the
    vector (of a reduce-scatter, too) crosses the bus once, and (P-1)/P of it is reduced at the host's pace;
    on the device every message crosses it, (P-1)/P of the vector for each of the phases scatter and gather.
    Equal on all ranks, so that all compute the same bits.
    """
    share = (size - 1) / size
    crossings = {"allreduce": 2 * share, "reduce_scatter": share, "reduce": 1.0}.get(collective)
    if crossings is None:
        return "host"
    return "device" if crossings * BUS < max(BUS, share * HOST_REDUCTION) else "host"


def choose_staging(
    collective: str,
    size: int,
    wanted: str | None,
    *,
    aware: bool,
    how: str,
    unfit: str = "",
    host_only: bool = False,
) -> str:
    """The staging of a call on device memory: what is `wanted`, or (None) the best that is safe.

    `aware`: MPI was proved able to take device memory, or not, as `how` says; `unfit`: why it must not be
    given this memory; `host_only`: the operation can be computed on the host only.
    Raises `ArgumentError` for a wanted staging that cannot be.
    """
    if wanted not in (None, *STAGINGS):
        raise ArgumentError(f"unknown staging {wanted!r}; valid: {', '.join(STAGINGS)}")
    if host_only and wanted in ("none", "device"):
        raise ArgumentError(
            f"staging={wanted!r} reduces on the device, which has no such operation; use 'host'"
        )
    if wanted == "none" and unfit:
        raise ArgumentError(f"staging='none' gives MPI device memory, but {unfit}; or use another staging")
    if wanted == "none" and not aware:
        raise ArgumentError(
            f"staging='none' gives MPI device memory, which would crash if it cannot take it ({how})"
        )
    if wanted is not None:
        return wanted
    if host_only or not aware:
        return "host" if host_only else reduce_where(collective, size)
    return "device" if unfit else "none"


def device_channels(staging: str, nbytes: int) -> tuple[int, int]:
    """(channels, depth) by default: enough that copies, messages and reductions overlap.

    Stripes of 1 MiB where copies are what is overlapped, of 4 MiB where each costs the launch of a kernel.
    Nominal, not measured.
    """
    channels = nbytes // (1 << 20) if staging == "host" else nbytes // (4 << 20)
    channels = max(1, min(32, channels))
    return channels, min(2, channels)


def staged(program: Program, staging: str) -> Program:
    """The program for device memory, by name of its staging."""
    make = {"none": direct, "host": through_host, "device": mirrored}[staging]
    return make(program)


def direct(program: Program) -> Program:
    """All spaces in device memory, messages too."""
    return synchronise(replace(program, device=frozenset({SEND, RECV, WORK, LANDING})))


# -- images of the buffers in host memory -------------------------------------------------------------


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


@dataclass(slots=True)
class _Needs:
    """What one channel needs from the buffers, and what it leaves in the receive buffer."""

    known: dict[int, Intervals] = field(default_factory=lambda: {SEND: Intervals(), RECV: Intervals()})
    fetched: dict[int, Intervals] = field(default_factory=lambda: {SEND: Intervals(), RECV: Intervals()})
    written: Intervals = field(default_factory=Intervals)

    def see(self, reads: Iterable[Region], writes: Iterable[Region]) -> None:
        """Take a step into account."""
        for space, offset, length in reads:
            if space in self.known:
                for low, high in list(self.known[space].missing(offset, offset + length)):
                    self.fetched[space].add(low, high)
                    self.known[space].add(low, high)
        for space, offset, length in writes:
            if space == RECV and length:
                self.known[RECV].add(offset, offset + length)
                self.written.add(offset, offset + length)

    def copies(self, *, down: bool) -> list[Step]:
        """The copies of its input from the device, or of its results to it."""
        if not down:
            return [
                Copy(Region(DEVICE_RECV, low, high - low), Region(RECV, low, high - low))
                for low, high in self.written.runs
            ]
        return [
            Copy(Region(space, low, high - low), Region(device, low, high - low))
            for space, device in ((SEND, DEVICE_SEND), (RECV, DEVICE_RECV))
            for low, high in self.fetched[space].runs
        ]


def through_host(program: Program) -> Program:
    """The same steps on images of the buffers in host memory, and copies between images and buffers."""
    needs: dict[int, _Needs] = {}
    last: dict[int, int] = {}
    for number, (step, (channel, _)) in enumerate(zip(program.steps, program.places, strict=True)):
        reads, writes = accesses(program, step)
        needs.setdefault(channel, _Needs()).see(reads, writes)
        last[channel] = number
    result = _emptied(program, device=frozenset({DEVICE_SEND, DEVICE_RECV}))
    for channel, need in needs.items():
        result.add(need.copies(down=True), (channel, 0))
    for number, (step, place) in enumerate(zip(program.steps, program.places, strict=True)):
        result.add([step], place)
        if last[place[0]] == number:
            result.add(needs[place[0]].copies(down=False), place)
    return synchronise(result)


# -- mirrors of the messages in host memory ----------------------------------------------------------


def mirrored(program: Program) -> Program:
    """All spaces in device memory, and every message copied to or from its mirror in host memory.

    A slot (a channel in flight) has two mirrors in turn, so that a round's receives can start while what
    the round before brought is still on its way up.
    """
    bases = _mirrors(program)
    result = _emptied(program, device=frozenset({SEND, RECV, WORK, LANDING}))
    result.messages = list(program.messages)
    turns = dict.fromkeys(bases, 0)
    for slot, width in bases.items():
        bases[slot], result.mirror = result.mirror, result.mirror + 2 * width
        turns[slot] = width
    for step, place in zip(program.steps, program.places, strict=True):
        before: list[Step] = []
        after: list[Step] = []
        if isinstance(step, Start):
            slot = program.messages[step.first].slot
            at = bases[slot]
            bases[slot] += turns[slot]
            turns[slot] = -turns[slot]
            for number in range(step.first, step.last):
                message = program.messages[number]
                image = Region(MIRROR, at, message.region.length)
                at += message.region.length
                result.messages[number] = message._replace(region=image)
                if message.sending and image.length:
                    before.append(Copy(image, message.region))
        elif isinstance(step, Wait):
            for number in range(step.first, step.last):
                there, here = program.messages[number].region, result.messages[number].region
                if not program.messages[number].sending and here.length:
                    after.append(Copy(there, here))
        result.add([*before, step, *after], place)
    return synchronise(result)


def _mirrors(program: Program) -> dict[int, int]:
    """Elements that the messages of each slot need at most; a slot has one round in flight."""
    widths: dict[int, int] = {}
    for step in program.steps:
        if isinstance(step, Start):
            group = program.messages[step.first : step.last]
            slot, width = group[0].slot, sum(message.region.length for message in group)
            widths[slot] = max(widths.get(slot, 0), width)
    return widths


def _emptied(program: Program, device: frozenset[int]) -> Program:
    return replace(program, steps=[], places=[], device=device)


# -- who waits for whom --------------------------------------------------------------------------------


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
