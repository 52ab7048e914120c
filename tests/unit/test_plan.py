"""Programs of all ranks run against each other in one process: every algorithm, count and layout.

`lockstep` is a hostile MPI: no buffering, garbage in the memory of messages on their way. What is exact
here needs no luck under a real one.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll import lockstep
from mpicoll.plan import compile_program
from mpicoll.program import LANDING, RECV, SEND, Combine, Copy, Layout, Mark, Start, vector_layout

SIZES = [1, 2, 3, 4, 5, 8, 9]
STRIPES = [(1, 1), (3, 2)]  # channels, depth


def entries(*collectives: str) -> Any:
    return pytest.mark.parametrize("entry", [a for c in collectives for a in mpicoll.catalogue(c)], ids=str)


def usable(entry: mpicoll.registry.Algorithm, size: int) -> dict[str, Any] | None:
    """Parameters with which the algorithm serves this size, or None."""
    params: dict[str, Any] = {}
    if entry.hierarchical:
        params["nodes"] = tuple(rank % 2 for rank in range(size))
    return None if entry.refusal(size, params) else params


def counts(size: int) -> list[int]:
    return sorted({0, 1, size - 1, size + 1, 2 * size + 1})


def inputs(size: int, count: int) -> list[np.ndarray]:
    return [(np.arange(count) * (r + 3) + 7 * r) % 1000 for r in range(size)]


def programs(
    entry: mpicoll.registry.Algorithm,
    params: dict[str, Any],
    layouts: list[Layout],
    stripes: tuple[int, int],
    itemsize: int = 8,
) -> list[Any]:
    channels, depth = stripes
    size = len(layouts)
    resolved = entry.resolve(size, params)
    return [
        compile_program(entry, rank, size, resolved, layout, itemsize, channels=channels, depth=depth)
        for rank, layout in enumerate(layouts)
    ]


@entries("allreduce")
@pytest.mark.parametrize("size", SIZES)
def test_allreduce(entry: Any, size: int) -> None:
    params = usable(entry, size)
    if params is None:
        return  # refused, as test_registry shows
    for count in counts(size):
        x = inputs(size, count)
        for stripes in STRIPES:
            for in_place in (False, True):
                layouts = [vector_layout(count, in_place=in_place)] * size
                y = [a.copy() if in_place else np.full_like(a, -1) for a in x]
                sends = [None] * size if in_place else [a.copy() for a in x]
                lockstep.run(programs(entry, params, layouts, stripes), sends, y, np.add)
                for rank in range(size):
                    np.testing.assert_array_equal(y[rank], sum(x))
                    if not in_place:
                        np.testing.assert_array_equal(sends[rank], x[rank])


@entries("bcast", "reduce")
@pytest.mark.parametrize("size", SIZES)
def test_rooted_vectors(entry: Any, size: int) -> None:
    params = usable(entry, size)
    if params is None:
        return  # refused, as test_registry shows
    for count in counts(size):
        x = inputs(size, count)
        for root in {0, size // 2, size - 1}:
            for stripes in STRIPES:
                if entry.collective.name == "bcast":
                    layouts = [vector_layout(count, in_place=True)] * size
                    y = [x[r].copy() if r == root else np.full(count, -1) for r in range(size)]
                    sends: list[Any] = [None] * size
                    expected = {r: x[root] for r in range(size)}
                else:
                    layouts = [vector_layout(count, target=r == root) for r in range(size)]
                    y = [np.full(count, -1) if r == root else None for r in range(size)]
                    sends, expected = x, {root: sum(x)}
                lockstep.run(programs(entry, {**params, "root": root}, layouts, stripes), sends, y, np.add)
                for rank, value in expected.items():
                    np.testing.assert_array_equal(y[rank], value)


@entries("reduce_scatter", "allgather")
@pytest.mark.parametrize("size", SIZES)
def test_parts_of_unequal_length(entry: Any, size: int) -> None:
    params = usable(entry, size)
    if params is None:
        return  # refused, as test_registry shows
    for lengths in ([3] * size, [0] * size, [(5 * r + 2) % 7 for r in range(size)]):
        offsets = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        if entry.collective.name == "reduce_scatter":
            x = inputs(size, offsets[-1])
            layouts = [
                Layout(lengths.__getitem__, offsets.__getitem__, lambda p, r=r: 0 if p == r else None)
                for r in range(size)
            ]
            y = [np.full(lengths[r], -1) for r in range(size)]
            expected = [sum(x)[offsets[r] : offsets[r + 1]] for r in range(size)]
        else:
            x = [inputs(size, n)[r] for r, n in enumerate(lengths)]
            layouts = [Layout(lengths.__getitem__, lambda p: 0, offsets.__getitem__)] * size
            y = [np.full(offsets[-1], -1) for _ in range(size)]
            expected = [np.concatenate(x)] * size
        for stripes in STRIPES:
            lockstep.run(programs(entry, params, layouts, stripes), x, y, np.add)
            for rank in range(size):
                np.testing.assert_array_equal(y[rank], expected[rank])


@entries("alltoall")
@pytest.mark.parametrize("size", SIZES)
def test_alltoall(entry: Any, size: int) -> None:
    params = usable(entry, size)
    if params is None:
        return  # refused, as test_registry shows
    for count in (0, 1, 5):
        table = np.arange(size * size * count).reshape(size, size, count)
        for in_place in (False, True):
            layouts = [
                Layout(
                    lambda p, n=count: n,
                    lambda p, r=r, n=count: p % size * n if p // size == r else None,
                    lambda p, r=r, n=count: p // size * n if p % size == r else None,
                    in_place=in_place,
                    stash=(0, size * count) if in_place else None,
                )
                for r in range(size)
            ]
            x = [table[r].reshape(-1).copy() for r in range(size)]
            y = [a.copy() if in_place else np.full_like(a, -1) for a in x]
            sends = [None] * size if in_place else x
            for stripes in STRIPES:
                out = [a.copy() for a in y]
                lockstep.run(programs(entry, params, layouts, stripes), sends, out)
                for rank in range(size):
                    np.testing.assert_array_equal(out[rank], table[:, rank].reshape(-1))


def test_large_scattered_messages_travel_run_by_run_and_small_ones_packed() -> None:
    entry = mpicoll.get("allreduce", "circulant")
    for count in (50, 500_000):
        size = 6
        progs = programs(entry, {}, [vector_layout(count)] * size, (1, 1))
        x, y = inputs(size, count), [np.zeros(count, int) for _ in range(size)]
        lockstep.run(progs, x, y, np.add)
        for rank in range(size):
            np.testing.assert_array_equal(y[rank], sum(x))
    few = len(programs(entry, {}, [vector_layout(50)] * 6, (1, 1))[1].messages)
    many = len(programs(entry, {}, [vector_layout(500_000)] * 6, (1, 1))[1].messages)
    assert few < many


def test_nothing_is_copied_before_the_first_message() -> None:
    """Copy elision: the first reduction reads the send buffer, and no step copies it."""
    program = programs(mpicoll.get("allreduce", "ring"), {}, [vector_layout(100)] * 4, (1, 1))[0]
    assert isinstance(program.steps[0], Start)
    assert not [step for step in program.steps if isinstance(step, Copy)]
    first = next(step for step in program.steps if isinstance(step, Combine))
    assert {first.left.space, first.right.space} == {LANDING, SEND}
    assert first.out.space == RECV


def test_lockstep_refuses_programs_that_cannot_end() -> None:
    entry = mpicoll.get("allreduce", "ring")
    progs = programs(entry, {}, [vector_layout(9)] * 3, (1, 1))
    broken = programs(entry, {}, [vector_layout(9)] * 3, (1, 1))
    broken[1].steps = broken[1].steps[:3]  # rank 1 leaves after its first round
    x, y = inputs(3, 9), [np.zeros(9, int) for _ in range(3)]
    with pytest.raises(mpicoll.ScheduleError, match=r"deadlock: rank \d in round \d"):
        lockstep.run([progs[0], broken[1], progs[2]], x, y, np.add)
    other = programs(entry, {}, [vector_layout(12)] * 3, (1, 1))
    with pytest.raises(mpicoll.ScheduleError, match="elements"):
        lockstep.run([progs[0], other[1], progs[2]], x, y, np.add)


def test_building_takes_milliseconds_per_hundred_rounds_at_1024_ranks() -> None:
    """A ring at P = 1024 has 2046 rounds. The limit is generous, so that no busy machine fails it."""
    entry = mpicoll.get("allreduce", "ring")
    began = time.process_time()
    program = compile_program(entry, 5, 1024, {}, vector_layout(1 << 20), 4)
    seconds = time.process_time() - began
    assert program.rounds == 2046
    assert seconds / program.rounds * 100 < 0.1


def test_offsets_beyond_four_gigabytes_are_exact() -> None:
    count = 2**33 + 5
    program = compile_program(mpicoll.get("allreduce", "ring"), 3, 4, {}, vector_layout(count), 4)
    regions = [m.region for m in program.messages]
    assert max(r.offset + r.length for r in regions) == count
    assert sum(r.length for r in regions if r.space == RECV) > 2**32


def test_marks_stand_where_the_stage_changes_and_only_where_times_are_wanted() -> None:
    entry = mpicoll.get("allreduce", "two_level")
    params = entry.resolve(4, {"nodes": (0, 0, 1, 1)})
    stripes = {"channels": 3, "depth": 2}
    plain = compile_program(entry, 0, 4, params, vector_layout(60), 8, **stripes)
    timed = compile_program(entry, 0, 4, params, vector_layout(60), 8, timed=True, **stripes)
    marks = [step.number for step in timed.steps if isinstance(step, Mark)]
    assert [step for step in timed.steps if not isinstance(step, Mark)] == plain.steps
    assert isinstance(timed.steps[0], Mark)
    assert isinstance(timed.steps[-1], Mark)
    assert marks == list(range(len(timed.stages) + 1))
    names = {step.stage for step in entry.schedule(0, 4, params)}
    assert set(timed.stages) == names
    assert len(names) == 3
    # Each of the steps between two marks belongs to a round of the stage that the first one begins.
    by_round = [step.stage for step in entry.schedule(0, 4, params)]
    stage = ""
    for step, (_, number) in zip(timed.steps, timed.places, strict=True):
        if isinstance(step, Mark):
            stage = [*timed.stages, "over"][step.number]
        else:
            assert by_round[number] == stage


def test_a_schedule_without_stages_is_timed_as_one() -> None:
    program = compile_program(mpicoll.get("allreduce", "ring"), 1, 3, {}, vector_layout(9), 8, timed=True)
    assert program.stages == ["all"]
