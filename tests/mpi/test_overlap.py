"""GradientReducer: the average on all ranks, bitwise alike; and every misuse is heard of by all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from devices import fake_device
from mpicoll.cost import uniform
from mpicoll.engine import PythonEngine

from .support import ENGINES, WORLD, same_everywhere, values

pytestmark = pytest.mark.ranks(1, 2, 3)  # the collectives below are tested on more
SIZE, RANK = WORLD.size, WORLD.rank
SHAPES = {"w1": (30, 7), "b1": (7,), "w2": (7, 200), "b2": (200,), "none": (0,), "w3": (200, 3), "scalar": ()}
THREAD = len(ENGINES) == 2 and MPI.Query_thread() == MPI.THREAD_MULTIPLE
# How messages move: (overlap, background, engine).
WAYS = {"blocking": (False, False, None), "python": (True, False, "python"), "test": (True, False, None)}
WAYS |= {"thread": (True, True, "native")} if THREAD else {}
ways = pytest.mark.parametrize("way", WAYS)


def gradient(rank: int, name: str, step: int = 0, dtype: str = "f") -> np.ndarray:
    """Small integers that depend on rank, name, index and step: their sums are exact."""
    shape = SHAPES[name]
    flat = values(rank + step, int(np.prod(shape)), dtype) + len(name) * step
    return flat.reshape(shape).astype(dtype)


def average(name: str, step: int = 0, dtype: str = "f") -> np.ndarray:
    """Of the undivided batch: the exact sum, divided once."""
    return (sum(gradient(rank, name, step, dtype) for rank in range(SIZE)) / SIZE).astype(dtype)


def make(way: str = "test", **options) -> mpicoll.GradientReducer:
    overlap, background, engine = WAYS[way]
    arrays = {name: np.zeros(shape, options.pop("dtype", "f")) for name, shape in SHAPES.items()}
    options = {"bucket_bytes": 600, "overlap": overlap, "background": background, "engine": engine} | options
    return mpicoll.GradientReducer(WORLD, arrays, **options)


def run_step(reducer: mpicoll.GradientReducer, step: int, dtype: str = "f") -> None:
    """A backward pass, and a check that its result is exact and the same everywhere."""
    for name in reversed(SHAPES):
        reducer.gradients[name][...] = gradient(RANK, name, step, dtype)
        reducer.ready(name)
    reducer.wait()
    for name in SHAPES:
        np.testing.assert_array_equal(reducer.gradients[name], average(name, step, dtype))
        same_everywhere(reducer.gradients[name])


@ways
@pytest.mark.parametrize("views", [False, True], ids=["copied", "views"])
@pytest.mark.parametrize("nbytes", [100, 600, 1 << 20])
def test_average_is_that_of_the_undivided_batch(way: str, views: bool, nbytes: int) -> None:
    with make(way, views=views, bucket_bytes=nbytes) as reducer:
        for step in range(3):
            run_step(reducer, step)


@pytest.mark.parametrize("algorithm", ["ring", "circulant", "binomial_tree"])
def test_any_algorithm(algorithm: str) -> None:
    with make(algorithm=algorithm) as reducer:
        run_step(reducer, 1)
        assert {plan.algorithm for plan in reducer._plans} == {algorithm}


@ways
def test_sum_of_integers(way: str) -> None:
    grads = {"a": np.full(5, RANK + 1, "i"), "b": np.full(9, 2 * RANK, "d")}
    with mpicoll.GradientReducer(WORLD, grads, average=False, background=WAYS[way][1]) as reducer:
        reducer.ready("b")
        reducer.ready("a")
        reducer.wait()
    assert (grads["a"] == SIZE * (SIZE + 1) // 2).all()
    assert (grads["b"] == SIZE * (SIZE - 1)).all()


def test_buckets_are_rebuilt_in_the_order_of_rank_0() -> None:
    """The ranks' orders differ, also later: that moves nobody's result."""
    names = list(SHAPES)
    with make("thread" if THREAD else "test") as reducer:
        assert reducer.order == tuple(reversed(names))
        for step in range(4):
            for name in np.random.default_rng((RANK, step)).permutation(names):
                reducer.gradients[name][...] = gradient(RANK, name, step)
                reducer.ready(name)
            reducer.wait()
            for name in names:
                np.testing.assert_array_equal(reducer.gradients[name], average(name, step))
        assert reducer.order == tuple(np.random.default_rng((0, 0)).permutation(names))


def test_first_bucket_is_smaller_and_large_gradients_are_split() -> None:
    arrays = {"first": np.zeros(1000, "f"), "b": np.zeros(40, "f"), "last": np.zeros(40, "f")}
    with mpicoll.GradientReducer(WORLD, arrays, bucket_bytes=1024) as reducer:
        assert [b.nbytes for b in reducer.buckets] == [160, 160, 1000, 1000, 1000, 1000]


@ways
@pytest.mark.parametrize("views", [False, True], ids=["copied", "views"])
def test_rows_leave_while_the_rest_is_computed(way: str, views: bool) -> None:
    """In another order on each rank."""
    rows = [slice(15), slice(15, 20), slice(20, None)]
    with make(way, views=views) as reducer:
        for step in range(3):
            for name in list(SHAPES)[1:]:
                reducer.gradients[name][...] = gradient(RANK, name, step)
                reducer.ready(name)
            launched = len(reducer._launched)
            for number in range(3):
                some = rows[(number + RANK + step) % 3]
                reducer.gradients["w1"][some] = gradient(RANK, "w1", step)[some]
                reducer.ready("w1", rows=some)
                if way != "blocking" and step and RANK + step == 3 and not number:
                    assert len(reducer._launched) == launched + 1, "15 of 30 rows are a bucket"
            reducer.wait()
            for name in SHAPES:
                np.testing.assert_array_equal(reducer.gradients[name], average(name, step))
                same_everywhere(reducer.gradients[name])


@pytest.mark.parametrize("wire", [None, "float16"])
def test_rows_from_different_arrays_go_back_to_where_they_came_from(wire: str | None) -> None:
    """And leave the other rows of those arrays alone."""
    rows = [slice(15), slice(15, 20), slice(20, None)]
    with make("test", bucket_bytes=1 << 20, wire_dtype=wire) as reducer:
        for name in list(SHAPES)[1:]:
            reducer.ready(name)
        given = [np.full(SHAPES["w1"], 77, "f") for _ in rows]
        for array, some in zip(given, rows, strict=True):
            array[some] = RANK * SIZE
            reducer.ready("w1", array, rows=some)
        reducer.wait()
    for array, some in zip(given, rows, strict=True):
        expected = np.full(SHAPES["w1"], 77, "f")
        expected[some] = SIZE * (SIZE - 1) // 2
        np.testing.assert_array_equal(array, expected)


def test_results_arrive_one_by_one() -> None:
    with make("test") as reducer:
        for name in SHAPES:
            reducer.gradients[name][...] = gradient(RANK, name)
            reducer.ready(name)
        seen = []
        for name in reducer.arriving():
            np.testing.assert_array_equal(reducer.gradients[name], average(name))
            seen.append(name)
        assert sorted(seen) == sorted(SHAPES)


def test_accumulation_without_synchronisation() -> None:
    with make("test") as reducer:
        run_step(reducer, 0)
        for name in SHAPES:
            reducer.gradients[name][...] = 0
        for step in (1, 2, 3):
            for name in reversed(SHAPES):
                reducer.gradients[name] += gradient(RANK, name, step)
                if step < 3:
                    with reducer.no_sync():
                        reducer.ready(name)
                        reducer.wait()
                else:
                    reducer.ready(name)
        reducer.wait()
        for name in SHAPES:
            total = sum(gradient(r, name, s).astype("d") for r in range(SIZE) for s in (1, 2, 3))
            np.testing.assert_array_equal(reducer.gradients[name], (total / SIZE).astype("f"))


def test_flights_are_recorded() -> None:
    for way in WAYS:
        with make(way) as reducer:
            run_step(reducer, 0)
            run_step(reducer, 1)
            assert sorted(f.bucket for f in reducer.flights) == list(range(len(reducer.buckets)))
            for f in reducer.flights:
                assert f.nbytes == reducer.buckets[f.bucket].nbytes
                assert f.launched <= f.began + 1e-6
                assert f.began <= f.ended <= f.arrived + 1e-6
                assert f.waited <= f.arrived


@pytest.mark.parametrize("views", [False, True], ids=["copied", "views"])
def test_gradients_in_device_memory(views: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fake device that does everything as late as it may; see tests/mpi/test_device.py."""
    monkeypatch.setenv("MPICOLL_GPU_AWARE", "1")
    with fake_device() as cupy:
        arrays = {name: cupy.zeros(shape, "f") for name, shape in SHAPES.items()}
        with mpicoll.GradientReducer(WORLD, arrays, bucket_bytes=600, views=views) as reducer:
            for step in range(3):
                for name in SHAPES:
                    reducer.gradients[name][...] = cupy.asarray(gradient(RANK, name, step))
                    reducer.ready(name)
                reducer.wait()
                for name in SHAPES:
                    np.testing.assert_array_equal(reducer.gradients[name].get(), average(name, step))
        with pytest.raises(mpicoll.ArgumentError, match="some gradients are in device memory"):
            mpicoll.GradientReducer(WORLD, {"a": np.zeros(3, "f"), "b": cupy.zeros(3, "f")})


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("views", [False, True], ids=["copied", "views"])
def test_gradients_on_several_streams(views: bool, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is ready on another stream, none of which is that of `wait`."""
    monkeypatch.setenv("MPICOLL_GPU_AWARE", "1")
    with fake_device() as cupy:
        names = list(SHAPES)
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in names]
        last = cupy.cuda.Stream(non_blocking=True)
        arrays = {name: cupy.zeros(shape, "f") for name, shape in SHAPES.items()}
        cupy.cuda.Device().synchronize()
        options = {"bucket_bytes": 600, "views": views, "overlap": overlap}
        with mpicoll.GradientReducer(WORLD, arrays, **options) as reducer:
            for step in range(3):
                for name, stream in zip(names, streams, strict=True):
                    with stream:
                        reducer.gradients[name][...] = cupy.asarray(gradient(RANK, name, step))
                        reducer.ready(name)
                with last:
                    reducer.wait()
                    for name in names:
                        np.testing.assert_array_equal(reducer.gradients[name].get(), average(name, step))


@pytest.mark.parametrize("written", ["view", "part of it", "given"])
def test_views_from_before_the_buckets_were_rebuilt_are_refused(written: str) -> None:
    """Only the first step's order is another one here, so that nothing but the second can go wrong."""
    reducer = make("test", views=True)
    early = dict(reducer.gradients)
    for name in SHAPES:
        early[name][...] = gradient(RANK, name)
        reducer.ready(name)
    reducer.wait()
    assert reducer.gradients["w1"] is not early["w1"]
    if RANK:  # hears of it
        for name in SHAPES:
            reducer.ready(name)
        with pytest.raises(mpicoll.RevokedError, match=r"rank 0 gave up .*fetch reducer\.gradients"):
            reducer.wait()
        return
    reducer.ready("w2")  # as it was: refused is only what was written
    target = early["w1"].reshape(-1)[3:] if written == "part of it" else early["w1"]
    target[...] = 77
    with pytest.raises(
        mpicoll.ArgumentError, match=r"'w1' was written into a view .* fetch reducer\.gradients"
    ):
        reducer.ready("w1", early["w1"] if written == "given" else None)


def test_half_the_bytes_on_the_wire() -> None:
    """Rounded once on each rank and at each of the P-1 sums, by half a unit of the last of 11 bits."""
    rng = np.random.default_rng(3)
    everyone = rng.normal(size=(SIZE, 500)).astype("f")
    grads = {"a": everyone[RANK].copy()}
    with mpicoll.GradientReducer(WORLD, grads, wire_dtype="float16") as reducer:
        reducer.ready("a")
        reducer.wait()
        assert [b.nbytes for b in reducer.buckets] == [1000]
    bound = (SIZE + 1) * 2.0**-11 * np.abs(everyone).sum(0) / SIZE + (SIZE + 1) * 2.0**-25
    assert (np.abs(grads["a"] - everyone.mean(0, dtype="d")) <= bound).all()
    assert (grads["a"] != everyone.mean(0)).any()
    same_everywhere(grads["a"])


def test_float16_sums_do_not_overflow() -> None:
    grads = {"a": np.full(3, 60_000, "f")}
    with mpicoll.GradientReducer(WORLD, grads, wire_dtype="float16") as reducer:
        reducer.ready("a")
        reducer.wait()
    np.testing.assert_allclose(grads["a"], 60_000, rtol=SIZE * 2.0**-11)


@ways
def test_unused_gradients_count_as_zero_if_wished(way: str) -> None:
    with make(way, unused="zero") as reducer:
        for step in range(2):
            for name in reversed(SHAPES):
                reducer.gradients[name][...] = 7
            if RANK == 0:
                reducer.gradients["w2"][...] = SIZE
                reducer.ready("w2")
            reducer.wait()
            assert (reducer.gradients["w2"] == 1).all(), step
            assert all((reducer.gradients[n] == 0).all() for n in SHAPES if n != "w2")


@ways
def test_unready_gradients_are_named_on_every_rank(way: str) -> None:
    reducer = make(way)
    if SIZE > 1:
        run_step(reducer, 0)
    late = SIZE - 1
    is_late = late == RANK

    def backward() -> None:
        for name in reversed(SHAPES):
            if not is_late or name not in ("w2", "b1"):
                reducer.ready(name)  # where buckets are blocking, others hear of it in here
        reducer.wait()

    if is_late:
        with pytest.raises(mpicoll.ArgumentError, match=f"2 of 7 .* rank {late} .* 'b1', 'w2'"):
            backward()
    else:
        with pytest.raises(mpicoll.RevokedError, match=f"rank {late} gave up .*'b1', 'w2'"):
            backward()
    with pytest.raises(mpicoll.MpicollError, match="gave up"):
        reducer.ready("w1")
    WORLD.Barrier()  # the user's communicator goes on working


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.ready("w9"), "no gradient 'w9' is registered; there are 'w1', 'b1'"),
        (lambda r: (r.ready("b1"), r.ready("b1")), "'b1' became ready twice"),
        (lambda r: (r.ready("b1", rows=slice(3)), r.ready("b1")), "rows of gradient 'b1' became ready twice"),
        (lambda r: r.ready("scalar", rows=slice(1)), r"'scalar' of shape \(\) has no adjoining rows"),
        (lambda r: r.ready("b1", rows=3), "rows of gradient 'b1' are a slice, not 3"),
        (
            lambda r: (r.ready("b1", rows=slice(3)), r.wait()),
            "some rows were not ready on rank 0 of gradients 'b1'",
        ),
        (lambda r: r.ready("b1", np.zeros(8, "f")), r"registered as \(7,\) <f4, not \(8,\) <f4"),
        (lambda r: r.ready("b1", np.zeros(7, "d")), "not .* <f8"),
        (lambda r: r.ready(["b1"]), r"no gradient \['b1'\] is registered"),
        (lambda r: r.ready("b1", [0.0] * 7), "'b1' is no array but of type list"),
        (lambda r: r.ready("b1", np.frombuffer(bytes(28), "f")), "'b1' is read-only"),
    ],
    ids="unknown twice rows-twice no-rows one-row some-rows shape type names list read-only".split(),
)
def test_misuse_on_one_rank_is_heard_of_by_the_others(call, message: str) -> None:
    reducer = make("thread" if THREAD else "test")
    if RANK == 0:
        with pytest.raises(mpicoll.ArgumentError, match=message):
            call(reducer)
    else:
        for name in SHAPES:
            reducer.ready(name)
        with pytest.raises(mpicoll.RevokedError, match=f"rank 0 gave up .*{message}"):
            reducer.wait()
    WORLD.Barrier()


def test_exception_in_the_backward_pass_is_heard_of_by_the_others() -> None:
    def backward() -> None:
        with make("thread" if THREAD else "test") as reducer:
            reducer.ready("scalar")
            if RANK == 0:
                raise ZeroDivisionError("in layer 2")
            for name in list(SHAPES)[:-1]:
                reducer.ready(name)
            reducer.wait()

    kind = ZeroDivisionError if RANK == 0 else mpicoll.RevokedError
    with pytest.raises(kind, match="in layer 2"):
        backward()
    WORLD.Barrier()


def test_forgotten_wait_is_heard_of_by_the_others() -> None:
    def step() -> None:
        with make("thread" if THREAD else "test") as reducer:
            for name in SHAPES:
                reducer.ready(name)
            if RANK > 0:
                reducer.wait()  # at the latest when buckets are rebuilt, which all ranks do together

    kind = mpicoll.MpicollError if RANK == 0 else mpicoll.RevokedError
    with pytest.raises(kind, match="in the middle of a step"):
        step()
    WORLD.Barrier()


def test_rank_without_memory_is_heard_of_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = np.zeros

    def none_left(shape, *args, **options):
        if shape == 12_345:
            raise MemoryError("none left")
        return zeros(shape, *args, **options)

    if RANK == SIZE - 1:
        monkeypatch.setattr(np, "zeros", none_left)
    kind = MemoryError if RANK == SIZE - 1 else mpicoll.ArgumentError
    with pytest.raises(kind, match="none left"):
        mpicoll.GradientReducer(WORLD, {"a": np.empty(12_345, "f")})
    WORLD.Barrier()


def test_ranks_that_register_different_gradients_are_told_which() -> None:
    if SIZE == 1:
        pytest.skip("one rank agrees with itself")
    shape = (4, 4) if RANK == SIZE - 1 else (4, 3)
    message = rf"number 1 is 'b' \(4, 3\) <f4 on rank 0, 'b' \(4, 4\) <f4 on rank {SIZE - 1}"
    with pytest.raises(mpicoll.MismatchError, match=message):
        mpicoll.GradientReducer(WORLD, {"a": np.zeros(2, "f"), "b": np.zeros(shape, "f")})
    with pytest.raises(mpicoll.MismatchError, match="options differ"):
        mpicoll.GradientReducer(WORLD, {"a": np.zeros(2, "f")}, bucket_bytes=1000 + RANK // (SIZE - 1))
    with pytest.raises(mpicoll.MismatchError, match=f"options differ .*True.* on rank {SIZE - 1}"):
        mpicoll.GradientReducer(WORLD, {"a": np.zeros(2, "f")}, average=True if RANK == SIZE - 1 else 1)
    if THREAD:
        with pytest.raises(mpicoll.MismatchError, match=r"options differ .*'background', False.*True"):
            mpicoll.GradientReducer(WORLD, {"a": np.zeros(2, "f")}, background=RANK == SIZE - 1)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"a": np.zeros(3, "i")}, {}, "only real and complex"),
        ({"a": np.zeros(3, "f")}, {"wire_dtype": "float64"}, "cannot be sent as float64"),
        ({"a": np.zeros(3, "f")}, {"wire_dtype": "bfloat16"}, "'bfloat16' is no NumPy type; float16"),
        ({"a": np.zeros(3, "f")}, {"wire_dtype": "f2", "views": True}, "no wire_dtype with views"),
        ({"a": [1.0, 2.0]}, {}, "'a' is no array but of type list"),
        ({"a": np.float32(2)}, {}, "'a' is no array but of type float32"),
        ({"a": None}, {}, "'a' is no array but of type NoneType"),
        ({"a": np.frombuffer(bytes(8))}, {}, "'a' is read-only"),
        (None, {}, "map names to arrays; got a NoneType"),
        ([np.zeros(3)], {}, "map names to arrays; got a list"),
        ({"a": np.zeros(3, "f")}, {"bucket_bytes": "1M"}, "at least 1, not '1M'"),
        ({"a": np.zeros(3, "f")}, {"bucket_bytes": 7.5}, "at least 1, not 7.5"),
        ({"a": np.zeros(3, "f")}, {"bucket_bytes": 0}, "bucket_bytes must be .* at least 1, not 0"),
        ({"a": np.zeros(3, "f")}, {"unused": "ignore"}, '"error" or "zero"'),
        ({"a": np.zeros(3, "f")}, {"algorithm": "wizardry"}, "wizardry"),
        ({"a": np.zeros(3, "f")}, {"background": True, "engine": "python"}, "native engine"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_arguments_are_refused_on_all_ranks(arrays, options, message: str) -> None:
    with pytest.raises(mpicoll.ArgumentError, match=message):
        mpicoll.GradientReducer(WORLD, arrays, **options)
    if SIZE > 1 and not {"algorithm", "engine"} & options.keys():  # on one rank only
        told = message if RANK == 0 else f"rank 0 refused.*{message}"
        with pytest.raises(mpicoll.ArgumentError, match=told):
            mpicoll.GradientReducer(WORLD, arrays if RANK == 0 else {}, **(options if RANK == 0 else {}))


@pytest.mark.ranks(2)
def test_thousands_of_steps_leave_nothing_behind() -> None:
    """No more threads, requests, plans or memory after 2000 steps than after 200."""
    grads = {f"p{i}": np.zeros(50, "f") for i in range(6)}

    def facts() -> tuple[int, int]:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("Threads:")[2].split()[0]), int(status.partition("VmRSS:")[2].split()[0])

    with mpicoll.GradientReducer(WORLD, grads, bucket_bytes=400) as reducer:
        for step in range(2000):
            for name, grad in grads.items():
                grad[:] = step
                reducer.ready(name)
            reducer.wait()
            if step == 200:
                before, plans = facts(), len(reducer._plans)
        threads, kilobytes = facts()
        assert threads == before[0]
        assert kilobytes < before[1] + 2000, "more than 1 KB a step"
        assert len(reducer._plans) == plans
    assert (grads["p0"] == 1999).all()


@pytest.mark.ranks(2)
def test_what_the_communicator_was_asked_for_holds_in_the_reducer(tmp_path: Path) -> None:
    file = tmp_path / "slow.json"
    file.write_text(uniform(1.0, 1e-11, 1e-11, gap=0.0).to_json())
    comm = mpicoll.Comm(WORLD, engine="python", calibration=file)
    with mpicoll.GradientReducer(comm, {"one": np.zeros(1 << 16)}) as reducer:
        (plan,) = reducer._plans
        assert plan.algorithm == "recursive_doubling"
        assert isinstance(plan._engine, PythonEngine)
        reducer.ready("one")
        reducer.wait()
    comm.Free()
