"""What a schedule costs, counted off the schedule: rounds, messages, data, reductions. Never typed in.

What is counted, exactly:

- a *round* is a round with at least one message; ``rounds`` is the most that any rank takes;
- ``critical_rounds`` is the longest chain of rounds through all ranks in which each must wait for the one
  before: a round comes after the previous round of its own rank and, for each message that it receives,
  after all rounds that the sender finished before sending. (In a tree a rank may have two rounds of its
  own, yet the last leaf waits for the depth of the tree.)
- *data* counts every block of every message once, at its sender. Symbolically, as an exact fraction of n,
  where n is nccl-tests' size: the vector of an all-reduce, broadcast or reduce, and P parts of the others
  (which is all of them, but for all-to-all, where n is what one rank has). In bytes, for a given number of
  elements: blocks are balanced and may differ by one element;
- a *reduction* counts every received block that is combined, at its receiver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

from .collectives import Collective
from .network import Network, Span
from .partition import block_length
from .registry import Algorithm, get
from .schedule import Recv, Round, Send, Windows, blocks_of, window_count


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts for all ranks; `sent`, `received` and `reduced` are fractions of n, see the module."""

    blocks: int  # all parts together
    rounds: int  # most of any rank
    critical_rounds: int
    messages: int  # all ranks together
    rounds_of: tuple[int, ...]  # per rank, as are the following
    messages_of: tuple[int, ...]
    sent_of: tuple[Fraction, ...]
    received_of: tuple[Fraction, ...]
    reduced_of: tuple[Fraction, ...]

    @property
    def sent(self) -> Fraction:
        """The most that any rank sends."""
        return max(self.sent_of)

    @property
    def received(self) -> Fraction:
        """The most that any rank receives."""
        return max(self.received_of)

    @property
    def reduced(self) -> Fraction:
        """The most that any rank combines."""
        return max(self.reduced_of)

    @property
    def total(self) -> Fraction:
        """What all ranks send together."""
        return sum(self.sent_of, Fraction(0))


def _find(algorithm: Algorithm | str) -> Algorithm:
    return get(*algorithm.split("/", 1)) if isinstance(algorithm, str) else algorithm


def _global(algorithm: Algorithm, size: int, params: Mapping[str, Any] | None) -> list[list[Round]]:
    return [list(algorithm.schedule(rank, size, params)) for rank in range(size)]


def traffic(algorithm: Algorithm | str, size: int, params: Mapping[str, Any] | None = None) -> Traffic:
    """Count `algorithm` (or its name, such as ``"allreduce/ring"``) for `size` ranks.

    >>> import mpicoll.algorithms
    >>> ring = traffic("allreduce/ring", 5)
    >>> ring.rounds, ring.sent, ring.reduced
    (8, Fraction(8, 5), Fraction(4, 5))
    """
    algorithm = _find(algorithm)
    kind, blocks = algorithm.collective, algorithm.blocks(size, params)
    unit = blocks // kind.parts(size) * kind.parts_in_total(size)
    return traffic_of(_global(algorithm, size, params), blocks, unit)


def traffic_of(rounds: Sequence[Sequence[Round]], blocks: int, unit: int | None = None) -> Traffic:
    """Count the given rounds, one sequence per rank; n is `unit` of the `blocks` blocks (all, by default)."""
    whole = unit or blocks

    def share(messages: Iterable[Send | Recv]) -> Fraction:
        return Fraction(sum(window_count(m.windows) for m in messages), whole)

    rounds_of = tuple(sum(1 for step in steps if step.sends or step.recvs) for steps in rounds)
    messages_of = tuple(sum(len(step.sends) for step in steps) for steps in rounds)
    return Traffic(
        blocks=blocks,
        rounds=max(rounds_of),
        critical_rounds=critical_rounds(rounds, blocks),
        messages=sum(messages_of),
        rounds_of=rounds_of,
        messages_of=messages_of,
        sent_of=tuple(share(m for step in steps for m in step.sends) for steps in rounds),
        received_of=tuple(share(m for step in steps for m in step.recvs) for steps in rounds),
        reduced_of=tuple(
            share(m for step in steps for m in step.recvs if m.side is not None) for steps in rounds
        ),
    )


class _Clock(Network):
    """Time in rounds: each takes one unit, from when its rank and the senders of its messages begin it."""

    def __init__(self, schedules: Sequence[Iterable[Round]], blocks: int) -> None:
        super().__init__("traffic", schedules, blocks)
        self.time = [0] * self.size

    def outgoing(self, rank: int, message: Send, span: Span) -> int:
        return self.time[rank]

    def complete(self, rank: int, step: Round, spans: list[Span], arrived: list[int]) -> None:
        if step.sends or step.recvs:
            self.time[rank] = max(self.time[rank], *arrived, 0) + 1


def critical_rounds(rounds: Sequence[Iterable[Round]], blocks: int) -> int:
    """The longest chain of dependent rounds through all ranks; see the module for what that is."""
    clock = _Clock(rounds, blocks)
    clock.run()
    return max(clock.time)


def block_lengths(kind: Collective, size: int, blocks: int, count: int) -> list[int]:
    """Elements of each block, where every part has `count` elements.

    >>> from mpicoll.collectives import collective
    >>> block_lengths(collective("allgather"), 2, 4, 3)
    [2, 1, 2, 1]
    """
    parts = kind.parts(size)
    per_part = blocks // parts
    return [block_length(count, per_part, block) for block in range(per_part)] * parts


def peer_bytes(
    algorithm: Algorithm | str,
    size: int,
    count: int,
    itemsize: int,
    params: Mapping[str, Any] | None = None,
) -> list[list[int]]:
    """Bytes that each rank (row) sends to each (column), for parts of `count` elements of `itemsize` bytes.

    What a part is, `collectives` says: the vector of an all-reduce, one rank's share of an all-gather.

    >>> import mpicoll.algorithms
    >>> peer_bytes("allreduce/ring", 3, 7, 4)
    [[0, 36, 0], [0, 0, 40], [36, 0, 0]]
    """
    algorithm = _find(algorithm)
    blocks = algorithm.blocks(size, params)
    start = list(accumulate(block_lengths(algorithm.collective, size, blocks, count), initial=0))
    matrix = [[0] * size for _ in range(size)]
    for row, steps in zip(matrix, _global(algorithm, size, params), strict=True):
        for step in steps:
            for m in step.sends:
                row[m.peer] += _elements(m.windows, start) * itemsize
    return matrix


def _elements(windows: Windows, start: Sequence[int]) -> int:
    blocks = len(start) - 1
    return sum(start[b + 1] - start[b] for b in blocks_of(windows, blocks))
