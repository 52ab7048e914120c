"""Thousands of overlapped steps: does anything grow? Prints a CSV row for each rank at every 500th step.

    mpirun -n 2 python results/overlap/steps.py LIBRARY [STEPS] >> steps.csv

Resident memory, threads, open file descriptors, requests and plans that were started and are not over, and
plans that exist. Four reducers take turns: with copies, with views, with a background thread and without; in
every 50 steps one of them, in turn, is freed and made anew.
"""

import gc
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll import requests, runner

SHAPES = {"w1": (64, 64), "b1": (64,), "w2": (64, 64), "b2": (64,), "w3": (64, 8)}
WAYS = [{"views": v, "background": b} for v in (False, True) for b in (True, False)]


def make(way: int) -> mpicoll.GradientReducer:
    """One of the reducers, new. Collective."""
    gradients = {name: np.zeros(shape, "f") for name, shape in SHAPES.items()}
    return mpicoll.GradientReducer(MPI.COMM_WORLD, gradients, bucket_bytes=4096, **WAYS[way])


def step(reducer: mpicoll.GradientReducer, value: float) -> None:
    """All ranks have the same gradients, and so has their average."""
    for name in reversed(SHAPES):
        reducer.gradients[name][...] = value
        reducer.ready(name)
    reducer.wait()
    assert all((gradient == value).all() for gradient in reducer.gradients.values())


def facts() -> dict[str, int]:
    """Of this process."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "requests": len(requests._open) + len(runner._started),
        "plans": sum(isinstance(one, runner.Plan) for one in gc.get_objects()),
    }


def main() -> None:
    """Take the steps."""
    library, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    comm = MPI.COMM_WORLD
    reducers = [make(way) for way in range(len(WAYS))]
    for number in range(steps + 1):
        way = number % len(reducers)
        if number % 50 == 9:
            old = number // 50 % len(reducers)
            reducers[old].free()
            reducers[old] = make(old)
        step(reducers[way], float(number))
        if number % 500 == 0:
            everyone = comm.gather(facts())
            for rank, found in enumerate(everyone or ()):
                print(library, comm.size, rank, number, *found.values(), sep=",", flush=True)
    for reducer in reducers:
        reducer.free()


main()
