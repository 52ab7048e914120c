"""The trained network is a true one, and what is said of its times follows from them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mpicoll.bench import overlap_stats as stats
from mpicoll.bench import timeline
from mpicoll.bench.overlap_modes import COMMUNICATE, COMPUTE, OVERLAPPED, PER_TENSOR
from mpicoll.bench.training import RATE, Network, Shape, Span, draw_data, draw_parameters, names

SHAPE = Shape(layers=3, width=6, batch=8, dtype="float64")


def gradients_of(network: Network) -> dict[str, np.ndarray]:
    found = {name: np.zeros_like(array) for name, array in network.parameters.items()}
    network.step(found, lambda name: None, lambda: None)
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
    one, announced = network(), []
    gradients = {name: np.zeros_like(array) for name, array in one.parameters.items()}
    before = {name: array.copy() for name, array in one.parameters.items()}
    one.step(gradients, announced.append, lambda: announced.append("wait"))
    assert announced == ["b2", "w2", "b1", "w1", "b0", "w0", "wait"]
    for name, array in one.parameters.items():
        np.testing.assert_array_equal(array, before[name] - RATE * gradients[name])
    spans = one.spans
    assert spans[0].name == "forward"
    assert all(one.end == other.begin for one, other in pairwise(spans))


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
    # Two buckets of 0.012 s: the second waits for the first; then the update, 0.1 s.
    filled, ready = [(100, "b"), (100, "a")], {"b": 0.5, "a": 0.505, "": 0.51}
    assert stats.predict(filled, ready, 0.61, line) == pytest.approx(0.524 + 0.1)
    assert stats.predict(filled, {**ready, "": 0.6}, 0.7, line) == pytest.approx(0.7)


def test_trace_is_what_perfetto_reads(tmp_path: Path) -> None:
    flight = SimpleNamespace(
        bucket=2, nbytes=2048, launched=10.1, began=10.11, ended=10.3, waited=10.2, arrived=10.31
    )
    events = timeline.events(3, "overlapped", 10.0, [Span("forward", 10.0, 10.1)], [flight])
    timeline.write(tmp_path / "trace.json", events)
    read = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    complete = [e for e in read if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["pid"]) for e in complete] == [
        ("forward", 0.0, 100_000.0, 3), ("bucket 2 (2 KiB)", 110_000.0, 190_000.0, 3),
    ]  # fmt: skip
    assert complete[0]["tid"] != complete[1]["tid"]
    assert complete[1]["args"]["launched_us"] == 100_000.0
