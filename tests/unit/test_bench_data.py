"""Test data is exact, differs by rank and place, and wrong results of any kind are found in it."""

import numpy as np
import pytest

from mpicoll.bench import data
from mpicoll.bench.cases import RECIPES, Case, expand
from mpicoll.bench.spec import make_spec
from mpicoll.bench.workload import Workload
from mpicoll.errors import ArgumentError

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "int32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
DEFINED = [(op, t) for op in data.FOLDS for t in DTYPES if data.undefined(op, np.dtype(t)) is None]


@pytest.mark.parametrize(("op", "dtype"), DEFINED)
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_the_combination_is_exact_in_any_order(op, dtype, size):
    """Folded in the datatype itself, forwards, backwards and as a tree: equal to the closed form."""
    dtype = np.dtype(dtype)
    tables = [data.table(op, dtype, rank, size, 3) for rank in range(size)]
    expected = data.combined(op, dtype, size, 3)
    assert expected.dtype == dtype

    def tree(parts):
        if len(parts) == 1:
            return parts[0]
        half = len(parts) // 2
        return data.FOLDS[op](tree(parts[:half]), tree(parts[half:])).astype(dtype)

    assert np.array_equal(tree(tables), expected)
    assert np.array_equal(tree(tables[::-1]), expected)
    forwards = tables[0]
    for one in tables[1:]:
        forwards = data.FOLDS[op](forwards, one).astype(dtype)
    assert np.array_equal(forwards, expected)


@pytest.mark.parametrize(("dtype", "size"), [("int8", 1000), ("float16", 5000), ("uint8", 300)])
def test_sums_stay_exact_with_more_ranks_than_the_type_can_count(dtype, size):
    dtype = np.dtype(dtype)
    exact = sum(data.table("sum", dtype, rank, size, 1).astype(np.int64) for rank in range(size))
    assert exact.max() <= data.exact_limit(dtype)
    assert np.array_equal(exact.astype(dtype), data.combined("sum", dtype, size, 1))


@pytest.mark.parametrize(("op", "dtype"), DEFINED)
def test_every_rank_matters(op, dtype):
    """Leaving any one rank out changes the result somewhere."""
    dtype, size = np.dtype(dtype), 5
    expected = data.combined(op, dtype, size, 2)
    tables = [data.table(op, dtype, rank, size, 2) for rank in range(size)]
    for left_out in range(size):
        rest = [t for rank, t in enumerate(tables) if rank != left_out]
        found = rest[0]
        for one in rest[1:]:
            found = data.FOLDS[op](found, one).astype(dtype)
        assert not np.array_equal(found, expected)


def test_elements_are_the_same_however_the_vector_is_cut():
    table = data.table("sum", np.dtype("int32"), 1, 4, 0)
    whole = data.elements(table, 0, 5000)
    pieces = [data.elements(table, start, 700) for start in range(0, 4900, 700)]
    assert np.array_equal(np.concatenate(pieces), whole[:4900])
    assert data.elements(table, 99, 0).size == 0
    target = np.zeros(3_000_000, np.int32)
    data.fill(target, table, 17)
    assert np.array_equal(target[2_500_000:2_500_100], data.elements(table, 2_500_017, 100))


@pytest.mark.parametrize("shift", [1, 16, 256, 1009, 4096, 65536])
def test_a_misplaced_block_is_seen(shift):
    table = data.table("sum", np.dtype("float32"), 0, 2, 0)
    assert (data.elements(table, 0, 100) != data.elements(table, shift, 100)).sum() > 50


@pytest.mark.parametrize("dtype", DTYPES)
def test_filled_wrong_is_wrong_everywhere(dtype):
    table = data.table("", np.dtype(dtype), 0, 2, 0)
    target = np.zeros(2500, dtype)
    data.fill_wrong(target, table, 5)
    assert (target != data.elements(table, 5, 2500)).all()


def test_undefined_operations_have_a_reason():
    assert "LAND on float32" in data.undefined("land", np.dtype("float32"))
    assert "MAX on complex64" in data.undefined("max", np.dtype("complex64"))
    assert "unknown operation" in data.undefined("mean", np.dtype("float32"))
    assert data.undefined("", np.dtype("float32")) is None


def run_in_process(case):
    """Every rank's workload after a perfect collective, done by looking at all buffers at once."""
    works = [Workload(case, rank) for rank in range(case.ranks)]
    for work in works:
        work.refresh(epoch=7)
    assert all(work.problem() for work in works if work.recvs and not (work.sends and work.recipe.in_place))
    inputs = [work.send.array.copy() for work in works]
    n, size = case.count, case.ranks
    for rank, work in enumerate(works):
        out = work.recv.array
        if case.collective in ("allreduce", "reduce") and out.size:
            out[:] = sum(inputs)
        elif case.collective == "reduce_scatter":
            out[:] = sum(inputs)[rank * n : (rank + 1) * n]
        elif case.collective in ("allgather", "gather") and out.size:
            out[:] = np.concatenate(inputs)
        elif case.collective == "bcast":
            out[:] = inputs[case.root]
        elif case.collective == "scatter":
            out[:] = inputs[case.root][rank * n : (rank + 1) * n]
        elif case.collective == "alltoall":
            out[:] = np.concatenate([inputs[peer][rank * n : (rank + 1) * n] for peer in range(size)])
    return works


def case_of(name, count=13, ranks=4, root=1, dtype="float32"):
    reduces = name in ("allreduce", "reduce", "reduce_scatter")
    return Case(name, dtype, "sum" if reduces else "", root, count, ranks)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("count", [0, 1, 13, 2000])
def test_a_right_result_passes_in_every_collective(name, count):
    for work in run_in_process(case_of(name, count)) if count else []:
        assert work.problem() is None
    if not count:
        work = Workload(case_of(name, 0), 0)
        work.refresh(1)
        assert work.problem() is None


def spoil_drop_and_double(works):
    """Rank 2's contribution left out, rank 0's counted twice: the total weight is right."""
    wrong = works[0].recv.array - works[2].send.array + works[0].send.array
    for work in works:
        work.recv.array[:] = wrong
    return "element"


def spoil_half(works):
    works[3].recv.array[5] += 0.5
    return "rank 3 element 5: expected"


def spoil_one_element(works):
    works[1].recv.array[-1] = 0
    return "rank 1 element 12"


def spoil_outside(works):
    works[0].recv.after[0] = 0
    return "outside of the buffer"


def spoil_input(works):
    works[2].send.array[0] += 1
    return "send buffer was changed"


@pytest.mark.parametrize(
    "spoil", [spoil_drop_and_double, spoil_half, spoil_one_element, spoil_outside, spoil_input]
)
def test_a_spoilt_all_reduce_is_found(spoil):
    works = run_in_process(case_of("allreduce"))
    words = spoil(works)
    assert words in " ".join(filter(None, (work.problem() for work in works)))


def test_new_input_makes_an_old_result_wrong():
    """A collective that does nothing the second time cannot pass on what it left the first time."""
    works = run_in_process(case_of("allreduce"))
    kept = works[0].recv.array.copy()
    works[0].refresh(epoch=8)
    works[0].recv.array[:] = kept
    assert works[0].problem() is not None


def test_sizes_mean_what_osu_prints():
    spec = make_spec({"collective": "allreduce,allgather,reduce_scatter,alltoall", "sizes": "1024"})
    found = {case.collective: (case.count, case.msg_bytes, case.total_bytes) for case in expand(spec, 4)}
    assert found == {
        "allreduce": (256, 1024, 1024),
        "allgather": (256, 1024, 4096),
        "reduce_scatter": (64, 1024, 1024),
        "alltoall": (256, 1024, 4096),
    }


def test_sizes_round_down_to_whole_elements_without_repeats():
    spec = make_spec({"sizes": "0,1,4,9,12", "dtype": "float64"})
    assert [case.count for case in expand(spec, 3)] == [0, 1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"collective": "allreduc"}, "unknown collective"),
        ({"collective": "barrier"}, "cannot measure barrier yet"),
        ({"dtype": "float31"}, "unknown dtype"),
        ({"dtype": "str"}, "unknown dtype"),
        ({"op": "mean"}, "unknown operation"),
        ({"collective": "bcast", "root": 4}, "root 4 does not exist"),
    ],
)
def test_impossible_cases_are_refused(flags, words):
    with pytest.raises(ArgumentError, match=words):
        expand(make_spec(flags), 4)


def test_buffers_of_an_undefined_combination_can_be_made():
    """A sweep of datatypes and operations meets them, and records them as unsupported."""
    for dtype, op in (("bool", "prod"), ("float32", "band"), ("complex64", "max"), ("float64", "lxor")):
        assert data.undefined(op, np.dtype(dtype))
        Workload(Case("allreduce", dtype, op, 0, 3, 3), 0).refresh(1)
