"""Run the programs of all ranks in one process, on NumPy arrays, without MPI.

For tests, documentation and pictures. It is a hostile MPI: a send is complete only when its receive
has been posted (no eager buffering), its data is read no sooner than one of the two ranks leaves its
wait (or, if `Job` is told so, as soon as it is started), and a posted receive's memory is filled with
garbage until then.

Programs for device memory (`staging`) run on a hostile device: what is queued happens when somebody waits
for it, and not before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ScheduleError
from .program import (
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
    Message,
    Program,
    Region,
    Start,
    Sync,
    Wait,
)

Array = npt.NDArray[Any]
Combiner = Callable[[Array, Array, Array], Any]  # (left, right, out)


class Device:
    """Streams of queued actions that are run as late as possible.

    With `hasty`, streams other than the caller's run what they hold at once.
    """

    def __init__(self, *, hasty: bool = False) -> None:
        self.hasty = hasty
        self.streams: dict[int, deque[tuple[int, Callable[[], object]]]] = {
            stream: deque() for stream in (MAIN, DOWN, UP)
        }
        self.count = 0
        self.numbered: dict[int, tuple[int, int]] = {}  # queued step of the running program -> its place

    def begin(self) -> None:
        """A program begins: what the caller has queued goes before."""
        self.numbered = {CALLER: (MAIN, self.count)}

    def queue(self, action: Callable[[], object], stream: int = MAIN) -> None:
        """Append an action to a stream; by default to the caller's, as the caller would."""
        self.count += 1
        self.streams[stream].append((self.count, action))
        if self.hasty and stream != MAIN:
            self._run(stream, self.count)

    def step(self, action: Callable[[], object], stream: int) -> None:
        """Append the next queued step of the program."""
        self.queue(action, stream)
        self.numbered[len(self.numbered) - 1] = stream, self.count

    def wait(self, number: int) -> None:
        """Run what is queued on its stream up to a queued step of the program."""
        self._run(*self.numbered[number])

    def order(self, stream: int, number: int) -> None:
        """Let a stream wait for a queued step of the program."""
        place = self.numbered[number]
        self.queue(lambda: self._run(*place), stream)

    def synchronize(self) -> None:
        """Run what the caller's stream holds."""
        self._run(MAIN, self.count)

    def _run(self, stream: int, last: int) -> None:
        queue = self.streams[stream]
        while queue and queue[0][0] <= last:
            queue.popleft()[1]()


class _Rank:
    """One simulated rank: its memory and its position in its program."""

    def __init__(
        self, program: Program, send: Array | None, recv: Array | None, dtype: Any, *, hasty: bool
    ) -> None:
        none = np.empty(0, dtype)
        self.program = program
        self.device = Device(hasty=hasty)
        self.memory: dict[int, Array] = {
            SEND: none if send is None else send,
            RECV: none if recv is None else recv,
            WORK: _garbage(np.empty(program.work, dtype)),
            LANDING: _garbage(np.empty(program.landing, dtype)),
            MIRROR: _garbage(np.empty(program.mirror, dtype)),
        }
        for space, image in ((DEVICE_SEND, SEND), (DEVICE_RECV, RECV)):
            if space in program.device:  # and its image is in the host's memory
                self.memory[space] = self.memory[image]
                self.memory[image] = _garbage(np.empty_like(self.memory[image]))
        self.next = 0
        self.pending: set[int] = set()  # started and not yet met by the other side
        self.deliveries: dict[int, Callable[[], None]] = {}  # met, and to be copied when a wait is over

    def view(self, region: Region) -> Array:
        space = self.memory[region.space]
        part = space[region.offset : region.offset + region.length]
        if len(part) != region.length:
            raise ScheduleError(
                f"rank {self.program.rank}: {region} is outside a space of {len(space)} elements"
            )
        return part


def _garbage(array: Array) -> Array:
    array.view(np.uint8)[...] = 0xA5
    return array


class _Network:
    """Posted messages, matched in order for each (source, destination, slot)."""

    def __init__(self, ranks: Sequence[_Rank], *, early: bool) -> None:
        self.ranks = ranks
        self.posted: dict[tuple[bool, int, int, int], deque[int]] = {}
        self.early: dict[tuple[int, int], Array] | None = (
            {} if early else None
        )  # data of sends, at their start

    def post(self, rank: int, number: int, message: Message) -> None:
        if message.sending and self.early is not None:
            self.early[rank, number] = self.ranks[rank].view(message.region).copy()
        source, target = (rank, message.peer) if message.sending else (message.peer, rank)
        mine = (message.sending, source, target, message.slot)
        theirs = self.posted.get((not message.sending, source, target, message.slot))
        if not theirs:
            self.posted.setdefault(mine, deque()).append(number)
            return
        other = theirs.popleft()
        sends, receives = (number, other) if message.sending else (other, number)
        sender, receiver = self.ranks[source], self.ranks[target]
        data = sender.view(sender.program.messages[sends].region)
        if self.early is not None:
            data = self.early.pop((source, sends))
        landing = receiver.view(receiver.program.messages[receives].region)
        if data.shape != landing.shape:
            raise ScheduleError(
                f"rank {source} sends {data.size} elements to rank {target}, which expects {landing.size}"
            )

        def deliver() -> None:
            landing[...] = data
            sender.deliveries.pop(sends)
            receiver.deliveries.pop(receives)

        sender.pending.remove(sends)
        receiver.pending.remove(receives)
        sender.deliveries[sends] = receiver.deliveries[receives] = deliver


class Job:
    """One program per rank, bound to memory: may be run several times.

    `devices[r]` is where rank r's queued steps go, and its caller's. With `early`, the data of a message is
    read when its send starts; with `hasty`, copies between host and device happen at once.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        sends: Sequence[Array | None],
        recvs: Sequence[Array | None],
        combine: Combiner | None = None,
        *,
        early: bool = False,
        hasty: bool = False,
    ) -> None:
        dtype = next(a.dtype for a in [*recvs, *sends] if a is not None)
        self.ranks = [
            _Rank(p, s, r, dtype, hasty=hasty) for p, s, r in zip(programs, sends, recvs, strict=True)
        ]
        self.devices = [rank.device for rank in self.ranks]
        self.combine, self.early = combine, early

    def run(self) -> None:
        """Execute all programs to the end; what they have queued may still have to happen."""
        network = _Network(self.ranks, early=self.early)
        for rank in self.ranks:
            rank.next = 0
            rank.device.begin()
        running = [(rank, _execute(rank, network, self.combine)) for rank in self.ranks]
        while running:
            before = [(rank.next, len(rank.pending)) for rank, _ in running]
            running = [(rank, steps) for rank, steps in running if next(steps, None) is not None]
            if [(rank.next, len(rank.pending)) for rank, _ in running] == before:
                raise ScheduleError("deadlock: " + "; ".join(_stuck(rank) for rank, _ in running[:4]))
        if any(network.posted.values()):
            raise ScheduleError(f"messages were never met: {[k for k, v in network.posted.items() if v]}")


def run(
    programs: Sequence[Program],
    sends: Sequence[Array | None],
    recvs: Sequence[Array | None],
    combine: Combiner | None = None,
) -> None:
    """Execute one program per rank to the end.

    `sends[r]` and `recvs[r]` are rank r's flat buffers (None: none); results appear in `recvs`.
    `combine(left, right, out)` is the operation, for example a NumPy ufunc.
    Raises `ScheduleError` for a deadlock, a message of unequal lengths or one that is never met.
    """
    job = Job(programs, sends, recvs, combine)
    job.run()
    for device in job.devices:
        device.synchronize()


def _stuck(rank: _Rank) -> str:
    channel, number = rank.program.places[rank.next]
    waiting = ", ".join(
        f"{'to' if m.sending else 'from'} {m.peer}"
        for m in map(rank.program.messages.__getitem__, sorted(rank.pending))
    )
    return f"rank {rank.program.rank} in round {number} of channel {channel} waits for messages {waiting}"


def _execute(rank: _Rank, network: _Network, combine: Combiner | None) -> Iterator[bool]:
    """Run until the end, yielding whenever a wait is not over."""
    program = rank.program
    while rank.next < len(program.steps):
        step = program.steps[rank.next]
        if isinstance(step, Start):
            for number in range(step.first, step.last):
                message = program.messages[number]
                rank.pending.add(number)
                if not message.sending:
                    _garbage(rank.view(message.region))
            for number in range(step.first, step.last):
                network.post(program.rank, number, program.messages[number])
        elif isinstance(step, Wait):
            while any(number in rank.pending for number in range(step.first, step.last)):
                yield True
            for number in range(step.first, step.last):
                if number in rank.deliveries:
                    rank.deliveries[number]()
        elif isinstance(step, Sync):
            rank.device.wait(step.after)
        elif isinstance(step, Await):
            rank.device.order(step.stream, step.after)
        elif isinstance(step, Combine | Copy):
            stream = program.stream(step)
            action = partial(_compute, rank, step, combine)
            if stream is None:
                action()
            else:
                rank.device.step(action, stream)
        rank.next += 1


def _compute(rank: _Rank, step: Combine | Copy, combine: Combiner | None) -> None:
    if isinstance(step, Copy):
        rank.view(step.out)[...] = rank.view(step.source)
    else:
        assert combine is not None, "a reduction needs an operation"
        combine(rank.view(step.left), rank.view(step.right), rank.view(step.out))
