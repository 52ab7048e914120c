"""Schedules: what one rank sends and receives, round by round.

A schedule is an iterator of `Round`. It knows no buffers, no datatype and no MPI: its unit is the
*block*, a fixed slice of the data, and its only state is which blocks a rank holds. The rules:

1. All sends of a round read the state *before* the round.
2. A copying receive replaces the block. It may overlap neither a block sent in the same round nor
   another receive of that round.
3. Reducing receives of one block are combined, once the round's messages are complete, as one left
   fold: the `Side.LEFT` receives in the order listed, then my own block, then the `Side.RIGHT`
   receives in the order listed. Every rank that forms a result thus evaluates the same expression.
4. The k-th send from s to d meets the k-th receive at d from s; both name the same blocks in the
   same order.
5. Messages whose blocks are all empty are skipped by both sides. A message without windows is a
   *token*: it carries nothing but the fact that it was sent (barriers are made of them).

A block has one name wherever it lies: whether it is still in the user's send buffer, already in the
receive buffer or in scratch is the plan's business (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Window(NamedTuple):
    """A circular run of `length` blocks from block `start` on, modulo the number of blocks."""

    start: int
    length: int = 1


Windows = tuple[Window, ...]


class Side(Enum):
    """Where a received operand stands in the fold that combines it with my own block."""

    LEFT = "received ⊕ mine"
    RIGHT = "mine ⊕ received"


@dataclass(frozen=True, slots=True)
class Send:
    """Send the blocks of `windows` to rank `peer`."""

    peer: int
    windows: Windows


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive the blocks of `windows` from rank `peer`: replace mine, or combine on a `side`."""

    peer: int
    windows: Windows
    side: Side | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """Messages of one rank that are in flight together.

    `stage` names the part of a composition that the round belongs to ("inter all-reduce"). It changes
    nothing; times are added up by it.
    """

    sends: tuple[Send, ...] = ()
    recvs: tuple[Recv, ...] = ()
    stage: str = ""


Schedule = Iterator[Round]


def exchange(
    peer: int, send: Windows, recv: Windows, side: Side | None = None, source: int | None = None
) -> Round:
    """One send to `peer` and one receive from `source` (the same peer unless given)."""
    return Round((Send(peer, send),), (Recv(peer if source is None else source, recv, side),))


def send(peer: int, *windows: Window) -> Round:
    """A round with a single send."""
    return Round(sends=(Send(peer, windows),))


def recv(peer: int, *windows: Window, side: Side | None = None) -> Round:
    """A round with a single receive."""
    return Round(recvs=(Recv(peer, windows, side),))


def blocks_of(windows: Windows, blocks: int) -> Iterator[int]:
    """The block numbers of `windows`, in order, where the space has `blocks` blocks."""
    for start, length in windows:
        stop = start + length
        if start >= 0 and stop <= blocks:
            yield from range(start, stop)
        else:
            for block in range(start, stop):
                yield block % blocks


def window_count(windows: Windows) -> int:
    """How many blocks the windows hold together."""
    return windows[0][1] if len(windows) == 1 else sum([length for _, length in windows])


def merged(windows: Iterable[Window]) -> Windows:
    """The same blocks in the same order, with adjoining windows joined and empty ones left out."""
    result: list[Window] = []
    for start, length in windows:
        if not length:
            continue
        if result and result[-1].start + result[-1].length == start:
            result[-1] = Window(result[-1].start, result[-1].length + length)
        else:
            result.append(Window(start, length))
    return tuple(result)
