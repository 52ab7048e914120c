"""MPI tests: all ranks agree on the outcome of each test before they begin the next one.

Pytest catches what a test raises, so on its own a rank whose test failed would go on to the next test
while the others still wait for a message from it in this one. Here, after each test,

- if all ranks arrive, the test fails on all of them when it failed on any, or was skipped on some only;
  rank 0 alone prints, with the other ranks' tracebacks;
- if some rank does not arrive in time (it waits for a rank whose test has failed), the rank that did
  prints what it knows and aborts the job: a failure, and no hang.

Under all of it lies a watchdog that needs no Python to run (a rank may hang inside an MPI call holding
the interpreter's lock): after the test's time every rank writes its stack, and rank 0 ends the job.

With one process, or without --with-mpi, all of this does nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any, TextIO

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

HERE = Path(__file__).parent
GRACE = float(os.environ.get("MPICOLL_TEST_GRACE", "20"))  # seconds a failed rank waits for the others
DEFAULT_LIMIT = 120.0  # seconds for a test where pytest-timeout is not there to say
PASSED, SKIPPED, FAILED = range(3)
MOST_TEXT = 20_000  # characters of one rank's failure that are sent to rank 0

# Every rank must draw the same examples.
hypothesis.settings.register_profile("mpi", derandomize=True, database=None, deadline=None)


class Ranks:
    """This process among the ranks of the job, on a communicator that no test uses."""

    def __init__(self, config: pytest.Config) -> None:
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        self.max = MPI.MAX
        self.comm = self.world.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.limit, self.begun = DEFAULT_LIMIT, time.monotonic()  # of the running test
        self.collect_errors: list[str] = []
        self.stderr = os.fdopen(os.dup(2), "w")  # the real one, which output capturing does not take away
        self.stacks: TextIO = self.stderr
        if directory := os.environ.get("MPICOLL_TEST_STACKS"):
            self.stacks = Path(directory, f"rank-{self.rank}.txt").open("w")  # noqa: SIM115 (open to the end)
        faulthandler.register(signal.SIGUSR1, file=self.stacks, all_threads=False)
        self.processes = self.comm.allgather((MPI.Get_processor_name(), os.getpid()))
        if self.rank:
            silence(config)

    def agree(self, values: list[int], wait: float, doing: str) -> list[tuple[int, int]]:
        """Minimum and maximum over all ranks of each value; aborts the job after `wait` seconds."""
        import numpy as np

        mine = np.array([*values, *(-v for v in values)], dtype=np.int64)
        most = np.empty_like(mine)
        request = self.comm.Iallreduce(mine, most, op=self.max)
        deadline = time.monotonic() + wait
        while not request.Test():
            if time.monotonic() > deadline:
                self.abort(f"after {wait:.0f} s another rank had not finished {doing}")
            time.sleep(0.0005)
        n = len(values)
        return [(-int(low), int(high)) for low, high in zip(most[n:], most[:n], strict=True)]

    def abort(self, text: str) -> None:
        """Print, have the other ranks of this machine write where they stand, and end the job."""
        sys.stdout.flush()
        print(f"\n=== rank {self.rank} aborts the job: {text}", file=self.stderr, flush=True)
        host = self.processes[self.rank][0]
        for rank, (name, pid) in enumerate(self.processes):
            if name == host and rank != self.rank:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        self.world.Abort(1)


def silence(config: pytest.Config) -> None:
    """Let no rank but 0 report: its terminal plugin stays (others count on it), but writes nowhere."""
    os.environ.pop("MPICOLL_TEST_RECORD", None)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = Path(os.devnull).open("w")  # noqa: SIM115 (open to the end)


MINE: list[Ranks | None] = [None]  # set once there are several ranks


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--with-mpi", False):
        from mpi4py import MPI

        hypothesis.settings.load_profile("mpi")
        MINE[0] = Ranks(config) if MPI.COMM_WORLD.size > 1 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is in here; leave out what a marker `ranks` says is not for this many of them."""
    size = MINE[0].size if MINE[0] is not None else 1
    elsewhere = []
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.mpi)
            here = item.get_closest_marker("ranks")
            if here is not None and size not in here.args:
                elsewhere.append(item)
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in set(elsewhere)]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed and MINE[0] is not None:
        MINE[0].collect_errors.append(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    ranks = MINE[0]
    if ranks is None:
        return
    found = [_digest("\n".join(i.nodeid for i in session.items)), session.testsfailed]
    if any(low != high for low, high in ranks.agree(found, 60, "collecting its tests")):
        errors = "\n".join(ranks.collect_errors)
        ranks.abort(f"ranks have collected different tests; here {len(session.items)}\n{errors}")


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Replace pytest-timeout's timer, which needs the interpreter and stops one rank only."""
    ranks = MINE[0]
    if ranks is None:
        return None
    ranks.limit, ranks.begun = settings.timeout, time.monotonic()
    last = ranks.rank == 0  # to act, so that the others' stacks are written when the job ends
    faulthandler.dump_traceback_later(ranks.limit + 3 * last, exit=last, file=ranks.stacks)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer() -> bool | None:
    if MINE[0] is None:
        return None
    faulthandler.cancel_dump_traceback_later()
    return True


def pytest_internalerror(excrepr: Any) -> None:
    if MINE[0] is not None:
        MINE[0].abort(f"pytest failed\n{excrepr}")


def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    if MINE[0] is not None:
        MINE[0].abort(repr(excinfo.value))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    ranks = MINE[0]
    if ranks is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    faulthandler.cancel_dump_traceback_later()
    _settle(ranks, item, reports)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _settle(ranks: Ranks, item: pytest.Item, reports: list[Any]) -> None:
    """Make the outcome of a test the same on all ranks."""
    outcome = max(FAILED if r.failed else SKIPPED if r.skipped else PASSED for r in reports)
    story = _story(ranks.rank, outcome, reports)
    # A rank that passed waits for slow ones as long as the test may take, and one that failed a grace.
    left = ranks.begun + ranks.limit + 2 - time.monotonic()
    wait = min(GRACE, left) if outcome == FAILED else left
    name, got = ranks.agree([_digest(item.nodeid), outcome], wait, f"{item.nodeid}\n{story}")
    if name[0] != name[1]:
        ranks.abort(f"ranks run different tests; here {item.nodeid}\n{story}")
    if got[0] == got[1] != FAILED:
        return
    stories = ranks.comm.gather((outcome, story)) or []
    theirs = [text for rank, (what, text) in enumerate(stories) if what != PASSED and rank != ranks.rank]
    bad = next((r for r in reports if r.failed), None)
    if bad is None:  # failed elsewhere, or skipped on some ranks only
        bad = next((r for r in reports if r.when == "call"), reports[0])
        bad.outcome = "failed"
        bad.longrepr = "\n\n".join([*theirs, story])
    else:
        bad.sections.extend(("on another rank", text) for text in theirs)


def _story(rank: int, outcome: int, reports: list[Any]) -> str:
    """What happened to a test on this rank, with its traceback and output."""
    text = f"rank {rank} {('passed', 'skipped', 'failed')[outcome]}"
    for report in reports:
        if not report.passed:
            text += f" in {report.when}\n{report.longreprtext}"
            text += "".join(f"\n--- {title} ---\n{output}" for title, output in report.sections)
    return text[:MOST_TEXT]


def _digest(text: str) -> int:
    return zlib.crc32(text.encode())
