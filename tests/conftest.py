"""For all tests: a record of each session's counts, for `make test` to sum up."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

STARTED = time.monotonic()


def pytest_configure(config: pytest.Config) -> None:
    """Give the workers of pytest-xdist the Ctrl-C of any Python: they ignore it, and tests send it."""
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Append this session's counts and the reasons of its skips to the file MPICOLL_TEST_RECORD."""
    record = os.environ.get("MPICOLL_TEST_RECORD")
    if not record or hasattr(terminalreporter.config, "workerinput"):  # what a worker ran is its controller's
        return
    stats = terminalreporter.stats
    line = {
        "what": os.environ.get("MPICOLL_TEST_LABEL", "tests"),
        "passed": len(stats.get("passed", [])) + len(stats.get("xfailed", [])),
        "failed": len(stats.get("failed", [])) + len(stats.get("error", [])),
        "skipped": [(report.nodeid, _reason(report)) for report in stats.get("skipped", [])],
        "seconds": round(time.monotonic() - STARTED, 1),
    }
    with Path(record).open("a") as file:
        file.write(json.dumps(line) + "\n")


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")
