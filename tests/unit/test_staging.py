"""Programs for device memory: right with every wait that `staging` puts in, wrong without any one of them.

The device of `lockstep` is hostile: what is queued happens when somebody waits for it, and not before. So
each run begins with the caller's kernels still queued (they write the input, and read the result buffer),
and is followed at once by another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll import lockstep
from mpicoll.errors import ScheduleError
from mpicoll.plan import compile_program
from mpicoll.program import Await, Layout, Program, Sync
from mpicoll.staging import STAGINGS, staged

# (collective, algorithm, in place, channels): all collectives, every kind of program.
CASES = [
    ("allreduce", "ring", False, 1),
    ("allreduce", "ring", True, 3),
    ("allreduce", "circulant", False, 3),
    ("allreduce", "recursive_doubling", False, 2),
    ("reduce", "binomial", False, 2),
    ("reduce_scatter", "circulant", False, 2),
    ("reduce_scatter", "ring", True, 1),
    ("allgather", "circulant", False, 1),
    ("allgather", "ring", True, 2),
    ("alltoall", "bruck", False, 1),
    ("alltoall", "pairwise", True, 1),
    ("bcast", "binomial", True, 2),
    ("gather", "binomial", False, 1),
    ("scatter", "binomial", False, 1),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}{'-in_place' * c[2]}-{c[3]}")
every_staging = pytest.mark.parametrize("staging", STAGINGS)
COUNT = 7
#: See `lockstep.Job`: when the data of messages is read, and when copies to and from the host happen.
HOSTILITIES: list[dict[str, bool]] = [{}, {"early": True}, {"early": True, "hasty": True}]


@dataclass
class Setting:
    """The programs of all ranks, and what their buffers are like."""

    programs: list[Program]
    layouts: list[Layout]
    sends: list[Any]  # of counts (None: no buffer)
    recvs: list[Any]
    inputs: list[tuple[int, int]]  # (offset, length) of each rank's input, in its receive buffer if in place
    in_place: bool
    results: Any  # (all inputs) -> (offset, values) of each rank's result


def setting(case: tuple[str, str, bool, int], size: int, staging: str) -> Setting:
    name, algorithm, in_place, channels = case
    entry = mpicoll.get(name, algorithm)
    params = entry.resolve(size, {"root": size - 1} if entry.collective.rooted else {})
    made = _buffers(name, size, size - 1, in_place)
    programs = [
        staged(compile_program(entry, r, size, params, layout, 8, channels=channels, depth=2), staging)
        for r, layout in enumerate(made.layouts)
    ]
    return replace(made, programs=programs)


def _buffers(name: str, size: int, root: int, in_place: bool) -> Setting:
    n, ranks, every = COUNT, range(size), [COUNT] * size
    if name == "allreduce":
        layouts = [Layout(lambda p: n, lambda p: 0, lambda p: 0, in_place)] * size
        return Setting([], layouts, every, every, [(0, n)] * size, in_place, lambda x: [(0, sum(x))] * size)
    if name == "reduce":
        layouts = [Layout(lambda p: n, lambda p: 0, lambda p, r=r: 0 if r == root else None) for r in ranks]
        recvs = [n if r == root else None for r in ranks]
        return Setting([], layouts, every, recvs, [(0, n)] * size, in_place,
                       lambda x: [(0, sum(x)) if r == root else None for r in ranks])  # fmt: skip
    if name == "reduce_scatter":
        stash = (0, n * size) if in_place else None
        layouts = [Layout(lambda p: n, lambda p: p * n, lambda p, r=r: 0 if p == r else None, in_place, stash)
                   for r in ranks]  # fmt: skip
        whole = [n * size] * size
        return Setting([], layouts, whole, whole if in_place else every, [(0, n * size)] * size, in_place,
                       lambda x: [(0, sum(x)[r * n : (r + 1) * n]) for r in ranks])  # fmt: skip
    if name == "allgather":
        layouts = [Layout(lambda p: n, lambda p: p * n if in_place else 0, lambda p: p * n, in_place)] * size
        inputs = [(r * n if in_place else 0, n) for r in ranks]
        return Setting([], layouts, every, [n * size] * size, inputs, in_place,
                       lambda x: [(0, np.concatenate(x))] * size)  # fmt: skip
    if name == "alltoall":
        layouts = [
            Layout(lambda p: n, lambda p, r=r: p % size * n if p // size == r else None,
                   lambda p, r=r: p // size * n if p % size == r else None, in_place,
                   (0, n * size) if in_place else None)
            for r in ranks
        ]  # fmt: skip
        whole = [n * size] * size
        parts = lambda x, r: np.concatenate([a[r * n : (r + 1) * n] for a in x])  # noqa: E731
        return Setting([], layouts, whole, whole, [(0, n * size)] * size, in_place,
                       lambda x: [(0, parts(x, r)) for r in ranks])  # fmt: skip
    if name == "bcast":
        layouts = [Layout(lambda p: n, lambda p: 0, lambda p: 0, True)] * size
        inputs = [(0, n if r == root else 0) for r in ranks]
        return Setting([], layouts, [None] * size, every, inputs, True, lambda x: [(0, x[root])] * size)
    if name == "gather":
        layouts = [
            Layout(lambda p: n, lambda p: 0, lambda p, r=r: p * n if r == root else None) for r in ranks
        ]
        recvs = [n * size if r == root else None for r in ranks]
        return Setting([], layouts, every, recvs, [(0, n)] * size, False,
                       lambda x: [(0, np.concatenate(x)) if r == root else None for r in ranks])  # fmt: skip
    assert name == "scatter"
    layouts = [Layout(lambda p: n, lambda p, r=r: p * n if r == root else None,
                      lambda p, r=r: 0 if p == r else None) for r in ranks]  # fmt: skip
    sends = [n * size if r == root else None for r in ranks]
    inputs = [(0, n * size if r == root else 0) for r in ranks]
    return Setting([], layouts, sends, every, inputs, False,
                   lambda x: [(0, x[root][r * n : (r + 1) * n]) for r in ranks])  # fmt: skip


def run_twice(made: Setting, programs: list[Program], **hostility: bool) -> None:
    """Run with the caller's kernels queued before, between and after; compare all that comes out."""
    size = len(programs)
    in_place = made.in_place
    send = [None if n is None or in_place else np.full(n, -5) for n in made.sends]
    recv = [None if n is None else np.full(n, -6) for n in made.recvs]
    job = lockstep.Job(programs, send, recv, np.add, **hostility)
    seen: list[tuple[str, Any, Any]] = []  # what, copy, what it must be

    def look(what: str, rank: int, array: Any, expected: Any) -> None:
        copy = np.full_like(array, -7)
        job.devices[rank].queue(lambda: np.copyto(copy, array))
        seen.append((f"{what} on rank {rank}", copy, expected))

    for epoch in (1, 2):
        inputs = [np.arange(n) * (r + 3) + 100 * epoch + 7 * r for r, (_, n) in enumerate(made.inputs)]
        for r in range(size):
            device, old = job.devices[r], recv[r]
            if old is not None:
                device.queue(lambda old=old, e=epoch: old.fill(-10 * e))
                look("what was there before", r, old, np.full_like(old, -10 * epoch))
            at, n = made.inputs[r]
            target = recv[r] if in_place else send[r]
            if n:
                device.queue(lambda t=target[at : at + n], x=inputs[r]: np.copyto(t, x))
        job.run()
        for r, result in enumerate(made.results(inputs)):
            if result is not None:
                at, expected = result
                look(f"result of run {epoch}", r, recv[r][at : at + len(expected)], expected)
            if send[r] is not None and made.inputs[r][1]:
                look(f"input after run {epoch}", r, send[r], inputs[r])
    for device in job.devices:
        device.synchronize()
    for what, copy, expected in seen:
        np.testing.assert_array_equal(copy, expected, what)


def mutants(programs: list[Program]) -> Iterator[tuple[str, list[Program]]]:
    """The programs with one wait fewer, for every wait."""
    for rank, program in enumerate(programs):
        for number, step in enumerate(program.steps):
            if isinstance(step, Sync | Await):
                kept = [i for i in range(len(program.steps)) if i != number]
                changed = replace(
                    program, steps=[program.steps[i] for i in kept], places=[program.places[i] for i in kept]
                )
                yield f"rank {rank} step {number} {step}", [*programs[:rank], changed, *programs[rank + 1 :]]


@every_case
@every_staging
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_right_with_all_waits(case: Any, staging: str, size: int) -> None:
    made = setting(case, size, staging)
    for hostility in HOSTILITIES:
        run_twice(made, made.programs, **hostility)


@every_case
@every_staging
@pytest.mark.parametrize("size", [2, 3, 4])
def test_wrong_without_any_one_wait(case: Any, staging: str, size: int) -> None:
    made = setting(case, size, staging)
    survivors = []
    for what, programs in mutants(made.programs):
        try:
            for hostility in HOSTILITIES:
                run_twice(made, programs, **hostility)
        except (AssertionError, ScheduleError):
            continue
        survivors.append(what)
    assert not survivors
