"""Test data: exact in any order of combination, different for every rank, element and check.

Each rank's vector is endless, and made of one table of `PERIOD` small values that is repeated, rotated
further each time (a prime number, so that no power of two can hide a misplaced block). What a
collective must deliver is therefore known in closed form from P tables, without any MPI.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

PERIOD = 1009
_SHIFT = 101  # repetition j is rotated by j·101 mod 1009: all rotations differ for 1009 repetitions
_CHUNK_ROWS = 1024

Table = np.ndarray[Any, np.dtype[Any]]

FOLDS: dict[str, Callable[[Table, Table], Table]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
}
_KINDS = {"f": "sum prod max min", "c": "sum prod", "b": "land lor lxor"}


def undefined(op: str, dtype: np.dtype[Any]) -> str | None:
    """Why MPI does not define `op` on this datatype, or None if it does."""
    if op and op not in FOLDS:
        return f"unknown operation {op!r}; known: {', '.join(FOLDS)}"
    if op and op not in _KINDS.get(dtype.kind, " ".join(FOLDS)).split():
        return f"MPI does not define {op.upper()} on {dtype}"
    return None


def exact_limit(dtype: np.dtype[Any]) -> int:
    """Up to this value every integer is exact in `dtype` (in each part, if complex)."""
    if dtype.kind == "b":
        return 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    return 1 << (int(np.finfo(dtype).nmant) + 1)


def _noise(rank: int, epoch: int) -> Table:
    """PERIOD reproducible pseudo-random integers in 0..2^31-1 (splitmix64)."""
    start = (rank * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03 + 1) & 0xFFFFFFFFFFFFFFFF
    x = np.arange(PERIOD, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(33)).astype(np.int64)


def _integers(op: str, limit: int, signed: bool, rank: int, size: int, epoch: int) -> Table:
    """The values of `rank` as int64: any fold of all ranks' values stays within ±`limit`."""
    noise, index = _noise(rank, epoch), np.arange(PERIOD)
    if op == "sum":
        # More ranks than the type can count: a value of 1 at every step-th rank only.
        step = -(-size // limit)
        return (
            noise % (min(limit // size, 4096) + 1)
            if step == 1
            else ((rank + index) % step == 0).astype(np.int64)
        )
    if op == "prod":
        step = -(-size // min(limit.bit_length() - 1, 30))
        return 1 + (noise & ((rank + index) % step == 0))
    if op in ("max", "min"):
        return noise % (min(limit, 1 << 20) + 1) // (1 + signed) - (min(limit, 1 << 20) // 4 if signed else 0)
    shared = _noise(-1, epoch)
    if op in ("land", "lor"):
        odd_one_out = shared % (2 * size) == rank
        return (odd_one_out ^ (op == "land")).astype(np.int64)
    mask = min(limit, (1 << 31) - 1)
    if op in ("band", "bor"):
        bits = np.where(np.isin(shared % size - rank, (0, 1, 1 - size)), noise, 0) & mask
        return mask - bits if op == "band" else bits
    return noise & (1 if op == "lxor" else mask)


def _cast(values: Table, dtype: np.dtype[Any], turn: bool) -> Table:
    """Integers as `dtype`; complex: powers of i if `turn`, else with a second, rotated part."""
    if dtype.kind != "c":
        return values.astype(dtype)
    if turn:
        return np.array([1, 1j, -1, -1j], dtype)[values % 4]
    return (values + 1j * np.roll(values, 7)).astype(dtype)


def table(op: str, dtype: np.dtype[Any], rank: int, size: int, epoch: int) -> Table:
    """The table of one rank's vector; `op` is "" where nothing is combined."""
    turn = op == "prod" and dtype.kind == "c"
    rule = "sum" if turn else (op or "max")
    return _cast(_integers(rule, exact_limit(dtype), dtype.kind in "ifc", rank, size, epoch), dtype, turn)


def combined(op: str, dtype: np.dtype[Any], size: int, epoch: int) -> Table:
    """The table of the combination of all ranks' vectors, computed in 64-bit integers."""
    turn = op == "prod" and dtype.kind == "c"
    rule = "sum" if turn else op
    limit, signed = exact_limit(dtype), dtype.kind in "ifc"
    total = _integers(rule, limit, signed, 0, size, epoch)
    for rank in range(1, size):
        total = FOLDS[rule](total, _integers(rule, limit, signed, rank, size, epoch))
    return _cast(total, dtype, turn)


def elements(values: Table, start: int, count: int) -> Table:
    """Elements start..start+count of the endless vector that the table `values` stands for."""
    if count == 0:
        return values[:0]
    first, last = start // PERIOD, (start + count - 1) // PERIOD
    rotations = np.lib.stride_tricks.sliding_window_view(np.concatenate([values, values]), PERIOD)
    rows = rotations[np.arange(first, last + 1) * _SHIFT % PERIOD]
    return rows.reshape(-1)[start - first * PERIOD :][:count]


def fill(target: Table, values: Table, start: int) -> None:
    """Write the elements from `start` on into `target`, in pieces that fit the cache."""
    step = _CHUNK_ROWS * PERIOD
    for low in range(0, target.size, step):
        piece = target[low : low + step]
        piece[:] = elements(values, start + low, piece.size)


def fill_wrong(target: Table, values: Table, start: int) -> None:
    """Write something into `target` that differs from the expected elements everywhere."""
    fill(target, values, start)
    if target.dtype.kind == "b":
        np.logical_not(target, out=target)
    else:
        raw = target.view(np.uint8)
        np.invert(raw, out=raw)


def first_difference(found: Table, values: Table, start: int) -> tuple[int, Any, Any] | None:
    """The first element that is not as expected: (index, expected, found), or None."""
    step = _CHUNK_ROWS * PERIOD
    for low in range(0, found.size, step):
        piece = found[low : low + step]
        expected = elements(values, start + low, piece.size)
        wrong = np.flatnonzero(piece != expected)
        if wrong.size:
            at = int(wrong[0])
            return low + at, expected[at], piece[at]
    return None
