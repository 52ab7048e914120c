"""Programs for device memory: what is copied to and from the host, and who waits for whom.

Nobody but the plan orders kernels and messages: mpi4py hands addresses to MPI and does not look at
streams. A program compiled for host memory becomes one of three for device memory:

- `direct`: MPI sends from and receives into device memory;
- `through_host`: the buffers have images in pinned host memory, on which the program runs and reduces as
  ever. Each channel's input is copied down before the channel begins, its results up when it is over, on
  streams of their own: so copies, messages and reductions of different channels overlap;
- `mirrored`: kernels reduce in device memory, and each message passes through pinned memory.

In all of them steps that touch device memory are queued, and `waits.synchronise` has put in the waits that
they need, and no other: without any one of them some run goes wrong (tests/unit/test_staging.py removes each
in turn). The caller's own kernels count as queued before the first step, and the results are there in the
order of the caller's stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .errors import ArgumentError
from .program import (
    DEVICE_RECV,
    DEVICE_SEND,
    LANDING,
    MIRROR,
    RECV,
    SEND,
    WORK,
    Copy,
    Program,
    Region,
    Start,
    Step,
    Wait,
)
from .waits import Intervals, accesses, synchronise

STAGINGS = ("none", "host", "device")  # messages go from device memory; through images; through mirrors

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
