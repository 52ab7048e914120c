"""What `mpicoll calibrate` times: messages between two ranks, and what both do in their own memory at once.

Messages are plans like those of collectives, on the engine that is calibrated: schedules with a few and with
many rounds of one pattern, whose difference gives the cost of a round, and whose remainder that of a call.

- `one_way`, to and fro, and `exchange`, both ways at once: out of memory that nobody writes;
- `one_way_relayed`, `exchange_relayed`: ranks send what has just come. Where the receiver reads it in the
  sender's cache, that takes up to three times as long;
- `burst`: several messages in a round;
- `copy`, and `combine` for each type and operation: what the engine calls, out of three operands. From
  `IN_PLACE_FROM` on, where the caches do not hold them, combining is what a reduce-scatter takes more than an
  exchange, striped as it is by default: then one operand comes in pieces that stay in a cache.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from mpicoll.bench.timing import measure, no_garbage_collection, orders
from mpicoll.registry import Params, algorithm, unregister
from mpicoll.schedule import Recv, Round, Schedule, Send, Window

FEW, MANY = 2, 6
BUDGET = 0.12  # seconds for each pattern and size
MESSAGES = ("one_way", "one_way_relayed", "exchange", "exchange_relayed")
BURST = 5  # messages in a round
IN_PLACE_FROM = 512 << 10

Row = dict[str, Any]
Pair = tuple[str, str]  # a NumPy type and an operation
Call = Callable[[], Any]


def rounds(pattern: str, rank: int, count: int) -> Schedule:
    """So many rounds of a pattern between ranks 0 and 1, on two blocks (two per message in a burst)."""
    peer = 1 - rank
    for turn in range(count):
        if pattern.startswith("one_way"):
            block = (Window(0 if pattern.endswith("relayed") else turn % 2),)
            sends = turn % 2 == rank
            yield Round((Send(peer, block),), ()) if sends else Round((), (Recv(peer, block),))
        else:
            messages = range(BURST if pattern == "burst" else 1)
            swap = turn % 2 if pattern.endswith("relayed") else 0  # what came goes back in the next round
            yield Round(
                tuple(Send(peer, (Window(2 * m + (rank ^ swap)),)) for m in messages),
                tuple(Recv(peer, (Window(2 * m + (peer ^ swap)),)) for m in messages),
            )


def _blocks(pattern: str) -> int:
    return 2 * BURST if pattern == "burst" else 2


@contextmanager
def _registered() -> Iterator[None]:
    """The patterns as algorithms, for measurement only."""
    names = []
    for pattern in (*MESSAGES, "burst"):
        for count in (1, FEW, MANY):

            def generate(rank: int, size: int, pattern: str = pattern, count: int = count) -> Schedule:
                """A pattern of messages, again and again."""
                return rounds(pattern, rank, count)

            def count_blocks(size: int, params: Params, pattern: str = pattern) -> int:
                return _blocks(pattern)

            names.append(f"calibration_{pattern}_{count}")
            algorithm("allreduce", blocks=count_blocks, name=names[-1])(generate)
    try:
        yield
    finally:
        for name in names:
            unregister("allreduce", name)


class Bench:
    """Two ranks that measure. Construction and all methods are collective."""

    def __init__(self, pair: Any, engine: str | None) -> None:
        import mpicoll

        self.pair = pair
        self.own: Any = mpicoll.Comm(pair)
        self.barrier = self.own.Barrier_init(engine=engine)
        self.engine: str = self.barrier.engine

    def run(self, sizes: list[int], pairs: list[Pair]) -> list[Row]:
        """Rows (pattern, type, operation, bytes, seconds of a round, and of the rest of a call)."""
        rows = []
        with _registered(), no_garbage_collection():
            for pattern in MESSAGES:
                rows += [self._messages(pattern, nbytes) for nbytes in sizes]
            rows.append(self._messages("burst", 8))
            rows += [self._local("copy", ("uint8", ""), nbytes) for nbytes in sizes]
            for kind in pairs:
                unit = np.dtype(kind[0]).itemsize
                for nbytes in (n for n in sizes if n % unit == 0):
                    how = self._local if nbytes < IN_PLACE_FROM else self._in_place
                    rows.append(how("combine", kind, nbytes))
        self.barrier.free()
        self.own.Free()
        return rows

    def _row(self, pattern: str, kind: Pair, nbytes: int, seconds: float, call: float, samples: int) -> Row:
        return {"pattern": pattern, "dtype": kind[0], "op": kind[1], "bytes": nbytes, "round": seconds,
                "call": call, "engine": self.engine, "samples": samples}  # fmt: skip

    def _plan(self, pattern: str, count: int, data: Any) -> Any:
        from mpi4py import MPI

        name = f"calibration_{pattern}_{count}"
        return self.own.Allreduce_init(
            MPI.IN_PLACE, data, MPI.SUM, engine=self.engine, channels=1, algorithm=name
        )

    def _messages(self, pattern: str, nbytes: int) -> Row:
        data = np.zeros(nbytes * _blocks(pattern), np.uint8)
        plans = [self._plan(pattern, count, data) for count in (FEW, MANY)]
        (few, many), samples = self._times([plan.run for plan in plans])
        for plan in plans:
            plan.free()
        each = (many - few) / (MANY - FEW)
        return self._row(pattern, ("uint8", ""), nbytes, each, few - FEW * each, samples)

    def _local(self, pattern: str, kind: Pair, nbytes: int) -> Row:
        """Less what the same call takes for one element."""
        dtype = np.dtype(kind[0])
        arrays = [np.ones(max(1, nbytes // dtype.itemsize), dtype) for _ in range(3)]
        make = copying if pattern == "copy" else partial(combining, self.engine, kind)
        (nothing, seconds), samples = self._times([make(*(a[:1] for a in arrays)), make(*arrays)])
        return self._row(pattern, kind, nbytes, seconds - nothing, nothing, samples)

    def _in_place(self, pattern: str, kind: Pair, nbytes: int) -> Row:
        """What a reduce-scatter of as much takes more than an exchange."""
        from mpi4py import MPI

        count, dtype = nbytes // np.dtype(kind[0]).itemsize, kind[0]
        send, recv = np.ones(2 * count, dtype), np.zeros(count, dtype)
        plans = [
            self._plan("exchange", 1, np.zeros(2 * nbytes, np.uint8)),
            self.own.Reduce_scatter_block_init(
                send, recv, getattr(MPI, kind[1].upper()), engine=self.engine, algorithm="ring"
            ),
        ]
        (exchange, both), samples = self._times([plan.run for plan in plans])
        for plan in plans:
            plan.free()
        return self._row(pattern, kind, nbytes, both - exchange, 0.0, samples)

    def _times(self, calls: list[Call]) -> tuple[list[float], int]:
        """Median seconds of each call, slowest rank, and how many there were."""
        from mpi4py import MPI

        begun = time.perf_counter()
        measure([calls], self.barrier.run, orders(len(calls), 3, 0), prime=False)
        each = self.pair.allreduce((time.perf_counter() - begun) / 3, op=MPI.MAX)
        iterations = max(7, min(400, int(BUDGET / each)))
        mine = measure([calls], self.barrier.run, orders(len(calls), iterations, 1), prime=False).seconds
        slowest = np.empty_like(mine)
        self.pair.Allreduce(mine, slowest, op=MPI.MAX)
        return [statistics.median(column) for column in slowest.T.tolist()], iterations


def copying(out: Any, source: Any, _: Any) -> Call:
    """A call that copies, as the engines do."""
    return partial(ctypes.memmove, out.ctypes.data, source.ctypes.data, source.nbytes)


def combining(engine: str, kind: Pair, out: Any, left: Any, right: Any) -> Call:
    """A call that combines two arrays into a third, as an engine does."""
    from mpicoll.ops import kernel_name, ufunc_of

    dtype, op = np.dtype(kind[0]), kind[1]
    if engine == "native":
        from mpicoll import _runner

        address = _runner.kernel(kernel_name(op, dtype))
        if address is not None:
            kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(address)
            return partial(kernel, out.ctypes.data, left.ctypes.data, right.ctypes.data, out.size)
    return partial(ufunc_of(op), left, right, out=out)
