"""The timed loop, and what a timer costs. Everything here runs on every rank."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

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


def shuffles(contenders: int, seed: int) -> Iterator[list[int]]:
    """For each iteration, in which order the contenders run: shuffled, the same on all ranks, endless."""
    rng = random.Random(seed)
    while True:
        yield rng.sample(range(contenders), contenders)


def orders(contenders: int, iterations: int, seed: int) -> list[list[int]]:
    """The first `iterations` of `shuffles`."""
    return list(itertools.islice(shuffles(contenders, seed), iterations))


def batched(call: Call, number: int) -> Call:
    """`number` calls in one, for `--batch`: back to back, without a meeting of the ranks between them."""
    if number == 1:
        return call

    def several() -> None:
        for _ in range(number):
            call()

    return several


class Times(NamedTuple):
    """What one rank has read off its clock; iterations × contenders, in seconds."""

    seconds: np.ndarray  # from begin to end of each call
    begins: np.ndarray  # the clock itself when each call began


def measure(
    sets: Sequence[Sequence[Call]],
    meet: Call,
    sequence: Sequence[Sequence[int]],
    *,
    prime: bool,
    evict: Call | None = None,
    first_set: int = 0,
) -> Times:
    """Time every contender once per iteration, in the order that `sequence` says.

    `sets` holds the contenders' calls, once for every set of buffers; each timed call takes the next set.
    Before each call all ranks `meet`; what is timed is the call alone. With `prime`, the contender has run
    once more just before, on the set that was used last: else it would find the code and data of the others
    in the caches, and contenders that have much in common would gain from each other. `evict` comes before
    that, and empties the caches.
    """
    seconds = np.zeros((len(sequence), len(sets[0])))
    begins = np.zeros_like(seconds)
    seconds[:] = begins[:] = 0.0  # touched now, so that no page fault comes later
    now, turn = clock, first_set
    for row, order in enumerate(sequence):
        for index in order:
            call, warm = sets[turn][index], sets[turn - 1][index]
            turn = (turn + 1) % len(sets)
            if evict is not None:
                evict()
            if prime:
                warm()
            meet()
            start = now()
            call()
            end = now()
            seconds[row, index] = end - start
            begins[row, index] = start
    return Times(seconds, begins)


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
