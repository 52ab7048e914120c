"""When a sweep measures what, and when it has enough: without MPI, and without a real clock."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from mpicoll.bench import race as race_module
from mpicoll.bench import timing
from mpicoll.bench.clocks import LATE
from mpicoll.bench.planning import FINAL, Plan, Record, Step
from mpicoll.bench.race import Method, Race
from mpicoll.bench.spec import Spec
from mpicoll.bench.stopping import interval_ranks, median_interval, precise, relative_width


def test_the_interval_of_a_median_is_the_binomials():
    """Against scipy, for every number of samples; and no wider than it must be."""
    scipy_stats = pytest.importorskip("scipy.stats")
    assert [interval_ranks(number) for number in range(6)] == [None] * 6
    for number in [*range(6, 120), 500, 999, 1000]:
        low, high = interval_ranks(number)
        assert high == number - 1 - low
        # The true median lies below sample `low` (from 0) if at most `low` samples are below it.
        assert scipy_stats.binom.cdf(low, number, 0.5) <= 0.025
        assert scipy_stats.binom.cdf(low + 1, number, 0.5) > 0.025
    for number in (1001, 5000):
        low, _ = interval_ranks(number)
        assert abs(low - (scipy_stats.binom.ppf(0.025, number, 0.5) - 1)) <= 1


def test_intervals_hold_the_median_as_often_as_they_say():
    rng = random.Random(3)
    held = 0
    for _ in range(2000):
        low, _, high = median_interval([rng.expovariate(1.0) for _ in range(25)])
        held += low <= math.log(2) <= high
    assert held / 2000 > 0.94


def test_few_or_scattered_samples_are_not_precise():
    assert not precise([1.0] * 9, 5)
    assert precise([1.0] * 10, 5)
    assert not precise([1.0] * 1000, 0)  # 0: never stop early
    assert relative_width([1.0] * 3) == math.inf
    # One slow call in ten does not matter, one in three does.
    assert precise([1.0] * 9 + [9.0], 5)
    assert not precise([1.0] * 7 + [9.0] * 3, 5)


class Machine:
    """Measures passes as a sweep would: times scatter by the case's own amount, and take virtual time."""

    def __init__(self, spec, scatter, *, setup=0.01):
        self.spec, self.scatter, self.setup = spec, scatter, setup
        self.rng = random.Random(1)
        self.rows = []
        self.log = []
        self.now = 0.0

    def measure(self, step):
        self.log.append((step.case, step.number))
        self.now += self.setup
        start, times, reason = self.now, [], step.when_full
        while len(times) < step.iterations:
            times.append(1e-3 * self.rng.lognormvariate(0, self.scatter[step.case]))
            self.now += times[-1]
            if len(times) >= 6 and self.now - start > step.budget:
                reason = step.when_spent
                break
            if precise(times, self.spec.precision):
                reason = "precision"
                break
        fixed = {
            "launch": 0, "case": step.case, "pass": step.number, "batch": 1, "requested": "ring",
            "warmup": False, "engine": "native", "status": "ok", "late": False, "stopped_by": reason,
            "build_seconds": 0.0, "first_seconds": 0.0,
        }  # fmt: skip
        first = step.first_iteration
        return [{**fixed, "seconds": t, "iteration": first + i} for i, t in enumerate(times)]

    def launch(self, *, most=10_000):
        """One launch, cut off after `most` passes; begins anew from the rows that there are."""
        record = Record()
        for rows in self.rows:
            record.add([{key: str(value) for key, value in row.items()} for row in as_text(rows)])
        plan = Plan(self.spec, len(self.scatter), record)
        begun = self.now
        while most and (step := plan.next(self.now - begun)) is not None:
            self.rows.append(self.measure(step))
            record.add(self.rows[-1])
            most -= 1
        return record, plan


def as_text(rows):
    """Rows as they come back from the file."""
    return [
        {key: int(value) if isinstance(value, bool) else value for key, value in row.items()} for row in rows
    ]


SCATTER = [0.5, 0.01, 1.0, 0.01, 0.3]


def test_without_a_limit_each_case_is_measured_once():
    machine = Machine(Spec(iterations=50, case_time=1.0), SCATTER)
    record, plan = machine.launch()
    assert sorted(machine.log) == [(case, 0) for case in range(5)]
    assert plan.next(0.0) is None
    assert all(history.stopped_by in FINAL for history in record.cases.values())
    assert machine.log != sorted(machine.log)  # shuffled …
    again = Machine(machine.spec, SCATTER)
    again.launch()
    assert again.log == machine.log  # … by the seed
    sequential = Machine(Spec(iterations=50, order="sequential"), SCATTER)
    sequential.launch()
    assert sequential.log == sorted(sequential.log)


def test_a_limit_covers_all_cases_first_and_then_refines_the_widest():
    machine = Machine(Spec(iterations=1000, case_time=5.0, time_limit=2.0), SCATTER)
    _, plan = machine.launch()
    assert sorted(machine.log[:5]) == [(case, 0) for case in range(5)]
    assert all(len(rows) <= 10 for rows in machine.rows[:5])
    assert machine.log[5] == (2, 1)  # the widest
    assert {case for case, _ in machine.log[5:]} == {0, 2, 4}  # the others are known well enough
    assert machine.now < 2.5
    assert plan.missing == []
    numbers = [row["iteration"] for rows in machine.rows for row in rows if row["case"] == 2]
    assert numbers == list(range(len(numbers)))  # counted on through all passes


def test_a_limit_ends_a_sweep_before_all_are_covered():
    machine = Machine(Spec(iterations=1000, time_limit=0.05), SCATTER, setup=0.02)
    _, plan = machine.launch()
    assert 1 <= len(machine.log) < 5
    assert len(plan.missing) == 5 - len(machine.log)
    machine.launch(most=1)  # however short the limit, each launch gets on
    assert len(machine.log) == len(set(machine.log))


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_sweep_cut_off_anywhere_goes_on_without_losing_or_doubling(cut):
    spec = Spec(iterations=300, case_time=0.5, time_limit=1.0)
    machine = Machine(spec, SCATTER)
    machine.launch(most=cut)
    record, _ = machine.launch()
    while record_open(record):
        record, _ = machine.launch()
    assert len(machine.log) == len(set(machine.log))
    for case, history in record.cases.items():
        assert sorted(number for at, number in machine.log if at == case) == list(range(history.passes))
        taken = [row for rows in machine.rows for row in rows if row["case"] == case]
        assert history.good == len(taken) == len({row["iteration"] for row in taken})


def record_open(record):
    return [case for case, history in record.cases.items() if history.stopped_by not in FINAL]


def test_late_warm_and_failed_rows_are_no_samples():
    record = Record()
    fixed = {"case": "3", "pass": "0", "batch": "2", "requested": "ring", "engine": "native", "status": "ok"}
    fixed |= {
        "warmup": "0",
        "late": "0",
        "build_seconds": "",
        "first_seconds": "1e-3",
        "stopped_by": "case_time",
    }
    rows = [{**fixed, "seconds": "1e-3", "iteration": str(i)} for i in range(7)]
    rows += [{**rows[0], "warmup": "1"}, {**rows[0], "late": "1", "iteration": "7"}]
    rows += [{**rows[0], "seconds": "", "iteration": "", "warmup": "", "status": "unsupported"}]
    record.add(rows)
    history = record.cases[3]
    assert (history.good, history.iterations, history.passes, history.warmup) == (7, 8, 1, 1)
    assert history.timed == pytest.approx(8 * 2e-3)
    assert history.facts()["stopped_by"] == "case_time"


class Alone:
    """A world of this rank, and virtual time: each contender's call takes what the test says."""

    size, rank, first = 1, 0, True

    def __init__(self, monkeypatch, *durations):
        self.now = 0.0
        self.control = self
        self.sets = [[lambda which=which: self.wait(next(which)) for which in durations]]
        for module in (timing, race_module):
            monkeypatch.setattr(module, "clock", lambda: self.now)

    def wait(self, seconds):
        self.now += seconds

    def bcast(self, value, root):
        return value

    def Gather(self, mine, everyone, root):  # noqa: N802  (mpi4py's name)
        everyone[0] = mine

    def check(self, world):
        """No signal has come."""

    def race(self, step, *, percent=5.0, before=(), window=None):
        method = Method(lambda: None, window, False, 1)
        race = Race(self, self, self.sets, method, seed=1)
        reason = race.run(2, step, percent, before or [[] for _ in self.sets[0]])
        return reason, len(race.samples.orders) - race.samples.warmup, race


def constant(value):
    return iter(lambda: value, None)


def noisy(seed):
    rng = random.Random(seed)
    return iter(lambda: rng.lognormvariate(-7, 0.6), None)


STEP = Step(0, 0, 100.0, 400, 0, "case_time", "iterations")


def test_a_race_ends_when_all_contenders_are_known(monkeypatch):
    assert Alone(monkeypatch, constant(1e-3), constant(2e-3)).race(STEP)[:2] == ("precision", 10)
    reason, number, race = Alone(monkeypatch, constant(1e-3), noisy(1)).race(STEP, percent=20.0)
    assert reason == "precision"
    assert number > 10  # the noisy one decides, and the other goes on running beside it
    assert [len(good) for good in race.good] == [number, number]
    assert Alone(monkeypatch, constant(1e-3), noisy(1)).race(STEP, percent=1.0)[:2] == ("iterations", 400)


def test_a_race_ends_with_its_budget(monkeypatch):
    step = Step(0, 0, 0.2, 4000, 0, "time_limit", "iterations")
    reason, number, _ = Alone(monkeypatch, noisy(1)).race(step, percent=1.0)
    assert reason == "time_limit"
    assert 50 < number < 2000
    # However short the budget, there is an interval.
    step = Step(0, 0, 0.0, 4000, 0, "case_time", "iterations")
    assert 6 <= Alone(monkeypatch, noisy(1)).race(step)[1] <= 10


def test_samples_of_earlier_passes_count(monkeypatch):
    reason, number, _ = Alone(monkeypatch, constant(1e-3)).race(STEP, before=[[2e-3] * 60])
    assert reason == "precision"
    assert number == 0  # known already: nothing to add
    reason, number, _ = Alone(monkeypatch, constant(1e-3)).race(STEP, before=[[1e-3, 3e-3] * 10])
    assert reason == "precision"
    assert number > 10


class SomeLate:
    """A window that every third call misses."""

    def __init__(self):
        self.calls = 0

    def synchronise(self):
        """Nothing to do."""

    def lateness(self, begins, sequence):
        late = np.zeros_like(begins)
        for index in np.ndindex(late.shape):
            self.calls += 1
            late[index] = 10 * LATE if self.calls % 3 == 0 else 0.0
        return late

    def adapt(self, late):
        """Stays as it is."""


def test_late_samples_are_kept_and_taken_again(monkeypatch):
    step = Step(0, 0, 100.0, 30, 0, "case_time", "iterations")
    reason, number, race = Alone(monkeypatch, constant(1e-3), noisy(2)).race(
        step, percent=0.0, window=SomeLate()
    )
    assert reason == "iterations"
    assert min(map(len, race.good)) >= 30
    assert number > 40
    late = np.concatenate(race.samples.late)[race.samples.warmup :]
    assert [len(good) for good in race.good] == (~late).sum(axis=0).tolist()


def test_batched_calls_are_counted(monkeypatch):
    calls = []
    timing.batched(lambda: calls.append(1), 5)()
    assert len(calls) == 5
    one = SimpleNamespace()
    assert timing.batched(one, 1) is one
