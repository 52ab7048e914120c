"""The trained network is a true one, and what is said of its times follows from them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from devices import fake_device
from mpicoll.bench import overlap, overlap_record, timeline
from mpicoll.bench import overlap_stats as stats
from mpicoll.bench.overlap_bench import Bench, Step
from mpicoll.bench.overlap_file import FILE, RowFile, read
from mpicoll.bench.overlap_modes import ASLEEP, BLOCKING, COMMUNICATE, COMPUTE, OVERLAPPED, PER_TENSOR
from mpicoll.bench.overlap_outcome import Outcome
from mpicoll.bench.overlap_record import Record
from mpicoll.bench.places import Gpu, Span
from mpicoll.bench.store import StoreError
from mpicoll.bench.training import RATE, Network, Shape, draw_data, draw_parameters, names
from mpicoll.errors import ArgumentError

SHAPE = Shape(layers=3, width=6, batch=8, dtype="float64")


def gradients_of(network: Network) -> dict[str, np.ndarray]:
    found = {name: np.zeros_like(array) for name, array in network.parameters.items()}
    network.step(found, lambda name, rows=None: None)
    return found


def network(shape: Shape = SHAPE, rank: int = 0) -> Network:
    return Network(shape, draw_parameters(shape, 1), draw_data(shape, 1, rank))


def test_gradients_are_those_of_the_loss() -> None:
    """Central differences with h = 1e-6 are off by about h² and by rounding, 1e-16 / h."""
    gradients = gradients_of(network())
    for name in names(SHAPE):
        for index in [(0,) * gradients[name].ndim, (-1,) * gradients[name].ndim]:
            losses = []
            for h in (1e-6, -1e-6):
                moved = network()
                moved.parameters[name][index] += h
                gradients_of(moved)
                losses.append(moved.loss)
            assert gradients[name][index] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-7)


def test_average_over_ranks_is_the_gradient_of_the_undivided_batch() -> None:
    ranks = range(4)
    parts = [gradients_of(network(rank=rank)) for rank in ranks]
    whole = Shape(SHAPE.layers, SHAPE.width, len(ranks) * SHAPE.batch, SHAPE.dtype)
    shares = [draw_data(SHAPE, 1, rank) for rank in ranks]
    inputs, targets = (np.concatenate([share[k] for share in shares]) for k in (0, 1))
    undivided = gradients_of(Network(whole, draw_parameters(SHAPE, 1), (inputs, targets)))
    for name in names(SHAPE):  # sums of 32 terms in another order: a few units of the last digit
        average = sum(part[name] for part in parts) / len(ranks)
        np.testing.assert_allclose(average, undivided[name], rtol=1e-12, atol=1e-14)


def test_announces_every_gradient_from_the_last_layer_to_the_first() -> None:
    one = network()
    announced: list[Any] = []
    gradients = {name: np.zeros_like(array) for name, array in one.parameters.items()}
    before = {name: array.copy() for name, array in one.parameters.items()}

    def ready(name: str, rows: slice | None = None) -> None:
        announced.append(name if rows is None else (name, rows.start, rows.stop))

    def arriving() -> Iterator[str]:
        for name in names(SHAPE):
            np.testing.assert_array_equal(one.parameters[name], before[name], "updated too early")
            announced.append(f"{name} arrives")
            yield name

    one.step(gradients, ready, arriving)
    blocks = [(0, 2), (2, 4), (4, 6)]
    layers = [[f"b{n}", *((f"w{n}", *block) for block in blocks)] for n in (2, 1, 0)]
    assert announced == [*chain(*layers), *(f"{name} arrives" for name in names(SHAPE))]
    assert [one.filled("w1", stop) for stop in (1, 12, 13, 36)] == ["w1.0", "w1.0", "w1.1", "w1"]
    for name, array in one.parameters.items():
        np.testing.assert_array_equal(array, before[name] - RATE * gradients[name])
    spans = one.spans
    assert spans[0].name == "forward"
    assert all(one.end == other.begin for one, other in pairwise(spans))


def test_each_gradient_is_noted_when_it_is_there() -> None:
    """A bias is, before its layer's first block of weights: buckets that end with one leave then."""
    one, bench = network(), object.__new__(Bench)
    bench._ready_at = {}
    gradients_of(one)
    bench._note_readiness(Step(one.spans[0].begin, 1.0, one.spans, [], []))
    layers = [[f"b{n}", f"w{n}.0", f"w{n}.1", f"w{n}"] for n in (2, 1, 0)]
    assert list(bench._ready_at) == [*chain(*layers), ""]
    times = [time for (time,) in bench._ready_at.values()]
    assert all(one < other for one, other in pairwise(times))


def test_loss_falls() -> None:
    one = network(Shape(4, 32, 64))
    losses = []
    for _ in range(40):
        gradients_of(one)
        losses.append(one.loss)
    assert losses[-1] < 0.5 * losses[0]


def test_flops_are_counted_by_product() -> None:
    assert Shape(1, 10, 3).flops == 2 * 2 * 3 * 100
    assert Shape(4, 10, 3).flops == 11 * 2 * 3 * 100
    assert SHAPE.nbytes == 3 * (36 + 6) * 8


TIMES = {
    (COMPUTE, None): np.array([1.0, 1.1, 0.9, 1.0, 1.0, 1.0, 1.0]),
    (PER_TENSOR, None): np.array([2.0, 2.1, 1.9, 2.0, 2.0, 2.0, 2.0]),
    (OVERLAPPED, 10): np.array([1.5, 1.6, 1.4, 1.5, 1.5, 1.5, 1.5]),
    (OVERLAPPED, 100): np.array([1.2, 1.3, 1.1, 1.2, 1.2, 1.2, 1.2]),
    (COMMUNICATE, 10): np.full(7, 1.0),
    (COMMUNICATE, 100): np.full(7, 0.8),
}


def test_exposed_hidden_and_utilisation() -> None:
    plain, small, large = stats.verdicts(TIMES)
    assert (plain.mode, small.bucket_bytes, large.bucket_bytes) == (PER_TENSOR, 10, 100)
    assert plain.hidden is None
    assert plain.exposed.value == pytest.approx(1.0)
    assert large.exposed.value == pytest.approx(0.2)
    assert large.hidden is not None
    assert large.hidden.value == pytest.approx(0.75)
    assert (large.hidden.low, large.hidden.high) == pytest.approx((0.75, 0.75))  # paired: all differences 0.2
    assert large.utilisation.value == pytest.approx(1 / 1.2)
    assert stats.Resampled(TIMES).recommended() == (100, 100, 100)


def test_sizes_that_cannot_be_told_apart_are_all_recommended() -> None:
    noise = np.random.default_rng(5).normal(0, 0.1, (3, 40))
    times = {(OVERLAPPED, size): 1 + noise[k] for k, size in enumerate((10, 100, 1000))}
    times[OVERLAPPED, 10_000] = np.full(40, 2.0)
    best, low, high = stats.Resampled(times).recommended()
    assert low <= best <= high
    assert (low, high) == (10, 1000)


def test_no_interval_from_few_steps() -> None:
    few = {key: values[:3] for key, values in TIMES.items()}
    assert stats.verdicts(few)[0].step.text(1e3) == "2000.0"


def test_model_is_found_again_and_predicts() -> None:
    buckets = {(COMMUNICATE, size): [(size, "w")] * (1000 // size) for size in (10, 50, 100)}
    times = {key: np.full(5, sum(0.002 + 0.0001 * n for n, _ in filled)) for key, filled in buckets.items()}
    line = stats.fit_line(times, buckets)
    assert line is not None
    assert (line.alpha, line.beta) == pytest.approx((0.002, 0.0001))
    assert line.error < 1e-9
    assert stats.fit_line(dict([next(iter(times.items()))]), buckets) is None
    # Neither is below 0: of one alone, the least squares of relative errors.
    for factors, zero in (((1.0, 1.04, 1.05), "alpha"), ((1.0, 0.1, 0.02), "beta")):
        odd = {key: np.full(5, factor) for key, factor in zip(buckets, factors, strict=True)}
        bent = stats.fit_line(odd, buckets)
        assert bent is not None
        assert getattr(bent, zero) == 0

        def error(alpha: float, beta: float, odd: Any = odd) -> float:
            return sum(
                (sum(alpha + beta * n for n, _ in filled) / odd[key][0] - 1) ** 2
                for key, filled in buckets.items()
            )

        for scale in (0.99, 1.01):
            assert error(bent.alpha, bent.beta) < error(scale * bent.alpha, scale * bent.beta)
    # Two buckets of 0.012 s: the second waits for the first; then the update, 0.1 s.
    filled, ready = [(100, "b"), (100, "a")], {"b": 0.5, "a": 0.505, "": 0.51}
    assert stats.predict(filled, ready, 0.61, line) == pytest.approx(0.524 + 0.1)
    assert stats.predict(filled, {**ready, "": 0.6}, 0.7, line) == pytest.approx(0.7)
    # Half the core is taken for two flights of 0.012 s, which come one after the other: 0.012 s in all. At
    # 0.524 computing has come to 0.512, behind the backward pass; with one until 0.6 it has 0.088 to go.
    assert stats.predict(filled, ready, 0.61, line, 0.5) == pytest.approx(0.524 + 0.1)
    assert stats.predict(filled, {**ready, "": 0.6}, 0.7, line, 0.5) == pytest.approx(0.712)
    # With nothing left to compute beside them, the flights of a step's end wait for a gradient that is late.
    assert stats.predict(filled, {"b": 0.1, "a": 0.105, "": 0.105}, 0.2, line, 1.0) == pytest.approx(
        0.112 + 0.005 + 0.012 + 0.095
    )


def test_trace_is_what_perfetto_reads(tmp_path: Path) -> None:
    flight = SimpleNamespace(
        bucket=2, nbytes=2048, launched=10.1, began=10.11, ended=10.3, waited=10.2, arrived=10.31
    )
    kernels = [Span("forward", 10.05, 10.2), Span("ready 2", 10.2, 10.2)]
    step = Step(10.0, 0.4, [Span("forward", 10.0, 10.1)], kernels, [flight])
    events = timeline.events(3, "overlapped", step)
    timeline.write(tmp_path / "trace.json", events)
    read = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    complete = [e for e in read if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["pid"]) for e in complete] == [
        ("forward", 0.0, 100_000.0, 3), ("forward", 50_000.0, 150_000.0, 3),
        ("bucket 2 (2 KiB)", 110_000.0, 190_000.0, 3),
    ]  # fmt: skip
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in read if e["name"] == "thread_name"}
    assert [rows[e["pid"], e["tid"]] for e in complete] == ["program", "device", "bucket 2 (2 KiB)"]
    assert complete[2]["args"]["launched_us"] == 100_000.0


def test_a_step_on_a_device_is_the_step_on_the_host() -> None:
    """The fake device runs what is queued as late as it may, and begins with garbage in all memory."""
    host = network()
    with fake_device():
        gpu = Network(SHAPE, draw_parameters(SHAPE, 1), draw_data(SHAPE, 1, 0), Gpu())
        with gpu.place.stream():
            slots = {key: gpu.place.xp.zeros(a.shape, a.dtype) for key, a in gpu.parameters.items()}
        queued: list[int] = []  # when the step comes to wait for the device
        finish, stream = gpu.place.finish, gpu.place.stream()
        gpu.place.finish = lambda: (queued.append(len(stream.queue)), finish())[0]  # type: ignore[assignment]
        for _ in range(3):
            gradients = gradients_of(host)
            gpu.step(slots, lambda name, rows=None: None)
            assert gpu.loss == host.loss
            for name in names(SHAPE):
                np.testing.assert_array_equal(slots[name].host, gradients[name])
                np.testing.assert_array_equal(gpu.parameters[name].host, host.parameters[name])
        assert [span.name for span in gpu.kernels] == [span.name for span in gpu.spans]
        assert all(one.end == other.begin for one, other in pairwise(gpu.kernels))
        assert queued[0] == max(queued) > 40, "the host waited for the device in the middle of a step"


def rows_of(times: dict[Any, float], cpu: dict[Any, float] | None = None, **facts: Any) -> list[Any]:
    """Rows of eight steps that all take the same time [ms]."""
    common = {"warmup": False, "ranks": 2, "oversubscribed": False, "buffer": "host", **facts}
    return [
        {**common, "iteration": i, "mode": mode, "bucket_bytes": size, "seconds": ms / 1e3,
         "cpu_seconds": (cpu or {}).get((mode, size), 0.0) * 2 / 1e3}
        for i in range(8)
        for (mode, size), ms in times.items()
    ]  # fmt: skip


def told_of(times: dict[Any, float], ready: dict[str, float], **facts: Any) -> dict[str, Any]:
    """What run.json says, with 100 bytes of gradients, in buckets that are all full when "w" is there."""
    buckets = [
        {"mode": mode, "bucket_bytes": size, "filled": [[size, "w"]] * (100 // size) if size else []}
        for mode, size in times
    ]
    return {"ready": ready, "buckets": buckets, "cpus_per_rank": 1.0, **facts}


STEP = {
    (COMPUTE, None): 30.0, (PER_TENSOR, None): 60.0, (BLOCKING, 50): 50.0, (OVERLAPPED, 10): 38.0,
    (OVERLAPPED, 50): 33.0, (COMMUNICATE, 10): 14.0, (COMMUNICATE, 50): 10.0, (ASLEEP, 10): 20.0,
    (ASLEEP, 50): 15.0,
}  # fmt: skip
READY = {"w": 0.01, "": 0.025}


def test_a_bucket_size_is_recommended_where_something_was_hidden() -> None:
    run = Outcome(rows_of(STEP, {(ASLEEP, 50): 4.0}), told_of(STEP, READY))
    assert run.advice() == ["recommended bucket size: 50 B (in 95 % of resamples, too)"]
    # alone: two buckets 10 ms, ten 14 ms: 0.5 ms each and 0.09 ms a byte
    prediction = run.prediction(50)
    assert prediction is not None
    assert prediction.free == pytest.approx(0.030)
    # Flights from 10 to 20 ms, which take 4 ms of computing; a rank has one CPU.
    assert prediction.charged == pytest.approx(0.034)
    spare = Outcome(rows_of(STEP, {(ASLEEP, 50): 4.0}), told_of(STEP, READY, cpus_per_rank=2.0))
    assert spare.prediction(50).charged == pytest.approx(0.030)
    unknown = Outcome(rows_of(STEP), {**told_of(STEP, READY), "cpus_per_rank": None})
    assert unknown.prediction(50).charged is None


@pytest.mark.parametrize(
    ("times", "cpu", "ready", "facts", "why"),
    [
        ({}, {}, READY, {"oversubscribed": True}, "ranks share CPUs: 0.5 CPUs for each"),
        ({(COMMUNICATE, 10): 50.0}, {}, READY, {},
         "the latency of 2 of them, 5 ms each, is most of the 10 ms"),
        ({}, {}, {"w": 0.024, "": 0.025}, {}, "1 ms of the backward pass are left when the first bucket"),
        ({}, {(ASLEEP, 50): 9.0}, READY, {}, "keeps a core busy for 9 ms of the 10 ms"),
        ({}, {}, READY, {}, "the measured times do not tell"),
    ],
)  # fmt: skip
def test_no_size_is_recommended_where_nothing_was_hidden(
    times: Any, cpu: Any, ready: Any, facts: Any, why: str
) -> None:
    times = {**STEP, (OVERLAPPED, 10): 60.0, (OVERLAPPED, 50): 41.0, **times}
    share = 0.5 if facts else 1.0
    run = Outcome(rows_of(times, cpu, **facts), told_of(times, ready, cpus_per_rank=share))
    said, *reasons = run.advice()
    assert said == (
        "no bucket size is recommended: nothing was hidden (-10 (-10 to -10) % in the shortest step, "
        "of buckets of 50 B)"
    )
    assert [why in reason for reason in reasons] == [True]


def test_what_a_kill_left_of_the_rows_is_found_again(tmp_path: Path) -> None:
    names = ("iteration", "order", "gradient_bytes", "flops", "layers", "width", "batch", "nodes", "ppn")
    more = {**dict.fromkeys(names, 1), "dtype": "float32", "launch": 0, "status": "ok", "reason": None,
            "seconds_min": 0.5, "slowest_rank": 0, "loss": None, "thread_level": "single", "buckets": None,
            "progress": "test", "engine": "python", "algorithm": "ring"}  # fmt: skip
    rows = [{**more, **row} for row in rows_of(STEP)]
    file = RowFile(tmp_path, None)
    file.append(rows[: 2 * len(STEP)])
    whole = (tmp_path / FILE).read_bytes()
    assert read(tmp_path, len(STEP)) == (rows[: 2 * len(STEP)], False)
    for torn in (b"", b"0,2", b"0,2,1\n", whole[whole.index(b"\n") + 1 :][:400]):
        (tmp_path / FILE).write_bytes(whole + torn)
        assert read(tmp_path, len(STEP)) == (rows[: 2 * len(STEP)], bool(torn))
        file = RowFile(tmp_path, len(STEP))
        assert (file.set_aside.read_bytes() if file.set_aside else b"") == torn
        assert (tmp_path / FILE).read_bytes() == whole
    file.append(rows[2 * len(STEP) : 3 * len(STEP)])
    assert read(tmp_path, len(STEP))[0] == rows[: 3 * len(STEP)]
    lines = whole.splitlines(keepends=True)
    for broken, words in (
        (b"".join(lines[:3] + lines[4:]) + whole[len(lines[0]) :], "lacks steps of some modes"),
        (b"another,program\n", "other columns"),
        (whole.replace(b"per tensor", b"per,tensor", 1), "line 3 is no row"),
    ):
        (tmp_path / FILE).write_bytes(broken)
        with pytest.raises(StoreError, match=words):
            read(tmp_path, len(STEP))


def test_algorithms_that_auto_really_took_are_said_by_mode() -> None:
    told = told_of(STEP, READY)
    assert Outcome(rows_of(STEP), told).took() == ""  # of older runs
    for one in told["buckets"]:
        names = {PER_TENSOR: ["recursive_doubling", "ring"], BLOCKING: ["ring"], COMPUTE: []}
        one["algorithms"] = names.get(one["mode"], ["recursive_doubling"])
    run = Outcome(rows_of(STEP), told)
    said = (
        "recursive_doubling and ring (per tensor); ring (bucketed); "
        "recursive_doubling (overlapped, communication only, communication asleep)"
    )
    assert run.took() == said


def test_a_wrong_result_in_a_warm_up_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Then there is no step to evaluate."""
    record = object.__new__(Record)
    record.world = SimpleNamespace(first=True, size=2, control=SimpleNamespace(bcast=lambda x, root: x))
    record.args, record._told = argparse.Namespace(output=None, resume=False), told_of(STEP, READY)
    record.rows = [{**row, "warmup": True, "status": "wrong", "reason": "why"} for row in rows_of(STEP)]
    record.finish(object())
    assert record.wrong() == "why"
    assert capsys.readouterr().err == "WRONG: why\n"


def test_a_run_goes_on_with_its_ranks_bound_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    record = object.__new__(Record)
    record.world, record.args = SimpleNamespace(size=2), argparse.Namespace(resume=False)
    monkeypatch.setattr(overlap_record, "as_bound", lambda world: " --bind-to core")
    monkeypatch.setattr("sys.argv", ["mpicoll", "overlap", "-o", "r"])
    assert record.again() == "mpirun -n 2 --bind-to core mpicoll overlap -o r --resume"


@pytest.mark.parametrize("recorded", [None, 1 << 24])
def test_memory_is_checked_for_the_batch_that_is_chosen(
    recorded: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only for that of the trial."""
    monkeypatch.setattr(overlap, "_balanced_batch", lambda *args: 1 << 24)
    monkeypatch.setattr(overlap, "Bench", None)
    world = SimpleNamespace(
        together=nullcontext, machine={"memory_bytes": 1 << 30}, topology=SimpleNamespace(machines=[[0]])
    )
    record = SimpleNamespace(done=0, batch=recorded)
    args = argparse.Namespace(
        iterations=1, layers=2, width=8, batch=None, buffer="numpy", algorithm="auto", progress="thread"
    )
    with pytest.raises(ArgumentError, match="6 networks of 2 layers of 8 and 16777216 rows need"):
        overlap._measure(world, args, ([4096], 4096), record, None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--layers 0", "--layers must be at least 1"),
        ("--layers 100000", "--layers must be at most 10000"),
        ("--batch 0", "--batch must be at least 1"),
        ("--warmup -1", "--warmup must be at least 0"),
        ("--seed -1", "--seed must be at least 0"),
        ("--compute-ratio nan", "needs a number above 0"),
        ("--buckets 0", "need at least one byte"),
        ("--buckets=-4K", "not a size: '-4K'"),
        ("--bucket 0.5", "not a size: '0.5'"),
        ("--iterations 1 --warmup 0", "in a single step no loss falls"),
        ("--resume", "--resume needs the result to continue: -o DIR"),
        ("--buffer cupy --progress thread", "a thread knows no streams"),
    ],
)
def test_wrong_arguments(flags: str, message: str) -> None:
    """Refused before MPI begins."""
    parser = argparse.ArgumentParser()
    overlap.add_parser(parser.add_subparsers())
    with pytest.raises(ArgumentError, match=message):
        overlap.run(parser.parse_args(["overlap", *flags.split()]))
