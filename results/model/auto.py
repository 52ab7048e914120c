"""`algorithm="auto"` by a calibration against that without: which algorithms, and the ratio of their times.

    mpirun -n 2 python results/model/auto.py CALIBRATION OUTPUT.csv

Six collectives, 1 KiB to 16 MiB by fours, float32 sums. Both communicators' calls take turns on the same
buffers; three passes, each in other memory. `ratio` is calibrated/nominal, the median of the passes of the
ratio of their medians, with the smallest and the largest.
"""

import csv
import statistics
import sys
import time
from pathlib import Path

import mpi4py

mpi4py.rc.thread_level = "funneled"

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.bench.timing import measure, no_garbage_collection, orders  # noqa: E402

SIZES = [1024 << 2 * k for k in range(8)]
PASSES, BUDGET = 3, 0.08  # seconds of a case in a pass
WORLD = MPI.COMM_WORLD


def arguments(kind, n, size):
    """Buffers of n bytes (of the vector, or of a part), and what else the call needs."""
    one, all_ = np.ones(n // 4, np.float32), np.ones(n // 4 * size, np.float32)
    return {
        "allreduce": (one, one.copy(), MPI.SUM),
        "bcast": (one, 0),
        "reduce": (one, one.copy(), MPI.SUM, 0),
        "allgather": (one, all_),
        "reduce_scatter": (one, one[: len(one) // size].copy(), MPI.SUM),
        "alltoall": (all_, all_.copy()),
    }[kind]


METHODS = {
    kind: f"{kind.capitalize()}_init" for kind in ("allreduce", "bcast", "reduce", "allgather", "alltoall")
}
METHODS["reduce_scatter"] = "Reduce_scatter_block_init"


def run(comms, kind, n, barrier):
    """Names of the algorithms, and the ratio of the medians of the slowest rank."""
    given = arguments(kind, n, WORLD.size)
    plans = [getattr(comm, METHODS[kind])(*given) for comm in comms]
    calls, prime = [plan.run for plan in plans], n < 256 << 10
    begun = time.perf_counter()
    measure([calls], barrier, orders(2, 3, 0), prime=prime)
    each = WORLD.allreduce((time.perf_counter() - begun) / 3, op=MPI.MAX)
    mine = measure([calls], barrier, orders(2, max(9, min(300, int(BUDGET / each))), 1), prime=prime).seconds
    slowest = np.empty_like(mine)
    WORLD.Allreduce(mine, slowest, op=MPI.MAX)
    names = [plan.algorithm for plan in plans]
    for plan in plans:
        plan.free()
    nominal, calibrated = (statistics.median(column) for column in slowest.T.tolist())
    return names, nominal, calibrated


def main(calibration, output):
    """Measure, and write a row for each collective and size."""
    comms = [mpicoll.Comm(WORLD), mpicoll.Comm(WORLD, calibration=calibration)]
    barrier = comms[0].Barrier_init().run
    told = {}
    with no_garbage_collection():
        for _ in range(PASSES):
            for kind in METHODS:
                for n in SIZES:
                    told.setdefault((kind, n), []).append(run(comms, kind, n, barrier))
    if WORLD.rank == 0:
        with Path(output).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(
                ["collective", "bytes", "nominal", "calibrated", "nominal_seconds", "ratio", "least", "most"]
            )
            for (kind, n), rows in told.items():
                ratios = sorted(b / a for _, a, b in rows)
                seconds = statistics.median(a for _, a, _ in rows)
                ends = [f"{r:.3f}" for r in (statistics.median(ratios), ratios[0], ratios[-1])]
                writer.writerow([kind, n, *rows[0][0], f"{seconds:.4g}", *ends])


if __name__ == "__main__":
    main(*sys.argv[1:])
