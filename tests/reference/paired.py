"""The loop of `allreduce_loop.c` and that of `mpicoll sweep` in one process, on one communicator, in turn.

Launches of separate programs differ by more than the programs do (where the two ranks run, which pages they
get); here both have the same ranks, memory and moment, and what is left is the instrument: the Python call.

    mpirun -n 2 python tests/reference/paired.py LIBRARY.so OUTPUT.csv

`LIBRARY.so` is `mpicc -O2 -shared -fPIC tests/reference/allreduce_loop.c -o LIBRARY.so`. One row per size:
the medians over rounds, and those of the ratio and of the difference within a round with 95 % intervals.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
import sys
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

mpi4py.rc.thread_level = "funneled"

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.bench.stopping import median_interval  # noqa: E402
from mpicoll.bench.timing import cost_of, measure, no_garbage_collection  # noqa: E402
from mpicoll.bench.workload import Buffer  # noqa: E402
from tests.reference.agreement import SIZES, write  # noqa: E402

SKIP, LARGE = 5, 1 << 20


class Instruments:
    """Both loops on the same buffers of `nbytes`; each returns the median of its slowest ranks' times [s]."""

    def __init__(self, library: ctypes.CDLL, nbytes: int):
        self.loop, self.comm = library.time_calls, MPI.COMM_WORLD
        self.send, self.recv = (Buffer(nbytes // 4, np.dtype(np.float32)).array for _ in range(2))
        self.send[:] = 1.0
        self.calls = 20 if nbytes >= LARGE else 100
        self.call = functools.partial(self.comm.Allreduce, self.send, self.recv, MPI.SUM)
        self.own: Any = mpicoll.Comm(self.comm)
        self.barrier = self.own.Barrier_init(algorithm="dissemination")

    def c(self) -> float:
        """OSU's loop, in C."""
        seconds = np.zeros(self.calls)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (self.send, self.recv)]
        comm = ctypes.c_void_p(MPI._addressof(self.comm))
        self.loop(ctypes.c_void_p(seconds.ctypes.data), SKIP, self.calls, self.send.size, *pointers, comm)
        return self._slowest(seconds)

    def mpicoll(self) -> float:
        """That of a sweep."""
        prime = self.send.nbytes < 256 << 10
        measure([[self.call]], self.barrier.run, [[0]] * SKIP, prime=prime)
        times = measure([[self.call]], self.barrier.run, [[0]] * self.calls, prime=prime)
        return self._slowest(times.seconds[:, 0])

    def _slowest(self, mine: np.ndarray) -> float:
        slowest = np.empty(mine.size)
        self.comm.Allreduce(np.ascontiguousarray(mine), slowest, MPI.MAX)
        return float(np.median(slowest))

    def free(self) -> None:
        """Free the barrier and its communicator."""
        self.barrier.free()
        self.own.Free()


def row_of(nbytes: int, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """What the rounds of one size say."""
    ratio = median_interval([own / c for c, own in pairs])
    difference = median_interval([own - c for c, own in pairs])
    assert ratio is not None
    assert difference is not None
    names = ("low", "median", "high")
    return {
        "msg_bytes": nbytes, "rounds": len(pairs),
        "c_median": statistics.median(c for c, _ in pairs),
        "mpicoll_median": statistics.median(own for _, own in pairs),
        **{f"ratio_{name}": value for name, value in zip(names, ratio, strict=True)},
        **{f"difference_{name}": value for name, value in zip(names, difference, strict=True)},
    }  # fmt: skip


def main() -> None:
    """Measure and write."""
    library, output = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])
    one, other = np.ones(1, np.float32), np.zeros(1, np.float32)
    alone, _ = cost_of(lambda: MPI.COMM_SELF.Allreduce(one, other, MPI.SUM))
    rows = []
    for nbytes in SIZES:
        instruments = Instruments(library, nbytes)
        with no_garbage_collection():
            pairs = [(instruments.c(), instruments.mpicoll()) for _ in range(12 if nbytes >= LARGE else 40)]
        rows.append(row_of(nbytes, pairs))
        instruments.free()
    if MPI.COMM_WORLD.rank == 0:
        write(output, [{**row, "call_alone": alone} for row in rows])
        for row in rows:
            print(
                f"{row['msg_bytes']:>9} B  ratio {row['ratio_median']:.3f} "
                f"({row['ratio_low']:.3f} to {row['ratio_high']:.3f})  "
                f"difference {1e6 * row['difference_median']:.2f} us"
            )


if __name__ == "__main__":
    main()
