"""What `mpicoll calibrate` times: messages between two ranks, and what both do in their own memory at once.

Messages are plans like those of collectives, on the engine that is calibrated: schedules with a few and with
many rounds of one pattern, whose difference gives the cost of a round, and whose remainder that of a call.

- `one_way`, to and fro, and `exchange`, both ways at once: out of memory that nobody writes;
- `one_way_relayed`, `exchange_relayed`: ranks send what has just come. Where the receiver reads it in the
  sender's cache, that takes up to three times as long;
- `burst`: several messages in a round;
- `copy`, and `combine` for each type and operation: what the engine calls, stripe by stripe as by default, so
  that what a message has brought stays in a cache. From `IN_SITU_FROM` on combining is what a reduce-scatter
  takes more than an exchange: what is only passed through a stripe is not written to memory and read again.

All of it is done in several passes, some time apart and each time in other memory, whose medians are told:
the same call may take half as long again where its pages lie badly.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from mpicoll.bench.timing import measure, no_garbage_collection, orders
from mpicoll.registry import Params, algorithm, unregister
from mpicoll.schedule import Recv, Round, Schedule, Send, Window
from mpicoll.select import STRIPE_BYTES

FEW, MANY = 2, 6
PASSES = 3
BUDGET = 0.05  # seconds for each pattern and size in a pass
MESSAGES = ("one_way", "one_way_relayed", "exchange", "exchange_relayed")
BURST = 5  # messages in a round
IN_SITU_FROM = 4 << 20
KEPT_BYTES = 4 << 20

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
    for pattern, count in (*product((*MESSAGES, "burst"), (FEW, MANY)), ("exchange", 1)):

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
        self.used: list[Any] = []

    def run(self, sizes: list[int], pairs: list[Pair]) -> list[Row]:
        """Rows (pattern, type, operation, bytes, seconds of a round, and of the rest of a call)."""
        with _registered(), no_garbage_collection():
            passes = [self._pass(sizes, pairs) for _ in range(PASSES)]
        self.barrier.free()
        self.own.Free()
        return [middle(rows) for rows in zip(*passes, strict=True)]

    def _pass(self, sizes: list[int], pairs: list[Pair]) -> list[Row]:
        rows = [self._messages(pattern, nbytes) for pattern in MESSAGES for nbytes in sizes]
        rows.append(self._messages("burst", 8))
        rows += [self._local("copy", ("uint8", ""), nbytes) for nbytes in sizes]
        for kind in pairs:
            unit = np.dtype(kind[0]).itemsize
            for nbytes in (n for n in sizes if n % unit == 0):
                how = self._local if nbytes < IN_SITU_FROM else self._in_situ
                rows.append(how("combine", kind, nbytes))
        self.used.clear()
        return rows

    def _memory(self, count: int, dtype: Any) -> Any:
        """Filled, as untouched pages are all the same one; and kept for the pass, that others are taken."""
        array = np.ones(count, dtype)
        if array.nbytes <= KEPT_BYTES:
            self.used.append(array)
        return array

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
        data = self._memory(nbytes * _blocks(pattern), np.uint8)
        plans = [self._plan(pattern, count, data) for count in (FEW, MANY)]
        (few, many), samples = self._times([plan.run for plan in plans])
        for plan in plans:
            plan.free()
        each = (many - few) / (MANY - FEW)
        return self._row(pattern, ("uint8", ""), nbytes, each, few - FEW * each, samples)

    def _local(self, pattern: str, kind: Pair, nbytes: int) -> Row:
        """Less what the same call takes for one element."""
        count = max(1, nbytes // np.dtype(kind[0]).itemsize)
        arrays = [self._memory(count, kind[0]) for _ in range(3)]
        make = copying if pattern == "copy" else partial(combining, self.engine, kind)
        (nothing, seconds), samples = self._times([make(*(a[:1] for a in arrays)), make(*arrays)])
        return self._row(pattern, kind, nbytes, seconds - nothing, nothing, samples)

    def _in_situ(self, pattern: str, kind: Pair, nbytes: int) -> Row:
        """What a reduce-scatter of as much takes more than an exchange."""
        from mpi4py import MPI

        count, dtype = nbytes // np.dtype(kind[0]).itemsize, kind[0]
        send, recv = self._memory(2 * count, dtype), self._memory(count, dtype)
        plans = [
            self._plan("exchange", 1, self._memory(2 * nbytes, np.uint8)),
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
    """A call that combines an array with one stripe of another, again and again, as an engine does."""
    from mpicoll.ops import kernel_name, ufunc_of

    dtype, op = np.dtype(kind[0]), kind[1]
    stripe = max(1, STRIPE_BYTES // dtype.itemsize)
    cuts = [slice(low, low + stripe) for low in range(0, out.size, stripe)]
    rows = [(out[cut], left[cut], right[: len(out[cut])]) for cut in cuts]
    address = None
    if engine == "native":
        from mpicoll import _runner

        address = _runner.kernel(kernel_name(op, dtype))
    if address is None:
        function = ufunc_of(op)
        calls: list[Call] = [partial(function, one, two, out=into) for into, one, two in rows]
    else:
        kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(address)
        calls = [partial(kernel, *(array.ctypes.data for array in row), row[0].size) for row in rows]
    return calls[0] if len(calls) == 1 else partial(_all, calls)


def _all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def middle(rows: Sequence[Row]) -> Row:
    """One row of several: medians, and how many samples there are."""
    seconds, call = (statistics.median(row[key] for row in rows) for key in ("round", "call"))
    return {**rows[0], "round": seconds, "call": call, "samples": sum(row["samples"] for row in rows)}
