"""What the harness and the engines themselves cost: the floor under every number of a sweep."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpicoll.bench.timing import clock, cost_of, measure, no_garbage_collection, orders, timer_facts
from mpicoll.bench.world import World
from mpicoll.registry import algorithm, unregister
from mpicoll.schedule import Schedule, exchange

_SHORT, _LONG = 4, 36  # rounds of the two schedules whose difference gives the cost of a round
_BUDGET = 0.3  # seconds for the measurement of rounds

EXPLAINED = {
    "timer_resolution": "smallest step of the clock",
    "timer_call": "reading the clock once: part of every measured time",
    "empty_call": "calling a Python function that does nothing, timer included",
    "builtin_empty_call": "MPI's Allreduce of nothing through mpi4py on one rank: the least a call costs",
    "builtin_call": "MPI's Allreduce of 4 B through mpi4py on one rank: call and copy, no message",
    "persistent_call": "the same by MPI's persistent request",
    "empty_plan": "a plan without rounds on one rank: what a call of ours costs at least",
    "round": "one more round of token messages between neighbours: engine and message latency together",
}


def engines() -> list[str]:
    """The engines that can run here."""
    import mpicoll

    return ["native", "python"] if mpicoll.native_status()[0] else ["python"]


def measure_overheads(world: World) -> list[dict[str, Any]]:
    """One row per overhead: what, engine, seconds (the largest of all ranks), meaning. Collective."""
    with no_garbage_collection():
        facts: list[tuple[str, str, float, int]] = [
            (what, "", seconds, 20_000) for what, seconds in timer_facts().items()
        ]
        facts += [(what, engine, *cost_of(call, budget=0.05)) for what, engine, call in _single_calls()]
        facts += _rounds(world)
    return [
        {"what": what, "engine": engine or None, "seconds": world.largest(seconds), "samples": samples,
         "meaning": EXPLAINED[what]}
        for what, engine, seconds, samples in facts
    ]  # fmt: skip


def _single_calls() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Calls that need no other rank."""
    from mpi4py import MPI

    import mpicoll

    send, recv = np.ones(1, np.float32), np.zeros(1, np.float32)
    nothing, nowhere = np.ones(0, np.float32), np.zeros(0, np.float32)
    alone = MPI.COMM_SELF
    yield "empty_call", "", lambda: None
    yield "builtin_empty_call", "", lambda: alone.Allreduce(nothing, nowhere, MPI.SUM)
    yield "builtin_call", "", lambda: alone.Allreduce(send, recv, MPI.SUM)
    request = alone.Allreduce_init(send, recv, MPI.SUM)

    def persistent() -> None:
        request.Start()
        request.Wait()

    yield "persistent_call", "", persistent
    request.Free()
    own: Any = mpicoll.Comm(alone)
    for engine in engines():
        plan = own.Allreduce_init(MPI.IN_PLACE, recv, MPI.SUM, algorithm="ring", engine=engine)
        yield "empty_plan", engine, plan.run
        plan.free()
    own.Free()


@contextmanager
def _token_rings() -> Iterator[list[str]]:
    """Two schedules for measurement only, registered while within: tokens go around a ring."""

    def ring(rounds: int) -> str:
        def generate(rank: int, size: int) -> Schedule:
            """Pass a token to the right, again and again."""
            for _ in range(rounds if size > 1 else 0):
                yield exchange((rank + 1) % size, (), (), source=(rank - 1) % size)

        name = f"token_ring_{rounds}"
        algorithm("barrier", blocks=lambda size, params: 1, name=name)(generate)
        return name

    names = [ring(_SHORT), ring(_LONG)]
    try:
        yield names
    finally:
        for name in names:
            unregister("barrier", name)


def _rounds(world: World) -> list[tuple[str, str, float, int]]:
    """Seconds per round of each engine: the slope between a short and a long schedule."""
    if world.size == 1:
        return []
    import mpicoll

    own: Any = mpicoll.Comm(world.control)
    with _token_rings() as names:
        plans = [own.Barrier_init(algorithm=name, engine=engine) for engine in engines() for name in names]
    barrier = own.Barrier_init()
    calls = [plan.run for plan in plans]
    start = clock()
    measure([calls], barrier.run, orders(len(calls), 2, 0), prime=False)
    iterations = max(5, min(500, int(_BUDGET / world.largest((clock() - start) / 2))))
    seconds = measure([calls], barrier.run, orders(len(calls), iterations, 1), prime=True).seconds
    medians = [statistics.median(column) for column in seconds.T.tolist()]
    for plan in (*plans, barrier):
        plan.free()
    own.Free()
    return [
        ("round", engine, (medians[2 * i + 1] - medians[2 * i]) / (_LONG - _SHORT), iterations)
        for i, engine in enumerate(engines())
    ]
