"""How long the background thread sleeps: a part of a flight that does not grow with its own sleeps."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import pytest

_runner = pytest.importorskip("mpicoll._runner", reason="no native engine here")
TESTALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
WAIT, MARK = 1, 5
HOUR = 3600 * 10**9


@pytest.fixture(autouse=True)
def without_bounds() -> Iterator[None]:
    before = _runner.background_policy(0, 0, HOUR, 8, 16)
    assert before == (0, 20_000, 1_500_000, 8, 16)
    yield
    _runner.background_policy(*before)


class Waits:
    """A program of so many waits, for messages that are there at the first look, after some seconds."""

    def __init__(self, count: int) -> None:
        self.seconds, self._time = 0.0, (ctypes.c_int64 * 1)()
        self._testall = TESTALL(self._test)
        rows = [MARK, ctypes.addressof(self._time), 0, 0, 0] + [WAIT, 0, 0, 0, 0] * count
        functions = dict.fromkeys(("startall", "reduce_local", "combine", "datatype", "operation"), 0)
        self.program = _runner.Program(
            steps=(ctypes.c_int64 * len(rows))(*rows), requests=b"", request_size=8, status_size=8,
            longest_wait=0, testall=ctypes.cast(self._testall, ctypes.c_void_p).value, **functions,
            idle=lambda *_: False, failure=lambda *_: AssertionError(), owner=self, polite=False,
        )  # fmt: skip

    def _test(self, _count: int, _requests: int, complete: int, _statuses: int) -> int:
        time.sleep(self.seconds)
        ctypes.c_int.from_address(complete).value = 1
        return 0

    def fly(self, seconds: float) -> int:
        """Run it in the background; how long it took [ns]."""
        self.seconds = seconds
        self.program.submit(None)
        self.program.join()
        began, ended = self.program.flight
        return round((ended - began) * 1e9)


def test_the_shortest_of_the_last_flights_counts() -> None:
    """One that waited for a late rank makes no later one sleep longer, nor does the first alone."""
    one = Waits(1)
    flights = []
    for seconds, flown in ((0.004, 0), (0.001, 1), (0.002, 2)):
        assert one.program.pause(800) == 100, flown
        flights.append(one.fly(seconds))
    assert one.program.pause(0) == pytest.approx(min(flights) / 16, abs=1)
    flights.append(one.fly(0.05))
    assert one.program.pause(0) == pytest.approx(min(flights[1:]) / 16, abs=1)
    flights.append(one.fly(0.003))
    assert one.program.pause(0) == pytest.approx(min(flights[2:]) / 16, abs=1) != min(flights) // 16
    assert one.program.pause(8 * 10**9) == 10**9


@pytest.mark.parametrize("count", [1, 2, 3, 17, 100])
def test_all_waits_together_are_late_by_an_eighth_of_a_flight(count: int) -> None:
    """Else each step would sleep longer than the one before, as flights hold the thread's own sleeps."""
    one = Waits(count)
    least = min(one.fly(1e-4) for _ in range(3))
    pause = one.program.pause(0)
    assert count * pause <= least / 8
    assert pause == pytest.approx(least / max(16, 8 * count), abs=1)


def test_without_looks_only_the_time_waited_counts() -> None:
    one = Waits(1)
    for _ in range(3):
        one.fly(0.001)
    _runner.background_policy(0, 20_000, 1_000_000, 8, 0)
    assert [one.program.pause(waited) for waited in (0, 800_000, 80_000_000)] == [20_000, 100_000, 1_000_000]
    with pytest.raises(ValueError, match="looks >= 0"):
        _runner.background_policy(0, 0, 0, 1, -1)
