"""The timed loop, and what a timer costs. Everything here runs on every rank."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Call = Callable[[], Any]
clock = time.perf_counter


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Within: no garbage collector, so that it strikes nobody's measurement; collected before."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def orders(contenders: int, iterations: int, seed: int) -> list[list[int]]:
    """For each iteration, in which order the contenders run: shuffled, the same on all ranks."""
    rng = random.Random(seed)
    return [rng.sample(range(contenders), contenders) for _ in range(iterations)]


def measure(
    calls: Sequence[Call], barrier: Call, sequence: Sequence[Sequence[int]], *, prime: bool
) -> np.ndarray:
    """Seconds of this rank, one row per iteration and one column per contender.

    Before each call all ranks meet in `barrier`; what is timed is the call alone. With `prime`, the
    contender has run once more just before: else it would find the code and data of the others in the
    caches, and contenders that have much in common would gain from each other.
    """
    seconds = np.zeros((len(sequence), len(calls)))
    seconds[:] = 0.0  # touched now, so that no page fault comes later
    now = clock
    for row, order in zip(seconds, sequence, strict=True):
        for index in order:
            call = calls[index]
            if prime:
                call()
            barrier()
            start = now()
            call()
            row[index] = now() - start
    return seconds


def timer_facts(samples: int = 20_000) -> dict[str, float]:
    """Resolution of the clock (smallest step seen) and cost of reading it, in seconds."""
    now = clock
    reads = [now() for _ in range(samples)]
    steps = [b - a for a, b in itertools.pairwise(reads) if b > a]
    return {
        "timer_resolution": min([*steps, time.get_clock_info("perf_counter").resolution]),
        "timer_call": statistics.median(steps) if steps else 0.0,
    }


def cost_of(call: Call, budget: float = 0.1, most: int = 20_000) -> tuple[float, int]:
    """Median seconds of one call, timed one by one, and how many were timed within `budget` seconds."""
    now = clock
    seconds: list[float] = []
    end = now() + budget
    while len(seconds) < most and now() < end:
        start = now()
        call()
        seconds.append(now() - start)
    return statistics.median(seconds), len(seconds)
