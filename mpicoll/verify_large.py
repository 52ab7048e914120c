"""The state of `verify` for thousands of ranks: rows of expression numbers in NumPy arrays.

The same rules and the same proof, done in another order so that it works on whole windows. Every combination
gets a number of its own when it is formed, without looking whether there is an equal one; what the results
are made of is found out at the end, by writing out all their operands. It is as exact, but an error that
`verify` would see as it happens (a contribution counted twice, a wrong order) is seen in a result only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from .collectives import Collective
from .errors import ArgumentError, ScheduleError
from .network import Network, Span, spell, spell_runs
from .schedule import Recv, Round, Send, Side

Numbers = npt.NDArray[np.int32]
Blocks = npt.NDArray[np.int64]

#: Cells of the state, and operands that are written out at a time.
MOST_CELLS, AT_A_TIME = 1 << 31, 1 << 24


class _Combinations:
    """A growing table of combinations: left operand, right operand, and how deep brackets are nested."""

    def __init__(self, leaves: int) -> None:
        self.count = 1 + leaves  # 0 is nothing, 1 + r the contribution of rank r
        room = 2 * self.count
        self.left, self.right, self.depth = (np.zeros(room, np.int32) for _ in range(3))

    def add(self, left: Numbers, right: Numbers) -> Numbers:
        """New numbers for combinations of these operands."""
        start, self.count = self.count, self.count + len(left)
        if self.count > len(self.left):
            if self.count > np.iinfo(np.int32).max:
                raise ArgumentError("too many combinations to prove: try fewer ranks or blocks")
            for name in ("left", "right", "depth"):
                grown = np.zeros(2 * self.count, np.int32)
                grown[:start] = getattr(self, name)[:start]
                setattr(self, name, grown)
        self.left[start : self.count], self.right[start : self.count] = left, right
        self.depth[start : self.count] = 1 + np.maximum(self.depth[left], self.depth[right])
        return np.arange(start, self.count, dtype=np.int32)

    def same(self, leaves: int) -> Numbers:
        """For every number the lowest of an equal expression, found level by level."""
        lowest = np.arange(self.count, dtype=np.int32)
        order = np.argsort(self.depth[: self.count], kind="stable")
        levels = np.searchsorted(self.depth[order], np.arange(1, self.depth[order[-1]] + 2))
        for start, stop in pairwise(levels):
            level = order[start:stop]
            pairs = lowest[self.left[level]].astype(np.int64) * self.count + lowest[self.right[level]]
            _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
            lowest[level] = level[first][inverse]
        return lowest


class LargeExpressions(Network):
    """The state of all ranks, as `verify._Expressions`."""

    expressions = None  # different ones are not counted

    def __init__(
        self,
        name: str,
        schedules: Sequence[Iterable[Round]],
        blocks: int,
        kind: Collective,
        root: int,
        ordered: bool,
    ) -> None:
        super().__init__(name, schedules, blocks)
        self.kind, self.root, self.ordered = kind, root, ordered
        self.moved = 0
        self.in_order = True
        parts = kind.parts(self.size)
        if blocks < parts or blocks % parts:
            raise ScheduleError(f"{name}: {blocks} blocks cannot cut {parts} parts equally")
        if self.size * blocks > MOST_CELLS:
            raise ArgumentError(f"{name}: {blocks} blocks on {self.size} ranks are too many to prove")
        self.per_part = blocks // parts
        self.table = _Combinations(self.size)
        self.state = np.zeros((self.size, blocks), np.int32)
        for rank, row in enumerate(self.state):
            row[self._columns(kind.before(rank, self.size, root))] = 1 + rank

    def _columns(self, parts: range) -> slice | Blocks:
        """The blocks of some parts."""
        if parts.step == 1:
            return slice(parts.start * self.per_part, parts.stop * self.per_part)
        first = np.asarray(parts)[:, None] * self.per_part
        return (first + np.arange(self.per_part)).ravel()

    def outgoing(self, rank: int, message: Send, span: Span) -> Numbers:
        """The expressions of the blocks sent."""
        cargo = self._read(self.state[rank], span)
        if not cargo.all():
            absent = [b for b, number in zip(span.blocks, cargo, strict=True) if not number]
            self.fail(rank, f"it sends {spell(absent)} to rank {message.peer}, which it does not hold")
        self.moved += span.count
        return cargo

    @staticmethod
    def _read(row: Numbers, span: Span) -> Numbers:
        if span.cut:
            return row[span.cut].copy()
        if len(span.runs) > 8:
            return row[np.asarray(span.blocks, dtype=np.int64)]
        return np.concatenate([row[:0], *(row[start:stop] for start, stop in span.runs)])

    @staticmethod
    def _write(row: Numbers, span: Span, numbers: Numbers) -> None:
        done = 0
        for start, stop in span.runs:
            row[start:stop] = numbers[done : done + stop - start]
            done += stop - start

    def complete(self, rank: int, step: Round, spans: list[Span], arrived: list[Numbers]) -> None:
        """Copy and combine what came, as a left fold (rule 3)."""
        received = list(zip(step.recvs, spans, arrived, strict=True))
        lefts = [(into, span, cargo) for into, span, cargo in received if into.side is Side.LEFT]
        if len(lefts) == 1:
            self._land(rank, *lefts[0])
        elif lefts:
            self._fold(rank, lefts)
        for into, span, cargo in received:
            if into.side is not Side.LEFT:
                self._land(rank, into, span, cargo)

    def _land(self, rank: int, into: Recv, span: Span, cargo: Numbers) -> None:
        row = self.state[rank]
        if into.side is not None:
            mine = self._read(row, span)
            self._check(rank, into, span, mine)
            pair = (cargo, mine) if into.side is Side.LEFT else (mine, cargo)
            cargo = self.table.add(*pair)
        self._write(row, span, cargo)

    def _fold(self, rank: int, lefts: list[tuple[Recv, Span, Numbers]]) -> None:
        row = self.state[rank]
        total = np.zeros_like(row)
        for into, span, cargo in lefts:
            self._check(rank, into, span, self._read(row, span))
            before = self._read(total, span)
            both = before != 0
            cargo = cargo.copy()
            cargo[both] = self.table.add(before[both], cargo[both])
            self._write(total, span, cargo)
        where = np.flatnonzero(total)
        row[where] = self.table.add(total[where], row[where])

    def _check(self, rank: int, into: Recv, span: Span, mine: Numbers) -> None:
        """Refuse a combination where there is none, or with nothing."""
        if self.kind.reduces and mine.all():
            return
        where = f"{spell_runs(span.runs)} from rank {into.peer}"
        if not self.kind.reduces:
            self.fail(rank, f"it combines {where}, but {self.kind.title} reduces nothing")
        self.fail(rank, f"it combines {where} with its own block, which it does not hold")

    # -- at the end -----------------------------------------------------------------------------------

    def conclude(self) -> None:
        """Check every block of every part that the collective promises."""
        if self.kind.reduces:
            self._conclude_reduction()
        else:
            self._conclude_copies()

    def _conclude_copies(self) -> None:
        parts = range(self.kind.parts(self.size))
        origin = np.array([self.kind.origin(part, self.size, self.root) for part in parts], np.int32)
        wanted = np.repeat(1 + origin, self.per_part)
        for rank, row in enumerate(self.state):
            columns = self._columns(self.kind.after(rank, self.size, self.root))
            wrong = np.flatnonzero(row[columns] != wanted[columns])
            if len(wrong):
                block = np.arange(self.blocks)[columns][wrong[0]]
                got = f"rank {row[block] - 1}'s data" if row[block] else "nothing"
                raise ScheduleError(
                    f"{self.name}: at the end rank {rank} holds {got} in block {block}, "
                    f"and not rank {wanted[block] - 1}'s"
                )

    def _conclude_reduction(self) -> None:
        holder = np.full(self.blocks, -1)
        result = np.zeros(self.blocks, np.int32)
        same: Numbers | None = None
        for rank, row in enumerate(self.state):
            columns = self._columns(self.kind.after(rank, self.size, self.root))
            first = holder[columns] < 0
            result[columns] = np.where(first, row[columns], result[columns])
            holder[columns] = np.where(first, rank, holder[columns])
            differs = result[columns] != row[columns]
            if differs.any():
                same = self.table.same(self.size) if same is None else same
                differs = same[result[columns]] != same[row[columns]]
            if differs.any():
                block = np.arange(self.blocks)[columns][differs][0]
                raise ScheduleError(
                    f"{self.name}: ranks {holder[block]} and {rank} evaluate different expressions for "
                    f"block {block}, so their results may differ in the last bit"
                )
        promised = np.flatnonzero(holder >= 0)
        for start in range(0, len(promised), max(1, AT_A_TIME // self.size)):
            some = promised[start : start + max(1, AT_A_TIME // self.size)]
            self._check_operands(some, result[some], holder)

    def _expand(self, sequence: Numbers) -> tuple[Numbers, npt.NDArray[np.int64]]:
        """Put the two operands in the place of every combination; also, how many entries each became."""
        inner = sequence > self.size
        counts = 1 + inner
        place = (np.cumsum(counts) - counts)[inner]
        nodes = sequence[inner]
        sequence = np.repeat(sequence, counts)
        sequence[place], sequence[place + 1] = self.table.left[nodes], self.table.right[nodes]
        return sequence, counts

    def _check_operands(self, blocks: Blocks, results: Numbers, holder: Blocks) -> None:
        """Write out the operands of results from left to right: all once, and in order where declared."""
        size, sequence, owner = self.size, results, np.arange(len(results))
        while (sequence > size).any():
            sequence, counts = self._expand(sequence)
            owner = np.repeat(owner, counts)
            if len(sequence) > len(results) * size:
                worst = int(np.bincount(owner).argmax())
                self._counted_twice(blocks[worst], sequence[owner == worst], holder)
        counted = np.bincount(owner * size + sequence - 1, minlength=len(results) * size)
        for wrong in np.flatnonzero(counted != 1)[:1]:
            at = int(wrong) // size
            if counted[at * size : (at + 1) * size].max() > 1:
                self._counted_twice(blocks[at], sequence[owner == at], holder)
            absent = np.flatnonzero(counted[at * size : (at + 1) * size] == 0)
            raise ScheduleError(
                f"{self.name}: at the end block {blocks[at]} of rank {holder[blocks[at]]} lacks the "
                f"contribution of {spell(absent.tolist(), 'rank')}"
            )
        for at in np.flatnonzero((np.diff(sequence) < 0) & (np.diff(owner) == 0))[:1]:
            self.in_order = False
            if self.ordered:
                block = blocks[owner[at]]
                raise ScheduleError(
                    f"{self.name}: block {block} of rank {holder[block]} has rank {sequence[at] - 1} left of "
                    f"rank {sequence[at + 1] - 1}: out of rank order, though declared ordered"
                )

    def _counted_twice(self, block: int, sequence: Numbers, holder: Blocks) -> NoReturn:
        """Name some ranks that a result of more than P operands counts twice."""
        while (sequence > self.size).any():
            sequence = self._expand(sequence)[0][: 2 * self.size]  # more than P: one must come twice
        ranks = np.flatnonzero(np.bincount(sequence - 1, minlength=self.size) > 1)
        raise ScheduleError(
            f"{self.name}: at the end block {block} of rank {holder[block]} counts the contribution of "
            f"{spell(ranks.tolist(), 'rank')} twice"
        )
