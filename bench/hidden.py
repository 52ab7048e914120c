"""`mpicoll hidden`: how much of a nonblocking all-reduce is hidden behind computing, and at what price.

Each mode does the same: begin an all-reduce, compute for about as long as the all-reduce takes alone,
complete it. They differ in who moves the messages while Python computes:

- ``own thread``: mpicoll's background thread (needs MPI_THREAD_MULTIPLE);
- ``own test``: nobody, but the computation stops now and then to call `Test`;
- ``own wait``: nobody; what is not there when the computation ends is waited for;
- ``builtin``: MPI's own `Iallreduce`, with and without calls of `Test`.

``hidden = 1 - (total - compute) / communicate``, where `compute` and `communicate` are measured alone, in
the same iterations. 1: communication was free. 0: as slow as one after the other. Negative: worse.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.bench.sizes import format_bytes, parse_sizes
from mpicoll.bench.timing import no_garbage_collection
from mpicoll.bench.world import start

CHUNKS = 32  # parts of a computation, between which `Test` may be called
Work = Callable[[], None]


def add_parser(verbs: Any) -> None:
    """Add the verb `hidden`."""
    parser = verbs.add_parser("hidden", help="how much of a nonblocking all-reduce hides behind computing")
    parser.add_argument("--sizes", default="64K,1M,16M", help="bytes (64K,1M,16M)")
    parser.add_argument("--iterations", type=int, default=30, help="of every mode (30)")
    parser.add_argument("--algorithm", default="auto", help="of the own all-reduce (auto)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the results as JSON, too")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    sizes = parse_sizes(args.sizes)
    world = start("multiple")
    if world.thread_level != "multiple":
        if world.first:
            print("this MPI does not offer MPI_THREAD_MULTIPLE: no background thread", file=sys.stderr)
        return 1
    rows = []
    for nbytes in sizes:
        for kind, chunk in (("holds the GIL", _python_chunk), ("releases the GIL", _numpy_chunk)):
            rows += measure(world.control, nbytes, chunk, kind, args.iterations, args.algorithm)
            if world.first:
                print(_text(rows[-5:]), flush=True)
    if world.first and args.output:
        facts = {"machine": world.machine, "mpi": world.library, "ranks": world.size, "rows": rows}
        Path(args.output).write_text(json.dumps(facts, indent=1) + "\n")
    return 0


def _python_chunk(amount: int) -> None:
    """Pure Python: holds the interpreter's lock throughout."""
    total = 0
    for i in range(amount):
        total += i & 3


_matrix = np.ones((64, 64))


def _numpy_chunk(amount: int) -> None:
    """NumPy on data in the cache: releases the lock inside every call."""
    for _ in range(amount):
        np.multiply(_matrix, 1.0000001, out=_matrix)


def _calibrated(chunk: Callable[[int], None], seconds: float) -> int:
    """The amount with which CHUNKS chunks take about `seconds`."""
    amount = 1
    while True:
        begin = time.perf_counter()
        chunk(amount)
        took = time.perf_counter() - begin
        if took > 1e-4:
            return max(1, int(amount * seconds / CHUNKS / took))
        amount *= 4


def measure(
    control: Any, nbytes: int, chunk: Callable[[int], None], kind: str, iterations: int, algorithm: str
) -> list[dict[str, Any]]:
    """One row per mode: medians over iterations of the largest of all ranks' times, in seconds."""
    from mpi4py import MPI

    import mpicoll

    comms = {}
    for progress in ("thread", "test"):
        os.environ["MPICOLL_PROGRESS"] = progress
        comms[progress] = mpicoll.Comm(control)
    del os.environ["MPICOLL_PROGRESS"]
    plain, barrier = control.Dup(), comms["test"].Barrier_init()
    x, y = np.ones(nbytes // 8), np.zeros(nbytes // 8)
    options: dict[str, Any] = {"algorithm": algorithm}
    begin: dict[str, tuple[Callable[[], Any], bool]] = {
        "own thread": (lambda: comms["thread"].Iallreduce(x, y, **options), False),
        "own test": (lambda: comms["test"].Iallreduce(x, y, **options), True),
        "own wait": (lambda: comms["test"].Iallreduce(x, y, **options), False),
        "builtin test": (lambda: plain.Iallreduce(x, y), True),
        "builtin wait": (lambda: plain.Iallreduce(x, y), False),
    }
    alone = _median(control, [_timed(barrier, lambda: begin["own wait"][0]().Wait()) for _ in range(8)])
    amount = int(control.bcast(_calibrated(chunk, alone), root=0))

    def compute(test: Callable[[], Any] | None = None) -> None:
        for _ in range(CHUNKS):
            chunk(amount)
            if test is not None:
                test()

    def overlapped(mode: str) -> None:
        call, tests = begin[mode]
        request = call()
        compute(request.Test if tests else None)
        request.Wait()

    works: dict[tuple[str, str], Work] = {("", "compute"): compute}
    for mode in begin:
        works[mode, "communicate"] = lambda mode=mode: begin[mode][0]().Wait()  # type: ignore[misc]
        works[mode, "total"] = lambda mode=mode: overlapped(mode)  # type: ignore[misc]
    times: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    order = random.Random(1)
    with no_garbage_collection():
        for iteration in range(-3, iterations):
            for key in order.sample(list(works), len(works)):
                seconds = _timed(barrier, works[key])
                if iteration >= 0:
                    times[key].append(seconds)
    assert (y == control.size).all(), "the all-reduce was wrong"
    for comm in comms.values():
        comm.free_plans()
    barrier.Free()
    return _rows(control, {key: _largest(control, v, MPI) for key, v in times.items()}, begin, nbytes, kind)


def _rows(
    control: Any, times: dict[tuple[str, str], np.ndarray], modes: Any, nbytes: int, kind: str
) -> list[dict[str, Any]]:
    compute = times["", "compute"]
    rows = []
    for mode in modes:
        total, communicate = times[mode, "total"], times[mode, "communicate"]
        hidden = 1 - (total - compute) / np.median(communicate)
        low, middle, high = np.percentile(hidden, [25, 50, 75])
        rows.append(
            {
                "bytes": nbytes,
                "computation": kind,
                "mode": mode,
                "ranks": control.size,
                "compute": float(np.median(compute)),
                "communicate": float(np.median(communicate)),
                "total": float(np.median(total)),
                "hidden": float(middle),
                "hidden_p25": float(low),
                "hidden_p75": float(high),
            }
        )
    return rows


def _timed(barrier: Any, work: Work) -> float:
    barrier.run()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _largest(control: Any, seconds: list[float], mpi: Any) -> np.ndarray:
    mine = np.array(seconds)
    most = np.empty_like(mine)
    control.Allreduce(mine, most, mpi.MAX)
    return most


def _median(control: Any, seconds: list[float]) -> float:
    return float(control.bcast(float(np.median(seconds)), root=0))


def _text(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    lines = [
        f"{format_bytes(first['bytes'])}, {first['ranks']} ranks, a computation that {first['computation']}: "
        f"{first['compute'] * 1e6:.0f} µs alone"
    ]
    for row in rows:
        alone, together = row["communicate"] * 1e6, row["total"] * 1e6
        spread = f"({row['hidden_p25']:.0%} … {row['hidden_p75']:.0%})"
        lines.append(
            f"  {row['mode']:13s} communicates {alone:9.0f} µs, together {together:9.0f} µs, "
            f"hidden {row['hidden']:6.0%}  {spread}"
        )
    return "\n".join(lines)
