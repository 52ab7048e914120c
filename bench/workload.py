"""The buffers of one case on one rank: input, what must come out, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpicoll.bench import data
from mpicoll.bench.cases import ALL, RECIPES, Case, Piece

GUARD_BYTES = 64
_ALIGN = 4096


class Buffer:
    """A page-aligned array with guard bytes on both sides that must survive every call."""

    def __init__(self, count: int, dtype: np.dtype[Any]):
        nbytes = count * dtype.itemsize
        raw = np.zeros(nbytes + 2 * GUARD_BYTES + 2 * _ALIGN, np.uint8)  # zeros written: no page faults later
        raw[:] = 0
        start = GUARD_BYTES + -(raw.ctypes.data + GUARD_BYTES) % _ALIGN
        self.guarded = raw[start - GUARD_BYTES : start + nbytes + GUARD_BYTES]
        self.array = raw[start : start + nbytes].view(dtype)
        self.before = raw[start - GUARD_BYTES : start]
        self.after = raw[start + nbytes : start + nbytes + GUARD_BYTES]

    def arm(self) -> None:
        """Write the guard bytes."""
        self.before[:] = self.after[:] = np.arange(1, GUARD_BYTES + 1, dtype=np.uint8)

    def intact(self) -> bool:
        """Whether nothing was written outside of the array."""
        expected = np.arange(1, GUARD_BYTES + 1, dtype=np.uint8)
        return np.array_equal(self.before, expected) and np.array_equal(self.after, expected)


class Workload:
    """The buffers of one case on one rank, its input, and what must come out."""

    def __init__(self, case: Case, rank: int):
        self.case, self.rank = case, rank
        self.recipe = RECIPES[case.collective]
        self.dtype = np.dtype(case.dtype)
        place = (rank, case.ranks, case.root, case.count)
        self.sends, self.recvs = self.recipe.send(*place), self.recipe.recv(*place)
        self.recv = Buffer(sum(n for _, _, n in self.recvs), self.dtype)
        self.send = (
            self.recv if self.recipe.in_place else Buffer(sum(n for _, _, n in self.sends), self.dtype)
        )
        self.epoch = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers of this rank."""
        return self.recv.array.nbytes + (0 if self.send is self.recv else self.send.array.nbytes)

    @property
    def receives(self) -> bool:
        """Whether this rank gets a result."""
        return bool(self.recvs)

    def arguments(self, op: Any) -> tuple[Any, ...]:
        """What the collective's method is called with."""
        send = self.send.array if self.sends else None
        recv = self.recv.array if self.receives else None
        return self.recipe.arguments(send, recv, op, self.case.root)

    def refresh(self, epoch: int) -> None:
        """New input, a result buffer that is wrong in every element, armed guards."""
        self.epoch = epoch
        if data.undefined(self.case.op, self.dtype):  # there is no such data, and nobody is going to run
            return
        for (who, start, _), piece in self._pieces(self.recvs, self.recv.array):
            data.fill_wrong(piece, self._table(who), start)
        for (who, start, _), piece in self._pieces(self.sends, self.send.array):
            data.fill(piece, self._table(who), start)
        self.recv.arm()
        self.send.arm()

    def problem(self) -> str | None:
        """What is wrong with this rank's result, in words, or None."""
        offset = 0
        for (who, start, length), piece in self._pieces(self.recvs, self.recv.array):
            found = data.first_difference(piece, self._table(who), start)
            if found is not None:
                at, expected, got = found
                return f"rank {self.rank} element {offset + at}: expected {expected}, found {got}"
            offset += length
        if not (self.recv.intact() and self.send.intact()):
            return f"rank {self.rank}: written outside of the buffer"
        if self.send is not self.recv:
            for (who, start, _), piece in self._pieces(self.sends, self.send.array):
                if data.first_difference(piece, self._table(who), start) is not None:
                    return f"rank {self.rank}: the send buffer was changed"
        return None

    def _table(self, who: int) -> Any:
        case = self.case
        if who == ALL:
            return data.combined(case.op, self.dtype, case.ranks, self.epoch)
        return data.table(case.op, self.dtype, who, case.ranks, self.epoch)

    @staticmethod
    def _pieces(pieces: list[Piece], array: Any) -> Iterator[tuple[Piece, Any]]:
        offset = 0
        for piece in pieces:
            yield piece, array[offset : offset + piece[2]]
            offset += piece[2]
