"""What the MPI tests share: inputs that expose misplaced and doubled data, guarded buffers, answers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.native import native_status

WORLD = MPI.COMM_WORLD
ENGINES = ["python", "native"] if native_status()[0] else ["python"]
GUARD = 16  # elements on either side of every buffer

DTYPES = [c for c in "bhilqBHILQefdgFDG?" if MPI.Datatype.fromcode(c) != MPI.DATATYPE_NULL]
OPS = {
    **dict.fromkeys("bhilqBHILQ", "sum prod max min land lor lxor band bor bxor".split()),
    **dict.fromkeys("efdg", "sum prod max min".split()),
    **dict.fromkeys("FDG", "sum prod".split()),
    "?": "land lor lxor".split(),
}
UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}

_comms: dict[str, mpicoll.Comm] = {}


def world(engine: str) -> mpicoll.Comm:
    """A communicator of all ranks with this engine, made once."""
    if engine not in _comms:
        _comms[engine] = mpicoll.Comm(WORLD, engine=engine)
    return _comms[engine]


def counts(size: int) -> list[int]:
    """Numbers of elements around every edge of a cut in `size` blocks."""
    return sorted({0, 1, size - 1, size, size + 1, 2 * size + 1, 1000, 30_011})


def values(rank: int, count: int, dtype: str = "f", op: str = "sum") -> Any:
    """Input of a rank: depends on rank and index, and is exact for the operation in any order."""
    return _values(rank, count, dtype, op).copy()


def answer(size: int, count: int, dtype: str = "f", op: str = "sum") -> Any:
    """The combination of all ranks' `values`, in rank order."""
    return _answer(size, count, dtype, op).copy()


@lru_cache(32)  # every algorithm, engine and root asks for the same; few are kept, as some are large
def _values(rank: int, count: int, dtype: str, op: str) -> Any:
    index = np.arange(count)
    if op == "prod":
        return (1 + (rank * 5 + index) % 2).astype(dtype)
    if op in ("land", "lor", "lxor"):
        return ((rank * 3 + index) % 3 > 0).astype(dtype)
    mixed = (rank * 7 + index * 3 + rank * index) % 13
    return mixed.astype(dtype) if dtype in "BHILQ" else (mixed - 6).astype(dtype)


@lru_cache(32)
def _answer(size: int, count: int, dtype: str, op: str) -> Any:
    total = values(0, count, dtype, op)
    for rank in range(1, size):
        total = UFUNCS[op](total, values(rank, count, dtype, op)).astype(dtype)
    return total


def equal(actual: Any, expected: Any, message: str = "") -> None:
    """NumPy's `assert_array_equal`, which takes long to find that all is well."""
    if not np.array_equal(actual, expected):
        np.testing.assert_array_equal(actual, expected, message)


class Guarded:
    """An array between guard elements that must never change."""

    def __init__(self, content: Any) -> None:
        raw = np.full((len(content) + 2 * GUARD) * content.itemsize, 0xA5, np.uint8)
        self.whole = raw.view(content.dtype)
        self.array = self.whole[GUARD : GUARD + len(content)]
        self.array[...] = content

    def check(self) -> None:
        """Fail if a guard element was overwritten."""
        raw = self.whole.view(np.uint8)
        width = GUARD * self.whole.itemsize
        assert (raw[:width] == 0xA5).all(), "elements before the buffer were overwritten"
        assert (raw[len(raw) - width :] == 0xA5).all(), "elements after the buffer were overwritten"


def same_everywhere(array: Any) -> None:
    """Fail unless all ranks hold the same bytes."""
    everyone = WORLD.allgather(array.tobytes())
    different = [rank for rank, other in enumerate(everyone) if other != everyone[0]]
    assert not different, f"ranks {different} hold other bytes than rank 0"


def allreduce_names(ordered: bool | None = None) -> list[str]:
    """Names of the all-reduce algorithms (only the ordered ones, only the others)."""
    found = mpicoll.catalogue("allreduce")
    return [a.name for a in found if ordered is None or a.ordered == ordered]
