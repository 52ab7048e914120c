"""Run the programs of all ranks in one process, on NumPy arrays, without MPI.

For tests, documentation and pictures. It is a hostile MPI: a send is complete only when its receive
has been posted (no eager buffering), its data is read no sooner than one of the two ranks leaves its
wait, and a posted receive's memory is filled with garbage until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ScheduleError
from .plan import LANDING, RECV, SEND, WORK, Combine, Copy, Message, Program, Region, Start, Wait

Array = npt.NDArray[Any]
Combiner = Callable[[Array, Array, Array], Any]  # (left, right, out)


class _Rank:
    """One simulated rank: its memory and its position in its program."""

    def __init__(self, program: Program, send: Array | None, recv: Array | None, dtype: Any) -> None:
        none = np.empty(0, dtype)
        self.program = program
        self.memory: dict[int, Array] = {
            SEND: none if send is None else send,
            RECV: none if recv is None else recv,
            WORK: _garbage(np.empty(program.work, dtype)),
            LANDING: _garbage(np.empty(program.landing, dtype)),
        }
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

    def __init__(self, ranks: Sequence[_Rank]) -> None:
        self.ranks = ranks
        self.posted: dict[tuple[bool, int, int, int], deque[int]] = {}

    def post(self, rank: int, number: int, message: Message) -> None:
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
    dtype = next(a.dtype for a in [*recvs, *sends] if a is not None)
    ranks = [_Rank(p, s, r, dtype) for p, s, r in zip(programs, sends, recvs, strict=True)]
    network = _Network(ranks)
    running = [(rank, _execute(rank, network, combine)) for rank in ranks]
    while running:
        before = [(rank.next, len(rank.pending)) for rank, _ in running]
        running = [(rank, steps) for rank, steps in running if next(steps, None) is not None]
        if [(rank.next, len(rank.pending)) for rank, _ in running] == before:
            raise ScheduleError("deadlock: " + "; ".join(_stuck(rank) for rank, _ in running[:4]))
    if any(network.posted.values()):
        raise ScheduleError(f"messages were never met: {[k for k, v in network.posted.items() if v]}")


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
        elif isinstance(step, Combine):
            assert combine is not None, "a reduction needs an operation"
            combine(rank.view(step.left), rank.view(step.right), rank.view(step.out))
        elif isinstance(step, Copy):
            rank.view(step.out)[...] = rank.view(step.source)
        rank.next += 1
