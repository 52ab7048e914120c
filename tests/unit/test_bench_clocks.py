"""Clocks that run apart, brought together again: the error is never larger than half of the round trips."""

import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from mpicoll.bench.clocks import LATE, Clocks, Line, Window, fit, lessons

OFFSETS = [0.0, 12.5, -3.0, 700.0, 1e-4]


class Control:
    """Messages between threads."""

    def __init__(self, queues, rank):
        self.queues, self.rank = queues, rank

    def Send(self, array, peer):  # noqa: N802  (mpi4py's name)
        self.queues[self.rank, peer].put(array.copy())

    def Recv(self, array, peer):  # noqa: N802
        array[:] = self.queues[peer, self.rank].get(timeout=60)


def synchronised(size, times=1):
    queues = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    clocks = []
    for rank in range(size):
        world = SimpleNamespace(size=size, rank=rank, control=Control(queues, rank))
        clocks.append(Clocks(world, now=lambda offset=OFFSETS[rank]: time.perf_counter() - offset))

    def learn(one):
        for _ in range(times):
            one.synchronise()

    threads = [threading.Thread(target=learn, args=(one,), daemon=True) for one in clocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return clocks


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_rank_knows_the_time_of_the_first(size):
    clocks = synchronised(size, times=2)
    teacher = {pupil: teacher for teacher, pupil in lessons(size)}
    for rank, one in enumerate(clocks):
        error, at = 0.0, rank
        while at:
            error, at = error + clocks[at].round_trip / 2, teacher[at]
        assert (
            abs(one.line.to_global(one.now()) - clocks[0].now()) <= error + 0.05
        )  # two reads, one after the other
        assert abs(one.line.offset - OFFSETS[rank]) <= error + 1e-9


@pytest.mark.parametrize("size", range(1, 20))
def test_who_teaches_has_learnt(size):
    knows = {0}
    for teacher, pupil in lessons(size):
        assert teacher in knows
        assert pupil not in knows
        knows.add(pupil)
    assert knows == set(range(size))


def test_drift_is_the_slope_of_what_was_measured():
    rng = np.random.default_rng(1)
    local = np.linspace(50.0, 110.0, 12)
    noise = rng.normal(0, 2e-7, local.size)
    line = fit(list(zip(local, 3.0 + 4e-5 * local + noise, strict=True)))
    assert line.drift == pytest.approx(4e-5, abs=2e-8)
    assert line.to_global(115.0) == pytest.approx(118.0 + 4e-5 * 115.0, abs=2e-6)
    # Over a moment, the error of a measurement would pass for drift.
    assert fit([(1.0, 0.0), (1.1, 1e-6)]).drift == 0.0


def test_local_and_global_time_are_inverse():
    line = Line(reference=100.0, offset=-7.0, drift=3e-5)
    for moment in (90.0, 100.0, 5000.0):
        assert line.to_local(line.to_global(moment)) == pytest.approx(moment, abs=1e-9)


class Slow:
    """A broadcast that takes some seconds of virtual time."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def Bcast_init(self, *args, **kwargs):  # noqa: N802  (mpi4py's name)
        return SimpleNamespace(run=lambda: self.clock.wait(self.seconds()), free=lambda: None)


class Virtual:
    """A clock that goes on by 0.1 µs with every look at it."""

    def __init__(self):
        self.time = 5.0

    def wait(self, seconds):
        self.time += seconds

    def __call__(self):
        self.wait(1e-7)
        return self.time


def window(seconds):
    clock = Virtual()
    made = Window(SimpleNamespace(first=True, size=1, rank=0), Slow(clock, seconds))
    made.clocks.now = clock
    return made, clock


def test_calls_begin_at_the_moment_or_are_late():
    delays = iter([0.0, 1e-5, 1.0, 0.0])
    made, clock = window(lambda: next(delays))
    begins = []
    for _ in range(4):
        made.meet()
        begins.append(clock())
    late = made.lateness(np.array(begins).reshape(2, 2), [[0, 1], [0, 1]])
    assert ((late > LATE) == [[False, False], [True, False]]).all()
    assert (late >= 0).all()
    assert not made._deadlines


def test_the_order_of_calls_is_minded():
    made, clock = window(lambda: 0.0)
    begins = np.zeros((1, 3))
    for index in (2, 0, 1):
        made.meet()
        clock.wait(1e-3 * index)
        begins[0, index] = clock()
    late = made.lateness(begins, [[2, 0, 1]])
    assert late[0] == pytest.approx([0, 1e-3, 2e-3], abs=1e-6)


def test_the_lead_grows_where_many_are_late():
    made, _ = window(lambda: 0.0)
    lead = made.lead
    made.adapt(np.array([False] * 99 + [True]))
    assert made.lead == lead
    for _ in range(20):
        made.adapt(np.array([True, False]))
    assert lead < made.lead <= 2e-3
