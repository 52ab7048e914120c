"""All-reduce on real MPI: every algorithm, engine, count, datatype and operation, on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll

from .support import (
    DTYPES,
    ENGINES,
    OPS,
    WORLD,
    Guarded,
    allreduce_names,
    answer,
    counts,
    equal,
    same_everywhere,
    values,
    world,
)

SIZE, RANK = WORLD.size, WORLD.rank
both_engines = pytest.mark.parametrize("engine", ENGINES)


def supported(algorithm: str) -> bool:
    """Whether the algorithm serves this number of ranks (a refusal is a result, not a failure)."""
    entry = mpicoll.get("allreduce", algorithm)
    params = {"nodes": (0,) * SIZE} if entry.hierarchical else {}
    return entry.refusal(SIZE, params) is None


@both_engines
@pytest.mark.parametrize("algorithm", allreduce_names())
def test_result_is_exact_for_every_count(algorithm: str, engine: str) -> None:
    comm = world(engine)
    if not supported(algorithm):
        with pytest.raises(mpicoll.Unsupported):
            comm.Allreduce(np.zeros(3), np.zeros(3), algorithm=algorithm)
        return
    for number, count in enumerate(counts(SIZE)):
        for channels, depth in [((1, 1), (3, 2))[number % 2]]:
            source, result = Guarded(values(RANK, count)), Guarded(np.full(count, 77, "f"))
            plan = comm.Allreduce_init(
                source.array, result.array, algorithm=algorithm, channels=channels, depth=depth
            )
            for _ in range(2):  # a plan runs again and again on new values
                plan()
                equal(result.array, answer(SIZE, count))
                result.array[...] = 77
            plan.Free()
            equal(source.array, values(RANK, count))
            source.check()
            result.check()


@both_engines
@pytest.mark.parametrize("algorithm", allreduce_names())
def test_in_place_equals_out_of_place(algorithm: str, engine: str) -> None:
    comm = world(engine)
    if not supported(algorithm):
        pytest.skip(f"{algorithm} does not serve {SIZE} ranks")
    for count in (0, 1, SIZE + 1, 5000):
        for source_is_same_object in (False, True):
            buffer = Guarded(values(RANK, count))
            source = buffer.array if source_is_same_object else MPI.IN_PLACE
            comm.Allreduce(source, buffer.array, algorithm=algorithm, channels=2)
            equal(buffer.array, answer(SIZE, count))
            buffer.check()


@both_engines
def test_every_operation_on_every_datatype(engine: str) -> None:
    comm = world(engine)
    count = 2 * SIZE + 1
    both = ("ring", "recursive_doubling")
    for turn, dtype in enumerate(DTYPES):
        for op in OPS[dtype]:
            for algorithm in both if SIZE <= 4 else both[turn % 2 :][:1]:  # the kernels do not know the size
                result = Guarded(np.zeros(count, dtype))
                source = values(RANK, count, dtype, op)
                comm.Allreduce(source, result.array, getattr(MPI, op.upper()), algorithm=algorithm)
                expected = answer(SIZE, count, dtype, op)
                equal(result.array, expected, f"{op} on {dtype}, {algorithm}")
                result.check()


@both_engines
@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "circulant"])
@pytest.mark.parametrize("op", [MPI.MAXLOC, MPI.MINLOC], ids=["maxloc", "minloc"])
def test_maxloc_and_minloc_find_value_and_rank(algorithm: str, op: MPI.Op, engine: str) -> None:
    comm = world(engine)
    count = SIZE + 1
    for code, datatype in (("d", MPI.DOUBLE_INT), ("f", MPI.FLOAT_INT), ("i", MPI.TWOINT)):
        pairs = np.zeros(count, np.dtype([("value", code), ("index", "i")], align=True))
        table = np.array([[(r * 5 + i * 3) % (SIZE + 2) for i in range(count)] for r in range(SIZE)])
        pairs["value"], pairs["index"] = table[RANK], RANK
        best = table.argmax(0) if op == MPI.MAXLOC else table.argmin(0)
        for spec in ([pairs, datatype], pairs):
            result = np.zeros_like(pairs)
            target = [result, datatype] if isinstance(spec, list) else result
            comm.Allreduce(spec, target, op, algorithm=algorithm)
            equal(result["index"], best)
            equal(result["value"], table[best, range(count)])


@both_engines
@pytest.mark.parametrize("algorithm", allreduce_names(ordered=True))
def test_user_operation_that_does_not_commute(algorithm: str, engine: str) -> None:
    """Composition of the maps x -> a·x + b: associative, and the order of ranks shows in the result."""

    def compose(left: MPI.buffer, right: MPI.buffer, datatype: MPI.Datatype) -> None:
        first, second = (np.frombuffer(b, np.int64).reshape(-1, 2) for b in (left, right))
        second[:, 1] += second[:, 0] * first[:, 1]
        second[:, 0] *= first[:, 0]

    comm = world(engine)
    if not supported(algorithm):
        pytest.skip(f"{algorithm} does not serve {SIZE} ranks")
    op, pair = MPI.Op.Create(compose, commute=False), MPI.INT64_T.Create_contiguous(2).Commit()
    maps = np.array([[[1 + (r + i) % 3, r * i - 2] for i in range(SIZE + 2)] for r in range(SIZE)])
    expected = maps[0].copy()
    for later in maps[1:]:
        expected = np.stack(
            [expected[:, 0] * later[:, 0], later[:, 1] + later[:, 0] * expected[:, 1]], axis=1
        )
    for channels in (1, 2):
        result = np.zeros_like(maps[RANK])
        comm.Allreduce([maps[RANK], pair], [result, pair], op, algorithm=algorithm, channels=channels)
        equal(result, expected)
    result = np.zeros_like(maps[RANK])
    comm.Allreduce([maps[RANK], pair], [result, pair], op)  # auto takes an ordered one
    equal(result, expected)
    comm.free_plans()
    op.Free()
    pair.Free()


@both_engines
def test_user_operation_that_does_not_commute_is_refused_where_order_is_lost(engine: str) -> None:
    op = MPI.Op.Create(lambda left, right, datatype: None, commute=False)
    with pytest.raises(mpicoll.Unsupported, match="recursive_doubling"):
        world(engine).Allreduce(np.zeros(4), np.zeros(4), op, algorithm="ring")
    op.Free()


@both_engines
@pytest.mark.parametrize("algorithm", allreduce_names())
def test_all_ranks_hold_the_same_bytes(algorithm: str, engine: str) -> None:
    """Rounding, NaN and signed zeros: whatever the order of combination, it is the same everywhere."""
    comm = world(engine)
    if not supported(algorithm):
        pytest.skip(f"{algorithm} does not serve {SIZE} ranks")
    random = np.random.default_rng(RANK)
    for dtype in "efdF":
        x = (random.standard_normal(500) * 10.0 ** random.integers(-3, 3, 500)).astype(dtype)
        y = np.empty_like(x)
        comm.Allreduce(x, y, algorithm=algorithm)
        same_everywhere(y)
    for dtype in "ed" if SIZE > 4 else "efdg":
        special = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1.0], dtype)
        x = special[random.integers(0, len(special), 201)]
        for op in (MPI.MAX, MPI.MIN, MPI.SUM):
            y = np.zeros_like(x)
            with np.errstate(invalid="ignore"):
                comm.Allreduce(x, y, op, algorithm=algorithm)
            same_everywhere(y)
            if op != MPI.SUM:
                present = np.any([np.isnan(a) for a in WORLD.allgather(x)], axis=0)
                equal(np.isnan(y), present, "a NaN must not get lost")


def test_both_engines_give_the_same_bytes() -> None:
    if len(ENGINES) < 2:
        pytest.skip("the native engine is not built")
    random = np.random.default_rng(RANK)
    for dtype in "efdgFD":
        x = random.standard_normal(257).astype(dtype)
        for op in (MPI.SUM, MPI.PROD):
            results = []
            for engine in ENGINES:
                y = np.zeros_like(x)
                world(engine).Allreduce(x, y, op, algorithm="ring")
                results.append(y.tobytes() if dtype != "g" else y.astype("d").tobytes())
            assert results[0] == results[1], f"{op} on {dtype}"


@both_engines
def test_large_vector_uses_many_channels_and_is_exact(engine: str) -> None:
    comm = world(engine)
    count = (1 << 20) + 13
    x, y = values(RANK, count), Guarded(np.zeros(count, "f"))
    for algorithm in ("ring", "circulant"):
        y.array[...] = 0
        comm.Allreduce(x, y.array, algorithm=algorithm, channels=7)
        equal(y.array, answer(SIZE, count))
        y.check()
    comm.free_plans()


@both_engines
def test_buffer_specifications_mean_what_mpi4py_says(engine: str) -> None:
    comm = world(engine)
    x, expected = values(RANK, 12, "d"), answer(SIZE, 12, "d")
    y = np.full(12, 5.0)
    comm.Allreduce([x, 4], [y, 4, MPI.DOUBLE])
    equal(y, [*expected[:4], *[5.0] * 8])
    y[:] = 5
    comm.Allreduce([x, (4, 8), MPI.DOUBLE], [y, (4, 2), "d"])
    equal(y, [5, 5, *expected[8:], *[5.0] * 6])
    raw = bytearray(12 * 8)
    comm.Allreduce([x, MPI.DOUBLE], [raw, MPI.DOUBLE])
    equal(np.frombuffer(raw), expected)
    matrix = np.asfortranarray(x.reshape(3, 4))
    out = np.zeros((3, 4), order="F")
    comm.Allreduce(matrix, out)
    equal(out, expected.reshape(3, 4))
